#include "actors/tinker/sampled_runs.h"

#include <algorithm>
#include <string_view>

#include "graph/base/random.h"

namespace primerl::tinker {
namespace {

uint64_t hash_of(std::span<const int32_t> tokens) {
  const auto first = tokens.first(std::min(tokens.size(), SampledRuns::kHashedTokens));
  return stable_hash({reinterpret_cast<const char*>(first.data()), first.size_bytes()},
                     first.size());
}

bool is_in_run(const LossDatum& datum, size_t i) {
  const bool has_logprob = i < datum.logprobs.size() && datum.logprobs[i] != 0;
  const bool has_weight = datum.weights.empty() || datum.weights[i] != 0;
  const bool has_advantage = datum.advantages.empty() || datum.advantages[i] != 0;
  return has_logprob || (has_weight && has_advantage);
}

}  // namespace

void SampledRuns::add(std::span<const int32_t> tokens, int64_t update) {
  if (!tokens.empty()) runs_.put(hash_of(tokens), update, kRunsMax);
}

std::optional<int64_t> SampledRuns::oldest_update(const LossDatum& datum) const {
  if (runs_.size() == 0 || !datum.positions.empty()) return std::nullopt;
  std::optional<int64_t> oldest;
  const std::span targets(datum.targets);
  for (size_t begin = 0; begin < targets.size();) {
    size_t end = begin;
    while (end < targets.size() && is_in_run(datum, end)) ++end;
    if (end > begin)
      if (const int64_t* const update = runs_.find(hash_of(targets.subspan(begin, end - begin))))
        oldest = std::min(*update, oldest.value_or(*update));
    begin = end + 1;
  }
  return oldest;
}

}  // namespace primerl::tinker
