/// SocketFolder: the folder of one run's sockets, mode 0700, short enough for a socket's name.
///
///   $XDG_RUNTIME_DIR or /tmp / primerl-<user id> / <name> / lock, sockets
///
/// The folder holds a lock as long as its owner lives, however the owner ends. create() removes the
/// folders below the same root whose owners have died, and says which. Owned by the control plane;
/// not thread-safe.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

class SocketFolder {
 public:
  /// `root` empty: as above. kExists: another live run has the name. kInvalid: the root is not this
  /// user's alone.
  static Result<std::unique_ptr<SocketFolder>> create(const std::filesystem::path& root,
                                                      const std::string& name);
  SocketFolder(const SocketFolder&) = delete;
  SocketFolder& operator=(const SocketFolder&) = delete;
  /// Removes the folder and all in it.
  ~SocketFolder();

  const std::filesystem::path& path() const { return path_; }
  /// Folders of runs that died without removing them, now gone.
  const std::vector<std::filesystem::path>& leftovers() const { return leftovers_; }

 private:
  SocketFolder(std::filesystem::path path, int lock, std::vector<std::filesystem::path> leftovers)
      : path_(std::move(path)), lock_(lock), leftovers_(std::move(leftovers)) {}

  const std::filesystem::path path_;
  const int lock_;
  const std::vector<std::filesystem::path> leftovers_;
};

}  // namespace primerl
