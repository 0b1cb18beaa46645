#include "kernels/engine/block_pool.h"

#include <bit>

namespace primerl {

BlockPool::BlockPool(int32_t num_blocks, KvEventLog* events)
    : events_(events),
      blocks_(static_cast<size_t>(num_blocks) + 1),
      buckets_(std::bit_ceil(2 * static_cast<size_t>(num_blocks) + 1), kNone) {
  const int32_t head = num_blocks;
  blocks_.back().next_free = blocks_.back().previous_free = head;
  for (int32_t block = num_blocks; block-- > 0;) link_free(block, head);
}

size_t BlockPool::index(int32_t block) const {
  CHECK(block >= 0 && block < num_blocks(), "no such block");
  return static_cast<size_t>(block);
}

void BlockPool::link_free(int32_t block, int32_t after) {
  Block& one = blocks_[static_cast<size_t>(block)];
  Block& before = blocks_[static_cast<size_t>(after)];
  one.previous_free = after;
  one.next_free = before.next_free;
  blocks_[static_cast<size_t>(before.next_free)].previous_free = block;
  before.next_free = block;
  ++num_free_;
}

void BlockPool::unlink_free(int32_t block) {
  Block& one = blocks_[static_cast<size_t>(block)];
  blocks_[static_cast<size_t>(one.previous_free)].next_free = one.next_free;
  blocks_[static_cast<size_t>(one.next_free)].previous_free = one.previous_free;
  one.next_free = one.previous_free = kNone;
  --num_free_;
}

int32_t BlockPool::take() {
  if (num_free_ == 0) return kNone;
  const int32_t block = blocks_.back().next_free;
  Block& taken = blocks_[index(block)];
  unlink_free(block);
  if (taken.is_named) {
    forget(block);
    ++num_evicted_;
  }
  taken.num_holders = 1;
  return block;
}

void BlockPool::hold(int32_t block) {
  Block& held = blocks_[index(block)];
  if (held.num_holders++ == 0) unlink_free(block);
}

void BlockPool::release(int32_t block) {
  Block& released = blocks_[index(block)];
  CHECK(released.num_holders > 0, "a block that is not in use");
  if (--released.num_holders > 0) return;
  // Blocks that no lookup can find are reused first.
  const int32_t head = num_blocks();
  link_free(block, released.is_named ? blocks_.back().previous_free : head);
}

std::optional<BlockName> BlockPool::name_of(int32_t block) const {
  const Block& one = blocks_[index(block)];
  return one.is_named ? std::optional(one.name) : std::nullopt;
}

int32_t BlockPool::find(const BlockName& name) const {
  int32_t block = buckets_[name.low & (buckets_.size() - 1)];
  while (block != kNone && !(blocks_[static_cast<size_t>(block)].name == name))
    block = blocks_[static_cast<size_t>(block)].next_in_bucket;
  return block;
}

void BlockPool::publish(int32_t block, const BlockName& name, WeightsKey key) {
  Block& named = blocks_[index(block)];
  CHECK(named.num_holders > 0 && !named.is_named, "only a block in use without a name gets one");
  int32_t& first = bucket_of(name);
  named.name = name;
  named.key = key;
  named.is_named = true;
  named.previous_in_bucket = kNone;
  named.next_in_bucket = first;
  if (first != kNone) blocks_[static_cast<size_t>(first)].previous_in_bucket = block;
  first = block;
  ++num_named_;
}

void BlockPool::withdraw(int32_t block) {
  const Block& named = blocks_[index(block)];
  CHECK(named.num_holders > 0, "only a block in use loses its name");
  if (named.is_named) forget(block);
}

/// A free block without a name is taken first.
void BlockPool::drop(WeightsKey key) {
  for (int32_t block = 0; block < num_blocks(); ++block) {
    const Block& one = blocks_[static_cast<size_t>(block)];
    if (!one.is_named || one.key != key) continue;
    forget(block);
    if (one.num_holders > 0) continue;
    unlink_free(block);
    link_free(block, num_blocks());
  }
}

void BlockPool::forget(int32_t block) {
  Block& named = blocks_[static_cast<size_t>(block)];
  if (named.previous_in_bucket == kNone)
    bucket_of(named.name) = named.next_in_bucket;
  else
    blocks_[static_cast<size_t>(named.previous_in_bucket)].next_in_bucket = named.next_in_bucket;
  if (named.next_in_bucket != kNone)
    blocks_[static_cast<size_t>(named.next_in_bucket)].previous_in_bucket =
        named.previous_in_bucket;
  named.is_named = false;
  --num_named_;
  if (events_ != nullptr && find(named.name) == kNone) events_->removed(named.name);
}

}  // namespace primerl
