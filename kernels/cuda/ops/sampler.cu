// Sampling: one block per row. Rows without top_k and top_p were split over blocks before; it
// samples those from the sums of their ranges. Weights of tokens are not stored: each pass computes
// them again with exactly the operations of the CPU. So weights and all results but the
// log-probability have the same bits as on the CPU. Masses are whole numbers: integer atomics may
// add them in any order. The threshold of top_k or top_p is found by the bits of the weights, ten
// at a time.
//
// A warp processes its own range of ids. So a position by rising id is found by counting over warps
// first.
#include <climits>

#include "kernels/cuda/ops/sampler.cuh"

namespace primerl::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
constexpr int kDigitBits = 10;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kTopShift = 20;
static_assert(kDigits == kThreads && kWarps == kWarp);

struct Scratch {
  Mass digits[kDigits];
  float maxima[kThreads];
  Mass masses[kWarps];
  float floats[kWarps];
  int counts[kWarps];
  Mass mass;
  Mass needed;
  int number;
};

/// Sum over all threads, returned to all, in the order of lanes and warps; leaves the warps' totals
/// in `of_warps`.
template <class V>
__device__ __forceinline__ V block_total(V value, V* of_warps) {
  value = warp_total(value);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  V total = 0;
  for (int i = 0; i < kWarps; ++i) total += of_warps[i];
  return total;
}
__device__ __forceinline__ float block_max(float value, float* of_warps) {
  value = warp_max(value);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  for (int i = 0; i < kWarps; ++i) value = fmaxf(value, of_warps[i]);
  return value;
}
__device__ __forceinline__ int block_min(int value, int* of_warps) {
  value = __reduce_min_sync(kAllLanes, value);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  for (int i = 0; i < kWarps; ++i) value = min(value, of_warps[i]);
  return value;
}

/// A row and the parameters of its weights e^(logit * inverse - largest).
template <class T>
struct RowView {
  const T* logits;
  int size;
  float inverse;
  float largest;

  __device__ float logit(int i) const { return to_float(logits[i]); }
  __device__ float weight(int i) const { return exp_of(__fmaf_rn(logit(i), inverse, -largest)); }
  /// The ids of this warp: [begin, begin + per_warp()), below size; per_warp() is a multiple of 32.
  __device__ int per_warp() const { return (size + kThreads - 1) / kThreads * kWarp; }
  __device__ int begin() const { return static_cast<int>(threadIdx.x) / kWarp * per_warp(); }
};

/// The tokens that are kept: weight greater than a threshold, or equal to it with an id up to the
/// last.
struct Edge {
  uint32_t bits = 0;
  int last = INT_MAX;
};
struct Selection {
  float least = 0;
  Edge top_k, top_p;
  double min_weight = 0;

  __device__ static bool is_above(Edge edge, uint32_t bits, int id) {
    return bits > edge.bits || (bits == edge.bits && id <= edge.last);
  }
  __device__ bool keeps(float weight, int id) const {
    const uint32_t bits = __float_as_uint(weight);
    return weight >= least && is_above(top_k, bits, id) && is_above(top_p, bits, id) &&
           static_cast<double>(weight) >= min_weight;
  }
};

/// The digit at which the mass of the greatest weights reaches `needed`, and how much of `needed`
/// that digit must give. Only warp 0 computes; all threads get the result.
__device__ void find_digit(Scratch& scratch, Mass needed) {
  __syncthreads();
  const int lane = threadIdx.x;
  if (lane < kWarp) {
    Mass mine = 0;
    for (int i = 0; i < kWarp; ++i) mine += scratch.digits[lane * kWarp + i];
    // The mass of the digits of higher lanes.
    Mass above = mine;
    for (int step = 1; step < kWarp; step *= 2) {
      const Mass other = __shfl_down_sync(kAllLanes, above, step);
      if (lane + step < kWarp) above += other;
    }
    above -= mine;
    const bool is_here = above < needed && (above + mine >= needed || lane == 0);
    if (is_here) {
      Mass left = needed - above;
      int digit = lane * kWarp + kWarp - 1;
      for (; digit > lane * kWarp && scratch.digits[digit] < left; --digit)
        left -= scratch.digits[digit];
      scratch.number = digit;
      scratch.needed = left;
    }
  }
  __syncthreads();
}

