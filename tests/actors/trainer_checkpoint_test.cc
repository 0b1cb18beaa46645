#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/trainer/trainer.h"
#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using testing::a_group;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct CheckpointStory : ::testing::Test {
  CheckpointStory() : weights(make_memory_channel()) {
    Tenant tenant = testing::a_tenant();
    tenant.max_steps = 3;
    tenant.checkpoint_every = 2;
    trainer.set_tenants({tenant});
    trainer.use("learner", learner);
    trainer.use("weights", *weights);
    trainer.set_checkpoint_folder(new_scratch_folder());
  }
  void batch(uint64_t first, int64_t version) {
    for (uint64_t i = first; i < first + 2; ++i)
      ASSERT_TRUE(trainer.give("group", a_group(i, version, {0, 1})).ok());
    work();
  }
  void work() {
    const auto turns = trainer.run_work_until_done(50);
    ASSERT_TRUE(turns.ok()) << turns.error().text();
  }
  std::vector<int64_t> checkpoints() {
    std::vector<int64_t> steps;
    for (const auto& one : trainer.checkpoints()) steps.push_back(one.step);
    return steps;
  }
  testing::FakeLearner learner;
  std::shared_ptr<WeightChannel> weights;
  NodeRunner<Trainer> trainer;
};

TEST_F(CheckpointStory, AFolderThatCannotBeMadeIsReportedAndEndsTheRun) {
  trainer.set_checkpoint_folder("");
  work();
  batch(0, 0);
  for (uint64_t i = 2; i < 4; ++i) ASSERT_TRUE(trainer.give("group", a_group(i, 1, {0, 1})).ok());
  EXPECT_TRUE(trainer.run_work().ok()) << "the step itself is whole";
  EXPECT_TRUE(trainer.run_work().ok()) << "what it says leaves before its fault";
  EXPECT_TRUE(trainer.stops_on_error());
  const auto turn = trainer.run_work();
  ASSERT_FALSE(turn.ok());
  EXPECT_THAT(turn.error().message(), HasSubstr("no checkpoint folder"));
  EXPECT_TRUE(trainer.drain().ok()) << "nothing more is tried";
  EXPECT_TRUE(trainer.run_work().ok()) << "it is said once";
}

TEST_F(CheckpointStory, ACheckpointThatCannotBeWrittenNamesTheNewestOne) {
  work();
  batch(0, 0);
  batch(2, 1);
  trainer.set_checkpoint_folder("");
  for (uint64_t i = 4; i < 6; ++i) ASSERT_TRUE(trainer.give("group", a_group(i, 2, {0, 1})).ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(trainer.run_work().ok());
  const auto turn = trainer.run_work();
  ASSERT_FALSE(turn.ok());
  EXPECT_THAT(turn.error().message(), HasSubstr("no checkpoint folder"));
  EXPECT_THAT(turn.error().notes(), ElementsAre("the newest checkpoint is of step 2"));
}

TEST_F(CheckpointStory, IsWrittenEverySoOftenAndAtTheEnd) {
  work();
  batch(0, 0);
  EXPECT_THAT(checkpoints(), IsEmpty());
  batch(2, 1);
  EXPECT_THAT(checkpoints(), ElementsAre(2));
  EXPECT_FALSE(trainer.is_finished(TenantSlot(0)));
  batch(4, 2);
  EXPECT_THAT(checkpoints(), ElementsAre(2, 3));
  EXPECT_TRUE(trainer.is_finished(TenantSlot(0)));
  EXPECT_TRUE(trainer.sent<WeightsReady>("weights").back().is_last);
  EXPECT_THAT(trainer.metrics(), SizeIs(3)) << "the last step's numbers are told before the end";
  ASSERT_TRUE(trainer.drain().ok());
  EXPECT_THAT(checkpoints(), SizeIs(2));
}

TEST_F(CheckpointStory, TheManifestSaysWhatAResumedRunNeeds) {
  work();
  ASSERT_TRUE(trainer.give("group", a_group(7, 0, {1, 1})).ok());  // filtered, so it is consumed
  batch(0, 0);
  batch(2, 1);
  const Json& manifest = trainer.checkpoints()[0].manifest;
  EXPECT_EQ(manifest.dump(),
            R"({"tenant":"main","step":2,"version":2,"resumes":0,"consumed":[[0,3],[7,7]]})");
}

TEST_F(CheckpointStory, ForKeepBestTheManifestHasTheScore) {
  Tenant best = testing::a_tenant();
  best.max_steps = 2;
  best.checkpoint_every = 1;
  best.keep_best = 1;
  best.best_by = "-optim/grad_norm";
  trainer.set_tenants({best});
  work();
  batch(0, 0);
  ASSERT_THAT(checkpoints(), ElementsAre(1));
  EXPECT_EQ(trainer.checkpoints()[0].manifest.get_double("score").value(), -0.25)
      << "the smallest is best, and larger scores are better";
}

TEST_F(CheckpointStory, AMetricThatDoesNotExistIsNamedAfterTheFirstStep) {
  Tenant best = testing::a_tenant();
  best.keep_best = 1;
  best.best_by = "reward/all/meen";
  trainer.set_tenants({best});
  work();
  for (uint64_t i = 0; i < 2; ++i) ASSERT_TRUE(trainer.give("group", a_group(i, 0, {0, 1})).ok());
  ASSERT_TRUE(trainer.run_work().ok());
  const auto failed = trainer.run_work();
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().text(), HasSubstr("names no metric of its steps: 'reward/all/meen'"));
  EXPECT_THAT(failed.error().text(), HasSubstr("did you mean 'reward/all/mean'?"));
}

