// A learner that repeats recorded steps: what must be equal, and within which tolerance.
#include "runtime/replay/resuming_learner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "kernels/scripted/scripted_learner.h"
#include "kernels/train/adapter_training.h"
#include "runtime/replay/traced_learner.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
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

/// The steps between a checkpoint and a newer saved state are not in the record. Only a tenant that
/// was set aside has such a state, and it makes no step.
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
    auto learner = make_resuming_learner(std::move(setup));
    const Status restored = learner->restore_state(written_state(progress));
    EXPECT_TRUE(restored.ok()) << restored.error().text();
    return learner;
  };
  for (const int64_t num_steps : {0, 2, 3}) restore(num_steps);
  const auto report = restore(4)->step(a_batch(), never);
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().text(), HasSubstr("had made 4 steps"));
}

/// Without a checkpoint the learner has the weights of the beginning.
TEST_F(AResumingLearner, PublishesNoWeightsForAStateThatIsNewerThanItsCheckpoint) {
  for (const int64_t num_steps : {0, 2}) {
    int num_published = 0;
    ResumingLearnerSetup setup;
    setup.learner = scripted(0);
    setup.next = []() -> const std::vector<std::byte>* { return nullptr; };
    setup.is_live = [] { return false; };
    setup.points.resize(1);
    setup.publish = [&](TenantSlot, const WeightSnapshot&) {
      ++num_published;
      return ok();
    };
    LearnerProgress progress;
    progress.tenants[TenantSlot(0)].num_steps = num_steps;
    progress.tenants[TenantSlot(0)].newest = PolicyVersion(num_steps);
    const auto learner = make_resuming_learner(std::move(setup));
    ASSERT_TRUE(learner->restore_state(written_state(progress)).ok());
    EXPECT_EQ(num_published, num_steps == 0 ? 1 : 0);
  }
}

/// A saved state has a tenant that had joined before. Its group makes it again outside of steps,
/// and the record after the state has no answer to that.
TEST(AResumingLearnerOfASavedState, MakesItsTenantsWithoutAnAnswerOfTheRecord) {
  ScriptedLearnerOptions options;
  options.free_slots = {TenantSlot(0)};
  AdapterTraining joined;
  joined.adapter.rank = 2;
  ResumingLearnerSetup setup;
  setup.learner = make_scripted_learner(options).value();
  int num_asked = 0;
  setup.next = [&num_asked]() -> const std::vector<std::byte>* {
    ++num_asked;
    return nullptr;
  };
  setup.is_live = [] { return false; };
  setup.is_restoring = [] { return true; };
  setup.points.resize(1);
  setup.publish = [](TenantSlot, const WeightSnapshot&) { return ok(); };
  const auto learner = make_resuming_learner(std::move(setup));
  const Status begun = learner->begin_tenant(joined);
  EXPECT_TRUE(begun.ok()) << begun.error().text();
  EXPECT_EQ(num_asked, 0);
  EXPECT_TRUE(learner->restore_state(written_state(LearnerProgress())).ok());
  EXPECT_FALSE(learner->begin_tenant(joined).ok()) << "the real learner has it";
}

TEST_F(AResumingLearner, PartsBeyondIt) {
  const double most = kDeviceTolerance.report_relative +
                      kDeviceTolerance.report_absolute / std::abs(recorded_.loss);
  again(0.999 * most, kDeviceTolerance);
  EXPECT_THAT(parted_, IsEmpty());
  again(1.001 * most, kDeviceTolerance);
  EXPECT_THAT(parted_, ElementsAre(HasSubstr("loss: recorded ")));
}

Time at(int64_t seconds) { return Time() + Duration::seconds(seconds); }

/// The record of a run that was killed while a checkpoint was written, which lasts 10 s: the save
/// was begun and looked for twice, without an end.
class ASaveInARecord : public ::testing::Test {
 protected:
  ASaveInARecord() {
    options_.save_time = Duration::seconds(10);
    TracedLearner recording(
        make_scripted_learner(options_).value(),
        [this](std::vector<std::byte> answer) { tape_.push_back(std::move(answer)); });
    begin(recording);
    for (const int64_t seconds : {0, 5}) look(recording, seconds);
  }

  void begin(Learner& learner) {
    const Status begun = learner.begin_save({TenantSlot(0), folder_.path() / "new", at(0), [this] {
                                               ++num_commits_;
                                               return ok();
                                             }});
    ASSERT_TRUE(begun.ok()) << begun.error().text();
  }
  static void look(Learner& learner, int64_t seconds) {
    EXPECT_FALSE(learner.end_of_save(TenantSlot(0), at(seconds)).has_value());
  }
  std::shared_ptr<Learner> follow(RecoveryPoint point = {}) {
    ResumingLearnerSetup setup;
    setup.learner = make_scripted_learner(options_).value();
    setup.next = [this]() -> const std::vector<std::byte>* {
      if (tape_.empty()) return nullptr;
      answer_ = std::move(tape_.front());
      tape_.pop_front();
      return &answer_;
    };
    setup.is_live = [this] { return is_live_; };
    setup.points = {std::move(point)};
    setup.publish = [](TenantSlot, const WeightSnapshot&) { return ok(); };
    return make_resuming_learner(std::move(setup));
  }

