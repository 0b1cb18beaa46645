#include "kernels/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace primerl {
namespace {

int64_t decay_length(const ScheduleOptions& schedule, int32_t max_steps) {
  const int64_t after_warmup = max_steps - schedule.warmup_steps;
  return schedule.decay_steps == 0 ? after_warmup : schedule.decay_steps;
}

}  // namespace

Status validate(const ScheduleOptions& schedule, double lr, int32_t max_steps) {
  const auto& kind = schedule.kind;
  if (kind != "constant" && kind != "linear" && kind != "cosine" && kind != "wsd")
    return error(Code::kInvalid, "unknown schedule '{}'", kind)
        .note("known schedules: constant, linear, cosine, wsd");
  if (!std::isfinite(lr) || lr < 0)
    return error(Code::kInvalid, "learning rate {} is not valid", lr).note("it is 0 or above");
  if (schedule.warmup_steps < 0 || schedule.decay_steps < 0)
    return error(Code::kInvalid, "warmup_steps {} and decay_steps {} must be 0 or above",
                 schedule.warmup_steps, schedule.decay_steps);
  if (!(schedule.min_lr >= 0 && schedule.min_lr <= lr))
    return error(Code::kInvalid, "min_lr {} is not valid", schedule.min_lr)
        .note(fmt::format("it is between 0 and the learning rate {}", lr));
  if (kind == "constant") return ok();
  if (max_steps < 1)
    return error(Code::kInvalid, "schedule '{}' needs to know max_steps", kind)
        .note("set max_steps of the tenant, or use kind = \"constant\"");
  if (schedule.warmup_steps + static_cast<int64_t>(schedule.decay_steps) > max_steps)
    return error(Code::kInvalid, "warmup_steps {} and decay_steps {} together exceed max_steps {}",
                 schedule.warmup_steps, schedule.decay_steps, max_steps);
  if (kind == "wsd" && schedule.decay_steps == 0)
    return error(Code::kInvalid, "schedule 'wsd' needs decay_steps of 1 or more")
        .note("a tenth to a fifth of max_steps is usual");
  return ok();
}

double learning_rate(const ScheduleOptions& schedule, double lr, int32_t max_steps, int64_t step) {
  if (step <= schedule.warmup_steps)
    return lr * static_cast<double>(step) / static_cast<double>(schedule.warmup_steps + 1);
  if (schedule.kind == "constant") return lr;
  const int64_t length = decay_length(schedule, max_steps);
  if (length <= 0) return lr;
  // The last step of the run is at progress 1 - 1/length, so that it still moves when min_lr is 0.
  const double done = static_cast<double>(step - 1 - (max_steps - length));
  const double progress = std::clamp(done / static_cast<double>(length), 0.0, 1.0);
  if (schedule.kind == "linear") return lr + (schedule.min_lr - lr) * progress;
  if (schedule.kind == "wsd") return lr + (schedule.min_lr - lr) * std::sqrt(progress);
  return schedule.min_lr +
         (lr - schedule.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace primerl
