// RMS norm: one block per row, with the row in registers. Backward: a fixed number of blocks walks
// the rows, and each has its own sum for the weight gradient. The sums are added in order.
#include <algorithm>

#include "kernels/cuda/ops/adapters.cuh"

namespace primerl::cuda {
namespace {

constexpr int kThreadsMax = 512;
constexpr int kWarpsMax = kThreadsMax / kWarp;
constexpr int kItemsMax = 8;
static_assert(kThreadsMax * kItemsMax == kNormWidthMax);
constexpr int64_t kPartThreads = 131072;  // of all parts together

/// The delta of a residual in memory. Null: there is no residual.
template <class T>
struct DenseDelta {
  const T* data;
  void* sum;  // the result s

  __device__ __forceinline__ bool is_there() const { return data != nullptr; }
  /// The elements of a row from element `at` of all rows on.
  template <int kVec>
  __device__ __forceinline__ void load_at(int64_t at, float (&delta)[kVec]) const {
    load(data + at, delta);
  }
};

/// The same as split-K parts, `stride` apart.
template <class T>
struct DeltaOfParts {
  const float* parts;
  void* sum;
  int32_t num_parts;
  int64_t stride;

  __device__ __forceinline__ constexpr bool is_there() const { return true; }
  /// The sum of the parts, rounded as in memory.
  template <int kVec>
  __device__ __forceinline__ void load_at(int64_t at, float (&delta)[kVec]) const {
#pragma unroll
    for (int j = 0; j < kVec; ++j) delta[j] = 0;
#pragma unroll 4
    for (int32_t part = 0; part < num_parts; ++part) {
      float one[kVec];
      load(parts + part * stride + at, one);
#pragma unroll
      for (int j = 0; j < kVec; ++j) delta[j] += one[j];
    }
#pragma unroll
    for (int j = 0; j < kVec; ++j) delta[j] = rounded<T>(delta[j]);
  }
};

/// The LoRA delta of the block's row, a vector of each thread at a time. If a row is one vector per
/// thread, its B is loaded before the row is available.
template <class T, int kVec, bool kAsksAhead>
class LoraDeltaOfRow {
 public:
  __device__ __forceinline__ LoraDeltaOfRow(const LoraDelta& lora_delta, int64_t width)
      : width_(static_cast<int>(width)),
        adapter_(lora_delta.rows[blockIdx.x]),
        columns_(lora_delta.of, adapter_, 0),
        ahead_(warp_from(0)) {}

  /// Call when u is available: loads it.
  __device__ __forceinline__ LoraShrinkRow ask(const LoraDelta& lora_delta) const {
    return {lora_delta, columns_.part, blockIdx.x, adapter_.scaling};
  }
  /// Adds the delta to the thread's vector of the block's columns from `first` on; called by all
  /// threads of a warp.
  __device__ __forceinline__ void add_to(int first, const LoraShrinkRow& row,
                                         float (&to)[kVec]) const {
    if (!columns_.applies_adapters()) return;
    if constexpr (kUsesMma) {
      if (kAsksAhead && first == 0 && adapter_.rank % 4 == 0) return ahead_.add_to(row, to);
      if (adapter_.rank % 4 == 0) return warp_from(first).add_to(row, to);
    }
    const int column = first + static_cast<int>(threadIdx.x) * kVec;
    add_columns(columns_.b + column * adapter_.rank, adapter_.rank, 1, width_ - column, row, to);
  }

 private:
  static constexpr bool kUsesMma = kVec == kLaneColumns && sizeof(T) == sizeof(Bf16);
  struct NoMma {};
  using Warp = std::conditional_t<kUsesMma, RowOfWarp<4, kAsksAhead>, NoMma>;

  __device__ __forceinline__ Warp warp_from(int first) const {
    if constexpr (kUsesMma) {
      const int column = first + static_cast<int>(threadIdx.x) / kWarp * kWarp * kVec;
      const bool is_there = columns_.applies_adapters() && adapter_.rank % 4 == 0;
      return {columns_.b + column * adapter_.rank, adapter_.rank, is_there ? width_ - column : 0};
    } else {
      return {};
    }
  }

