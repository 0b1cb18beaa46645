/// Tenants whose files were removed from a run folder, `removed_tenants.jsonl`. A run that follows
/// its record repeats what they did. It must not write their files again.
///
/// The control plane adds a tenant before it removes the files, and processes that follow a record
/// read the list. Names of tenancies never come back, so no entry is removed.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "graph/base/files.h"

namespace primerl {

struct RemovedTenant {
  std::string name;               // in files: "alice~2"
  bool with_checkpoints = false;  // and what clients saved; else only rollouts and evaluations
  friend bool operator==(const RemovedTenant&, const RemovedTenant&) = default;
};

/// Empty if there is no list, or if it cannot be read. A line that cannot be read is left out.
std::vector<RemovedTenant> removed_tenants(const std::filesystem::path& run_folder);
/// Synced when it returns ok. A repeated tenant changes nothing; nor does an error, for example if
/// the list cannot be read.
Status add_removed(FileOps& files, const std::filesystem::path& run_folder,
                   const RemovedTenant& tenant);

/// Its line files, below the run folder. `layout_tenants`: see Plan.
std::vector<std::string> line_files_of(const RemovedTenant& tenant, size_t layout_tenants);
/// Its checkpoints and what clients saved, if they were removed too.
std::vector<std::filesystem::path> folders_of(const std::filesystem::path& run_folder,
                                              const RemovedTenant& tenant, size_t layout_tenants);

}  // namespace primerl
