/// Clusters of blocks, which read and write each other's shared memory: on devices of compute
/// capability 9.0 and more. Code for older ones, on which nothing starts such a kernel, has a trap.
#pragma once

#include "kernels/ops/cuda/device.cuh"

namespace primerl::cuda {

constexpr int kClusterBlocks = 8;  // as many as any device with clusters takes

/// All threads of a cluster meet: what was written before arriving is seen after waiting.
__device__ __forceinline__ void arrive_at_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#else
  __trap();
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

}  // namespace primerl::cuda
