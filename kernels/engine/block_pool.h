/// The blocks of a paged KV cache: which are held, which are free, which can be found by name.
///
/// All are there from the start; no call allocates, and each is O(1) but for find(), which walks
/// the few blocks of one bucket. A block has a count of holders. At 0 it is free, and stays
/// findable under its name until take() hands it out again: take() prefers free blocks without a
/// name, then the one that was freed longest ago. So who frees a sequence's blocks frees the last
/// one first. Several blocks may have one name; find() gives the one published last. Names that are
/// no longer found are told to a log of events, where there is one. One thread.
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

  /// `events`, which may be null, outlives the pool.
  explicit BlockPool(int32_t num_blocks, KvEventLog* events = nullptr);

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()) - 1; }
  /// Held by nobody, named or not.
  int32_t num_free() const { return num_free_; }
  int32_t num_named() const { return num_named_; }
  uint64_t num_evicted() const { return num_evicted_; }
  int32_t num_holders(int32_t block) const { return blocks_[index(block)].num_holders; }

  /// A free block, now held once and without a name; kNone: there is none.
  int32_t take();
  /// One holder more, of a free block too.
  void hold(int32_t block);
  /// One holder less.
  void release(int32_t block);

  /// None: it has no name.
  std::optional<BlockName> name_of(int32_t block) const;
  /// The block of that name; kNone.
  int32_t find(const BlockName& name) const;
  /// Names a held block that has no name yet.
  void publish(int32_t block, const BlockName& name);
  /// Takes the name of a held block away, if it has one.
  void withdraw(int32_t block);

 private:
  /// Links are places in blocks_; the last one is the head of the list of free blocks.
  struct Block {
    BlockName name;
    int32_t num_holders = 0;
    bool is_named = false;
    int32_t next_free = kNone, previous_free = kNone;  // of the ring of free blocks
    int32_t next_in_bucket = kNone, previous_in_bucket = kNone;
  };

  size_t index(int32_t block) const;
  int32_t& bucket_of(const BlockName& name) { return buckets_[name.low & (buckets_.size() - 1)]; }
  void link_free(int32_t block, int32_t after);
  void unlink_free(int32_t block);
  void forget(int32_t block);

  KvEventLog* const events_;
  std::vector<Block> blocks_;
  std::vector<int32_t> buckets_;  // first block, or kNone
  int32_t num_free_ = 0;
  int32_t num_named_ = 0;
  uint64_t num_evicted_ = 0;
};

}  // namespace primerl
