// Runs as jobs of a real Slurm: cancelled, preempted, out of time. They drain, and continue.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/run_files.h"
#include "tests/e2e/slurm_cluster.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

void replace_line(std::string& text, const std::string& begin, const std::string& line) {
  const size_t at = text.find("\n" + begin);
  ASSERT_NE(at, std::string::npos) << begin;
  text.replace(at + 1, text.find('\n', at + 1) - at - 1, line);
}

class SlurmJob : public testing::Test {
 protected:
  void SetUp() override {
    if (!cluster_.why_not().empty()) GTEST_SKIP() << cluster_.why_not();
    ASSERT_TRUE(cluster_.start());
  }

  /// The common part of all scripts: the programs of this build, and a folder for sockets.
  std::string preamble() const {
    return "export PATH=" + std::string(PRIMERL_BINARY_DIR) +
           "/bin:$PATH XDG_RUNTIME_DIR=" + cluster_.folder().string() + "\n";
  }
  static std::string graph(const std::string& file) {
    return source_path("tests/cli/graphs/" + file) +
           " --max-steps 1000000000 --set tenant.main.checkpoint_every=20"
           " --set trace.cut_every=500ms";
  }
  /// The script of docs/how-to/run-under-slurm.md, with another graph and run folder.
  std::string documented() const {
    const std::string page = *read_text_file(source_path("docs/how-to/run-under-slurm.md"));
    const size_t begin = page.find("#!/bin/bash");
    EXPECT_NE(begin, std::string::npos);
    std::string script = page.substr(begin, page.find("```", begin) - begin);
    replace_line(script, "graph=", "graph='" + graph("split.toml") + "'");
    replace_line(script, "run=", "run=" + folder_.string());
    replace_line(script, "trap ", preamble() + "trap : TERM");
    return script;
  }
  std::string submit(const std::string& script, std::vector<std::string> options = {}) const {
    options.insert(options.end(), {"-w", "n1", "-o", output_.string()});
    return cluster_.submit(script, options);
  }
  std::string said() const { return *read_text_file(output_); }
  size_t num_said(const std::string& text) const {
    const std::string all = said();
    size_t count = 0;
    for (size_t at = all.find(text); at != std::string::npos; at = all.find(text, at + 1)) ++count;
    return count;
  }
  bool takes_steps(size_t more) const {
    const fs::path file = folder_ / "metrics.jsonl";
    const size_t then = num_lines(file);
    return wait_until([&] { return num_lines(file) >= then + more; });
  }
  /// Slurm has queued the job again. It would wait two minutes, so the test submits another job
  /// instead.
  void expect_requeued(const std::string& job) const {
    EXPECT_TRUE(wait_until([&] {
      const auto state = SlurmCluster::call({"squeue", "-h", "-j", job, "-o", "%T %r"});
      return state.out == "PENDING BeginTime\n";
    })) << said();
    EXPECT_EQ(cluster_.field(job, "Restarts"), "1");
    EXPECT_EQ(SlurmCluster::call({"scancel", job}).code, 0);
    EXPECT_TRUE(cluster_.wait_until_over(job));
  }
  /// The run has drained and ended in order.
  void expect_drained() const {
    EXPECT_EQ(run_end(folder_), "interrupted") << said();
    const int64_t last = expect_steps_and_rollouts_once(folder_);
    EXPECT_GT(last, 0);
    EXPECT_TRUE(
        fs::exists(folder_ / "checkpoints" / fmt::format("step_{}", last) / "manifest.json"));
    EXPECT_THAT(said(), AllOf(HasSubstr("draining:"), Not(HasSubstr("stopping now")),
                              Not(HasSubstr("restarted"))));
  }
  /// Checks a continued run like a whole run: nothing was lost or repeated.
  void expect_goes_on() const {
    const int64_t more = expect_steps_and_rollouts_once(folder_) + 10;
    const auto end = run_graph_program(
        {"run", "--resume", folder_.string(), "--max-steps", std::to_string(more)},
        {"XDG_RUNTIME_DIR=" + cluster_.folder().string()});
    ASSERT_EQ(end.code, 0) << end.err;
    EXPECT_EQ(expect_steps_and_rollouts_once(folder_), more);
  }

  SlurmCluster cluster_;
  const fs::path folder_ = cluster_.folder() / "run";
  const fs::path output_ = cluster_.folder() / "job.out";
};

