/// Chooses the next token of one row of logits. Independent of torch; scratch memory is reused.
///
/// Order: logits / temperature -> top_k -> top_p -> min_p -> renormalise -> sample; earlier steps
/// are in logits_processor.h. Ties at the threshold of top_k and top_p go to the lower token id.
/// Temperature 0 chooses the most likely token (the lowest id among equals) and reports its
/// log-probability at temperature 1.
///
/// The result is a pure function of the row, the params, the seed and the index, defined exactly.
/// The weight of a token is its probability divided by that of the most likely one. Masses are
/// whole multiples of 2^-40 of it, so that no order of addition matters. top_p keeps the fewest
/// most likely tokens whose mass reaches top_p of the mass that top_k left. Sampling walks the kept
/// tokens by rising id until their mass exceeds sampling_uniform(seed, index) of the total; a token
/// of weight 0 is not kept. The log-probability is the softmax over only the logits of the kept
/// tokens, by rising id: exactly what a learner computes from the same set. The top
/// log-probabilities and the rank are computed in the same way, only if asked for. A row with NaN
/// or +infinity gives log-probability NaN, and no top ones. A logit of -infinity is never sampled.
///
/// Nothing is sorted: the threshold of top_k or top_p is found by its bits, ten at a time, among
/// the candidate tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/engine/engine.h"
#include "kernels/ops/ops.h"

namespace primerl {

struct SampledToken {
  int32_t token = 0;
  float logprob = 0;  // natural log, of the processed distribution
  int32_t rank = 0;   // as in FinishEvent::ranks; 0 if there are no top log-probabilities
};

/// Tokens that may be sampled, by rising id, with their weights: the first `count` of each array.
/// The arrays are as long as the vocabulary, so that nothing is allocated or cleared per token.
struct SamplingCandidates {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  size_t count = 0;
};

class Sampler {
 public:
  Sampler() : ops_(cpu_ops()) {}

  /// `index`: how many tokens the sequence has generated before. Appends the token's entry
  /// (kept_sets.h) to `kept`, unless it is null, if has_kept_sets(params). Appends num_top_logprobs
  /// entries to `top`, unless it is null, as in FinishEvent.
  SampledToken sample(std::span<const float> logits, const SamplingParams& params, uint64_t seed,
                      int32_t index, std::vector<std::byte>* kept = nullptr,
                      std::vector<TokenLogprob>* top = nullptr);
  /// The same, given 1 / temperature in fp32, which the computation uses; 0: the most likely token.
  /// params.temperature only matters for whether it is 0.
  SampledToken sample_by(float inverse_temperature, std::span<const float> logits,
                         const SamplingParams& params, uint64_t seed, int32_t index,
                         std::vector<std::byte>* kept = nullptr,
                         std::vector<TokenLogprob>* top = nullptr);

  /// The log-probability of `token` under the unprocessed row. `top` gets the likeliest tokens, the
  /// greatest first; among equals, the lower id first. It is no longer than the row.
  float score(std::span<const float> logits, int32_t token, std::span<TokenLogprob> top = {}) const;

 private:
  SampledToken most_likely(std::span<const float> logits, std::span<TokenLogprob> top);
  /// Fills kept_ with the tokens that the params keep.
  void select(const SamplingParams& params);
  void measure_blocks();
  /// Fills kept_ with the tokens whose weight is at least `least`.
  void take_candidates(float least);

  const CpuOps& ops_;
  std::vector<float> weights_;  // e^(z - largest), all tokens
  std::vector<float> maxima_;   // of each block of weights_
  SamplingCandidates kept_;
  // Scratch.
  std::vector<float> scratch_;
  std::vector<float> logits_;  // of the kept tokens
  std::vector<uint64_t> sums_;
};

}  // namespace primerl
