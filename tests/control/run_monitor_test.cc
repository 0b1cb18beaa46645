// A run whose processes are silent, die, fail or cannot start. No process exists: see
// session_stage.h.
#include "runtime/control/run_monitor.h"

#include "runtime/wire/timeouts.h"
#include "tests/control/session_stage.h"

namespace primerl::testing {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const ProcessExit kClean{0, 0};
const ProcessExit kCrash{-1, SIGSEGV};

RunEnded ended_as(RunEnd end, std::string text = "", Code code = Code::kInternal) {
  RunEnded ended;
  ended.end = static_cast<uint8_t>(end);
  ended.code = static_cast<uint8_t>(code);
  ended.text = std::move(text);
  return ended;
}

class RunMonitorTest : public MonitorStage {
 protected:
  void end_all() {
    for (uint32_t i = 0; i < fates_.size(); ++i) end(ProcessId(i), kClean);
  }
  const ProcessId driver_ = process("driver"), first_ = process("inference#0"),
                  training_ = process("training");
};

TEST_F(RunMonitorTest, AHelloOfAnotherGraphEndsTheLaunchWithBothValues) {
  launch_all();
  WorkerHello hello;
  hello.process = "driver";
  say(driver_, hello);
  const Status checked = monitor_->check_agents();
  ASSERT_FALSE(checked.ok());
  EXPECT_THAT(checked.error().text(), HasSubstr("process 'driver'"));
}

TEST_F(RunMonitorTest, ADeathBeforeTheStartEndsTheLaunchWithItsLastWords) {
  launch_all();
  fates_[training_.index()].last_words = "no such weights";
  end(training_, {1, 0});
  const Status checked = monitor_->check_launch({training_, Payload(), ok()});
  ASSERT_FALSE(checked.ok());
  EXPECT_THAT(checked.error().text(),
              HasSubstr("process 'training' exited with code 1 before it was ready"));
  EXPECT_THAT(checked.error().text(), HasSubstr("no such weights"));
  EXPECT_FALSE(monitor_->end_of_launch(checked.error(), 0).has_lost_worker)
      << "it would exit again";
}

TEST_F(RunMonitorTest, ADeathByASignalBeforeTheStartMayBeTriedAgain) {
  launch_all();
  end(training_, kCrash);
  const Status checked = monitor_->check_launch({training_, Payload(), ok()});
  ASSERT_FALSE(checked.ok());
  EXPECT_TRUE(monitor_->end_of_launch(checked.error(), 0).has_lost_worker);
  EXPECT_EQ(monitor_->end_of_launch(checked.error(), 1).how, RunEnding::How::kInterrupted);
}

TEST_F(RunMonitorTest, ALaunchHasADeadlineThatNamesWhoIsAwaited) {
  launch_all();
  for (const ProcessId each : {driver_, first_, training_}) say_hello(each);
  const Time give_up = now_ + kHelloMax;
  now_ = give_up;
  EXPECT_TRUE(monitor_->check_deadline(give_up).ok());
  now_ = now_ + Duration::nanoseconds(1);
  const Status late = monitor_->check_deadline(give_up);
  ASSERT_FALSE(late.ok());
  EXPECT_THAT(late.error().text(), HasSubstr("'inference#1' has not spoken within 1m"));
}

TEST_F(RunMonitorTest, ARefusedLaunchIsReported) {
  refuses_launch_ = true;
  ASSERT_TRUE(publisher_->open(start_).ok());
  RunMonitor monitor(*plan_, resume_, *folder_, start_, *this, *publisher_, nullptr,
                     [this] { return now_; });
  const Status launched = monitor.launch("");
  ASSERT_FALSE(launched.ok());
  EXPECT_THAT(launched.error().text(), HasSubstr("process table is full"));
}

TEST_F(RunMonitorTest, ListsItsProcessesForPs) {
  launch_all();
  ASSERT_NE(fact("processes"), nullptr);
  EXPECT_THAT(fact("processes")->dump(), HasSubstr(R"("name":"training","pid":4)"));
  EXPECT_EQ(fact("sockets")->as_string(), "/sockets");
}

TEST_F(RunMonitorTest, ASilentProcessIsKilledAtItsLimitAndNotBefore) {
  bring_up();
  const Duration limit = plan_->settings.dead_after;
  pass(limit - Duration::milliseconds(500));
  EXPECT_EQ(fates_[driver_.index()].num_kills, 0);
  for (const ProcessId each : {first_, training_, process("inference#1")}) say(each, Heartbeat{});
  pass(Duration::milliseconds(500));
  EXPECT_EQ(fates_[driver_.index()].num_kills, 1);
  EXPECT_EQ(fates_[training_.index()].num_kills, 0) << "it sent a heartbeat";
}

TEST_F(RunMonitorTest, SilenceWhileThisProcessWasStoppedDoesNotCount) {
  bring_up();
  now_ = now_ + plan_->settings.dead_after * 10;  // one tick that late
  monitor_->tick();
  for (const FakeFate& fate : fates_) EXPECT_EQ(fate.num_kills, 0);
}

TEST_F(RunMonitorTest, AnEngineThatDiesIsRestartedAloneAfterItsPause) {
  bring_up();
  end(first_, kCrash);
  EXPECT_THAT(shown(), HasSubstr("'inference#0' was killed by signal 11 (Segmentation fault); it "
                                 "is restarted as incarnation 2"));
  EXPECT_FALSE(monitor_->all_closed());
  monitor_->tick();
  EXPECT_THAT(fates_[first_.index()].incarnations, ElementsAre(1)) << "its pause is not over";
  now_ = now_ + Duration::milliseconds(50);
  monitor_->tick();
  EXPECT_THAT(fates_[first_.index()].incarnations, ElementsAre(1, 2));
  EXPECT_THAT(fact("processes")->dump(), HasSubstr(R"("incarnation":2)"));
  EXPECT_THAT(sent_until(driver_, "PeerDown"), Contains("GoRun"));
  EXPECT_TRUE(monitor_->was_killed());
}

TEST_F(RunMonitorTest, ARestartedProcessMayTakeLongerToItsFirstMessage) {
  bring_up();
  end(first_, kCrash);
  now_ = now_ + Duration::milliseconds(50);
  monitor_->tick();
  const Duration limit = plan_->settings.dead_after;
  for (Duration waited; waited < limit * 2; waited += Duration::seconds(1)) {
    for (const ProcessId each : {driver_, training_, process("inference#1")})
      say(each, Heartbeat{});
    pass(Duration::seconds(1));
  }
  EXPECT_EQ(fates_[first_.index()].num_kills, 0) << "it loads its libraries";
}

TEST_F(RunMonitorTest, RestartsEndAtTheirBound) {
  bring_up();
  const int64_t restarts_max = plan_->settings.restarts_max;
  for (int64_t i = 0; i < restarts_max; ++i) {
    end(first_, kCrash);
    ASSERT_FALSE(monitor_->lifecycle().is_stopping()) << i;
    now_ = now_ + Duration::milliseconds(6400);
    for (const ProcessId each : {driver_, training_, process("inference#1")})
      say(each, Heartbeat{});
    monitor_->tick();
    say_hello(first_, static_cast<uint32_t>(i) + 2);
    say(first_, PeersConnected{});
    say(first_, GroupsReady{});
  }
  end(first_, kCrash);
  EXPECT_TRUE(monitor_->lifecycle().is_stopping());
  EXPECT_THAT(monitor_->lifecycle().fault(),
              HasSubstr(fmt::format("after {} restarts within", restarts_max)));
}

TEST_F(RunMonitorTest, AProcessThatLacksMemoryIsNotRestarted) {
  bring_up();
  end(first_, {-1, SIGKILL, "for lack of memory: its resident memory was 9 GiB"});
  EXPECT_THAT(fates_[first_.index()].incarnations, ElementsAre(1));
  end_all();
  const RunEnding ending = monitor_->end(0);
  EXPECT_THAT(ending.why, HasSubstr("lower micro_batch_tokens"));
  EXPECT_FALSE(ending.has_lost_worker) << "it would need as much again";
}

TEST_F(RunMonitorTest, ADeadTrainerEndsTheStartWhichMayBeResumed) {
  bring_up();
  fates_[training_.index()].last_words = "out of ideas";
  end(training_, kCrash);
  for (const ProcessId each : {driver_, first_, process("inference#1")})
    EXPECT_EQ(fates_[each.index()].num_kills, 1);
  for (const ProcessId each : {driver_, first_, process("inference#1")}) end(each, {-1, SIGKILL});
  EXPECT_TRUE(monitor_->all_closed());
  const RunEnding ending = monitor_->end(0);
  EXPECT_EQ(ending.how, RunEnding::How::kFailed);
  EXPECT_TRUE(ending.has_lost_worker);
  EXPECT_THAT(ending.why, HasSubstr("process 'training' was killed by signal 11"));
  EXPECT_THAT(ending.why, HasSubstr("its last words:\nout of ideas"));
}

TEST_F(RunMonitorTest, AFailedWorkerStopsTheOthersAndIsTheReason) {
  bring_up();
  say(training_, ended_as(RunEnd::kFailed, "loss is NaN"));
  EXPECT_THAT(sent_until(driver_, "StopRun"), Contains("GoRun"));
  for (const ProcessId each : {driver_, first_, process("inference#1")})
    say(each, ended_as(RunEnd::kInterrupted));
  end_all();
  const RunEnding ending = monitor_->end(0);
  EXPECT_EQ(ending.how, RunEnding::How::kFailed);
  EXPECT_EQ(ending.why, "loss is NaN");
  EXPECT_FALSE(ending.has_lost_worker);
}

TEST_F(RunMonitorTest, TheFirstSignalDrainsTheSecondStopsTheThirdKills) {
  bring_up();
  monitor_->apply_signals(1);
  monitor_->apply_signals(1);
  EXPECT_EQ(monitor_->lifecycle().phase_text(), "draining");
  sent_until(driver_, "DrainRun");
  monitor_->apply_signals(2);
  sent_until(driver_, "StopRun");
  for (const FakeFate& fate : fates_) EXPECT_EQ(fate.num_kills, 0);
  monitor_->apply_signals(3);
  for (const FakeFate& fate : fates_) EXPECT_EQ(fate.num_kills, 1);
  EXPECT_THAT(shown(), HasSubstr("draining: what is in flight ends"));
  EXPECT_THAT(shown(), HasSubstr("stopping now"));
  end_all();
  EXPECT_EQ(monitor_->end(3).how, RunEnding::How::kInterrupted);
}

TEST_F(RunMonitorTest, ALostAgentKillsTheRunOnce) {
  bring_up();
  agent_fault_ = error(Code::kUnavailable, "host 'b' is gone");
  monitor_->tick();
  monitor_->tick();
  for (const FakeFate& fate : fates_) EXPECT_EQ(fate.num_kills, 1);
  end_all();
  const RunEnding ending = monitor_->end(0);
  EXPECT_TRUE(ending.has_lost_worker);
  EXPECT_THAT(ending.why, HasSubstr("host 'b' is gone"));
}

TEST_F(RunMonitorTest, AnAgentThatLeavesDrainsTheRun) {
  bring_up();
  agent_leaving_ = "host 'b' shuts down";
  monitor_->tick();
  monitor_->tick();
  EXPECT_EQ(monitor_->lifecycle().phase_text(), "draining");
  EXPECT_THAT(shown(), HasSubstr("warning: host 'b' shuts down; the run drains"));
}

TEST_F(RunMonitorTest, CommandsAreRefusedBeforeTheRunRuns) {
  launch_all();
  Json content = Json::object();
  content.set("owner", "anna").set("lease_ns", 1'000'000'000);
  const std::vector<CommandInbox::Ask> asks = {{"q", content}};
  monitor_->apply_commands(asks);
  EXPECT_THAT(answers_.at("q").dump(), HasSubstr("the run is starting; ask again when it runs"));
}

TEST_F(RunMonitorTest, StepsArePublishedBeforeTheMessageThatFollowsThem) {
  bring_up();
  EXPECT_EQ(monitor_->lifecycle().phase_text(), "starting");
  report_step("training", 1);
  say(training_, Heartbeat{});
  ASSERT_NE(publisher_->metrics()->newest("main"), nullptr);
  EXPECT_EQ(monitor_->lifecycle().phase_text(), "");
}

TEST_F(RunMonitorTest, ALineOfStepsThatCannotBeReadStopsTheRunOnce) {
  bring_up();
  std::filesystem::create_directories(folder_->logs_folder());
  write_text(step_lines_file(folder_->logs_folder(), "training"), "no step\n");
  monitor_->publish_steps();
  monitor_->publish_steps();
  EXPECT_TRUE(monitor_->lifecycle().is_stopping());
  const std::string text = shown();
  EXPECT_EQ(text.find("error: "), text.rfind("error: ")) << text;
  EXPECT_THAT(text, HasSubstr("error: "));
}

TEST_F(RunMonitorTest, AResumedRunIsLiveWhenAllHaveFollowedTheirRecords) {
  resume_.follow.record = scratch_.path() / "trace";
  publisher_ = std::make_unique<StatusPublisher>(*plan_, *folder_, resume_, *terminal_, *store_);
  bring_up();
  EXPECT_THAT(followed_, Each(true));
  EXPECT_EQ(monitor_->lifecycle().phase_text(), "following the record");
  for (uint32_t i = 0; i < 3; ++i) say(ProcessId(i), RunRecovered{10, 5});
  EXPECT_THAT(shown(), Not(HasSubstr("recovered")));
  say(ProcessId(3), RunRecovered{1, 0});
  EXPECT_THAT(shown(), HasSubstr("recovered: 31 steps and 15 messages as recorded"));
  EXPECT_EQ(monitor_->lifecycle().phase_text(), "");
}

TEST_F(RunMonitorTest, WritesThePeakMemoryOfItsProcesses) {
  bring_up();
  for (uint32_t i = 0; i < fates_.size(); ++i) say(ProcessId(i), ended_as(RunEnd::kInterrupted));
  for (uint32_t i = 0; i < fates_.size(); ++i) end(ProcessId(i), {0, 0, "", 1e6});
  (void)monitor_->end(1);
  ASSERT_NE(fact("memory"), nullptr);
  EXPECT_THAT(fact("memory")->dump(), HasSubstr(R"("peak_bytes":1000000)"));
}

}  // namespace
}  // namespace primerl::testing
