// Batches of several tenants in the queue of one learner: one pass for all chosen tenants.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/train/learner.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Records whose steps it runs, and which share a pass.
class CountingLearner : public Learner {
 public:
  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop) override {
    if (stop && stop()) return error(Code::kCancelled, "stopped");
    TrainReport report;
    for (const auto& sample : batch.samples) report.num_tokens += std::ssize(sample.tokens);
    report.loss = batch.tenant.value;
    return report;
  }
  std::vector<Result<TrainReport>> step_together(std::span<const TrainBatch* const> batches,
                                                 const StopRequested& stop) override {
    auto& pass = passes.emplace_back();
    for (const TrainBatch* batch : batches) pass.push_back(batch->tenant.value);
    return Learner::step_together(batches, stop);
  }
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(TenantSlot, PolicyVersion) override {
    return std::make_shared<const WeightSnapshot>();
  }
  Result<std::vector<float>> score(TenantSlot, const std::vector<int32_t>&) override {
    return std::vector<float>();
  }
  Status save(TenantSlot, const std::filesystem::path&) override { return ok(); }
  Status load(TenantSlot, const std::filesystem::path&) override { return ok(); }
  SampleLimits limits() const override { return {}; }

  std::vector<std::vector<uint32_t>> passes;
};

std::shared_ptr<const TrainBatch> batch_of(uint32_t tenant, size_t num_tokens) {
  auto batch = std::make_shared<TrainBatch>();
  batch->tenant = TenantSlot(tenant);
  if (num_tokens > 0) batch->samples.emplace_back().tokens.resize(num_tokens);
  return batch;
}

struct LearnerQueue : ::testing::Test {
  LearnerQueue() { learner.share_out({0.25, 0.25, 0.25, 0.25}, 100); }
  std::optional<Result<TrainReport>> ask(uint32_t tenant, uint64_t turn, size_t num_tokens = 10,
                                         const StopRequested& stop = nullptr) {
    return learner.step_queued(batch_of(tenant, num_tokens), turn, stop);
  }
  CountingLearner learner;
};

TEST_F(LearnerQueue, WhoAsksFirstRunsThePassAndTheOthersGetTheirsInTheSameTurn) {
  for (const uint32_t tenant : {0, 1, 2}) EXPECT_FALSE(ask(tenant, 1, 10 + tenant));
  EXPECT_THAT(learner.passes, IsEmpty());
  for (const uint32_t tenant : {0, 1, 2}) {
    const auto report = ask(tenant, 2, 10 + tenant);
    ASSERT_TRUE(report && report->ok()) << tenant;
    EXPECT_EQ((*report)->loss, tenant) << "it is the tenant's report";
    EXPECT_EQ((*report)->num_tokens, 10 + tenant);
    EXPECT_EQ((*report)->num_pass_tokens, 33);
  }
  EXPECT_THAT(learner.passes, ElementsAre(ElementsAre(0U, 1U, 2U)));
}

TEST_F(LearnerQueue, WhoIsAloneHasThePassForItself) {
  EXPECT_FALSE(ask(3, 1));
  EXPECT_EQ((*ask(3, 2))->num_pass_tokens, 0);
  EXPECT_FALSE(ask(3, 3, 0)) << "an empty batch also needs a work call";
  EXPECT_TRUE(ask(3, 4, 0)->ok());
  EXPECT_THAT(learner.passes, ElementsAre(ElementsAre(3U), ElementsAre(3U)));
}

TEST_F(LearnerQueue, WhatHasNoRoomWaitsForTheNextPass) {
  for (const uint32_t tenant : {0, 1, 2}) EXPECT_FALSE(ask(tenant, 1, 50));
  EXPECT_TRUE(ask(0, 2, 50));
  EXPECT_TRUE(ask(1, 2, 50));
  EXPECT_FALSE(ask(2, 2, 50));
  EXPECT_FALSE(ask(2, 3, 50));
  EXPECT_TRUE(ask(2, 4, 50));
  EXPECT_THAT(learner.passes, ElementsAre(ElementsAre(0U, 1U), ElementsAre(2U)));
}

TEST_F(LearnerQueue, ATenantThatWaitsTrainsTheBatchThatItAskedForLast) {
  for (const uint32_t tenant : {0, 1, 2}) EXPECT_FALSE(ask(tenant, 1, 50));
  for (const uint32_t tenant : {0, 1}) EXPECT_TRUE(ask(tenant, 2, 50));
  for (const uint64_t turn : {2, 3}) EXPECT_FALSE(ask(2, turn, 20));
  const auto report = ask(2, 4, 20);
  ASSERT_TRUE(report && report->ok());
  EXPECT_EQ((*report)->num_tokens, 20);
}

