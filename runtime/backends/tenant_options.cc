#include "runtime/backends/tenant_options.h"

#include <algorithm>
#include <set>
#include <string>
#include <type_traits>

#include "graph/base/random.h"

namespace primerl {
namespace {

/// Numbers below 0 are not written.
template <class T>
void take(auto written, T& value) {
  if (written >= 0) value = static_cast<T>(written);
}

}  // namespace

TrainingRules rules_of(const Tenant& tenant, const LearnerOptions& options) {
  const auto max_steps = static_cast<int32_t>(std::min<int64_t>(tenant.max_steps, INT32_MAX));
  TrainingRules rules{options.loss, options.optimizer, options.schedule, max_steps};
  if (!tenant.loss.kind.empty()) rules.loss.kind = tenant.loss.kind;
  take(tenant.loss.clip_low, rules.loss.clip_low);
  take(tenant.loss.clip_high, rules.loss.clip_high);
  take(tenant.loss.advantage_weight, rules.loss.advantage_weight);
  take(tenant.loss.kl_weight, rules.loss.kl_weight);
  take(tenant.optimizer.lr, rules.optimizer.lr);
  take(tenant.optimizer.weight_decay, rules.optimizer.weight_decay);
  take(tenant.optimizer.max_norm, rules.optimizer.max_norm);
  if (!tenant.schedule.kind.empty()) rules.schedule.kind = tenant.schedule.kind;
  take(tenant.schedule.warmup_steps, rules.schedule.warmup_steps);
  take(tenant.schedule.decay_steps, rules.schedule.decay_steps);
  take(tenant.schedule.min_lr, rules.schedule.min_lr);
  return rules;
}

AdapterConfig adapter_of(const Tenant& tenant, uint64_t seed) {
  AdapterConfig config;
  config.rank = static_cast<int32_t>(tenant.adapter.rank);
  config.alpha = tenant.adapter.alpha > 0 ? tenant.adapter.alpha : 2.0 * config.rank;
  config.targets = tenant.adapter.targets;
  config.is_rank_stabilized = tenant.adapter.rslora;
  config.dropout = tenant.adapter.dropout;
  // By name: a tenant is the same alone and beside others.
  config.init_seed = stable_hash(tenant.name, seed);
  return config;
}

std::vector<AdapterTraining> adapters_of(std::span<const Tenant> tenants, uint64_t seed,
                                         const LearnerOptions& options) {
  std::vector<AdapterTraining> adapters;
  for (const Tenant& tenant : tenants)
    if (tenant.adapter.is_there())
      adapters.push_back({.tenant = tenant.slot,
                          .adapter = adapter_of(tenant, seed),
                          .rules = rules_of(tenant, options),
                          .start = tenant.adapter.path});
  return adapters;
}

EngineOptions engine_for(EngineOptions options, std::span<const Tenant> tenants) {
  options.adapters_max = 0;
  int32_t largest_rank = 1;
  std::set<std::string> targets;
  for (const Tenant& tenant : tenants) {
    options.shares.push_back(tenant.share);
    if (!tenant.adapter.is_there()) continue;
    ++options.adapters_max;
    largest_rank = std::max(largest_rank, static_cast<int32_t>(tenant.adapter.rank));
    for (auto& target : named_targets(adapter_of(tenant, 0))) targets.insert(std::move(target));
  }
  if (options.adapters_max == 0) {
    options.adapter_slots = 0;
    return options;
  }
  options.max_adapter_rank = largest_rank;
  options.adapter_targets.assign(targets.begin(), targets.end());
  if (options.adapter_slots == 0 || options.adapter_slots > options.adapters_max)
    options.adapter_slots = options.adapters_max;
  return options;
}

}  // namespace primerl
