/// WeightsKey: whose weights, and which of them. Versions are counted for each key apart, so two
/// tenants may have equal version numbers at the same time.
///
/// Values, any thread.
#pragma once

#include <fmt/format.h>

#include <compare>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/ids.h"
#include "graph/base/result.h"

namespace primerl {

/// What a tenant trains on top of weights that others share; 0 is no adapter: the whole weights.
using AdapterId = Id<struct AdapterTag>;
inline constexpr AdapterId kWholeWeights(0);

struct WeightsKey {
  TenantSlot tenant{0};
  AdapterId adapter = kWholeWeights;

  bool is_whole() const { return adapter == kWholeWeights; }
  friend constexpr auto operator<=>(WeightsKey, WeightsKey) = default;

  template <class F>
  static void fields(F& f) {
    f("tenant", &WeightsKey::tenant)("adapter", &WeightsKey::adapter);
  }
};

/// A version, and what it is a version of.
struct KeyedVersion {
  WeightsKey key;
  PolicyVersion version;
  friend constexpr auto operator<=>(const KeyedVersion&, const KeyedVersion&) = default;

  template <class F>
  static void fields(F& f) {
    f("key", &KeyedVersion::key)("version", &KeyedVersion::version);
  }
};

std::string to_string(WeightsKey key);               // "tenant 1", "adapter 2 of tenant 1"
std::string to_string(const KeyedVersion& version);  // "version 3 of tenant 1"

/// Keys that one engine or channel holds versions of: as many as a graph may have tenants.
inline constexpr size_t kWeightsKeysMax = 1024;

/// One version for each of at most kWeightsKeysMax keys.
class VersionsByKey {
 public:
  /// None: nothing of this key.
  PolicyVersion of(WeightsKey key) const;
  /// False, and nothing is changed: the key would be one too many.
  [[nodiscard]] bool set(WeightsKey key, PolicyVersion version);
  /// Likewise; a version that is not newer changes nothing.
  [[nodiscard]] bool raise(WeightsKey key, PolicyVersion version) {
    return version <= of(key) || set(key, version);
  }
  bool empty() const { return list_.empty(); }
  const std::vector<KeyedVersion>& list() const { return list_; }  // sorted by key
  friend bool operator==(const VersionsByKey&, const VersionsByKey&) = default;

  template <class F>
  static void fields(F& f) {
    f("list", &VersionsByKey::list_);
  }

 private:
  std::vector<KeyedVersion> list_;
};

/// A publisher's next version: those of one key rise, and keys are bounded.
Status check_rises(const VersionsByKey& published, const KeyedVersion& next);

/// "newest: version 3 of tenant 0, version 3 of tenant 1", of the first few.
std::string describe_newest(const VersionsByKey& newest);

/// What fetch() says when it does not hold `wanted`; `held` are the versions of its key.
Error not_in_channel(const KeyedVersion& wanted, std::span<const PolicyVersion> held);

}  // namespace primerl

template <>
struct fmt::formatter<primerl::WeightsKey> : fmt::formatter<std::string_view> {
  auto format(primerl::WeightsKey key, format_context& context) const {
    return fmt::formatter<std::string_view>::format(to_string(key), context);
  }
};

template <>
struct fmt::formatter<primerl::KeyedVersion> : fmt::formatter<std::string_view> {
  auto format(const primerl::KeyedVersion& version, format_context& context) const {
    return fmt::formatter<std::string_view>::format(to_string(version), context);
  }
};
