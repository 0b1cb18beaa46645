// Objectives, advantages and filters of a tenant in the trainer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "actors/trainer/demands.h"
#include "tests/actors/trainer_story.h"

namespace primerl {
namespace {

using testing::a_group;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::TrainerStory;

/// A trainer whose tenant is changed by `change`: groups of 2, 2 groups a batch.
struct Objectives : ::testing::Test {
  using Change = std::function<void(Tenant& tenant)>;
  struct Story : TrainerStory {
    explicit Story(Tenant tenant) : TrainerStory({}, std::move(tenant)) {}
    void TestBody() override {}
  };
  static std::unique_ptr<Story> with(const Change& change) {
    Tenant tenant = testing::a_tenant();
    change(tenant);
    auto story = std::make_unique<Story>(std::move(tenant));
    story->start();
    return story;
  }
  /// The advantage of each sample of the batch of these groups.
  static std::vector<float> advantages(const Change& change, std::vector<double> first,
                                       std::vector<double> second) {
    auto story = with(change);
    story->give(a_group(0, 0, std::move(first)));
    story->give(a_group(1, 0, std::move(second)));
    story->work();
    std::vector<float> all;
    if (story->learner.batches.empty()) return all;
    for (const auto& sample : story->learner.batches[0].samples)
      all.push_back(sample.advantages.back());
    return all;
  }
};

TEST_F(Objectives, GiveTheAdvantagesOfTheirPaperUnlessTheTenantSaysOtherwise) {
  EXPECT_THAT(advantages([](Tenant&) {}, {0, 1}, {0, 4}), ElementsAre(-0.5F, 0.5F, -2, 2));
  const auto scores = advantages([](Tenant& t) { t.objective = "grpo"; }, {0, 1}, {0, 4});
  ASSERT_THAT(scores, SizeIs(4));
  EXPECT_NEAR(scores[1], std::sqrt(0.5), 1e-4);
  EXPECT_NEAR(scores[3], std::sqrt(0.5), 1e-4);
  EXPECT_THAT(advantages(
                  [](Tenant& t) {
                    t.objective = "grpo";
                    t.advantage.kind = "leave_one_out";
                  },
                  {0, 1}, {0, 4}),
              ElementsAre(-1, 1, -4, 4));
}

TEST_F(Objectives, OfAWholeBatchCompareGroupsAndKeepEqualOnes) {
  const auto all = advantages([](Tenant& t) { t.objective = "reinforce_pp"; }, {1, 1}, {0, 2});
  ASSERT_THAT(all, SizeIs(4));
  EXPECT_NEAR(all[0], 0, 1e-6);
  EXPECT_NEAR(all[2], -all[3], 1e-6);
  EXPECT_GT(all[3], 1);
}

TEST_F(Objectives, WithoutRewardsTrainOnEqualRewardsAndOnASingleSurvivor) {
  auto story = with([](Tenant& t) { t.objective = "opd"; });
  auto group = a_group(0, 0, {1, 1});
  group.members[0].is_failed = true;
  story->give(group);
  story->give(a_group(1, 0, {1, 1}));
  story->work();
  ASSERT_THAT(story->learner.batches, SizeIs(1));
  ASSERT_THAT(story->learner.batches[0].samples, SizeIs(3));
  EXPECT_EQ(story->learner.batches[0].loss, LossKind::kPolicy);
  for (const auto& sample : story->learner.batches[0].samples) {
    EXPECT_EQ(sample.advantages.back(), 0);
    EXPECT_THAT(sample.logprobs, Not(IsEmpty()));
  }
}

TEST_F(Objectives, CostsOfLengthMakeEqualRewardsDiffer) {
  auto story = with([](Tenant& t) { t.advantage.length_weight = 0.5; });
  auto group = a_group(0, 0, {1, 1});
  auto& longer = group.members[1];
  longer.tokens.push_back(longer.tokens.back());
  longer.sampled.push_back(1);
  longer.logprobs.push_back(longer.logprobs.back());
  story->give(group);
  story->give(a_group(1, 0, {0, 1}));
  story->work();
  ASSERT_THAT(story->learner.batches, SizeIs(1));
  const auto& samples = story->learner.batches[0].samples;
  EXPECT_GT(samples[0].advantages.back(), 0) << "the shorter one";
  EXPECT_LT(samples[1].advantages.back(), 0);
}

TEST_F(Objectives, RewardsThatMaxRlCannotUseEndTheirGroupAlone) {
  auto story = with([](Tenant& t) { t.advantage.kind = "max_rl"; });
  story->give(a_group(0, 0, {-1, 1}));
  const auto ends = story->ended();
  ASSERT_THAT(ends, SizeIs(1));
  EXPECT_EQ(ends[0].end, RolloutEnd::kFailed);
  EXPECT_THAT(ends[0].reason, HasSubstr("its rewards are 0 or above"));
  story->give(a_group(1, 0, {0, 1}));
  story->give(a_group(2, 0, {0, 1}));
  story->work();
  EXPECT_THAT(story->learner.batches, SizeIs(1));
}

/// Why the filters leave out the last of three members, in which `change` was done.
std::string filtered(const Objectives::Change& filter,
                     const std::function<void(Trajectory& member)>& change) {
  auto story = Objectives::with(filter);
  auto group = a_group(0, 0, {0, 1, 0.5});
  change(group.members[2]);
  story->give(group);
  story->give(a_group(1, 0, {0, 1, 0.5}));
  story->work();
  const auto ends = story->ended();
  EXPECT_THAT(ends, SizeIs(2)) << "the group continues with two";
  for (const auto& end : ends)
    if (!end.refused.empty()) return end.refused.front().fault;
  return {};
}

TEST_F(Objectives, FiltersLeaveOutRolloutsThatWereCutOff) {
  const auto cut = [](Trajectory& member) { member.is_truncated = true; };
  EXPECT_THAT(filtered([](Tenant& t) { t.filters.truncated = true; }, cut),
              HasSubstr("it was cut off"));
  EXPECT_EQ(filtered([](Tenant&) {}, cut), "");
}

TEST_F(Objectives, FiltersLeaveOutRowsOfNearCertainTokensFromTheLimitOn) {
  const auto certain = [](Trajectory& member) {
    std::fill(member.logprobs.begin(), member.logprobs.end(), 0.0F);
  };
  const int64_t row = [] {
    const auto group = a_group(0, 0, {0, 1});
    return std::count(group.members[0].sampled.begin(), group.members[0].sampled.end(), 1);
  }();
  EXPECT_THAT(filtered([&](Tenant& t) { t.filters.repetition_max = row - 1; }, certain),
              HasSubstr("repetition_max"));
  EXPECT_EQ(filtered([&](Tenant& t) { t.filters.repetition_max = row; }, certain), "");
}

TEST_F(Objectives, FiltersLeaveOutImprobableTokensOfRareIds) {
  int32_t id = 0;
  // The vocabulary has 256 tokens: -ln(256) - 2 = -7.545.
  float logprob = -7.55F;
  const auto improbable = [&](Trajectory& member) {
    id = member.tokens.back();
    member.logprobs.back() = logprob;
  };
  const auto from = [&](int64_t more) {
    return filtered(
        [&](Tenant& t) {
          t.filters.gibberish_from = a_group(0, 0, {0}).members[0].tokens.back() + more;
        },
        improbable);
  };
  EXPECT_THAT(from(0), HasSubstr("log-probability -7.55, below -7.55"));
  EXPECT_EQ(from(1), "");
  logprob = -7.54F;
  EXPECT_EQ(from(0), "") << "not below the limit";
}

TEST_F(Objectives, NameTheReasonsThatTheyCanHaveInTheMetrics) {
  for (const auto& [name, metric] : {std::pair{"dppo", "masked/low/mean"},
                                     {"grpo", "masked/dual/mean"},
                                     {"decoupled_ppo", "masked/weight/mean"},
                                     {"m2po", "masked/moment/mean"},
                                     {"tis", "capped/all/mean"}}) {
    auto story = with([&, kind = name](Tenant& t) { t.objective = kind; });
    story->batch(0, 0);
    story->work();
    story->give(a_group(9, 1, {0, 1}));
    ASSERT_THAT(story->trainer.metrics(), SizeIs(1)) << name;
    const auto& values = story->trainer.metrics()[0].values;
    const auto has = [&](std::string_view wanted) {
      return std::ranges::any_of(values, [&](const auto& each) { return each.first == wanted; });
    };
    EXPECT_TRUE(has(metric)) << name;
    EXPECT_TRUE(has("effective_size/all/mean")) << name;
    EXPECT_EQ(has("masked/moment/mean"), name == std::string_view("m2po"));
  }
}

TEST_F(Objectives, OfAPluginCountTokensThatTheyDropWithoutAReason) {
  Tenant tenant = testing::a_tenant();
  tenant.objective = "custom";
  ObjectiveSpec spec{.name = "custom", .rule = ObjectiveRule::kOwn, .doc = "a loss"};
  TrainerOptions options;
  options.objectives =
      std::make_shared<const std::vector<ObjectiveSpec>>(std::vector<ObjectiveSpec>{spec});
  struct Own : TrainerStory {
    Own(TrainerOptions own, Tenant of) : TrainerStory(std::move(own), std::move(of)) {}
    void TestBody() override {}
  } story(std::move(options), std::move(tenant));
  story.start();
  TrainReport& report = story.learner.reported;
  report.masked_fraction = 0.75;
  report.masked_high = 0.25;
  report.capped_fraction = 0.125;
  story.batch(0, 0);
  story.give(a_group(9, 1, {0, 1}));
  ASSERT_THAT(story.trainer.metrics(), SizeIs(1));
  const auto& values = story.trainer.metrics()[0].values;
  EXPECT_THAT(values, ::testing::Contains(std::pair<std::string, double>("masked/all/mean", 0.75)));
  EXPECT_THAT(values,
              ::testing::Contains(std::pair<std::string, double>("masked/high/mean", 0.25)));
  EXPECT_THAT(values,
              ::testing::Contains(std::pair<std::string, double>("masked/other/mean", 0.5)));
  EXPECT_THAT(values,
              ::testing::Contains(std::pair<std::string, double>("capped/all/mean", 0.125)));
}

TEST(Demands, RefuseAnObjectiveWithTheOptionsOfAnother) {
  Tenant tenant;
  EXPECT_EQ(fault_of_loss(tenant, {}), "");
  tenant.loss.clip_dual = 3;
  EXPECT_THAT(fault_of_loss(tenant, {}), HasSubstr("'dppo' has no option 'clip_dual'; "));
  EXPECT_THAT(fault_of_loss(tenant, {}), ::testing::Not(HasSubstr("\n"))) << "of one line";
  tenant.objective = "grpo";
  EXPECT_EQ(fault_of_loss(tenant, {}), "");
  tenant.objective = "gpro";
  EXPECT_THAT(fault_of_loss(tenant, {}), HasSubstr("unknown objective 'gpro'"));
  EXPECT_EQ(fault_of_group_size(tenant, {}), "") << "reported once";
}

TEST(Demands, LeaveADivisorToTheLearnerWhoseMeanItMayBeOf) {
  Tenant tenant;
  tenant.loss.mean_tokens = 50;
  EXPECT_EQ(fault_of_loss(tenant, {}), "");
  tenant.loss.mean = "token";
  EXPECT_THAT(fault_of_loss(tenant, {}), HasSubstr("mean_tokens 50 has no effect"));
  tenant.loss.mean = "constant";
  EXPECT_EQ(fault_of_loss(tenant, {}), "");
}

TEST(Demands, RefuseAReferenceForWholeWeights) {
  Tenant tenant;
  tenant.objective = "ref_kl";
  EXPECT_THAT(fault_of_loss(tenant, {}), HasSubstr("needs a reference model"));
  tenant.adapter.rank = 4;
  EXPECT_EQ(fault_of_loss(tenant, {}), "");
  tenant.objective = "grpo";
  tenant.loss.reference_weight = 0.01;
  EXPECT_EQ(fault_of_loss(tenant, {}), "");
  tenant.adapter.rank = 0;
  EXPECT_THAT(fault_of_loss(tenant, {}), HasSubstr("needs a reference model"));
}

TEST(Demands, RefuseADistributionWithoutTheLikeliestTokensOfATeacher) {
  Tenant tenant;
  tenant.objective = "gkd";
  tenant.teacher.model = "big";
  EXPECT_THAT(fault_of_loss(tenant, {}), HasSubstr("teacher.top_k is 0"));
  tenant.teacher.top_k = 1;
  EXPECT_EQ(fault_of_loss(tenant, {}), "");
  tenant.loss.jsd_beta = 1;
  EXPECT_EQ(fault_of_loss(tenant, {}), "");
  tenant.objective = "opd";
  EXPECT_THAT(fault_of_loss(tenant, {}), HasSubstr("'opd' has no option 'jsd_beta'"));
}

TEST(Demands, AGroupOfOneTrainsWhereGroupsAreNotCompared) {
  Tenant tenant;
  tenant.group_size = 1;
  EXPECT_NE(fault_of_group_size(tenant, {}), "");
  tenant.advantage.kind = "batch";
  EXPECT_EQ(fault_of_group_size(tenant, {}), "");
  tenant.advantage.kind = "";
  tenant.objective = "cross_entropy";
  EXPECT_EQ(fault_of_group_size(tenant, {}), "");
}

TEST(Demands, RefuseFiltersOfLogProbabilitiesForSupervisedData) {
  for (int64_t TenantFilters::*key :
       {&TenantFilters::repetition_max, &TenantFilters::gibberish_from}) {
    Tenant tenant;
    tenant.filters.*key = 8;
    EXPECT_EQ(fault_of_filter_keys(tenant, {}), "");
    tenant.objective = "cross_entropy";
    EXPECT_THAT(fault_of_filter_keys(tenant, {}), HasSubstr("supervised data lacks"));
  }
}

TEST(Demands, RefuseAdvantagesWithoutEffect) {
  Tenant tenant;
  tenant.objective = "cross_entropy";
  tenant.advantage.kind = "mean";
  EXPECT_THAT(fault_of_advantage(tenant, {}), HasSubstr("uses no rewards"));
  tenant = {};
  tenant.objective = "opd";
  tenant.advantage.length_weight = 0.2;
  EXPECT_THAT(fault_of_advantage(tenant, {}), HasSubstr("uses no rewards"));
  tenant.advantage.length_weight = 0;
  tenant.advantage.overlong_to = 8;
  EXPECT_THAT(fault_of_advantage(tenant, {}), HasSubstr("uses no rewards"));
  tenant = {};
  tenant.advantage.overlong_from = 8;
  EXPECT_THAT(fault_of_advantage(tenant, {}), HasSubstr("without overlong_to"));
  tenant.advantage.overlong_to = 8;
  EXPECT_THAT(fault_of_advantage(tenant, {}), HasSubstr("is not below"));
  tenant.advantage.overlong_to = 9;
  EXPECT_EQ(fault_of_advantage(tenant, {}), "");
}

}  // namespace
}  // namespace primerl
