// RMS norm: one block a row, the row in registers. Backward: a fixed number of blocks walks the
// rows, each with a sum of its own for the weight; the sums are added in order.
#include <algorithm>

#include "kernels/ops/cuda/launch.cuh"

namespace primerl::cuda {
namespace {

constexpr int kThreadsMax = 512;
constexpr int kWarpsMax = kThreadsMax / kWarp;
constexpr int kItemsMax = 8;
static_assert(kThreadsMax * kItemsMax == kNormWidthMax);
constexpr int64_t kPartThreads = 131072;  // of all parts together

/// What the parts of a delta give at element `at` of a row, as it would be in memory.
template <class T, int kVec>
__device__ __forceinline__ void add_delta_parts(const RmsNormArgs& args, int64_t at,
                                                float (&delta)[kVec]) {
  const int64_t stride = args.rows * args.width;
#pragma unroll
  for (int j = 0; j < kVec; ++j) delta[j] = 0;
#pragma unroll 4
  for (int32_t part = 0; part < args.num_parts; ++part) {
    float one[kVec];
    load(args.parts + part * stride + at, one);
#pragma unroll
    for (int j = 0; j < kVec; ++j) delta[j] += one[j];
  }
#pragma unroll
  for (int j = 0; j < kVec; ++j) delta[j] = rounded<T>(delta[j]);
}

template <class T, int kVec, int kItems, bool kInParts>
__global__ void __launch_bounds__(kThreadsMax) norm_kernel(RmsNormArgs args) {
  __shared__ float shared[kWarpsMax];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * args.width;
  const T* x = static_cast<const T*>(args.x) + begin;
  const T* delta = static_cast<const T*>(args.delta);
  float values[kItems][kVec];
  float squares = 0;
  const T* weights = static_cast<const T*>(args.weight);
  start_next_kernel();
  // Of rows of more than a vector a thread it would cost registers.
  float weight[kVec] = {};
  if constexpr (kItems == 1)
    if (threadIdx.x * kVec < args.width) load(weights + threadIdx.x * kVec, weight);
  wait_for_last_kernel();
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int64_t at = static_cast<int64_t>(i * blockDim.x + threadIdx.x) * kVec;
    if (at >= args.width) break;
    load(x + at, values[i]);
    if (kInParts || delta != nullptr) {
      float more[kVec];
      if constexpr (kInParts)
        add_delta_parts<T>(args, begin + at, more);
      else
        load(delta + begin + at, more);
      if (args.added != nullptr) add(args.added + begin + at, more);
#pragma unroll
      for (int j = 0; j < kVec; ++j) values[i][j] = rounded<T>(values[i][j] + more[j]);
      store(static_cast<T*>(args.sum) + begin + at, values[i]);
    }
#pragma unroll
    for (int j = 0; j < kVec; ++j) squares += values[i][j] * values[i][j];
  }
  const float mean = block_sum(squares, shared) / static_cast<float>(args.width);
  const float inverse = 1.0F / sqrtf(mean + args.epsilon);
  if (args.inverse_rms != nullptr && threadIdx.x == 0) args.inverse_rms[blockIdx.x] = inverse;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int64_t at = static_cast<int64_t>(i * blockDim.x + threadIdx.x) * kVec;
    if (at >= args.width) break;
    if constexpr (kItems > 1) load(weights + at, weight);
#pragma unroll
    for (int j = 0; j < kVec; ++j) values[i][j] = (values[i][j] * inverse) * weight[j];
    store(static_cast<T*>(args.y) + begin + at, values[i]);
  }
}

template <class T, int kVec, int kItems>
__global__ void __launch_bounds__(kThreadsMax) norm_backward_kernel(RmsNormBackwardArgs args) {
  __shared__ float shared[kWarpsMax];
  float dweight[kItems][kVec] = {};
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const int64_t begin = row * args.width;
    const float inverse = args.inverse_rms[row];
    float x[kItems][kVec], dy[kItems][kVec];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int64_t at = static_cast<int64_t>(i * blockDim.x + threadIdx.x) * kVec;
      if (at >= args.width) break;
      float weight[kVec];
      load(static_cast<const T*>(args.x) + begin + at, x[i]);
      load(static_cast<const T*>(args.dy) + begin + at, dy[i]);
      load(static_cast<const T*>(args.weight) + at, weight);
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        x[i][j] *= inverse;
        dweight[i][j] += dy[i][j] * x[i][j];
        dy[i][j] *= weight[j];
        sum += dy[i][j] * x[i][j];
      }
    }
    const float mean = block_sum(sum, shared) / static_cast<float>(args.width);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int64_t at = static_cast<int64_t>(i * blockDim.x + threadIdx.x) * kVec;
      if (at >= args.width) break;
      float dx[kVec] = {};
      if (args.dsum != nullptr) load(static_cast<const T*>(args.dsum) + begin + at, dx);
