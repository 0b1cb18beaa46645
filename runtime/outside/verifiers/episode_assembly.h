/// EpisodeAssembly: puts the deltas of one run together (dialect W2).
///
/// The server sends what has grown since its last delta, and a reply with the counts at the end.
/// Unknown keys are ignored in a delta and kept in a trace. Not thread-safe.
#pragma once

#include <map>
#include <string>

#include "graph/base/json.h"

namespace primerl {

class EpisodeAssembly {
 public:
  /// kCorrupt: the delta does not fit what came before; the run has failed then.
  Status add(const Json& delta);
  /// The reply as the other dialects have it: {"success": true, "episode": {..., "traces": []}}.
  /// kCorrupt: its counts differ from those of the deltas.
  Result<Json> finish(const Json& reply);
  size_t num_traces() const { return traces_.size(); }

 private:
  std::map<std::string, Json> traces_;
};

}  // namespace primerl
