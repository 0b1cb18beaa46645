/// Norm and rotary embedding of one head by a warp: lane i has the channels i, i + 32, ... The two
/// channels of a RoPE pair are exchanged through shared memory.
#pragma once

#include "kernels/cuda/ops/adapters.cuh"

namespace primerl::cuda {

/// The channels of a head that lane `lane` has; kSlots * 32 >= head_dim.
template <class T, int kSlots>
__device__ __forceinline__ void load_head(const T* from, int head_dim, int lane,
                                          float (&x)[kSlots]) {
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    const int channel = lane + i * kWarp;
    x[i] = channel < head_dim ? to_float(from[channel]) : 0.0F;
  }
}
/// The LoRA delta of a head of a row, which begins at `column` of qkv: B is loaded at once, u as
/// soon as it is available.
template <class T, int kSlots>
class LoraDeltaOfHead {
 public:
  __device__ __forceinline__ LoraDeltaOfHead(const LoraDelta& lora_delta, int64_t row,
                                             int64_t column, int head_dim)
      : adapter_(lora_delta.rows[row]),
        columns_(lora_delta.of, adapter_, column),
        head_dim_(head_dim),
        warp_(warp()) {}

  __device__ __forceinline__ LoraShrinkRow ask(const LoraDelta& lora_delta, int64_t row) const {
    return {lora_delta, columns_.part, row, adapter_.scaling};
  }
  /// x += the delta. `shared` [kSlots * kWarp] belongs to the warp and is aligned to 16 bytes.
  __device__ __forceinline__ void add_to(const LoraShrinkRow& row, int lane, float (&x)[kSlots],
                                         float* shared) const {
    if (!columns_.applies_adapters()) return;
    if constexpr (kUsesMma)
      if (adapter_.rank % 4 == 0) return add_gemms(row, lane, x, shared);
    const int count = (head_dim_ - lane + kWarp - 1) / kWarp;
    add_columns(columns_.b + lane * adapter_.rank, adapter_.rank, kWarp, count, row, x);
  }

 private:
  static constexpr bool kUsesMma = sizeof(T) == sizeof(Bf16);
  static constexpr int kGroups = kSlots * kWarp / kWarpColumns;
  struct NoMma {};
  using Warp = std::conditional_t<kUsesMma, RowOfWarp<kGroups, true>, NoMma>;

  __device__ __forceinline__ Warp warp() const {
    if constexpr (kUsesMma) {
      const bool is_there = columns_.applies_adapters() && adapter_.rank % 4 == 0;
      return {columns_.b, adapter_.rank, is_there ? head_dim_ : 0};
    } else {
      return {};
    }
  }
  __device__ __forceinline__ void add_gemms(const LoraShrinkRow& row, int lane, float (&x)[kSlots],
                                            float* shared) const {
    float added[kLaneColumns] = {};
    warp_.add_to(row, added);
    __syncwarp();
    if (lane % 4 < kGroups) store(shared + Warp::vector_of(lane) * kLaneColumns, added);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kSlots; ++i) x[i] += shared[lane + i * kWarp];
  }

  const AdapterRow adapter_;
  const AdaptedColumns<T> columns_;
  const int head_dim_;
  const Warp warp_;
};

template <class T, int kSlots>
__device__ __forceinline__ void store_head(T* to, int head_dim, int lane,
                                           const float (&x)[kSlots]) {
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    const int channel = lane + i * kWarp;
    if (channel < head_dim) to[channel] = from_float<T>(x[i]);
  }
}

template <int kSlots>
__device__ __forceinline__ float inverse_rms(const float (&x)[kSlots], int head_dim,
                                             float epsilon) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kSlots; ++i) squares += x[i] * x[i];
  return 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(head_dim) + epsilon);
}

/// Rotates the pairs (i, i + rotary_dim / 2); `direction` -1 rotates back. `shared` is the warp's.
template <int kSlots>
__device__ __forceinline__ void apply_rope(float (&x)[kSlots], const float* cosine,
                                           const float* sine, int rotary_dim, int lane,
                                           float direction, float* shared) {
  const int half = rotary_dim / 2;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kSlots; ++i) shared[lane + i * kWarp] = x[i];
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    const int channel = lane + i * kWarp;
    if (channel < half)
      x[i] = x[i] * cosine[channel] - direction * shared[channel + half] * sine[channel];
    else if (channel < rotary_dim)
      x[i] =
          x[i] * cosine[channel - half] + direction * shared[channel - half] * sine[channel - half];
  }
}

/// For a query or a key: the norm if there is a weight, then RoPE for `position`. `shared` is the
/// warp's.
template <class T, int kSlots>
__device__ __forceinline__ void norm_and_rope(const PagedRotaryArgs& args, const void* weight,
                                              int32_t position, int lane, float (&x)[kSlots],
                                              float* shared) {
  if (weight != nullptr) {
    const int d = args.heads.head_dim;
    const float inverse = inverse_rms(x, d, args.epsilon);
    float w[kSlots];
    load_head(static_cast<const T*>(weight), d, lane, w);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) x[i] = (x[i] * inverse) * w[i];
  }
  const int64_t angle = static_cast<int64_t>(position) * (args.rotary_dim / 2);
  apply_rope(x, args.cosine + angle, args.sine + angle, args.rotary_dim, lane, 1.0F, shared);
}

}  // namespace primerl::cuda
