#include "kernels/weights/weights_key.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace primerl {
namespace {

/// The position of `key` in a sorted list, or where it would be inserted.
template <class List>
auto place_of(List& list, WeightsKey key) {
  return std::lower_bound(
      list.begin(), list.end(), key,
      [](const KeyedVersion& one, WeightsKey other) { return one.key < other; });
}

}  // namespace

WeightsKey snapshot_key(WeightsKey moving, uint32_t n) {
  CHECK(!moving.is_snapshot(), "a snapshot of a snapshot");
  CHECK(n >= 1 && n <= kSnapshotNumberMax, "the number of a snapshot is out of range");
  return {moving.tenant, AdapterId(moving.adapter.value + (n << kTenancyBits))};
}

std::string to_string(WeightsKey key) {
  if (key.is_snapshot())
    return fmt::format("snapshot {} of {}", key.snapshot_number(), key.moving_key());
  return key.is_whole() ? fmt::format("tenant {}", key.tenant)
                        : fmt::format("adapter {} of tenant {}", key.adapter, key.tenant);
}

std::string to_string(const KeyedVersion& version) {
  return fmt::format("version {} of {}", version.version, version.key);
}

PolicyVersion VersionsByKey::of(WeightsKey key) const {
  const auto place = place_of(list_, key);
  return place != list_.end() && place->key == key ? place->version : PolicyVersion();
}

bool VersionsByKey::set(WeightsKey key, PolicyVersion version) {
  const auto place = place_of(list_, key);
  if (place != list_.end() && place->key == key) {
    place->version = version;
    return true;
  }
  if (list_.size() >= kWeightsKeysMax) return false;
  list_.insert(place, {key, version});
  return true;
}

void VersionsByKey::erase(WeightsKey key) {
  const auto place = place_of(list_, key);
  if (place != list_.end() && place->key == key) list_.erase(place);
}

std::span<const KeyedVersion> VersionsByKey::of_tenant(TenantSlot tenant) const {
  const auto first = place_of(list_, {tenant, AdapterId(0)});
  const auto last = std::find_if(first, list_.end(),
                                 [&](const KeyedVersion& one) { return one.key.tenant != tenant; });
  return {first, last};
}

Status check_rises(const VersionsByKey& published, const KeyedVersion& next) {
  const PolicyVersion newest = published.of(next.key);
  if (!newest.is_none() && next.version <= newest)
    return error(Code::kInvalid, "{} was published after version {}", next, newest)
        .note("published versions rise");
  if (newest.is_none() && published.list().size() >= kWeightsKeysMax)
    return error(Code::kExhausted, "{} cannot be published: the channel has weights of {} others",
                 next, kWeightsKeysMax)
        .note("a weight channel serves as many tenants as a graph may have");
  return ok();
}

std::string describe_newest(const VersionsByKey& newest) {
  constexpr size_t kNamedMax = 8;
  const auto& list = newest.list();
  if (list.empty()) return "nothing was published yet";
  const auto named = std::span(list).first(std::min(list.size(), kNamedMax));
  return fmt::format("newest: {}{}", fmt::join(named, ", "),
                     list.size() > kNamedMax ? ", ..." : "");
}

Error not_in_channel(const KeyedVersion& wanted, std::span<const PolicyVersion> held) {
  return error(Code::kNotFound, "{} is not in the weight channel", wanted)
      .note(held.empty()
                ? fmt::format("nothing of {} was published yet", wanted.key)
                : fmt::format("it has versions {} of {}", fmt::join(held, ", "), wanted.key));
}

}  // namespace primerl
