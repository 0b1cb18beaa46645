/// A scripted device that fails when a test requests it: engine and learner see the same errors as
/// from a real device.
#pragma once

#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

/// Reads and removes `file`, and returns the fault that it requests; each file causes one fault.
/// "lost": kDeviceLost, as after an illegal address. "full": kExhausted, as when other processes
/// use the memory. Ok if there is no file, or `file` is "". `doing` names the interrupted
/// computation.
Status take_device_fault(const std::string& file, std::string_view doing);

/// The same for a learner that saves its state: "no space" in `file` gives kIo, as on a full disk.
/// Steps do not read such a file.
Status take_disk_fault(const std::string& file, std::string_view doing);

}  // namespace primerl
