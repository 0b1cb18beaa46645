// Admission and ownership of blocks.
#include <algorithm>

#include "kernels/engine/batch_scheduler.h"

namespace primerl {
namespace {

template <class T>
void drop(std::vector<T*>& list, const T* one) {
  list.erase(std::remove(list.begin(), list.end(), one), list.end());
}

}  // namespace

void BatchScheduler::enqueue(Sequence& sequence) {
  sequence.state = Sequence::State::kWaiting;
  waiting_.insert(sequence);
  block_claims_.want(sequence.request.tenant, blocks_for(sequence.size()));
}

void BatchScheduler::dequeue(Sequence& sequence) {
  waiting_.remove(sequence);
  block_claims_.want(sequence.request.tenant, -blocks_for(sequence.size()));
}

void BatchScheduler::run(Sequence& sequence) {
  sequence.state = Sequence::State::kRunning;
  places_.take(sequence.request.tenant, 1);
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, is_before),
                  &sequence);
}

BlockChain BatchScheduler::next_chain(const BlockChain& chain, const Sequence& sequence) const {
  const int32_t size = limits_.options.block_size;
  tokens_.clear();
  for (int32_t i = 0; i < size; ++i) tokens_.push_back(sequence.token(chain.num_blocks * size + i));
  const WeightsKey key = sequence.request.key();
  const PolicyVersion version = sequence.began.value_or(versions_.of(key));
  return hasher_.next(chain, tokens_, {key, sequence.request.salt, version});
}

void BatchScheduler::publish(const std::vector<int32_t>& blocks, BlockChain& chain,
                             const Sequence& sequence, int32_t num_computed) {
  while ((chain.num_blocks + 1) * limits_.options.block_size <= num_computed) {
    const int32_t block = blocks[static_cast<size_t>(chain.num_blocks)];
    const bool is_first = chain.num_blocks == 0;
    const BlockName parent = chain.name();
    chain = next_chain(chain, sequence);
    const BlockName name = chain.name();
    if (events_ != nullptr && pool_.find(name) == BlockPool::kNone)
      events_->stored(name, is_first ? std::nullopt : std::optional(parent), tokens_,
                      sequence.request.key());
    pool_.publish(block, name);
  }
}

PrefillTask* BatchScheduler::shared_prefill(const Sequence& sequence) const {
  if (!sequence.tokens.empty()) return nullptr;
  const SequenceRequest& request = sequence.request;
  const PolicyVersion version = versions_.of(request.key());
  for (const auto& prefill : prefilling_) {
    const Sequence& first = prefill->first();
    if (first.prompt_hash == sequence.prompt_hash && first.tokens.empty() &&
        first.began == sequence.began.value_or(version) && first.request.key() == request.key() &&
        first.request.salt == request.salt &&
        (prefill->scores_prompt || !sequence.needs_prompt_logprobs()) &&
        first.request.prompt_tokens == request.prompt_tokens)
      return prefill.get();
  }
  return nullptr;
}

int32_t BatchScheduler::num_cached_blocks(Sequence& sequence) const {
  if (!limits_.options.prefix_cache || sequence.needs_prompt_logprobs()) return 0;
  const int32_t most = (sequence.size() - 1) / limits_.options.block_size;
  auto& chains = sequence.chains;
  for (int32_t i = 0; i < most; ++i) {
    if (i == static_cast<int32_t>(chains.size()))
      chains.push_back(next_chain(i == 0 ? hasher_.begin() : chains.back(), sequence));
    if (pool_.find(chains[static_cast<size_t>(i)].name()) == BlockPool::kNone) return i;
  }
  return most;
}

const Sequence* BatchScheduler::first_without_slot() const {
  return waiting_.next([this](const Sequence& one) {
    return one.adapter != kNoAdapter && !slots_.is_in_a_slot_or_coming(one.adapter);
  });
}

/// Never evict an adapter whose own prompts come before this sequence.
int32_t BatchScheduler::slot_for(const Sequence& sequence) const {
  return slots_.slot_for([&](int32_t adapter) {
    const Sequence* other =
        waiting_.next([&](const Sequence& one) { return one.adapter == adapter; });
    return other == nullptr || waiting_.is_sooner(sequence, *other);
  });
}

int32_t BatchScheduler::draining() const {
  if (slots_.coming()) return kNoAdapter;
  const Sequence* first = first_without_slot();
  const auto may_run = [this](Sequence& one) { return may_admit(one); };
  if (first == nullptr || first != waiting_.next(may_run) ||
      slot_for(*first) != AdapterSlots::kNone)
    return kNoAdapter;
  return slots_.longest_held();
}

