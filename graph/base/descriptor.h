/// Descriptor: an open file, socket or folder of the operating system that closes itself.
///
/// One owner. It can be moved, also to another thread.
#pragma once

#include <unistd.h>

#include <utility>

namespace primerl {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  /// Negative: nothing is open.
  int get() const { return fd_; }
  /// Gives up ownership: the caller closes it.
  int release() { return std::exchange(fd_, -1); }
  /// Closes now; false if the system could not, for example because a network disk is full.
  bool close() { return ::close(release()) == 0; }

 private:
  int fd_;
};

}  // namespace primerl
