/// The weights of a scripted policy: one small tensor with a hash of the learner's history.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/weights/manifest.h"

namespace primerl {

/// The snapshot of a learner whose history hashes to `history`: "scripted.weight", U64 [4].
std::shared_ptr<const WeightSnapshot> scripted_snapshot(PolicyVersion version, uint64_t history);

/// The same for every scripted snapshot.
WeightManifest scripted_manifest();

/// Refuses unknown, missing and misshapen tensors; the error names them and both shapes.
Status check_scripted_tensors(const std::vector<WeightTensor>& tensors);

}  // namespace primerl
