// Sampling of rows that nothing is cut from, each by a cluster of blocks whose shared memory holds
// it, so that its logits are read from memory once: for the greatest of them, and again for the
// masses. A range of ids for each warp; its masses go to all blocks, each of which then knows the
// range of the draw, and the one that has it finds the token. Masses are whole numbers, so that
// parts change no token; sums of floats, which only the log-probability has, are added in one order.
//
// A cluster takes a row after the other. While it computes the masses of one, each thread asks for
// the next row's logits where it has read this one's for the last time: the masses take about as
// long as the memory.
#include <algorithm>
#include <climits>

#include "kernels/ops/cuda/launch.cuh"
#include "kernels/ops/cuda/sampler.cuh"

namespace primerl::cuda {
namespace {

constexpr int kBlocks = 8;  // of a cluster: as many as any device with clusters takes
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRanges = kBlocks * kWarps;
constexpr int kRangesOfLane = kRanges / kWarp;
constexpr size_t kBytesMax = 200 << 10;  // of a row, in a block

/// What a warp tells the blocks of its cluster about its range; 16 bytes.
struct RangeSums {
  Mass mass;
  float sum;
  int best;  // the first id of the greatest logit of the row, where one is wanted; INT_MAX: none

  __device__ uint4 packed() const {
    return {static_cast<uint32_t>(mass), static_cast<uint32_t>(mass >> 32), __float_as_uint(sum),
            static_cast<uint32_t>(best)};
  }
  __device__ static RangeSums of(uint4 bits) {
    return {static_cast<Mass>(bits.y) << 32 | bits.x, __uint_as_float(bits.z),
            static_cast<int>(bits.w)};
  }
};

/// In the shared memory of each block of a cluster, the same in all.
struct Totals {
  uint4 ranges[kRanges];  // RangeSums
  uint4 maxima[kBlocks];  // a float each
};

/// All threads of a cluster meet: what was pushed before arriving is there after waiting. Code for
/// devices without clusters, on which nothing starts the kernel, has a trap.
__device__ __forceinline__ void arrive_at_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#else
  __trap();
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
/// `value` to where block `rank` has what this block has at `own`.
__device__ __forceinline__ void push(int rank, const uint4* own, uint4 value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto here = static_cast<uint32_t>(__cvta_generic_to_shared(own));
  asm volatile(
      "{ .reg .u32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "st.shared::cluster.v4.u32 [there], {%2, %3, %4, %5}; }" ::"r"(here),
      "r"(rank), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
      : "memory");
#endif
}

/// The logits of a warp's range in shared memory. A thread reads the pieces that it asked for;
/// beyond the row there is -inf, which weighs nothing.
template <class T>
class Range {
 public:
  static constexpr int kPiece = kVector<T>;

  __device__ Range(T* memory, int begin, int count, int size)
      : memory_(memory), begin_(begin), count_(count), left_(size - begin) {}

