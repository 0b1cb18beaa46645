#include "kernels/engine/sequence_blocks.h"

namespace primerl {
namespace {

/// Enough events for one step: a row fills at most one block, and a removed block was stored before
/// or in this step.
std::unique_ptr<KvEventLog> make_events(const EngineOptions& options) {
  if (options.kv_events_bytes_max == 0) return nullptr;
  return std::make_unique<KvEventLog>(static_cast<size_t>(options.kv_blocks) +
                                      2 * static_cast<size_t>(options.max_batched_tokens) + 2);
}

}  // namespace

SequenceBlocks::SequenceBlocks(const SchedulerLimits& limits, const VersionsByKey& applied)
    : block_size(limits.options.block_size),
      has_prefix_cache(limits.options.prefix_cache),
      versions(applied),
      hasher(limits.fingerprint, limits.layout.text(), block_size),
      events(make_events(limits.options)),
      pool(limits.options.kv_blocks, events.get()),
      claims(limits.options.shares, limits.options.kv_blocks,
             TenantClaims::Waiting::kKeepsItsClaim) {}

int32_t SequenceBlocks::num_cached(Sequence& sequence) const {
  if (!has_prefix_cache || sequence.needs_prompt_logprobs()) return 0;
  const int32_t most = (sequence.size() - 1) / block_size;
  auto& chains = sequence.chains;
  for (int32_t i = 0; i < most; ++i) {
    if (i == static_cast<int32_t>(chains.size()))
      chains.push_back(next_chain(i == 0 ? hasher.begin() : chains.back(), sequence));
    if (pool.find(chains[static_cast<size_t>(i)].name()) == BlockPool::kNone) return i;
  }
  return most;
}

BlockChain SequenceBlocks::next_chain(const BlockChain& chain, const Sequence& sequence) const {
  const int32_t size = block_size;
  tokens.clear();
  for (int32_t i = 0; i < size; ++i) tokens.push_back(sequence.token(chain.num_blocks * size + i));
  const WeightsKey key = sequence.request.key();
  const PolicyVersion version = sequence.began.value_or(versions.of(key));
  return hasher.next(chain, tokens, {key, sequence.request.salt, version});
}

void SequenceBlocks::publish(const std::vector<int32_t>& blocks, BlockChain& chain,
                             const Sequence& sequence, int32_t num_computed) {
  while ((chain.num_blocks + 1) * block_size <= num_computed) {
    const int32_t block = blocks[static_cast<size_t>(chain.num_blocks)];
    const bool is_first = chain.num_blocks == 0;
    const BlockName parent = chain.name();
    chain = next_chain(chain, sequence);
    const BlockName name = chain.name();
    if (events != nullptr && pool.find(name) == BlockPool::kNone)
      events->stored(name, is_first ? std::nullopt : std::optional(parent), tokens,
                     sequence.request.key());
    pool.publish(block, name, sequence.request.key());
  }
}

void SequenceBlocks::withdraw(const Sequence& sequence) {
  const PrefillTask* prefill = sequence.prefill;
  for (const int32_t block : prefill == nullptr ? sequence.blocks : prefill->blocks)
    pool.withdraw(block);
}

int32_t SequenceBlocks::take(TenantSlot tenant) {
  const int32_t block = pool.take();
  if (block == BlockPool::kNone) return block;
  claims.want(tenant, 1);
  claims.take(tenant, 1);
  return block;
}

void SequenceBlocks::hold(int32_t block, TenantSlot tenant) {
  const bool was_free = pool.num_holders(block) == 0;
  pool.hold(block);
  if (!was_free) return;
  claims.want(tenant, 1);
  claims.take(tenant, 1);
}

void SequenceBlocks::release_one(int32_t block, TenantSlot tenant) {
  pool.release(block);
  if (pool.num_holders(block) > 0) return;
  claims.take(tenant, -1);
  claims.want(tenant, -1);
}

/// The last block first: shared prefixes are at the front, and should stay findable for longest.
void SequenceBlocks::release(std::vector<int32_t>& blocks, TenantSlot tenant) {
  for (; !blocks.empty(); blocks.pop_back()) release_one(blocks.back(), tenant);
}

}  // namespace primerl
