/// Kernels of a step that start while the one before them ends (programmatic dependent launch),
/// where there is code for compute capability 9.0 and more; elsewhere they start when it has ended.
///
/// A kernel launched so may read, before wait_for_last_kernel(), only what no kernel still running
/// can write: a model's weights, keys and values of earlier steps, what the host sent before the
/// step. All other reads and all writes come after that call. It must be reached by every thread:
/// then all kernels before have ended, since each waited for its own.
#pragma once

#include "kernels/cuda/ops/device.cuh"

namespace primerl::cuda {

__device__ __forceinline__ void wait_for_last_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Once all blocks have said so, the next kernel may start.
__device__ __forceinline__ void start_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Whether the code of a kernel that was loaded is for compute capability 9.0 or more, and not that
/// for an older one, which a device of 9.0 runs as well.
template <class Kernel>
bool is_for_cc90(Kernel* kernel) {
  cudaFuncAttributes attributes = {};
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.ptxVersion >= 90;
}

/// Launches a kernel that waits for the one before it by itself. What fails is CUDA's last error.
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