const std::optional<AdapterSlots::Load>& BatchScheduler::next_load() {
  if (slots_.coming()) return slots_.coming();
  const Sequence* first = first_without_slot();
  const int32_t slot = first == nullptr ? AdapterSlots::kNone : slot_for(*first);
  if (slot != AdapterSlots::kNone) slots_.begin(first->adapter, slot);
  return slots_.coming();
}

Sequence* BatchScheduler::next_to_admit() const {
  const int32_t held_back = draining();
  return waiting_.next([&](Sequence& one) {
    const bool has_adapter =
        one.adapter == kNoAdapter ||
        (one.adapter != held_back && slots_.slot_of(one.adapter) != AdapterSlots::kNone);
    return has_adapter && may_admit(one);
  });
}

int32_t BatchScheduler::num_growing(std::optional<TenantSlot> tenant) const {
  const auto has_none = [&](const Sequence* one) {
    return one->blocks.empty() && (!tenant || one->request.tenant == *tenant);
  };
  return (tenant ? places_.num_taken(*tenant) : places_.num_taken()) -
         static_cast<int32_t>(std::ranges::count_if(held_, has_none));
}

int32_t BatchScheduler::num_reserved(const Sequence& next, std::optional<TenantSlot> tenant) const {
  // Admit a preempted sequence only if it can stay for a while: its tokens are computed again each
  // time.
  return (next.began.has_value() ? 2 : 1) * num_growing(tenant);
}

int32_t BatchScheduler::num_blocks_needed(Sequence& sequence) const {
  const int32_t num_cached = num_cached_blocks(sequence);
  int32_t count = blocks_for(sequence.size());
  for (int32_t i = 0; i < num_cached; ++i)
    if (pool_.num_holders(pool_.find(sequence.chains[static_cast<size_t>(i)].name())) > 0) --count;
  return count;
}

template <class MayTake>
bool BatchScheduler::has_room(Sequence& sequence, int32_t num_held, const MayTake& may_take) const {
  // one block for the tokens after its full blocks
  if (shared_prefill(sequence) != nullptr) return may_take(1);
  // Only blocks in use cost nothing: checking their number first avoids most lookups.
  const int32_t most = blocks_for(sequence.size());
  if (may_take(most)) return true;
  return may_take(most - num_held) && may_take(num_blocks_needed(sequence));
}

bool BatchScheduler::may_admit(Sequence& sequence) const {
  const TenantSlot tenant = sequence.request.tenant;
  const int32_t reserved = num_reserved(sequence, tenant);
  return places_.num_free() > 0 && places_.may_take(tenant, 1) &&
         has_room(sequence, block_claims_.num_taken(tenant),
                  [&](int32_t count) { return block_claims_.may_take(tenant, reserved + count); });
}

void BatchScheduler::give_slot_back(Sequence& sequence) {
  if (std::exchange(sequence.has_slot, false)) slots_.release(sequence.adapter);
}

bool BatchScheduler::can_admit() const {
  if (waiting_.empty()) return false;
  Sequence* const next = next_to_admit();
  if (next == nullptr) return false;
  const int32_t free = pool_.num_free() - num_reserved(*next, std::nullopt);
  return has_room(*next, pool_.num_blocks() - pool_.num_free(),
                  [free](int32_t count) { return count <= free; });
}

PrefillTask& BatchScheduler::new_prefill(Sequence& sequence) {
  const TenantSlot tenant = sequence.request.tenant;
  PrefillTask& prefill = *prefilling_.emplace_back(std::make_unique<PrefillTask>());
  prefill.num_tokens = sequence.size();
  prefill.scores_prompt = sequence.needs_prompt_logprobs();
  prefill.publishes =
      limits_.options.prefix_cache && sequence.began == versions_.of(sequence.request.key());
  prefill.chain = hasher_.begin();
  const int32_t num_cached = num_cached_blocks(sequence);
  for (int32_t i = 0; i < num_cached; ++i) {
    prefill.chain = sequence.chains[static_cast<size_t>(i)];
    prefill.blocks.push_back(pool_.find(prefill.chain.name()));
    hold_block(prefill.blocks.back(), tenant);
  }
  while (static_cast<int32_t>(prefill.blocks.size()) < blocks_for(prefill.num_tokens))
    prefill.blocks.push_back(take_block(tenant));
  prefill.num_found = num_cached;
  prefill.num_computed = num_cached * limits_.options.block_size;
  return prefill;
}

