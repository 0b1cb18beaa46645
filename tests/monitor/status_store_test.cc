// The displays of a run, from test data: metrics that promtool accepts, the wait cycle across
// processes, the tables of `ps`.
#include "runtime/monitor/status_store.h"
#include "graph/base/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <set>
#include <sstream>
#include <tuple>

#include "runtime/backends/resource_catalog.h"
#include "runtime/exec/stall.h"
#include "runtime/monitor/run_server.h"
#include "runtime/monitor/run_table.h"
#include "tests/monitor/board.h"
#include "tests/monitor/promtool.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using testing::Board;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kNow;
using ::testing::Not;
using testing::split_plan;
using ::testing::StartsWith;

TEST(RunMetrics, PassPromtool) {
  Board board;
  EXPECT_EQ(promtool_says(board.metrics()), "");  // before any process has reported
  board.all_say_something();
  auto beat = board.beat_of("driver");
  beat.connections.push_back(
      {board.process("training").value, 1, true, 5, 600, 7, 800, 1, 90, 2, 1, 0, 3, 4});
  beat.engines = {{0, 0, 0, 0, 7, 3, 1'500'000'000}};
  board.say("driver", beat);
  StepFacts step;
  step.step = 3;
  // Metrics may have any name: like a counter's, like another metric's, or empty.
  step.values = {{"reward/all/mean", 0.5},
                 {"reward_all_mean", 0.25},
                 {"tokens/total", 1},
                 {"time/step", 1.5},
                 {"", 2},
                 {"says \"hi\"\n", std::nan("")}};
  board->step_taken(TenantSlot(0), step, kNow);
  const std::string text = board.metrics();
  EXPECT_EQ(promtool_says(text), "");
  EXPECT_THAT(text, AllOf(HasSubstr("primerl_training_reward_all_mean{tenant=\"main\",metric=\""
                                    "reward/all/mean\"} 0.5\n"),
                          HasSubstr("primerl_training_reward_all_mean{tenant=\"main\",metric=\""
                                    "reward_all_mean\"} 0.25\n"),
                          HasSubstr("primerl_tenant_policy_version{tenant=\"main\"} 3\n")));
}

TEST(RunMetrics, LeaveOutHistograms) {
  Board board;
  StepFacts step;
  step.values = {{"reward/all/le/0.5", 3}, {"reward/all/mean", 0.25}};
  board->step_taken(TenantSlot(0), step, kNow);
  EXPECT_THAT(board.metrics(), HasSubstr("primerl_training_reward_all_mean"));
  EXPECT_THAT(board.metrics(), Not(HasSubstr("_le_")));
}

TEST(RunMetrics, PromtoolWouldHaveSaidSo) {
  EXPECT_THAT(promtool_says("broken{ 1\n"), HasSubstr("error while linting"));
  EXPECT_THAT(promtool_says("# HELP a_total help\n# TYPE a_total gauge\na_total 1\n"),
              HasSubstr("non-counter metrics should not have \"_total\" suffix"));
}

TEST(RunMetrics, NeverSaysTheSameThingTwice) {
  Board board;
  board.all_say_something();
  for (const char* name : {"inference#0", "inference#1"})
    board.say(name, with_engine(board, name, 5));
  std::istringstream lines(board.metrics());
  std::set<std::string> seen;
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.starts_with("#") ? line : line.substr(0, line.rfind(' '));
    EXPECT_TRUE(seen.insert(name).second) << line;
  }
  EXPECT_GT(seen.size(), 100u);
}

TEST(RunMetrics, TellEachProcessItsOwnPartOfAnEdge) {
  Board board;
  board.all_say_something();
  const std::string name = "rollout.generate -> router.generate";
  auto beat = board.beat_of("driver");
  beat.edges[board.edge(name)].sent = 40;
  beat.edges[board.edge(name)].handled = 38;
  beat.loads[board.edge(name)] = {2, 1, 5, 1'500'000'000};
  beat.instances[0].num_handled = 12;
  board.say("driver", beat);
  const std::string text = board.metrics();
  const std::string labels = "{edge=\"" + name + "\",process=\"driver\"}";
  const auto capacity = board.plan().edges[board.edge(name)].capacity;
  EXPECT_THAT(text, AllOf(HasSubstr("primerl_edge_sent_messages_total" + labels + " 40\n"),
                          HasSubstr("primerl_edge_handled_messages_total" + labels + " 38\n"),
                          HasSubstr("primerl_edge_waiting_messages" + labels + " 2\n"),
                          HasSubstr("primerl_edge_held_back_messages" + labels + " 1\n"),
                          HasSubstr("primerl_edge_blocked_seconds_total" + labels + " 1.5\n"),
                          HasSubstr(fmt::format("primerl_edge_credit_messages{{edge=\"{}\"}} {}\n",
                                                name, capacity - 5)),
                          // The edge has no end in that process.
                          Not(HasSubstr("primerl_edge_sent_messages_total{edge=\"" + name +
                                        "\",process=\"training\"}"))));
}

/// rollout waits for trainer, trainer for broadcaster, broadcaster for the engines to apply, the
/// engines for the router, and the router for rollout. No single process sees the whole cycle.
void stand_still(Board& board) {
  const uint32_t rollout = board.group("rollout.main"), trainer = board.group("trainer"),
                 broadcaster = board.group("broadcaster");
  for (const auto& planned : board.plan().processes) {
    auto beat = board.beat_of(planned.name);
    beat.still_ms = 70'000;
    beat.is_waiting = true;
    if (planned.name == "driver") {
      auto& group = Board::report_of(beat, rollout);
      group.is_idle = false;
      group.num_waiting = 3;
      group.oldest_ns = 65'000'000'000;
      group.full = {board.link("rollout.group -> trainer.group", rollout, trainer)};
    }
    if (planned.name == "training") {
      auto& group = Board::report_of(beat, trainer);
      group.is_idle = false;
      group.full = {board.link("trainer.weights -> broadcaster.weights", trainer, broadcaster)};
    }
    board.say(planned.name, beat);
  }
}

TEST(StallAcrossProcesses, NamesTheCycleThatNoProcessSeesAlone) {
  Board board;
  stand_still(board);
  const StallReport report = board->stall_report();
  EXPECT_THAT(report.wait_cycle,
              ElementsAre("rollout.main (driver)", "trainer (training)", "broadcaster (training)",
                          "prefill#0+decode#0 (inference#0)", "router (driver)"));
  EXPECT_EQ(report.text(),
            "process   node          waiting    oldest  blocked on\n"
            "driver    rollout.main        3       65s  full: rollout.group -> trainer.group (64)\n"
            "training  trainer             0         -  full: trainer.weights -> "
            "broadcaster.weights (64)\n"
            "wait cycle: rollout.main (driver) -> trainer (training) -> broadcaster (training) -> "
            "prefill#0+decode#0 (inference#0) -> router (driver) -> rollout.main (driver)\n");
}

TEST(StallAcrossProcesses, AnOpenChainIsNoCycle) {
  Board board;
  stand_still(board);
  // The trainer is running a step, so it waits for no group.
  auto training = board.beat_of("training");
  auto& trainer = Board::report_of(training, board.group("trainer"));
  trainer.is_running = true;
  trainer.running_ns = 61'000'000'000;
  trainer.handling_type = "TrajectoryGroup";
  trainer.handling = board.plan().groups[board.group("trainer")].instances.front().value;
  board.say("training", training);
  const StallReport report = board->stall_report();
  EXPECT_TRUE(report.wait_cycle.empty()) << report.text();
  EXPECT_THAT(report.text(), HasSubstr("trainer: TrajectoryGroup for 61s"));
}

TEST(StallAcrossProcesses, ReportsOfAnotherPlanAreIgnored) {
  Board board;
  auto beat = board.beat_of("driver");
  beat.groups[0].group = 10'000;
  beat.groups[1].full = {10'000'000};
  beat.instances[0].instance = 10'000;
  beat.connections.push_back({10'000, 1, true, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  beat.edges.resize(10'000);
  beat.loads.resize(10'000);
  board.say("driver", beat);
  EXPECT_TRUE(board->stall_report().wait_cycle.empty());
  EXPECT_EQ(promtool_says(board.metrics()), "");
  EXPECT_EQ(*board.status().get_string("state"), "running");
}

TEST(RunStatus, NamesTheProcessThatAllOthersWaitFor) {
  Board board;
  board.all_say_something();
  EXPECT_EQ(board.status().find("wait_cycle"), nullptr);
  stand_still(board);
  const Json status = board.status();
  ASSERT_NE(status.find("wait_cycle"), nullptr);
  EXPECT_EQ(status.find("wait_cycle")->as_array().size(), 5u);
  EXPECT_THAT(run_table(status), HasSubstr("no progress:\nprocess"));
  EXPECT_EQ(*status.find("processes")->as_array()[0].get_string("state"), "stalled");
}

/// The trainer has been in one handler for 12 s.
Heartbeat with_long_handler(const Board& board, int64_t silent_ns) {
  auto beat = board.beat_of("training");
  const uint32_t rollout = board.group("rollout.main"), trainer = board.group("trainer");
  auto& report = Board::report_of(beat, trainer);
  report.is_idle = false;
  report.is_running = true;
  report.running_ns = 12'345'000'000;
  report.silent_ns = silent_ns;
  report.num_alarms = 1;
  report.num_steps = 4411;
  report.handling = board.plan().groups[trainer].instances.front().value;
  report.handling_type = "TrajectoryGroup";
  report.handling_kind = static_cast<uint8_t>(StepKind::kMessage);
  report.handling_link = board.link("rollout.group -> trainer.group", rollout, trainer);
  report.handling_sequence = 812;
  return beat;
}

TEST(RunStatus, NamesAHandlerThatIsStuckWhileOthersContinue) {
  Board board;
  const int64_t limit = board.plan().settings.handler_alarm_after.to_nanoseconds();
  board.say("training", with_long_handler(board, limit - 1));  // it gave a sign of life since
  EXPECT_EQ(board.status().find("alarms"), nullptr);
  board.say("training", with_long_handler(board, limit));
  const Json status = board.status();
  ASSERT_NE(status.find("alarms"), nullptr);
  ASSERT_EQ(status.find("alarms")->as_array().size(), 1u);
  EXPECT_EQ(*status.find("alarms")->as_array()[0].get_string("handling"),
            "message 812 of 'rollout.group -> trainer.group' (TrajectoryGroup, step 4411)");
  EXPECT_THAT(run_table(status),
              HasSubstr("\nprocess   node     for  in one handler\n"
                        "training  trainer  12s  message 812 of 'rollout.group -> trainer.group' "
                        "(TrajectoryGroup, step 4411)\n"));
  EXPECT_THAT(board.metrics(),
              AllOf(HasSubstr("primerl_group_handler_age_seconds{process=\"training\",group=\""
                              "trainer\"} 12.345\n"),
                    HasSubstr("primerl_group_handler_alarms_total{process=\"training\",group=\""
                              "trainer\"} 1\n")));
}

TEST(RunTable, ShowsProcessesAndEdges) {
  Board board;
  board.all_say_something();
  auto beat = board.beat_of("training");
  beat.num_steps = 4711;
  beat.still_ms = 250;
  beat.edges[board.edge("rollout.group -> trainer.group")].handled = 12;
  board.say("training", beat);
  StepFacts step;
  step.step = 3;
  board->step_taken(TenantSlot(0), step, kNow);
  const std::string text = run_table(board.status(kNow + Duration::seconds(75)));
  EXPECT_THAT(
      text,
      StartsWith("split is training, up for 1m15s\n"
                 "\n"
                 "tenant  state     step   last  reward  staleness  decode/s  train/s\n"
                 "main    training   3/8  1m15s       -          -         -        -\n"
                 "\n"
                 "process      state    nodes                         pid  incarnation  weights  "
                 "steps  progress\n"
                 "driver       running  env.main rollout.main router  100            1        -  "
                 "    0     1m15s\n"));
  EXPECT_THAT(text,
              HasSubstr("\ntraining     running  trainer broadcaster           103            "
                        "1        -   4711     1m15s\n"));
  EXPECT_THAT(text, HasSubstr("\n\n"
                              "edge                                                 sent  handled  "
                              "waiting  credit  blocked\n"));
  // `handled` is reported after `sent`, which is at least as large.
  EXPECT_THAT(text,
              HasSubstr("\nrollout.group -> trainer.group                         12       12   "
                        "     0   64/64     0.0s\n"));
  EXPECT_THAT(text,
              HasSubstr("\nrouter.abort -> decode.abort             feedback       0        0   "
                        "     0   64/64        -\n"));
  // A source fills it in advance, so a full edge is normal.
  EXPECT_THAT(text,
              HasSubstr("\nenv.task -> rollout.task                 prefetched     0        0   "
                        "     0   64/64        -\n"));
}

TEST(RunTable, SaysHowARunEndedAndWhatALostOneLeft) {
  Json ended = Json::object();
  ended.set("state", "ended").set("name", "split").set("end", "failed").set("exit_code", 1);
  ended.set("ended", "2026-11-21T06:24:45Z").set("why", "process 'training' was killed");
  EXPECT_EQ(run_table(ended),
            "split: failed, exit code 1, at 2026-11-21T06:24:45Z\n"
            "process 'training' was killed\n");
  Json lost = Json::object();
  lost.set("state", "lost").set("name", "split").set("folder", "/my runs/x").set("pid", 41);
  lost.set("processes", Json::array());
  EXPECT_EQ(run_table(lost),
            "split: its primerl-graph process ended without reporting how (pid 41)\n"
            "none of its processes or sockets are left\n"
            "resume it: primerl-graph run --resume '/my runs/x'\n");
  Json process = Json::object();
  process.set("name", "training").set("pid", 42);
  lost.set("processes", Json(Json::Array{process})).set("sockets", "/tmp/s");
  EXPECT_THAT(run_table(lost), HasSubstr("left behind: process 'training' (pid 42) still runs\n"
                                         "left behind: sockets in /tmp/s, which the next run"));
}

TEST(RunServer, TakesAPortOrOff) {
  EXPECT_TRUE(parse_watch_port("off")->is_off);
  EXPECT_EQ(parse_watch_port("0")->port, 0);
  EXPECT_EQ(parse_watch_port("65535")->port, 65535);
  for (const char* wrong : {"", "65536", "-1", "80x", "on", " 80"}) {
    const auto port = parse_watch_port(wrong);
    ASSERT_FALSE(port.ok()) << wrong;
    EXPECT_THAT(port.error().text(), HasSubstr("ports are 1 to 65535"));
  }
}

TEST(RunServer, ShowsTheBoardItIsGiven) {
  auto server = RunServer::open({});
  ASSERT_TRUE(server.ok());
  const uint16_t port = (*server)->port();
  EXPECT_EQ(http_get(port, "/metrics")->status, 503);
  EXPECT_EQ(http_get(port, "/healthz")->body, "ok\n");
  auto board = std::make_shared<StatusStore>(split_plan(), kNow);
  board->set_facts({"1f2e", "0.1.0", "/runs/split"});
  (*server)->show(board);
  const auto metrics = http_get(port, "/metrics");
  EXPECT_EQ(metrics->type, "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(metrics->body, HasSubstr("run_id=\"1f2e\""));
  const auto status = parse_json(http_get(port, "/status")->body, "status");
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(*status->get_string("run_id"), "1f2e");
  EXPECT_EQ(http_get(port, "/other")->status, 404);
}

TEST(StartTicks, TellAProcessFromAnotherWithItsNumber) {
  EXPECT_GT(start_ticks(::getpid()), 0);
  EXPECT_GT(start_ticks(1), 0);
  EXPECT_NE(start_ticks(1), start_ticks(::getpid()));
  EXPECT_EQ(start_ticks(0x7fffffff), 0);  // larger than any process id
}

}  // namespace
}  // namespace primerl
