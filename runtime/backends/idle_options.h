/// Options of engines and learners that change nothing in a setup, for the checker (G090). A file
/// may have them, so that it also runs on another device or with other tenants. Values that say
/// what happens anyway are not reported.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "graph/catalog.h"

namespace primerl {

using IdleOptions = std::vector<ResourceContract::IdleOption>;

/// `options`: EngineOptions, LearnerOptions and ScriptedEngineOptions; as in ResourceContract.
IdleOptions idle_engine_options(const void* options, const std::set<std::string>& devices,
                                std::span<const Tenant> tenants);
IdleOptions idle_learner_options(const void* options, const std::set<std::string>& devices,
                                 std::span<const Tenant> tenants);
IdleOptions idle_scripted_engine_options(const void* options, const std::set<std::string>& devices,
                                         std::span<const Tenant> tenants);
IdleOptions idle_scripted_learner_options(const void* options, const std::set<std::string>& devices,
                                          std::span<const Tenant> tenants);

}  // namespace primerl
