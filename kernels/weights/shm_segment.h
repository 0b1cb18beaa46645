/// ShmSegment: one named piece of POSIX shared memory, mapped, with locks that die with their
/// owner.
///
/// The locks are Linux's open-file-description locks: the kernel lets go of them when the last
/// descriptor closes, also by kill -9, so that a dead end never counts as one that holds something.
/// Taking a lock never waits. Names are listed in /dev/shm. Not thread-safe but for bytes().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

class ShmSegment {
 public:
  enum class Access { kRead, kWrite };
  enum class Lock { kShared, kExclusive, kNone };

  /// A new segment, readable by its user alone, with all its memory reserved. kExists when there is
  /// one of this name, kExhausted when memory is not enough.
  static Result<std::unique_ptr<ShmSegment>> create(const std::string& name, size_t num_bytes);
  /// An existing one. kNotFound when there is none. One that its maker has not sized yet is
  /// kUnavailable to a reader and has no bytes for a writer.
  static Result<std::unique_ptr<ShmSegment>> open(const std::string& name, Access access);
  /// The segment of this name, made when there is none, with lock `which` held exclusively before
  /// anything else is done to it; sized when it is empty (its maker died). kExists when another end
  /// holds the lock.
  static Result<std::unique_ptr<ShmSegment>> claim(const std::string& name, size_t num_bytes,
                                                   uint8_t which);
  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  const std::string& name() const { return name_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Of a segment that was created or opened to write.
  std::span<std::byte> writable() const { return {data_, size_}; }

  /// Changes this end's lock number `which`; false when another end's lock is in the way. An
  /// exclusive lock needs Access::kWrite.
  bool lock(uint8_t which, Lock kind);
  /// Whether another end holds lock number `which` exclusively.
  bool is_locked(uint8_t which) const;
  /// Whether the name still leads here: false after remove().
  bool is_named() const;
  /// Takes the name away; the memory goes with its last mapping.
  void remove() const;

 private:
  ShmSegment(std::string name, int descriptor) : name_(std::move(name)), descriptor_(descriptor) {}
  Status reserve(size_t num_bytes) const;
  Result<size_t> size_now() const;
  Status map(size_t num_bytes, Access access);

  const std::string name_;
  const int descriptor_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Names of all segments that begin with `prefix`, sorted.
std::vector<std::string> shm_names(const std::string& prefix);
/// Its memory, 0 when it is gone.
size_t shm_size(const std::string& name);
/// Takes a name away, whether or not it is there.
void shm_remove(const std::string& name);

}  // namespace primerl
