// Sums of rows without top_k and top_p, each by a cluster of blocks whose shared memory contains
// the row. So its logits are read from memory once, and used twice: for their maximum and for the
// masses of the ranges.
//
// A cluster processes one row after the other. While it computes the masses of one row, each thread
// loads the next row's logits over those that it no longer needs. Computing the masses takes longer
// than the loads. The blocks synchronise once per row, for the maximum.
#include <algorithm>
#include <climits>

#include "kernels/cuda/ops/launch.cuh"
#include "kernels/cuda/ops/pipeline.cuh"
#include "kernels/cuda/ops/sampler.cuh"

namespace primerl::cuda {
namespace {

constexpr int kBlocks = 8;  // of a cluster: the most that every device with clusters supports
constexpr int kWarps = kRanges / kBlocks;
constexpr int kThreads = kWarps * kWarp;
constexpr size_t kBytesMax = 200 << 10;  // of a row, in a block

/// Synchronises all threads of a cluster: values pushed before arriving are visible after waiting.
/// Devices without clusters never launch this kernel; their code has a trap.
__device__ __forceinline__ void meet_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __trap();
#endif
}
/// Writes `value` into block `rank`, at the location that corresponds to `own` in this block.
__device__ __forceinline__ void push(int rank, const float* own, float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto here = static_cast<uint32_t>(__cvta_generic_to_shared(own));
  asm volatile(
      "{ .reg .u32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "st.shared::cluster.f32 [there], %2; }" ::"r"(here),
      "r"(rank), "f"(value)
      : "memory");
#endif
}

/// The logits of a warp's range in shared memory. A thread reads only the pieces that it loaded
/// itself. After the end of the row there is -inf, whose weight is 0.
template <class T>
class Range {
 public:
  static constexpr int kPiece = kVector<T>;

  __device__ Range(T* memory, int begin, int count, int size)
      : memory_(memory), begin_(begin), count_(count), left_(size - begin) {}

  /// Calls f(i, piece) for the pieces of this lane; i: index of the first element, from the range's
  /// begin.
  template <class F>
  __device__ __forceinline__ void for_each_piece(F f) const {
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x) % kWarp * kPiece; i < count_; i += kWarp * kPiece) {
      const Pack<T, kPiece> piece = *reinterpret_cast<const Pack<T, kPiece>*>(memory_ + i);
      f(i, piece);
    }
  }
  __device__ __forceinline__ void ask(int i, const T* row) {
    if (i + kPiece <= left_) {
      cp_async(memory_ + i, row + begin_ + i);
      return;
    }
    for (int j = i; j < i + kPiece; ++j)
      memory_[j] = j < left_ ? row[begin_ + j] : from_float<T>(-INFINITY);
  }
  __device__ __forceinline__ void ask_all(const T* row) {
    for (int i = static_cast<int>(threadIdx.x) % kWarp * kPiece; i < count_; i += kWarp * kPiece)
      ask(i, row);
  }
  __device__ int begin() const { return begin_; }

 private:
  T* memory_;
  int begin_;
  int count_;  // ids of each range
  int left_;   // of the row, from the begin on; 0 or less: none
};

