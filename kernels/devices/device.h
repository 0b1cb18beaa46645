/// Devices that engines and learners of this build can use. Independent of torch; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "graph/base/result.h"
#include "kernels/engine/device_room.h"
#include "kernels/weights/device_memory.h"

namespace primerl {

/// Why `device` ("cpu", "cuda:0") cannot be used, as the text after "which ..."; "" if it can.
/// Whether a model fits is checked when an engine or learner is made.
std::string why_not_on(std::string_view device);

/// If `device` uses slow operations: what they are, and the fast alternative; "" otherwise.
std::string slow_way_on(std::string_view device);

/// The free memory of a device that why_not_on() accepts and that is not the CPU.
Result<DeviceMemoryInfo> free_memory_on(std::string_view device);

/// The memory of a device that why_not_on() accepts; null: the CPU.
std::shared_ptr<DeviceMemory> device_memory_of(const std::string& device);

}  // namespace primerl
