/// HttpKeys: who may use a listener. A file has one key per line, `KEY` or `KEY TENANT`; lines that
/// begin with '#' and empty lines are skipped.
///
/// It keeps digests, so that neither memory dumps nor timing show a key. Immutable, any thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

inline constexpr size_t kHttpKeysMax = 10'000;
inline constexpr int64_t kHttpKeysFileBytesMax = int64_t{4} << 20;
inline constexpr size_t kHttpKeyBytesMin = 16;
inline constexpr size_t kHttpKeyBytesMax = 256;

class HttpKeys {
 public:
  /// Without keys: everyone may.
  HttpKeys() = default;
  /// Errors name the file and the line, never a key. A tenant of a key must be one of `tenants`,
  /// and each key begins with `prefix`.
  static Result<HttpKeys> read(const std::string& file, std::span<const std::string> tenants,
                               std::string_view prefix = {});

  /// Keys that another object knows: `holder_of` returns the tenant of a key. It is called on the
  /// thread of tenant_of().
  using HolderOf = std::function<std::optional<std::string>(std::string_view key)>;
  static HttpKeys asking(HolderOf holder_of);

  bool is_open() const { return tenants_.empty() && holder_of_ == nullptr; }
  size_t count() const { return tenants_.size(); }
  /// The tenant of the key in an Authorization header, "Bearer KEY"; empty: any tenant. No value if
  /// the key is unknown.
  std::optional<std::string> tenant_of(std::string_view authorization) const;

 private:
  std::map<std::string, std::string> tenants_;  // by the SHA-256 of the key
  HolderOf holder_of_;                          // null: tenants_ counts
};

}  // namespace primerl
