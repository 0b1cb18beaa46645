/// Chooses the next token of one row of logits. Torch-free; scratch memory is reused.
///
/// Order: logits / temperature -> top_k -> top_p -> min_p -> renormalise -> draw. Ties at the edge
/// of top_k and top_p go to the lower token id. Temperature 0 takes the most likely token (the
/// lowest id of equals) and reports its log-probability at temperature 1. The draw is
/// sampling_uniform(seed, index): a pure function of the request.
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

class Sampler {
 public:
  Sampler() : ops_(cpu_ops()) {}

  /// `index`: how many tokens the sequence has generated before this one.
  SampledToken sample(std::span<const float> logits, const SamplingParams& params, uint64_t seed,
                      int32_t index);

 private:
  SampledToken most_likely(std::span<const float> logits);
  SampledToken filtered(std::span<const float> logits, const SamplingParams& params,
                        double uniform);

  const CpuOps& ops_;
  std::vector<float> weights_;       // e^(z - largest), all tokens
  std::vector<int32_t> candidates_;  // most likely first
};

}  // namespace primerl
