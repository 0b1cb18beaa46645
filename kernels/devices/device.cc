#include "kernels/devices/device.h"

#ifdef PRIMERL_CUDA_ENGINE
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/memory/device_memory.h"
#include "kernels/cuda/ops/cuda_ops.h"
#endif

namespace primerl {

std::string why_not_on(std::string_view device) {
  if (device == "cpu") return {};
#if !defined(PRIMERL_LIBTORCH_CUDA)
  return "is not available: libtorch was built for the CPU";
#elif !defined(PRIMERL_CUDA_ENGINE)
  return "cannot be used: this program was built without nvcc and without the headers of the CUDA "
         "runtime "
         "(pip install nvidia-cuda-crt)";
#else
  return why_no_cuda_device(device);
#endif
}

std::string slow_way_on([[maybe_unused]] std::string_view device) {
#ifdef PRIMERL_CUDA_ENGINE
  if (device != "cpu" && !cuda::has_own_kernels())
    return "without nvcc: PyTorch's own operations, slower; for the fast ones put the nvcc of "
           "PyTorch's CUDA version on PATH and build again";
#endif
  return {};
}

Result<DeviceMemoryInfo> free_memory_on(std::string_view device) {
#ifdef PRIMERL_CUDA_ENGINE
  ASSIGN_OR_RETURN(const CudaDeviceFacts facts, cuda_device_facts(cuda_device_index(device)));
  return DeviceMemoryInfo{facts.free_bytes, facts.total_bytes};
#else
  return error(Code::kUnavailable, "'{}' has no device memory that this build can query", device);
#endif
}

std::shared_ptr<DeviceMemory> device_memory_of(const std::string& device) {
#ifdef PRIMERL_CUDA_ENGINE
  if (cuda_device_index(device) >= 0 && why_no_cuda_device(device).empty())
    return make_cuda_memory(cuda_device_index(device));
#endif
  static_cast<void>(device);
  return nullptr;
}

}  // namespace primerl
