#include "kernels/engine/kept_sets.h"

#include <algorithm>
#include <bit>

#include "graph/base/assert.h"
#include "kernels/engine/engine.h"

namespace primerl {
namespace {

constexpr int kNumberBytesMax = 5;  // 35 bits: more than an id or a count needs

void append_number(uint32_t number, std::vector<std::byte>& bytes) {
  for (; number >= 0x80; number >>= 7) bytes.push_back(static_cast<std::byte>(number | 0x80));
  bytes.push_back(static_cast<std::byte>(number));
}

size_t num_number_bytes(uint32_t number) {
  return number == 0 ? 1 : static_cast<size_t>(std::bit_width(number) + 6) / 7;
}

/// Reads a number from the front of `bytes` and removes it; -1 if there is no valid number.
int64_t take_number(std::span<const std::byte>& bytes) {
  int64_t number = 0;
  for (size_t i = 0; i < bytes.size() && i < kNumberBytesMax; ++i) {
    const auto byte = static_cast<int64_t>(bytes[i]);
    number |= (byte & 0x7F) << (7 * i);
    if ((byte & 0x80) != 0) continue;
    if (i > 0 && byte == 0) return -1;  // a shorter encoding of the same number exists
    bytes = bytes.subspan(i + 1);
    return number;
  }
  return -1;
}

/// Like take_number(), for bytes that were already checked.
inline int32_t next_number(const std::byte*& at) {
  auto number = static_cast<uint32_t>(*at) & 0x7F;
  for (int shift = 7; (static_cast<uint32_t>(*at++) & 0x80) != 0; shift += 7)
    number |= (static_cast<uint32_t>(*at) & 0x7F) << shift;
  return static_cast<int32_t>(number);
}

Error broken() { return error(Code::kCorrupt, "the kept sets are cut off or malformed"); }

}  // namespace

bool has_kept_sets(double temperature, int64_t top_k, double top_p, double min_p) {
  return temperature != 0 && (top_k > 0 || top_p < 1 || min_p > 0);
}

bool has_kept_sets(const SamplingParams& sampling) {
  return has_kept_sets(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p);
}

void append_kept(std::span<const int32_t> ids, int32_t vocab_size, std::vector<std::byte>& bytes) {
  if (ids.size() == static_cast<size_t>(vocab_size)) return append_all_kept(1, bytes);
  CHECK(!ids.empty(), "a token was sampled from an empty set");
  const size_t num_bitmap_bytes = static_cast<size_t>(ids.back()) / 8 + 1;
  size_t num_list_bytes = 0;
  int32_t next = 0;
  for (const int32_t id : ids) {
    num_list_bytes += num_number_bytes(static_cast<uint32_t>(id - next));
    next = id + 1;
  }
  if (num_list_bytes <= num_bitmap_bytes) {
    append_number(static_cast<uint32_t>(ids.size()) * 2 - 1, bytes);
    next = 0;
    for (const int32_t id : ids) {
      append_number(static_cast<uint32_t>(id - next), bytes);
      next = id + 1;
    }
    return;
  }
  append_number(static_cast<uint32_t>(num_bitmap_bytes) * 2, bytes);
  const size_t begin = bytes.size();
  bytes.resize(begin + num_bitmap_bytes);
  for (const int32_t id : ids)
    bytes[begin + static_cast<size_t>(id) / 8] |= std::byte{1} << (id % 8);
}

void append_all_kept(size_t count, std::vector<std::byte>& bytes) {
  bytes.resize(bytes.size() + count);
}

bool KeptSet::contains(int32_t token) const {
  if (keeps_all()) return true;
  if (token < 0 || token > largest_) return false;
  if (num_listed_ == 0) {
    const auto byte = bytes_[static_cast<size_t>(token) / 8];
    return (byte >> (token % 8) & std::byte{1}) != std::byte{0};
  }
  const std::byte* at = bytes_.data();
  int32_t id = -1;
  for (int32_t i = 0; i < num_listed_ && id < token; ++i) id += 1 + next_number(at);
  return id == token;
}

void KeptSet::list(std::vector<int32_t>& ids) const {
  ids.clear();
  if (num_listed_ > 0) {
    ids.resize(static_cast<size_t>(num_listed_));
    const std::byte* at = bytes_.data();
    int32_t before = -1;
    for (int32_t& id : ids) id = before += 1 + next_number(at);
    return;
  }
  for (size_t i = 0; i < bytes_.size(); ++i)
    for (auto bits = static_cast<uint32_t>(bytes_[i]); bits != 0; bits &= bits - 1)
      ids.push_back(static_cast<int32_t>(i * 8) + std::countr_zero(bits));
}

Result<KeptSet> KeptReader::next() {
  KeptSet set;
  const int64_t head = take_number(rest_);
  if (head < 0) return broken();
  if (head == 0) return set;
  if (head % 2 == 0) {
    const auto size = static_cast<size_t>(head / 2);
    if (size > rest_.size() || size > INT32_MAX / 8 || rest_[size - 1] == std::byte{0})
      return broken();
    set.bytes_ = rest_.first(size);
    rest_ = rest_.subspan(size);
    const auto last = static_cast<uint32_t>(set.bytes_.back());
    set.largest_ = static_cast<int32_t>(size - 1) * 8 + std::bit_width(last) - 1;
    return set;
  }
  // Each id needs at least one byte, so a large count over few bytes ends early.
  const int64_t count = (head + 1) / 2;
  if (count > static_cast<int64_t>(rest_.size())) return broken();
  const std::byte* begin = rest_.data();
  int64_t id = -1;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t between = take_number(rest_);
    id += 1 + between;
    if (between < 0 || id > INT32_MAX) return broken();
  }
  set.bytes_ = {begin, rest_.data()};
  set.num_listed_ = static_cast<int32_t>(count);
  set.largest_ = static_cast<int32_t>(id);
  return set;
}

Status check_kept(std::span<const std::byte> bytes, std::span<const int32_t> tokens,
                  int32_t vocab_size) {
  if (bytes.size() > kKeptBytesMax)
    return error(Code::kExhausted, "its kept sets have {} bytes, at most {} are accepted",
                 bytes.size(), kKeptBytesMax)
        .note("a smaller top_p or a larger min_p keeps fewer tokens");
  KeptReader reader(bytes);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (reader.is_at_end())
      return error(Code::kInvalid, "it has {} kept sets for {} sampled tokens", i, tokens.size());
    ASSIGN_OR_RETURN(const KeptSet set, reader.next());
    if (set.largest() >= vocab_size)
      return error(Code::kInvalid, "its kept set {} names token {}, outside the vocabulary of {}",
                   i, set.largest(), vocab_size);
    if (!set.contains(tokens[i]))
      return error(Code::kInvalid, "its sampled token {} ({}) is not in the set it was drawn from",
                   i, tokens[i]);
  }
  if (!reader.is_at_end())
    return error(Code::kInvalid, "it has more kept sets than its {} sampled tokens", tokens.size());
  return ok();
}

}  // namespace primerl
