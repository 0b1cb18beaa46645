/// Input that is copied to shared memory before a block uses it: single copies (cp.async), the ring
/// of stages that they fill, and tiles of rows that a block copies together.
#pragma once

#include "kernels/cuda/ops/device.cuh"

namespace primerl::cuda {

/// The PTX instruction cp.async: copies 16 bytes from global to shared memory without registers.
/// cp_async_commit() closes a batch of the thread's copies, which may be empty. cp_async_wait()
/// waits until all but the last kLeft batches of the thread have arrived.
__device__ __forceinline__ void cp_async(void* to, const void* from) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kLeft>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

/// A ring of stages of kPieces pieces of 16 bytes. While one stage is used, the others are being
/// filled. Stages are used in order, and each is filled again after its use.
template <int kNumStages, int kPieces>
class StageRing {
 public:
  static constexpr int kStages = kNumStages;
  static constexpr int kBytes = kNumStages * kPieces * static_cast<int>(sizeof(uint4));

  __device__ __forceinline__ explicit StageRing(uint4* memory) : memory_(memory) {}
  __device__ __forceinline__ uint4* at(int stage) const { return memory_ + stage * kPieces; }
  /// The stage after `stage`.
  static __device__ __forceinline__ int next(int stage) {
    return stage + 1 == kStages ? 0 : stage + 1;
  }

 private:
  uint4* memory_;
};

/// Rows of kPieces pieces of 16 bytes in shared memory, without padding. Pieces of a row are
/// permuted so that eight rows use different banks.
template <int kRows, int kPieces>
struct SwizzledTile {
  static constexpr int kSize = kRows * kPieces;  // in pieces

  static __device__ __forceinline__ int index(int row, int piece) {
    return row * kPieces + (piece ^ (row % 8));
  }
  /// Starts to copy the first `count` rows, `stride` elements apart. Other rows keep their values.
  template <int kThreads>
  static __device__ __forceinline__ void copy(const Bf16* from, int64_t stride, int64_t count,
                                              uint4* to) {
#pragma unroll
    for (int i = threadIdx.x; i < kSize; i += kThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      if (row < count)
        cp_async(to + index(row, piece), from + row * stride + piece * kVector<Bf16>);
    }
  }
};

/// Rows of kWidth elements in shared memory, kStride apart, so that rows begin at other banks.
template <int kRows, int kWidth, int kStride>
struct PaddedTile {
  static constexpr int kSize = kRows * kStride;  // in elements

  /// Copies [rows, width] through registers and writes zeros elsewhere. Widths and strides are
  /// multiples of 8.
  template <int kThreads>
  static __device__ __forceinline__ void copy(const Bf16* from, int64_t stride, int64_t rows,
                                              int64_t width, Bf16* to) {
    constexpr int kCount = kVector<Bf16>, kVectors = kWidth / kCount;
    using Vector = Pack<Bf16, kCount>;
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kVectors; i += kThreads) {
      const int row = i / kVectors, at = i % kVectors * kCount;
      Vector vector = {};
      if (row < rows && at < width)
        vector = *reinterpret_cast<const Vector*>(from + row * stride + at);
      *reinterpret_cast<Vector*>(to + row * kStride + at) = vector;
    }
  }
};

}  // namespace primerl::cuda
