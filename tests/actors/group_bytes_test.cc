#include "actors/common/group_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/fakes.h"
#include "tests/actors/rollout_story.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr auto kLimit = static_cast<int64_t>(kMessageBytesMax);

Trajectory a_member(size_t num_tokens, size_t num_spans) {
  Trajectory member;
  member.tokens.assign(num_tokens, INT32_MAX);
  member.sampled.assign(num_tokens, 1);
  member.logprobs.assign(num_tokens, -1.5F);
  member.spans.assign(num_spans, {PolicyVersion(INT64_MAX), INT32_MIN, INT32_MAX});
  return member;
}

TEST(GroupBytes, TheLargestGroupOfATenantIsWhatTheContractSays) {
  Tenant tenant = testing::a_tenant(3);
  tenant.seq_len = 256;  // its token ids are as long as an array in the body may be
  tenant.turns_max = 4;
  tenant.max_off_policy_steps = 2;
  TrajectoryGroup group;
  group.members.assign(3, a_member(256, 4 + 2 + 2));
  EXPECT_EQ(group_bytes_max(tenant, GroupKind::kSampled),
            static_cast<int64_t>(body_bytes_max(group)));
  for (auto& member : group.members) {
    member.logprobs.clear();
    member.weights.assign(256, 1.5F);
    member.spans.clear();
  }
  EXPECT_EQ(group_bytes_max(tenant, GroupKind::kGiven),
            static_cast<int64_t>(body_bytes_max(group)));
}

TEST(GroupBytes, LogProbabilitiesOfATeacherAreInTheBound) {
  Tenant tenant = testing::a_tenant(3);
  tenant.seq_len = 256;
  tenant.turns_max = 4;
  tenant.max_off_policy_steps = 2;
  tenant.teacher.model = "big";
  TrajectoryGroup group;
  group.members.assign(3, a_member(256, 4 + 2 + 2));
  for (auto& member : group.members) member.reference.assign(256, -1.5F);
  EXPECT_EQ(group_bytes_max(tenant, GroupKind::kSampled),
            static_cast<int64_t>(body_bytes_max(group)));
}

TEST(GroupBytes, TheLikeliestTokensOfATeacherAreInTheBound) {
  Tenant tenant = testing::a_tenant(3);
  tenant.seq_len = 64;  // with 4 tokens each, they are as long as an array in the body may be
  tenant.turns_max = 4;
  tenant.max_off_policy_steps = 2;
  tenant.teacher = {.model = "big", .top_k = 4};
  Trajectory member = a_member(64, 4 + 2 + 2);
  member.reference.assign(64, -1.5F);
  member.top_tokens.assign(256, INT32_MAX);
  member.top_logprobs.assign(256, -1.5F);
  TrajectoryGroup group;
  group.members.assign(3, member);
  EXPECT_EQ(group_bytes_max(tenant, GroupKind::kSampled),
            static_cast<int64_t>(body_bytes_max(group)));
  member.top_tokens.push_back(1);
  member.top_logprobs.push_back(-1);
  group.members.assign(3, member);
  EXPECT_LT(static_cast<int64_t>(body_bytes_max(group)),
            group_bytes_max(tenant, GroupKind::kSampled))
      << "longer ones are stored beside the body";
}

TEST(GroupBytes, SamplesAreInTheBound) {
  Tenant tenant = testing::a_tenant(2);
  tenant.seq_len = 16;
  tenant.turns_max = 4;
  tenant.max_off_policy_steps = 2;
  tenant.chat.history = "template";  // each turn may begin a sample of up to seq_len tokens
  Trajectory member = a_member(4 * 16, 4 + 2 + 2);
  member.sample_begins = {16, 32, 48};
  TrajectoryGroup group;
  group.members.assign(2, member);
  EXPECT_EQ(group_bytes_max(tenant, GroupKind::kSampled),
            static_cast<int64_t>(body_bytes_max(group)));
}

TEST(GroupBytes, EverySpanHasAToken) {
  Tenant tenant = testing::a_tenant(1);
  tenant.seq_len = 100;
  tenant.max_off_policy_steps = 1 << 16;
  TrajectoryGroup group;
  group.members.assign(1, a_member(100, 100));
  EXPECT_EQ(group_bytes_max(tenant, GroupKind::kSampled),
            static_cast<int64_t>(body_bytes_max(group)));
}

TEST(GroupBytes, AGroupOfFailedMembersIsNoLargerThanTheBound) {
  Tenant tenant = testing::a_tenant(3);
  tenant.seq_len = 1;
  TrajectoryGroup group;
  group.members.resize(3);
  for (auto& member : group.members) member.fault = clipped_fault(std::string(10000, 'x'));
  for (const auto kind : {GroupKind::kSampled, GroupKind::kGiven})
    EXPECT_GE(group_bytes_max(tenant, kind), static_cast<int64_t>(body_bytes_max(group)));
}

