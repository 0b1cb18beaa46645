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