void BatchScheduler::admit(StepPlan& plan) {
  Sequence& sequence = *next_to_admit();
  dequeue(sequence);
  places_.take(sequence.request.tenant, 1);
  if (sequence.adapter != kNoAdapter) slots_.hold(sequence.adapter);
  sequence.has_slot = sequence.adapter != kNoAdapter;
  const bool is_recomputed = sequence.began.has_value();
  if (!is_recomputed) sequence.began = versions_.of(sequence.request.key());
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
    totals_.num_prefix_queries += static_cast<uint64_t>(sequence.size());
    totals_.num_prefix_hits += static_cast<uint64_t>(num_cached);
  }
  sequence.prefill = prefill;
  prefill->waiting.push_back(&sequence);
  sequence.state = Sequence::State::kPrefilling;
  ++num_prefilling_;
  if (prefill->last_row >= 0) add_samples(plan, *prefill);
}

void BatchScheduler::leave(Sequence& sequence) {
  if (sequence.state != Sequence::State::kWaiting) places_.take(sequence.request.tenant, -1);
  switch (sequence.state) {
    case Sequence::State::kWaiting:
      dequeue(sequence);
      break;
    case Sequence::State::kPrefilling: {
      PrefillTask* prefill = std::exchange(sequence.prefill, nullptr);
      drop(prefill->waiting, &sequence);
      --num_prefilling_;
      if (!prefill->waiting.empty()) break;
      release(prefill->blocks, sequence.request.tenant);
      std::erase_if(prefilling_, [prefill](const auto& one) { return one.get() == prefill; });
      break;
    }
    case Sequence::State::kHeld:
      drop(held_, &sequence);
      break;
    case Sequence::State::kRunning:
      drop(running_, &sequence);
      break;
  }
}

int32_t BatchScheduler::take_block(TenantSlot tenant) {
  const int32_t block = pool_.take();
  if (block == BlockPool::kNone) return block;
  block_claims_.want(tenant, 1);
  block_claims_.take(tenant, 1);
  return block;
}

void BatchScheduler::hold_block(int32_t block, TenantSlot tenant) {
  const bool was_free = pool_.num_holders(block) == 0;
  pool_.hold(block);
  if (!was_free) return;
  block_claims_.want(tenant, 1);
  block_claims_.take(tenant, 1);
}

void BatchScheduler::release_block(int32_t block, TenantSlot tenant) {
  pool_.release(block);
  if (pool_.num_holders(block) > 0) return;
  block_claims_.take(tenant, -1);
  block_claims_.want(tenant, -1);
}

/// The last block first: shared prefixes are at the front, and should stay findable for longest.
void BatchScheduler::release(std::vector<int32_t>& blocks, TenantSlot tenant) {
  for (; !blocks.empty(); blocks.pop_back()) release_block(blocks.back(), tenant);
}

void BatchScheduler::assign_blocks(PrefillTask& prefill, Sequence& sequence, bool is_last) {
  if (sequence.ended) return;
  sequence.chain = prefill.chain;
  sequence.publishes = prefill.publishes;
  if (is_last) {
    sequence.blocks = std::move(prefill.blocks);
    prefill.blocks.clear();
    return;
  }
  const TenantSlot tenant = sequence.request.tenant;
  const int32_t size = limits_.options.block_size, rest = prefill.num_tokens % size;
  int32_t own = BlockPool::kNone;
  if (rest > 0 && (own = take_block(tenant)) == BlockPool::kNone) {
    ++totals_.num_preemptions;  // its prompt is computed again when it is admitted
    return;
  }
  sequence.blocks = prefill.blocks;
  if (rest > 0) {
    copies_.push_back({sequence.blocks.back() * size, own * size, rest});
    sequence.blocks.back() = own;
  }
  for (int32_t i = 0; i < prefill.num_tokens / size; ++i)
    hold_block(sequence.blocks[static_cast<size_t>(i)], tenant);
}

bool BatchScheduler::copy_shared_last_block(PrefillTask& prefill) {
  if (!prefill.has_shared_end) return true;
  const int32_t size = limits_.options.block_size;
  const TenantSlot tenant = prefill.first().request.tenant;
  int32_t& last = prefill.blocks.back();
  if (pool_.num_holders(last) == 1) {
    pool_.withdraw(last);
  } else {
    const int32_t own = take_block(tenant);
    if (own == BlockPool::kNone) return false;  // until a sequence that uses one ends
    if (size > 1) copies_.push_back({last * size, own * size, size - 1});
    release_block(last, tenant);
    last = own;
  }
  prefill.has_shared_end = false;
  return true;
}

}  // namespace primerl
