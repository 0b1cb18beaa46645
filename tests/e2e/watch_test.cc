// A run as seen by ps, /metrics and /status: while it runs, after its end, after kill -9.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "runtime/monitor/http.h"
#include "tests/e2e/run_files.h"
#include "tests/monitor/promtool.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class WatchedRun : public testing::Test {
 protected:
  std::vector<std::string> words(const std::string& graph,
                                 std::vector<std::string> more = {}) const {
    std::vector<std::string> all{"primerl-graph", "run", source_path("tests/cli/graphs/" + graph),
                                 "--out", folder_.string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<std::string> variables() const {
    return {"XDG_RUNTIME_DIR=" + scratch_.path().string()};
  }
  ProgramEnd ps(std::vector<std::string> more = {}) const {
    std::vector<std::string> all{"ps", folder_.string()};
    all.insert(all.end(), more.begin(), more.end());
    return run_graph_program(all, variables());
  }
  Json status() const {
    const auto shown = ps({"--json"});
    EXPECT_EQ(shown.code, 0) << shown.err;
    auto status = parse_json(shown.out, "ps --json");
    EXPECT_TRUE(status.ok()) << shown.out;
    return status.ok() ? *status : Json::object();
  }
  uint16_t port() const {
    const Json facts = json_file(folder_ / "run.json");
    const auto port = facts.find("control")->get_int("port");
    EXPECT_TRUE(port.ok());
    return port.ok() ? static_cast<uint16_t>(*port) : 0;
  }

  const ScratchFolder scratch_;
  const std::filesystem::path folder_ = scratch_.path() / "run";
};

const Json* named(const Json& status, std::string_view list, const std::string& name) {
  for (const Json& one : status.find(list)->as_array())
    if (*one.get_string("name") == name) return &one;
  return nullptr;
}

TEST_F(WatchedRun, ShowsItsProcessesNodesAndEdgesWhileItRuns) {
  Program run(words("split.toml", {"--max-steps", "1000000000"}), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  // Reports come once a second.
  Json seen;
  ASSERT_TRUE(waits_for("report of every process", run, [&] {
    seen = status();
    for (const Json& process : seen.find("processes")->as_array())
      if (!process.get_int("steps").ok() || *process.get_int("steps") <= 0) return false;
    const Json* edge = named(seen, "edges", "rollout.generate -> router.generate");
    return *edge->get_int("handled") > 0;
  })) << seen.dump();
  EXPECT_EQ(*seen.get_string("state"), "running");
  ASSERT_EQ(seen.find("processes")->as_array().size(), 4u);
  for (const char* name : {"driver", "inference#0", "inference#1", "training"}) {
    const Json* process = named(seen, "processes", name);
    ASSERT_NE(process, nullptr) << name;
    EXPECT_EQ(*process->get_string("state"), "running");
    EXPECT_EQ(*process->get_int("incarnation"), 1);
    EXPECT_FALSE(process->find("links")->as_array().empty()) << name;
  }
  EXPECT_GE(*seen.find("tenants")->as_array()[0].get_int("step"), 1);
  const auto table = ps();
  EXPECT_EQ(table.code, 0);
  EXPECT_THAT(table.out, AllOf(HasSubstr("split is training"), HasSubstr("\nmain    training  "),
                               HasSubstr("inference#1  running"),
                               HasSubstr("router.prefill -> prefill.request")));
  ::kill(run.pid(), SIGINT);
  EXPECT_EQ(run.wait().code, 130);
  const auto after = ps();
  EXPECT_EQ(after.code, 0);
  EXPECT_THAT(after.out, HasSubstr("split: interrupted, exit code 130, at "));
  EXPECT_EQ(*status().get_string("state"), "ended");
}

TEST_F(WatchedRun, ServesMetricsThatCountWhatItDoes) {
  Program run(words("split.toml", {"--max-steps", "1000000000"}), variables());
  ASSERT_TRUE(run.wait_until_said("metrics http://127.0.0.1:"));
  ASSERT_TRUE(run.wait_until_said("reward"));
  const auto value_of = [this](const std::string& series) {
    const auto reply = http_get(port(), "/metrics");
    EXPECT_TRUE(reply.ok());
    const size_t at = reply.ok() ? reply->body.find("\n" + series + " ") : std::string::npos;
    return at == std::string::npos ? -1.0 : std::stod(reply->body.substr(at + series.size() + 2));
  };
  const std::string handled =
      "primerl_edge_handled_messages_total{edge=\"rollout.group -> trainer.group\",process="
      "\"training\"}";
  double first = 0, later = 0;
  ASSERT_TRUE(waits_for("count of groups", run, [&] { return (first = value_of(handled)) > 0; }));
  ASSERT_TRUE(waits_for("larger count of groups", run,
                        [&] { return (later = value_of(handled)) > first; }));
  EXPECT_GT(value_of("primerl_group_busy_seconds_total{process=\"training\",group=\"trainer\"}"),
            0);
  EXPECT_GT(value_of("primerl_connection_sent_bytes_total{process=\"driver\",peer=\"training\"}"),
            0);
  EXPECT_GT(value_of("primerl_tenant_policy_version{tenant=\"main\"}"), 0);
  EXPECT_GE(value_of("primerl_training_off_policy_max{tenant=\"main\",metric=\"off_policy/max\"}"),
            0);
  EXPECT_EQ(value_of("primerl_process_up{process=\"inference#1\"}"), 1);
  EXPECT_EQ(promtool_says(http_get(port(), "/metrics")->body), "");
}

TEST_F(WatchedRun, KilledItIsLostAndPsNamesWhatIsLeft) {
  pid_t control = 0;
  {
    Program run(words("split.toml", {"--max-steps", "1000000000"}), variables());
    ASSERT_TRUE(run.wait_until_said("reward"));
    control = run.pid();
    ::kill(run.pid(), SIGKILL);
    run.wait();
  }
  const auto lost = ps();
  EXPECT_EQ(lost.code, 1);
  EXPECT_THAT(lost.out,
              AllOf(HasSubstr("split: its primerl-graph process ended without reporting how (pid " +
                              std::to_string(control) + ")"),
                    HasSubstr("left behind: sockets in " + scratch_.path().string()),
                    HasSubstr("primerl-graph run --resume " + folder_.string())));
}

TEST_F(WatchedRun, PsSaysWholePathsWhereverItIsAsked) {
  {
    Program run(words("scripted.toml", {"--max-steps", "1000000000"}), variables());
    ASSERT_TRUE(run.wait_until_said("reward"));
    ::kill(run.pid(), SIGKILL);
    run.wait();
  }
  const auto said_in = [this](const std::string& folder, const std::string& run) {
    const std::string program = std::string(PRIMERL_BINARY_DIR) + "/bin/primerl-graph";
    const auto end = Program({program, "ps", run}, variables(), folder).wait();
    return end.out + end.err;
  };
  EXPECT_THAT(said_in(scratch_.path().string(), "run"),
              HasSubstr("primerl-graph run --resume " + folder_.string() + "\n"));
  EXPECT_THAT(said_in(folder_.string(), "."),
              HasSubstr("primerl-graph run --resume " + folder_.string() + "\n"));
  EXPECT_THAT(said_in(folder_.string(), "runs/latest"),
              HasSubstr("no run folder '" + folder_.string() + "/runs/latest'"));
}

// Steps that the trainer reports while the control plane is stopped are in the file afterwards,
// once and in order.
TEST_F(WatchedRun, WritesEveryStepThatItsTrainerTookWhileTheControlPlaneStoodStill) {
  Program run(words("scripted.toml", {"--max-steps", "1000000000"}), variables());
  const auto metrics = folder_ / "metrics.jsonl", steps = folder_ / "logs" / "main.steps.jsonl";
  ASSERT_TRUE(waits_for("three steps", run, [&] { return num_lines(metrics) >= 3; }));
  ::kill(run.pid(), SIGSTOP);
  // The worker continues by itself.
  const size_t many = num_lines(metrics) + 300;
  ASSERT_TRUE(wait_until([&] { return num_lines(steps) >= many; }))
      << "the worker does not continue by itself";
  ::kill(run.pid(), SIGCONT);
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  EXPECT_GE(expect_steps_and_rollouts_once(folder_), static_cast<int64_t>(many));
  EXPECT_FALSE(std::filesystem::exists(steps)) << "it is read, and gone";
}

TEST_F(WatchedRun, KeepsForItsOwnerWhatMayHoldPrompts) {
  ASSERT_EQ(Program(words("scripted.toml", {"--max-steps", "3"}), variables()).wait().code, 0);
  using std::filesystem::perms;
  const auto others = perms::group_all | perms::others_all;
  EXPECT_EQ(std::filesystem::status(folder_).permissions(), perms::owner_all);
  size_t num_files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
    const std::string path = entry.path().lexically_relative(folder_).string();
    const bool may_hold = path == "rollouts.jsonl" || path == "metrics.jsonl" ||
                          path.starts_with("logs/") || path.starts_with("trace/");
    if (!may_hold || !entry.is_regular_file() || entry.path().extension() == ".index") continue;
    ++num_files;
    EXPECT_EQ(entry.status().permissions() & others, perms::none) << path;
  }
  EXPECT_GE(num_files, 5U) << "metrics, rollouts, two logs and a segment";
}

TEST_F(WatchedRun, APortThatIsTakenEndsItBeforeItBegins) {
  auto other = HttpServer::listen(0, [](std::string_view) { return nullptr; });
  ASSERT_TRUE(other.ok());
  const std::string port = std::to_string((*other)->port());
  const auto end = Program(words("scripted.toml", {"--metrics-port", port}), variables()).wait();
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, AllOf(HasSubstr("cannot listen on 127.0.0.1:" + port),
                             HasSubstr("--metrics-port off serves nothing")));
  EXPECT_FALSE(std::filesystem::exists(folder_));
  EXPECT_EQ(Program(words("scripted.toml", {"--metrics-port", "80x"}), variables()).wait().code, 3);
}

TEST_F(WatchedRun, ServedNowhereItIsStillFound) {
  Program run(words("scripted.toml", {"--metrics-port", "off", "--max-steps", "1000000000"}),
              variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  const auto shown = ps();
  EXPECT_EQ(shown.code, 0);
  EXPECT_THAT(shown.out, AllOf(HasSubstr("started with --metrics-port off"), HasSubstr("alive")));
}

TEST_F(WatchedRun, PsOfNoRunSaysSo) {
  const auto nothing = ps();
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("no run folder '" + folder_.string() + "'"));
  std::filesystem::create_directory(folder_);
  EXPECT_THAT(ps().err, HasSubstr("it has no run.json"));
}

}  // namespace
}  // namespace primerl
