/// A scripted device that fails when a test says so: what a real one does to engine and learner,
/// without a device.
#pragma once

#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

/// The fault that `file` asks for, once for each time that it is put there; it is removed. "lost":
/// kDeviceLost, as after an illegal address; "full": kExhausted, as where others took the memory.
/// Ok where there is no file, or `file` is "". `doing` is what was computed.
Status take_device_fault(const std::string& file, std::string_view doing);

/// The same for a learner that saves its state: "no space" in `file` is kIo, as on a full disk. A
/// step leaves this file where it is.
Status take_disk_fault(const std::string& file, std::string_view doing);

}  // namespace primerl