  const ScratchFolder folder_;
  ScriptedLearnerOptions options_;
  std::deque<std::vector<std::byte>> tape_;
  std::vector<std::byte> answer_;
  bool is_live_ = false;
  int num_commits_ = 0;
};

/// A fork looks for the checkpoint of a training step among the saves.
TEST_F(ASaveInARecord, OfACheckpointIsNoneOfAClient) {
  const auto learner = follow();
  LearnerSave save{TenantSlot(0), folder_.path() / "new", at(0), [] { return ok(); }};
  save.is_of_client = true;
  EXPECT_FALSE(learner->begin_save(std::move(save)).ok());
}

TEST_F(ASaveInARecord, HasNoEndBeforeTheRecordHasOne) {
  const auto learner = follow();
  begin(*learner);
  look(*learner, 100);  // whatever the writer has done here
  look(*learner, 200);
  EXPECT_THAT(learner->end_of_save(TenantSlot(0), at(300))->error().text(),
              HasSubstr("no answer of the learner to this 'saved'"));
}

TEST_F(ASaveInARecord, IsWrittenAgainAndEndsInTheResumedRun) {
  const auto learner = follow();
  begin(*learner);
  look(*learner, 0);
  look(*learner, 5);
  is_live_ = true;
  look(*learner, 9);
  EXPECT_EQ(num_commits_, 0);
  const auto ended = learner->end_of_save(TenantSlot(0), at(10));
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(ended->ok());
  EXPECT_EQ(num_commits_, 1);
}

// The recorded run ended because of save_max, so its record ends just before it.
TEST_F(ASaveInARecord, HasTheWholeSaveMaxAgainInTheResumedRun) {
  options_.save_time = Duration::seconds(1 << 20);
  const auto learner = follow();
  begin(*learner);
  for (const int64_t seconds : {0, 5}) look(*learner, seconds);
  is_live_ = true;
  const int64_t limit = static_cast<int64_t>(LearnerSave().lasts_max.to_seconds());
  look(*learner, limit - 1);
  look(*learner, 2 * limit - 2);
  EXPECT_EQ(learner->end_of_save(TenantSlot(0), at(2 * limit - 1))->error().code(),
            Code::kDeadline);
}

TEST_F(ASaveInARecord, ThatACutHasAsOpenWasCommitted) {
  const auto learner = follow();
  is_live_ = true;
  const auto ended = learner->end_of_save(TenantSlot(0), at(0));
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(ended->ok());
  EXPECT_EQ(num_commits_, 0) << "nothing is written";
}

TEST_F(ASaveInARecord, OfTheCheckpointThatIsLoadedIsNotWrittenAgain) {
  const fs::path folder = folder_.path() / "new";
  fs::create_directories(folder);
  ASSERT_TRUE(make_scripted_learner(options_).value()->save(TenantSlot(0), folder).ok());
  const auto learner = follow({folder, 0});
  LearnerProgress progress;
  progress.tenants[TenantSlot(0)].num_steps = 0;
  ASSERT_TRUE(learner->restore_state(written_state(progress)).ok());
  begin(*learner);
  look(*learner, 0);
  look(*learner, 5);
  is_live_ = true;
  EXPECT_TRUE(learner->end_of_save(TenantSlot(0), at(5))->ok());
  EXPECT_EQ(num_commits_, 0);
}

