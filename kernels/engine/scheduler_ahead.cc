// Plans a decode step before the tokens of the step in progress are known.
#include <algorithm>

#include "kernels/engine/batch_scheduler.h"

namespace primerl {

int32_t BatchScheduler::num_unknown_tokens(const Sequence& sequence) const {
  return num_in_progress_ > 0 && sequence.last_plan == num_plans_ ? 1 : 0;
}

bool BatchScheduler::samples_another(const Sequence& sequence) const {
  return static_cast<int32_t>(sequence.tokens.size()) + num_unknown_tokens(sequence) <
         sequence.request.sampling.max_tokens;
}

bool BatchScheduler::needs_block(const Sequence& sequence) const {
  const auto room = static_cast<int32_t>(sequence.blocks.size()) * limits_.options.block_size;
  return sequence.size() + num_unknown_tokens(sequence) > room;
}

bool BatchScheduler::can_grow_ahead() const {
  std::optional<TenantClaims> claims;  // claims after this step; copied only if a sequence grows
  int32_t num_blocks = 0;
  for (const Sequence* sequence : running_) {
    if (!samples_another(*sequence) || !needs_block(*sequence)) continue;
    if (!claims) claims = block_claims_;
    if (++num_blocks > pool_.num_free() || !may_grow(*sequence, *claims)) return false;
    claims->take(sequence->request.tenant, 1);
  }
  return true;
}

bool BatchScheduler::plan_ahead(StepPlan& plan) {
  CHECK(num_in_progress_ == 1, "plan_ahead() needs exactly one step in progress");
  if (!prefilling_.empty() || !copies_.empty() || can_admit()) return false;
  if (std::ranges::none_of(running_, [this](const auto* one) { return samples_another(*one); }) ||
      !can_grow_ahead())
    return false;
  begin(plan);
  int32_t budget = limits_.options.max_batched_tokens;
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (!samples_another(sequence)) continue;
    if (needs_block(sequence)) sequence.blocks.push_back(take_block(sequence.request.tenant));
    add_decode(plan, sequence);
    --budget;
  }
  group_by_adapter(plan, plan.rows.spans.size());
  ++num_plans_;
  ++num_in_progress_;
  return true;
}

}  // namespace primerl
