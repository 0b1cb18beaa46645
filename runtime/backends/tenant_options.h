/// Combines the tables of tenants with the options of engines and learners: a tenant's values
/// override those of a resource. Plain functions, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "graph/base/memory_part.h"
#include "graph/plan.h"
#include "graph/tenant.h"
#include "kernels/engine/options.h"
#include "kernels/train/adapter_training.h"

namespace primerl {

/// The learner's rules, overridden by the tenant's own values.
TrainingRules rules_of(const Tenant& tenant, const LearnerOptions& options);
/// Why a learner cannot have these options, or cannot train `tenant` by them. The error quotes the
/// option, 'optimizer.momentum'.
Status validate_learner(const LearnerOptions& options);
Status check_tenant(const LearnerOptions& options, const Tenant& tenant);
/// The same for a ResourceContract; S is the type of its options.
template <class S>
Status validate_options(const void* options) {
  return validate_learner(*static_cast<const S*>(options));
}
template <class S>
Status check_tenant_of(const void* options, const Tenant& tenant) {
  return check_tenant(*static_cast<const S*>(options), tenant);
}

/// The tenant's adapter, which must exist; `seed` is the graph's.
AdapterConfig adapter_of(const Tenant& tenant, uint64_t seed);

/// The training of a tenant that has an adapter; `seed` is the graph's.
AdapterTraining adapter_training_of(const Tenant& tenant, uint64_t seed,
                                    const LearnerOptions& options);
/// One for each tenant of the plan that trains an adapter, then one for each free slot.
std::vector<AdapterTraining> adapters_of(const Plan& plan, const LearnerOptions& options);

/// The engine's options, with the tenants' shares, and with the slots, ranks and number of their
/// adapters. There are no more slots than adapters, and none without adapters.
EngineOptions engine_for(EngineOptions options, std::span<const Tenant> tenants);

/// Maximum tokens of a micro-batch that a learner may get from its tenants' batches, for a model
/// with `positions` positions: at most 'micro_batch_tokens', or one sample that is longer.
int64_t micro_batch_rows(const LearnerOptions& options, std::span<const Tenant> tenants,
                         int64_t positions);

/// Adds the likeliest tokens of teachers, if every token of the longest rollouts is sampled: those
/// of all groups in flight, max_off_policy_steps + 2 batches of them, and those of the learner's
/// samples of one batch.
void add_teacher_tokens(std::span<const Tenant> tenants, int64_t positions,
                        std::vector<MemoryPart>& parts);

}  // namespace primerl