/// A run in which the tenant of slot 0 made two steps and left, and another one joined and made
/// two.
class TenantsInARecord : public ::testing::Test {
 protected:
  static AdapterTraining training() {
    AdapterTraining made;
    made.tenant = TenantSlot(0);
    made.rules.optimizer.lr = 0.5;
    return made;
  }
  static TrainBatch batch(int32_t number) {
    TrainBatch made = a_batch();
    made.samples[0].tokens[0] += number;
    return made;
  }
  static uint64_t bits(Learner& learner) {
    const auto taken = learner.snapshot(TenantSlot(0), PolicyVersion(1)).value();
    uint64_t hash = 0;
    for (const std::byte byte : taken->tensors.at(0).bytes.bytes())
      hash = hash * 31 + static_cast<uint64_t>(byte);
    return hash;
  }
  /// The whole run, with the learner's state after the first step of the second tenant saved in
  /// `checkpoint`, if it is given.
  static void play(Learner& learner, Learner* saves = nullptr, const fs::path& checkpoint = {}) {
    ASSERT_TRUE(learner.step(batch(0), never).ok());
    ASSERT_TRUE(learner.step(batch(1), never).ok());
    learner.end_tenant(TenantSlot(0));
    ASSERT_TRUE(learner.begin_tenant(training()).ok());
    EXPECT_EQ(learner.step(batch(2), never).value().learning_rate, 0.5);
    if (saves != nullptr) {
      ASSERT_TRUE(saves->save(TenantSlot(0), checkpoint).ok());
    }
    ASSERT_TRUE(learner.step(batch(3), never).ok());
  }
  void record() {
    const std::shared_ptr<Learner> real = scripted(0);
    TracedLearner recording(
        real, [this](std::vector<std::byte> answer) { tape_.push_back(std::move(answer)); });
    play(recording, real.get(), checkpoint_.path());
    end_ = bits(*real);
    const auto progress = read_state<LearnerProgress>(recording.save_state()).value();
    EXPECT_EQ(progress.tenants.at(TenantSlot(0)).num_steps, 2) << "of the second tenant alone";
  }
  NextAnswer next() {
    return [this]() -> const std::vector<std::byte>* {
      if (tape_.empty()) return nullptr;
      answer_ = std::move(tape_.front());
      tape_.pop_front();
      return &answer_;
    };
  }
  std::shared_ptr<Learner> follow(RecoveryPoint point, std::shared_ptr<Learner> real) {
    ResumingLearnerSetup setup;
    setup.learner = std::move(real);
    setup.next = next();
    setup.is_live = [this] { return is_live_; };
    setup.points = {std::move(point)};
    setup.publish = [](TenantSlot, const WeightSnapshot&) { return ok(); };
    setup.on_divergence = [this](std::string what) { parted_.push_back(std::move(what)); };
    return make_resuming_learner(std::move(setup));
  }

  const ScratchFolder checkpoint_;
  std::deque<std::vector<std::byte>> tape_;
  std::vector<std::byte> answer_;
  std::vector<std::string> parted_;
  bool is_live_ = false;
  uint64_t end_ = 0;
};

TEST_F(TenantsInARecord, AreFollowedToTheSameBits) {
  record();
  const std::shared_ptr<Learner> real = scripted(0);
  const auto learner = follow({"", 0, 1}, real);
  play(*learner);
  EXPECT_THAT(parted_, IsEmpty());
  EXPECT_TRUE(tape_.empty());
  EXPECT_EQ(bits(*real), end_);
}

/// The checkpoint of one step is of the second tenant, not of the first.
TEST_F(TenantsInARecord, ACheckpointIsLoadedForItsTenantOnly) {
  record();
  const std::shared_ptr<Learner> real = scripted(0);
  const auto learner = follow({checkpoint_.path(), 1, 1}, real);
  ASSERT_TRUE(learner->step(batch(0), never).ok());
  EXPECT_EQ(bits(*real), bits(*scripted(0))) << "the first tenant is not computed";
  ASSERT_TRUE(learner->step(batch(1), never).ok());
  learner->end_tenant(TenantSlot(0));
  ASSERT_TRUE(learner->begin_tenant(training()).ok());
  ASSERT_TRUE(learner->step(batch(2), never).ok());
  ASSERT_TRUE(learner->step(batch(3), never).ok());
  EXPECT_THAT(parted_, IsEmpty());
  EXPECT_EQ(bits(*real), end_);
}

TEST_F(TenantsInARecord, TheNextOneJoinsTheRealLearnerAfterTheRecord) {
  record();
  const std::shared_ptr<Learner> real = scripted(0);
  const auto learner = follow({"", 0, 1}, real);
  play(*learner);
  is_live_ = true;
  learner->end_tenant(TenantSlot(0));
  EXPECT_EQ(real->step(batch(0), never).error().code(), Code::kNotFound);
  ASSERT_TRUE(learner->begin_tenant(training()).ok());
  EXPECT_EQ(learner->begin_tenant(training()).error().code(), Code::kExists);
  ASSERT_TRUE(learner->step(batch(2), never).ok());
  ASSERT_TRUE(learner->step(batch(3), never).ok());
  EXPECT_EQ(bits(*real), end_);
}

TEST_F(TenantsInARecord, ARefusedBeginIsRefusedInAReplayWithoutALearner) {
  TracedLearner recording(
      scripted(0), [this](std::vector<std::byte> answer) { tape_.push_back(std::move(answer)); });
  EXPECT_EQ(recording.begin_tenant(training()).error().code(), Code::kExists);
  recording.end_tenant(TenantSlot(0));
  ASSERT_TRUE(recording.begin_tenant(training()).ok());
  TracedLearner replayed(nullptr, next());
  EXPECT_EQ(replayed.begin_tenant(training()).error().code(), Code::kExists);
  replayed.end_tenant(TenantSlot(0));
  EXPECT_TRUE(replayed.begin_tenant(training()).ok());
  EXPECT_EQ(replayed.begin_tenant(training()).error().code(), Code::kNotFound) << "no answer";
}

}  // namespace
}  // namespace primerl
