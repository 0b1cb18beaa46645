// Who is admitted, who holds blocks, who loses them.
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
}

void BatchScheduler::run(Sequence& sequence) {
  sequence.state = Sequence::State::kRunning;
  claims_.admit(sequence.request.tenant);
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

/// No adapter gives way whose own prompts come before this one.
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
  const auto may_run = [this](const Sequence& one) {
    return claims_.may_admit(one.request.tenant);
  };
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
  return waiting_.next([&](const Sequence& one) {
    const bool has_adapter =
        one.adapter == kNoAdapter ||
        (one.adapter != held_back && slots_.slot_of(one.adapter) != AdapterSlots::kNone);
    return has_adapter && claims_.may_admit(one.request.tenant);
  });
}

void BatchScheduler::give_slot_back(Sequence& sequence) {
  if (std::exchange(sequence.has_slot, false)) slots_.release(sequence.adapter);
}

bool BatchScheduler::can_admit() const {
  if (waiting_.empty()) return false;
  Sequence* const next = next_to_admit();
  if (next == nullptr) return false;
  Sequence& sequence = *next;
  // Whoever is in will soon want one block more, and one that was preempted comes back only where
  // it can stay for a while: what it had is computed again each time.
  const auto has_blocks = [](const Sequence* one) { return !one->blocks.empty(); };
  const auto num_growing = num_prefilling_ + static_cast<int32_t>(running_.size()) +
                           static_cast<int32_t>(std::ranges::count_if(held_, has_blocks));
  int32_t free = pool_.num_free() - (sequence.began.has_value() ? 2 : 1) * num_growing;
  if (shared_prefill(sequence) != nullptr) return free >= 1;
  // Only blocks that others hold cost nothing: a look at their number saves most walks.
  const int32_t num_blocks = blocks_for(sequence.size());
  if (num_blocks - (pool_.num_blocks() - pool_.num_free()) > free) return false;
  const int32_t num_cached = num_cached_blocks(sequence);
  free -= num_blocks - num_cached;
  for (int32_t i = 0; i < num_cached && free >= 0; ++i)
    if (pool_.num_holders(pool_.find(sequence.chains[static_cast<size_t>(i)].name())) == 0) --free;
  return free >= 0;
}

PrefillTask& BatchScheduler::new_prefill(Sequence& sequence) {
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
    pool_.hold(prefill.blocks.back());
  }
  while (static_cast<int32_t>(prefill.blocks.size()) < blocks_for(prefill.num_tokens))
    prefill.blocks.push_back(pool_.take());
  prefill.num_found = num_cached;
  prefill.num_computed = num_cached * limits_.options.block_size;
  return prefill;
}

void BatchScheduler::admit(StepPlan& plan) {
  Sequence& sequence = *next_to_admit();
  waiting_.remove(sequence);
  claims_.admit(sequence.request.tenant);
  if (sequence.adapter != kNoAdapter) slots_.hold(sequence.adapter);
  sequence.has_slot = sequence.adapter != kNoAdapter;
  const bool is_again = sequence.began.has_value();
  if (!is_again) sequence.began = versions_.of(sequence.request.key());
  PrefillTask* prefill = shared_prefill(sequence);
  const bool is_shared = prefill != nullptr;
  if (!is_shared) {
    prefill = &new_prefill(sequence);
    prefill->is_again = is_again;
  }
  sequence.chains = {};
  const int32_t num_cached = is_shared ? sequence.size() - 1 : prefill->num_computed;
  if (!is_again) sequence.num_cached_tokens = num_cached;
  if (!is_again && !is_shared && !prefill->scores_prompt) {
    totals_.num_prefix_queries += static_cast<uint64_t>(sequence.size());
    totals_.num_prefix_hits += static_cast<uint64_t>(num_cached);
  }
  sequence.prefill = prefill;
  prefill->waiting.push_back(&sequence);
  sequence.state = Sequence::State::kPrefilling;
  ++num_prefilling_;
  if (prefill->last_row >= 0) add_samples(plan, *prefill);
}

Sequence* BatchScheduler::last_in_order() const {
  Sequence* last = running_.empty() ? nullptr : running_.back();
  const auto take_later = [&last](Sequence* one) {
    if (last == nullptr || is_before(last, one)) last = one;
  };
  for (Sequence* one : held_)
    if (!one->blocks.empty()) take_later(one);
  for (const auto& prefill : prefilling_)
    for (Sequence* one : prefill->waiting) take_later(one);
  return last;
}

bool BatchScheduler::grow(Sequence& sequence) {
  int32_t block = pool_.take();
  while (block == BlockPool::kNone) {
    Sequence& last = *last_in_order();
    preempt(last);
    if (&last == &sequence) return false;
    block = pool_.take();
  }
  sequence.blocks.push_back(block);
  return true;
}

void BatchScheduler::preempt(Sequence& sequence) {
  ++totals_.num_preemptions;
  has_preempted_ = true;
  give_slot_back(sequence);
  if (sequence.state == Sequence::State::kHeld) {  // it waits for take_over() first
    release(sequence.blocks);
    return;
  }
  leave(sequence);
  release(sequence.blocks);
  enqueue(sequence);
}

void BatchScheduler::leave(Sequence& sequence) {
  if (sequence.state != Sequence::State::kWaiting) claims_.release(sequence.request.tenant);
  switch (sequence.state) {
    case Sequence::State::kWaiting:
      waiting_.remove(sequence);
      break;
    case Sequence::State::kPrefilling: {
      PrefillTask* prefill = std::exchange(sequence.prefill, nullptr);
      drop(prefill->waiting, &sequence);
      --num_prefilling_;
      if (!prefill->waiting.empty()) break;
      release(prefill->blocks);
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

/// The last one first: what many share lies in front, and is to be found for longest.
void BatchScheduler::release(std::vector<int32_t>& blocks) {
  for (; !blocks.empty(); blocks.pop_back()) pool_.release(blocks.back());
}

void BatchScheduler::settle(PrefillTask& prefill, Sequence& sequence, bool is_last) {
  if (sequence.ended) return;
  sequence.chain = prefill.chain;
  sequence.publishes = prefill.publishes;
  if (is_last) {
    sequence.blocks = std::move(prefill.blocks);
    prefill.blocks.clear();
    return;
  }
  const int32_t size = limits_.options.block_size, rest = prefill.num_tokens % size;
  int32_t own = BlockPool::kNone;
  if (rest > 0 && (own = pool_.take()) == BlockPool::kNone) {
    ++totals_.num_preemptions;  // it computes its prompt again when its turn comes
    return;
  }
  sequence.blocks = prefill.blocks;
  if (rest > 0) {
    copies_.push_back({sequence.blocks.back() * size, own * size, rest});
    sequence.blocks.back() = own;
  }
  for (int32_t i = 0; i < prefill.num_tokens / size; ++i)
    pool_.hold(sequence.blocks[static_cast<size_t>(i)]);
}

bool BatchScheduler::own_end(PrefillTask& prefill) {
  if (!prefill.has_shared_end) return true;
  const int32_t size = limits_.options.block_size;
  int32_t& last = prefill.blocks.back();
  if (pool_.num_holders(last) == 1) {
    pool_.withdraw(last);
  } else {
    const int32_t own = pool_.take();
    if (own == BlockPool::kNone) return false;  // until one of those that hold it ends
    if (size > 1) copies_.push_back({last * size, own * size, size - 1});
    pool_.release(last);
    last = own;
  }
  prefill.has_shared_end = false;
  return true;
}

}  // namespace primerl
