/// FileLock: an exclusive lock (flock) of a file or a folder, against other processes and other
/// locks of this process. It ends with the object, or with its process.
#pragma once

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <filesystem>

#include "graph/base/descriptor.h"

namespace primerl {

class FileLock {
 public:
  /// kNow: fails if another lock exists. kFree: waits until it is free.
  enum class When { kNow, kFree };

  FileLock(const std::filesystem::path& path, When when) : file_(opened(path)) {
    const int how = when == When::kNow ? LOCK_EX | LOCK_NB : LOCK_EX;
    is_held_ = is_open() && ::flock(file_.get(), how) == 0;
  }
  bool is_held() const { return is_held_; }
  /// The file exists. On a file system without locks, that is all that can be known.
  bool is_open() const { return file_.get() >= 0; }

 private:
  static Descriptor opened(const std::filesystem::path& path) {
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file >= 0 || errno != EISDIR) return Descriptor(file);
    return Descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }

  Descriptor file_;
  bool is_held_ = false;
};

/// Whether the file is locked exclusively; false if it cannot be opened.
inline bool is_locked(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return file.get() >= 0 && ::flock(file.get(), LOCK_SH | LOCK_NB) != 0;
}

}  // namespace primerl
