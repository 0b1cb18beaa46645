/// SequenceBlocks: the KV blocks of an engine's sequences: which are in use, what names they have,
/// and for which tenant they count.
///
/// Full blocks are found by name (block_hash.h), which depends on the key, the salt and the version
/// that computes them. Each block in use counts for one tenant. Part of a SequenceTable.
#pragma once

#include <memory>
#include <vector>

#include "kernels/engine/block_pool.h"
#include "kernels/engine/sequence.h"
#include "kernels/engine/tenant_claims.h"

namespace primerl {

struct SequenceBlocks {
  /// Both must stay valid while it exists.
  SequenceBlocks(const SchedulerLimits& limits, const VersionsByKey& versions);

  int32_t blocks_for(int64_t num_tokens) const {
    return static_cast<int32_t>((num_tokens + block_size - 1) / block_size);
  }
  /// How many of the first blocks of `sequence` are in the pool; never the block of its last token.
  int32_t num_cached(Sequence& sequence) const;
  BlockChain next_chain(const BlockChain& chain, const Sequence& sequence) const;
  /// Names those blocks in `blocks` that are full now and have no name.
  void publish(const std::vector<int32_t>& blocks, BlockChain& chain, const Sequence& sequence,
               int32_t num_computed);
  /// A failed sequence's blocks lose their names: its keys may be the cause of the failure.
  void withdraw(const Sequence& sequence);
  /// Like the pool's take(), and counted for the tenant.
  int32_t take(TenantSlot tenant);
  void hold(int32_t block, TenantSlot tenant);
  void release_one(int32_t block, TenantSlot tenant);
  void release(std::vector<int32_t>& blocks, TenantSlot tenant);

  const int32_t block_size;
  const bool has_prefix_cache;
  const VersionsByKey& versions;
  mutable BlockHasher hasher;          // mutable: its scratch memory changes
  std::unique_ptr<KvEventLog> events;  // null: events are off
  BlockPool pool;
  TenantClaims claims;                  // of the pool; each block belongs to one tenant
  mutable std::vector<int32_t> tokens;  // scratch: tokens of a block
};

}  // namespace primerl
