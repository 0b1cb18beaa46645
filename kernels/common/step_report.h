/// The report of a step, common to all libtorch learners, and the options that it depends on. Plain
/// functions, any thread.
#pragma once

#include <string_view>

#include "kernels/cpu/learner/head.h"
#include "kernels/cpu/learner/training_pass.h"
#include "kernels/ops/ops.h"
#include "kernels/train/adapter_training.h"
#include "kernels/train/learner.h"
#include "kernels/train/options.h"

namespace primerl {

Recompute recompute_of(std::string_view name);

/// Counts and the learning rate of optimizer step `step`, from 1. Skipped if no token of the batch
/// has a loss.
TrainReport begin_report(const TrainBatch& batch, const TrainingRules& rules, int64_t step);
/// Computes the means from the sums of a step.
void add_means(const LossSums& sums, TrainReport& report);

/// The loss of a token, given its current log-probability.
TokenLoss token_loss(const TrainTarget& target, double log_pi, LossKind loss,
                     const LossOptions& options);
/// Adds the loss of a token to the sums.
void add_token(const TokenLoss& token, double entropy, LossSums& sums);

/// The arguments of AdamW step `num_steps`, from 1, without the arrays.
AdamwArgs adamw_args(const OptimizerOptions& options, const TrainReport& report, int64_t num_steps);

}  // namespace primerl
