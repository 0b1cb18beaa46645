// Held-out rows of supervised data: when the trainer measures them, and what it refuses.
#include "actors/trainer/held_out.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/trainer_story.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;
using testing::TrainerStory;

constexpr SampleLimits kHeldOutLimits{10'000'000, 256};

Trajectory held_out_row(size_t num_tokens) {
  Trajectory row;
  row.tokens.assign(num_tokens, 65);
  row.sampled.assign(num_tokens, 1);
  return row;
}

TEST(HeldOutRows, AreDueAtTheFirstTheLastAndEachIntervalsVersion) {
  HeldOut rows;
  rows.start_at(PolicyVersion(0), false);
  TenantEval eval{.interval = 3};
  EXPECT_FALSE(rows.is_due(PolicyVersion(0), eval, false, true)) << "there are no rows";
  ASSERT_TRUE(rows.add(held_out_row(4), kHeldOutLimits).ok());
  EXPECT_FALSE(rows.is_due(PolicyVersion(0), eval, false, false)) << "some may be on their way";
  EXPECT_TRUE(rows.is_due(PolicyVersion(0), eval, false, true));
  for (const int64_t version : {1, 2, 4, 5})
    EXPECT_FALSE(rows.is_due(PolicyVersion(version), eval, false, true)) << version;
  EXPECT_TRUE(rows.is_due(PolicyVersion(3), eval, false, false));
  EXPECT_TRUE(rows.is_due(PolicyVersion(4), eval, true, false));
  EXPECT_EQ(rows.add(AnswerLoss{4, 2}, PolicyVersion(3)), 2);
  EXPECT_FALSE(rows.is_due(PolicyVersion(3), eval, false, true)) << "it has been measured";
  eval.at_end = eval.at_start = false;
  EXPECT_FALSE(rows.is_due(PolicyVersion(4), eval, true, false));
  EXPECT_FALSE(rows.is_due(PolicyVersion(0), eval, false, true));
  eval.interval = 0;
  EXPECT_FALSE(rows.is_due(PolicyVersion(6), eval, true, true));
}

TEST(HeldOutRows, AResumedRunMeasuresItsFirstVersionAsAnyOther) {
  TenantEval eval{.interval = 3};
  for (const int64_t version : {3, 4}) {
    HeldOut rows;
    rows.start_at(PolicyVersion(version), true);
    ASSERT_TRUE(rows.add(held_out_row(4), kHeldOutLimits).ok());
    EXPECT_EQ(rows.is_due(PolicyVersion(version), eval, false, true), version == 3);
  }
}

TEST(HeldOutRows, AreMeasuredInPartsAndALongRowAlone) {
  HeldOut rows;
  for (const int64_t tokens : {kEvaluatedTokens + 1, kEvaluatedTokens - 5, int64_t{5}, int64_t{4}})
    ASSERT_TRUE(rows.add(held_out_row(static_cast<size_t>(tokens)), kHeldOutLimits).ok());
  std::vector<size_t> parts;
  std::optional<double> mean;
  while (!mean) {
    parts.push_back(rows.next_part(TenantSlot(0)).samples.size());
    mean = rows.add(AnswerLoss{1, 1}, PolicyVersion(0));
  }
  EXPECT_THAT(parts, ElementsAre(1, 2, 1));
  EXPECT_EQ(*mean, 1);
}

TEST(HeldOutRows, HaveABoundOfTokens) {
  HeldOut rows;
  ASSERT_TRUE(rows.add(held_out_row(kHeldOutTokensMax - 1), kHeldOutLimits).ok());
  const Status more = rows.add(held_out_row(2), kHeldOutLimits);
  ASSERT_FALSE(more.ok());
  EXPECT_THAT(more.error().text(), HasSubstr("more than 1048576 tokens"));
  EXPECT_TRUE(rows.is_full());
  EXPECT_EQ(rows.num_rows(), 1U);
  EXPECT_FALSE(rows.add(held_out_row(1), kHeldOutLimits).ok()) << "one token has no prediction";
}

TEST(HeldOutRows, AtTheBoundFitAndOnlyTheFirstOnesCount) {
  HeldOut rows;
  ASSERT_TRUE(rows.add(held_out_row(kHeldOutTokensMax - 2), kHeldOutLimits).ok());
  ASSERT_TRUE(rows.add(held_out_row(2), kHeldOutLimits).ok());
  EXPECT_FALSE(rows.is_full());
  HeldOut first;
  ASSERT_TRUE(first.add(held_out_row(kHeldOutTokensMax - 4), kHeldOutLimits).ok());
  ASSERT_FALSE(first.add(held_out_row(5), kHeldOutLimits).ok());
  EXPECT_FALSE(first.add(held_out_row(2), kHeldOutLimits).ok()) << "it would fit, but is not first";
}

Tenant held_out_tenant() {
  Tenant tenant = testing::a_tenant(1, 1);
  tenant.objective = "ce";
  tenant.max_steps = 2;
  tenant.eval = {.interval = 2};
  tenant.eval.is_of_answers = true;
  return tenant;
}

struct HeldOutStory : TrainerStory {
  HeldOutStory() : TrainerStory({}, held_out_tenant()) {}
  void give_example(uint64_t ordinal, Trajectory row) {
    TrajectoryGroup group;
    group.ordinal = ordinal;
    group.members.push_back(std::move(row));
    give(group);
  }
  /// (version, eval/loss) of each evaluation.
  std::vector<std::pair<int64_t, double>> losses() {
    std::vector<std::pair<int64_t, double>> all;
    for (const auto& published : trainer.metrics())
      for (const auto& [name, value] : published.values)
        if (name == "eval/loss") all.emplace_back(published.step, value);
    return all;
  }
};

TEST_F(HeldOutStory, TheTrainerMeasuresThemAndDoesNotTrainOnThem) {
  start();
  give_example(kEvaluationOrdinals, held_out_row(4));
  give_example(kEvaluationOrdinals + 1, held_out_row(5));
  auto bad = held_out_row(4);
  bad.tokens[0] = 999;
  give_example(kEvaluationOrdinals + 2, bad);
  work();
  EXPECT_THAT(learner.evaluated, SizeIs(0)) << "no example that trains has come";
  for (uint64_t ordinal = 0; ordinal < 2; ++ordinal) {
    give_example(ordinal, held_out_row(3));
    work();
  }
  EXPECT_THAT(learner.batches, SizeIs(2));
  EXPECT_THAT(losses(), ElementsAre(Pair(0, 2.0), Pair(2, 2.0)));
  ASSERT_THAT(learner.evaluated, SizeIs(2));
  EXPECT_THAT(learner.evaluated[0].samples, SizeIs(2));
  EXPECT_EQ(trainer.counter("held_out_refused"), 1);
  EXPECT_TRUE(trainer.is_finished(TenantSlot(0)));
}

}  // namespace
}  // namespace primerl
