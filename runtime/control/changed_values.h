/// The values of a run's graph that differ from those of its last start: changes by --set,
/// --overlay or --max-steps when the run was resumed.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/result.h"

namespace primerl {

/// Further changes are not listed. Each start's folder has its complete graph.
inline constexpr size_t kChangedValuesMax = 200;
/// Entries of `resumes` in run.json; older ones are dropped.
inline constexpr size_t kResumesMax = 100;

struct ChangedValue {
  std::string key;     // "tenant.main.max_steps", "edges.forward.env.task -> rollout.task.capacity"
  std::string before;  // as TOML; "" if the value was not written
  std::string now;     // as TOML; "" if the value was not written
  bool operator==(const ChangedValue&) const = default;
};

/// Every value of a canonical text of a graph (graph.resolved.toml) by its key, as TOML. kCorrupt:
/// it is not valid TOML.
Result<std::map<std::string, std::string>> graph_values(const std::string& text);

/// Compares two canonical texts of a graph (graph.resolved.toml), by key. kCorrupt: one of them is
/// not valid TOML.
Result<std::vector<ChangedValue>> changed_values(const std::string& before, const std::string& now);

/// The entry of a resume in run.json.
Json resume_entry(const std::string& time, int64_t incarnation,
                  const std::vector<ChangedValue>& changed);

}  // namespace primerl
