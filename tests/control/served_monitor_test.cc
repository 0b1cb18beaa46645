// A run that is served: requests of persons, orders to processes, restarts, and its end.
#include <algorithm>

#include "tests/control/session_stage.h"
#include "tests/control/tenant_stage.h"

namespace primerl::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// examples/hosted in four processes.
class ServedMonitor : public MonitorStage {
 protected:
  ServedMonitor() {
    plan_ = hosted_plan("", 2);
    EXPECT_TRUE(folder_->note(Json::object().set("served", true)).ok());
    store_ = std::make_unique<StatusStore>(plan_, now_);
    publisher_ = std::make_unique<StatusPublisher>(*plan_, *folder_, resume_, *terminal_, *store_);
  }
  void serve() {
    bring_up();
    for (uint32_t i = 0; i < fates_.size(); ++i) (void)sent_until(ProcessId(i), "GoRun");
  }
  Json ask(const std::string& verb, const std::string& name) {
    Json content = Json::object().set("tenant_verb", verb).set("name", name).set("files", "keep");
    if (verb == "add") content.set("file", name);
    const CommandInbox::Ask request{"7", content};
    monitor_->apply_commands({&request, 1});
    return answers_["7"];
  }
  Json add_alice() {
    return ask("add", std::string(PRIMERL_SOURCE_DIR) + "/examples/hosted/alice.toml");
  }
  static std::string why(const Json& answer) {
    return answer.find("error") == nullptr ? "" : answer.get_string("error").value();
  }
  void answer_all(Kind kind) {
    for (uint32_t i = 0; i < fates_.size(); ++i)
      say(ProcessId(i), TenantAnswered{TenantSlot(0), 0, static_cast<uint8_t>(kind)});
  }
  void drain_all() {
    for (uint32_t round = 1; round <= 2; ++round)
      for (uint32_t i = 0; i < fates_.size(); ++i) {
        TenantAnswered answered{TenantSlot(0), 0};
        answered.round = round;
        say(ProcessId(i), answered);
      }
  }
  std::string state() { return ask("show", "alice").find("tenant")->get_string("state").value(); }
};

TEST_F(ServedMonitor, TakesTenantsWhenAllProcessesAreReadyAndNotBefore) {
  launch_all();
  EXPECT_THAT(why(add_alice()), HasSubstr("the run is starting"));
  EXPECT_THAT(ask("ls", "").find("tenants")->as_array(), IsEmpty()) << "it can be looked at";
}

TEST_F(ServedMonitor, ATenantTrainsEndsAndTheRunGoesOn) {
  serve();
  EXPECT_TRUE(publisher_->has_begun()) << "`tenant` finds it as runs/latest";
  ASSERT_EQ(why(add_alice()), "");
  for (uint32_t i = 0; i < fates_.size(); ++i)
    EXPECT_THAT(sent_until(ProcessId(i), "ChangeTenant"), ElementsAre("ChangeTenant"));
  answer_all(Kind::kJoin);
  EXPECT_EQ(state(), "training");
  monitor_->apply_commands({});
  report_step("training", 3, "alice");
  monitor_->publish_steps();
  EXPECT_EQ(ask("show", "alice").find("tenant")->get_int("step").value(), 3);
  EXPECT_EQ(store_->picture().tenants[0].name, "alice");
  say(process("training"), TenantFinished{TenantSlot(0), ""});
  EXPECT_EQ(state(), "draining");
  drain_all();
  answer_all(Kind::kLeave);
  EXPECT_EQ(state(), "ended");
  EXPECT_EQ(monitor_->lifecycle().phase(), RunLifecycle::Phase::kRunning);
  EXPECT_FALSE(monitor_->all_closed());
}

TEST_F(ServedMonitor, AnIdleRunIsNotStalled) {
  serve();
  Heartbeat still;
  still.still_ms = 1'000'000;
  for (uint32_t i = 0; i < fates_.size(); ++i) say(ProcessId(i), still);
  monitor_->tick();
  EXPECT_EQ(monitor_->lifecycle().fault(), "");
  still.is_waiting = true;
  for (uint32_t i = 0; i < fates_.size(); ++i) say(ProcessId(i), still);
  monitor_->tick();
  EXPECT_THAT(monitor_->lifecycle().fault(), HasSubstr("no step and no sign of life"))
      << "an input waits";
}

