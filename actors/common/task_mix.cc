#include "actors/common/task_mix.h"

#include <algorithm>
#include <numeric>

#include "actors/messages/rollout.h"

namespace primerl {
namespace {

void divide_by_common_divisor(std::vector<int64_t>& weights) {
  int64_t divisor = 0;
  for (const int64_t weight : weights) divisor = std::gcd(divisor, weight);
  for (int64_t& weight : weights) weight /= divisor;
}

/// "one environment", or the list as JSON.
std::string mix_text(const Json* mix) { return mix == nullptr ? "one environment" : mix->dump(); }

}  // namespace

TaskMix::TaskMix(std::vector<int64_t> weights, uint64_t seed) : weights_(std::move(weights)) {
  CHECK(!weights_.empty(), "a tenant has an environment");
  divide_by_common_divisor(weights_);
  const int64_t cycle = std::accumulate(weights_.begin(), weights_.end(), int64_t{0});
  const auto count = static_cast<int64_t>(weights_.size());
  // Tijdeman: of the environments that may get the next task, the one whose deadline is first.
  const int64_t slack = std::max<int64_t>(2 * count - 2, 1);
  std::vector<int64_t> given(weights_.size());
  for (int64_t task = 1; task <= cycle; ++task) {
    size_t best = weights_.size();
    for (size_t i = 0; i < weights_.size(); ++i) {
      const bool may = slack * (weights_[i] * task - given[i] * cycle) >= cycle || count == 1;
      if (!may) continue;
      // Deadlines (slack * (given + 1) - 1) / weight, compared without a division.
      const auto deadline = [&](size_t of) { return slack * (given[of] + 1) - 1; };
      if (best == weights_.size() || deadline(i) * weights_[best] < deadline(best) * weights_[i])
        best = i;
    }
    CHECK(best < weights_.size(), "one environment is behind its share");
    slots_.push_back({static_cast<uint32_t>(best), static_cast<uint32_t>(given[best]++)});
  }
  begin_ = seed % slots_.size();
  skipped_.resize(weights_.size());
  for (uint64_t slot = 0; slot < begin_; ++slot) ++skipped_[slots_[slot].environment];
}

TaskMix::Drawn TaskMix::at(uint64_t ordinal) const {
  const uint64_t position = begin_ + ordinal;
  const Slot& slot = slots_[position % slots_.size()];
  const uint64_t in_cycles =
      position / slots_.size() * static_cast<uint64_t>(weights_[slot.environment]);
  return {slot.environment, in_cycles + slot.before - skipped_[slot.environment]};
}

std::vector<int64_t> weights_of(const Tenant& tenant) {
  std::vector<int64_t> weights;
  for (size_t i = 0; i < tenant.num_environments(); ++i)
    weights.push_back(tenant.in_environment(i).weight);
  return weights;
}

Json mix_json(const Tenant& tenant) {
  std::vector<int64_t> weights = weights_of(tenant);
  divide_by_common_divisor(weights);
  Json mix = Json::array();
  for (size_t i = 0; i < weights.size(); ++i) {
    Json environment = Json::array();
    environment.push_back(tenant.in_environment(i).environment_label());
    environment.push_back(weights[i]);
    mix.push_back(std::move(environment));
  }
  return mix;
}

Status check_mix(const Tenant& tenant, const Json& manifest) {
  const Json* const saved = manifest.find(kMixOfCheckpoint);
  const Json mix = mix_json(tenant);
  const Json* const now = tenant.mix.empty() ? nullptr : &mix;
  if (mix_text(saved) == mix_text(now)) return ok();
  return error(Code::kInvalid,
               "the checkpoint of tenant '{}' was made with other environments, so the groups that "
               "it has consumed would be other tasks",
               tenant.name)
      .note(fmt::format("the checkpoint has {}, the graph {}", mix_text(saved), mix_text(now)))
      .note(
          "resume with its environments in their order and with their weights, or begin a new run "
          "whose model is the 'weights' folder of the checkpoint");
}

EvaluationRow evaluation_row_of(const Tenant& tenant, uint64_t ordinal) {
  EvaluationRow found;
  found.row = evaluation_row(ordinal, static_cast<uint64_t>(tenant.eval.rows));
  while (found.environment + 1 < tenant.num_environments()) {
    const auto here = static_cast<uint64_t>(tenant.in_environment(found.environment).eval.rows);
    if (found.row < here) break;
    found.row -= here;
    ++found.environment;
  }
  return found;
}

}  // namespace primerl
