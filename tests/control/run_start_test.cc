// What run.json says about a start: a new run, a resumed one, and changed plugins.
#include "runtime/control/run_start.h"

#include "tests/control/session_stage.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class RunStartTest : public PublisherStage {
 protected:
  Json facts() const { return start_facts(*plan_, *folder_, resume_, start_); }
};

TEST_F(RunStartTest, ANewRunGetsAnIdThatDependsOnItsTime) {
  const RunStart start = next_start_of(*folder_, 1000.5);
  EXPECT_THAT(start.run_id, SizeIs(16));
  EXPECT_NE(start.run_id, next_start_of(*folder_, 1000.6).run_id);
  EXPECT_EQ(start.incarnation, 1U);
  EXPECT_EQ(start.wall_zero, 1000.5);
}

TEST_F(RunStartTest, ALaterStartKeepsTheIdAndTimeZeroOfTheRun) {
  start_ = next_start_of(*folder_, 1000);
  ASSERT_TRUE(folder_->note(facts()).ok());
  const RunStart second = next_start_of(*folder_, 5000);
  EXPECT_EQ(second.run_id, start_.run_id);
  EXPECT_EQ(second.incarnation, 2U);
  EXPECT_EQ(second.wall, 5000);
  EXPECT_EQ(second.wall_zero, 1000);
  start_ = second;
  EXPECT_THAT(facts().dump(), Not(HasSubstr("run_id"))) << "it is written once";
}

TEST_F(RunStartTest, TheFactsOfANewRunNameNoCheckpoint) {
  const Json made = facts();
  EXPECT_EQ(made.find("resumed"), nullptr);
  EXPECT_EQ(made.find("resumes"), nullptr);
  EXPECT_EQ(*made.get_string("name"), "split");
  EXPECT_EQ(*made.get_string("end"), "running");
}

TEST_F(RunStartTest, AResumeIsAddedToTheEarlierOnesUpToTheirBound) {
  resume_.graph_file = "/run/graph.resolved.toml";
  resume_.points.resize(2);
  resume_.points[1].folder = "/run/checkpoints/step_4";
  resume_.points[1].step = 4;
  for (size_t i = 0; i < kResumesMax + 1; ++i) {
    start_.incarnation = static_cast<uint32_t>(i + 2);
    ASSERT_TRUE(folder_->note(facts()).ok());
  }
  EXPECT_THAT(fact("resumed")->as_array(), SizeIs(kResumesMax + 1))
      << "one per resume; a tenant without a checkpoint adds none";
  ASSERT_THAT(fact("resumes")->as_array(), SizeIs(kResumesMax));
  EXPECT_THAT(fact("resumes")->as_array().front().dump(), HasSubstr(R"("incarnation":3)"));
}

TEST_F(RunStartTest, APluginWhoseFileChangedIsNamed) {
  auto catalog = std::make_shared<Catalog>(*plan_->catalog);
  PluginIdentity plugin;
  plugin.name = "extra";
  plugin.version = "2";
  plugin.checksum = 0xabc;
  catalog->plugins = {plugin};
  auto plan = std::make_shared<Plan>(*plan_);
  plan->catalog = catalog;
  plan_ = plan;
  EXPECT_THAT(changed_plugins(*plan_, folder_->facts()), IsEmpty()) << "there was no earlier start";
  ASSERT_TRUE(folder_->note(facts()).ok());
  EXPECT_THAT(changed_plugins(*plan_, folder_->facts()), IsEmpty());
  catalog->plugins[0].checksum = 0xabd;
  EXPECT_THAT(
      changed_plugins(*plan_, folder_->facts()),
      ElementsAre(HasSubstr("plugin 'extra' is another file than at the last start: version "
                            "2, CRC-32C 00000abd, before 00000abc")));
}

TEST_F(RunStartTest, StepsThatNoControlPlaneReadAreWrittenUpToTheRecordsEnd) {
  for (const int64_t step : {1, 2, 3}) report_step("training", step);
  resume_.last_steps = {{"main", 2}};
  ASSERT_TRUE(keep_leftover_steps(*plan_, *folder_, resume_, start_).ok());
  const std::string text = text_of(folder_->metrics_file());
  EXPECT_THAT(text, HasSubstr(R"("step":1)"));
  EXPECT_THAT(text, HasSubstr(R"("step":2)"));
  EXPECT_THAT(text, Not(HasSubstr(R"("step":3)"))) << "the run repeats it";
  EXPECT_THAT(find_step_lines(folder_->logs_folder()), IsEmpty());
}

}  // namespace
}  // namespace primerl::testing
