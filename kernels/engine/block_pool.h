/// The blocks of a paged KV cache: which are in use, which are free, which can be found by name.
///
/// All blocks exist from the start and no call allocates. Each call is O(1) except find(), which
/// walks the few blocks of one bucket, and drop(), which looks at all blocks. Each block has a
/// reference count. At 0 the block is free, but can be found by its name until take() returns it
/// again. take() prefers free blocks without a name, then the block that was freed longest ago. So
/// free the last block of a sequence first. Several blocks may have the same name; find() returns
/// the one published last. Names that can no longer be found are written to the event log, if there
/// is one. Used by one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/engine/block_hash.h"
#include "kernels/engine/kv_events.h"

namespace primerl {

class BlockPool {
 public:
  static constexpr int32_t kNone = -1;

  /// `events` may be null; it must stay valid while the pool exists.
  explicit BlockPool(int32_t num_blocks, KvEventLog* events = nullptr);

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()) - 1; }
  /// Blocks with reference count 0, named or not.
  int32_t num_free() const { return num_free_; }
  int32_t num_named() const { return num_named_; }
  uint64_t num_evicted() const { return num_evicted_; }
  int32_t num_holders(int32_t block) const { return blocks_[index(block)].num_holders; }

  /// A free block, now with one reference and without a name; kNone: no block is free.
  int32_t take();
  /// Adds a reference, also to a free block.
  void hold(int32_t block);
  /// Removes a reference.
  void release(int32_t block);

  /// Empty: the block has no name.
  std::optional<BlockName> name_of(int32_t block) const;
  /// The block of that name; kNone: no block has it.
  int32_t find(const BlockName& name) const;
  /// Names a block that is in use and has no name yet. `key` is that of the weights that made it.
  void publish(int32_t block, const BlockName& name, WeightsKey key = {});
  /// Removes the name of a block that is in use, if it has one.
  void withdraw(int32_t block);
  /// Removes the names of all blocks of `key`, in the order of the blocks.
  void drop(WeightsKey key);

 private:
  /// Links are indices into blocks_; the last entry is the head of the list of free blocks.
  struct Block {
    BlockName name;
    WeightsKey key;
    int32_t num_holders = 0;
    bool is_named = false;
    int32_t next_free = kNone, previous_free = kNone;  // links of the ring of free blocks
    int32_t next_in_bucket = kNone, previous_in_bucket = kNone;
  };

  size_t index(int32_t block) const;
  int32_t& bucket_of(const BlockName& name) { return buckets_[name.low & (buckets_.size() - 1)]; }
  void link_free(int32_t block, int32_t after);
  void unlink_free(int32_t block);
  void forget(int32_t block);

  KvEventLog* const events_;
  std::vector<Block> blocks_;
  std::vector<int32_t> buckets_;  // first block of each bucket, or kNone
  int32_t num_free_ = 0;
  int32_t num_named_ = 0;
  uint64_t num_evicted_ = 0;
};

}  // namespace primerl
