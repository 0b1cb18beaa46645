/// Finds rollouts in the files of a run, also while it runs. Memory is bounded by the number of
/// requested rollouts.
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
  std::vector<Json> rollouts;  // as in the file; with several tenants grouped by tenant, unless
                               // sorted
  std::map<std::string, size_t> ends;  // number of read lines by how the rollout ended
  size_t num_unreadable = 0;           // lines that are not a JSON object
};

/// A tenant of a run, as its graph file names it; one that joined by its later use of the name,
/// "alice~2".
struct RunTenant {
  std::string name;
  std::string environment;                // "" without one, or with several
  std::vector<std::string> environments;  // the names of several
  bool has_own_files = false;             // the run folder is laid out for several tenants
};

/// From graph.resolved.toml, without plugins.
Result<std::vector<RunTenant>> tenants_of_run(const std::filesystem::path& folder);

/// kNotFound: the run has no such tenant or environment, or none of its tenants has rollouts yet.
Result<FoundRollouts> find_rollouts(const std::filesystem::path& folder,
                                    const std::vector<RunTenant>& tenants,
                                    const RolloutQuery& query);

}  // namespace primerl
