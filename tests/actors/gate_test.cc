#include "actors/rollout/gate.h"

#include <gtest/gtest.h>

namespace primerl {
namespace {

GateLimits limits(int64_t groups, int64_t max_off_policy) {
  return {groups, max_off_policy, 4, 64};
}

/// With the largest depth, so that only the other rules decide.
GateAnswer ask(const GateLimits& limits, const GateCounts& counts, PolicyVersion live) {
  return ask_gate(limits, counts, limits.depth_max(), live);
}

TEST(Gate, OpensNothingBeforeTheFirstPolicyIsLive) {
  EXPECT_EQ(ask(limits(8, 2), {}, PolicyVersion()), GateAnswer::kNoPolicy);
  EXPECT_EQ(ask(limits(8, 2), {}, PolicyVersion(0)), GateAnswer::kOpen);
}

TEST(Gate, TakesGroupsUpToTheOpenedLimitAndNotOneMore) {
  for (int64_t max = 0; max <= 3; ++max)
    for (int64_t version = 0; version <= 4; ++version)
      for (int64_t lost = 0; lost <= 5; ++lost) {
        const int64_t limit = (version + 1 + max) * 8 + lost;
        GateCounts counts;
        counts.lost = lost;
        counts.opened = limit - 1;
        EXPECT_EQ(ask(limits(8, max), counts, PolicyVersion(version)), GateAnswer::kOpen);
        counts.opened = limit;
        EXPECT_EQ(ask(limits(8, max), counts, PolicyVersion(version)), GateAnswer::kOpenedLimit);
      }
}

TEST(Gate, LetsAtMostOneBatchMoreWaitAtTheTrainer) {
  for (int64_t max = 2; max <= 5; ++max)
    for (int64_t version = 0; version <= 4; ++version)
      for (int64_t lost = 0; lost <= 5; ++lost) {
        const int64_t limit = (version + 2) * 8 + lost;
        GateCounts counts;
        counts.lost = lost;
        counts.opened = counts.delivered = limit - 1;
        EXPECT_EQ(ask_gate(limits(8, max), counts, 16, PolicyVersion(version)), GateAnswer::kOpen);
        counts.opened = counts.delivered = limit;
        EXPECT_EQ(ask_gate(limits(8, max), counts, 16, PolicyVersion(version)), GateAnswer::kPaced);
      }
}

TEST(Gate, OpensAWholeGroupOrNone) {
  GateCounts counts;
  counts.inflight = 60;
  EXPECT_EQ(ask(limits(100, 2), counts, PolicyVersion(0)), GateAnswer::kOpen);
  counts.inflight = 61;
  EXPECT_EQ(ask(limits(100, 2), counts, PolicyVersion(0)), GateAnswer::kInflightLimit);
}

TEST(Gate, OnPolicyMeansThatNothingOfTheNextBatchIsOpen) {
  GateCounts counts;
  counts.opened = 8;
  EXPECT_EQ(ask(limits(8, 0), counts, PolicyVersion(0)), GateAnswer::kOpenedLimit);
  EXPECT_EQ(ask(limits(8, 0), counts, PolicyVersion(1)), GateAnswer::kOpen);
}

TEST(Gate, OpensABatchForEachVersionOnceThePipeIsFull) {
  GateCounts counts;
  counts.opened = 8 * 3 + 19;
  EXPECT_EQ(ask_gate(limits(8, 9), counts, 20, PolicyVersion(3)), GateAnswer::kOpen);
  counts.opened = 8 * 3 + 20;
  EXPECT_EQ(ask_gate(limits(8, 9), counts, 20, PolicyVersion(3)), GateAnswer::kPaced);
  counts.opened = 8 * 3 + 27;
  EXPECT_EQ(ask_gate(limits(8, 9), counts, 20, PolicyVersion(4)), GateAnswer::kOpen);
  counts.opened = 8 * 3 + 28;
  EXPECT_EQ(ask_gate(limits(8, 9), counts, 20, PolicyVersion(4)), GateAnswer::kPaced);
  counts.lost = 1;
  EXPECT_EQ(ask_gate(limits(8, 9), counts, 20, PolicyVersion(4)), GateAnswer::kOpen)
      << "a lost group is replaced at once";
}

TEST(Staleness, CountsFromTheVersionTheBatchIsAppliedTo) {
  // The example of the reference: limit 2, k = 5: batch 6 -> 0, batch 8 -> 2, batch 9 -> dropped.
  EXPECT_EQ(staleness(PolicyVersion(6), PolicyVersion(5)), 0);
  EXPECT_EQ(staleness(PolicyVersion(8), PolicyVersion(5)), 2);
  EXPECT_TRUE(can_train(PolicyVersion(7), PolicyVersion(5), 2));
  EXPECT_FALSE(can_train(PolicyVersion(8), PolicyVersion(5), 2));
}

}  // namespace
}  // namespace primerl
