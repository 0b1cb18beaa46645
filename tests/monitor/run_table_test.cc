#include "runtime/monitor/run_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/monitor/board.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string nodes_shown(const std::vector<std::string>& names) {
  Json nodes = Json::array();
  for (const auto& name : names) nodes.push_back(Json::object().set("name", name));
  Json processes = Json::array();
  processes.push_back(Json::object()
                          .set("name", "main")
                          .set("state", "running")
                          .set("nodes", std::move(nodes))
                          .set("engines", Json::array()));
  return run_table(Json::object()
                       .set("state", "running")
                       .set("name", "demo")
                       .set("phase", "training")
                       .set("processes", std::move(processes)));
}

TEST(RunTable, ShowsReplicasAsARange) {
  std::vector<std::string> names{"router"};
  for (int i = 0; i < 65; ++i) names.push_back("env.main#" + std::to_string(i));
  names.push_back("env.other#0");
  names.push_back("trainer");
  const auto text = nodes_shown(names);
  EXPECT_THAT(text, HasSubstr("router env.main#0..#64 env.other#0 trainer"));
  EXPECT_THAT(text, Not(HasSubstr("#63")));
}

TEST(RunTable, ShowsNodesWithoutReplicasByName) {
  EXPECT_THAT(nodes_shown({"prefill", "decode", "decode"}), HasSubstr("prefill decode decode"));
  EXPECT_THAT(nodes_shown({"prefill#0", "decode#0", "prefill#1", "decode#1"}),
              HasSubstr("prefill#0 decode#0 prefill#1 decode#1"));
}

TEST(RunTable, CountsTheTenantsOfANodeWhereThereAreMany) {
  const auto of_tenants = [](int num_tenants) {
    std::vector<std::string> names;
    for (const char* node : {"env", "rollout"})
      for (int i = 0; i < num_tenants; ++i) names.push_back(fmt::format("{}.t{}", node, i));
    for (const char* shared : {"router", "decode", "decode", "decode", "decode", "decode"})
      names.emplace_back(shared);
    return nodes_shown(names);
  };
  EXPECT_THAT(of_tenants(5), HasSubstr("env(5) rollout(5) router decode decode decode"));
  EXPECT_THAT(of_tenants(4), HasSubstr("env.t0 env.t1 env.t2 env.t3 rollout.t0 rollout.t1"));
}

TEST(RunTable, ShowsWhoHoldsTheRunAndWhatStandsStill) {
  Json holds = Json::array();
  holds.push_back(Json::object().set("owner", "anna").set("seconds_left", 581.2));
  holds.push_back(
      Json::object().set("owner", "bert").set("seconds_left", 4.25).set("tenant", "other"));
  const auto text = run_table(
      Json::object()
          .set("state", "running")
          .set("name", "demo")
          .set("phase", "training")
          .set("holds", std::move(holds))
          .set("held_engines", Json::list(std::vector<std::string>{"decode#0", "decode#1"})));
  EXPECT_THAT(text, HasSubstr("demo is training\n"
                              "paused by 'anna' for another 9m41s\n"
                              "engines of tenant other: paused by 'bert' for another 4.2s\n"
                              "paused engines: decode#0 decode#1\n"));
}

TEST(RunStatus, HasTheHoldsAndTheEnginesThatStandStill) {
  testing::Board board;
  Heartbeat beat = board.beat_of("inference#0");
  EngineUse engine;
  engine.group = board.plan().process(board.process("inference#0")).groups.front().value;
  engine.is_held = true;
  beat.engine_uses = {engine};
  board.say("inference#0", beat);
  board->set_holds({{"anna", TenantSlot(), testing::kNow + Duration::seconds(90)},
                    {"bert", TenantSlot(0), testing::kNow}});
  const Json status =
      status_json(board.plan(), *board->wiring(), board->facts(), board->picture(), testing::kNow);
  EXPECT_EQ(status.find("holds")->dump(),
            R"([{"owner":"anna","seconds_left":90.0},)"
            R"({"owner":"bert","seconds_left":0.0,"tenant":"main"}])");
  EXPECT_EQ(status.find("held_engines")->dump(), R"(["prefill#0+decode#0"])");
}

TEST(RunStatus, HasTheAlarmsOfATenantWithWhatToDo) {
  testing::Board board;
  EXPECT_THAT(board.metrics(), HasSubstr("primerl_tenant_alarm{tenant=\"main\","
                                         "alarm=\"effective_size\"} 0\n"));
  EXPECT_EQ(board.status().find("tenants")->as_array()[0].find("alarms"), nullptr);
  AlarmChange alarm;
  alarm.kind = AlarmKind::kEffectiveSize;
  alarm.tenant = "main";
  alarm.step = 17;
  alarm.text = "the effective sample size is 40%";
  board->set_alarms(TenantSlot(0), {alarm});
  EXPECT_THAT(board.metrics(), HasSubstr("primerl_tenant_alarm{tenant=\"main\","
                                         "alarm=\"effective_size\"} 1\n"));
  EXPECT_THAT(board.metrics(), HasSubstr("alarm=\"mismatch_kl\"} 0\n"));
  EXPECT_THAT(run_table(board.status()),
              HasSubstr("alarm: effective_size since step 17: the effective sample size is 40%\n"
                        "  A few tokens decide each step: lower max_off_policy_steps"));
}

TEST(RunTable, HasTheAlarmsOfARunThatHasEnded) {
  Json alarms = Json::array();
  AlarmChange alarm;
  alarm.tenant = "main";
  alarm.step = 9;
  alarm.text = "the entropy fell";
  alarms.push_back(alarm.json());
  const auto text = run_table(Json::object()
                                  .set("state", "ended")
                                  .set("name", "demo")
                                  .set("end", "finished")
                                  .set("training_alarms", std::move(alarms)));
  EXPECT_THAT(text,
              HasSubstr("alarm: main: entropy_collapse since step 9: the entropy fell\n  If "));
}

TEST(RunTable, SaysNothingOfHoldsWhereThereAreNone) {
  EXPECT_THAT(nodes_shown({"router"}), Not(HasSubstr("still")));
}

}  // namespace
}  // namespace primerl
