/// WeightsKey: identifies weights by tenant and adapter. Versions are counted per key, so two
/// tenants may have equal version numbers at the same time.
///
/// A tenant has one moving key, whose versions follow each other, and for a client that trains also
/// snapshots: keys whose weights never change (docs/design/tinker.md).
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

/// The adapter that a tenant trains on shared weights; 0: whole weights, or the adapter of the
/// first tenant of its slot. Later tenants of the slot have the numbers of their tenancies
/// (graph/tenancies.h). Snapshots of a tenancy have its number + n * 2^14, n from 1.
using AdapterId = Id<struct AdapterTag>;
inline constexpr AdapterId kWholeWeights(0);

inline constexpr uint32_t kTenancyBits = 14;  // of an AdapterId; the others are the snapshot's n
/// Largest n. With the next one, the last tenancy would have AdapterId::none().
inline constexpr uint32_t kSnapshotNumberMax = (1U << (32 - kTenancyBits)) - 2;

struct WeightsKey {
  TenantSlot tenant{0};
  AdapterId adapter = kWholeWeights;

  bool is_whole() const { return adapter == kWholeWeights; }
  /// Whether its weights never change.
  bool is_snapshot() const { return snapshot_number() != 0; }
  /// From 1; 0: the key is a moving key.
  uint32_t snapshot_number() const { return adapter.value >> kTenancyBits; }
  /// The moving key of the tenancy; of a moving key itself.
  WeightsKey moving_key() const {
    return {tenant, AdapterId(adapter.value & ((1U << kTenancyBits) - 1))};
  }
  friend constexpr auto operator<=>(WeightsKey, WeightsKey) = default;

  template <class F>
  static void fields(F& f) {
    f("tenant", &WeightsKey::tenant)("adapter", &WeightsKey::adapter);
  }
};

/// The key of snapshot `n` of a tenancy, 1 <= n <= kSnapshotNumberMax (a CHECK).
WeightsKey snapshot_key(WeightsKey moving, uint32_t n);

/// A version with its key.
struct KeyedVersion {
  WeightsKey key;
  PolicyVersion version;
  friend constexpr auto operator<=>(const KeyedVersion&, const KeyedVersion&) = default;

  template <class F>
  static void fields(F& f) {
    f("key", &KeyedVersion::key)("version", &KeyedVersion::version);
  }
};

/// "tenant 1", "adapter 2 of tenant 1", "snapshot 3 of tenant 1", "snapshot 3 of adapter 2 of
/// tenant 1".
std::string to_string(WeightsKey key);
std::string to_string(const KeyedVersion& version);  // "version 3 of tenant 1"

/// Most keys of one engine or channel: the most tenants that a graph may have.
inline constexpr size_t kWeightsKeysMax = 8192;

/// One version for each of at most kWeightsKeysMax keys.
class VersionsByKey {
 public:
  /// none(): no version of this key.
  PolicyVersion of(WeightsKey key) const;
  /// False, without a change: too many keys.
  [[nodiscard]] bool set(WeightsKey key, PolicyVersion version);
  /// Drops the key; nothing happens if it has no version. Others may then have its place.
  void erase(WeightsKey key);
  /// As set(); a version that is not newer changes nothing.
  [[nodiscard]] bool raise(WeightsKey key, PolicyVersion version) {
    return version <= of(key) || set(key, version);
  }
  bool empty() const { return list_.empty(); }
  const std::vector<KeyedVersion>& list() const { return list_; }  // sorted by key
  /// Those of one tenant, in all its tenancies. Valid until the next change.
  std::span<const KeyedVersion> of_tenant(TenantSlot tenant) const;
  friend bool operator==(const VersionsByKey&, const VersionsByKey&) = default;

  template <class F>
  static void fields(F& f) {
    f("list", &VersionsByKey::list_);
  }

 private:
  std::vector<KeyedVersion> list_;
};

/// Checks a publisher's next version: versions of a key rise, and the number of keys is bounded.
Status check_rises(const VersionsByKey& published, const KeyedVersion& next);

/// "newest: version 3 of tenant 0, version 3 of tenant 1", for the first few keys.
std::string describe_newest(const VersionsByKey& newest);

/// The error of fetch() if it does not have `wanted`; `held` are the available versions of its key.
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
