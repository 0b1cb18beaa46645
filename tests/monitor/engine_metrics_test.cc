// /metrics and `ps` for engines, and for processes that die and restart.
#include <fmt/format.h>

#include <tuple>

#include "tests/monitor/board.h"
#include "tests/monitor/promtool.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using testing::Board;
using ::testing::HasSubstr;
using testing::kNow;
using ::testing::Not;
using testing::with_engine;

TEST(RunMetrics, AProcessThatCameBackKeepsItsCountOfRestarts) {
  Board board;
  board.all_say_something();
  board->process_gone(board.process("inference#1"), true);
  EXPECT_THAT(board.metrics(), HasSubstr("primerl_process_up{process=\"inference#1\"} 0\n"));
  board->process_started(board.process("inference#1"), 2, 777);
  board.say("inference#1", board.beat_of("inference#1"));
  EXPECT_THAT(board.metrics(),
              AllOf(HasSubstr("primerl_process_up{process=\"inference#1\"} 1\n"),
                    HasSubstr("primerl_process_incarnation{process=\"inference#1\"} 2\n"),
                    HasSubstr("primerl_process_restarts_total{process=\"inference#1\"} 1\n"),
                    HasSubstr("primerl_process_restarts_total{process=\"inference#0\"} 0\n")));
}

TEST(RunMetrics, TellHowBusyEachEngineIs) {
  Board board;
  Heartbeat beat = with_engine(board, "inference#1", 11);
  EngineUse& use = beat.engine_uses.emplace_back();
  use.resource = beat.engines.front().resource;
  use.group = beat.engines.front().group;
  std::tie(use.num_running, use.num_blocks, use.num_free_blocks) = std::tuple(3, 512, 384);
  std::tie(use.num_kv_events, use.num_kv_events_dropped) = std::tuple(90, 7);
  std::tie(use.num_adapter_loads, use.num_adapter_evictions) = std::tuple(5, 2);
  board.say("inference#1", beat);
  const std::string labels =
      "{process=\"inference#1\",group=\"prefill#1+decode#1\",engine=\"engine\"}";
  EXPECT_THAT(board.metrics(),
              AllOf(HasSubstr("primerl_engine_num_requests_running" + labels + " 3\n"),
                    HasSubstr("primerl_engine_kv_cache_usage_ratio" + labels + " 0.25\n"),
                    HasSubstr("primerl_engine_prefix_cache_hits_total" + labels + " 0\n"),
                    HasSubstr("primerl_engine_kv_events_total" + labels + " 90\n"),
                    HasSubstr("primerl_engine_kv_events_dropped_total" + labels + " 7\n"),
                    HasSubstr("primerl_engine_num_preemptions_total" + labels + " 0\n"),
                    HasSubstr("primerl_engine_adapter_loads_total" + labels + " 5\n"),
                    HasSubstr("primerl_engine_adapter_evictions_total" + labels + " 2\n")));
  EXPECT_EQ(promtool_says(board.metrics()), "");
}

InstanceLoad& load_of(Heartbeat& beat, const Plan& plan, const std::string& instance) {
  for (InstanceLoad& load : beat.instances)
    if (plan.instances[load.instance].name == instance) return load;
  ADD_FAILURE() << "no instance " << instance;
  return beat.instances.front();
}

TEST(RunMetrics, TellWhatActorsCount) {
  Board board;
  Heartbeat driver = board.beat_of("driver");
  load_of(driver, board.plan(), "router").counts = {{"requests_held", 5}, {"went down", -1}};
  load_of(driver, board.plan(), "rollout.main").counts = {{"groups_opened", 12}};
  board.say("driver", driver);
  Heartbeat inference = board.beat_of("inference#1");
  load_of(inference, board.plan(), "decode#1").counts = {{"x_total", 1}, {"x.total", 2}};
  board.say("inference#1", inference);
  const std::string of_router = "{process=\"driver\",node=\"router\",instance=\"router\"}";
  const std::string of_decode = "{process=\"inference#1\",node=\"decode\",instance=\"decode#1\"}";
  EXPECT_THAT(
      board.metrics(),
      AllOf(HasSubstr("# TYPE primerl_actor_requests_held_total counter\n"),
            HasSubstr("primerl_actor_requests_held_total" + of_router + " 5\n"),
            HasSubstr("primerl_actor_went_down_total" + of_router + " 0\n"),
            HasSubstr("primerl_actor_groups_opened_total{process=\"driver\",node=\"rollout\","
                      "instance=\"rollout.main\",tenant=\"main\"} 12\n"),
            HasSubstr("primerl_actor_x_total_value_total" + of_decode + " 3\n")));
  EXPECT_EQ(promtool_says(board.metrics()), "");
}

