/// The memory of one CUDA device for weight channels (weights/device_memory.h): allocations of the
/// driver, which other processes of the machine open by a descriptor that this one sends them.
///
/// A handle names the device by its UUID and the allocation by the name of that descriptor
/// (weights/descriptor_server.h). What another process has is opened for this device: where it lies
/// on another, by peer access, if the two have it. Torch-free to include; any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/weights/device_memory.h"

namespace primerl {

/// Of a card that why_no_card() has nothing against.
std::shared_ptr<DeviceMemory> make_card_memory(int32_t card);

}  // namespace primerl
