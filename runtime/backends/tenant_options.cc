#include "runtime/backends/tenant_options.h"

#include <algorithm>
#include <exception>
#include <set>
#include <string>
#include <type_traits>

#include "graph/base/random.h"
#include "graph/catalog.h"

namespace primerl {
namespace {

/// Replaces `value` if the tenant wrote one; numbers below 0 mean "not written".
template <class T>
void take(auto written, T& value) {
  if (written >= 0) value = static_cast<T>(written);
}

constexpr size_t kSampleTasks = 8;

/// Token counts of a tenant's samples.
struct SampleTokens {
  int64_t prompt = 0;  // maximum, shared by the rollouts of a group
  int64_t all = 0;     // maximum for one sample
};

/// Some tasks of the environment give the length of prompts: each byte is at most one token. Later
/// observations are not known in advance; then a sample may have 'seq_len' tokens.
SampleTokens sample_tokens(const Tenant& tenant, int64_t positions) {
  const int64_t longest = std::min(tenant.seq_len, positions);
  const SampleTokens unknown{0, longest};
  const EnvironmentContract* environment = tenant.environment.contract;
  if (environment == nullptr || !environment->first_tasks) return unknown;
  try {
    const auto tasks = environment->first_tasks(tenant.environment.options.get(), 0, kSampleTasks);
    if (!tasks.ok()) return unknown;
    SampleTokens tokens;
    for (const auto& task : *tasks) {
      if (task.num_turns != 1) return unknown;
      tokens.prompt = std::max(tokens.prompt, static_cast<int64_t>(task.prompt.size()) + 1);
    }
    tokens.all = std::min(longest, tokens.prompt + tenant.sampling.max_tokens);
    tokens.prompt = std::min(tokens.prompt, tokens.all);
    return tokens;
  } catch (const std::exception&) {
    return unknown;  // error in a plugin's code: the rehearsal reports it
  }
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
  // Uses the tenant's name, so its adapter is the same alone and beside other tenants.
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

int64_t micro_batch_rows(const LearnerOptions& options, std::span<const Tenant> tenants,
                         int64_t positions) {
  int64_t longest = 0, batch = 0;
  for (const Tenant& tenant : tenants) {
    const auto [prompt, all] = sample_tokens(tenant, positions);
    const int64_t group_size = std::max<int64_t>(tenant.group_size, 1);
    const int64_t groups = (tenant.batch_size + group_size - 1) / group_size;
    const int64_t tokens = groups * prompt + tenant.batch_size * (all - prompt);
    longest = std::max(longest, all);
    // Steps of several adapters share forward passes; with whole weights there is one tenant.
    batch += tokens;
  }
  return std::max(longest, std::min<int64_t>(batch, options.micro_batch_tokens));
}

}  // namespace primerl