/// The greatest logit of a row, after the blocks have synchronised. `maxima` has a float for each
/// block. Rows alternate between two such arrays, because a block that is ahead may push the next
/// row's maximum.
template <class T>
__device__ __forceinline__ float largest_logit(const Range<T>& range, float inverse,
                                               float* of_warps, float (&maxima)[kBlocks]) {
  float largest = -INFINITY;
  range.for_each_piece([&](int, const auto& piece) {
#pragma unroll
    for (const T logit : piece.at) largest = fmaxf(largest, __fmul_rn(to_float(logit), inverse));
  });
  largest = warp_max(largest);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = largest;
  __syncthreads();
  if (threadIdx.x < kBlocks) {
    for (int i = 0; i < kWarps; ++i) largest = fmaxf(largest, of_warps[i]);
    push(static_cast<int>(threadIdx.x), &maxima[blockIdx.x % kBlocks], largest);
  }
  __syncwarp();
  meet_cluster();
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) largest = fmaxf(largest, maxima[i]);
  return largest;
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2) cluster_kernel(SampleArgs args, int num_clusters) {
  extern __shared__ uint4 memory[];
  __shared__ float maxima[2][kBlocks], of_warps[kWarps];
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int size = static_cast<int>(args.vocab_size), per_warp = range_size(size);
  const auto logits_of = [&](int64_t row) {
    return static_cast<const T*>(args.logits) + row * args.row_stride;
  };
  const auto next_row = [&](int64_t row) {
    while (row < args.rows && is_cut(args.settings[row])) row += num_clusters;
    return row;
  };
  Range<T> range(reinterpret_cast<T*>(memory) + warp * per_warp, (rank * kWarps + warp) * per_warp,
                 per_warp, size);
  int64_t row = next_row(static_cast<int64_t>(blockIdx.x) / kBlocks);
  if (row < args.rows) range.ask_all(logits_of(row));
  cp_async_commit();
  meet_cluster();  // all blocks have started, so others may push to them
  for (int buffer_index = 0; row < args.rows; buffer_index = 1 - buffer_index) {
    const float inverse_temperature = args.settings[row].inverse_temperature;
    const bool is_greedy = inverse_temperature == 0;
    const float inverse = is_greedy ? 1.0F : inverse_temperature;
    const int64_t next = next_row(row + num_clusters);
    const T* next_logits = logits_of(next);
    cp_async_wait<0>();
    const float largest = largest_logit(range, inverse, of_warps, maxima[buffer_index]);

    int best = INT_MAX;
    if (is_greedy)
      range.for_each_piece([&](int i, const auto& piece) {
#pragma unroll
        for (int j = 0; j < Range<T>::kPiece; ++j)
          if (to_float(piece.at[j]) == largest) best = min(best, range.begin() + i + j);
      });
    float sum = 0;
    Mass mass = 0;
    range.for_each_piece([&](int i, const auto& piece) {
      if (next < args.rows) range.ask(i, next_logits);
#pragma unroll
      for (const T logit : piece.at) {
        const float weight = exp_of(__fmaf_rn(to_float(logit), inverse, -largest));
        sum += weight;
        mass += mass_of(weight);
      }
    });
    cp_async_commit();
    const RangeSums all{warp_total(mass), warp_sum(sum), __reduce_min_sync(kAllLanes, best)};
    RowSums& sums = sums_of(args, row);
    if (threadIdx.x % kWarp == 0) sums.ranges[rank * kWarps + warp] = all;
    if (rank == 0 && threadIdx.x < kLargestParts) sums.largest[threadIdx.x] = largest;
    row = next;
  }
}

template <class T>
bool start_clusters(const SampleArgs& args, Stream stream) {
  const int64_t ids = int64_t{kWarps} * range_size(static_cast<int>(args.vocab_size));
  const size_t bytes = static_cast<size_t>(ids) * sizeof(T);
  if (bytes > kBytesMax || !are_aligned(args.logits) || args.row_stride % kVector<T> != 0)
    return false;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kBlocks, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = {kBlocks, 1, 1};
  config.blockDim = {kThreads, 1, 1};
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int num_clusters = 0;
  // The limit is the same for all rows, since other threads may launch this kernel for other rows.
  const bool is_possible =
      is_for_cc90(cluster_kernel<T>) &&
      cudaFuncSetAttribute(cluster_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           kBytesMax) == cudaSuccess &&
      cudaOccupancyMaxActiveClusters(&num_clusters, cluster_kernel<T>, &config) == cudaSuccess &&
      num_clusters > 0;
  if (!is_possible) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  num_clusters = static_cast<int>(std::min<int64_t>(num_clusters, args.rows));
  config.gridDim.x = static_cast<unsigned>(num_clusters * kBlocks);
  return cudaLaunchKernelEx(&config, cluster_kernel<T>, args, num_clusters) == cudaSuccess;
}

}  // namespace

bool sum_in_clusters(const SampleArgs& args, Stream stream) {
  return args.type == Type::kFloat32 ? start_clusters<float>(args, stream)
                                     : start_clusters<Bf16>(args, stream);
}

}  // namespace primerl::cuda
