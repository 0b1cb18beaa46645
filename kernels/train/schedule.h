/// The learning rate of every optimizer step.
///
/// Steps count from 1. Warm-up rises linearly over the first `warmup_steps` to `lr`, reaching it at
/// step `warmup_steps + 1`. "linear" is flat and then falls to `min_lr` over the last `decay_steps`
/// of `max_steps`; "cosine" falls along half a cosine over the same steps (all steps after the
/// warm-up when `decay_steps` is 0); "wsd" is flat and then falls along 1 - sqrt, fast at first
/// (Hägele et al., "Scaling laws and compute-optimal training beyond fixed training durations",
/// 2024); "constant" stays. Pure, no state.
#pragma once

#include <cstdint>

#include "graph/base/result.h"
#include "kernels/train/options.h"

namespace primerl {

/// Refuses an unknown kind, negative numbers, and a decay whose end is unknown or before the
/// warm-up.
Status validate(const ScheduleOptions& schedule, double lr, int32_t max_steps);

double learning_rate(const ScheduleOptions& schedule, double lr, int32_t max_steps, int64_t step);

}  // namespace primerl
