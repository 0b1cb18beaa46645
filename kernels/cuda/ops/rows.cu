// Operations on indexed rows: gather, combine, dot products, and the gradient of an embedding. A
// thread has a vector of columns and adds the terms of its row in order.
#include <algorithm>

#include "kernels/cuda/ops/device.cuh"

namespace primerl::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kAhead = 8;  // rows that are read before they are added

template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) gather_kernel(GatherRowsArgs args) {
  const int64_t vectors = args.width / kVec;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.rows * vectors) return;
  const int64_t row = quotient(i, vectors), at = (i - row * vectors) * kVec;
  int64_t source = args.sources[row];
  if (source < 0 && args.others != nullptr) source = args.others[-1 - source];
  float x[kVec] = {};
  if (source >= 0) load(static_cast<const T*>(args.x) + source * args.width + at, x);
  if (args.scale != nullptr) {
    const float scale = args.scale[row];
#pragma unroll
    for (int j = 0; j < kVec; ++j) x[j] *= source < 0 ? 0.0F : scale;
  }
  store(static_cast<T*>(args.y) + row * args.width + at, x);
}

template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) combine_kernel(CombineRowsArgs args) {
  const int64_t vectors = args.width / kVec;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.rows * vectors) return;
  const int64_t row = quotient(i, vectors), at = (i - row * vectors) * kVec;
  T* y = static_cast<T*>(args.y) + row * args.width + at;
  float sum[kVec];
  load(y, sum);
#pragma unroll 4
  for (int32_t term = 0; term < args.terms; ++term) {
    const int64_t row_index = args.row_indices[row * args.terms + term];
    if (row_index < 0) continue;
    const float weight = args.weights == nullptr ? 1.0F : args.weights[row * args.terms + term];
    float x[kVec];
    load(static_cast<const T*>(args.x) + row_index * args.width + at, x);
#pragma unroll
    for (int j = 0; j < kVec; ++j) sum[j] += weight * x[j];
  }
  store(y, sum);
}

/// One warp per dot product.
template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) dot_kernel(DotRowsArgs args) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (at >= args.rows * args.terms) return;
  const int64_t row_index = args.row_indices[at];
  float sum = 0;
  if (row_index >= 0) {
    const T* a = static_cast<const T*>(args.a) + at / args.terms * args.width;
    const T* b = static_cast<const T*>(args.b) + row_index * args.width;
    for (int64_t i = threadIdx.x % kWarp * kVec; i < args.width; i += kWarp * kVec) {
      float x[kVec], y[kVec];
      load(a + i, x);
      load(b + i, y);
#pragma unroll
      for (int j = 0; j < kVec; ++j) sum += x[j] * y[j];
    }
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) args.dots[at] = sum;
}

/// One block per id and kThreads columns; reads are coalesced.
template <class T>
__global__ void __launch_bounds__(kThreads) embedding_backward_kernel(EmbeddingBackwardArgs args) {
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (column >= args.width) return;
  const T* dy = static_cast<const T*>(args.dy) + column;
  const int32_t end = args.offsets[blockIdx.x + 1];
  float sum = 0;
  for (int32_t begin = args.offsets[blockIdx.x]; begin < end; begin += kAhead) {
    float ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      ahead[i] = begin + i < end ? to_float(dy[args.row_indices[begin + i] * args.width]) : 0.0F;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) sum += ahead[i];
  }
  args.dtable[args.ids[blockIdx.x] * args.width + column] += sum;
}

template <class T, int kVec>
void start(const GatherRowsArgs& args, Stream stream) {
  const int64_t blocks = divide_up(args.rows * (args.width / kVec), kThreads);
  gather_kernel<T, kVec><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
}
template <class T, int kVec>
void start(const CombineRowsArgs& args, Stream stream) {
  const int64_t blocks = divide_up(args.rows * (args.width / kVec), kThreads);
  combine_kernel<T, kVec><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
}
template <class T, int kVec>
void start(const DotRowsArgs& args, Stream stream) {
  const int64_t blocks = divide_up(args.rows * args.terms, kThreads / kWarp);
  dot_kernel<T, kVec><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
}

template <class Args>
Outcome start_some(const Args& args, bool is_aligned, Stream stream) {
  return start_by_vectors(args, is_aligned,
                          [&]<class T, int kVec>() { start<T, kVec>(args, stream); });
}

}  // namespace

Outcome gather_rows(const GatherRowsArgs& args, Stream stream) {
  return start_some(args, are_aligned(args.x, args.y), stream);
}

Outcome combine_rows(const CombineRowsArgs& args, Stream stream) {
  if (args.terms == 0) return {};
  return start_some(args, are_aligned(args.x, args.y), stream);
}

Outcome dot_rows(const DotRowsArgs& args, Stream stream) {
  if (args.terms == 0) return {};
  return start_some(args, are_aligned(args.a, args.b), stream);
}

Outcome embedding_backward(const EmbeddingBackwardArgs& args, Stream stream) {
  if (args.num_ids == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const dim3 grid(static_cast<unsigned>(args.num_ids),
                  static_cast<unsigned>(divide_up(args.width, kThreads)));
  if (args.type == Type::kFloat32)
    embedding_backward_kernel<float><<<grid, kThreads, 0, stream>>>(args);
  else
    embedding_backward_kernel<Bf16><<<grid, kThreads, 0, stream>>>(args);
  return launched();
}

}  // namespace primerl::cuda
