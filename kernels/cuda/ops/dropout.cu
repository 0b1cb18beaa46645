// Dropout of adapters: one thread per four numbers, which share one 64-bit random number.
#include "kernels/cuda/ops/device.cuh"

namespace primerl::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kNumbersOfDraw = 4;  // of 16 bits each

/// finalize() and mix() of graph/base/random.cc.
__device__ __forceinline__ uint64_t finalize(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ULL;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}
__device__ __forceinline__ uint64_t mix(uint64_t a, uint64_t b) {
  return finalize(a ^ finalize(b + 0x9E3779B97F4A7C15ULL));
}

template <class T>
__global__ void __launch_bounds__(kThreads) drop_rows_kernel(DropRowsArgs args) {
  const int64_t draws = (args.width + kNumbersOfDraw - 1) / kNumbersOfDraw;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= args.rows * draws) return;
  const int64_t row = quotient(index, draws), draw = index - row * draws;
  const DropRow of_row = args.dropped[row];
  const uint64_t module = args.modules == nullptr ? args.module : args.modules[row];
  const uint64_t bits = mix(mix(of_row.key, module), static_cast<uint64_t>(draw));
  const int64_t first = row * args.width + draw * kNumbersOfDraw;
  const T* x = static_cast<const T*>(args.x) + first;
  T* y = static_cast<T*>(args.y) + first;
  const int64_t count = args.width - draw * kNumbersOfDraw;
#pragma unroll
  for (int i = 0; i < kNumbersOfDraw; ++i) {
    if (i >= count) return;
    const bool is_element_dropped =
        static_cast<uint32_t>(bits >> (16 * i) & 0xFFFF) < of_row.threshold;
    const float left = is_element_dropped ? 0.0F : of_row.scale * to_float(x[i]);
    y[i] = from_float<T>(args.adds ? to_float(y[i]) + left : left);
  }
}

}  // namespace

Outcome drop_rows(const DropRowsArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const int64_t blocks = divide_up(args.rows * divide_up(args.width, kNumbersOfDraw), kThreads);
  const auto grid = static_cast<unsigned>(blocks);
  if (args.type == Type::kFloat32)
    drop_rows_kernel<float><<<grid, kThreads, 0, stream>>>(args);
  else
    drop_rows_kernel<Bf16><<<grid, kThreads, 0, stream>>>(args);
  return launched();
}

}  // namespace primerl::cuda
