// Batches of several tenants in the line of one learner: one pass for those whose turn it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/train/learner.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Writes down whose steps it takes, and which share a pass.
class CountingLearner final : public Learner {
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

struct LearnerLine : ::testing::Test {
  LearnerLine() { learner.share_out({0.25, 0.25, 0.25, 0.25}, 100); }
  std::optional<Result<TrainReport>> ask(uint32_t tenant, uint64_t turn, size_t num_tokens = 10,
                                         const StopRequested& stop = nullptr) {
    return learner.step_in_line(batch_of(tenant, num_tokens), turn, stop);
  }
  CountingLearner learner;
};

TEST_F(LearnerLine, WhoAsksFirstRunsThePassAndTheOthersGetTheirsInTheSameTurn) {
  for (const uint32_t tenant : {0, 1, 2}) EXPECT_FALSE(ask(tenant, 1, 10 + tenant));
  EXPECT_THAT(learner.passes, IsEmpty());
  for (const uint32_t tenant : {0, 1, 2}) {
    const auto report = ask(tenant, 2, 10 + tenant);
    ASSERT_TRUE(report && report->ok()) << tenant;
    EXPECT_EQ((*report)->loss, tenant) << "it is hers";
    EXPECT_EQ((*report)->num_tokens, 10 + tenant);
    EXPECT_EQ((*report)->num_pass_tokens, 33);
  }
  EXPECT_THAT(learner.passes, ElementsAre(ElementsAre(0U, 1U, 2U)));
}

TEST_F(LearnerLine, WhoIsAloneHasThePassForItself) {
  EXPECT_FALSE(ask(3, 1));
  EXPECT_EQ((*ask(3, 2))->num_pass_tokens, 0);
  EXPECT_FALSE(ask(3, 3, 0)) << "a batch of nothing is a turn, too";
  EXPECT_TRUE(ask(3, 4, 0)->ok());
  EXPECT_THAT(learner.passes, ElementsAre(ElementsAre(3U), ElementsAre(3U)));
}

TEST_F(LearnerLine, WhatHasNoRoomWaitsForTheNextPass) {
  for (const uint32_t tenant : {0, 1, 2}) EXPECT_FALSE(ask(tenant, 1, 50));
  EXPECT_TRUE(ask(0, 2, 50));
  EXPECT_TRUE(ask(1, 2, 50));
  EXPECT_FALSE(ask(2, 2, 50));
  EXPECT_FALSE(ask(2, 3, 50));
  EXPECT_TRUE(ask(2, 4, 50));
  EXPECT_THAT(learner.passes, ElementsAre(ElementsAre(0U, 1U), ElementsAre(2U)));
}

TEST_F(LearnerLine, WhoLeftIsNotTrained) {
  for (const uint32_t tenant : {0, 1}) EXPECT_FALSE(ask(tenant, 1));
  learner.leave_line(TenantSlot(1));
  learner.leave_line(TenantSlot(2));  // never was in it
  EXPECT_TRUE(ask(0, 2));
  EXPECT_THAT(learner.passes, ElementsAre(ElementsAre(0U)));
  EXPECT_FALSE(ask(1, 3));
  EXPECT_TRUE(ask(1, 4));
}

TEST_F(LearnerLine, AStopIsToldToAllOfThePass) {
  const auto stopped = [] { return true; };
  for (const uint32_t tenant : {0, 1}) EXPECT_FALSE(ask(tenant, 1, 10, stopped));
  for (const uint32_t tenant : {0, 1})
    EXPECT_EQ(ask(tenant, 2, 10, stopped)->error().code(), Code::kCancelled);
}

}  // namespace
}  // namespace primerl