/// The bits of the smallest weight among the fewest greatest weights with a mass of `needed`.
/// scratch.needed then has the mass that weights with exactly these bits must give. visit(f) calls
/// f(weight) for this thread's part of the weights.
template <class Visit, class Measure>
__device__ uint32_t edge_bits(Scratch& scratch, Mass needed, Visit visit, Measure measure) {
  uint32_t prefix = 0;
  for (int shift = kTopShift;; shift -= kDigitBits) {
    __syncthreads();
    scratch.digits[threadIdx.x] = 0;
    __syncthreads();
    visit([&](float weight) {
      const uint32_t bits = __float_as_uint(weight);
      if (shift < kTopShift && bits >> (shift + kDigitBits) != prefix) return;
      const Mass what = measure(weight);
      if (what > 0) atomicAdd(&scratch.digits[(bits >> shift) % kDigits], what);
    });
    find_digit(scratch, needed);
    prefix = prefix << kDigitBits | static_cast<uint32_t>(scratch.number);
    needed = scratch.needed;
    if (shift == 0) return prefix;
  }
}

template <class T>
class RowSampler {
 public:
  __device__ RowSampler(const RowView<T>& row, Scratch& scratch) : row_(row), scratch_(scratch) {}

  /// The tokens that top_k, top_p and min_p keep, by the rules of sampler.cc; the block's maxima
  /// are in scratch.
  __device__ void select(const SamplingRow& settings, float greatest, Mass total) {
    const int size = row_.size;
    const bool has_top_k = settings.top_k > 0 && settings.top_k < size;
    const double min_weight = settings.min_p * static_cast<double>(greatest);
    float least = nextafterf(static_cast<float>(min_weight), 0.0F);
    const auto count = [](float) { return Mass{1}; };
    if (has_top_k) {
      least = 0;
      // At least top_k tokens have a weight of at least the smallest of these maxima.
      if (settings.top_k <= kThreads) {
        const float mine = scratch_.maxima[threadIdx.x];
        least = __uint_as_float(edge_bits(
            scratch_, settings.top_k, [&](auto&& take) { take(mine); }, count));
      }
    } else if (settings.top_p < 1) {
      const double most_left = (1 - settings.top_p) * static_cast<double>(total);
      const double unneeded = most_left / static_cast<double>(size) - 1;
      least = fmaxf(least, static_cast<float>(unneeded / kMassUnit * 0.999));
    }
    selection_.least = fmaxf(least, __uint_as_float(1));  // a weight of 0 is not kept
    if (has_top_k) {
      measure();
      if (num_kept_ > settings.top_k) {
        const uint32_t bits = edge_bits(scratch_, settings.top_k, kept_weights(), count);
        selection_.top_k = edge_at(bits, scratch_.needed);
      }
    }
    if (settings.top_p < 1) {
      measure();
      if (has_top_k) total = mass_;
      const Mass share = static_cast<Mass>(ceil(settings.top_p * static_cast<double>(total)));
      const Mass needed = share > 1 ? share : 1;
      if (mass_ > needed) {
        const uint32_t bits = edge_bits(scratch_, needed, kept_weights(), mass_of);
        const Mass one = mass_of(__uint_as_float(bits));
        const Mass each = one > 1 ? one : 1;
        selection_.top_p = edge_at(bits, (scratch_.needed + each - 1) / each);
      }
    }
    selection_.min_weight = settings.min_p > 0 ? min_weight : 0;
  }

  /// Sums over the kept tokens, and sets their bits in `kept` unless it is null.
  __device__ void measure(uint32_t* kept = nullptr) {
    Mass mass = 0;
    float sum = 0;
    int count = 0;
    for_each_warp_row([&](int id, float weight, bool is_kept) {
      mass += is_kept ? mass_of(weight) : 0;
      sum += is_kept ? weight : 0.0F;
      count += is_kept ? 1 : 0;
      const unsigned bits = __ballot_sync(kAllLanes, is_kept);
      if (kept != nullptr && id % kWarp == 0 && id < row_.size) kept[id / kWarp] = bits;
    });
    num_kept_ = block_total(count, scratch_.counts);
    sum_ = block_total(sum, scratch_.floats);
    mass_ = block_total(mass, scratch_.masses);
  }

