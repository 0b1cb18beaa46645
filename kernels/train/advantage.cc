#include "kernels/train/advantage.h"

#include <algorithm>
#include <cmath>

namespace primerl {
namespace {

constexpr double kSmallDeviation = 1e-6;  // added, so that near-equal rewards stay near 0
constexpr std::string_view kNames[] = {"mean", "leave_one_out", "z_score", "max_rl", "batch"};

double deviation_of(std::span<const double> rewards, double mean) {
  double sum = 0;
  for (const double reward : rewards) sum += (reward - mean) * (reward - mean);
  return std::sqrt(sum / static_cast<double>(rewards.size() - 1));
}

/// What R - mean is divided by.
double divisor_of(std::span<const double> rewards, double mean, AdvantageKind kind) {
  const auto count = static_cast<double>(rewards.size());
  switch (kind) {
    case AdvantageKind::kMean:
      return 1;
    case AdvantageKind::kLeaveOneOut:
      return (count - 1) / count;
    case AdvantageKind::kMaxRl:
      return mean;
    default:
      return deviation_of(rewards, mean) + kSmallDeviation;
  }
}

}  // namespace

std::optional<AdvantageKind> advantage_kind(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == std::end(kNames)) return std::nullopt;
  return static_cast<AdvantageKind>(found - kNames);
}

std::vector<std::string> advantage_names() { return {std::begin(kNames), std::end(kNames)}; }

Result<std::vector<float>> group_advantages(std::span<const double> rewards, AdvantageKind kind) {
  double sum = 0;
  for (size_t i = 0; i < rewards.size(); ++i) {
    if (!std::isfinite(rewards[i]))
      return error(Code::kInvalid, "the reward of member {} is {}", i, rewards[i])
          .note("rewards are finite numbers");
    if (kind == AdvantageKind::kMaxRl && rewards[i] < 0)
      return error(Code::kInvalid, "the reward of member {} is {}", i, rewards[i])
          .note("advantage \"max_rl\" divides by the mean: its rewards are 0 or above");
    sum += rewards[i];
  }
  const double mean = rewards.empty() ? 0 : sum / static_cast<double>(rewards.size());
  std::vector<float> advantages(rewards.size(), 0.0F);
  if (rewards.size() < 2) return advantages;
  const double divisor = divisor_of(rewards, mean, kind);
  for (size_t i = 0; i < rewards.size() && divisor > 0; ++i)
    advantages[i] = static_cast<float>(
        kind == AdvantageKind::kMean ? rewards[i] - mean : (rewards[i] - mean) / divisor);
  return advantages;
}

std::vector<double> with_length_costs(std::span<const double> rewards,
                                      std::span<const int64_t> lengths, const LengthCosts& costs) {
  std::vector<double> shaped(rewards.begin(), rewards.end());
  double sum = 0;
  for (const int64_t length : lengths) sum += static_cast<double>(length);
  const double mean = sum / static_cast<double>(std::max(lengths.size(), size_t{1}));
  for (size_t i = 0; i < shaped.size(); ++i) {
    const auto length = static_cast<double>(lengths[i]);
    if (costs.weight > 0 && mean > 0) shaped[i] /= 1 + costs.weight * length / mean;
    if (costs.overlong_to <= 0) continue;
    const auto from = static_cast<double>(costs.overlong_from);
    const double range = std::max(static_cast<double>(costs.overlong_to) - from, 1.0);
    shaped[i] -= std::clamp((length - from) / range, 0.0, 1.0);
  }
  return shaped;
}

}  // namespace primerl
