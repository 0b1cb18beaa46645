/// Packs samples into micro-batches.
///
/// Documents never see each other: each attends to its own rows and positions restart at 0, so
/// results equal those of documents run one by one. Samples whose prompts (the tokens before the
/// first loss token) are equal share the prompt's rows: a group of 8 runs its prompt once, and
/// gradients add up there. What a row's random numbers are drawn by (RowBatch::draws) is its prompt
/// and position, after the prompt its sample's index and position: the cut into micro-batches does
/// not change it. Pure; equal input gives equal micro-batches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/engine/kept_sets.h"
#include "kernels/engine/row_batch.h"
#include "kernels/train/learner.h"
#include "kernels/train/loss.h"

namespace primerl {

/// A token to learn: what row `row` should have predicted.
struct TrainTarget {
  int32_t row = 0;  // of the token before it
  int32_t label = 0;
  float logprob = 0;  // at sampling
  float advantage = 0;
  float inverse_temperature = 1;
  KeptSet kept;  // views the sample's bytes
};

struct MicroBatch {
  RowBatch rows;  // cache row = row
  std::vector<TrainTarget> targets;

  /// Appends the rows and targets of `other`, whose spans get `adapter`; neither sees the other's
  /// rows.
  void append(const MicroBatch& other, int32_t adapter);
};

/// The targets of one step among those of a pass: the next `count` of them.
struct LearnedPart {
  size_t count = 0;
  LossKind loss = LossKind::kDppo;
  const LossOptions* options = nullptr;
  double per_token = 0;  // 1 / loss tokens of the step
  LossSums* sums = nullptr;
};

/// First-fit by length, longest first, to at most `rows_wanted` rows. Samples that share a prompt
/// stay together beyond that, up to `rows_max`, where the prompt once more would be more than an
/// eighth of the rows. A sample longer than a limit gets a micro-batch of its own. The samples have
/// passed check_samples() and outlive what is made. A loss mask at position 0 has nothing that
/// predicts it and is ignored.
std::vector<MicroBatch> pack(std::span<const TrainSample> samples, int32_t rows_max,
                             int32_t rows_wanted);
inline std::vector<MicroBatch> pack(std::span<const TrainSample> samples, int32_t rows_max) {
  return pack(samples, rows_max, rows_max);
}

/// Log-probabilities of sampled tokens lie in [kLogprobMin, kLogprobMax]: what lies below can never
/// have been drawn, what lies above 0 is more than rounding; either would ruin the step's gradient.
inline constexpr float kLogprobMin = -1000.0F;
inline constexpr float kLogprobMax = 0.01F;

/// Refuses arrays of unequal length, more tokens than the limit, tokens outside the vocabulary, a
/// mask that is not of 0 and 1, log-probabilities out of range, advantages that are not finite,
/// temperatures that are not above 0 and kept sets that are not of its loss tokens.
Status check_sample(const TrainSample& sample, LossKind loss, const SampleLimits& limits);
/// The same for all of a batch; names the sample.
Status check_samples(const TrainBatch& batch, const SampleLimits& limits);

/// The one sample of which score() gives each token's log-probability; checked.
Result<TrainBatch> batch_to_score(const std::vector<int32_t>& tokens, const SampleLimits& limits);

}  // namespace primerl