  /// The kept token at which the cumulative mass by rising id exceeds `uniform` of the total. Must
  /// directly follow measure().
  __device__ int draw(double uniform) {
    const Mass wanted = static_cast<Mass>(uniform * static_cast<double>(mass_));
    Mass left = wanted < mass_ ? wanted : mass_ - 1;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    int chosen_warp = 0;
    for (; left >= scratch_.masses[chosen_warp]; ++chosen_warp)
      left -= scratch_.masses[chosen_warp];
    if (warp == chosen_warp) {
      bool is_found = false;
      for_each_warp_row([&](int id, float weight, bool is_kept) {
        if (is_found) return;
        Mass until = is_kept ? mass_of(weight) : 0;  // including this lane
        for (int step = 1; step < kWarp; step *= 2) {
          const Mass other = __shfl_up_sync(kAllLanes, until, step);
          if (lane >= step) until += other;
        }
        const unsigned beyond = __ballot_sync(kAllLanes, until > left);
        if (beyond != 0) {
          if (lane == __ffs(static_cast<int>(beyond)) - 1) scratch_.number = id;
          is_found = true;
        } else {
          left -= __shfl_sync(kAllLanes, until, kWarp - 1);
        }
      });
    }
    __syncthreads();
    return scratch_.number;
  }

  __device__ int num_kept() const { return num_kept_; }
  __device__ float sum() const { return sum_; }

 private:
  /// Calls f(id, weight, is_kept) for this warp's ids, all lanes together; ids after the end of the
  /// row are not kept.
  template <class F>
  __device__ void for_each_warp_row(F f) const {
    const int begin = row_.begin(), end = min(begin + row_.per_warp(), row_.size);
    for (int first = begin; first < end; first += kWarp) {
      const int id = first + static_cast<int>(threadIdx.x) % kWarp;
      const float weight = id < row_.size ? row_.weight(id) : 0.0F;
      f(id, weight, id < row_.size && selection_.keeps(weight, id));
    }
  }
  __device__ auto kept_weights() const {
    return [this](auto&& take) {
      for_each_warp_row([&](int, float weight, bool is_kept) {
        if (is_kept) take(weight);
      });
    };
  }
  /// The threshold that keeps the first `num_equal` tokens among those with exactly `bits`.
  __device__ Edge edge_at(uint32_t bits, Mass num_equal) {
    int count = 0;
    const auto is_equal = [&](float weight, bool is_kept) {
      return is_kept && __float_as_uint(weight) == bits;
    };
    for_each_warp_row(
        [&](int, float weight, bool is_kept) { count += is_equal(weight, is_kept) ? 1 : 0; });
    block_total(count, scratch_.counts);
    if (threadIdx.x == 0) scratch_.number = INT_MAX;
    __syncthreads();
    const int warp = threadIdx.x / kWarp;
    auto wanted = static_cast<int64_t>(num_equal);
    for (int i = 0; i < warp; ++i) wanted -= scratch_.counts[i];
    if (wanted > 0 && wanted <= scratch_.counts[warp]) {
      for_each_warp_row([&](int id, float weight, bool is_kept) {
        const unsigned equals = __ballot_sync(kAllLanes, is_equal(weight, is_kept));
        const unsigned up_to_here = equals & (kAllLanes >> (kWarp - 1 - id % kWarp));
        if (is_equal(weight, is_kept) && __popc(up_to_here) == wanted) scratch_.number = id;
        wanted -= __popc(equals);
      });
    }
    __syncthreads();
    return {bits, scratch_.number};
  }

  RowView<T> row_;
  Scratch& scratch_;
  Selection selection_;
  int num_kept_ = 0;
  float sum_ = 0;
  Mass mass_ = 0;
};

