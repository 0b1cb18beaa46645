/// Where the engines and learners of this build of libtorch can compute. Torch-free to include;
/// any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "graph/base/result.h"
#include "kernels/engine/device_room.h"
#include "kernels/weights/device_memory.h"

namespace primerl {

/// Why not on `device` ("cpu", "cuda:0"), as what follows "which ..."; "" where they can. Whether a
/// model fits the device is asked when it is made.
std::string why_not_on(std::string_view device);

/// By what they compute on `device`, where that is not the fast way, and what is; "" else.
std::string slow_way_on(std::string_view device);

/// Of one that why_not_on() has nothing against, and that is not the CPU.
Result<DeviceRoom> room_on(std::string_view device);

/// The memory of a device that why_not_on() has nothing against; null: of the CPU.
std::shared_ptr<DeviceMemory> device_memory_of(const std::string& device);

}  // namespace primerl
