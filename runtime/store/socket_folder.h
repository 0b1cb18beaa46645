/// SocketFolder: the folder of one run's sockets, mode 0700, with a path that is short enough for a
/// socket's name.
///
///   $XDG_RUNTIME_DIR or /tmp / primerl-<user id> / <name> / lock, sockets
///
/// The root is in /tmp when $XDG_RUNTIME_DIR is not set, belongs to another user, or is too long
/// for the names of sockets (107 bytes). If the root in /tmp belongs to another user, it is a new
/// /tmp/primerl-XXXXXX, which is removed with the folder. reason_for_other_root() says so.
///
/// The folder is locked as long as its owner lives, however the owner ends. create() removes
/// folders in the same root whose owners have died, and leftovers() names them. Owned by the
/// control plane; not thread-safe.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

/// Length of "p<process>.e<incarnation>.frames", with 4 and 6 digits.
inline constexpr size_t kSocketNameBytesMax = 20;

class SocketFolder {
 public:
  /// `root` empty: chosen as above. kExists: another live run has the name. kInvalid: other users
  /// can write the root. `below_bytes`: the longest name of a socket in the folder.
  static Result<std::unique_ptr<SocketFolder>> create(const std::filesystem::path& root,
                                                      const std::string& name,
                                                      size_t below_bytes = kSocketNameBytesMax);
  SocketFolder(const SocketFolder&) = delete;
  SocketFolder& operator=(const SocketFolder&) = delete;
  /// Removes the folder and everything in it.
  ~SocketFolder();

  const std::filesystem::path& path() const { return path_; }
  /// Folders of runs that died without removing them; create() has removed them.
  const std::vector<std::filesystem::path>& leftovers() const { return leftovers_; }
  /// One line for a person; empty when the folder is at the usual path.
  const std::string& reason_for_other_root() const { return reason_for_other_root_; }

 private:
  SocketFolder(std::filesystem::path path, int lock, std::vector<std::filesystem::path> leftovers)
      : path_(std::move(path)), lock_(lock), leftovers_(std::move(leftovers)) {}
  static Result<std::unique_ptr<SocketFolder>> create_in(const std::filesystem::path& root,
                                                         const std::string& name);

  const std::filesystem::path path_;
  const int lock_;
  const std::vector<std::filesystem::path> leftovers_;
  std::filesystem::path own_root_;  // made for this folder only; empty when shared
  std::string reason_for_other_root_;
};

}  // namespace primerl
