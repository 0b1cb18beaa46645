#include "kernels/common/router_shape.h"

namespace primerl {

RouterShape router_shape(const MoeSpec& spec) {
  return {.num_experts = spec.num_experts,
          .experts_per_token = spec.experts_per_token,
          .is_sigmoid = spec.score == ExpertScore::kSigmoid,
          .num_groups = spec.num_groups,
          .groups_kept = spec.groups_kept,
          .is_normalized = spec.is_normalized,
          .epsilon = static_cast<float>(spec.epsilon),
          .scale = static_cast<float>(spec.scale)};
}

}  // namespace primerl