TEST_F(CheckpointStory, ADrainEndsWhatWaitsAndWritesOne) {
  work();
  batch(0, 0);
  ASSERT_TRUE(trainer.give("group", a_group(9, 1, {0, 1})).ok());
  trainer.forget_sent();
  EXPECT_FALSE(trainer.idle());
  ASSERT_TRUE(trainer.drain().ok());
  EXPECT_TRUE(trainer.idle());
  const auto ends = trainer.sent<GroupEnded>("ended");
  ASSERT_THAT(ends, SizeIs(1));
  EXPECT_EQ(ends[0].end, RolloutEnd::kCancelled);
  EXPECT_THAT(checkpoints(), ElementsAre(1));
  EXPECT_EQ(trainer.checkpoints()[0].manifest.find("consumed")->dump(), "[[0,1]]")
      << "a cancelled group is opened again";
  ASSERT_TRUE(trainer.give("group", a_group(10, 1, {0, 1})).ok());
  EXPECT_THAT(trainer.sent<GroupEnded>("ended"), SizeIs(2));
}

/// A learner whose checkpoints end when the test says so.
class LateLearner final : public testing::FakeLearner {
 public:
  Status begin_save(LearnerSave save) override {
    begun.push_back(save.folder.filename());
    open = std::move(save);
    return ok();
  }
  std::optional<Status> end_of_save(TenantSlot, Time now) override {
    if (!limit) limit.emplace(open.lasts_max);
    auto ended = std::exchange(end, std::nullopt);
    if (!ended) return limit->look(now);
    limit.reset();
    return ended->ok() ? open.commit() : ended;
  }

  std::vector<std::string> begun;
  LearnerSave open;
  std::optional<Status> end;
  std::optional<SaveLimit> limit;
};

struct LateStory : CheckpointStory {
  LateStory() { trainer.use("learner", late); }
  void end(Status status = ok()) { late.end = std::move(status); }
  int64_t num_waits() { return trainer.counter("checkpoints_waited"); }

  LateLearner late;
};

TEST_F(LateStory, TrainsOnWhileACheckpointIsWritten) {
  work();
  batch(0, 0);
  batch(2, 1);
  EXPECT_THAT(late.begun, ElementsAre("step_2"));
  ASSERT_TRUE(trainer.give("group", a_group(4, 2, {0, 1})).ok());
  work();
  EXPECT_THAT(checkpoints(), IsEmpty());
  end();
  work();
  EXPECT_THAT(checkpoints(), ElementsAre(2));
  EXPECT_EQ(trainer.checkpoints()[0].manifest.find("consumed")->dump(), "[[0,3]]")
      << "as it was when the copy was taken";
  EXPECT_EQ(num_waits(), 0);
}

