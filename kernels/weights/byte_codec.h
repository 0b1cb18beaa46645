/// Little-endian numbers and texts, one after the other, followed by a CRC-32C of all of them: the
/// encoding of manifests, records and link frames. Values, no threads; the reader checks
/// everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/base/crc32c.h"
#include "kernels/weights/weights_key.h"

namespace primerl {

class ByteWriter {
 public:
  template <class T>
  void number(T value) {
    for (size_t i = 0; i < sizeof(T); ++i)
      bytes_.push_back(static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i)));
  }
  void text(std::string_view text) { bytes(std::as_bytes(std::span(text))); }
  void key(WeightsKey key) {
    number(key.tenant.value);
    number(key.adapter.value);
  }
  void bytes(std::span<const std::byte> more) {
    number(static_cast<uint32_t>(more.size()));
    bytes_.insert(bytes_.end(), more.begin(), more.end());
  }
  std::vector<std::byte> take() {
    number(crc32c(bytes_));
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_;
};

/// After the end, or if the CRC is wrong, everything reads as zero and `is_good()` is false.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) {
    uint32_t check = 0;
    if (bytes.size() < sizeof check) return;
    left_ = bytes.last(sizeof check);
    is_good_ = true;
    check = number<uint32_t>();
    left_ = bytes.first(bytes.size() - sizeof check);
    is_good_ = crc32c(left_) == check;
  }
  template <class T>
  T number() {
    if (!has(sizeof(T))) return T{};
    uint64_t value = 0;
    for (size_t i = sizeof(T); i-- > 0;) value = value << 8 | static_cast<uint8_t>(left_[i]);
    left_ = left_.subspan(sizeof(T));
    return static_cast<T>(value);
  }
  WeightsKey key() {
    const TenantSlot tenant(number<uint32_t>());
    return {tenant, AdapterId(number<uint32_t>())};
  }
  /// A view of the input.
  std::span<const std::byte> bytes(size_t bytes_max) {
    const auto size = number<uint32_t>();
    if (size > bytes_max || !has(size)) {
      is_good_ = false;
      return {};
    }
    const auto taken = left_.first(size);
    left_ = left_.subspan(size);
    return taken;
  }
  std::string text(size_t bytes_max) {
    const auto taken = bytes(bytes_max);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }
  size_t num_left() const { return left_.size(); }
  bool is_good() const { return is_good_; }
  /// Everything was read, and no read went beyond the end.
  bool is_done() const { return is_good_ && left_.empty(); }

 private:
  bool has(size_t count) {
    is_good_ = is_good_ && count <= left_.size();
    return is_good_;
  }

  std::span<const std::byte> left_;
  bool is_good_ = false;
};

}  // namespace primerl
