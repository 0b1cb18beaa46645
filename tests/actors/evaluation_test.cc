// When a version is measured, and the numbers of an evaluation.
#include "actors/rollout/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

namespace primerl {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

TEST(PassAtK, IsTheShareOfTheSubsetsOfKSamplesThatHaveAPass) {
  for (int64_t n = 1; n <= 10; ++n)
    for (int64_t c = 0; c <= n; ++c)
      for (int64_t k = 1; k <= n; ++k) {
        double num_subsets = 0, num_with_pass = 0;
        for (uint32_t subset = 0; subset < (1U << n); ++subset) {
          if (std::popcount(subset) != k) continue;
          ++num_subsets;
          num_with_pass += (subset & ((1U << c) - 1)) != 0;
        }
        EXPECT_THAT(pass_at_k(n, c, k), DoubleNear(num_with_pass / num_subsets, 1e-12))
            << n << " samples, " << c << " passed, k = " << k;
      }
}

TEST(PassAtK, IsReportedForPowersOfTwoAndAllSamples) {
  EXPECT_THAT(pass_counts(1), ElementsAre(1));
  EXPECT_THAT(pass_counts(2), ElementsAre(1, 2));
  EXPECT_THAT(pass_counts(6), ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(pass_counts(8), ElementsAre(1, 2, 4, 8));
}

/// The versions at which an evaluation begins, if versions 0 to 9 become live and each evaluation
/// ends before the next version.
std::vector<int64_t> versions(const TenantEval& options, std::vector<int64_t> live,
                              int64_t resumed_at = -1) {
  Evaluations evaluations;
  evaluations.begin(options, PolicyVersion(std::max<int64_t>(resumed_at, 0)), resumed_at >= 0);
  std::vector<int64_t> begun;
  for (const int64_t version : live) {
    evaluations.on_live(options, PolicyVersion(version));
    evaluations.begin_if_due(PolicyVersion(version));
    if (evaluations.running() != nullptr) begun.push_back(evaluations.running()->version.value);
    evaluations.end();
  }
  return begun;
}

TEST(Evaluations, BeginAtTheStartAndAtEachMultipleOfTheInterval) {
  EXPECT_THAT(versions({}, {0, 1, 2}), ElementsAre());
  EXPECT_THAT(versions({.interval = 1}, {0, 1, 2}), ElementsAre(0, 1, 2));
  EXPECT_THAT(versions({.interval = 3}, {0, 1, 2, 3, 4, 5, 6, 7}), ElementsAre(0, 3, 6));
  EXPECT_THAT(versions({.interval = 3, .at_start = false}, {0, 1, 2, 3, 4}), ElementsAre(3));
}

TEST(Evaluations, AMultipleThatNeverBecameLiveIsMeasuredWithTheNextVersion) {
  EXPECT_THAT(versions({.interval = 3}, {0, 2, 5, 6, 11}), ElementsAre(0, 5, 6, 11));
}

TEST(Evaluations, AResumedRunMeasuresTheVersionOfItsCheckpointIfItIsAMultiple) {
  EXPECT_THAT(versions({.interval = 3}, {6, 7, 8, 9}, 6), ElementsAre(6, 9));
  EXPECT_THAT(versions({.interval = 3}, {7, 8, 9}, 7), ElementsAre(9));
  EXPECT_THAT(versions({.interval = 3, .at_start = false}, {0, 1, 3}, 0), ElementsAre(0, 3));
}

TEST(Evaluations, AVersionThatBecomesDueMeanwhileWaits) {
  Evaluations evaluations;
  const TenantEval options{.interval = 2};
  evaluations.begin(options, PolicyVersion(0), false);
  evaluations.on_live(options, PolicyVersion(0));
  evaluations.begin_if_due(PolicyVersion(0));
  evaluations.on_live(options, PolicyVersion(2));
  evaluations.on_live(options, PolicyVersion(4));
  evaluations.begin_if_due(PolicyVersion(4));
  EXPECT_EQ(evaluations.running()->version, PolicyVersion(0));
  EXPECT_FALSE(evaluations.is_idle());
  evaluations.end();
  evaluations.begin_if_due(PolicyVersion(5));
  EXPECT_EQ(evaluations.running()->version, PolicyVersion(5)) << "once, with the newest version";
  evaluations.end();
  EXPECT_TRUE(evaluations.is_idle());
}

Member a_scored_member(double reward, int64_t num_tokens, int64_t version) {
  Member member;
  Trajectory& trajectory = member.trajectory;
  trajectory.sampled.assign(static_cast<size_t>(num_tokens), 1);
  trajectory.sampled.push_back(0);
  trajectory.spans = {{PolicyVersion(version), 0, static_cast<int32_t>(num_tokens)}};
  trajectory.reward = reward;
  trajectory.num_turns = 1;
  trajectory.scores = {reward, 2 * reward};
  return member;
}

Member a_failed_member() {
  Member member;
  member.trajectory.is_failed = true;
  return member;
}

Tenant a_scored_tenant() {
  Tenant tenant;
  tenant.name = "main";
  tenant.environment.name = "copy";
  tenant.eval = {.interval = 5, .samples = 2, .rows = 3};
  tenant.rewards.resize(2);
  tenant.rewards[0].label = "exact";
  tenant.rewards[1].label = "length";
  return tenant;
}

Evaluation a_scored_evaluation() {
  const TenantEval options = a_scored_tenant().eval;
  Evaluation evaluation;
  evaluation.version = PolicyVersion(5);
  Group row;
  row.members = {a_scored_member(1, 4, 5), a_scored_member(0.5, 8, 6)};
  row.members[1].trajectory.is_truncated = true;
  evaluation.add(row, options);
  row.members = {a_scored_member(0, 2, 4), a_scored_member(0, 2, 5)};
  evaluation.add(row, options);
  row.members = {a_scored_member(1, 4, 5), a_failed_member()};
  evaluation.add(row, options);
  return evaluation;
}

TEST(Evaluation, FailedRolloutsAreCountedAndLeftOutOfTheScores) {
  EXPECT_EQ(evaluation_line(a_scored_evaluation(), a_scored_tenant()),
            R"({"tenant":"main","environment":"copy","version":5,"oldest":4,"newest":6,"rows":3,)"
            R"("samples":2,"rollouts":5,"failed":1,"complete_rows":2,"reward":0.5,)"
            R"("pass":{"1":0.25,"2":0.5},"rewards":{"exact":0.5,"length":1.0},)"
            R"("completion_len":4.0,"completion_len_max":8,"turns":1.0,"truncated":0.2})");
}

TEST(Evaluation, TheMetricsAreNamedByTheEnvironment) {
  const auto metrics = evaluation_metrics(a_scored_evaluation(), a_scored_tenant());
  std::vector<std::string> names;
  for (const auto& [name, value] : metrics) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("eval/copy/avg@2", "eval/copy/pass@1", "eval/copy/pass@2",
                                 "eval/copy/reward/exact/mean", "eval/copy/reward/length/mean",
                                 "eval/copy/rows", "eval/copy/failed_count",
                                 "eval/copy/completion_len/mean", "eval/copy/completion_len/max",
                                 "eval/copy/num_turns/mean", "eval/copy/is_truncated/mean",
                                 "eval/copy/policy_version/min", "eval/copy/policy_version/max"));
  EXPECT_EQ(metrics[0].second, 0.5);
  EXPECT_EQ(metrics[2].second, 0.5);
  EXPECT_EQ(metrics[11].second, 4);
}

TEST(Evaluation, WithoutAScoredRolloutThereIsNoReward) {
  Evaluation evaluation;
  Group row;
  row.members = {a_failed_member(), a_failed_member()};
  evaluation.add(row, a_scored_tenant().eval);
  const std::string line = evaluation_line(evaluation, a_scored_tenant());
  EXPECT_THAT(line, ::testing::HasSubstr(R"("reward":null,"pass":{})"));
  for (const auto& [name, value] : evaluation_metrics(evaluation, a_scored_tenant()))
    EXPECT_FALSE(name.starts_with("eval/copy/avg") || name.starts_with("eval/copy/pass")) << name;
}

}  // namespace
}  // namespace primerl
