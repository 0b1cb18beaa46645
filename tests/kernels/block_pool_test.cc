#include "kernels/engine/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>

#include "graph/base/random.h"

namespace primerl {
namespace {

BlockName name_of(uint64_t low, uint64_t high = 0) { return {low, high}; }

TEST(BlockPool, ReturnsEveryBlockOnceAndThenNone) {
  BlockPool pool(3);
  EXPECT_EQ(pool.num_free(), 3);
  std::vector<int32_t> taken = {pool.take(), pool.take(), pool.take()};
  std::ranges::sort(taken);
  EXPECT_EQ(taken, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(pool.take(), BlockPool::kNone);
  pool.release(1);
  EXPECT_EQ(pool.take(), 1);
}

TEST(BlockPool, DropsTheNamesOfOneKey) {
  const WeightsKey stays{TenantSlot(0)}, gone{TenantSlot(0), AdapterId(1)};
  BlockPool pool(4);
  const int32_t kept = pool.take(), free = pool.take(), used = pool.take();
  pool.publish(kept, name_of(1), stays);
  pool.publish(free, name_of(2), gone);
  pool.publish(used, name_of(3), gone);
  pool.release(kept);
  pool.release(free);
  pool.drop({TenantSlot(7)});
  EXPECT_EQ(pool.num_named(), 3);
  pool.drop(gone);
  EXPECT_EQ(pool.num_named(), 1);
  EXPECT_EQ(pool.find(name_of(1)), kept);
  EXPECT_EQ(pool.find(name_of(2)), BlockPool::kNone);
  EXPECT_EQ(pool.find(name_of(3)), BlockPool::kNone);
  EXPECT_EQ(pool.num_free(), 3);
  EXPECT_EQ(pool.take(), free) << "it was freed last and has no name";
  EXPECT_EQ(pool.num_evicted(), 0U);
  pool.release(used);
  EXPECT_EQ(pool.num_free(), 3);
}

TEST(BlockPool, AFreedBlockIsFoundUntilItIsReused) {
  BlockPool pool(2);
  const int32_t named = pool.take();
  pool.publish(named, name_of(7));
  pool.release(named);
  EXPECT_EQ(pool.find(name_of(7)), named);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_NE(pool.take(), named) << "a block without a name goes first";
  EXPECT_EQ(pool.find(name_of(7)), named);
  EXPECT_EQ(pool.take(), named);
  EXPECT_EQ(pool.find(name_of(7)), BlockPool::kNone);
  EXPECT_EQ(pool.num_evicted(), 1U);
}

TEST(BlockPool, TheBlockThatWasFreedLongestAgoGoesFirst) {
  BlockPool pool(4);
  for (uint64_t i = 0; i < 4; ++i) pool.publish(pool.take(), name_of(i));
  std::vector<int32_t> blocks;
  for (uint64_t i = 0; i < 4; ++i) blocks.push_back(pool.find(name_of(i)));
  for (const size_t i : {2U, 0U, 3U, 1U}) pool.release(blocks[i]);
  pool.hold(blocks[0]);  // used again, so it is freed last
  pool.release(blocks[0]);
  for (const size_t i : {2U, 3U, 1U, 0U}) EXPECT_EQ(pool.take(), blocks[i]);
}

TEST(BlockPool, TwoBlocksOfOneNameAreFoundOneAfterTheOther) {
  BlockPool pool(2);
  const int32_t first = pool.take(), second = pool.take();
  pool.publish(first, name_of(7));
  pool.publish(second, name_of(7));
  EXPECT_EQ(pool.num_named(), 2);
  EXPECT_EQ(pool.find(name_of(7)), second);
  pool.release(second);
  EXPECT_EQ(pool.take(), second);
  EXPECT_EQ(pool.find(name_of(7)), first);
}

/// The same, implemented with lists and maps.
class PlainPool {
 public:
  explicit PlainPool(int32_t num_blocks) : holders_(static_cast<size_t>(num_blocks)) {
    for (int32_t block = 0; block < num_blocks; ++block) unnamed_.push_back(block);
  }
  int32_t take() {
    auto& from = unnamed_.empty() ? named_ : unnamed_;
    if (from.empty()) return BlockPool::kNone;
    const int32_t block = from.front();
    from.pop_front();
    names_.erase(block);
    ++holders_[static_cast<size_t>(block)];
    return block;
  }
  void hold(int32_t block) {
    if (holders_[static_cast<size_t>(block)]++ == 0) named_.remove(block);
  }
  void release(int32_t block) {
    if (--holders_[static_cast<size_t>(block)] > 0) return;
    if (names_.contains(block))
      named_.push_back(block);
    else
      unnamed_.push_front(block);
  }
  void publish(int32_t block, uint64_t name) { names_[block] = {++num_published_, name}; }
  int32_t find(uint64_t name) const {
    int32_t found = BlockPool::kNone;
    uint64_t newest = 0;
    for (const auto& [block, published] : names_)
      if (published.second == name && published.first > newest) {
        newest = published.first;
        found = block;
      }
    return found;
  }
  int32_t num_free() const { return static_cast<int32_t>(named_.size() + unnamed_.size()); }
  bool is_named(int32_t block) const { return names_.contains(block); }

 private:
  std::vector<int32_t> holders_;
  std::list<int32_t> named_, unnamed_;
  std::map<int32_t, std::pair<uint64_t, uint64_t>> names_;
  uint64_t num_published_ = 0;
};

TEST(BlockPool, DoesWhatAPlainPoolDoesInAnyOrder) {
  constexpr int kOperations = 4000;
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed);
    const auto size = static_cast<int32_t>(1 + random.below(20));
    BlockPool pool(size);
    PlainPool plain(size);
    std::vector<int32_t> held;  // once per reference
    for (int i = 0; i < kOperations; ++i) {
      const uint64_t name = random.below(8);  // few names, in few buckets
      const size_t one = held.empty() ? 0 : random.below(held.size());
      switch (random.below(4)) {
        case 0: {
          const int32_t block = pool.take();
          ASSERT_EQ(block, plain.take());
          if (block != BlockPool::kNone) held.push_back(block);
          break;
        }
        case 1: {
          const int32_t block = pool.find(name_of(name, name % 2));
          ASSERT_EQ(block, plain.find(name));
          if (block == BlockPool::kNone) break;
          pool.hold(block);
          plain.hold(block);
          held.push_back(block);
          break;
        }
        case 2:
          if (held.empty() || plain.is_named(held[one])) break;
          pool.publish(held[one], name_of(name, name % 2));
          plain.publish(held[one], name);
          break;
        default:
          if (held.empty()) break;
          pool.release(held[one]);
          plain.release(held[one]);
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(one));
      }
      ASSERT_EQ(pool.num_free(), plain.num_free());
    }
    for (const int32_t block : held) pool.release(block);
    EXPECT_EQ(pool.num_free(), size);
  }
}

}  // namespace
}  // namespace primerl
