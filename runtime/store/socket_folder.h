/// SocketFolder: the folder of one run's sockets, mode 0700, short enough for a socket's name.
///
///   $XDG_RUNTIME_DIR or /tmp / primerl-<user id> / <name> / lock, sockets
///
/// When $XDG_RUNTIME_DIR is missing, another user's, or too long for the names of sockets (107
/// bytes), the root is in /tmp; when that one is another user's, it is a new /tmp/primerl-XXXXXX,
/// which goes with the folder. why_elsewhere() says so.
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

/// Bytes of "p<process>.e<incarnation>.frames", with room for 4 and 6 digits.
inline constexpr size_t kSocketNameBytesMax = 20;

class SocketFolder {
 public:
  /// `root` empty: as above. kExists: another live run has the name. kInvalid: the root is not this
  /// user's alone. `below_bytes`: the longest name of a socket below the folder.
  static Result<std::unique_ptr<SocketFolder>> create(const std::filesystem::path& root,
                                                      const std::string& name,
                                                      size_t below_bytes = kSocketNameBytesMax);
  SocketFolder(const SocketFolder&) = delete;
  SocketFolder& operator=(const SocketFolder&) = delete;
  /// Removes the folder and all in it.
  ~SocketFolder();

  const std::filesystem::path& path() const { return path_; }
  /// Folders of runs that died without removing them, now gone.
  const std::vector<std::filesystem::path>& leftovers() const { return leftovers_; }
  /// One line for a person; empty when the folder is where it should be.
  const std::string& why_elsewhere() const { return why_elsewhere_; }

 private:
  SocketFolder(std::filesystem::path path, int lock, std::vector<std::filesystem::path> leftovers)
      : path_(std::move(path)), lock_(lock), leftovers_(std::move(leftovers)) {}
  static Result<std::unique_ptr<SocketFolder>> create_in(const std::filesystem::path& root,
                                                         const std::string& name);

  const std::filesystem::path path_;
  const int lock_;
  const std::vector<std::filesystem::path> leftovers_;
  std::filesystem::path own_root_;  // made for this folder alone; empty when shared
  std::string why_elsewhere_;
};

}  // namespace primerl