  /// f(i, piece) for the pieces of this lane; i: of the first element, from the range's begin.
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
      copy_ahead(memory_ + i, row + begin_ + i);
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
  int left_;   // of the row, from the begin on; 0 and less: none
};

/// What all ranges of a row give together, and where its draw lies.
struct RowDraw {
  Mass total;
  float sum;
  int best;
  int range;  // of the draw
  Mass left;  // the mass of the range up to the token, without it
};

/// By each warp of each block, to the same bits.
__device__ __forceinline__ RowDraw draw_of(const SampleArgs& args, int64_t row,
                                           const Totals& totals) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  RangeSums own[kRangesOfLane];
#pragma unroll
  for (int i = 0; i < kRangesOfLane; ++i) own[i] = RangeSums::of(totals.ranges[lane * kRangesOfLane + i]);
  RangeSums lanes = own[0];
#pragma unroll
  for (int i = 1; i < kRangesOfLane; ++i) {
    lanes.mass += own[i].mass;
    lanes.sum += own[i].sum;
    lanes.best = min(lanes.best, own[i].best);
  }
  Mass until = lanes.mass;  // of the lanes up to this one
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const Mass other = __shfl_up_sync(kAllLanes, until, step);
    if (lane >= step) until += other;
  }
  RowDraw draw;
  draw.total = __shfl_sync(kAllLanes, until, kWarp - 1);
  draw.sum = warp_sum(lanes.sum);
  draw.best = __reduce_min_sync(kAllLanes, lanes.best);
  draw.range = 0;
  draw.left = 0;
  if (draw.total == 0) return draw;  // no distribution
  const Mass wanted = drawn_mass(args, row, draw.total);
  const bool is_here = until - lanes.mass <= wanted && wanted < until;
  if (is_here) {
    draw.left = wanted - (until - lanes.mass);
    int i = 0;
#pragma unroll
    for (int j = 0; j + 1 < kRangesOfLane; ++j)
      if (i == j && draw.left >= own[j].mass) {
        draw.left -= own[j].mass;
        ++i;
      }
    draw.range = lane * kRangesOfLane + i;
  }
  const int source = __ffs(static_cast<int>(__ballot_sync(kAllLanes, is_here))) - 1;
  draw.range = __shfl_sync(kAllLanes, draw.range, source);
  draw.left = __shfl_sync(kAllLanes, draw.left, source);
  return draw;
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2) cluster_kernel(SampleArgs args, int num_clusters) {
  extern __shared__ uint4 memory[];
  __shared__ Totals totals;
  __shared__ float of_warps[kWarps];
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int size = static_cast<int>(args.vocab_size), per_warp = ids_of_range(size, kRanges);
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
  close_copies();
  arrive_at_cluster();  // all blocks have begun: from then on they may be pushed to
  wait_for_cluster();
  while (row < args.rows) {
    const float inverse_temperature = args.settings[row].inverse_temperature;
    const bool is_greedy = inverse_temperature == 0;
    const float inverse = is_greedy ? 1.0F : inverse_temperature;
    wait_for_copies<0>();

    float largest = -INFINITY;
    range.for_each_piece([&](int, const auto& piece) {
#pragma unroll
      for (const T logit : piece.at)
        largest = fmaxf(largest, __fmul_rn(to_float(logit), inverse));
    });
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
    if (lane == 0) of_warps[warp] = largest;
    __syncthreads();
    if (threadIdx.x < kBlocks) {
      for (int i = 0; i < kWarps; ++i) largest = fmaxf(largest, of_warps[i]);
      push(threadIdx.x, &totals.maxima[rank], {__float_as_uint(largest), 0, 0, 0});
    }
    __syncwarp();
    arrive_at_cluster();
    wait_for_cluster();
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) largest = fmaxf(largest, __uint_as_float(totals.maxima[i].x));

    int best = INT_MAX;
    if (is_greedy)
      range.for_each_piece([&](int i, const auto& piece) {
#pragma unroll
        for (int j = 0; j < Range<T>::kPiece; ++j)
          if (to_float(piece.at[j]) == largest) best = min(best, range.begin() + i + j);
      });
    const int64_t next = next_row(row + num_clusters);
    const T* next_logits = logits_of(next);
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
    close_copies();
    sum = warp_sum(sum);
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) mass += __shfl_xor_sync(kAllLanes, mass, step);
    best = __reduce_min_sync(kAllLanes, best);
    const RangeSums sums{mass, sum, best};
    if (lane < kBlocks) push(lane, &totals.ranges[rank * kWarps + warp], sums.packed());
    __syncwarp();
    arrive_at_cluster();
    keep_all(args, row, rank * kThreads + static_cast<int>(threadIdx.x), kBlocks * kThreads);
    wait_for_cluster();

    const RowDraw draw = draw_of(args, row, totals);
    const float log_normalizer = largest + logf(draw.sum);
    const bool is_broken = !(draw.sum > 0.5F) || !isfinite(log_normalizer);
    if (is_broken || is_greedy) {
      if (rank == 0 && threadIdx.x == 0) {
        args.tokens[row] = is_broken ? 0 : draw.best;
        args.logprobs[row] = is_broken ? NAN : largest - log_normalizer;
      }
    } else if (draw.range / kWarps == rank) {
      // The next row may have come to shared memory already: these few are in the L2 cache.
      const T* logits = logits_of(row);
      const int begin = draw.range * per_warp;
      const int chosen = draw_in_range<kThreads>(logits, begin, min(begin + per_warp, size),
                                                 inverse, largest, draw.left);
      if (threadIdx.x == 0) {
        args.tokens[row] = chosen;
        args.logprobs[row] = __fmaf_rn(to_float(logits[chosen]), inverse, -log_normalizer);
      }
    }
    row = next;
  }
}

template <class T>
bool start_clusters(const SampleArgs& args, Stream stream) {
  const int64_t ids = ids_of_range(static_cast<int>(args.vocab_size), kRanges) * int64_t{kWarps};
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
  // The limit is one for all rows, since other threads may start this kernel for other ones.
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

bool sample_in_clusters(const SampleArgs& args, Stream stream) {
  return args.type == Type::kFloat32 ? start_clusters<float>(args, stream)
                                     : start_clusters<Bf16>(args, stream);
}

}  // namespace primerl::cuda
