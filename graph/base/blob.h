/// Immutable bytes that travel beside a message: shared by pointer inside a process, one raw frame
/// between processes. Copying a Blob copies a pointer. Any thread may read it.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

namespace primerl {

class Blob {
 public:
  Blob() = default;
  /// Takes ownership of a buffer.
  explicit Blob(std::vector<std::byte> bytes) {
    auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    bytes_ = {owner->data(), owner->size()};
    owner_ = std::move(owner);
  }
  /// A view of bytes that `owner` keeps alive and that never change (a received frame, a mapping).
  Blob(std::shared_ptr<const void> owner, std::span<const std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}

  std::span<const std::byte> bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  /// Compares bytes, not owners.
  friend bool operator==(const Blob& a, const Blob& b) {
    return a.size() == b.size() &&
           (a.size() == 0 || std::memcmp(a.bytes_.data(), b.bytes_.data(), a.size()) == 0);
  }

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
};

}  // namespace primerl
