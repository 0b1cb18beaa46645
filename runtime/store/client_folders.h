/// ClientFolders: the folders that the clients of one tenant name, `clients/<tenant>/`.
///
///   begin("weights/a")   .filling/weights/a/ is made, empty; the learner fills it
///   commit("weights/a")  sync every file and folder -> rename to weights/a, or exchange with an
///                        older one, which is removed
///
/// So a folder is complete or does not exist. Paths are relative and were checked by the caller
/// (check_saved_name()). Thread-safe for calls of different paths; it has no state.
#pragma once

#include <filesystem>
#include <string_view>

#include "graph/base/files.h"

namespace primerl {

class ClientFolders {
 public:
  /// `folder`: `clients/<tenant>` of the run folder; made when needed.
  ClientFolders(FileOps& files, std::filesystem::path folder)
      : files_(files), folder_(std::move(folder)) {}

  /// A new empty folder to fill; remains of an earlier crash are removed.
  Result<std::filesystem::path> begin(std::string_view path);
  /// Until it returns ok, `path` is what it was. `weights_only`: the folder `weights/` in the
  /// filled one becomes `path`, and the rest is removed.
  Status commit(std::string_view path, bool weights_only);
  Status remove(std::string_view path);
  std::filesystem::path folder(std::string_view path) const { return folder_ / path; }

 private:
  std::filesystem::path filling(std::string_view path) const;
  /// Syncs all files below `folder`, then the folders.
  Status sync_tree(const std::filesystem::path& folder);

  FileOps& files_;
  const std::filesystem::path folder_;
};

}  // namespace primerl
