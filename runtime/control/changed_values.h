/// Which values of a run's graph differ from those of its last start: what --set, --overlay or
/// --max-steps changed when it was resumed.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/result.h"

namespace primerl {

/// At most this many are told; the graph of each start is in its folder as a whole.
inline constexpr size_t kChangedValuesMax = 200;
/// Entries of `resumes` in run.json; older ones are dropped.
inline constexpr size_t kResumesMax = 100;

struct ChangedValue {
  std::string key;     // "tenant.main.max_steps", "edges.forward.env.task -> rollout.task.capacity"
  std::string before;  // as TOML; "" where it was not written
  std::string now;     // likewise
  bool operator==(const ChangedValue&) const = default;
};

/// Of two canonical texts of a graph (graph.resolved.toml), by key. kCorrupt: one is no TOML.
Result<std::vector<ChangedValue>> changed_values(const std::string& before, const std::string& now);

/// The entry of a resume in run.json.
Json resume_entry(const std::string& time, int64_t incarnation,
                  const std::vector<ChangedValue>& changed);

}  // namespace primerl
