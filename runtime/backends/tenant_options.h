/// What the tables of tenants mean to engines and learners: their own values over those of a
/// resource. Plain functions, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/tenant.h"
#include "kernels/engine/options.h"
#include "kernels/train/adapter_training.h"

namespace primerl {

/// The learner's rules, with what the tenant wrote itself.
TrainingRules rules_of(const Tenant& tenant, const LearnerOptions& options);

/// The tenant's adapter, which is there; `seed` is the graph's.
AdapterConfig adapter_of(const Tenant& tenant, uint64_t seed);

/// One for each tenant that trains an adapter.
std::vector<AdapterTraining> adapters_of(std::span<const Tenant> tenants, uint64_t seed,
                                         const LearnerOptions& options);

/// The engine's options, with shares, and with slots, ranks and number of the tenants' adapters: no
/// more slots than adapters, and none where there is no adapter.
EngineOptions engine_for(EngineOptions options, std::span<const Tenant> tenants);

/// Tokens of the largest micro-batch that a learner may get of its tenants' batches, for a model of
/// so many `positions`: at most 'micro_batch_tokens', or one sample that is longer.
int64_t micro_batch_rows(const LearnerOptions& options, std::span<const Tenant> tenants,
                         int64_t positions);

}  // namespace primerl
