// A learner that repeats recorded steps: what must be equal, and within which tolerance.
#include "runtime/replay/resuming_learner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "kernels/scripted/scripted_learner.h"
#include "runtime/replay/traced_learner.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

bool never() { return false; }

std::shared_ptr<Learner> scripted(double loss_shift) {
  ScriptedLearnerOptions options;
  options.loss_shift = loss_shift;
  return make_scripted_learner(options).value();
}

TrainBatch a_batch() {
  TrainBatch batch;
  batch.tenant = TenantSlot(0);
  batch.loss = LossKind::kCrossEntropy;
  TrainSample& sample = batch.samples.emplace_back();
  sample.tokens = {5, 6, 7, 8};
  sample.loss_mask = {0, 1, 1, 1};
  return batch;
}

class AResumingLearner : public ::testing::Test {
 protected:
  AResumingLearner() {
    TracedLearner recording(
        scripted(0), [this](std::vector<std::byte> answer) { tape_.push_back(std::move(answer)); });
    recorded_ = recording.step(a_batch(), never).value();
  }

  /// Repeats the step with a learner whose losses differ by `loss_shift`, relative.
  TrainReport again(double loss_shift, const ReplayTolerance& tolerance) {
    std::deque<std::vector<std::byte>> tape = tape_;
    std::vector<std::byte> answer;
    ResumingLearnerSetup setup;
    setup.learner = scripted(loss_shift);
    setup.next = [&]() -> const std::vector<std::byte>* {
      if (tape.empty()) return nullptr;
      answer = std::move(tape.front());
      tape.pop_front();
      return &answer;
    };
    setup.is_live = [] { return false; };
    setup.points.resize(1);
    setup.publish = [](TenantSlot, const WeightSnapshot&) { return ok(); };
    setup.on_divergence = [this](std::string what) { parted_.push_back(std::move(what)); };
    setup.tolerance = tolerance;
    setup.near = near_;
    return make_resuming_learner(std::move(setup))->step(a_batch(), never).value();
  }

  std::deque<std::vector<std::byte>> tape_;
  TrainReport recorded_;
  std::vector<std::string> parted_;
  const std::shared_ptr<ToleranceCounts> near_ = std::make_shared<ToleranceCounts>();
};

TEST_F(AResumingLearner, TakesTheSameStepToTheBit) {
  EXPECT_EQ(again(0, {}).loss, recorded_.loss);
  EXPECT_THAT(parted_, IsEmpty());
}

TEST_F(AResumingLearner, PartsAtAnyOtherBitWhereNothingElseIsSaid) {
  EXPECT_NE(again(1e-12, {}).loss, recorded_.loss);
  EXPECT_THAT(parted_,
              ElementsAre(HasSubstr(
                  "training step 1 of this start came out otherwise than recorded: loss")));
}

TEST_F(AResumingLearner, AnswersAsRecordedWithinItsTolerance) {
  ASSERT_NE(recorded_.loss, 0);
  EXPECT_EQ(again(0.01, kDeviceTolerance).loss, recorded_.loss);
  EXPECT_THAT(parted_, IsEmpty());
  EXPECT_THAT(near_->text(kDeviceTolerance), HasSubstr("of 1 training steps no number is further"));
}

/// A saved state may not be newer than the checkpoint: the steps between are not in the record.
TEST_F(AResumingLearner, DoesNotGoOnFromAStateThatIsNewerThanItsCheckpoint) {
  const ScratchFolder checkpoint;
  ASSERT_TRUE(scripted(0)->save(TenantSlot(0), checkpoint.path()).ok());
  const auto restore = [&](int64_t num_steps) {
    ResumingLearnerSetup setup;
    setup.learner = scripted(0);
    setup.next = []() -> const std::vector<std::byte>* { return nullptr; };
    setup.is_live = [] { return false; };
    setup.points = {{checkpoint.path(), 3}};
    setup.publish = [](TenantSlot, const WeightSnapshot&) { return ok(); };
    LearnerProgress progress;
    progress.tenants[TenantSlot(0)].num_steps = num_steps;
    return make_resuming_learner(std::move(setup))->restore_state(written_state(progress));
  };
  for (const int64_t num_steps : {0, 2, 3})
    EXPECT_TRUE(restore(num_steps).ok()) << restore(num_steps).error().text();
  ASSERT_FALSE(restore(4).ok());
  EXPECT_THAT(restore(4).error().text(), HasSubstr("had taken 4 steps"));
}

TEST_F(AResumingLearner, PartsBeyondIt) {
  const double most = kDeviceTolerance.report_relative +
                      kDeviceTolerance.report_absolute / std::abs(recorded_.loss);
  again(0.999 * most, kDeviceTolerance);
  EXPECT_THAT(parted_, IsEmpty());
  again(1.001 * most, kDeviceTolerance);
  EXPECT_THAT(parted_, ElementsAre(HasSubstr("loss: recorded ")));
}

}  // namespace
}  // namespace primerl
