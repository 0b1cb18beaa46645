// One of two tenants has an environment with forbidden behaviour: its rewards are not finite, it
// always answers after its deadline, it never answers, or its process is killed. The other tenant
// trains what it would train alone, bit for bit.
#include <csignal>

#include "tests/e2e/two_tenants.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

constexpr const char* kAside = "error: tenant 'hostile' was set aside: ";
constexpr const char* kTrains =
    "group_size = 4\nbatch_size = 8\nmax_off_policy_steps = 0\n"
    "filters = { zero_advantage = false }\n";

class HostileTenant : public TwoTenants {
 protected:
  /// The example with scripted engine and learner. `hostile` are lines for the tenant of that name;
  /// empty: no such tenant. In one process, or with environments in three processes of their own.
  std::string graph(const std::string& hostile, bool is_apart = false) const {
    std::string text = read_text_file(source_path(kExample)).value();
    const size_t begin = text.find("[tenant."), end = text.find("[model.");
    std::string tables;
    if (!hostile.empty())
      tables += fmt::format("[tenant.hostile]\n{}{}[tenant.hostile.adapter]\nrank = 8\n\n", hostile,
                            kTrains);
    tables += fmt::format(
        "[tenant.calm]\nenvironment = {{ name = \"reverse_text\" }}\n{}"
        "[tenant.calm.adapter]\nrank = 8\n\n",
        kTrains);
    text = text.substr(0, begin) + tables + text.substr(end);
    const auto replace = [&text](const std::string& from, const std::string& to) {
      text.replace(text.find(from), from.size(), to);
    };
    replace("[graph]\n", "[graph]\nplugins = [\"" PRIMERL_BINARY_DIR "/plugins/hostile.so\"]\n");
    if (is_apart) {
      replace("backend = \"memory\"", "backend = \"auto\"  ");
      replace("[model.",
              "[place]\ndriver = { nodes = [\"rollout\", \"router\"] }\n"
              "worlds = { nodes = [\"env\"], replicas = 3 }\n"
              "rest = { nodes = [\"prefill\", \"decode\", \"trainer\", \"broadcaster\"] }\n\n"
              "[model.");
    }
    const fs::path file = folder(hostile.empty() ? "calm.toml" : "both.toml");
    std::ofstream(file) << text;
    return file.string();
  }
  std::vector<std::string> words_of(const std::string& graph, const fs::path& run,
                                    const std::vector<std::string>& more) const {
    std::vector<std::string> all{"run", graph, "--out", run.string(), "--no-rehearsal"};
    for (const std::string& set :
         {std::string("resource.engine.backend=\"scripted\""),
          std::string("resource.learner.backend=\"scripted\""),
          "model.policy.path=\"" + source_path("examples/reverse_text/base") + "\""})
      all.insert(all.end(), {"--set", set});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  /// The calm tenant's results in `run` equal those of a run of its own with `num_steps` steps.
  void expect_calm_as_alone(const fs::path& run, int num_steps) const {
    const fs::path own = folder("own");
    const std::string max_steps = fmt::format("{}", num_steps);
    const auto single = run_graph_program(words_of(graph(""), own, {"--max-steps", max_steps}));
    ASSERT_EQ(single.code, 0) << single.err;
    ASSERT_EQ(std::ssize(steps(own, "calm")), num_steps);
    EXPECT_EQ(steps(run, "calm"), steps(own, "calm"));
    EXPECT_EQ(trained(run / "rollouts/calm.jsonl"), trained(own / "rollouts.jsonl"));
    const fs::path weights = fs::path("step_" + max_steps) / "weights" / "model.safetensors";
    ASSERT_TRUE(fs::exists(own / "checkpoints" / weights));
    EXPECT_TRUE(bytes(run / "checkpoints/calm" / weights) == bytes(own / "checkpoints" / weights));
  }

  /// The run ends as failed, after the steps of the calm tenant. Each failed rollout of the hostile
  /// one has one of the reasons `why`, unless the end of the run cancelled it.
  void expect_set_aside(const std::string& hostile, const std::vector<std::string>& why) const {
    const fs::path run = folder("run");
    const auto end =
        run_graph_program(words_of(graph(hostile), run,
                                   {"--max-steps", "20", "--set", "node.trainer.lost_batches_max=2",
                                    "--set", "graph.abandoned_max=1024"}));
    EXPECT_EQ(end.code, 1) << end.err;
    EXPECT_THAT(end.err, HasSubstr(kAside));
    EXPECT_THAT(end.err, HasSubstr("groups in a row ended without being trained on"));
    EXPECT_TRUE(steps(run, "hostile").empty());
    std::set<std::string> seen;
    for (const Json& line : lines_of(run / "rollouts/hostile.jsonl")) {
      if (*line.get_string("end") != "failed") continue;
      const std::string reason = *line.get_string("reason");
      const auto found = std::ranges::find_if(
          why, [&](const std::string& one) { return reason.find(one) != std::string::npos; });
      EXPECT_NE(found, why.end()) << reason;
      if (found != why.end()) seen.insert(*found);
    }
    EXPECT_EQ(seen.size(), why.size()) << "each of them happens";
    expect_calm_as_alone(run, 20);
    const auto replayed = run_graph_program({"replay", run.string()});
    EXPECT_EQ(replayed.code, 0) << replayed.out << replayed.err;
  }
};

TEST_F(HostileTenant, WhoseRewardsAreNotFiniteIsSetAside) {
  expect_set_aside(
      "environment = { name = \"hostile\", fault_percent = 0, gives_numbers = false }\n",
      {"gave the reward nan", "gave the reward inf", "gave the reward -inf",
       "is not in [-1000000, 1000000]"});
}

TEST_F(HostileTenant, WithAnEnvironmentThatAlwaysAnswersLateIsSetAside) {
  expect_set_aside(
      "environment = { name = \"hostile\", fault_percent = 0, slow_percent = 100, "
      "slow_ms = 900 }\nenvironment_timeout = \"300ms\"\n",
      {"the environment did not answer within 300ms"});
}

TEST_F(HostileTenant, WithAnEnvironmentThatNeverAnswersIsSetAside) {
  expect_set_aside(
      "environment = { name = \"hostile\", fault_percent = 0, hang_percent = 100 }\n"
      "environment_timeout = \"300ms\"\n",
      {"the environment did not answer within 300ms"});
}

TEST_F(HostileTenant, WithAKilledEnvironmentProcessDoesNotAffectTheOther) {
  const fs::path run = folder("run");
  auto all =
      words_of(graph("environment = { name = \"hostile\", fault_percent = 20 }\n", true), run,
               {"--set", "tenant.hostile.max_steps=30", "--set", "tenant.calm.max_steps=300"});
  all.insert(all.begin(), "primerl-graph");
  Program going(all, {"XDG_RUNTIME_DIR=" + scratch_.path().string()});
  ASSERT_TRUE(going.wait_until_said("reward"));
  const pid_t judge = worker_named(going, "worlds#1");
  ASSERT_GT(judge, 0);
  ::kill(judge, SIGKILL);
  ASSERT_TRUE(going.wait_until_said("it is restarted as incarnation 2"));
  const auto end = going.wait();
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(steps(run, "hostile").size(), 30U);
  expect_calm_as_alone(run, 300);
  const auto replayed = run_graph_program({"replay", run.string()});
  EXPECT_EQ(replayed.code, 0) << replayed.out << replayed.err;
}

}  // namespace
}  // namespace primerl
