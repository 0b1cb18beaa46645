// GEMMs of a few rows: one warp per column reads its weights once for all rows. Only the weights
// come from memory; all warps read the same few rows.
#include "kernels/cuda/ops/device.cuh"

namespace primerl::cuda {
namespace {

constexpr int kColumnWarps = 8;  // columns of a block
constexpr int kTermsOfLane = kVector<Bf16>;

template <class T, int kRows>
__global__ void __launch_bounds__(kColumnWarps* kWarp) few_rows_kernel(FewRowsArgs args) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumnWarps + threadIdx.x / kWarp;
  if (column >= args.columns) return;
  const int lane = threadIdx.x % kWarp;
  const Bf16* weight = static_cast<const Bf16*>(args.weight) + column * args.terms;
  const Bf16* x = static_cast<const Bf16*>(args.x);
  float sums[kRows] = {};
#pragma unroll 4
  for (int64_t t = lane * kTermsOfLane; t < args.terms; t += kWarp * kTermsOfLane) {
    float weights[kTermsOfLane];
    load(weight + t, weights);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      float terms[kTermsOfLane];
      load(x + row * args.terms + t, terms);
#pragma unroll
      for (int i = 0; i < kTermsOfLane; ++i) sums[row] += terms[i] * weights[i];
    }
  }
  const float bias =
      args.bias == nullptr ? 0.0F : to_float(static_cast<const Bf16*>(args.bias)[column]);
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const float sum = warp_sum(sums[row]);
    if (lane == 0) static_cast<T*>(args.y)[row * args.columns + column] = from_float<T>(sum + bias);
  }
}

template <class T>
void start_few_rows(const FewRowsArgs& args, Stream stream) {
  const auto blocks = static_cast<unsigned>(divide_up(args.columns, kColumnWarps));
  constexpr int kThreads = kColumnWarps * kWarp;
  if (args.rows == 1)
    few_rows_kernel<T, 1><<<blocks, kThreads, 0, stream>>>(args);
  else if (args.rows == 2)
    few_rows_kernel<T, 2><<<blocks, kThreads, 0, stream>>>(args);
  else if (args.rows == 3)
    few_rows_kernel<T, 3><<<blocks, kThreads, 0, stream>>>(args);
  else
    few_rows_kernel<T, 4><<<blocks, kThreads, 0, stream>>>(args);
}

}  // namespace

Outcome few_rows_gemm(const FewRowsArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  if (args.type == Type::kFloat32)
    start_few_rows<float>(args, stream);
  else
    start_few_rows<Bf16>(args, stream);
  return launched();
}

}  // namespace primerl::cuda
