#include "kernels/engine/admission.h"

#include <algorithm>

namespace primerl {

bool Admission::can_admit() const {
  if (table_.waiting.empty()) return false;
  Sequence* const next = next_to_admit();
  if (next == nullptr) return false;
  const int32_t free = table_.blocks.pool.num_free() - num_reserved(*next, std::nullopt);
  return has_room(*next, table_.blocks.pool.num_blocks() - table_.blocks.pool.num_free(),
                  [free](int32_t count) { return count <= free; });
}

PrefillTask& Admission::admit() {
  Sequence& sequence = *next_to_admit();
  table_.leave(sequence);
  table_.run_claims.take(sequence.request.tenant, 1);
  if (sequence.adapter != kNoAdapter) table_.slots.hold(sequence.adapter);
  sequence.has_slot = sequence.adapter != kNoAdapter;
  const bool is_recomputed = sequence.began.has_value();
  if (!is_recomputed) sequence.began = table_.versions.of(sequence.request.key());
  PrefillTask* prefill = shared_prefill(sequence);
  const bool is_shared = prefill != nullptr;
  if (!is_shared) {
    prefill = &new_prefill(sequence);
    prefill->is_recomputed = is_recomputed;
  }
  sequence.chains = {};
  const int32_t num_cached = is_shared ? sequence.size() - 1 : prefill->num_computed;
  if (!is_recomputed) sequence.num_cached_tokens = num_cached;
  if (!is_recomputed && !is_shared && !prefill->scores_prompt) {
    table_.totals.num_prefix_queries += static_cast<uint64_t>(sequence.size());
    table_.totals.num_prefix_hits += static_cast<uint64_t>(num_cached);
  }
  sequence.prefill = prefill;
  prefill->waiting.push_back(&sequence);
  sequence.state = Sequence::State::kPrefilling;
  ++table_.num_prefilling;
  return *prefill;
}

const std::optional<AdapterSlots::Load>& Admission::next_load() {
  if (table_.slots.coming()) return table_.slots.coming();
  const Sequence* first = first_without_slot();
  const int32_t slot = first == nullptr ? AdapterSlots::kNone : slot_for(*first);
  if (slot != AdapterSlots::kNone) table_.slots.begin(first->adapter, slot);
  return table_.slots.coming();
}

PrefillTask* Admission::shared_prefill(const Sequence& sequence) const {
  if (!sequence.tokens.empty()) return nullptr;
  const SequenceRequest& request = sequence.request;
  const PolicyVersion version = table_.versions.of(request.key());
  for (const auto& prefill : table_.prefilling) {
    const Sequence& first = prefill->first();
    if (first.prompt_hash == sequence.prompt_hash && first.tokens.empty() &&
        first.began == sequence.began.value_or(version) && first.request.key() == request.key() &&
        first.request.salt == request.salt &&
        (prefill->scores_prompt || !sequence.needs_prompt_logprobs()) &&
        (sequence.num_prompt_top() == 0 || prefill->num_prompt_top == sequence.num_prompt_top()) &&
        first.request.prompt_tokens == request.prompt_tokens)
      return prefill.get();
  }
  return nullptr;
}

PrefillTask& Admission::new_prefill(Sequence& sequence) {
  const TenantSlot tenant = sequence.request.tenant;
  PrefillTask& prefill = *table_.prefilling.emplace_back(std::make_unique<PrefillTask>());
  prefill.num_tokens = sequence.size();
  prefill.scores_prompt = sequence.needs_prompt_logprobs();
  prefill.num_prompt_top = sequence.num_prompt_top();
  prefill.publishes = table_.limits.options.prefix_cache &&
                      sequence.began == table_.versions.of(sequence.request.key());
  prefill.chain = table_.blocks.hasher.begin();
  const int32_t num_cached = table_.blocks.num_cached(sequence);
  for (int32_t i = 0; i < num_cached; ++i) {
    prefill.chain = sequence.chains[static_cast<size_t>(i)];
    prefill.blocks.push_back(table_.blocks.pool.find(prefill.chain.name()));
    table_.blocks.hold(prefill.blocks.back(), tenant);
  }
  while (static_cast<int32_t>(prefill.blocks.size()) < table_.blocks.blocks_for(prefill.num_tokens))
    prefill.blocks.push_back(table_.blocks.take(tenant));
  prefill.num_found = num_cached;
  prefill.num_computed = num_cached * table_.limits.options.block_size;
  return prefill;
}

Sequence* Admission::next_to_admit() const {
  const int32_t held_back = draining();
  return table_.waiting.next([&](Sequence& one) {
    const bool has_adapter =
        one.adapter == kNoAdapter ||
        (one.adapter != held_back && table_.slots.slot_of(one.adapter) != AdapterSlots::kNone);
    return has_adapter && may_admit(one);
  });
}

bool Admission::may_admit(Sequence& sequence) const {
  const TenantSlot tenant = sequence.request.tenant;
  const int32_t reserved = num_reserved(sequence, tenant);
  return table_.run_claims.num_free() > 0 && table_.run_claims.may_take(tenant, 1) &&
         has_room(sequence, table_.blocks.claims.num_taken(tenant), [&](int32_t count) {
           return table_.blocks.claims.may_take(tenant, reserved + count);
         });
}

template <class MayTake>
bool Admission::has_room(Sequence& sequence, int32_t num_held, const MayTake& may_take) const {
  // one block for the tokens after its full blocks
  if (shared_prefill(sequence) != nullptr) return may_take(1);
  // Only blocks in use cost nothing: checking their number first avoids most lookups.
  const int32_t most = table_.blocks.blocks_for(sequence.size());
  if (may_take(most)) return true;
  return may_take(most - num_held) && may_take(num_blocks_needed(sequence));
}

int32_t Admission::num_blocks_needed(Sequence& sequence) const {
  const int32_t num_cached = table_.blocks.num_cached(sequence);
  int32_t count = table_.blocks.blocks_for(sequence.size());
  for (int32_t i = 0; i < num_cached; ++i)
    if (table_.blocks.pool.num_holders(
            table_.blocks.pool.find(sequence.chains[static_cast<size_t>(i)].name())) > 0)
      --count;
  return count;
}

int32_t Admission::num_growing(std::optional<TenantSlot> tenant) const {
  const auto has_none = [&](const Sequence* one) {
    return one->blocks.empty() && (!tenant || one->request.tenant == *tenant);
  };
  return (tenant ? table_.run_claims.num_taken(*tenant) : table_.run_claims.num_taken()) -
         static_cast<int32_t>(std::ranges::count_if(table_.held, has_none));
}

int32_t Admission::num_reserved(const Sequence& next, std::optional<TenantSlot> tenant) const {
  // Admit a preempted sequence only if it can stay for a while: its tokens are computed again each
  // time.
  return (next.began.has_value() ? 2 : 1) * num_growing(tenant);
}

const Sequence* Admission::first_without_slot() const {
  return table_.waiting.next([this](const Sequence& one) {
    return one.adapter != kNoAdapter && !table_.slots.is_in_a_slot_or_coming(one.adapter);
  });
}

/// Never evict an adapter whose own prompts come before this sequence.
int32_t Admission::slot_for(const Sequence& sequence) const {
  return table_.slots.slot_for([&](int32_t adapter) {
    const Sequence* other =
        table_.waiting.next([&](const Sequence& one) { return one.adapter == adapter; });
    return other == nullptr || table_.waiting.is_sooner(sequence, *other);
  });
}

int32_t Admission::draining() const {
  if (table_.slots.coming()) return kNoAdapter;
  const Sequence* first = first_without_slot();
  const auto may_run = [this](Sequence& one) { return may_admit(one); };
  if (first == nullptr || first != table_.waiting.next(may_run) ||
      slot_for(*first) != AdapterSlots::kNone)
    return kNoAdapter;
  return table_.slots.longest_held();
}

bool Admission::can_load() const {
  const Sequence* first = first_without_slot();
  return first != nullptr && slot_for(*first) != AdapterSlots::kNone;
}

}  // namespace primerl