/// The token at which the cumulative mass by rising id exceeds this is sampled; less than `total`.
__device__ __forceinline__ Mass drawn_mass(const SampleArgs& args, int64_t at, Mass total) {
  const double uniform = uniform_of(args.settings[at].seed, args.indices[at]);
  const Mass wanted = static_cast<Mass>(uniform * static_cast<double>(total));
  return wanted < total ? wanted : total - 1;
}

/// The combined sums of the ranges of a split row, and the range that has the sampled token.
struct RowDraw {
  float sum;
  int best;
  int range;  // range of the sampled token
  Mass left;  // mass before the sampled token, within the range
};

/// Every warp computes it, with the same bits.
__device__ RowDraw draw_of(const SampleArgs& args, int64_t at, const RowSums& sums) {
  constexpr int kOfLane = kRanges / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  RangeSums own[kOfLane], lanes{0, 0, INT_MAX};
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    own[i] = sums.ranges[lane * kOfLane + i];
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
  const Mass total = __shfl_sync(kAllLanes, until, kWarp - 1), before = until - lanes.mass;
  RowDraw draw{warp_sum(lanes.sum), __reduce_min_sync(kAllLanes, lanes.best), 0, 0};
  if (total == 0) return draw;  // weights sum to zero, NaN or infinity
  const Mass wanted = drawn_mass(args, at, total);
  const bool is_here = before <= wanted && wanted < until;
  draw.range = lane * kOfLane;
  draw.left = wanted - before;
  bool is_before = true;  // of the range with the sampled token
#pragma unroll
  for (int i = 0; i + 1 < kOfLane; ++i) {
    is_before = is_before && draw.left >= own[i].mass;
    if (!is_before) continue;
    draw.left -= own[i].mass;
    ++draw.range;
  }
  const int source = __ffs(static_cast<int>(__ballot_sync(kAllLanes, is_here))) - 1;
  draw.range = __shfl_sync(kAllLanes, draw.range, source);
  draw.left = __shfl_sync(kAllLanes, draw.left, source);
  return draw;
}

/// The first id from `begin` on at which the cumulative mass exceeds `left`; each thread has some
/// adjacent ids. There is one below `end`.
template <class T>
__device__ int draw_in_range(const RowView<T>& row, int begin, int end, Mass left,
                             Scratch& scratch) {
  const auto mass_at = [&](int i) { return mass_of(row.weight(i)); };
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int per_thread = (end - begin + kThreads - 1) / kThreads;
  const int first = begin + thread * per_thread, last = min(first + per_thread, end);
  Mass own = 0;
#pragma unroll 4
  for (int i = first; i < last; ++i) own += mass_at(i);
  Mass until = own;  // of the warp's lanes, including this one
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const Mass other = __shfl_up_sync(kAllLanes, until, step);
    if (lane >= step) until += other;
  }
  if (lane == kWarp - 1) scratch.masses[warp] = until;
  __syncthreads();
  for (int i = 0; i < warp; ++i) until += scratch.masses[i];
  if (until - own <= left && left < until) {  // true in one thread
    int i = first;
    for (Mass before = until - own + mass_at(i); before <= left; before += mass_at(i)) ++i;
    scratch.number = i;
  }
  __syncthreads();
  return scratch.number;
}

/// Marks all tokens as kept.
__device__ void keep_all(uint32_t* kept, int size) {
  const int num_words = (size + kWarp - 1) / kWarp;
  for (int i = threadIdx.x; kept != nullptr && i < num_words; i += kThreads)
    kept[i] = i + 1 < num_words || size % kWarp == 0 ? kAllLanes : (1U << size % kWarp) - 1;
}