  const int width_;
  const AdapterRow adapter_;
  const AdaptedColumns<T> columns_;
  const Warp ahead_;
};

/// `Added` is the delta that a GEMM wrote, `Lora` what an adapter adds to it.
template <class T, int kVec, int kItems, class Added, class Lora>
__global__ void __launch_bounds__(kThreadsMax)
    norm_kernel(const __grid_constant__ RmsNormArgs args, const __grid_constant__ Added delta,
                const __grid_constant__ Lora lora_delta) {
  __shared__ float shared[kWarpsMax];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * args.width;
  const T* x = static_cast<const T*>(args.x) + begin;
  float values[kItems][kVec];
  float squares = 0;
  const T* weights = static_cast<const T*>(args.weight);
  start_next_kernel();
  // Only if a thread has one vector: with more vectors this would need too many registers.
  float weight[kVec] = {};
  if constexpr (kItems == 1)
    if (threadIdx.x * kVec < args.width) load(weights + threadIdx.x * kVec, weight);
  const auto added = [&] {
    if constexpr (kIsAdapted<Lora>)
      return LoraDeltaOfRow<T, kVec, kItems == 1>(lora_delta, args.width);
    else
      return NoLoraDelta{};
  }();
  wait_for_last_kernel();
  const auto shrink_row = [&] {
    if constexpr (kIsAdapted<Lora>)
      return added.ask(lora_delta);
    else
      return NoLoraDelta{};
  }();
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int first = i * static_cast<int>(blockDim.x) * kVec;  // of the block
    const int64_t at = first + static_cast<int64_t>(threadIdx.x) * kVec;
    const bool is_in = at < args.width;
    if (kIsAdapted<Lora> ? first >= args.width : !is_in) break;
    float more[kVec] = {};
    if (is_in) load(x + at, values[i]);
    if (is_in && delta.is_there()) delta.load_at(begin + at, more);
    if constexpr (kIsAdapted<Lora>) added.add_to(first, shrink_row, more);
    if (!is_in) break;
    if (delta.is_there()) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) values[i][j] = rounded<T>(values[i][j] + more[j]);
      store(static_cast<T*>(delta.sum) + begin + at, values[i]);
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

/// Independent of the alignment, so that each width has one order of additions.
int64_t num_parts(int64_t rows, int64_t width) {
  const int threads = threads_for(divide_up(width, 4));
  return std::min(rows, kPartThreads / threads);
}

template <class T, int kVec, int kItems, class Added>
void start(const RmsNormArgs& args, const Added& delta, const LoraDelta* lora_delta, int threads,
           Stream stream) {
  const auto blocks = static_cast<unsigned>(args.rows);
  if (lora_delta == nullptr)
    return launch(norm_kernel<T, kVec, kItems, Added, NoLoraDelta>, blocks, threads, 0, stream,
                  args, delta, NoLoraDelta{});
  constexpr int kMany = kItems == 1 ? 1 : kItemsMax;  // a kernel for all others
  launch(norm_kernel<T, kVec, kMany, Added, LoraDelta>, blocks, threads, 0, stream, args, delta,
         *lora_delta);
}
template <class T, int kVec, int kItems>
void start(const RmsNormArgs& args, int threads, Stream stream) {
  const Residual residual = args.residual.value_or(Residual{});
  const LoraDelta* lora_delta = lora_delta_of(residual.delta);
  if (const auto* output = std::get_if<SplitKOutput>(&residual.delta); output != nullptr) {
    const DeltaOfParts<T> delta{output->parts, residual.sum, output->num_parts,
                                args.rows * args.width};
    return start<T, kVec, kItems>(args, delta, lora_delta, threads, stream);
  }
  const auto* data = static_cast<const T*>(address_of(residual.delta));
  start<T, kVec, kItems>(args, DenseDelta<T>{data, residual.sum}, lora_delta, threads, stream);
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
  return with_type(args, are_aligned(args), stream);
}

int64_t rms_norm_workspace(int64_t rows, int64_t width) { return num_parts(rows, width) * width; }

Outcome rms_norm_backward(const RmsNormBackwardArgs& args, Stream stream) {
  return with_type(args, are_aligned(args.dy, args.x, args.weight, args.dsum, args.dx), stream);
}

}  // namespace primerl::cuda
