/// The halves of steps of a scripted learner (open_gradients.h). Log-probabilities are those of its
/// score(); the gradient is a hash of the data, in the order of the micro-batches. Losses are the
/// real ones of these log-probabilities. One thread: that of its learner.
#pragma once

#include <functional>
#include <map>

#include "graph/base/clock.h"
#include "kernels/scripted/options.h"
#include "kernels/train/open_gradients.h"

namespace primerl {

/// Maps a hash to a uniform number in [0, 1).
double uniform_of(uint64_t hash);
/// The log-probability of a token, by the hash of the tokens up to it and of the weights.
float scripted_logprob(uint64_t prefix);

class ScriptedGradients final : private AccumulateRunner {
 public:
  /// `options` must stay valid while this exists. `history_of`: the hash of the weights of a
  /// slot; `add_cost` hears what each pass costs.
  ScriptedGradients(const ScriptedLearnerOptions& options,
                    std::function<uint64_t(size_t slot)> history_of,
                    std::function<void(Duration)> add_cost)
      : options_(options), history_of_(std::move(history_of)), add_cost_(std::move(add_cost)) {}

  OpenGradients& open() { return open_; }
  const OpenGradients& open() const { return open_; }
  /// The gradient of the slot.
  uint64_t digest(size_t slot) const { return digests_.at(slot); }

 private:
  int32_t rows_wanted() const override;
  Result<Division> divide(size_t slot, const LossBatch& batch, uint64_t first_draws,
                          bool clears) override;
  Status learn_part(size_t slot, const MicroBatch& batch, const LearnedPart& part) override;
  Status score_part(size_t slot, const MicroBatch& batch, const LearnedPart& part) override;

  const ScriptedLearnerOptions& options_;
  const std::function<uint64_t(size_t)> history_of_;
  const std::function<void(Duration)> add_cost_;
  std::map<size_t, uint64_t> digests_;
  OpenGradients open_{*this};
};

}  // namespace primerl