TEST_F(LearnerQueue, WhoLeftIsNotTrained) {
  for (const uint32_t tenant : {0, 1}) EXPECT_FALSE(ask(tenant, 1));
  learner.leave_queue(TenantSlot(1));
  learner.leave_queue(TenantSlot(2));  // it was never in the queue
  EXPECT_TRUE(ask(0, 2));
  EXPECT_THAT(learner.passes, ElementsAre(ElementsAre(0U)));
  EXPECT_FALSE(ask(1, 3));
  EXPECT_TRUE(ask(1, 4));
}

/// A pass has at most 40 tokens of a step.
class DividingLearner final : public CountingLearner {
 public:
  std::vector<std::optional<Result<TrainReport>>> pass_together(
      std::span<const std::shared_ptr<const TrainBatch>> batches,
      const StopRequested& stop) override {
    auto& pass = passes.emplace_back();
    std::vector<std::optional<Result<TrainReport>>> reports;
    for (const auto& batch : batches) {
      pass.push_back(batch->tenant.value);
      const int64_t left = left_of(*batch) - next_tokens(*batch);
      left_[batch->tenant] = left;
      reports.emplace_back();
      if (left > 0) continue;
      left_.erase(batch->tenant);
      reports.back() = step(*batch, stop);
    }
    return reports;
  }
  int64_t next_tokens(const TrainBatch& batch) const override {
    return std::min<int64_t>(left_of(batch), 40);
  }
  void discard(TenantSlot tenant) override { left_.erase(tenant); }

 private:
  int64_t left_of(const TrainBatch& batch) const {
    const auto found = left_.find(batch.tenant);
    return found == left_.end() ? Learner::next_tokens(batch) : found->second;
  }
  std::map<TenantSlot, int64_t> left_;
};

struct DividedSteps : ::testing::Test {
  DividedSteps() { learner.share_out({0.25, 0.25, 0.25, 0.25}, 50); }
  std::optional<Result<TrainReport>> ask(uint32_t tenant, uint64_t turn, size_t num_tokens) {
    return learner.step_queued(batch_of(tenant, num_tokens), turn, nullptr);
  }
  DividingLearner learner;
};

TEST_F(DividedSteps, HaveAResultAfterTheirLastPass) {
  for (uint64_t turn = 1; turn <= 5; ++turn) EXPECT_FALSE(ask(0, turn, 90)) << turn;
  const auto report = ask(0, 6, 90);
  ASSERT_TRUE(report && report->ok());
  EXPECT_EQ((*report)->num_tokens, 90);
  EXPECT_EQ((*report)->num_pass_tokens, 10) << "of its last pass, so the time counts nine times";
  EXPECT_THAT(learner.passes, ElementsAre(ElementsAre(0U), ElementsAre(0U), ElementsAre(0U)));
}

/// One step of 50 passes beside another tenant with frequent small steps, which waits for one pass
/// only.
TEST_F(DividedSteps, LetTheOthersBetween) {
  int64_t num_small = 0;
  for (uint64_t turn = 1; turn <= 30; ++turn) {
    EXPECT_FALSE(ask(0, turn, 2000));
    num_small += ask(1, turn, 30) ? 1 : 0;
  }
  EXPECT_GE(num_small, 7) << "half of 15 passes, by tokens rather more";
  int64_t num_large_in_row = 0;
  for (const auto& pass : learner.passes) {
    num_large_in_row = pass == std::vector{0U} ? num_large_in_row + 1 : 0;
    EXPECT_LE(num_large_in_row, 1);
  }
}

TEST_F(DividedSteps, FreeRowsOfAPassAreFilled) {
  for (uint64_t turn = 1; turn <= 2; ++turn)
    for (const uint32_t tenant : {0, 1}) (void)ask(tenant, turn, tenant == 0 ? 120 : 10);
  EXPECT_THAT(learner.passes, ElementsAre(ElementsAre(0U, 1U)));
}

TEST_F(DividedSteps, ATenantThatLeavesStartsAgain) {
  for (uint64_t turn = 1; turn <= 4; ++turn) EXPECT_FALSE(ask(0, turn, 90));
  learner.leave_queue(TenantSlot(0));
  for (uint64_t turn = 5; turn <= 9; ++turn) EXPECT_FALSE(ask(0, turn, 90)) << turn;
  EXPECT_TRUE(ask(0, 10, 90));
}

TEST_F(LearnerQueue, AStopIsToldToAllOfThePass) {
  const auto stopped = [] { return true; };
  for (const uint32_t tenant : {0, 1}) EXPECT_FALSE(ask(tenant, 1, 10, stopped));
  for (const uint32_t tenant : {0, 1})
    EXPECT_EQ(ask(tenant, 2, 10, stopped)->error().code(), Code::kCancelled);
}

}  // namespace
}  // namespace primerl