TEST_F(SlurmJob, WithoutABatchScriptDrainsWhenItIsSignalled) {
  const std::string job = submit("#!/bin/bash\n" + preamble() + "exec primerl-graph run " +
                                 graph("split.toml") + " --out " + folder_.string() + "\n");
  ASSERT_TRUE(takes_steps(20)) << said();
  ASSERT_EQ(cluster_.call({"scancel", "--batch", "--signal=TERM", job}).code, 0);
  ASSERT_TRUE(cluster_.wait_until_over(job)) << said();
  EXPECT_EQ(cluster_.field(job, "ExitCode"), "130:0");
  expect_drained();
  expect_goes_on();
}

/// Uses the script of the documentation.
TEST_F(SlurmJob, ContinuesAfterPreemptionAndAfterItsTimeIsUpUntilItIsCancelled) {
  std::string job = submit(documented());
  ASSERT_TRUE(takes_steps(20)) << said();
  const auto other =
      SlurmCluster::call({"sbatch", "-w", "n1", "-p", "high", "-o", "/dev/null", "--wrap", "true"});
  ASSERT_EQ(other.code, 0) << other.err;
  expect_requeued(job);
  expect_drained();

  // Slurm checks time limits every 30 s; the minimum is one minute.
  job = submit(documented(), {"--time=1", "--signal=TERM@60"});
  ASSERT_TRUE(takes_steps(20)) << said();
  expect_requeued(job);
  EXPECT_EQ(num_said("draining:"), 2u);
  expect_drained();

  job = submit(documented());
  ASSERT_TRUE(takes_steps(20)) << said();
  ASSERT_EQ(SlurmCluster::call({"scancel", "--full", job}).code, 0);
  ASSERT_TRUE(cluster_.wait_until_over(job)) << said();
  EXPECT_EQ(cluster_.field(job, "JobState"), "CANCELLED");
  EXPECT_EQ(num_said("draining:"), 3u);
  EXPECT_EQ(num_said("resuming after step"), 2u);  // from the checkpoint of an orderly end
  expect_drained();
}

/// `run --hosts` in the batch script, with an agent on each node.
std::string two_nodes(const std::string& preamble, const fs::path& folder, const std::string& run) {
  return "#!/bin/bash\ntrap : TERM\n" + preamble + "cd " + folder.string() +
         "\n"
         "srun --overlap -o agent.%t primerl-graph agent --once & agents=$!\n"
         "for host in a:0 b:1; do\n"
         "  until address=$(grep -o 'tcp://.*' agent.${host#?:}); do sleep 0.1; done\n"
         "  printf '[host.%s]\\nagent = \"%s\"\\n' ${host%:?} ${address#tcp://}\n"
         "done > hosts.toml 2> /dev/null\n"
         "primerl-graph run --hosts hosts.toml " +
         run + "\ncode=$?\nwait $agents\necho agents $?\nexit $code\n";
}

TEST_F(SlurmJob, OfTwoNodesDrainsOnBothWhenItIsCancelled) {
  const std::vector<std::string> nodes{"-N2", "-n2", "-o", output_.string()};
  const auto script = [&](const std::string& run) {
    return two_nodes(preamble(), cluster_.folder(), run);
  };
  const std::string job =
      cluster_.submit(script(graph("hosts.toml") + " --out " + folder_.string()), nodes);
  ASSERT_TRUE(takes_steps(20)) << said();
  ASSERT_EQ(cluster_.call({"scancel", job}).code, 0);
  ASSERT_TRUE(cluster_.wait_until_over(job)) << said();
  EXPECT_EQ(num_said("agents 0"), 1u) << said();
  expect_drained();

  const int64_t more = expect_steps_and_rollouts_once(folder_) + 10;
  for (const char* agent : {"agent.0", "agent.1"}) fs::remove(cluster_.folder() / agent);
  const std::string next = cluster_.submit(
      script(fmt::format("--resume {} --max-steps {}", folder_.string(), more)), nodes);
  ASSERT_TRUE(cluster_.wait_until_over(next)) << said();
  EXPECT_EQ(run_end(folder_), "finished") << said();
  EXPECT_EQ(num_said("agents 0"), 2u) << said();
  EXPECT_EQ(expect_steps_and_rollouts_once(folder_), more);
}

}  // namespace
}  // namespace primerl
