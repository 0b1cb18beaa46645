// Members of several samples: one reward, each sampled token once in the batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "kernels/engine/kept_sets.h"
#include "tests/actors/trainer_story.h"

namespace primerl {
namespace {

using testing::a_group;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// Two samples: tokens 1 2 3 4, where 3 and 4 are sampled, and tokens 1 2 5 with 5 sampled.
Trajectory two_samples(uint64_t name, double reward) {
  Trajectory member;
  member.trajectory = name;
  member.tokens = {1, 2, 3, 4, 1, 2, 5};
  member.sampled = {0, 0, 1, 1, 0, 0, 1};
  member.logprobs = {0, 0, -1, -2, 0, 0, -3};
  member.sample_begins = {4};
  member.reward = reward;
  member.num_turns = 2;
  return member;
}

TrajectoryGroup group_of_samples(uint64_t ordinal) {
  auto group = a_group(ordinal, 0, {0, 1, 0.5});
  group.members[1] = two_samples(7, 1);
  return group;
}

struct SamplesStory : testing::TrainerStory {
  explicit SamplesStory(Tenant tenant = testing::a_tenant(3, 2)) : TrainerStory({}, tenant) {
    learner.limits_ = {8, 256};
  }
  std::vector<RefusedMember> refused_with(const std::function<void(Trajectory&)>& change) {
    auto group = group_of_samples(next_++);
    change(group.members[1]);
    give(group);
    give(a_group(next_++, 0, {0, 1, 0.5}));
    work();
    return ended().front().refused;
  }