TEST(GroupBytes, LongContextsAreStoredBesideTheBody) {
  Tenant tenant = testing::a_tenant(16);
  tenant.seq_len = 131072;
  tenant.turns_max = 200;
  TrajectoryGroup group;
  group.members.assign(16, a_member(131072, 200));
  EXPECT_LT(body_bytes_max(group), 16 * 200 * 40);
  EXPECT_LE(static_cast<int64_t>(body_bytes_max(group)),
            group_bytes_max(tenant, GroupKind::kSampled));
  EXPECT_LE(group_bytes_max(tenant, GroupKind::kSampled), kLimit);
  EXPECT_TRUE(check_group_bytes(group).ok());
  EXPECT_EQ(message_type<TrajectoryGroup>().blob_bytes(&group), 16 * 131072 * 9);
}

TEST(GroupBytes, AGroupOfTheLimitFitsAndOneMoreSpanDoesNot) {
  TrajectoryGroup group;
  group.members.resize(1);
  const auto frame = static_cast<int64_t>(body_bytes_max(group));
  group.members[0].spans.resize(1);
  const auto span = static_cast<int64_t>(body_bytes_max(group)) - frame;
  group.members[0].spans.resize(static_cast<size_t>((kLimit - frame) / span));
  EXPECT_TRUE(check_group_bytes(group).ok());
  group.members[0].spans.emplace_back();
  const Status status = check_group_bytes(group);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().text(), HasSubstr("a group of 10"));
  EXPECT_THAT(status.error().text(), HasSubstr("turns_max"));
}

TEST(GroupBytes, AFaultIsCutAfterAWholeCharacter) {
  EXPECT_EQ(clipped_fault(std::string(kFaultBytesMax, 'x')).size(), kFaultBytesMax);
  EXPECT_EQ(clipped_fault(std::string(kFaultBytesMax + 1, 'x')).size(), kFaultBytesMax);
  const std::string wide = std::string(kFaultBytesMax - 1, 'x') + "\u00e9";
  EXPECT_EQ(clipped_fault(wide), std::string(kFaultBytesMax - 1, 'x'));
}

/// Two members of one turn each, in which the weights changed more often than `check` allows.
struct LargeGroups : testing::RolloutStory {
  static Tenant large() {
    Tenant tenant = testing::a_tenant();
    tenant.seq_len = 1 << 20;
    tenant.sampling.max_tokens = 1 << 20;
    return tenant;
  }
  LargeGroups() : RolloutStory({}, large()) {}
  void play_turns_of(size_t num_spans) {
    live(0);
    task(0);
    for (const auto& request : requests()) {
      Completion completion;
      completion.request = request.request;
      completion.session = request.session;
      completion.end = FinishReason::kStop;
      completion.tokens.assign(num_spans, 'x');
      completion.logprobs.assign(num_spans, -1.0F);
      for (size_t i = 0; i < num_spans; ++i) {
        const auto at = static_cast<int32_t>(i);
        completion.spans.push_back({PolicyVersion(at), at, at + 1});
      }
      ASSERT_TRUE(rollout.give("completion", completion).ok());
    }
    for (const auto& action : actions()) observe(action, 1);
  }
  /// The number of spans of each member in the largest group of two that fits.
  static size_t most_spans() {
    TrajectoryGroup group;
    group.members.assign(2, a_member(100'000, 0));
    const size_t without = body_bytes_max(group);
    for (auto& member : group.members) member.spans.resize(1);
    return (kMessageBytesMax - without) / (body_bytes_max(group) - without);
  }
};

TEST_F(LargeGroups, ThatFitAreDelivered) {
  play_turns_of(most_spans());
  const auto delivered = groups();
  ASSERT_THAT(delivered, SizeIs(1));
  EXPECT_FALSE(delivered[0].members[0].is_failed);
  EXPECT_EQ(rollout.counter("groups_too_large"), 0);
}

TEST_F(LargeGroups, ThatDoNotFitFailAndSayWhy) {
  play_turns_of(most_spans() + 1);
  const auto delivered = groups();
  ASSERT_THAT(delivered, SizeIs(1));
  EXPECT_LE(body_bytes_max(delivered[0]), kMessageBytesMax);
  for (const auto& member : delivered[0].members) {
    EXPECT_TRUE(member.is_failed);
    EXPECT_THAT(member.fault, HasSubstr("does not fit into a message"));
  }
  EXPECT_EQ(rollout.counter("groups_too_large"), 1);
  EXPECT_THAT(end_names(), ::testing::ElementsAre("failed", "failed"));
}

}  // namespace
}  // namespace primerl