TEST_F(LateStory, LooksForTheEndOnceASecond) {
  work();
  batch(0, 0);
  batch(2, 1);
  EXPECT_EQ(trainer.timer("save"), trainer.now() + Duration::seconds(1));
  ASSERT_TRUE(trainer.advance(Duration::seconds(1)).ok());
  EXPECT_EQ(trainer.timer("save"), trainer.now() + Duration::seconds(1));
  end();
  ASSERT_TRUE(trainer.advance(Duration::seconds(1)).ok());
  work();  // a group gets a work call after each input
  EXPECT_THAT(checkpoints(), ElementsAre(2));
  EXPECT_FALSE(trainer.timer("save").has_value());
}

TEST_F(LateStory, WaitsWithItsStepsIfTheNextOneIsDue) {
  work();
  batch(0, 0);
  batch(2, 1);
  batch(4, 2);  // the last step, whose checkpoint is due as well
  EXPECT_THAT(late.begun, ElementsAre("step_2"));
  EXPECT_EQ(num_waits(), 1);
  work();
  EXPECT_EQ(num_waits(), 1) << "counted once";
  EXPECT_FALSE(trainer.is_finished(TenantSlot(0)));
  end();
  work();
  EXPECT_THAT(late.begun, ElementsAre("step_2", "step_3"));
  EXPECT_FALSE(trainer.is_finished(TenantSlot(0))) << "the end of the run waits for its checkpoint";
  EXPECT_FALSE(trainer.idle());
  end();
  work();
  EXPECT_THAT(checkpoints(), ElementsAre(2, 3));
  EXPECT_TRUE(trainer.is_finished(TenantSlot(0)));
  EXPECT_TRUE(trainer.idle());
}

TEST_F(LateStory, ADrainWaitsForTheOpenOneAndWritesAnother) {
  work();
  batch(0, 0);
  batch(2, 1);
  ASSERT_TRUE(trainer.drain().ok());
  EXPECT_FALSE(trainer.idle()) << "step 2 is being written";
  end();
  work();
  EXPECT_TRUE(trainer.idle());
  EXPECT_THAT(checkpoints(), ElementsAre(2));
  EXPECT_THAT(late.begun, ElementsAre("step_2")) << "nothing was trained after it";
}

TEST_F(LateStory, ADrainAfterALaterStepWritesThatStepToo) {
  Tenant more = testing::a_tenant();
  more.max_steps = 9;
  more.checkpoint_every = 2;
  trainer.set_tenants({more});
  work();
  batch(0, 0);
  batch(2, 1);
  batch(4, 2);
  ASSERT_TRUE(trainer.drain().ok());
  end();
  work();
  EXPECT_THAT(late.begun, ElementsAre("step_2", "step_3"));
  EXPECT_FALSE(trainer.idle());
  end();
  work();
  EXPECT_TRUE(trainer.idle());
  EXPECT_THAT(checkpoints(), ElementsAre(2, 3));
}

TEST_F(LateStory, ADiskThatFillsEndsTheRunAndNamesTheNewestCheckpoint) {
  Tenant more = testing::a_tenant();
  more.max_steps = 9;
  more.checkpoint_every = 1;
  trainer.set_tenants({more});
  work();
  batch(0, 0);
  end();
  work();
  batch(2, 1);
  end(error(Code::kIo, "writing 'model.safetensors': no space left on device"));
  ASSERT_TRUE(trainer.run_work().ok()) << "what it says leaves before its fault";
  EXPECT_TRUE(trainer.stops_on_error());
  const auto failed = trainer.run_work();
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().message(),
            "checkpoint of step 2: writing 'model.safetensors': no space left on device");
  EXPECT_THAT(failed.error().notes(), ElementsAre("the newest checkpoint is of step 1"));
  EXPECT_TRUE(trainer.idle());
  EXPECT_THAT(checkpoints(), ElementsAre(1));
}

TEST_F(LateStory, GivesUpAfterSaveMaxAndNotBefore) {
  work();
  batch(0, 0);
  batch(2, 1);
  const Duration most = TrainerOptions().save_max;
  ASSERT_TRUE(trainer.advance(most - Duration::nanoseconds(1)).ok());
  work();
  EXPECT_FALSE(trainer.stops_on_error());
  ASSERT_TRUE(trainer.advance(Duration::nanoseconds(1)).ok());
  ASSERT_TRUE(trainer.run_work().ok());
  EXPECT_TRUE(trainer.stops_on_error());
  EXPECT_THAT(trainer.run_work().error().message(),
              HasSubstr("checkpoint of step 2: it was not written within 30m"));
}

