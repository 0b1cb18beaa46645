/// Kernels of a step that start while the previous one ends (programmatic dependent launch), if
/// there is code for compute capability 9.0 or higher. Otherwise they start after it has ended.
///
/// Before wait_for_last_kernel(), such a kernel may read only what no running kernel can write: a
/// model's weights, keys and values of earlier steps, what the host sent before the step. All other
/// reads and all writes come after that call. Every thread must reach it. After it all earlier
/// kernels have ended, since each waited for its own predecessor.
#pragma once

#include "kernels/cuda/ops/device.cuh"

namespace primerl::cuda {

__device__ __forceinline__ void wait_for_last_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// When all blocks have called it, the next kernel may start.
__device__ __forceinline__ void start_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Whether the loaded code of a kernel is for compute capability 9.0 or higher. A 9.0 device also
/// runs code for older ones.
template <class Kernel>
bool is_for_cc90(Kernel* kernel) {
  cudaFuncAttributes attributes = {};
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.ptxVersion >= 90;
}

/// Launches a kernel that itself waits for the previous one. Errors are in CUDA's last error.
template <class... Parameters, class... Args>
void launch(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, size_t shared_bytes,
            Stream stream, const Args&... args) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = is_for_cc90(kernel) ? 1 : 0;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, Parameters(args)...));
}

}  // namespace primerl::cuda
