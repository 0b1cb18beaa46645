/// The graph of a fork of a run whose tenants come and go: the tenants that were there at the
/// fork's step are tables of the new graph file (docs/design/hosted.md).
///
/// Training steps are counted for each tenant. The moment of the fork is when the first tenant
/// ended its training step N. Tenants that joined later, or had left before, are not in the fork.
/// Plain functions, any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

struct ForkedGraph {
  std::string text;  // the resolved graph with these tenants; "": that of the run has them
  std::map<std::string, uint32_t> tenancies;  // of tenants that had joined, by name; their folders
                                              // in the forked run have this number
  std::vector<std::string> notes;
};

/// `run`: a run folder. A run without a record that can be read has the tenants of its file. An
/// error says which tenant's table is missing.
Result<ForkedGraph> forked_graph(const std::filesystem::path& run, int64_t step);

}  // namespace primerl
