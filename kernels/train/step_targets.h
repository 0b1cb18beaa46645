/// The facts that targets of a step need beyond one token: weights by sequence, sums over
/// sequences, and the tokens that the step drops.
///
/// The two passes of a step, for every objective: weigh() once the micro-batches are known; if the
/// objective needs_measured(), the learner then runs all of them forward and writes each target's
/// log-probability to TrainTarget::measured; plan() computes from these the facts that the losses
/// read in the second pass. Sums are in the order of the micro-batches. Pure functions.
#pragma once

#include <span>

#include "kernels/train/objective.h"
#include "kernels/train/packing.h"

namespace primerl {

/// Multiplies TrainTarget::weight, so that the mean of weight * loss over the tokens of the step is
/// the mean that the objective wants. A sequence is a sample with loss tokens.
void weigh(std::span<MicroBatch> batches, const Objective& objective);

/// Fills TrainTarget::sequence_log_ratio and is_dropped from TrainTarget::measured. For the moment
/// rule, tokens are dropped from the largest (log pi - log mu)^2 down until the mean of the rest is
/// at most moment_max; of equal ones the later token goes first.
void plan(std::span<MicroBatch> batches, const Objective& objective);

}  // namespace primerl
