/// ShmSegment: one named segment of POSIX shared memory, mapped, with locks that end with their
/// owner.
///
/// The locks are Linux's open-file-description locks. The kernel releases them when the last
/// descriptor closes, also after kill -9, so a dead end never has a lock. Acquiring a lock never
/// waits. Names are listed in /dev/shm. Not thread-safe except bytes().
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

  /// A new segment, readable only by its user, with all its memory reserved. kExists if the name
  /// exists, kExhausted if there is not enough memory.
  static Result<std::unique_ptr<ShmSegment>> create(const std::string& name, size_t num_bytes);
  /// An existing segment. kNotFound if there is none. If its creator has not sized it yet, a reader
  /// gets kUnavailable and a writer gets no bytes.
  static Result<std::unique_ptr<ShmSegment>> open(const std::string& name, Access access);
  /// The segment of this name, created if it is missing. Lock `which` is acquired exclusively
  /// before any other access; an empty segment (its creator died) is sized. kExists if another end
  /// has the lock.
  static Result<std::unique_ptr<ShmSegment>> claim(const std::string& name, size_t num_bytes,
                                                   uint8_t which);
  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  const std::string& name() const { return name_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Only for a segment that was created or opened for writing.
  std::span<std::byte> writable() const { return {data_, size_}; }

  /// Changes this end's lock number `which`; false if another end's lock conflicts. An exclusive
  /// lock needs Access::kWrite.
  bool lock(uint8_t which, Lock kind);
  /// Whether another end has lock number `which` exclusively.
  bool is_locked(uint8_t which) const;
  /// Whether the name still refers to this segment: false after remove().
  bool is_named() const;
  /// Removes the name; the memory is freed with its last mapping.
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
/// Its size in bytes, 0 if it does not exist.
size_t shm_size(const std::string& name);
/// Removes a name, if it exists.
void shm_remove(const std::string& name);

}  // namespace primerl
