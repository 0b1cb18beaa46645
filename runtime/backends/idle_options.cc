#include "runtime/backends/idle_options.h"

#include <algorithm>

#include "kernels/engine/options.h"
#include "kernels/scripted/options.h"
#include "kernels/train/options.h"
#include "runtime/backends/tenant_options.h"

namespace primerl {
namespace {

bool is_only_on_cpu(const std::set<std::string>& devices) {
  return devices == std::set<std::string>{"cpu"};
}

bool has_adapters(std::span<const Tenant> tenants) {
  return std::ranges::any_of(tenants, [](const Tenant& each) { return each.adapter.is_there(); });
}

constexpr const char* kTrainsNoAdapter = "no tenant trains an adapter";
constexpr const char* kTrainAnAdapter =
    "add [tenant.<name>.adapter] with a rank, or remove the key";

/// The events of a prefix cache that does not exist.
void add_cache_options(const EngineOptions& engine, IdleOptions& idle) {
  if (engine.prefix_cache || engine.kv_events_bytes_max == 0) return;
  idle.push_back({"kv_events_bytes_max", "the engine has no prefix cache, so it has no events",
                  "write prefix_cache = true, or remove the key"});
}

/// Copies of adapters that always have a slot do not exist.
void add_adapter_options(const EngineOptions& engine, std::span<const Tenant> tenants,
                         IdleOptions& idle) {
  if (engine.adapter_host_bytes_max == 0) return;
  const EngineOptions planned = engine_for(engine, tenants);
  if (planned.adapters_max > planned.adapter_slots) return;
  idle.push_back({"adapter_host_bytes_max", "every adapter has a slot",
                  "write adapter_slots, fewer than there are adapters, or remove the key"});
}

/// Whether `has` is true for every tenant, after the values that tenants replace.
template <class Has>
bool holds_for_all(std::span<const Tenant> tenants, const LearnerOptions& learner, const Has& has) {
  return !tenants.empty() && std::ranges::all_of(tenants, [&](const Tenant& tenant) {
    return has(rules_of(tenant, learner));
  });
}

/// A tenant with another objective than the learner takes none of the learner's numbers.
void add_loss(const LearnerOptions& learner, std::span<const Tenant> tenants, IdleOptions& idle) {
  const auto has_another = [&](const TrainingRules& rules) {
    return rules.loss.kind != learner.loss.kind;
  };
  if (!holds_for_all(tenants, learner, has_another)) return;
  for (const char* option : {"clip_low", "clip_high", "advantage_weight", "kl_weight", "clip_dual",
                             "weight_low", "weight_high", "moment_max", "proximal_share",
                             "reference_weight", "jsd_beta", "mean", "mean_tokens"})
    idle.push_back({fmt::format("loss.{}", option), "all tenants have another objective",
                    "write it in [tenant.<name>] loss, or remove the key"});
}

/// The same of optimizers.
void add_optimizer(const LearnerOptions& learner, std::span<const Tenant> tenants,
                   IdleOptions& idle) {
  const auto has_another = [&](const TrainingRules& rules) {
    return rules.optimizer.kind != learner.optimizer.kind;
  };
  if (!holds_for_all(tenants, learner, has_another)) return;
  for (const char* option : {"beta1", "beta2", "epsilon", "momentum", "nesterov", "decay_rate",
                             "update_clip", "scale_min", "moments_dtype", "moments_on"})
    idle.push_back({fmt::format("optimizer.{}", option), "all tenants have another optimizer",
                    "write it in [tenant.<name>] optimizer, or remove the key"});
}

void add_schedule(const LearnerOptions& learner, std::span<const Tenant> tenants,
                  IdleOptions& idle) {
  const auto has_none = [](const TrainingRules& rules) {
    return rules.schedule.kind == "constant";
  };
  if (!holds_for_all(tenants, learner, has_none)) return;
  for (const char* option : {"decay_steps", "min_lr"})
    idle.push_back({fmt::format("schedule.{}", option),
                    "the schedule of all tenants is \"constant\"",
                    "write schedule.kind = \"linear\", \"cosine\" or \"wsd\", or remove the key"});
}

}  // namespace

IdleOptions idle_engine_options(const void* options, const std::set<std::string>& devices,
                                std::span<const Tenant> tenants) {
  const auto& engine = *static_cast<const EngineOptions*>(options);
  IdleOptions idle;
  add_cache_options(engine, idle);
  add_adapter_options(engine, tenants, idle);
  if (is_only_on_cpu(devices) && engine.numerics == "fast")
    idle.push_back({"numerics", "an engine on the CPU always has invariant numerics",
                    "write numerics = \"invariant\", or remove the key"});
  return idle;
}

IdleOptions idle_learner_options(const void* options, const std::set<std::string>& devices,
                                 std::span<const Tenant> tenants) {
  const auto& learner = *static_cast<const LearnerOptions*>(options);
  IdleOptions idle;
  add_loss(learner, tenants, idle);
  add_optimizer(learner, tenants, idle);
  add_schedule(learner, tenants, idle);
  if (!has_adapters(tenants))
    idle.push_back({"adapter_batch_tokens", kTrainsNoAdapter, kTrainAnAdapter});
  else if (!devices.contains("cpu"))
    idle.push_back({"adapter_batch_tokens",
                    "a CUDA device divides steps by 'micro_batch_tokens' alone",
                    "write micro_batch_tokens, or remove the key"});
  else if (is_only_on_cpu(devices) && learner.numerics == "fast")
    idle.push_back({"adapter_batch_tokens",
                    "on the CPU adapters compute together only with invariant numerics",
                    "write numerics = \"invariant\", or remove the key"});
  if (is_only_on_cpu(devices))
    idle.push_back({"device_snapshots", "the learner computes on the CPU",
                    "write device = \"cuda:0\" in its [place], or remove the key"});
  if (learner.debug.batch_folder.empty())
    idle.push_back({"debug.batches_max", "no batches are kept without 'debug.batch_folder'",
                    "write debug.batch_folder, or remove the key"});
  return idle;
}

IdleOptions idle_scripted_engine_options(const void* options, const std::set<std::string>&,
                                         std::span<const Tenant> tenants) {
  const auto& engine = *static_cast<const ScriptedEngineOptions*>(options);
  IdleOptions idle;
  add_adapter_options(engine, tenants, idle);
  if (engine.tail_fraction == 0)
    idle.push_back({"tail_factor", "'tail_fraction' is 0, so there are no stragglers",
                    "write tail_fraction above 0, or remove the key"});
  if (!has_adapters(tenants))
    idle.push_back({"adapter_load_cost", kTrainsNoAdapter, kTrainAnAdapter});
  return idle;
}

IdleOptions idle_scripted_learner_options(const void* options, const std::set<std::string>&,
                                          std::span<const Tenant> tenants) {
  IdleOptions idle;
  add_schedule(*static_cast<const ScriptedLearnerOptions*>(options), tenants, idle);
  if (!has_adapters(tenants))
    idle.push_back({"adapter_batch_tokens", kTrainsNoAdapter, kTrainAnAdapter});
  return idle;
}

}  // namespace primerl
