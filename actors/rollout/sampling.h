/// The sampling of the tenant as requests state it, and checks of its results. Pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "graph/base/blob.h"
#include "graph/base/result.h"
#include "graph/tenant.h"
#include "kernels/engine/sampling_params.h"

namespace primerl {

/// Each turn has its own max_tokens.
SamplingParams sampling_params(const TenantSampling& tenant);

/// Checks that a completion has kept sets exactly when they were requested, and that they contain
/// its tokens. The learner refuses ids beyond the vocabulary.
Status check_kept_of(const Blob& kept, std::span<const int32_t> tokens,
                     const TenantSampling& sampling);

}  // namespace primerl