struct RequestStory : LateStory {
  RequestStory() {
    Tenant seldom = testing::a_tenant();
    seldom.max_steps = 9;
    seldom.checkpoint_every = 4;
    trainer.set_tenants({seldom});
    work();
    batch(0, 0);
  }
  void ask(int64_t step) {
    ASSERT_TRUE(trainer.give("checkpoint", CheckpointRequest{step}).ok());
    work();
  }
};

TEST_F(RequestStory, ACheckpointThatIsAskedForIsBegunAndTheScheduleStays) {
  ask(1);
  EXPECT_THAT(late.begun, ElementsAre("step_1"));
  batch(2, 1);  // training continues
  end();
  work();
  EXPECT_THAT(checkpoints(), ElementsAre(1));
  batch(4, 2);
  batch(6, 3);
  EXPECT_THAT(late.begun, ElementsAre("step_1", "step_4"));
  EXPECT_EQ(trainer.counter("checkpoints_requested"), 1);
}

TEST_F(RequestStory, ARequestForAStepThatIsSavedOrNotMadeIsIgnored) {
  ask(2);
  EXPECT_THAT(late.begun, IsEmpty()) << "step 2 does not exist yet";
  ask(1);
  end();
  work();
  ask(1);
  ask(0);
  EXPECT_THAT(late.begun, ElementsAre("step_1"));
}

TEST_F(RequestStory, ARequestWhileOneIsWrittenIsIgnored) {
  ask(1);
  batch(2, 1);
  ask(2);
  EXPECT_THAT(late.begun, ElementsAre("step_1"));
  end();
  ask(2);
  EXPECT_THAT(late.begun, ElementsAre("step_1", "step_2")) << "its end is seen first";
}

TEST_F(RequestStory, ARequestAfterTheEndIsIgnored) {
  ASSERT_TRUE(trainer.drain().ok());
  end();
  work();
  ask(1);
  EXPECT_THAT(late.begun, ElementsAre("step_1"));
  EXPECT_TRUE(trainer.idle());
}

TEST_F(RequestStory, ARequestThatTheDiskRefusesEndsTheRun) {
  trainer.set_checkpoint_folder("");
  ASSERT_TRUE(trainer.give("checkpoint", CheckpointRequest{1}).ok());
  EXPECT_TRUE(trainer.stops_on_error());
  EXPECT_THAT(trainer.run_work().error().message(), HasSubstr("no checkpoint folder"));
}

struct ResumeStory : CheckpointStory {
  ResumePoint point(int64_t step) {
    ResumePoint made;
    made.folder = "checkpoints/step";
    made.step = step;
    made.version = PolicyVersion(step);
    made.manifest = Json::object();
    made.manifest.set("resumes", 1).set("consumed", *parse_json("[[0,3]]", "test"));
    return made;
  }
};

TEST_F(ResumeStory, AManifestWithoutConsumedOrdinalsIsRefused) {
  auto broken = point(2);
  broken.manifest = Json::object().set("resumes", 1);
  trainer.set_resume_point(TenantSlot(0), broken);
  EXPECT_FALSE(trainer.start().ok());
}

TEST_F(ResumeStory, RepublishesTheVersionAndContinuesFromIt) {
  trainer.set_resume_point(TenantSlot(0), point(2));
  work();
  EXPECT_EQ(learner.loaded, "checkpoints/step");
  EXPECT_EQ(weights->newest({}), PolicyVersion(2));
  EXPECT_THAT(checkpoints(), IsEmpty());
  batch(4, 2);
  EXPECT_EQ(trainer.sent<GroupEnded>("ended").back().step, 3);
  EXPECT_EQ(trainer.checkpoints()[0].manifest.dump(),
            R"({"tenant":"main","step":3,"version":3,"resumes":2,"consumed":[[0,5]]})");
  EXPECT_TRUE(trainer.is_finished(TenantSlot(0)));
}

TEST_F(ResumeStory, ARunThatWasFinishedEndsAtOnce) {
  trainer.set_resume_point(TenantSlot(0), point(3));
  work();
  EXPECT_TRUE(trainer.is_finished(TenantSlot(0)));
  EXPECT_THAT(learner.batches, IsEmpty());
}

}  // namespace
}  // namespace primerl
