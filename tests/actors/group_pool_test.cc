#include "actors/trainer/group_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/actors/fakes.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;

std::vector<uint64_t> ordinals(const std::vector<PooledGroup>& groups) {
  std::vector<uint64_t> made;
  for (const auto& group : groups) made.push_back(group.group.ordinal);
  return made;
}

struct GroupPoolStory : ::testing::Test {
  void add(uint64_t ordinal, int64_t version) {
    EXPECT_TRUE(pool.add({testing::a_group(ordinal, version, {0, 1}), {}, {}}));
  }
  bool has_straggler(size_t count, int64_t made, int64_t max, std::set<uint64_t> consumed = {}) {
    return pool.has_straggler(count, PolicyVersion(made), max,
                              [&](uint64_t ordinal) { return consumed.count(ordinal) > 0; });
  }
  GroupPool pool;
};

TEST_F(GroupPoolStory, GivesTheOldestByVersionThenByOrdinal) {
  add(5, 1);
  add(9, 0);
  add(4, 1);
  EXPECT_THAT(ordinals(pool.take_oldest(2)), ElementsAre(9, 4));
  EXPECT_EQ(pool.size(), 1U);
}

TEST_F(GroupPoolStory, TakesAnOrdinalOnceUntilItIsGone) {
  add(5, 1);
  EXPECT_FALSE(pool.add({testing::a_group(5, 1, {0, 1}), {}, {}}));
  EXPECT_FALSE(pool.add({testing::a_group(5, 2, {0, 1}), {}, {}})) << "of another version";
  EXPECT_THAT(ordinals(pool.take_all()), ElementsAre(5));
  add(5, 1);
}

TEST_F(GroupPoolStory, WhatIsOneStepTooOldIsStale) {
  add(0, 3);
  add(1, 4);
  add(2, -1);  // supervised: without a version, never stale
  EXPECT_THAT(ordinals(pool.take_stale(PolicyVersion(5), 2)), ElementsAre());
  EXPECT_THAT(ordinals(pool.take_stale(PolicyVersion(6), 2)), ElementsAre(0));
  EXPECT_THAT(ordinals(pool.take_stale(PolicyVersion(100), 2)), ElementsAre(1));
  EXPECT_EQ(pool.size(), 1U);
}

TEST_F(GroupPoolStory, AMissingOrdinalIsAStragglerUntilItIsConsumed) {
  add(1, 0);
  EXPECT_FALSE(has_straggler(2, 0, 2)) << "there is no batch yet";
  add(2, 0);
  EXPECT_TRUE(has_straggler(2, 0, 2));
  EXPECT_FALSE(has_straggler(2, 0, 2, {0}));
}

TEST_F(GroupPoolStory, AStragglerThatCannotTrainIsNotWaitedFor) {
  add(1, 0);
  add(2, 1);
  EXPECT_TRUE(has_straggler(2, 2, 2));
  EXPECT_FALSE(has_straggler(2, 3, 2));
}

}  // namespace
}  // namespace primerl
