#include "kernels/common/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "graph/base/random.h"
#include "kernels/engine/kept_sets.h"

namespace primerl {
namespace {

constexpr size_t kBlock = 64;         // tokens per block with a known greatest weight
constexpr size_t kDrawBlock = 512;    // tokens per block with a known mass
constexpr float kMassUnit = 0x1p40F;  // masses of 2^24 tokens fit 64 bits
constexpr uint32_t kDigitBits = 10;   // weights are at most 1: their bits have three digits
constexpr uint32_t kTopShift = 20;
constexpr size_t kDigits = size_t{1} << kDigitBits;

// Measures of a weight: its mass, or 1 for counting. Types, so that loops over them need no call.
struct Mass {
  uint64_t operator()(float weight) const {
    return static_cast<uint64_t>(static_cast<int64_t>(weight * kMassUnit));
  }
};
struct Count {
  uint64_t operator()(float) const { return 1; }
};

/// Weights are not negative, so their bits sort like the values.
uint32_t bits_of(float weight) { return std::bit_cast<uint32_t>(weight); }

uint64_t mass_of(std::span<const float> weights) {
  uint64_t mass = 0;
  for (const float weight : weights) mass += Mass()(weight);
  return mass;
}

/// Keeps all weights with larger bits than `bits`, and the first `num_equal` with equal bits.
struct Edge {
  uint32_t bits = 0;
  int64_t num_equal = 0;
};

/// The threshold of the fewest greatest weights whose measures add up to `needed` (at least 1, at
/// most the total); measure(weight) is the measure of one weight.
template <class Measure>
Edge edge_of(std::span<const float> weights, uint64_t needed, std::vector<float>& among,
             Measure measure) {
  std::array<uint64_t, kDigits> sums;
  uint32_t prefix = 0;  // of the bits above the current digit
  for (uint32_t shift = kTopShift;; shift -= kDigitBits) {
    sums.fill(0);
    for (const float weight : weights)
      sums[(bits_of(weight) >> shift) % kDigits] += measure(weight);
    size_t digit = kDigits - 1;
    for (; digit > 0 && sums[digit] < needed; --digit) needed -= sums[digit];
    prefix = prefix << kDigitBits | static_cast<uint32_t>(digit);
    if (shift == 0) break;
    // The next digit decides among those that are equal so far; `bits` may point to the current
    // ones.
    size_t count = 0;
    if (among.size() < weights.size()) among.resize(weights.size());
    for (const float weight : weights) {
      among[count] = weight;
      count += (bits_of(weight) >> shift) == prefix ? 1 : 0;
    }
    weights = {among.data(), count};
  }
  const uint64_t one = std::max<uint64_t>(measure(std::bit_cast<float>(prefix)), 1);
  return {prefix, static_cast<int64_t>((needed + one - 1) / one)};
}

/// Keeps the tokens that the threshold keeps; their order stays.
void keep(Edge edge, SamplingCandidates& all) {
  size_t count = 0;
  for (size_t i = 0; i < all.count; ++i) {
    const uint32_t bits = bits_of(all.weights[i]);
    const bool is_equal = bits == edge.bits && edge.num_equal > 0;
    edge.num_equal -= is_equal ? 1 : 0;
    all.ids[count] = all.ids[i];
    all.weights[count] = all.weights[i];
    count += bits > edge.bits || is_equal ? 1 : 0;
  }
  all.count = count;
}

void drop_below(double least, SamplingCandidates& all) {
  size_t count = 0;
  for (size_t i = 0; i < all.count; ++i) {
    all.ids[count] = all.ids[i];
    all.weights[count] = all.weights[i];
    count += static_cast<double>(all.weights[i]) >= least ? 1 : 0;
  }
  all.count = count;
}

std::span<const float> weights_of(const SamplingCandidates& all) {
  return {all.weights.data(), all.count};
}

/// The first index at which the cumulative mass exceeds `uniform` of the total.
size_t draw(std::span<const float> weights, double uniform, std::vector<uint64_t>& sums) {
  const size_t num_blocks = (weights.size() + kDrawBlock - 1) / kDrawBlock;
  sums.resize(num_blocks);
  uint64_t total = 0;
  for (size_t i = 0; i < num_blocks; ++i) {
    const size_t begin = i * kDrawBlock;
    sums[i] = mass_of(weights.subspan(begin, std::min(kDrawBlock, weights.size() - begin)));
    total += sums[i];
  }
  uint64_t left = std::min(static_cast<uint64_t>(uniform * static_cast<double>(total)), total - 1);
  size_t block = 0;
  for (; left >= sums[block]; ++block) left -= sums[block];
  size_t index = block * kDrawBlock;
  for (; left >= Mass()(weights[index]); ++index) left -= Mass()(weights[index]);
  return index;
}

/// The likeliest tokens of a row, the greatest first; among equals, the lower id first. Token i of
/// the row is ids[i], or i if `ids` is empty; ids rise. `top` contains only {-1, -infinity} before.
void fill_top(std::span<const float> logits, float inverse_temperature, float log_normalizer,
              std::span<const int32_t> ids, std::span<TokenLogprob> top) {
  if (top.empty()) return;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float logprob = logits[i] * inverse_temperature - log_normalizer;
    if (!(logprob > top.back().logprob)) continue;
    size_t place = top.size() - 1;
    for (; place > 0 && top[place - 1].logprob < logprob; --place) top[place] = top[place - 1];
    top[place] = {ids.empty() ? static_cast<int32_t>(i) : ids[i], logprob};
  }
}

/// The index, from 1, of token `chosen` in the order of fill_top(); 0 if nothing asks for it.
int32_t rank_of(std::span<const float> logits, float inverse_temperature, float log_normalizer,
                size_t chosen, std::span<const TokenLogprob> top) {
  if (top.empty()) return 0;
  const float own = logits[chosen] * inverse_temperature - log_normalizer;
  int32_t rank = 1;
  for (const float logit : logits.first(chosen))
    rank += logit * inverse_temperature - log_normalizer >= own ? 1 : 0;
  for (const float logit : logits.subspan(chosen + 1))
    rank += logit * inverse_temperature - log_normalizer > own ? 1 : 0;
  return rank;
}

/// Allocates the entries that fill_top() writes.
std::span<TokenLogprob> make_top(const SamplingParams& params, std::vector<TokenLogprob>* top) {
  if (top == nullptr || params.num_top_logprobs == 0) return {};
  const auto count = static_cast<size_t>(params.num_top_logprobs);
  top->resize(top->size() + count, {-1, -std::numeric_limits<float>::infinity()});
  return std::span(*top).last(count);
}

}  // namespace

