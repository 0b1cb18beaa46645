// Softmax statistics of rows of logits, and the gradient, written over the logits: one block per
// row. The first pass keeps a running maximum; the second finds much of the row still in the L2
// cache.
#include <cfloat>

#include "kernels/cuda/ops/device.cuh"

namespace primerl::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr float kLowest = -1e30F;

/// Statistics of some of the logits z: the greatest, the sum of e^(z - largest), and the sum of
/// e^(z - largest) * (z - largest).
struct RunningSum {
  float largest = kLowest;
  float sum = 0;
  float weighted = 0;
};

/// Rescales the sums to `largest`, which is at least the current maximum.
__device__ __forceinline__ void lift(RunningSum& all, float largest) {
  const float down = all.largest - largest, shrink = expf(down);
  all.weighted = shrink > 0 ? shrink * (all.weighted + all.sum * down) : 0.0F;
  all.sum *= shrink;
  all.largest = largest;
}
__device__ __forceinline__ RunningSum joined(RunningSum a, RunningSum b) {
  const float largest = fmaxf(a.largest, b.largest);
  lift(a, largest);
  lift(b, largest);
  a.sum += b.sum;
  a.weighted += b.weighted;
  return a;
}

/// bf16 logits have eight bits, so the fast exponential is exact enough for them.
template <class T>
__device__ __forceinline__ float exp_for(float x) {
  return sizeof(T) == sizeof(float) ? expf(x) : __expf(x);
}

template <class T, int kVec>
__device__ __forceinline__ RunningSum sum_row(const T* logits, int64_t size, float scale) {
  RunningSum all;
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * kVec; at < size; at += kThreads * kVec) {
    float z[kVec];
    load(logits + at, z);
    float most = all.largest;
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      z[j] *= scale;
      most = fmaxf(most, z[j]);
    }
    if (most > all.largest) lift(all, most);
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      const float down = z[j] - most, e = exp_for<T>(down);
      all.sum += e;
      all.weighted += e > 0 ? e * down : 0.0F;
    }
  }
  __shared__ float largest[kWarps], sums[kWarps], weighted[kWarps];
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    RunningSum other;
    other.largest = __shfl_xor_sync(kAllLanes, all.largest, step);
    other.sum = __shfl_xor_sync(kAllLanes, all.sum, step);
    other.weighted = __shfl_xor_sync(kAllLanes, all.weighted, step);
    // Both lanes of a pair add in the same order.
    all = threadIdx.x & step ? joined(other, all) : joined(all, other);
  }
  if (threadIdx.x % kWarp == 0) {
    largest[threadIdx.x / kWarp] = all.largest;
    sums[threadIdx.x / kWarp] = all.sum;
    weighted[threadIdx.x / kWarp] = all.weighted;
  }
  __syncthreads();
  all = {largest[0], sums[0], weighted[0]};
  for (int i = 1; i < kWarps; ++i) all = joined(all, {largest[i], sums[i], weighted[i]});
  return all;
}

/// to := coefficient * scale * (1[label] - p); `to` may be `logits`.
template <class T, int kVec, class To>
__device__ __forceinline__ void write_gradient(const T* logits, To* to, int64_t size, float scale,
                                               float log_normalizer, float coefficient,
                                               int32_t label) {
  const float factor = label < 0 ? 0.0F : coefficient * scale;
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * kVec; at < size; at += kThreads * kVec) {
    float z[kVec];
    load(logits + at, z);
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      const float p = exp_for<T>(z[j] * scale - log_normalizer);
      // A row without a label has gradient 0, even if its logits are NaN or infinity.
      z[j] = factor == 0 ? 0.0F : factor * ((at + j == label ? 1.0F : 0.0F) - p);
    }
    store(to + at, z);
  }
}

template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(CrossEntropyArgs args) {
  const int64_t row = blockIdx.x;
  T* logits = static_cast<T*>(args.logits) + row * args.row_stride;
  const int32_t label = args.labels[row];
  const float scale = args.inverse_temperature;
  const float chosen = label < 0 ? 0.0F : to_float(logits[label]) * scale;
  const RunningSum all = sum_row<T, kVec>(logits, args.vocab_size, scale);
  const float log_sum = logf(all.sum), log_normalizer = all.largest + log_sum;
  if (threadIdx.x == 0) {
    args.logprobs[row] = label < 0 ? 0.0F : chosen - log_normalizer;
    if (args.entropies != nullptr) args.entropies[row] = log_sum - all.weighted / all.sum;
    if (args.log_normalizers != nullptr) args.log_normalizers[row] = log_normalizer;
  }
  if (args.coefficients != nullptr)
    write_gradient<T, kVec>(logits, logits, args.vocab_size, scale, log_normalizer,
                            args.coefficients[row], label);
}

template <class T, int kVec>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_backward_kernel(CrossEntropyBackwardArgs args) {
  const int64_t row = blockIdx.x;
  T* logits = static_cast<T*>(args.logits) + row * args.row_stride;
  const auto write = [&](auto* to) {
    write_gradient<T, kVec>(logits, to, args.vocab_size, args.inverse_temperature,
                            args.log_normalizers[row], args.coefficients[row], args.labels[row]);
  };
  if (args.bf16_gradients != nullptr)
    write(static_cast<Bf16*>(args.bf16_gradients) + row * args.row_stride);
  else
    write(logits);
}

template <class T, int kVec>
void start(const CrossEntropyArgs& args, Stream stream) {
  const auto rows = static_cast<unsigned>(args.rows);
  cross_entropy_kernel<T, kVec><<<rows, kThreads, 0, stream>>>(args);
}
template <class T, int kVec>
void start(const CrossEntropyBackwardArgs& args, Stream stream) {
  const auto rows = static_cast<unsigned>(args.rows);
  cross_entropy_backward_kernel<T, kVec><<<rows, kThreads, 0, stream>>>(args);
}

const void* gradients_of(const CrossEntropyArgs&) { return nullptr; }
const void* gradients_of(const CrossEntropyBackwardArgs& args) { return args.bf16_gradients; }

template <class T, class Args>
void with_vector(const Args& args, Stream stream) {
  const bool is_aligned = are_aligned(static_cast<const std::byte*>(args.logits)) &&
                          are_aligned(static_cast<const std::byte*>(gradients_of(args))) &&
                          args.row_stride % kVector<T> == 0 && args.vocab_size % kVector<T> == 0;
  if (is_aligned)
    start<T, kVector<T>>(args, stream);
  else
    start<T, 1>(args, stream);
}

template <class Args>
Outcome with_type(const Args& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  if (args.type == Type::kFloat32)
    with_vector<float>(args, stream);
  else
    with_vector<Bf16>(args, stream);
  return launched();
}

}  // namespace

Outcome cross_entropy(const CrossEntropyArgs& args, Stream stream) {
  return with_type(args, stream);
}

Outcome cross_entropy_backward(const CrossEntropyBackwardArgs& args, Stream stream) {
  return with_type(args, stream);
}

}  // namespace primerl::cuda