/// Samples from a row that was split over blocks; `row` does not know its `largest` yet.
template <class T>
__device__ void draw_from_sums(const SampleArgs& args, int64_t at, bool is_greedy, RowView<T> row,
                               uint32_t* kept, Scratch& scratch) {
  const RowSums& sums = sums_of(args, at);
  row.largest = largest_of(sums);
  const RowDraw draw = draw_of(args, at, sums);
  keep_all(kept, row.size);
  const float log_normalizer = row.largest + logf(draw.sum);
  const bool is_broken = !(draw.sum > 0.5F) || !isfinite(log_normalizer);
  if (is_broken || is_greedy) {
    if (threadIdx.x != 0) return;
    args.tokens[at] = is_broken ? 0 : draw.best;
    args.logprobs[at] = is_broken ? NAN : row.largest - log_normalizer;
    return;
  }
  const int per_range = range_size(row.size), begin = draw.range * per_range;
  const int chosen =
      draw_in_range(row, begin, min(begin + per_range, row.size), draw.left, scratch);
  if (threadIdx.x != 0) return;
  args.tokens[at] = chosen;
  args.logprobs[at] = __fmaf_rn(row.logit(chosen), row.inverse, -log_normalizer);
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1) sample_kernel(SampleArgs args) {
  __shared__ Scratch scratch;
  const int64_t at = blockIdx.x;
  const SamplingRow settings = args.settings[at];
  const bool is_greedy = settings.inverse_temperature == 0;
  const float inverse = is_greedy ? 1.0F : settings.inverse_temperature;
  RowView<T> row{static_cast<const T*>(args.logits) + at * args.row_stride,
                 static_cast<int>(args.vocab_size), inverse, 0};
  const int64_t num_words = (args.vocab_size + kWarp - 1) / kWarp;  // kept_words()
  uint32_t* kept = args.kept == nullptr ? nullptr : args.kept + at * num_words;
  if (args.workspace != nullptr && !is_cut(settings)) {
    draw_from_sums(args, at, is_greedy, row, kept, scratch);
    return;
  }

  float largest = -INFINITY;
  for (int i = threadIdx.x; i < row.size; i += kThreads)
    largest = fmaxf(largest, __fmul_rn(row.logit(i), inverse));
  row.largest = block_max(largest, scratch.floats);
  float greatest = 0, sum = 0;
  Mass total = 0;
  int best = INT_MAX;
  for (int i = threadIdx.x; i < row.size; i += kThreads) {
    const float weight = row.weight(i);
    greatest = fmaxf(greatest, weight);
    sum += weight;
    total += mass_of(weight);
    if (best == INT_MAX && row.logit(i) == row.largest) best = i;
  }
  scratch.maxima[threadIdx.x] = greatest;
  sum = block_total(sum, scratch.floats);
  total = block_total(total, scratch.masses);
  greatest = block_max(greatest, scratch.floats);
  const float log_normalizer = row.largest + logf(sum);
  // The greatest weight is 1 except for rounding, so the sum is larger than 0.5 unless logits are
  // NaN or infinite.
  const bool is_broken = !(sum > 0.5F) || !isfinite(log_normalizer);
  if (is_broken || is_greedy) {
    keep_all(kept, row.size);
    best = block_min(best, scratch.counts);
    if (threadIdx.x != 0) return;
    args.tokens[at] = is_broken ? 0 : best;
    args.logprobs[at] = is_broken ? NAN : row.largest - log_normalizer;
    return;
  }

  RowSampler<T> sampler(row, scratch);
  const bool is_truncated = is_cut(settings);
  if (is_truncated) sampler.select(settings, greatest, total);
  sampler.measure(kept);
  const bool keeps_all = !is_truncated || sampler.num_kept() == row.size;
  const int chosen = sampler.draw(uniform_of(settings.seed, args.indices[at]));
  if (threadIdx.x != 0) return;
  args.tokens[at] = chosen;
  const float normalizer = keeps_all ? log_normalizer : row.largest + logf(sampler.sum());
  args.logprobs[at] = __fmaf_rn(row.logit(chosen), inverse, -normalizer);
}

}  // namespace

Outcome sample(const SampleArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  if (args.workspace != nullptr && !sum_in_clusters(args, stream)) sum_in_parts(args, stream);
  const auto rows = static_cast<unsigned>(args.rows);
  if (args.type == Type::kFloat32)
    sample_kernel<float><<<rows, kThreads, 0, stream>>>(args);
  else
    sample_kernel<Bf16><<<rows, kThreads, 0, stream>>>(args);
  return launched();
}

}  // namespace primerl::cuda