float Sampler::score(std::span<const float> logits, int32_t token,
                     std::span<TokenLogprob> top) const {
  const SoftmaxStats stats = ops_.softmax({.vocab_size = static_cast<int64_t>(logits.size()),
                                           .inverse_temperature = 1,
                                           .logits = logits.data(),
                                           .weights = nullptr});
  std::ranges::fill(top, TokenLogprob{-1, -std::numeric_limits<float>::infinity()});
  fill_top(logits, 1, stats.log_normalizer, {}, top);
  return logits[static_cast<size_t>(token)] - stats.log_normalizer;
}

SampledToken Sampler::most_likely(std::span<const float> logits, std::span<TokenLogprob> top) {
  const SoftmaxStats stats = ops_.softmax({.vocab_size = static_cast<int64_t>(logits.size()),
                                           .inverse_temperature = 1,
                                           .logits = logits.data(),
                                           .weights = nullptr});
  const auto best = std::find(logits.begin(), logits.end(), stats.largest);
  if (best == logits.end()) return {0, std::numeric_limits<float>::quiet_NaN()};
  fill_top(logits, 1, stats.log_normalizer, {}, top);
  // Nothing is likelier, and it has the lowest id among equals.
  return {static_cast<int32_t>(best - logits.begin()), *best - stats.log_normalizer,
          top.empty() ? 0 : 1};
}

SampledToken Sampler::sample(std::span<const float> logits, const SamplingParams& params,
                             uint64_t seed, int32_t index, std::vector<std::byte>* kept,
                             std::vector<TokenLogprob>* top) {
  const float inverse =
      params.temperature == 0 ? 0.0F : 1.0F / static_cast<float>(params.temperature);
  return sample_by(inverse, logits, params, seed, index, kept, top);
}

