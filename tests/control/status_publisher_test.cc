// The terminal of a run and its files, as its processes report. No process exists.
#include "runtime/control/status_publisher.h"

#include "actors/rollout/rollout.h"
#include "runtime/log/log.h"
#include "tests/control/session_stage.h"

namespace primerl::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class StatusPublisherTest : public PublisherStage {
 protected:
  void SetUp() override { ASSERT_TRUE(publisher_->open(start_).ok()); }
  static LogLine line(LogLevel level, std::string instance, std::string text) {
    return {static_cast<uint8_t>(level), std::move(instance), std::move(text)};
  }
};

TEST_F(StatusPublisherTest, AReasonThatWasShownIsNotRepeated) {
  publisher_->note("error: the disk is full");
  EXPECT_FALSE(publisher_->has_shown("error: the disk is full")) << "a note may be repeated";
  publisher_->say("error: the disk is full");
  EXPECT_TRUE(publisher_->has_shown("error: the disk is full\nand a second line"));
  EXPECT_FALSE(publisher_->has_shown("error: another"));
  EXPECT_FALSE(publisher_->has_shown(""));
}

TEST_F(StatusPublisherTest, OnlyWarningsAndErrorsReachTheTerminalAndAllReachTheLog) {
  publisher_->show_log(process("training"), line(LogLevel::kInfo, "trainer", "step 1"));
  publisher_->show_log(process("training"), line(LogLevel::kWarning, "trainer", "slow"));
  publisher_->show_log(process("training"), line(LogLevel::kError, "training", "broken"));
  EXPECT_THAT(shown(), Not(HasSubstr("step 1")));
  EXPECT_THAT(shown(), HasSubstr("warning: trainer (training): slow"));
  EXPECT_THAT(shown(), HasSubstr("error: training: broken"));
  const std::string log = text_of(folder_->logs_folder() / "run.jsonl");
  EXPECT_THAT(log, HasSubstr(R"("process":"training","instance":"trainer","message":"step 1")"));
  EXPECT_THAT(log, HasSubstr("broken"));
}

TEST_F(StatusPublisherTest, ARepeatedWarningIsShownOnceAndCounted) {
  for (int i = 0; i < 3; ++i)
    publisher_->show_log(process("driver"),
                         line(LogLevel::kWarning, "env", fmt::format("late {}", i)));
  const std::string text = shown();
  EXPECT_EQ(text.find("late"), text.rfind("late")) << text;
  publisher_->note_hidden_warnings();
  EXPECT_THAT(shown(), HasSubstr("note: 2 more like this"));
}

TEST_F(StatusPublisherTest, StepsOfATenantOfTheRunArePublishedOnce) {
  report_step("training", 1);
  report_step("training", 1, "unknown");
  const auto first = publisher_->publish_steps(process("training"), now_);
  EXPECT_TRUE(first.fault.ok());
  EXPECT_EQ(first.num_steps, 1U);
  EXPECT_EQ(publisher_->publish_steps(process("training"), now_).num_steps, 0U);
  ASSERT_NE(publisher_->metrics()->newest("main"), nullptr);
  EXPECT_EQ(publisher_->metrics()->newest("main")->step, 1);
  EXPECT_EQ(store_->picture().tenants[0].newest->step, 1);
  EXPECT_TRUE(publisher_->has_begun());
}

TEST_F(StatusPublisherTest, ALineThatIsNoStepIsAFault) {
  std::filesystem::create_directories(folder_->logs_folder());
  write_text(step_lines_file(folder_->logs_folder(), "training"), "no step\n");
  const auto published = publisher_->publish_steps(process("training"), now_);
  ASSERT_FALSE(published.fault.ok());
  EXPECT_THAT(published.fault.error().text(), HasSubstr("training.steps.jsonl"));
}

TEST_F(StatusPublisherTest, StepsAreRemovedWhenAllAreRead) {
  report_step("training", 1);
  (void)publisher_->publish_steps(process("training"), now_);
  publisher_->remove_steps(process("training"));
  EXPECT_FALSE(std::filesystem::exists(step_lines_file(folder_->logs_folder(), "training")));
}

TEST_F(StatusPublisherTest, TheFirstStepMakesTheRunTheLatestOne) {
  EXPECT_FALSE(folder_->is_kept());
  EXPECT_FALSE(publisher_->has_begun());
  publisher_->begin();
  publisher_->begin();
  EXPECT_TRUE(folder_->is_kept());
  EXPECT_TRUE(std::filesystem::is_symlink(scratch_.path() / "runs" / "latest"));
}