#pragma unroll
      for (int j = 0; j < kVec; ++j) dx[j] += inverse * (dy[i][j] - x[i][j] * mean);
      store(static_cast<T*>(args.dx) + begin + at, dx);
    }
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int64_t at = static_cast<int64_t>(i * blockDim.x + threadIdx.x) * kVec;
    if (at >= args.width) break;
#pragma unroll
    for (int j = 0; j < kVec; ++j)
      args.workspace[static_cast<int64_t>(blockIdx.x) * args.width + at + j] = dweight[i][j];
  }
}

constexpr int kPartColumns = 32;
constexpr int kPartRows = 8;

__global__ void add_parts_kernel(const float* parts, int64_t rows, int64_t width, int64_t stride,
                                 float* sums) {
  __shared__ float shared[kPartRows][kPartColumns + 1];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kPartColumns + threadIdx.x;
  float sum = 0;
  if (column < width)
    for (int64_t row = threadIdx.y; row < rows; row += kPartRows)
      sum += parts[row * stride + column];
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  for (int i = 1; i < kPartRows; ++i) sum += shared[i][threadIdx.x];
  sums[column] += sum;
}

int threads_for(int64_t vectors) {
  return static_cast<int>(std::min<int64_t>(kThreadsMax, divide_up(vectors, kWarp) * kWarp));
}

/// Independent of the alignment, so that the sums of a width have one order each.
int64_t num_parts(int64_t rows, int64_t width) {
  const int threads = threads_for(divide_up(width, 4));
  return std::min(rows, kPartThreads / threads);
}

template <class T, int kVec, int kItems>
void start(const RmsNormArgs& args, int threads, Stream stream) {
  const auto kernel = args.parts != nullptr ? norm_kernel<T, kVec, kItems, true>
                                            : norm_kernel<T, kVec, kItems, false>;
  launch(kernel, static_cast<unsigned>(args.rows), threads, 0, stream, args);
}
template <class T, int kVec, int kItems>
void start(const RmsNormBackwardArgs& args, int threads, Stream stream) {
  const int64_t parts = num_parts(args.rows, args.width);
  norm_backward_kernel<T, kVec, kItems><<<static_cast<unsigned>(parts), threads, 0, stream>>>(args);
  add_parts(args.workspace, parts, args.width, args.width, args.dweight, stream);
}

template <class T, int kVec, class Args>
Outcome with_items(const Args& args, Stream stream) {
  const int64_t vectors = args.width / kVec;
  const int threads = threads_for(vectors);
  const int64_t items = divide_up(vectors, threads);  // at most kItemsMax, by fault_of()
  if (items == 1)
    start<T, kVec, 1>(args, threads, stream);
  else if (items == 2)
    start<T, kVec, 2>(args, threads, stream);
  else if (items <= 4)
    start<T, kVec, 4>(args, threads, stream);
  else
    start<T, kVec, kItemsMax>(args, threads, stream);
  return launched();
}

template <class T, class Args>
Outcome with_vector(const Args& args, bool is_aligned, Stream stream) {
  if (is_aligned && args.width % kVector<T> == 0) return with_items<T, kVector<T>>(args, stream);
  return with_items<T, 1>(args, stream);
}

template <class Args>
Outcome with_type(const Args& args, bool is_aligned, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  return args.type == Type::kFloat32 ? with_vector<float>(args, is_aligned, stream)
                                     : with_vector<Bf16>(args, is_aligned, stream);
}

}  // namespace

bool has_own_kernels() { return true; }

void add_parts(const float* parts, int64_t rows, int64_t width, int64_t stride, float* sums,
               Stream stream) {
  const auto blocks = static_cast<unsigned>(divide_up(width, kPartColumns));
  add_parts_kernel<<<blocks, dim3(kPartColumns, kPartRows), 0, stream>>>(parts, rows, width, stride,
                                                                         sums);
}

Outcome rms_norm(const RmsNormArgs& args, Stream stream) {
  return with_type(args,
                   are_aligned(args.x, args.delta, args.weight, args.sum, args.y, args.parts,
                               args.added),
                   stream);
}

int64_t rms_norm_workspace(int64_t rows, int64_t width) { return num_parts(rows, width) * width; }

Outcome rms_norm_backward(const RmsNormBackwardArgs& args, Stream stream) {
  return with_type(args, are_aligned(args.dy, args.x, args.weight, args.dsum, args.dx), stream);
}

}  // namespace primerl::cuda
