#include "kernels/engine/preemption.h"

#include <algorithm>
#include <optional>
#include <set>

namespace primerl {

template <class Visit>
void Preemption::visit_with_blocks(const Visit& visit) const {
  for (Sequence* one : table_.running) visit(*one);
  for (Sequence* one : table_.held)
    if (!one->blocks.empty()) visit(*one);
  for (const auto& prefill : table_.prefilling)
    for (Sequence* one : prefill->waiting) visit(*one);
}

/// All blocks before any row is planned: a sequence that is preempted has no row in this step.
size_t Preemption::grow_running(int32_t num_rows_max) {
  const auto max = static_cast<size_t>(num_rows_max);
  size_t count = 0;
  while (count < std::min(table_.running.size(), max)) {
    Sequence& sequence = *table_.running[count];
    if (!table_.needs_block(sequence)) {
      ++count;
      continue;
    }
    grow(sequence);
    // Some sequences before it may have been preempted.
    const auto behind = std::ranges::upper_bound(table_.running, &sequence, is_before);
    count = static_cast<size_t>(behind - table_.running.begin());
  }
  return count;
}

bool Preemption::grow(Sequence& sequence) {
  while (table_.blocks.pool.num_free() == 0 || !may_grow(sequence, table_.blocks.claims)) {
    Sequence& victim = victim_for(sequence);
    table_.preempt(victim);
    if (&victim == &sequence) return false;
  }
  sequence.blocks.push_back(table_.blocks.take(sequence.request.tenant));
  return true;
}

/// The first sequence of each tenant may also use blocks reserved for others. Otherwise it would be
/// preempted though no sequence needs its blocks, and be admitted again after a few tokens, in a
/// loop.
bool Preemption::may_grow(const Sequence& sequence, const TenantClaims& claims) const {
  if (claims.may_take(sequence.request.tenant, 1)) return true;
  bool is_first = true;
  visit_with_blocks([&](const Sequence& one) {
    if (one.request.tenant == sequence.request.tenant && is_before(&one, &sequence))
      is_first = false;
  });
  return is_first;
}

bool Preemption::can_grow_ahead() const {
  std::optional<TenantClaims> claims;  // claims after this step; copied only if a sequence grows
  int32_t num_blocks = 0;
  for (const Sequence* sequence : table_.running) {
    if (!table_.samples_another(*sequence) || !table_.needs_block(*sequence)) continue;
    if (!claims) claims = table_.blocks.claims;
    if (++num_blocks > table_.blocks.pool.num_free() || !may_grow(*sequence, *claims)) return false;
    claims->take(sequence->request.tenant, 1);
  }
  return true;
}

Sequence& Preemption::victim_for(Sequence& growing) const {
  const Sequence* first = nullptr;
  visit_with_blocks([&first](const Sequence& one) {
    if (first == nullptr || is_before(&one, first)) first = &one;
  });
  const auto num_beyond = [&](const Sequence& one) {
    const TenantSlot tenant = one.request.tenant;
    return table_.blocks.claims.num_beyond(tenant) + (tenant == growing.request.tenant ? 1 : 0);
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

void Preemption::preempt_readers(const StepPlan& plan) {
  std::set<int32_t> written;
  for (const int32_t row : plan.rows.cache_rows)
    written.insert(row / table_.limits.options.block_size);
  const auto was_to_be_written = [&written](int32_t block) { return written.contains(block); };
  std::vector<Sequence*> readers;
  for (const auto& prefill : table_.prefilling)
    if (std::ranges::find(plan.prefills, prefill.get()) == plan.prefills.end() &&
        std::ranges::any_of(prefill->blocks, was_to_be_written))
      readers.insert(readers.end(), prefill->waiting.begin(), prefill->waiting.end());
  for (Sequence* one : readers) table_.preempt(*one);
}

}  // namespace primerl
