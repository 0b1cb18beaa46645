/// Finds rollouts in the files that a run writes, also while it is running. Memory is bounded by
/// the number of rollouts that are asked for.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/result.h"
#include "runtime/query/step_filter.h"

namespace primerl {

enum class RolloutOrder { kNewest, kBest, kWorst };

struct RolloutQuery {
  RolloutOrder order = RolloutOrder::kNewest;
  size_t count_max = 3;
  std::string tenant;       // "": all
  std::string environment;  // "": all
  std::string end;          // "trained", ...; "any"
  std::optional<StepRange> steps;
};

struct FoundRollouts {
  std::vector<Json> rollouts;  // as in the file; of several tenants by tenant, unless sorted
  std::map<std::string, size_t> ends;  // of the lines that were read, how many ended how
  size_t num_unreadable = 0;           // lines that are no JSON object
};

/// A tenant of a run, as its graph file names it.
struct RunTenant {
  std::string name;
  std::string environment;  // "" when it has none
};

/// From graph.resolved.toml, without plugins.
Result<std::vector<RunTenant>> tenants_of_run(const std::filesystem::path& folder);

/// kNotFound: the run has no such tenant or environment, or none of its tenants has rollouts yet.
Result<FoundRollouts> find_rollouts(const std::filesystem::path& folder,
                                    const std::vector<RunTenant>& tenants,
                                    const RolloutQuery& query);

}  // namespace primerl
