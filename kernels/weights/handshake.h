/// Handshake: one end's part in comparing manifests, the same for every channel.
///
/// Not thread-safe: the channel's lock guards it.
#pragma once

#include <map>
#include <optional>

#include "kernels/weights/manifest.h"

namespace primerl {

class Handshake {
 public:
  /// Publisher: the tensors of a version to publish. Those of the first version of a key stand for
  /// good; adapters of other ranks are other keys.
  Status offer(const WeightManifest& manifest, const KeyedVersion& version);
  /// Receiver: what its engine holds; an empty manifest says nothing.
  Status expect(const WeightManifest& wanted);
  /// Receiver: whether a version with this manifest may be taken. Compared once for each manifest.
  Status accept(const WeightManifest& offered, uint64_t offered_hash);

 private:
  std::map<WeightsKey, WeightManifest> offered_;  // by this end
  std::optional<WeightManifest> wanted_;
  std::optional<uint64_t> accepted_;  // hash of the manifest that was compared and is good
};

}  // namespace primerl
