// Members are checked one by one: a member that cannot train does not affect the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>

#include "graph/base/random.h"
#include "tests/actors/trainer_story.h"

namespace primerl {
namespace {

using testing::a_group;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::TrainerStory;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Fault {
  std::string words;  // part of the reported fault
  std::function<void(Trajectory&)> make;
};

const std::vector<Fault>& faults() {
  static const std::vector<Fault> all = {
      {"has no tokens", [](Trajectory& m) { m = Trajectory(); }},
      {"more than the learner's limit of 8",
       [](Trajectory& m) {
         m.tokens.resize(9, 97);
         m.sampled.resize(9, 1);
         m.logprobs.resize(9, -1);
       }},
      {"token 256 is outside", [](Trajectory& m) { m.tokens[4] = 256; }},
      {"token -1 is outside", [](Trajectory& m) { m.tokens[0] = -1; }},
      {"4 loss_mask", [](Trajectory& m) { m.sampled.pop_back(); }},
      {"6 logprobs", [](Trajectory& m) { m.logprobs.push_back(-1); }},
      {"mask has a 2", [](Trajectory& m) { m.sampled[3] = 2; }},
      {"none of its 5 tokens",
       [](Trajectory& m) {
         m.sampled = {1, 0, 0, 0, 0};
       }},
      {"token 2 is nan", [](Trajectory& m) { m.logprobs[2] = kNan; }},
      {"token 3 is -inf", [](Trajectory& m) { m.logprobs[3] = -kInfinity; }},
      {"token 4 is 0.5", [](Trajectory& m) { m.logprobs[4] = 0.5F; }},
      {"reward nan", [](Trajectory& m) { m.reward = kNan; }},
      {"reward inf", [](Trajectory& m) { m.reward = kInfinity; }},
      {"reward -1000001", [](Trajectory& m) { m.reward = -1000001; }},
  };
  return all;
}

struct MembersStory : TrainerStory {
  explicit MembersStory(Tenant tenant = testing::a_tenant(3, 2)) : TrainerStory({}, tenant) {
    learner.limits_ = {8, 256};
  }
};

/// A fixture that is created inside a test, one of many.
struct OneOfMany final : MembersStory {
  using MembersStory::MembersStory;
  void TestBody() override {}
};

TEST_F(MembersStory, OnlyTheBadMemberFailsAndItsBatchTrains) {
  for (size_t i = 0; i < faults().size(); ++i) {
    OneOfMany other;
    other.start();
    auto group = a_group(0, 0, {0, 1, 0.5});
    faults()[i].make(group.members[1]);
    other.give(group);
    other.give(a_group(1, 0, {0, 1, 0.5}));
    other.work();
    ASSERT_THAT(other.learner.batches, SizeIs(1)) << faults()[i].words;
    EXPECT_THAT(other.learner.batches[0].samples, SizeIs(5));
    EXPECT_EQ(other.learner.batches[0].samples[0].advantages[0], -0.25F) << "over the survivors";
    const auto ends = other.ended();
    ASSERT_THAT(ends, SizeIs(2));
    EXPECT_EQ(ends[0].end, RolloutEnd::kTrained);
    ASSERT_THAT(ends[0].refused, SizeIs(1)) << faults()[i].words;
    EXPECT_EQ(ends[0].refused[0].member, 1U);
    EXPECT_THAT(ends[0].refused[0].fault, HasSubstr(faults()[i].words));
    EXPECT_THAT(ends[1].refused, IsEmpty());
  }
}

TEST_F(MembersStory, TakesAMemberAtTheLimitAndNoneOneTokenLonger) {
  start();
  auto group = a_group(0, 0, {0, 1, 0.5});
  for (size_t i = 0; i < 2; ++i) {
    Trajectory& member = group.members[i];
    member.tokens.resize(8 + i, 97);
    member.sampled.resize(8 + i, 1);
    member.logprobs.resize(8 + i, -1);
  }
  give(group);
  give(a_group(1, 0, {0, 1, 0.5}));
  work();
  EXPECT_THAT(learner.batches[0].samples, SizeIs(5));
  const auto refused = ended()[0].refused;
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].member, 1U);
  EXPECT_THAT(refused[0].fault, HasSubstr("9 tokens are more than the learner's limit of 8"));
}

