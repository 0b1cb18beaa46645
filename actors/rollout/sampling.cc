#include "actors/rollout/sampling.h"

#include "kernels/engine/kept_sets.h"

namespace primerl {

SamplingParams sampling_params(const TenantSampling& tenant) {
  return {.temperature = tenant.temperature,
          .top_k = static_cast<int32_t>(tenant.top_k),
          .top_p = tenant.top_p,
          .min_p = tenant.min_p,
          .ignore_eos = tenant.ignore_eos,
          .stop_ids = {tenant.stop_ids.begin(), tenant.stop_ids.end()},
          .stop = tenant.stop};
}

Status check_kept_of(const Blob& kept, std::span<const int32_t> tokens,
                     const TenantSampling& sampling) {
  const bool is_wanted =
      has_kept_sets(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p);
  if (is_wanted && kept.empty())
    return error(Code::kInvalid,
                 "sampled with top_k {}, top_p {} and min_p {}, but the engine sent no kept sets",
                 sampling.top_k, sampling.top_p, sampling.min_p);
  if (!is_wanted && !kept.empty())
    return error(Code::kInvalid, "the engine sent kept sets that were not requested");
  if (!is_wanted) return ok();
  return check_kept(kept.bytes(), tokens, INT32_MAX);
}

}  // namespace primerl
