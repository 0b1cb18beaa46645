#include "runtime/replay/tolerance.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/engine/engine.h"
#include "runtime/backends/devices.h"

namespace primerl {
namespace {

bool are_bits_equal(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

/// The first member of type double that differs.
template <class Report>
struct FirstNumber {
  const Report &then, &now;
  const ReplayTolerance& tolerance;
  double& largest;
  std::string difference{};

  template <class M>
  FirstNumber& operator()(std::string_view name, M Report::*member) {
    if constexpr (std::is_same_v<M, double>) compare(name, then.*member, now.*member);
    return *this;
  }
  void compare(std::string_view name, double recorded, double again) {
    if (!difference.empty() || are_bits_equal(recorded, again)) return;
    if (!tolerance.is_exact()) {
      if (name == "mismatch_kl_max") return;
      const double most =
          tolerance.report_absolute + tolerance.report_relative * std::abs(recorded);
      const double apart = std::abs(again - recorded) / most;
      if (apart <= 1) {
        largest = std::max(largest, apart);
        return;
      }
    }
    difference = fmt::format("{}: recorded {}, now {}", name, recorded, again);
  }
};

}  // namespace

ReplayTolerance tolerance_of(const Plan& plan) {
  for (size_t i = 0; i < plan.resources.size(); ++i) {
    const std::string& kind = plan.resources[i].kind;
    const bool computes = kind == Engine::kResourceKind || kind == Learner::kResourceKind;
    if (computes && device_of(plan, static_cast<int32_t>(i)) != "cpu") return kDeviceTolerance;
  }
  return {};
}

std::string first_large_difference(const std::vector<float>& then, const std::vector<float>& now,
                                   double tolerance, double& largest) {
  if (then.size() != now.size())
    return fmt::format("recorded {} numbers, now {}", then.size(), now.size());
  for (size_t i = 0; i < then.size(); ++i) {
    if (std::bit_cast<uint32_t>(then[i]) == std::bit_cast<uint32_t>(now[i])) continue;
    const double apart = std::abs(double{now[i]} - double{then[i]});
    if (!(apart <= tolerance))
      return fmt::format("number {}: recorded {}, now {}", i, then[i], now[i]);
    largest = std::max(largest, apart);
  }
  return {};
}

std::string difference(const TrainReport& then, const TrainReport& now,
                       const ReplayTolerance& tolerance, double& largest) {
  FirstNumber<TrainReport> number{then, now, tolerance, largest};
  TrainReport::fields(number);
  if (!number.difference.empty()) return number.difference;
  if (then.num_tokens != now.num_tokens || then.num_loss_tokens != now.num_loss_tokens ||
      then.num_micro_batches != now.num_micro_batches)
    return fmt::format(
        "tokens: recorded {} ({} with a loss) in {} micro-batches, now {} ({}) in {}",
        then.num_tokens, then.num_loss_tokens, then.num_micro_batches, now.num_tokens,
        now.num_loss_tokens, now.num_micro_batches);
  if (then.skipped != now.skipped)
    return fmt::format("the step was {}skipped, now it was {}", then.skipped ? "" : "not ",
                       now.skipped ? "" : "not");
  return {};
}

std::string difference(const LossResult& then, const LossResult& now,
                       const ReplayTolerance& tolerance, double& largest) {
  if (then.logprobs.size() != now.logprobs.size())
    return fmt::format("recorded {} data, now {}", then.logprobs.size(), now.logprobs.size());
  for (size_t i = 0; i < then.logprobs.size(); ++i)
    if (const std::string what =
            first_large_difference(then.logprobs[i], now.logprobs[i], tolerance.logprob, largest);
        !what.empty())
      return fmt::format("log-probabilities of datum {}, {}", i, what);
  double largest_number = 0;
  FirstNumber<LossTotals> number{then.totals, now.totals, tolerance, largest_number};
  LossTotals::fields(number);
  if (!number.difference.empty()) return number.difference;
  if (then.totals.num_trained != now.totals.num_trained ||
      then.totals.num_targets != now.totals.num_targets ||
      then.totals.num_tokens != now.totals.num_tokens)
    return fmt::format("targets: recorded {} of {} train, for {} tokens, now {} of {} for {}",
                       then.totals.num_trained, then.totals.num_targets, then.totals.num_tokens,
                       now.totals.num_trained, now.totals.num_targets, now.totals.num_tokens);
  return {};
}

void ToleranceCounts::add_logprobs(uint64_t count, double largest) {
  const std::lock_guard lock(mutex_);
  num_logprobs_ += count;
  largest_logprob_ = std::max(largest_logprob_, largest);
}

void ToleranceCounts::add_report(double largest) {
  const std::lock_guard lock(mutex_);
  ++num_reports_;
  largest_number_ = std::max(largest_number_, largest);
}

std::string ToleranceCounts::text(const ReplayTolerance& tolerance) const {
  const std::lock_guard lock(mutex_);
  std::string text;
  if (num_logprobs_ > 0)
    text = fmt::format("of {} log-probabilities none is further than {:.3g} from the recorded one",
                       num_logprobs_, largest_logprob_);
  if (num_reports_ > 0)
    text += fmt::format(
        "{}of {} training steps no number is further than {:.0f} % of what is "
        "allowed",
        text.empty() ? "" : ", ", num_reports_, 100 * largest_number_);
  if (text.empty()) return text;
  return fmt::format(
      "{} (computed on a device: log-probabilities within {}, numbers of a training step within {} "
      "and {:.0f} %; tokens and messages to the bit)",
      text, tolerance.logprob, tolerance.report_absolute, 100 * tolerance.report_relative);
}

}  // namespace primerl
