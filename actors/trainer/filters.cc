#include "actors/trainer/filters.h"

#include <algorithm>
#include <cmath>

namespace primerl {
namespace {

/// The most near-certain sampled tokens in a row; others between two turns do not end a row.
int64_t longest_certain_row(const Trajectory& member) {
  const double least = std::log(kNearlyCertain);
  int64_t row = 0, longest = 0;
  for (size_t i = 0; i < member.logprobs.size(); ++i) {
    if (member.sampled[i] == 0) continue;
    row = static_cast<double>(member.logprobs[i]) > least ? row + 1 : 0;
    longest = std::max(longest, row);
  }
  return longest;
}

}  // namespace

std::optional<RolloutUse> use_of(const Tenant& tenant, const OwnObjectives& own) {
  const ObjectiveSpec* const spec = find_objective(tenant.objective, own);
  if (spec == nullptr) return std::nullopt;
  const std::string_view advantage =
      tenant.advantage.kind.empty() ? spec->advantage : std::string_view(tenant.advantage.kind);
  const LossKind data = spec->rule == ObjectiveRule::kTopK ? LossKind::kTopK
                        : spec->uses_logprobs()            ? LossKind::kPolicy
                                                           : LossKind::kCrossEntropy;
  return RolloutUse{.data = data,
                    .rule = spec->rule,
                    .uses_advantages = spec->uses_advantages(),
                    .advantage = advantage_kind(advantage).value_or(AdvantageKind::kMean)};
}

std::string fault_of_filters(const Trajectory& member, const Tenant& tenant, int32_t vocab_size) {
  const TenantFilters& filters = tenant.filters;
  if (filters.truncated && member.is_truncated) return "filters.truncated: it was cut off";
  // Arrays of different lengths are refused elsewhere.
  if (member.logprobs.size() != member.tokens.size() ||
      member.sampled.size() != member.tokens.size())
    return {};
  if (filters.repetition_max > 0)
    if (const int64_t row = longest_certain_row(member); row > filters.repetition_max)
      return fmt::format("filters.repetition_max: {} tokens in a row have a probability above {}",
                         row, kNearlyCertain);
  const double least = -std::log(std::max(vocab_size, 1)) - kBelowEven;
  for (size_t i = 0; i < member.tokens.size() && filters.gibberish_from > 0; ++i)
    if (member.sampled[i] != 0 && member.tokens[i] >= filters.gibberish_from &&
        static_cast<double>(member.logprobs[i]) < least)
      return fmt::format("filters.gibberish_from: token {} has log-probability {}, below {:.2f}",
                         member.tokens[i], member.logprobs[i], least);
  return {};
}

}  // namespace primerl
