/// ContentStore: large payloads of a trace, one file each, named by the SHA-256 of their content:
/// `trace/blobs/<64 hex digits>`. Equal bytes are stored once, even if several processes store
/// them. Content is hashed again when it is read, so damaged content is never returned.
///
/// Any thread, and several processes on one folder: a file appears by rename, when it is complete.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/result.h"
#include "graph/base/sha256.h"

namespace primerl {

using ContentHash = Sha256;

std::string to_hex(const ContentHash& hash);
/// None unless it is 64 lower-case hex digits.
std::optional<ContentHash> content_hash_from_hex(std::string_view text);

class ContentStore {
 public:
  /// `folder` is created, with mode 0700, when the first bytes are stored. `syncs`: stored bytes
  /// survive a power failure.
  explicit ContentStore(std::filesystem::path folder, bool syncs = false)
      : folder_(std::move(folder)), syncs_(syncs) {}

  Result<ContentHash> store(std::span<const std::byte> bytes) const;
  /// kNotFound, or kCorrupt when the content has another hash.
  Result<std::vector<std::byte>> load(const ContentHash& hash) const;
  bool has(const ContentHash& hash) const;
  /// All stored hashes, in order of name; other files are ignored.
  Result<std::vector<ContentHash>> list() const;
  std::filesystem::path path_of(const ContentHash& hash) const { return folder_ / to_hex(hash); }

 private:
  const std::filesystem::path folder_;
  const bool syncs_;
};

}  // namespace primerl