 private:
  uint64_t next_ = 0;
};

struct OneSamplesStory final : SamplesStory {
  using SamplesStory::SamplesStory;
  void TestBody() override {}
};

TEST_F(SamplesStory, EachSampleTrainsWithTheAdvantageOfItsMember) {
  start();
  give(group_of_samples(0));
  give(a_group(1, 0, {0, 1, 0.5}));
  work();
  ASSERT_THAT(learner.batches, SizeIs(1));
  const auto& samples = learner.batches[0].samples;
  ASSERT_THAT(samples, SizeIs(7)) << "six members, one of them with two samples";
  EXPECT_THAT(samples[1].tokens, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(samples[1].loss_mask, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(samples[2].tokens, ElementsAre(1, 2, 5));
  EXPECT_THAT(samples[2].logprobs, ElementsAre(0, 0, -3));
  // The mean reward is over the members, not over the samples.
  EXPECT_THAT(samples[1].advantages, Each(0.5F));
  EXPECT_THAT(samples[2].advantages, Each(0.5F));
  (void)trainer.run_work();
  ASSERT_THAT(trainer.metrics(), SizeIs(1));
  const auto& metrics = trainer.metrics()[0];
  EXPECT_EQ(metrics.at("samples_per_rollout/all/max"), 2);
  EXPECT_DOUBLE_EQ(metrics.at("samples_per_rollout/all/mean"), 7.0 / 6);
  EXPECT_EQ(metrics.at("progress/samples"), 6);
  EXPECT_EQ(metrics.at("seq_len/all/max"), 5);
  EXPECT_DOUBLE_EQ(metrics.at("seq_len/all/mean"), (5 * 5 + 7) / 7.0);
}

struct TopKStory : SamplesStory {
  static Tenant taught() {
    Tenant tenant = testing::a_tenant(3, 2);
    tenant.objective = "gkd";
    tenant.teacher = {.model = "big", .top_k = 2};
    return tenant;
  }
  TopKStory() : SamplesStory(taught()) {}
  /// Each sampled token has two likeliest tokens: its number among all, and 200.
  static TrajectoryGroup with_top(TrajectoryGroup group) {
    int32_t number = 0;
    for (auto& member : group.members) {
      member.reference.assign(member.tokens.size(), 0.0F);
      for (const uint8_t sampled : member.sampled) {
        if (sampled == 0) continue;
        member.top_tokens.insert(member.top_tokens.end(), {number++, 200});
        member.top_logprobs.insert(member.top_logprobs.end(), {-0.5F, -2});
      }
    }
    return group;
  }
};

TEST_F(TopKStory, TheTeachersTokensGoWithTheirSampledTokens) {
  start();
  give(with_top(group_of_samples(0)));
  give(with_top(a_group(1, 0, {1, 1, 1})));
  work();
  ASSERT_THAT(learner.batches, SizeIs(1)) << "equal rewards train";
  EXPECT_EQ(learner.batches[0].loss, LossKind::kTopK);
  const auto& samples = learner.batches[0].samples;
  ASSERT_THAT(samples, SizeIs(7));
  EXPECT_THAT(samples[0].top_tokens, ElementsAre(0, 200, 1, 200, 2, 200));
  EXPECT_THAT(samples[1].top_tokens, ElementsAre(3, 200, 4, 200));
  EXPECT_THAT(samples[2].top_tokens, ElementsAre(5, 200)) << "of the second sample";
  EXPECT_THAT(samples[2].top_logprobs, ElementsAre(-0.5F, -2));
  EXPECT_THAT(samples[2].logprobs, ElementsAre(0, 0, -3)) << "for the ratio";
}

TEST_F(TopKStory, AMemberWithoutTheTeachersTokensFailsAlone) {
  const std::pair<std::function<void(Trajectory&)>, std::string> kFaults[] = {
      {[](Trajectory& m) { m.top_tokens.clear(); }, "it has 0 top tokens"},
      {[](Trajectory& m) { m.top_logprobs.pop_back(); }, "and 5 top log-probabilities"},
      {[](Trajectory& m) { m.top_tokens[1] = m.top_tokens[0]; }, "is twice"},
  };
  uint64_t ordinal = 0;
  start();
  for (const auto& [change, words] : kFaults) {
    auto group = with_top(group_of_samples(ordinal++));
    change(group.members[1]);
    give(group);
    give(with_top(a_group(ordinal++, 0, {0, 1, 0.5})));
    work();
    const auto all = ended();
    ASSERT_FALSE(all.empty());
    ASSERT_THAT(all.front().refused, SizeIs(1)) << words;
    EXPECT_THAT(all.front().refused[0].fault, HasSubstr(words));
  }
}

TEST_F(SamplesStory, ASampleThatTheLearnerRefusesFailsItsMemberAlone) {
  const struct {
    std::string_view words;
    std::function<void(Trajectory&)> change;
  } kFaults[] = {
      {"a sample begins at 0, not in [1, 6]", [](Trajectory& m) { m.sample_begins = {0}; }},
      {"a sample begins at 7, not in [1, 6]", [](Trajectory& m) { m.sample_begins = {7}; }},
      {"a sample begins at 4, not in [5, 6]",
       [](Trajectory& m) {
         m.sample_begins = {4, 4};
       }},
      {"a sample begins at -1", [](Trajectory& m) { m.sample_begins = {-1}; }},
      {"7 tokens in 2 samples, but 6 sampled", [](Trajectory& m) { m.sampled.pop_back(); }},
      {"and 8 logprobs", [](Trajectory& m) { m.logprobs.push_back(0); }},
      {"sample 1: token 999", [](Trajectory& m) { m.tokens[6] = 999; }},
      {"none of its 7 tokens can train", [](Trajectory& m) { m.sampled = {1, 0, 0, 0, 1, 0, 0}; }},
  };
  for (const auto& fault : kFaults) {
    OneSamplesStory story;
    story.start();
    const auto refused = story.refused_with(fault.change);
    ASSERT_THAT(refused, SizeIs(1)) << fault.words;
    EXPECT_EQ(refused[0].member, 1U);
    EXPECT_THAT(refused[0].fault, HasSubstr(std::string(fault.words)));
    EXPECT_THAT(story.learner.batches[0].samples, SizeIs(5)) << fault.words;
  }
}

TEST_F(SamplesStory, SamplesAtTheLearnersLimitTrainAndOneTokenLongerDoesNot) {
  const auto with_length = [](size_t size) {
    return [size](Trajectory& member) {
      member.tokens.assign(4 + size, 1);
      member.sampled.assign(4 + size, 1);
      member.logprobs.assign(4 + size, -1);
    };
  };
  start();
  EXPECT_THAT(refused_with(with_length(8)), SizeIs(0)) << "12 tokens in two samples";
  const auto refused = refused_with(with_length(9));
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_THAT(refused[0].fault, HasSubstr("sample 1: 9 tokens are more than"));
}

struct KeptSamplesStory : SamplesStory {
  static Tenant truncating() {
    Tenant tenant = testing::a_tenant(3, 2);
    tenant.sampling.top_k = 2;
    return tenant;
  }
  KeptSamplesStory() : SamplesStory(truncating()) {}
  static Blob sets_of(const std::vector<int32_t>& tokens) {
    std::vector<std::byte> bytes;
    for (const int32_t token : tokens) append_kept(std::vector{token, token + 1}, 256, bytes);
    return Blob(std::move(bytes));
  }
  static TrajectoryGroup group(uint64_t ordinal, const std::vector<int32_t>& sets) {
    auto made = group_of_samples(ordinal);
    for (auto& member : made.members) {
      std::vector<int32_t> sampled;
      for (size_t i = 0; i < member.tokens.size(); ++i)
        if (member.sampled[i] != 0) sampled.push_back(member.tokens[i]);
      member.kept = sets_of(sampled);
    }
    made.members[1].kept = sets_of(sets);
    return made;
  }
};

TEST_F(KeptSamplesStory, EachSampleGetsTheKeptSetsOfItsTokens) {
  start();
  give(group(0, {3, 4, 5}));
  give(group(1, {3, 4, 5}));
  work();
  ASSERT_THAT(learner.batches, SizeIs(1));
  EXPECT_EQ(learner.batches[0].samples[1].kept, sets_of({3, 4}));
  EXPECT_EQ(learner.batches[0].samples[2].kept, sets_of({5}));
}

TEST_F(KeptSamplesStory, KeptSetsOfOneTokenFewerOrMoreAreRefused) {
  start();
  give(group(0, {3, 4}));
  give(group(1, {3, 4, 5, 6}));
  work();
  const auto ends = ended();
  ASSERT_THAT(ends, SizeIs(2));
  ASSERT_THAT(ends[0].refused, SizeIs(1));
  ASSERT_THAT(ends[1].refused, SizeIs(1));
  EXPECT_THAT(ends[1].refused[0].fault, HasSubstr("after those of its sampled tokens"));
}

}  // namespace
}  // namespace primerl
