// AdamW: one thread per parameter, or per four. 28 bytes are read and written for one, 30 with
// bf16.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/ops/device.cuh"

namespace primerl::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlocksMax = 8192;

template <int kVec>
__global__ void __launch_bounds__(kThreads) adamw_kernel(MasterAdamwArgs args) {
  const AdamwArgs& a = args.step;
  const float scale =
      args.device_scale == nullptr ? a.gradient_scale : a.gradient_scale * *args.device_scale;
  const float keep = 1.0F - a.lr * a.weight_decay, rate = a.lr / a.correction1;
  const float root = 1.0F / sqrtf(a.correction2);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kVec;
  int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVec;
  for (; at < a.count; at += step) {
    float weight[kVec], gradient[kVec], first[kVec], second[kVec];
    load(a.weights + at, weight);
    load(a.gradients + at, gradient);
    load(a.first_moments + at, first);
    load(a.second_moments + at, second);
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      const float g = gradient[j] * scale;
      first[j] = a.beta1 * first[j] + (1.0F - a.beta1) * g;
      second[j] = a.beta2 * second[j] + (1.0F - a.beta2) * g * g;
      weight[j] = weight[j] * keep - rate * first[j] / (sqrtf(second[j]) * root + a.epsilon);
    }
    store(a.weights + at, weight);
    store(a.first_moments + at, first);
    store(a.second_moments + at, second);
    if (args.bf16_weights != nullptr) store(static_cast<Bf16*>(args.bf16_weights) + at, weight);
  }
}

template <int kVec>
void start(const MasterAdamwArgs& args, Stream stream) {
  const int64_t blocks = std::min(kBlocksMax, divide_up(args.step.count / kVec, kThreads));
  adamw_kernel<kVec><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
}

}  // namespace

Outcome adamw(const MasterAdamwArgs& args, Stream stream) {
  const AdamwArgs& a = args.step;
  if (a.count == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const bool is_aligned = are_aligned(a.weights, a.gradients, a.first_moments, a.second_moments,
                                      static_cast<const std::byte*>(args.bf16_weights));
  if (is_aligned && a.count % 4 == 0)
    start<4>(args, stream);
  else
    start<1>(args, stream);
  return launched();
}

}  // namespace primerl::cuda
