/// Chooses the next token of one row of logits. Torch-free; scratch memory is reused.
///
/// Order: logits / temperature -> top_k -> top_p -> min_p -> renormalise -> draw; what comes before
/// is logits_processor.h. Ties at the edge of top_k and top_p go to the lower token id. Temperature
/// 0 takes the most likely token (the lowest id of equals) and reports its log-probability at
/// temperature 1.
///
/// All is a pure function of the row, the params, the seed and the index, defined exactly: the
/// weight of a token is its probability over that of the most likely one, and masses are added as
/// whole multiples of 2^-40 of it, so that no order of addition matters. top_p keeps the fewest
/// most likely tokens whose mass reaches top_p of what top_k left. The draw walks the kept tokens
/// by rising id to sampling_uniform(seed, index) of their mass; a token whose weight is 0 is not
/// kept. The log-probability is the softmax over the logits of the kept tokens alone, by rising id:
/// just what a learner computes that is told the set. The top log-probabilities are computed as
/// that one is. A row that is no distribution (a logit is not a number, or infinite) gives a
/// log-probability that is not a number, and no top ones. A logit of -infinity is never drawn.
///
/// Nothing is sorted: the edge of top_k or top_p is found by its bits, ten at a time, among the
/// tokens that can be at the edge.
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
};

/// Tokens that may be drawn, by rising id, with their weights: the first `count` of each array,
/// which are as long as the vocabulary so that nothing is allocated or cleared per token.
struct SamplingCandidates {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  size_t count = 0;
};

class Sampler {
 public:
  Sampler() : ops_(cpu_ops()) {}

  /// `index`: how many tokens the sequence has generated before this one. To `kept`, unless it is
  /// null, the token's entry is appended (kept_sets.h) where has_kept_sets(params). To `top`,
  /// unless it is null, num_top_logprobs are appended, as FinishEvent has them.
  SampledToken sample(std::span<const float> logits, const SamplingParams& params, uint64_t seed,
                      int32_t index, std::vector<std::byte>* kept = nullptr,
                      std::vector<TokenLogprob>* top = nullptr);
  /// The same by 1 / temperature in fp32, which is what is computed with; 0: the most likely token.
  /// Of the params' temperature only counts whether it is 0.
  SampledToken sample_by(float inverse_temperature, std::span<const float> logits,
                         const SamplingParams& params, uint64_t seed, int32_t index,
                         std::vector<std::byte>* kept = nullptr,
                         std::vector<TokenLogprob>* top = nullptr);

  /// The log-probability of `token` in the row as it is.
  float score(std::span<const float> logits, int32_t token) const;

 private:
  SampledToken most_likely(std::span<const float> logits, std::span<TokenLogprob> top);
  /// Fills kept_ with what the params leave.
  void select(const SamplingParams& params);
  void measure_blocks();
  /// Fills kept_ with the tokens that weigh `least` or more.
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
