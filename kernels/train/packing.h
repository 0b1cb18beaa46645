/// Packs samples into micro-batches of at most `rows_max` rows.
///
/// Documents never see each other: each attends to its own rows and positions restart at 0, so
/// results equal those of documents run one by one. Samples whose prompts (the tokens before the
/// first loss token) are equal share the prompt's rows: a group of 8 runs its prompt once, and
/// gradients add up there. Pure; equal input gives equal micro-batches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/engine/row_batch.h"
#include "kernels/train/learner.h"

namespace primerl {

/// A token to learn: what row `row` should have predicted.
struct TrainTarget {
  int32_t row = 0;  // of the token before it
  int32_t label = 0;
  float logprob = 0;  // at sampling
  float advantage = 0;
  float inverse_temperature = 1;
};

struct MicroBatch {
  RowBatch rows;  // cache row = row
  std::vector<TrainTarget> targets;
};

/// First-fit by length, longest first. A sample longer than `rows_max` gets a micro-batch of its
/// own. A loss mask at position 0 has nothing that predicts it and is ignored.
std::vector<MicroBatch> pack(std::span<const TrainSample> samples, int32_t rows_max);

/// Refuses arrays of unequal length, tokens outside [0, vocab_size), samples longer than
/// `tokens_max`, numbers that are not finite and temperatures that are not above 0. Names the
/// sample.
Status check_samples(const TrainBatch& batch, int32_t vocab_size, int32_t tokens_max);

}  // namespace primerl
