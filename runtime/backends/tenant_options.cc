#include "runtime/backends/tenant_options.h"

#include <algorithm>
#include <exception>
#include <set>
#include <string>
#include <type_traits>

#include "actors/trainer/client_steps.h"
#include "graph/base/random.h"
#include "graph/catalog.h"
#include "graph/tenancies.h"
#include "kernels/train/objective.h"
#include "kernels/train/optimizer.h"
#include "kernels/train/schedule.h"

namespace primerl {
namespace {

/// Snapshots of one client that are sampled from at the same time; others wait for a slot.
constexpr int32_t kSlotsForSnapshots = 2;

/// Sets `value` if the tenant wrote one; numbers below 0 mean "not written".
template <class T>
void replace(auto written, T& value) {
  if (written >= 0) value = static_cast<T>(written);
}

/// The numbers of another objective mean nothing to the tenant's.
LossOptions loss_of(const Tenant& tenant, const LossOptions& of_learner) {
  const TenantLoss& own = tenant.loss;
  LossOptions loss = of_learner;
  if (!own.kind.empty() && own.kind != of_learner.kind) {
    loss = {};
    loss.kind = own.kind;
    loss.own = of_learner.own;
  }
  replace(own.clip_low, loss.clip_low);
  replace(own.clip_high, loss.clip_high);
  replace(own.advantage_weight, loss.advantage_weight);
  replace(own.kl_weight, loss.kl_weight);
  replace(own.clip_dual, loss.clip_dual);
  replace(own.weight_low, loss.weight_low);
  replace(own.weight_high, loss.weight_high);
  replace(own.moment_max, loss.moment_max);
  replace(own.proximal_share, loss.proximal_share);
  replace(own.reference_weight, loss.reference_weight);
  replace(own.jsd_beta, loss.jsd_beta);
  if (!own.mean.empty()) {
    loss.mean = own.mean;
    if (own.mean != "constant") loss.mean_tokens = 0;  // the learner's is of another mean
  }
  if (own.mean_tokens > 0) loss.mean_tokens = own.mean_tokens;
  const bool is_constant = find_objective(loss.kind, loss.own) != nullptr &&
                           objective_of(loss).mean == LossMean::kConstant;
  if (is_constant && loss.mean_tokens == 0) loss.mean_tokens = tenant.seq_len;
  return loss;
}

/// The numbers of another optimizer mean nothing to the tenant's. Rate, decay and clip mean the
/// same for all.
OptimizerOptions optimizer_of(const Tenant& tenant, const OptimizerOptions& of_learner) {
  const TenantOptimizer& own = tenant.optimizer;
  OptimizerOptions optimizer = of_learner;
  if (!own.kind.empty() && own.kind != of_learner.kind) {
    optimizer = {};
    optimizer.kind = own.kind;
    optimizer.lr = of_learner.lr;
    optimizer.weight_decay = of_learner.weight_decay;
    optimizer.max_norm = of_learner.max_norm;
    optimizer.no_decay = of_learner.no_decay;
  }
  replace(own.lr, optimizer.lr);
  replace(own.weight_decay, optimizer.weight_decay);
  replace(own.beta1, optimizer.beta1);
  replace(own.beta2, optimizer.beta2);
  replace(own.epsilon, optimizer.epsilon);
  replace(own.momentum, optimizer.momentum);
  replace(own.decay_rate, optimizer.decay_rate);
  replace(own.update_clip, optimizer.update_clip);
  replace(own.scale_min, optimizer.scale_min);
  replace(own.max_norm, optimizer.max_norm);
  return optimizer;
}

/// An error that names an option, so that `check` points there.
Status named(std::string_view option, const Status& valid) {
  if (valid.ok()) return ok();
  Error fault = error(Code::kInvalid, "'{}': {}", option, valid.error().message());
  for (const auto& note : valid.error().notes()) (void)std::move(fault).note(note);
  return fault;
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
  if (!tenant.mix.empty() || environment == nullptr || !environment->first_tasks) return unknown;
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
  rules.loss = loss_of(tenant, options.loss);
  rules.optimizer = optimizer_of(tenant, options.optimizer);
  if (!tenant.schedule.kind.empty()) rules.schedule.kind = tenant.schedule.kind;
  replace(tenant.schedule.warmup_steps, rules.schedule.warmup_steps);
  replace(tenant.schedule.decay_steps, rules.schedule.decay_steps);
  replace(tenant.schedule.min_lr, rules.schedule.min_lr);
  return rules;
}

Status validate_learner(const LearnerOptions& options) {
  RETURN_IF_ERROR(named("loss", validate(options.loss)));
  return validate(options.optimizer);
}

Status check_tenant(const LearnerOptions& options, const Tenant& tenant) {
  const TrainingRules rules = rules_of(tenant, options);
  RETURN_IF_ERROR(validate(rules.optimizer));
  return named("schedule", validate(rules.schedule, rules.optimizer.lr, rules.max_steps));
}

AdapterConfig adapter_of(const Tenant& tenant, uint64_t seed) {
  AdapterConfig config;
  config.rank = static_cast<int32_t>(tenant.adapter.rank);
  config.alpha = tenant.adapter.alpha > 0 ? tenant.adapter.alpha : 2.0 * config.rank;
  config.targets = tenant.adapter.targets;
  config.is_rank_stabilized = tenant.adapter.rslora;
  config.dropout = tenant.adapter.dropout;
  config.init_seed = tenancy_key(tenant, seed);
  return config;
}

AdapterTraining adapter_training_of(const Tenant& tenant, uint64_t seed,
                                    const LearnerOptions& options) {
  return {.tenant = tenant.slot,
          .adapter = adapter_of(tenant, seed),
          .rules = rules_of(tenant, options),
          .start = tenant.adapter.path};
}

std::vector<AdapterTraining> adapters_of(const Plan& plan, const LearnerOptions& options) {
  const auto seed = static_cast<uint64_t>(plan.settings.seed);
  std::vector<AdapterTraining> adapters;
  for (const Tenant& tenant : plan.all_slots()) {
    if (!tenant.adapter.is_there()) continue;
    adapters.push_back(adapter_training_of(tenant, seed, options));
    adapters.back().is_free = plan.is_free(tenant.slot);
  }
  return adapters;
}

EngineOptions engine_for(EngineOptions options, std::span<const Tenant> tenants) {
  options.adapters_max = 0;
  int32_t num_slots = 0;
  int32_t largest_rank = 1;
  std::set<std::string> targets;
  for (const Tenant& tenant : tenants) {
    options.shares.push_back(tenant.share);
    if (!tenant.adapter.is_there()) continue;
    // A client samples from its snapshots and from the base model beside its moving weights. One
    // more is published before the oldest is dropped.
    constexpr size_t kNotKept = kSnapshotsMax - kClientSnapshotsMax + 1;
    const auto num_snapshots =
        tenant.snapshots == 0 ? 0 : static_cast<int32_t>(tenant.snapshots + kNotKept);
    options.adapters_max += 1 + num_snapshots;
    num_slots += 1 + std::min(num_snapshots, kSlotsForSnapshots);
    largest_rank = std::max(largest_rank, static_cast<int32_t>(tenant.adapter.rank));
    for (auto& target : named_targets(adapter_of(tenant, 0))) targets.insert(std::move(target));
  }
  if (options.adapters_max == 0) {
    options.adapter_slots = 0;
    return options;
  }
  options.max_adapter_rank = largest_rank;
  options.adapter_targets.assign(targets.begin(), targets.end());
  if (options.adapter_slots == 0) options.adapter_slots = num_slots;
  options.adapter_slots = std::min(options.adapter_slots, options.adapters_max);
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

void add_teacher_tokens(std::span<const Tenant> tenants, int64_t positions,
                        std::vector<MemoryPart>& parts) {
  constexpr double kBytesOfToken = sizeof(int32_t) + sizeof(float);
  for (const Tenant& tenant : tenants) {
    const int64_t top_k = tenant.teacher.top_k;
    if (top_k == 0) continue;
    const int64_t tokens = tenant.batch_size * sample_tokens(tenant, positions).all;
    // As many groups may wait for the trainer as its pool has, and the learner has a copy of one
    // batch.
    const int64_t batches = tenant.max_off_policy_steps + 2;
    parts.push_back(
        {fmt::format("{} likeliest tokens of a teacher at each of {} tokens, {} batches in flight "
                     "of tenant '{}', and a copy of one",
                     top_k, tokens, batches, tenant.name),
         kBytesOfToken * static_cast<double>((batches + 1) * tokens * top_k)});
  }
}

}  // namespace primerl
