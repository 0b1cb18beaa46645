#include "runtime/exec/drain.h"

#include <gtest/gtest.h>

namespace primerl {
namespace {

TEST(SlotDrain, IsOverAfterTwoEqualCounts) {
  SlotDrain drain;
  const std::vector<SlotCounts> under_way = {{2, 1, true}, {0, 0, true}};
  const std::vector<SlotCounts> quiet = {{2, 1, true}, {0, 1, true}};
  EXPECT_FALSE(drain.is_over(under_way));
  EXPECT_FALSE(drain.is_over(quiet));
  EXPECT_TRUE(drain.is_over(quiet));
}

TEST(SlotDrain, LooksAtOnceAndThenLessAndLess) {
  SlotDrain drain;
  Duration sum, last;
  for (int i = 0; i < 6; ++i) {
    last = drain.next_pause();
    sum += last;
  }
  EXPECT_EQ(sum, Duration::milliseconds(63)) << "1 + 2 + 4 + 8 + 16 + 32";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(drain.next_pause(), SlotDrain::kLookAfterMax);
}

/// With many tenants some checkpoint is always being written.
TEST(SlotDrain, CheckpointsMoveTheDeadlineUpToABound) {
  const Duration drain_max = Duration::seconds(60);
  const Time begin = Time() + Duration::seconds(1000);
  SlotDrain drain;
  drain.ordered(begin, drain_max);
  drain.ordered(begin + Duration::seconds(15), drain_max);
  EXPECT_EQ(drain.deadline(), begin + drain_max) << "the order was repeated";
  drain.saved(Time(), drain_max);
  EXPECT_EQ(drain.deadline(), begin + drain_max) << "a checkpoint of before";
  drain.saved(begin + Duration::seconds(30), drain_max);
  EXPECT_EQ(drain.deadline(), begin + Duration::seconds(90));
  const Time latest = begin + drain_max + SlotDrain::kSavesMax;
  for (int hours = 1; hours < 9; ++hours)
    drain.saved(begin + Duration::seconds(3600 * hours), drain_max);
  EXPECT_EQ(drain.deadline(), latest);
}

}  // namespace
}  // namespace primerl
