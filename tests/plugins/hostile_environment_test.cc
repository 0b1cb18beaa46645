// Whole runs with environments that hang, are slow, throw and answer with bytes that are not text,
// in processes of their own that may die. Each such call ends its own rollout, and Ctrl-C ends the
// run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

class HostileRun : public testing::Test {
 protected:
  HostileRun() {
    fs::copy_file(PRIMERL_BINARY_DIR "/plugins/hostile.so", scratch_.path() / "hostile.so");
  }
  /// The scripted graph with 36 environments in three processes, for 32 rollouts.
  std::vector<std::string> words(int64_t hang_percent, const std::string& max_steps) const {
    const std::string graph = scratch_.path() / "graph.toml";
    std::ofstream(graph) << fmt::format(R"(include = ["{}"]
[graph]
plugins = ["hostile.so"]
abandoned_max = 1024
drain_max = "40s"
[tenant.main]
environment = {{ name = "hostile", hang_percent = {}, hang_file = "{}" }}
environment_timeout = "1s"
turns_max = 3
[node.env]
replicas = 12
)",
                                        source_path("tests/cli/graphs/split_environments.toml"),
                                        hang_percent, hang_file_);
    return {"primerl-graph", "run", graph, "--out", folder_, "--max-steps", max_steps};
  }
  std::vector<std::string> variables() const {
    return {"XDG_RUNTIME_DIR=" + scratch_.path().string()};
  }
  /// The number of failed rollouts; each must report that its environment failed.
  size_t num_failed() const {
    size_t count = 0;
    for (const Json& line : lines_of(folder_ + "/rollouts.jsonl")) {
      if (*line.get_string("end") != "failed") continue;
      ++count;
      const std::string why = *line.get_string("reason");
      EXPECT_THAT(why, ContainsRegex("environment|observation"));
      EXPECT_LT(why.size(), 60'000U);
    }
    return count;
  }

  const ScratchFolder scratch_;
  const std::string folder_ = scratch_.path() / "run";
  const std::string hang_file_ = scratch_.path() / "hang";
};

TEST_F(HostileRun, ContinuesWhateverItsEnvironmentsDo) {
  Program run(words(2, "12"), variables());
  const auto end = run.wait();
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(expect_steps_and_rollouts_once(folder_), 12);
  EXPECT_GT(num_failed(), 0U);
  expect_replays(folder_);
}

TEST_F(HostileRun, ThatLosesAnEnvironmentProcessContinuesAndResumes) {
  {
    Program run(words(1, "1000000000"), variables());
    ASSERT_TRUE(run.wait_until_said("reward"));
    const pid_t judge = worker_named(run, "worlds#1");
    ASSERT_GT(judge, 0);
    ::kill(judge, SIGKILL);
    ASSERT_TRUE(run.wait_until_said("it is restarted as incarnation 2"));
    const size_t before = num_lines(folder_ + "/rollouts.jsonl");
    EXPECT_TRUE(wait_until([&] { return num_lines(folder_ + "/rollouts.jsonl") >= before + 100; }));
    const pid_t driver = worker_named(run, "driver");
    ASSERT_GT(driver, 0);
    ::kill(driver, SIGKILL);
    ASSERT_TRUE(run.wait_until_said("messages as recorded; the run is live"));
    ::kill(run.pid(), SIGKILL);
    (void)run.wait();
  }
  Program again({"primerl-graph", "run", "--resume", folder_}, variables());
  ASSERT_TRUE(again.wait_until_said("the run is live"));
  const size_t before = num_lines(folder_ + "/rollouts.jsonl");
  EXPECT_TRUE(wait_until([&] { return num_lines(folder_ + "/rollouts.jsonl") >= before + 100; }));
  ::kill(again.pid(), SIGINT);
  const auto end = again.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  expect_steps_and_rollouts_once(folder_);
  num_failed();
}

// Its recorded answers are needed, so the run cannot continue without them.
TEST_F(HostileRun, HangingWhileItFollowsItsRecordEndsAndSaysWhere) {
  {
    Program run(words(0, "1000000000"), variables());
    ASSERT_TRUE(run.wait_until_said("reward"));
    ::kill(run.pid(), SIGKILL);
    (void)run.wait();
  }
  std::ofstream(hang_file_) << "hang";
  const std::vector<std::string> again{"primerl-graph", "run",   "--resume",
                                       folder_,         "--set", "graph.drain_max=\"2s\""};
  const auto stuck = Program(again, variables()).wait();
  EXPECT_EQ(stuck.code, 1) << stuck.err;
  EXPECT_THAT(stuck.err, ContainsRegex("'env[^']*' follows its record and has been in message "
                                       "[0-9]+ of 'rollout.action -> env.action'"));
  fs::remove(hang_file_);
  Program well(again, variables());
  ASSERT_TRUE(well.wait_until_said("the run is live"));
  ::kill(well.pid(), SIGINT);
  const auto end = well.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  expect_steps_and_rollouts_once(folder_);
}

// Every environment hangs for ever; there are more of them than a run may abandon.
TEST_F(HostileRun, WhereAllOfThemHangEndsWithCtrlC) {
  auto all = words(100, "1000000000");
  all.insert(all.end(), {"--no-rehearsal", "--set", "graph.abandoned_max=4", "--set",
                         "tenant.main.environment_timeout=\"6s\""});
  Program run(all, variables());
  // Wait until all have been called; the first of them is abandoned after six seconds.
  ASSERT_TRUE(wait_until([this] {
    const auto said = run_graph_program({"ps", folder_, "--json"}, variables());
    const auto status = parse_json(said.out, "ps --json");
    const Json* edges = status.ok() ? status->find("edges") : nullptr;
    if (edges == nullptr) return false;
    for (const Json& edge : edges->as_array())
      if (*edge.get_string("name") == "rollout.action -> env.action")
        return edge.get_int("sent").ok() && *edge.get_int("sent") > 0;
    return false;
  }));
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  EXPECT_THAT(end.err, Not(HasSubstr("error")));
  EXPECT_EQ(run_end(folder_), "interrupted");
}

}  // namespace
}  // namespace primerl
