// Metrics of a step beyond means: histograms, pass@k, wasted tokens, and lines
// while no step comes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/trainer_story.h"

namespace primerl {
namespace {

using testing::a_group;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::TrainerStory;

/// Groups of four rollouts, two of them in a batch; each rollout has three sampled tokens.
struct TrainerMetrics : TrainerStory {
  TrainerMetrics() : TrainerStory({}, tenant()) {}
  static Tenant tenant() {
    Tenant tenant = testing::a_tenant(4, 2, 1);
    tenant.eval.pass_reward = 0.5;
    return tenant;
  }
  /// The metrics of the step that these two groups make.
  const auto& step_of(TrajectoryGroup first, TrajectoryGroup second) {
    give(std::move(first));
    give(std::move(second));
    work();
    return trainer.metrics().back();
  }
};

TEST_F(TrainerMetrics, PassAtKIsTheUnbiasedEstimateOfGroupsThatPlayedWhole) {
  start();
  // c = 1 and 2 of n = 4: pass@2 = 1 - C(3,2)/C(4,2) = 0.5 and 1 - C(2,2)/C(4,2) = 5/6.
  const auto& metrics = step_of(a_group(0, 0, {0.5, 0, 0, 0.49}), a_group(1, 0, {1, 0, 0, 0.5}));
  EXPECT_DOUBLE_EQ(metrics.at("reward/all/pass@1"), (0.25 + 0.5) / 2);
  EXPECT_DOUBLE_EQ(metrics.at("reward/all/pass@2"), (0.5 + 5.0 / 6) / 2);
  EXPECT_DOUBLE_EQ(metrics.at("reward/all/pass@4"), 1);
}

TEST_F(TrainerMetrics, FilteredGroupsCountInPassAtKAndInTheRewards) {
  start();
  give(a_group(0, 0, {0, 0, 0, 0}));  // filtered: equal rewards
  const auto& metrics = step_of(a_group(1, 0, {1, 0, 0, 0}), a_group(2, 0, {1, 0, 0, 0}));
  EXPECT_DOUBLE_EQ(metrics.at("reward/all/pass@4"), 2.0 / 3);
  EXPECT_EQ(metrics.at("reward/all/le/0"), 10);
  EXPECT_EQ(metrics.at("reward/all/le/1"), 2);
}

TEST_F(TrainerMetrics, AGroupWithAFailedMemberHasNoPassAtK) {
  start();
  auto broken = a_group(0, 0, {1, 0, 1, 0.2});
  broken.members[1].is_failed = true;
  const auto& metrics = step_of(std::move(broken), a_group(1, 0, {0, 0, 0, 0.1}));
  EXPECT_EQ(metrics.at("reward/all/pass@1"), 0);
}

TEST_F(TrainerMetrics, StalenessAndLengthsAreCountedInBuckets) {
  start();
  const auto& metrics = step_of(a_group(0, 0, {1, 0, 0, 0}), a_group(1, 0, {1, 0, 0, 0}));
  EXPECT_EQ(metrics.at("off_policy/le/0"), 8);
  EXPECT_EQ(metrics.at("completion_len/all/le/4"), 8);
  EXPECT_EQ(metrics.at("completion_len/all/mean"), 3);
  EXPECT_EQ(metrics.at("completion_len/all/max"), 3);
  const auto& older = step_of(a_group(2, 0, {1, 0, 0, 0}), a_group(3, 1, {1, 0, 0, 0}));
  EXPECT_EQ(older.at("off_policy/le/0"), 4);
  EXPECT_EQ(older.at("off_policy/le/1"), 4);
}

TEST_F(TrainerMetrics, TokensThatNeverTrainAreCountedByWhatBecameOfThem) {
  start();
  give(a_group(0, 0, {1, 1, 1, 1}));  // filtered: 12 tokens
  auto failed = a_group(1, 0, {1, 0, 0, 0});
  for (size_t i = 0; i < 3; ++i) failed.members[i].is_failed = true;  // as refused ones: 12 tokens
  give(std::move(failed));
  auto partly = a_group(2, 0, {1, 0, 1, 0});
  partly.members[0].is_failed = true;  // 3 tokens of a group that trains
  const auto& metrics = step_of(std::move(partly), a_group(3, 0, {1, 0, 0, 0}));
  EXPECT_EQ(metrics.at("progress/filtered_tokens"), 12);
  EXPECT_EQ(metrics.at("progress/failed_tokens"), 15);
  EXPECT_EQ(metrics.at("progress/stale_tokens"), 0);
  EXPECT_EQ(step_of(a_group(4, 1, {1, 0, 0, 0}), a_group(5, 1, {1, 0, 0, 0}))
                .at("progress/failed_tokens"),
            0)
      << "since the last step";
}

TEST_F(TrainerMetrics, FilteredGroupsAreReportedWhileNoStepComes) {
  start();
  for (uint64_t i = 0; i < 11; ++i) give(a_group(i, 0, {1, 1, 1, 1}));
  EXPECT_THAT(trainer.metrics(), IsEmpty());
  give(a_group(11, 0, {1, 1, 1, 1}));  // 6 batches of 2 groups
  ASSERT_THAT(trainer.metrics(), SizeIs(1));
  EXPECT_EQ(trainer.metrics()[0].at("waiting/groups_filtered"), 12);
  EXPECT_EQ(trainer.metrics()[0].at("waiting/groups"), 2);
  const auto& metrics = step_of(a_group(20, 0, {1, 0, 0, 0}), a_group(21, 0, {1, 0, 0, 0}));
  EXPECT_EQ(metrics.at("progress/groups_filtered"), 12);
  EXPECT_EQ(metrics.at("progress/groups"), 2);
}

}  // namespace
}  // namespace primerl
