/// The sums of a scripted training step, which stand for its loss and its gradient.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "graph/base/random.h"
#include "kernels/scripted/scripted_gradients.h"
#include "kernels/train/learner.h"

namespace primerl {

/// Sums of a step, added token by token in the order of the batch: micro-batches change nothing.
struct ScriptedSums {
  double loss = 0, entropy = 0, mismatch_kl = 0, mismatch_kl_max = 0;
  double ratio = 0, ratio_squared = 0;
  int64_t num_tokens = 0, num_loss_tokens = 0, num_masked = 0;
  uint64_t digest = 0;  // of all training data
};

inline void add_sample(const TrainSample& sample, LossKind loss, uint64_t history,
                       ScriptedSums& sums) {
  sums.num_tokens += static_cast<int64_t>(sample.tokens.size());
  for (const std::byte byte : sample.kept.bytes())
    sums.digest = mix(sums.digest, static_cast<uint64_t>(byte));
  for (const float logprob : sample.top_logprobs)
    sums.digest = mix(sums.digest, std::bit_cast<uint32_t>(logprob));
  for (size_t i = 0; i < sample.tokens.size(); ++i) {
    sums.digest =
        mix(sums.digest, static_cast<uint64_t>(sample.tokens[i]) << 1 | (sample.loss_mask[i] & 1U));
    if (sample.loss_mask[i] == 0) continue;
    ++sums.num_loss_tokens;
    const double chance = uniform_of(mix(history, sums.digest));
    sums.entropy += 0.5 + chance;
    if (loss != LossKind::kPolicy) {
      sums.loss += 2 * chance;
      continue;
    }
    sums.digest = mix(sums.digest, std::bit_cast<uint32_t>(sample.advantages[i]));
    const double log_ratio = 0.2 * (chance - 0.5);  // log pi - log mu, as large as after one or two
                                                    // versions
    const double ratio = std::exp(log_ratio);
    const double mismatch = ratio - log_ratio - 1;
    sums.loss -= ratio * static_cast<double>(sample.advantages[i]);
    sums.ratio += ratio;
    sums.ratio_squared += ratio * ratio;
    sums.mismatch_kl += mismatch;
    sums.mismatch_kl_max = std::max(sums.mismatch_kl_max, mismatch);
    sums.num_masked += chance > 0.99 ? 1 : 0;
  }
}

}  // namespace primerl
