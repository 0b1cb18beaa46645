// Trainers of two tenants on one learner: their batches wait in its queue and share passes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/actors/trainer_story.h"

namespace primerl {
namespace {

using testing::a_group;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// The learner as one trainer of several tenants uses it: a NodeRunner's first tenant has slot 0.
class LearnerOfOne final : public Learner {
 public:
  LearnerOfOne(Learner& shared, TenantSlot tenant) : shared_(shared), tenant_(tenant) {}

  using Learner::step;
  Result<TrainReport> step(const TrainBatch&, const StopRequested&) override {
    return error(Code::kInternal, "it did not get in line");
  }
  std::optional<Result<TrainReport>> step_queued(std::shared_ptr<const TrainBatch> batch,
                                                 uint64_t turn,
                                                 const StopRequested& stop) override {
    auto hers = std::make_shared<TrainBatch>(*batch);
    hers->tenant = tenant_;
    return shared_.step_queued(std::move(hers), turn, stop);
  }
  void leave_queue(TenantSlot) override { shared_.leave_queue(tenant_); }
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(TenantSlot,
                                                         PolicyVersion version) override {
    return shared_.snapshot(tenant_, version);
  }
  Result<std::vector<float>> score(TenantSlot, const std::vector<int32_t>& tokens) override {
    return shared_.score(tenant_, tokens);
  }
  Status save(TenantSlot, const std::filesystem::path& folder) override {
    return shared_.save(tenant_, folder);
  }
  Status load(TenantSlot, const std::filesystem::path& folder) override {
    return shared_.load(tenant_, folder);
  }
  SampleLimits limits() const override { return shared_.limits(); }

 private:
  Learner& shared_;
  const TenantSlot tenant_;
};

/// Both trainers get each work call, one after the other, as in a group.
struct TurnsStory : ::testing::Test {
  static constexpr size_t kTenants = 2;
  struct One {
    std::unique_ptr<Learner> learner;
    std::shared_ptr<WeightChannel> weights = make_memory_channel();
    NodeRunner<Trainer> trainer;
  };

  TurnsStory() {
    learner.share_out({0.5, 0.5}, 1000);
    for (uint32_t i = 0; i < kTenants; ++i) {
      auto& one = all[i];
      Tenant tenant = testing::a_tenant();
      tenant.share = 0.5;
      tenant.max_steps = 2;
      one.trainer.set_tenants({tenant});
      one.learner = std::make_unique<LearnerOfOne>(learner, TenantSlot(i));
      one.trainer.use("learner", *one.learner);
      one.trainer.use("weights", *one.weights);
      one.trainer.set_checkpoint_folder(new_scratch_folder());
    }
    turn();  // both publish
  }
  /// A batch for both, so that their work calls have equal numbers.
  void give_batches() {
    for (auto& one : all)
      for (uint64_t i = 0; i < 2; ++i)
        ASSERT_TRUE(one.trainer.give("group", a_group(next + i, 0, {0, 1})).ok());
    next += 2;
  }
  void turn() {
    for (auto& one : all) ASSERT_TRUE(one.trainer.run_work().ok());
  }
  std::vector<RolloutEnd> ends(size_t i) {
    std::vector<RolloutEnd> ends;
    for (const auto& ended : all[i].trainer.take<GroupEnded>("ended")) ends.push_back(ended.end);
    return ends;
  }

  testing::FakeLearner learner;
  std::array<One, kTenants> all;
  uint64_t next = 0;
};

TEST_F(TurnsStory, TrainInOneTurnAndShareItsTimeByTokens) {
  give_batches();
  turn();
  EXPECT_THAT(learner.batches, IsEmpty()) << "both get in line";
  EXPECT_FALSE(all[0].trainer.idle());
  turn();
  EXPECT_THAT(learner.batches, SizeIs(2));
  for (auto& one : all) {
    ASSERT_TRUE(one.trainer.advance(Duration::seconds(4)).ok());
    ASSERT_TRUE(one.trainer.run_work().ok());
    ASSERT_THAT(one.trainer.metrics(), SizeIs(1));
    EXPECT_DOUBLE_EQ(one.trainer.metrics()[0].at("time/learner"), 2) << "half of the pass";
    EXPECT_DOUBLE_EQ(one.trainer.metrics()[0].at("perf/train_tokens_per_second"), 50);
    EXPECT_EQ(one.trainer.counter("steps_shared"), 1);
  }
}

TEST_F(TurnsStory, ADrainedTrainerLeavesTheQueueAndItsGroupsAreCancelled) {
  give_batches();
  turn();
  ASSERT_TRUE(all[0].trainer.drain().ok());
  EXPECT_THAT(ends(0), ElementsAre(RolloutEnd::kCancelled, RolloutEnd::kCancelled));
  EXPECT_TRUE(all[0].trainer.idle());
  for (int i = 0; i < 3; ++i) turn();
  EXPECT_THAT(learner.batches, SizeIs(1));
  EXPECT_THAT(ends(1), ElementsAre(RolloutEnd::kTrained, RolloutEnd::kTrained));
}

TEST_F(TurnsStory, AQueuedGroupIsNotTakenTwice) {
  give_batches();
  turn();
  EXPECT_FALSE(all[0].trainer.give("group", a_group(0, 0, {0, 1})).ok());
  EXPECT_TRUE(all[0].trainer.give("group", a_group(7, 0, {0, 1})).ok());
}

TEST_F(TurnsStory, AStopCancelsTheBatchesOfAll) {
  give_batches();
  turn();
  for (auto& one : all) one.trainer.set_stop_requested(true);
  turn();
  for (size_t i = 0; i < kTenants; ++i) {
    EXPECT_THAT(ends(i), ElementsAre(RolloutEnd::kCancelled, RolloutEnd::kCancelled));
    EXPECT_TRUE(all[i].trainer.idle());
  }
  EXPECT_EQ(learner.steps, 0);
}

TEST_F(TurnsStory, ASkippedStepIsOfOneTenant) {
  learner.num_to_skip = 1;
  give_batches();
  turn();
  turn();
  EXPECT_THAT(ends(0), ElementsAre(RolloutEnd::kFailed, RolloutEnd::kFailed));
  EXPECT_THAT(ends(1), ElementsAre(RolloutEnd::kTrained, RolloutEnd::kTrained));
}

}  // namespace
}  // namespace primerl
