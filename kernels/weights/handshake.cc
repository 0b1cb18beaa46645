#include "kernels/weights/handshake.h"

#include <utility>

namespace primerl {

Status Handshake::offer(const WeightManifest& manifest, const KeyedVersion& version) {
  const auto& first = offered_.try_emplace(version.key, manifest).first->second;
  Status same = check_offered(first, manifest);
  if (same.ok()) return ok();
  return Error(same.error())
      .while_doing(fmt::format("{} has other tensors than earlier versions", version));
}

Status Handshake::expect(const WeightManifest& wanted) {
  if (wanted.empty()) return ok();
  if (!wanted_) wanted_ = wanted;
  accepted_.reset();
  Status same = check_offered(*wanted_, wanted);
  if (same.ok()) return ok();
  return Error(same.error())
      .while_doing("the receivers of one process do not expect the same tensors");
}

Status Handshake::accept(const WeightManifest& offered, uint64_t offered_hash) {
  if (!wanted_ || accepted_ == offered_hash) return ok();
  Status same = check_taken(*wanted_, offered);
  if (same.ok()) {
    accepted_ = offered_hash;
    return ok();
  }
  return Error(same.error()).while_doing("the published weights do not fit this engine");
}

}  // namespace primerl
