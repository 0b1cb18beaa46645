/// Packs samples into micro-batches.
///
/// Documents never attend to each other: each attends to its own rows and positions restart at 0,
/// so results equal those of documents run one by one. Samples with equal prompts (the tokens
/// before the first loss token) share the prompt's rows: a group of 8 computes its prompt once, and
/// gradients are added up there. The random key of a row (RowBatch::draws) depends on prompt and
/// position; after the prompt, on the sample's index and the position. So the division into
/// micro-batches does not change it. Pure; equal input gives equal micro-batches.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/engine/kept_sets.h"
#include "kernels/engine/row_batch.h"
#include "kernels/train/learner.h"
#include "kernels/train/loss.h"
#include "kernels/train/loss_batch.h"
#include "kernels/train/ranks.h"

namespace primerl {

/// A token to train on: the token that row `row` should have predicted.
struct TrainTarget {
  int32_t row = 0;  // row of the token before it
  int32_t label = 0;
  float logprob = std::numeric_limits<float>::quiet_NaN();  // at sampling; NaN: not known
  float advantage = 0;
  float inverse_temperature = 1;
  int32_t sample = 0;     // index in the batch
  int32_t position = 0;   // of the token in its sample; of a LossDatum: of the target in the datum
  int32_t distance = -1;  // TrainSample::distances
  double weight = 1;      // of its loss: of the sample, times that of step_targets.h
  float proximal = std::numeric_limits<float>::quiet_NaN();   // NaN: none stored
  float reference = std::numeric_limits<float>::quiet_NaN();  // NaN: not known
  float measured = std::numeric_limits<float>::quiet_NaN();   // log pi before the step's gradients
  double sequence_log_ratio = 0;                              // mean of its sequence
  bool is_dropped = false;                                    // by the step's plan
  std::span<const int32_t> top_tokens = {};                   // views of the sample's arrays, [k]
  std::span<const float> top_logprobs = {};
  KeptSet kept;  // a view of the sample's bytes
};

struct MicroBatch {
  RowBatch rows;  // cache row = row
  std::vector<TrainTarget> targets;

  /// Appends the rows and targets of `other`, whose spans get `adapter`; neither attends to the
  /// other's rows.
  void append(const MicroBatch& other, int32_t adapter);
};

/// The next `count` targets of a pass, which belong to one step.
struct LearnedPart {
  size_t count = 0;
  LossKind loss = LossKind::kPolicy;
  const Objective* objective = nullptr;
  double per_token = 0;  // 1 / loss tokens of the step
  LossSums* sums = nullptr;
  LossResult* result = nullptr;  // of a client's LossBatch; then there are no `sums`
};

/// First-fit by length, longest first, to at most `rows_wanted` rows. Samples that share a prompt
/// stay together beyond that, up to `rows_max`, if computing the prompt again would be more than an
/// eighth of the rows. A sample longer than a limit gets its own micro-batch. The samples have
/// passed check_samples() and must stay valid while the result is used. A loss mask at position 0
/// is ignored: no row predicts that token.
std::vector<MicroBatch> pack(std::span<const TrainSample> samples, int32_t rows_max,
                             int32_t rows_wanted);
inline std::vector<MicroBatch> pack(std::span<const TrainSample> samples, int32_t rows_max) {
  return pack(samples, rows_max, rows_max);
}

/// pack() for data of a client: each datum computes its own rows, and its random keys depend on
/// `first_draws` + its index and on the position. The batch has passed check_loss_batch().
std::vector<MicroBatch> pack(std::span<const LossDatum> data, int32_t rows_wanted,
                             uint64_t first_draws);

/// pack() for several ranks that step together: equally many micro-batches for each rank, with
/// nearly equal costs (ranks.h). Ranks without enough samples get dummies. One rank: pack().
std::vector<std::vector<MicroBatch>> pack_for_ranks(std::span<const TrainSample> samples,
                                                    int32_t rows_max, int32_t rows_wanted,
                                                    const RowCosts& costs, int32_t ranks);
/// A micro-batch of one row without a target: it adds 0 to every gradient.
MicroBatch dummy_batch();

/// Log-probabilities of sampled tokens are in [kLogprobMin, kLogprobMax]. A token below the range
/// can never have been sampled, and a value above it is more than rounding. Either would ruin the
/// gradient of the step.
inline constexpr float kLogprobMin = -1000.0F;
inline constexpr float kLogprobMax = 0.01F;

/// Weights of loss tokens are in (0, kTokenWeightMax].
inline constexpr float kTokenWeightMax = 1e4F;

/// Refuses arrays of unequal length, more tokens than the limit, tokens outside the vocabulary,
/// mask values other than 0 and 1, log-probabilities and weights out of range, advantages that are
/// not finite, temperatures that are not above 0, and kept sets that do not belong to its loss
/// tokens. For kTopK, a teacher's tokens that are missing, below 0 or twice in a row, or whose
/// log-probabilities are out of range or add up to more than 1.
Status check_sample(const TrainSample& sample, LossKind loss, const SampleLimits& limits);
/// The same for all samples of a batch; the error names the sample.
Status check_samples(const TrainBatch& batch, const SampleLimits& limits);

/// A batch with one checked sample; score() computes the log-probabilities of its tokens.
Result<TrainBatch> batch_to_score(const std::vector<int32_t>& tokens, const SampleLimits& limits);

}  // namespace primerl
