/// Handshake: compares the manifests of publisher and receivers, for every kind of channel.
///
/// Not thread-safe: guarded by the channel's lock.
#pragma once

#include <map>
#include <optional>

#include "kernels/weights/manifest.h"

namespace primerl {

class Handshake {
 public:
  /// Publisher: the tensors of a version to publish. All versions of a key must have the tensors of
  /// its first one; adapters of other ranks have other keys.
  Status offer(const WeightManifest& manifest, const KeyedVersion& version);
  /// Publisher: forgets the tensors of the key.
  void forget(WeightsKey key) { offered_.erase(key); }
  /// Receiver: the tensors of its engine; an empty manifest accepts all.
  Status expect(const WeightManifest& wanted);
  /// Receiver: whether it can apply a version with this manifest. Compared once for each manifest.
  Status accept(const WeightManifest& offered, uint64_t offered_hash);

 private:
  std::map<WeightsKey, WeightManifest> offered_;  // by this end
  std::optional<WeightManifest> wanted_;
  std::optional<uint64_t> accepted_;  // hash of the manifest that was compared and matches
};

}  // namespace primerl