SampledToken Sampler::sample_by(float inverse, std::span<const float> logits,
                                const SamplingParams& params, uint64_t seed, int32_t index,
                                std::vector<std::byte>* kept, std::vector<TokenLogprob>* top) {
  const std::span<TokenLogprob> likeliest = make_top(params, top);
  if (inverse == 0) return most_likely(logits, likeliest);
  const auto vocab_size = static_cast<int32_t>(logits.size());
  const bool is_truncated = has_kept_sets(params);
  weights_.resize(logits.size());
  SoftmaxStats stats = ops_.softmax({.vocab_size = vocab_size,
                                     .inverse_temperature = inverse,
                                     .logits = logits.data(),
                                     .weights = weights_.data()});
  // The greatest weight is 1 except for rounding, so a sum up to 0.5 means NaN or infinite logits.
  if (!(stats.sum > 0.5F) || !std::isfinite(stats.log_normalizer)) {
    if (kept != nullptr && is_truncated) append_all_kept(1, *kept);
    return {0, std::numeric_limits<float>::quiet_NaN()};
  }
  const double uniform = sampling_uniform(seed, static_cast<uint64_t>(index));
  if (is_truncated) select(params);
  if (!is_truncated || kept_.count == logits.size()) {
    if (kept != nullptr && is_truncated) append_all_kept(1, *kept);
    const size_t chosen = draw(weights_, uniform, sums_);
    fill_top(logits, inverse, stats.log_normalizer, {}, likeliest);
    return {static_cast<int32_t>(chosen), logits[chosen] * inverse - stats.log_normalizer,
            rank_of(logits, inverse, stats.log_normalizer, chosen, likeliest)};
  }
  const std::span<const int32_t> ids(kept_.ids.data(), kept_.count);
  if (kept != nullptr) append_kept(ids, vocab_size, *kept);
  const size_t chosen = draw(weights_of(kept_), uniform, sums_);
  logits_.clear();
  for (const int32_t id : ids) logits_.push_back(logits[static_cast<size_t>(id)]);
  stats = ops_.softmax({.vocab_size = static_cast<int64_t>(logits_.size()),
                        .inverse_temperature = inverse,
                        .logits = logits_.data(),
                        .weights = nullptr});
  fill_top(logits_, inverse, stats.log_normalizer, ids, likeliest);
  return {ids[chosen], logits_[chosen] * inverse - stats.log_normalizer,
          rank_of(logits_, inverse, stats.log_normalizer, chosen, likeliest)};
}

void Sampler::select(const SamplingParams& params) {
  const size_t size = weights_.size();
  measure_blocks();
  const bool has_top_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < size;
  uint64_t total = 0;
  const double min_weight = params.min_p * static_cast<double>(std::ranges::max(maxima_));
  float least = std::nextafter(static_cast<float>(min_weight), 0.0F);
  if (has_top_k) {
    least = 0;
    // At least top_k tokens have a weight of at least the top_k-th block maximum.
    if (static_cast<size_t>(params.top_k) <= maxima_.size())
      least = std::bit_cast<float>(
          edge_of(maxima_, static_cast<uint64_t>(params.top_k), scratch_, Count()).bits);
  } else if (params.top_p < 1) {
    total = mass_of(weights_);
    // Tokens with less mass than this together have less mass than top_p may leave out.
    const double most_left = (1 - params.top_p) * static_cast<double>(total);
    const double unneeded = most_left / static_cast<double>(size) - 1;
    least = std::max(least, static_cast<float>(unneeded / kMassUnit * 0.999));
  }
  take_candidates(std::max(least, std::numeric_limits<float>::denorm_min()));
  if (has_top_k) {
    const auto wanted = static_cast<size_t>(params.top_k);
    if (kept_.count > wanted) keep(edge_of(weights_of(kept_), wanted, scratch_, Count()), kept_);
    total = mass_of(weights_of(kept_));
  }
  if (params.top_p < 1) {
    const auto share = static_cast<uint64_t>(std::ceil(params.top_p * static_cast<double>(total)));
    const uint64_t needed = std::max<uint64_t>(share, 1);
    // If the mass after min_p is less than that, min_p is the stricter of the two.
    if (mass_of(weights_of(kept_)) > needed)
      keep(edge_of(weights_of(kept_), needed, scratch_, Mass()), kept_);
  }
  if (params.min_p > 0) drop_below(min_weight, kept_);
}

void Sampler::measure_blocks() {
  maxima_.resize((weights_.size() + kBlock - 1) / kBlock);
  for (size_t i = 0; i < maxima_.size(); ++i) {
    const std::span<const float> all(weights_);
    float greatest = 0;
    for (const float weight : all.subspan(i * kBlock, std::min(kBlock, all.size() - i * kBlock)))
      greatest = std::max(greatest, weight);
    maxima_[i] = greatest;
  }
}

void Sampler::take_candidates(float least) {
  kept_.ids.resize(weights_.size());
  kept_.weights.resize(weights_.size());
  size_t count = 0;
  for (size_t block = 0; block < maxima_.size(); ++block) {
    if (maxima_[block] < least) continue;
    const size_t end = std::min((block + 1) * kBlock, weights_.size());
    for (size_t i = block * kBlock; i < end; ++i) {
      kept_.ids[count] = static_cast<int32_t>(i);
      kept_.weights[count] = weights_[i];
      count += weights_[i] >= least ? 1 : 0;
    }
  }
  kept_.count = count;
}

}  // namespace primerl