TEST_F(StatusPublisherTest, AnEvaluationShowsItsRowsAndIsNotTheLatestRun) {
  auto plan = std::make_shared<Plan>(*plan_);
  for (PlanNode& node : plan->nodes) {
    if (node.contract->name != "rollout") continue;
    RolloutOptions options;
    options.evaluates_only = true;
    node.options = std::make_shared<const RolloutOptions>(options);
  }
  plan->tenants[0].eval.rows = 150;
  StatusPublisher publisher(*plan, *folder_, resume_, *terminal_, *store_);
  publisher.show(now_, "starting");
  EXPECT_THAT(shown(), HasSubstr("starting  rows 0/150\n"));
  Heartbeat beat;
  beat.instances = {{.instance = 1, .counts = {{"evaluation_rows_ended", 12}, {"other", 40}}}};
  store_->process_said(process("driver"), Payload::of(beat), now_);
  publisher.show(now_ + StatusLine::kPlainEvery, "");
  EXPECT_THAT(shown(), HasSubstr("\nrows 12/150\n"));
  publisher.begin();
  EXPECT_TRUE(folder_->is_kept());
  EXPECT_FALSE(std::filesystem::exists(scratch_.path() / "runs" / "latest"));
}

TEST_F(StatusPublisherTest, OnlyTheFirstTokenIsNoted) {
  publisher_->note_first_token();
  ASSERT_NE(fact("first_token_seconds"), nullptr);
  const double first = fact("first_token_seconds")->as_double();
  publisher_->note_first_token();
  EXPECT_EQ(fact("first_token_seconds")->as_double(), first);
}

TEST_F(StatusPublisherTest, TheListOfProcessesHasStartTimesOfThisMachineOnly) {
  auto plan = std::make_shared<Plan>(*plan_);
  plan->processes[process("training").index()].machine = "b";
  StatusPublisher publisher(*plan, *folder_, resume_, *terminal_, *store_);
  ASSERT_TRUE(
      publisher
          .note_processes({{process("driver"), 1, 41}, {process("training"), 2, 42}}, "/sockets")
          .ok());
  const Json::Array& all = fact("processes")->as_array();
  EXPECT_NE(all[0].find("start_ticks"), nullptr);
  EXPECT_EQ(all[0].find("host"), nullptr);
  EXPECT_EQ(*all[1].get_string("host"), "b");
  EXPECT_EQ(all[1].find("start_ticks"), nullptr);
}

TEST_F(StatusPublisherTest, TheStatusLineShowsThePhaseAndTheNewestStep) {
  publisher_->show(now_, "starting");
  EXPECT_THAT(shown(), HasSubstr("starting"));
  report_step("training", 7);
  (void)publisher_->publish_steps(process("training"), now_);
  publisher_->show(now_ + StatusLine::kPlainEvery, "");
  EXPECT_THAT(shown(), HasSubstr("step 7/"));
  EXPECT_THAT(shown(), HasSubstr("reward 0.5"));
  EXPECT_EQ(store_->picture().phase, "");
}

TEST_F(StatusPublisherTest, AnAlarmIsShownOnceWithWhatToDoAndWhenItEnds) {
  const auto steps = [&](int64_t first, int64_t last, double effective_size) {
    for (int64_t step = first; step <= last; ++step)
      report_step("training", step, "main", {{"effective_size/all/mean", effective_size}});
    EXPECT_TRUE(publisher_->publish_steps(process("training"), now_).fault.ok());
  };
  steps(1, 30, 0.3);
  EXPECT_THAT(shown(),
              HasSubstr("alarm: effective_size since step 10: the effective sample size of "
                        "the last 10 steps is 30% of the batch. A few tokens decide"));
  EXPECT_EQ(shown().find("alarm:"), shown().rfind("alarm:"));
  ASSERT_EQ(store_->picture().tenants[0].alarms.size(), 1U);
  publisher_->show(now_, "");
  EXPECT_THAT(shown(), HasSubstr("alarm effective_size"));
  steps(31, 60, 0.9);
  EXPECT_THAT(shown(),
              HasSubstr("effective_size is over: it was raised in step 10, ended in step"));
  EXPECT_TRUE(store_->picture().tenants[0].alarms.empty());
  EXPECT_THAT(text_of(folder_->alarms_file()), HasSubstr("\"state\":\"ended\""));
}

TEST_F(StatusPublisherTest, SeveralProcessesHaveOneTableOfAStall) {
  EXPECT_EQ(publisher_->stall_table({}), "");
  RunEnded ended;
  ended.stall = "the table of one process";
  EXPECT_THAT(publisher_->stall_table(ended), HasSubstr("over all processes:\n"));
}

}  // namespace
}  // namespace primerl::testing
