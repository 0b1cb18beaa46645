// Policy versions in Rollout: the version under which a group opens, and when the gate opens.
#include <set>

#include "tests/actors/rollout_story.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using RolloutVersions = testing::RolloutStory;

TEST_F(RolloutVersions, NewVersionsOpenNewGroupsUnderNewSalts) {
  live(0);
  task(0);
  live(1);
  task(1);
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(4));
  EXPECT_EQ(made[0].salt, "main:0");
  EXPECT_EQ(made[2].salt, "main:1");
}

/// The trainer has made version 1, but engines are still applying it: groups open under version 0.
TEST_F(RolloutVersions, AGroupOpensUnderTheLiveVersionWhileANewerOneIsMade) {
  live(0);
  task(0);
  task(1);
  play(requests());
  for (const auto& group : groups()) end(group, RolloutEnd::kTrained, 1);
  task(2);
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(2));
  for (const auto& request : made) {
    EXPECT_EQ(request.version, PolicyVersion(0));
    EXPECT_EQ(request.salt, "main:0");
  }
  play(made);
  EXPECT_EQ(groups().at(0).version, PolicyVersion(0)) << "its staleness counts from there";
}

TEST_F(RolloutVersions, AnOlderPolicyChangesNothing) {
  live(2);
  live(1);
  task(0);
  EXPECT_EQ(requests().front().version, PolicyVersion(2));
}

TEST_F(RolloutVersions, ASnapshotOpensNoGroup) {
  const AdapterId snapshot = snapshot_key({}, 1).adapter;
  PolicyLive only_snapshot{.version = PolicyVersion(7), .adapter = snapshot};
  ASSERT_TRUE(rollout.give("policy", only_snapshot).ok());
  task(0);
  EXPECT_THAT(requests(), IsEmpty());
  // The message with version 0 of the moving key was replaced by one of another snapshot.
  only_snapshot.others = {{.adapter = {}, .version = PolicyVersion(0)}};
  ASSERT_TRUE(rollout.give("policy", only_snapshot).ok());
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(2));
  for (const GenerateRequest& request : made) {
    EXPECT_EQ(request.version, PolicyVersion(0));
    EXPECT_TRUE(request.adapter.is_none());
  }
}

TEST_F(RolloutVersions, ALostGroupLetsAnotherOpen) {
  live(0);
  for (uint64_t i = 0; i < 5; ++i) task(i);
  auto made = requests();
  ASSERT_THAT(made, SizeIs(8));
  play({made[0], made[1]});
  const auto delivered = groups();
  ASSERT_THAT(delivered, SizeIs(1));
  EXPECT_THAT(requests(), IsEmpty());
  end(delivered[0], RolloutEnd::kFiltered);
  EXPECT_THAT(requests(), SizeIs(2));
}

TEST_F(RolloutVersions, ATrainedGroupLetsNoOtherOpenBeforeItsVersionIsLive) {
  live(0);
  for (uint64_t i = 0; i < 5; ++i) task(i);
  auto made = requests();
  play({made[0], made[1]});
  play({made[2], made[3]});
  for (const auto& group : groups()) end(group, RolloutEnd::kTrained, 1);
  EXPECT_THAT(requests(), IsEmpty());
  live(1);
  EXPECT_THAT(requests(), SizeIs(2));
}

struct RolloutWithFullPace : testing::RolloutStory {
  RolloutWithFullPace() : RolloutStory({.model = "", .pace = "full"}, testing::a_tenant(2, 2, 4)) {}
};

/// Two groups per batch and a limit of 4 versions: five batches of groups, and not one group more.
TEST_F(RolloutWithFullPace, OpensAllGroupsThatTheStalenessLimitPermits) {
  live(0);
  for (uint64_t i = 0; i < 11; ++i) task(i);
  EXPECT_THAT(requests(), SizeIs(20));
  EXPECT_TRUE(rollout.is_paused("task"));
}

struct RolloutWithAdaptivePace : testing::RolloutStory {
  RolloutWithAdaptivePace() : RolloutStory({}, testing::a_tenant(2, 2, 4)) {}
};

TEST_F(RolloutWithAdaptivePace, BeginsWithTwoBatchesWhateverTheStalenessLimit) {
  live(0);
  for (uint64_t i = 0; i < 5; ++i) task(i);
  EXPECT_THAT(requests(), SizeIs(8));
  EXPECT_TRUE(rollout.is_paused("task"));
}

TEST_F(RolloutVersions, AResumedRunCountsItsAttemptsAndItsBatches) {
  ResumePoint point;
  point.version = PolicyVersion(5);
  point.manifest = *parse_json(R"({"resumes": 1, "consumed": []})", "manifest");
  rollout.set_resume_point(TenantSlot(0), point);
  live(5);
  for (uint64_t i = 20; i < 26; ++i) task(i);
  const auto made = requests();
  EXPECT_THAT(made, SizeIs(8)) << "as many as a fresh run opens under its first version";
  EXPECT_EQ(made[0].attempt, 2U);
}

}  // namespace
}  // namespace primerl
