/// The memory of one CUDA device for weight channels (weights/device_memory.h). It is allocated by
/// the driver; other processes of the machine open it with a descriptor that this process sends.
///
/// A handle names the device by its UUID and the allocation by the name of that descriptor
/// (weights/descriptor_server.h). Memory of another process is opened for this device. If it is on
/// another device, peer access between the two is needed. Independent of torch; any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/weights/device_memory.h"

namespace primerl {

/// The memory of a CUDA device for which why_no_cuda_device() is "".
std::shared_ptr<DeviceMemory> make_cuda_memory(int32_t device_index);

}  // namespace primerl
