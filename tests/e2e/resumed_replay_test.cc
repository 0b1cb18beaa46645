// Runs with real models that are killed at random moments and resumed: their record is replayed at
// full depth, and every token and every weight repeats bit for bit.
//
// PRIMERL_RESUMED_TRIES=20 makes as many tries of each kind of run, instead of one of a few kinds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "graph/base/random.h"
#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

struct Kind {
  std::string name;
  std::string graph;
  friend void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
};

/// 0: not set.
int num_tries_wanted() {
  const char* wanted = std::getenv("PRIMERL_RESUMED_TRIES");
  return wanted == nullptr ? 0 : std::atoi(wanted);
}

std::string tenant_lines(int64_t off_policy_max) {
  return fmt::format(
      "environment = {{ name = \"reverse_text\" }}\ngroup_size = 4\nbatch_size = 16\n"
      "max_steps = 1000000\nmax_off_policy_steps = {}\ncheckpoint_every = 2\n"
      // Long completions, so that most kills find sequences in the engine.
      "filters = {{ zero_advantage = false }}\n"
      "sampling = {{ max_tokens = 48, ignore_eos = true }}\n",
      off_policy_max);
}

std::string one_tenant(int64_t off_policy_max, const std::string& more = "",
                       const std::string& after = "") {
  return fmt::format(
      "[graph]\nname = \"resumed\"\nseed = 17\n\n[tenant.main]\n{}{}\n"
      "[model.policy]\npath = \"{}\"\n\n"
      // Few blocks, so that the prefix cache evicts, and few sequences at once, so that some wait.
      "[resource.engine]\nkind = \"engine\"\nkv_blocks = 48\nmax_running = 12\nmax_waiting = 8\n{}",
      tenant_lines(off_policy_max), more, source_path("examples/reverse_text/model"), after);
}

std::string two_tenants() {
  const std::string text = read_text_file(source_path("examples/two_tenants/graph.toml")).value();
  std::string tables;
  for (const char* name : {"ada", "bo"})
    tables +=
        fmt::format("[tenant.{0}]\n{1}[tenant.{0}.adapter]\nrank = 4\n\n", name, tenant_lines(2));
  std::string graph =
      text.substr(0, text.find("[tenant.")) + tables + text.substr(text.find("[model."));
  const std::string relative = "../reverse_text/model";
  return graph.replace(graph.find(relative), relative.size(),
                       source_path("examples/reverse_text/model"));
}

std::vector<Kind> kinds() {
  const std::string places =
      "\n[place]\ndriver = { nodes = [\"env\", \"rollout\", \"router\", \"trainer\", "
      "\"broadcaster\"] }\ninference = { nodes = [\"prefill\", \"decode\"] }\n";
  const std::string judged = fmt::format(
      "reward = {{ name = \"judge\", rubric = \"r\", prompt = \"> {{answer}}\", score = "
      "\"yes_no\", yes = \"y\", no = \"n\" }}\n");
  std::vector<Kind> few = {{.name = "OneProcessOffPolicy", .graph = one_tenant(4)},
                           {.name = "TwoProcessesOffPolicy", .graph = one_tenant(4, "", places)},
                           {.name = "Adapters", .graph = two_tenants()}};
  if (num_tries_wanted() == 0) return few;
  few.push_back({.name = "OneProcessOnPolicy", .graph = one_tenant(0)});
  few.push_back({.name = "TwoProcessesOnPolicy", .graph = one_tenant(0, "", places)});
  few.push_back({.name = "Judge", .graph = one_tenant(2, judged)});
  return few;
}

class AResumedRun : public ::testing::TestWithParam<Kind> {
 protected:
  /// Runs until there are `more` steps more and some random time has passed, then kills all
  /// processes.
  void run_and_kill(std::vector<std::string> words, size_t more, Duration then) {
    words.insert(words.begin(), "primerl-graph");
    const size_t before = num_lines(folder_ / "metrics.jsonl");
    Program run(words);
    ASSERT_TRUE(has_lines(run, folder_, before + more));
    ASSERT_FALSE(run.wait(steady_now() + then));
    const auto workers = workers_of(run);
    ASSERT_FALSE(workers.empty());
    ::kill(run.pid(), SIGKILL);
    for (const pid_t worker : workers) ::kill(worker, SIGKILL);
    (void)run.wait();
    ASSERT_TRUE(wait_until([&] { return std::ranges::all_of(workers, &has_ended); }));
  }

  ScratchFolder scratch_;
  const fs::path folder_ = scratch_.path() / "run";
};

TEST_P(AResumedRun, ReplaysBitForBitAtFullDepth) {
  const int num_tries = std::max(num_tries_wanted(), 1);
  write_text(scratch_.path() / "graph.toml", GetParam().graph);
  RandomStream random(stable_hash(GetParam().name));
  for (int i = 0; i < num_tries; ++i) {
    SCOPED_TRACE(fmt::format("try {}", i));
    fs::remove_all(folder_);
    std::vector<std::string> words{"run",
                                   (scratch_.path() / "graph.toml").string(),
                                   "--out",
                                   folder_.string(),
                                   "--no-rehearsal",
                                   "--set",
                                   "graph.restarts_max=0"};
    for (int kill = 0; kill < 2; ++kill) {
      run_and_kill(words, 2 + random.below(2),
                   Duration::milliseconds(static_cast<int64_t>(random.below(150))));
      if (HasFatalFailure()) return;
      words = {"run", "--resume", folder_.string()};
    }
    int64_t last = 0;
    for (const Json& line : lines_of(folder_ / "metrics.jsonl"))
      last = std::max(last, *line.get_int("step"));
    words.insert(words.end(), {"--max-steps",
                               std::to_string(last + 4)});  // the record may be ahead of the lines
    const auto end = run_graph_program(words);
    ASSERT_EQ(end.code, 0) << end.err;
    EXPECT_THAT(end.err, HasSubstr("messages as recorded; the run is live"));
    const auto replay = run_graph_program({"replay", folder_.string()});
    ASSERT_EQ(replay.code, 0) << replay.out << replay.err;
    ASSERT_THAT(replay.out, HasSubstr("identical"));
  }
}

INSTANTIATE_TEST_SUITE_P(Of, AResumedRun, ::testing::ValuesIn(kinds()),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace primerl