TEST_F(ServedMonitor, AFailedTenantIsSetAsideAndLeaves) {
  serve();
  add_alice();
  answer_all(Kind::kJoin);
  say(process("driver"), TenantFinished{TenantSlot(0), "its reward is gone"});
  // Its actors may wait for what was lost: they count as idle in every process, so the drain ends.
  const auto sent = sent_until(process("training"), "SetTenantAside");
  EXPECT_THAT(sent, Contains("DrainTenant"));
  drain_all();
  answer_all(Kind::kLeave);
  EXPECT_EQ(state(), "failed");
}

TEST_F(ServedMonitor, ARestartedProcessMakesTheActorsBeforeItAcceptsInputs) {
  serve();
  add_alice();
  answer_all(Kind::kJoin);
  const ProcessId engine = process("inference#0");
  end(engine, ProcessExit{-1, SIGKILL});
  fates_[engine.index()].received = std::make_shared<ControlInbox>();  // of the next incarnation
  pass(Duration::seconds(60));
  ASSERT_EQ(fates_[engine.index()].incarnations.size(), 2U);
  say_hello(engine, 2);
  say(engine, PeersConnected{});
  say(engine, GroupsReady{});
  const auto sent = sent_until(engine, "GoRun");
  EXPECT_THAT(sent, Contains("ChangeTenant"));
}

// A tenant of the graph file that had left trained again for a moment, until its order came.
TEST_F(ServedMonitor, AStartGivesAllOrdersBeforeAnyProcessAcceptsInputs) {
  TenantTable earlier(*plan_);
  ASSERT_TRUE(earlier.admit("alice", "[tenant.alice]\n").ok());
  const TenantOrder order = earlier.start("alice").value();
  for (uint32_t i = 0; i < fates_.size(); ++i) (void)earlier.on_answer(ProcessId(i), order);
  ASSERT_EQ(earlier.find("alice")->state, TenantState::kTraining);
  std::ofstream(tenants_file(folder_->path())) << earlier.json().dump();
  bring_up();
  for (uint32_t i = 0; i < fates_.size(); ++i)
    EXPECT_EQ(std::ranges::count(sent_until(ProcessId(i), "GoRun"), std::string("ChangeTenant")), 2)
        << "join and start";
  EXPECT_EQ(state(), "training");
  (void)ask("remove", "alice");
  for (uint32_t i = 0; i < fates_.size(); ++i)
    EXPECT_THAT(sent_until(ProcessId(i), "DrainTenant"), ElementsAre("DrainTenant"))
        << "the orders are not given twice";
}

TEST_F(ServedMonitor, TakesNoRequestWhileItDrains) {
  serve();
  monitor_->apply_signals(1);
  EXPECT_THAT(why(add_alice()), HasSubstr("the run ends"));
}

TEST_F(ServedMonitor, ADamagedTableEndsTheLaunch) {
  std::ofstream(tenants_file(folder_->path())) << "{";
  ASSERT_TRUE(publisher_->open(start_).ok());
  monitor_ = std::make_unique<RunMonitor>(
      *plan_, resume_, *folder_, start_, *this, *publisher_, [](const std::string&, const Json&) {},
      [this] { return now_; });
  const Status launched = monitor_->launch("/sockets");
  ASSERT_FALSE(launched.ok());
  EXPECT_THAT(launched.error().text(), HasSubstr("tenants.json"));
}

using UnservedMonitor = MonitorStage;

TEST_F(UnservedMonitor, RefusesTenants) {
  bring_up();
  const CommandInbox::Ask request{"7", Json::object().set("tenant_verb", "ls")};
  monitor_->apply_commands({&request, 1});
  EXPECT_THAT(answers_["7"].get_string("error").value(), HasSubstr("it was started by `run`"));
}

}  // namespace
}  // namespace primerl::testing
