/// Advantages: how much better or worse each rollout was than others.
///
/// Pure functions. `rewards` [group_size], one per surviving member, in member order. A reward that
/// is NaN or infinite is an error that names the member: the caller drops it first.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

enum class AdvantageKind : uint8_t {
  kMean,         // R - mean
  kLeaveOneOut,  // R - mean of the others
  kZScore,       // (R - mean) / (deviation + 1e-6)
  kMaxRl,        // (R - mean) / mean; rewards are 0 or above; 0 if the mean is 0
  kBatch         // (R - mean of the batch) / (deviation of the batch + 1e-6)
};

std::optional<AdvantageKind> advantage_kind(std::string_view name);
std::vector<std::string> advantage_names();

/// The advantages of one group; a group of one, or of equal rewards, has advantage 0. Deviations
/// are of a sample: divided by n - 1. kBatch takes the rewards of a whole batch as one group.
Result<std::vector<float>> group_advantages(std::span<const double> rewards,
                                            AdvantageKind kind = AdvantageKind::kMean);

/// What long answers cost; `lengths`, parallel to `rewards`, are their sampled tokens.
struct LengthCosts {
  double weight = 0;          // R / (1 + weight * length / mean length of the group)
  int64_t overlong_from = 0;  // R minus a cost that rises from 0 here
  int64_t overlong_to = 0;    // to 1 here; 0 = off
};

std::vector<double> with_length_costs(std::span<const double> rewards,
                                      std::span<const int64_t> lengths, const LengthCosts& costs);

}  // namespace primerl