TEST(RunMetrics, CountRequestsBySizeAndTime) {
  Board board;
  Heartbeat beat = with_engine(board, "inference#1", 11);
  EngineUse& use = beat.engine_uses.emplace_back();
  use.resource = beat.engines.front().resource;
  use.group = beat.engines.front().group;
  EXPECT_THAT(board.metrics(), Not(HasSubstr("_bucket"))) << "none has ended yet";
  use.requests.resize(kRequestValues);
  for (size_t kind = 0; kind < kRequestValues; ++kind)
    for (const double value : {0.002, 0.005, 3.0, 1e9})
      use.requests[kind].add(static_cast<RequestValue>(kind), value);
  board.say("inference#1", beat);
  const std::string labels =
      "process=\"inference#1\",group=\"prefill#1+decode#1\",engine=\"engine\"";
  const std::string name = "primerl_engine_time_to_first_token_seconds";
  const auto bucket = [&](const std::string& bound, int count) {
    return HasSubstr(fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, count));
  };
  EXPECT_THAT(board.metrics(),
              AllOf(HasSubstr("# TYPE " + name + " histogram\n"), bucket("0.001", 0),
                    bucket("0.005", 2), bucket("2.5", 2), bucket("5", 3), bucket("2560", 3),
                    bucket("+Inf", 4), HasSubstr(name + "_count{" + labels + "} 4\n")));
  EXPECT_EQ(promtool_says(board.metrics()), "");
}

TEST(RunMetrics, TellWhichWeightsEachEngineHolds) {
  Board board;
  board.say("inference#0", with_engine(board, "inference#0", 12));
  board.say("inference#1", with_engine(board, "inference#1", 11));
  const std::string text = board.metrics();
  for (const auto& [process, group, version] :
       {std::tuple("inference#0", "prefill#0+decode#0", 12),
        std::tuple("inference#1", "prefill#1+decode#1", 11)}) {
    const std::string labels = fmt::format(
        "{{process=\"{}\",group=\"{}\",engine=\"engine\",tenant=\"main\",adapter=\"0\"}}", process,
        group);
    EXPECT_THAT(
        text, AllOf(HasSubstr(fmt::format("primerl_engine_policy_version{} {}\n", labels, version)),
                    HasSubstr(fmt::format("primerl_engine_applied_versions_total{} {}\n", labels,
                                          version)),
                    HasSubstr(fmt::format("primerl_engine_apply_seconds_total{} 0.25\n", labels))));
  }
  EXPECT_THAT(run_table(board.status()),
              HasSubstr("\ninference#1  running   prefill#1 decode#1            102            1 "
                        "      11      0      0.0s\n"));
}

TEST(RunTable, NamesTheTenantOfWeightsWhereThereAreSeveral) {
  const auto status = parse_json(
      R"({"name": "r", "phase": "training", "tenants": [{"name": "main"}, {"name": "other"}],
          "processes": [{"name": "inference", "engines": [
            {"name": "engine", "tenant": "main", "policy_version": 12},
            {"name": "engine", "tenant": "other", "policy_version": 12},
            {"name": "second", "tenant": "main", "policy_version": -1}]}]})",
      "status");
  ASSERT_TRUE(status.ok());
  EXPECT_THAT(run_table(*status), HasSubstr("  main:12 other:12 none  "));
}

TEST(RunMetrics, AgesGrowWithoutReports) {
  Board board;
  auto beat = board.beat_of("driver");
  beat.still_ms = 500;
  board.say("driver", beat);
  const auto later = kNow + Duration::seconds(2);
  EXPECT_THAT(board.metrics(later),
              AllOf(HasSubstr("last_progress_age_seconds{process=\"driver\"} 2.5\n"),
                    HasSubstr("heartbeat_age_seconds{process=\"driver\"} 2\n")));
}

}  // namespace
}  // namespace primerl
