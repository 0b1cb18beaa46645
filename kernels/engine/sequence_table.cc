#include "kernels/engine/sequence_table.h"

#include <algorithm>

namespace primerl {
namespace {

template <class T>
void drop(std::vector<T*>& list, const T* one) {
  list.erase(std::remove(list.begin(), list.end(), one), list.end());
}

}  // namespace

SequenceTable::SequenceTable(SchedulerLimits of)
    : limits(std::move(of)),
      blocks(limits, versions),
      slots(limits.options.adapter_slots),
      waiting(limits.options.shares),
      run_claims(limits.options.shares, limits.options.max_running,
                 TenantClaims::Waiting::kTakesItsTurn) {}

void SequenceTable::enqueue(Sequence& sequence) {
  sequence.state = Sequence::State::kWaiting;
  waiting.insert(sequence);
  blocks.claims.want(sequence.request.tenant, blocks.blocks_for(sequence.size()));
}

void SequenceTable::dequeue(Sequence& sequence) {
  waiting.remove(sequence);
  blocks.claims.want(sequence.request.tenant, -blocks.blocks_for(sequence.size()));
}

void SequenceTable::run(Sequence& sequence) {
  sequence.state = Sequence::State::kRunning;
  run_claims.take(sequence.request.tenant, 1);
  running.insert(std::upper_bound(running.begin(), running.end(), &sequence, is_before), &sequence);
}

void SequenceTable::leave(Sequence& sequence) {
  if (sequence.state != Sequence::State::kWaiting) run_claims.take(sequence.request.tenant, -1);
  switch (sequence.state) {
    case Sequence::State::kWaiting:
      dequeue(sequence);
      break;
    case Sequence::State::kPrefilling: {
      PrefillTask* prefill = std::exchange(sequence.prefill, nullptr);
      drop(prefill->waiting, &sequence);
      --num_prefilling;
      if (!prefill->waiting.empty()) break;
      blocks.release(prefill->blocks, sequence.request.tenant);
      std::erase_if(prefilling, [prefill](const auto& one) { return one.get() == prefill; });
      break;
    }
    case Sequence::State::kHeld:
      drop(held, &sequence);
      break;
    case Sequence::State::kRunning:
      drop(running, &sequence);
      break;
  }
}

void SequenceTable::give_slot_back(Sequence& sequence) {
  if (std::exchange(sequence.has_slot, false)) slots.release(sequence.adapter);
}

void SequenceTable::preempt(Sequence& sequence) {
  ++totals.num_preemptions;
  has_preempted = true;
  give_slot_back(sequence);
  if (sequence.state == Sequence::State::kHeld) {  // it waits for take_over() first
    blocks.release(sequence.blocks, sequence.request.tenant);
    return;
  }
  leave(sequence);
  blocks.release(sequence.blocks, sequence.request.tenant);
  enqueue(sequence);
}

int32_t SequenceTable::num_unknown_tokens(const Sequence& sequence) const {
  return num_in_progress > 0 && sequence.last_plan == num_plans ? 1 : 0;
}

bool SequenceTable::samples_another(const Sequence& sequence) const {
  return static_cast<int32_t>(sequence.tokens.size()) + num_unknown_tokens(sequence) <
         sequence.request.sampling.max_tokens;
}

bool SequenceTable::needs_block(const Sequence& sequence) const {
  const auto room = static_cast<int32_t>(sequence.blocks.size()) * limits.options.block_size;
  return sequence.size() + num_unknown_tokens(sequence) > room;
}

void SequenceTable::assign_blocks(PrefillTask& prefill, Sequence& sequence, bool is_last) {
  if (sequence.ended) return;
  sequence.chain = prefill.chain;
  sequence.publishes = prefill.publishes;
  if (is_last) {
    sequence.blocks = std::move(prefill.blocks);
    prefill.blocks.clear();
    return;
  }
  const TenantSlot tenant = sequence.request.tenant;
  const int32_t size = limits.options.block_size, rest = prefill.num_tokens % size;
  int32_t own = BlockPool::kNone;
  if (rest > 0 && (own = blocks.take(tenant)) == BlockPool::kNone) {
    ++totals.num_preemptions;  // its prompt is computed again when it is admitted
    return;
  }
  sequence.blocks = prefill.blocks;
  if (rest > 0) {
    copies.push_back({sequence.blocks.back() * size, own * size, rest});
    sequence.blocks.back() = own;
  }
  for (int32_t i = 0; i < prefill.num_tokens / size; ++i)
    blocks.hold(sequence.blocks[static_cast<size_t>(i)], tenant);
}

bool SequenceTable::copy_shared_last_block(PrefillTask& prefill) {
  if (!prefill.has_shared_end) return true;
  const int32_t size = limits.options.block_size;
  const TenantSlot tenant = prefill.first().request.tenant;
  int32_t& last = prefill.blocks.back();
  if (blocks.pool.num_holders(last) == 1) {
    blocks.pool.withdraw(last);
  } else {
    const int32_t own = blocks.take(tenant);
    if (own == BlockPool::kNone) return false;  // until a sequence that uses one ends
    if (size > 1) copies.push_back({last * size, own * size, size - 1});
    blocks.release_one(last, tenant);
    last = own;
  }
  prefill.has_shared_end = false;
  return true;
}

}  // namespace primerl
