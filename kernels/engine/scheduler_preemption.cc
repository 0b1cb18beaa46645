// Growth of sequences by a block, and preemption for it.
#include <algorithm>
#include <set>

#include "kernels/engine/batch_scheduler.h"

namespace primerl {

template <class Visit>
void BatchScheduler::visit_with_blocks(const Visit& visit) const {
  for (Sequence* one : running_) visit(*one);
  for (Sequence* one : held_)
    if (!one->blocks.empty()) visit(*one);
  for (const auto& prefill : prefilling_)
    for (Sequence* one : prefill->waiting) visit(*one);
}

/// All blocks before any row is planned: a sequence that is preempted has no row in this step.
size_t BatchScheduler::grow_running(int32_t num_rows_max) {
  const auto max = static_cast<size_t>(num_rows_max);
  size_t count = 0;
  while (count < std::min(running_.size(), max)) {
    Sequence& sequence = *running_[count];
    if (!needs_block(sequence)) {
      ++count;
      continue;
    }
    grow(sequence);
    // Some sequences before it may have been preempted.
    const auto behind = std::ranges::upper_bound(running_, &sequence, is_before);
    count = static_cast<size_t>(behind - running_.begin());
  }
  return count;
}

bool BatchScheduler::grow(Sequence& sequence) {
  while (pool_.num_free() == 0 || !may_grow(sequence, block_claims_)) {
    Sequence& victim = victim_for(sequence);
    preempt(victim);
    if (&victim == &sequence) return false;
  }
  sequence.blocks.push_back(take_block(sequence.request.tenant));
  return true;
}

/// The first sequence of each tenant may also use blocks reserved for others. Otherwise it would be
/// preempted though no sequence needs its blocks, and be admitted again after a few tokens, in a
/// loop.
bool BatchScheduler::may_grow(const Sequence& sequence, const TenantClaims& claims) const {
  if (claims.may_take(sequence.request.tenant, 1)) return true;
  bool is_first = true;
  visit_with_blocks([&](const Sequence& one) {
    if (one.request.tenant == sequence.request.tenant && is_before(&one, &sequence))
      is_first = false;
  });
  return is_first;
}

Sequence& BatchScheduler::victim_for(Sequence& growing) const {
  const Sequence* first = nullptr;
  visit_with_blocks([&first](const Sequence& one) {
    if (first == nullptr || is_before(&one, first)) first = &one;
  });
  const auto num_beyond = [&](const Sequence& one) {
    const TenantSlot tenant = one.request.tenant;
    return block_claims_.num_beyond(tenant) + (tenant == growing.request.tenant ? 1 : 0);
  };
  Sequence* victim = nullptr;
  int32_t most_beyond = 0;
  visit_with_blocks([&](Sequence& one) {
    if (&one == first) return;
    const int32_t beyond = num_beyond(one);
    if (victim != nullptr &&
        (beyond < most_beyond || (beyond == most_beyond && is_before(&one, victim))))
      return;
    victim = &one;
    most_beyond = beyond;
  });
  return victim == nullptr ? growing : *victim;
}

void BatchScheduler::preempt(Sequence& sequence) {
  ++totals_.num_preemptions;
  has_preempted_ = true;
  give_slot_back(sequence);
  if (sequence.state == Sequence::State::kHeld) {  // it waits for take_over() first
    release(sequence.blocks, sequence.request.tenant);
    return;
  }
  leave(sequence);
  release(sequence.blocks, sequence.request.tenant);
  enqueue(sequence);
}

void BatchScheduler::preempt_readers(const StepPlan& plan) {
  std::set<int32_t> written;
  for (const int32_t row : plan.rows.cache_rows) written.insert(row / limits_.options.block_size);
  const auto was_to_be_written = [&written](int32_t block) { return written.contains(block); };
  std::vector<Sequence*> readers;
  for (const auto& prefill : prefilling_)
    if (std::ranges::find(plan.prefills, prefill.get()) == plan.prefills.end() &&
        std::ranges::any_of(prefill->blocks, was_to_be_written))
      readers.insert(readers.end(), prefill->waiting.begin(), prefill->waiting.end());
  for (Sequence* one : readers) preempt(*one);
}

}  // namespace primerl
