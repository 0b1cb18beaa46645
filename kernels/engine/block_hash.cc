#include "kernels/engine/block_hash.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

namespace primerl {
namespace {

enum Extra : uint8_t { kWeightsKeyExtra = 1, kSaltExtra = 2, kVersionExtra = 3 };

void append_bytes(std::vector<std::byte>& message, const void* bytes, size_t size) {
  const auto* first = static_cast<const std::byte*>(bytes);
  message.insert(message.end(), first, first + size);
}

void append(std::vector<std::byte>& message, std::string_view bytes) {
  append_bytes(message, bytes.data(), bytes.size());
}

void append_u32(std::vector<std::byte>& message, uint32_t value) {
  append_bytes(message, &value, sizeof(value));
}

void append_counted(std::vector<std::byte>& message, std::string_view bytes) {
  append_u32(message, static_cast<uint32_t>(bytes.size()));
  append(message, bytes);
}

}  // namespace

Status check_salt(std::string_view salt) {
  if (salt.size() > kSaltBytesMax)
    return error(Code::kInvalid, "the cache salt has {} bytes, at most {} are valid", salt.size(),
                 kSaltBytesMax);
  const bool is_printable =
      std::all_of(salt.begin(), salt.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (!is_printable)
    return error(Code::kInvalid,
                 "the cache salt has a character that is not printable ASCII, or a space");
  return ok();
}

BlockHasher::BlockHasher(std::string_view fingerprint, std::string_view layout, int32_t block_size)
    : block_size_(block_size) {
  append(message_, "primerl-graph/kv/v2");
  append_counted(message_, fingerprint);
  append_counted(message_, layout);
  append_u32(message_, static_cast<uint32_t>(block_size));
  root_ = stream_.hash(message_);
}

BlockName BlockChain::name() const {
  BlockName name;
  std::memcpy(&name.low, hash.data(), sizeof(name.low));
  std::memcpy(&name.high, hash.data() + sizeof(name.low), sizeof(name.high));
  return name;
}

BlockChain BlockHasher::next(const BlockChain& chain, std::span<const int32_t> tokens,
                             const BlockScope& scope) {
  CHECK(static_cast<int32_t>(tokens.size()) == block_size_, "only full blocks have names");
  message_.clear();
  append_bytes(message_, chain.hash.data(), chain.hash.size());
  append_u32(message_, static_cast<uint32_t>(tokens.size()));
  static_assert(std::endian::native == std::endian::little,
                "block names need a little-endian machine");
  append_bytes(message_, tokens.data(), tokens.size_bytes());
  message_.push_back(static_cast<std::byte>(kWeightsKeyExtra));
  append_u32(message_, 8);
  append_u32(message_, scope.key.tenant.value);
  append_u32(message_, scope.key.adapter.value);
  if (chain.num_blocks == 0 && !scope.salt.empty()) {
    message_.push_back(static_cast<std::byte>(kSaltExtra));
    append_counted(message_, scope.salt);
  } else if (chain.num_blocks == 0) {
    message_.push_back(static_cast<std::byte>(kVersionExtra));
    append_u32(message_, 8);
    append_bytes(message_, &scope.version.value, sizeof(scope.version.value));
  }
  return {stream_.hash(message_), chain.num_blocks + 1};
}

}  // namespace primerl
