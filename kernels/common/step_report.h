/// The report of a step, common to all libtorch learners, and the options that it depends on. Plain
/// functions, any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/train/adapter_training.h"
#include "kernels/train/learner.h"
#include "kernels/train/loss.h"
#include "kernels/train/options.h"
#include "kernels/train/packing.h"
#include "kernels/train/part_losses.h"

namespace primerl {

/// Which activations of a layer a training pass computes again in its backward: none, all but
/// those of attention, or all.
enum class Recompute : uint8_t { kNone, kAttention, kFull };

Recompute recompute_of(std::string_view name);

/// Counts and the learning rate of optimizer step `step`, from 1. Skipped if no token of the batch
/// has a loss.
TrainReport begin_report(const TrainBatch& batch, const TrainingRules& rules, int64_t step);
/// Computes the means from the sums of a step.
void add_means(const LossSums& sums, TrainReport& report);

}  // namespace primerl
