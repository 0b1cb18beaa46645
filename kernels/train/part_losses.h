/// The losses of the targets of a pass: each with the objective of its part, and the sums of the
/// part. Every learner adds them up here, in the order of its targets. Plain functions, any thread.
#pragma once

#include "kernels/train/loss.h"
#include "kernels/train/packing.h"

namespace primerl {

/// The loss of a token, given its current log-probability.
TokenLoss target_loss(const TrainTarget& target, double log_pi, const LearnedPart& part);
/// Adds the loss of a token to the sums of its part, or to its result with `log_pi`.
void add_token(const TrainTarget& target, const TokenLoss& token, float log_pi, double entropy,
               const LearnedPart& part);

}  // namespace primerl