TEST_F(MembersStory, AGroupFailsWhenFewerThanTwoSurviveAndSaysWhichWereBad) {
  start();
  auto group = a_group(0, 0, {0, 1, 0.5});
  group.members[0].logprobs[2] = kNan;
  group.members[2].tokens[2] = 999;
  give(group);
  const auto ends = ended();
  ASSERT_THAT(ends, SizeIs(1));
  EXPECT_EQ(ends[0].end, RolloutEnd::kFailed);
  EXPECT_THAT(ends[0].reason, HasSubstr("1 of 3 members survived"));
  ASSERT_THAT(ends[0].refused, SizeIs(2));
  EXPECT_EQ(ends[0].refused[0].member, 0U);
  EXPECT_EQ(ends[0].refused[1].member, 2U);
}

TEST_F(MembersStory, AdvantagesAreOverSurvivorsSoThatEqualOnesAreFiltered) {
  start();
  auto group = a_group(0, 0, {1, 1, 0});
  group.members[2].logprobs[2] = kNan;
  give(group);
  EXPECT_EQ(ended()[0].end, RolloutEnd::kFiltered);
}

TEST_F(MembersStory, AMemberThatFailedBeforeIsNotNamedAgain) {
  start();
  auto group = a_group(0, 0, {0, 1, 0.5});
  group.members[0] = Trajectory();
  group.members[0].is_failed = true;
  give(group);
  give(a_group(1, 0, {0, 1, 0.5}));
  work();
  EXPECT_THAT(ended()[0].refused, IsEmpty());
}

// With random bad members, every group ends once, every bad member is named once, and the learner
// never gets a bad one, because it would refuse the whole batch.
TEST_F(MembersStory, RandomBadMembersNeverCostAGoodOne) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    OneOfMany story(testing::a_tenant(4, 2));
    story.start();
    RandomStream random(seed);
    std::map<uint64_t, std::set<uint32_t>> bad;
    size_t num_good = 0;
    for (uint64_t ordinal = 0; ordinal < 8; ++ordinal) {
      auto group = a_group(ordinal, story.weights->newest({}).value, {0, 1, 0.25, 0.5});
      for (uint32_t i = 0; i < 4; ++i) {
        if (random.below(4) != 0) continue;
        faults()[random.below(faults().size())].make(group.members[i]);
        bad[ordinal].insert(i);
      }
      if (const size_t survivors = 4 - bad[ordinal].size(); survivors >= 2) num_good += survivors;
      story.give(group);
      story.work();
    }
    std::set<uint64_t> ended;
    size_t num_waiting = 0;
    for (const auto& end : story.ended()) {
      EXPECT_TRUE(ended.insert(end.ordinal).second) << "seed " << seed;
      std::set<uint32_t> named;
      for (const auto& refused : end.refused) named.insert(refused.member);
      EXPECT_EQ(named, bad[end.ordinal]) << "seed " << seed;
      EXPECT_EQ(end.end == RolloutEnd::kTrained, named.size() <= 2) << "seed " << seed;
      EXPECT_THAT(end.reason, ::testing::Not(HasSubstr("skipped"))) << "seed " << seed;
    }
    for (uint64_t ordinal = 0; ordinal < 8; ++ordinal)
      if (ended.count(ordinal) == 0) num_waiting += 4 - bad[ordinal].size();
    size_t num_trained = 0;
    for (const auto& batch : story.learner.batches) num_trained += batch.samples.size();
    EXPECT_EQ(num_trained + num_waiting, num_good) << "seed " << seed;
    EXPECT_EQ(story.trainer.counter("steps_skipped"), 0) << "seed " << seed;
  }
}

}  // namespace
}  // namespace primerl
