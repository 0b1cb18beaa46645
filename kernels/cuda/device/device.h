/// The CUDA devices of this machine, as the driver describes them. Plain functions, any thread;
/// independent of torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/cuda/device/cuda_devices.h"

namespace primerl {

/// Calls why_not_on_cuda_device() for this machine. Creates this process's context on the device,
/// which uses some of its memory.
std::string why_no_cuda_device(std::string_view device);

/// The facts of a CUDA device for which why_no_cuda_device() is "".
Result<CudaDeviceFacts> cuda_device_facts(int32_t device_index);
/// Whether a device copies from this memory of the host directly.
bool is_pinned(const void* memory);

}  // namespace primerl
