// The scripted graph in four processes: to its end, interrupted, refused, killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <set>
#include <sstream>

#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

/// A run folder, and a separate folder for sockets.
class SplitRun : public testing::Test {
 protected:
  std::vector<std::string> words(std::vector<std::string> more = {}) const {
    std::vector<std::string> all{"run", source_path("tests/cli/graphs/" + graph_), "--out",
                                 folder_.string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<std::string> endless() const {
    auto all = words({"--max-steps", "1000000000"});
    all.insert(all.begin(), "primerl-graph");
    return all;
  }
  std::vector<std::string> variables() const {
    return {"XDG_RUNTIME_DIR=" + scratch_.path().string()};
  }
  /// Folders of sockets, of live and dead runs.
  std::vector<std::string> socket_folders() const {
    std::vector<std::string> found;
    for (const auto& root : fs::directory_iterator(scratch_.path())) {
      if (!root.path().filename().string().starts_with("primerl-")) continue;
      for (const auto& entry : fs::directory_iterator(root))
        if (entry.is_directory()) found.push_back(entry.path().filename().string());
    }
    return found;
  }

  /// Makes a key pair and the list that allows all processes; returns the arguments that name them.
  std::vector<std::string> new_keys() const {
    const std::string keys = scratch_.path() / "keys", allow = scratch_.path() / "allow";
    const auto made = run_graph_program({"keys", "new", "--out", keys});
    EXPECT_EQ(made.code, 0) << made.err;
    const std::string public_key = made.out.substr(0, made.out.size() - 1);
    for (const char* process : {"driver", "inference", "training"})
      EXPECT_EQ(run_graph_program({"keys", "allow", public_key, "--process", process, "--tenant",
                                   "main", "--list", allow})
                    .code,
                0);
    return {"--keys", keys, "--allow", allow};
  }

  /// False when the run ends before it has made `more` steps.
  bool takes_steps(const Program& run, size_t more) const {
    const fs::path file = folder_ / "metrics.jsonl";
    for (const size_t then = num_lines(file); num_lines(file) < then + more;)
      if (!run.is_running()) return false;
    return true;
  }

  const ScratchFolder scratch_;
  const fs::path folder_ = scratch_.path() / "run";
  std::string graph_ = "split.toml";
};

TEST_F(SplitRun, GoesToItsEnd) {
  const auto end = run_graph_program(words(), variables());
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(run_end(folder_), "finished");
  EXPECT_EQ(lines_of(folder_ / "metrics.jsonl").size(), 8u);
  std::set<std::string> attempts;
  for (const auto& rollout : lines_of(folder_ / "rollouts.jsonl"))
    EXPECT_TRUE(attempts.insert(*rollout.get_string("rollout")).second) << "a rollout ended twice";
  std::set<std::string> processes;
  for (const auto& line : lines_of(folder_ / "logs" / "run.jsonl"))
    processes.insert(*line.get_string("process"));
  EXPECT_FALSE(processes.empty());
  std::set<std::string> recorded;
  for (const auto& entry : fs::directory_iterator(folder_ / "trace")) {
    const std::string name = entry.path().filename().string();
    recorded.insert(name.substr(0, name.find('.')));
  }
  for (const char* process : {"driver", "inference#0", "inference#1", "training"})
    EXPECT_TRUE(recorded.contains(process)) << process;
  EXPECT_TRUE(socket_folders().empty());
}

/// Loopback ports that the process listens on.
size_t num_listening_ports(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  std::set<std::string> sockets;
  for (const auto& each : fs::directory_iterator(folder + "/fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(each, gone).string();
    if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
  }
  std::ifstream table(folder + "/net/tcp");
  size_t count = 0;
  for (std::string line; std::getline(table, line);) {
    std::istringstream in(line);
    std::vector<std::string> words;
    for (std::string word; in >> word;) words.push_back(word);
    const bool listens = words.size() > 9 && words[3] == "0A";
    if (listens && words[1].starts_with("0100007F:") && sockets.contains(words[9])) ++count;
  }
  return count;
}

TEST_F(SplitRun, TravelsByTcpWhereAnEdgeSaysSo) {
  graph_ = "split_tcp.toml";
  Program run(endless(), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  const auto workers = workers_of(run);
  ASSERT_EQ(workers.size(), 4u);
  // Training connects to the driver, with two connections; everything else uses ipc.
  EXPECT_EQ(num_listening_ports(workers[0]), 2u);
  for (size_t i = 1; i < workers.size(); ++i) EXPECT_EQ(num_listening_ports(workers[i]), 0u) << i;
  ::kill(run.pid(), SIGINT);
  EXPECT_EQ(run.wait().code, 130);
  EXPECT_TRUE(socket_folders().empty());
}

TEST_F(SplitRun, DrainsWhenABatchSystemTellsAllItsProcessesToEndSeveralTimes) {
  Program run(endless(), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  auto processes = workers_of(run);
  ASSERT_EQ(processes.size(), 4u);
  processes.push_back(run.pid());
  for (const int signal : {SIGTERM, SIGTERM, SIGHUP})
    for (const pid_t process : processes) ::kill(process, signal);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  EXPECT_EQ(run_end(folder_), "interrupted");
  EXPECT_THAT(end.err, AllOf(HasSubstr("draining:"), Not(HasSubstr("stopping now")),
                             Not(HasSubstr("restarted")), Not(HasSubstr("resumes"))));
  const int64_t last = expect_steps_and_rollouts_once(folder_);
  EXPECT_TRUE(fs::exists(folder_ / "checkpoints" / fmt::format("step_{}", last) / "manifest.json"));
}

/// A separate network that a test may disconnect. False if the machine does not allow that.
bool has_networks() {
  for (const char* program : {"/usr/bin/unshare", "/usr/bin/nsenter", "/usr/sbin/ip"})
    if (!fs::exists(program)) return false;
  return Program({"/usr/bin/unshare", "-rn", "/usr/sbin/ip", "link", "set", "lo", "up"})
             .wait()
             .code == 0;
}

void set_network(const Program& run, const char* state) {
  const auto end =
      Program({"/usr/bin/nsenter", "--target", std::to_string(run.pid()), "--user", "--net",
               "--preserve-credentials", "/usr/sbin/ip", "link", "set", "lo", state})
          .wait();
  ASSERT_EQ(end.code, 0) << end.err;
}

TEST_F(SplitRun, APartitionHoldsItUpAndLosesNothing) {
  if (!has_networks()) GTEST_SKIP() << "no network namespaces here (unshare -rn, iproute2)";
  graph_ = "split_tcp.toml";
  auto line = endless();
  line[0] = std::string(PRIMERL_BINARY_DIR) + "/bin/primerl-graph";
  line.insert(line.begin(), {"/usr/bin/unshare", "-rn", "/bin/sh", "-c",
                             "/usr/sbin/ip link set lo up && exec \"$@\"", "sh"});
  Program run(line, variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  set_network(run, "down");
  ASSERT_TRUE(run.wait_until_said("driver: the connection with 'training' broke"));
  ASSERT_TRUE(run.wait_until_said("training: the connection with 'driver' broke"));
  const size_t num_steps = num_lines(folder_ / "metrics.jsonl");
  set_network(run, "up");
  ASSERT_TRUE(run.wait_until_said("driver: the connection with 'training' is back"));
  ASSERT_TRUE(takes_steps(run, 10)) << run.wait().err;
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;  // with a ledger that balances
  EXPECT_GT(expect_steps_and_rollouts_once(folder_), static_cast<int64_t>(num_steps));
  expect_replays(folder_);
}

TEST_F(SplitRun, WithKeysGoesToItsEndAndKeepsTheSecret) {
  graph_ = "split_tcp.toml";
  const auto end = run_graph_program(words(new_keys()), variables());
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(run_end(folder_), "finished");
  EXPECT_EQ(lines_of(folder_ / "metrics.jsonl").size(), 8u);
  const std::string pair = *read_text_file(scratch_.path() / "keys");
  const std::string secret = pair.substr(pair.find("secret = \"") + 10, 40);
  EXPECT_THAT(end.out + end.err, testing::Not(HasSubstr(secret)));
  size_t num_files = 0;
  for (const auto& each : fs::recursive_directory_iterator(folder_)) {
    if (!each.is_regular_file()) continue;
    ++num_files;
    EXPECT_THAT(*read_text_file(each), testing::Not(HasSubstr(secret))) << each.path();
  }
  EXPECT_GT(num_files, 10u);
}

TEST_F(SplitRun, WithKeysAnEngineAndATrainerThatDieComeBack) {
  graph_ = "split_tcp.toml";
  auto line = endless();
  for (const auto& word : new_keys()) line.push_back(word);
  Program run(line, variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  const pid_t engine = worker_named(run, "inference#0");
  ASSERT_GT(engine, 0);
  ::kill(engine, SIGKILL);
  ASSERT_TRUE(run.wait_until_said("it is restarted as incarnation 2"));
  ASSERT_TRUE(takes_steps(run, 10)) << run.wait().err;
  const pid_t trainer = worker_named(run, "training");
  ASSERT_GT(trainer, 0);
  ::kill(trainer, SIGKILL);
  ASSERT_TRUE(run.wait_until_said("messages as recorded; the run is live"));
  ASSERT_TRUE(takes_steps(run, 5)) << run.wait().err;
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  expect_steps_and_rollouts_once(folder_);
}

TEST_F(SplitRun, CtrlCDrainsAllProcesses) {
  Program run(endless(), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  EXPECT_EQ(workers_of(run).size(), 4u);
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  EXPECT_EQ(run_end(folder_), "interrupted");
  const auto steps = lines_of(folder_ / "metrics.jsonl");
  ASSERT_FALSE(steps.empty());
  const auto last = std::to_string(*steps.back().get_int("step"));
  EXPECT_TRUE(fs::exists(folder_ / "checkpoints" / ("step_" + last) / "manifest.json"));
  EXPECT_TRUE(socket_folders().empty());
}

TEST_F(SplitRun, NoWorkerOutlivesAKilledParentAndTheNextRunCleansUp) {
  std::vector<pid_t> workers;
  {
    Program run(endless(), variables());
    ASSERT_TRUE(run.wait_until_said("reward"));
    workers = workers_of(run);
    ASSERT_EQ(workers.size(), 4u);
    ::kill(run.pid(), SIGKILL);
    EXPECT_EQ(run.wait().signal, SIGKILL);
  }
  for (const pid_t worker : workers)
    ASSERT_TRUE(wait_until([&] { return has_ended(worker); })) << "a worker outlived its parent";
  const auto left = socket_folders();
  ASSERT_EQ(left.size(), 1u);
  fs::remove_all(folder_);
  const auto next = run_graph_program(words(), variables());
  EXPECT_EQ(next.code, 0) << next.err;
  EXPECT_THAT(next.err,
              AllOf(HasSubstr("removed sockets that a crashed run left"), HasSubstr(left.front())));
  EXPECT_TRUE(socket_folders().empty());
}

TEST_F(SplitRun, AWorkerWithAnotherGraphIsRefusedWithBothHashes) {
  // One worker gets a run folder whose graph has another seed.
  const fs::path other = scratch_.path() / "other", script = scratch_.path() / "worker.sh";
  fs::create_directory(other);
  write_text(script,
             "#!/bin/bash\n"
             "if [ \"$5\" = training ]; then\n"
             "  cp \"$3/run.json\" '" +
                 other.string() +
                 "'\n"
                 "  sed 's/^seed = 17/seed = 18/' \"$3/graph.resolved.toml\" > '" +
                 other.string() + "/graph.resolved.toml'\n  set -- \"${@:1:2}\" '" +
                 other.string() + "' \"${@:4}\"\nfi\nexec '" + std::string(PRIMERL_BINARY_DIR) +
                 "/bin/primerl-worker' \"$@\"\n");
  fs::permissions(script, fs::perms::owner_all);
  auto set = variables();
  set.push_back("PRIMERL_WORKER=" + script.string());
  const auto end = run_graph_program(words(), set);
  EXPECT_EQ(end.code, 1);
  EXPECT_FALSE(fs::exists(folder_)) << "it had not begun";
  const std::string ours = *json_file(other / "run.json").get_string("graph_hash");
  EXPECT_THAT(end.err, AllOf(HasSubstr("process 'training'"), HasSubstr("graph hash is '"),
                             HasSubstr("expected '" + ours + "'")));
  EXPECT_TRUE(socket_folders().empty());
}

TEST_F(SplitRun, AWorkerThatDiesIsNamedAndEndsTheRun) {
  auto line = endless();
  line.insert(line.end(), {"--set", "graph.restarts_max=0"});
  Program run(line, variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  const auto workers = workers_of(run);
  ASSERT_EQ(workers.size(), 4u);
  ::kill(workers.back(), SIGKILL);  // started last: training
  const auto end = run.wait();
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, HasSubstr("process 'training' was killed by signal 9"));
  EXPECT_EQ(run_end(folder_), "failed");
  for (const pid_t worker : workers) EXPECT_TRUE(has_ended(worker));
  EXPECT_TRUE(socket_folders().empty());
}

TEST_F(SplitRun, AnEngineThatDiesComesBackAndNothingIsLostOrTrainedTwice) {
  auto line = words({"--max-steps", "400"});
  line.insert(line.begin(), "primerl-graph");
  Program run(line, variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  const auto workers = workers_of(run);
  ASSERT_EQ(workers.size(), 4u);
  ::kill(workers[2], SIGKILL);
  ASSERT_TRUE(run.wait_until_said("it is restarted as incarnation 2"));
  const auto end = run.wait();
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("process 'inference#1' was killed by signal 9"));
  EXPECT_EQ(lines_of(folder_ / "metrics.jsonl").size(), 400u);
  std::set<std::string> ended;
  for (const auto& rollout : lines_of(folder_ / "rollouts.jsonl"))
    EXPECT_TRUE(ended.insert(*rollout.get_string("rollout")).second) << "a rollout ended twice";
}

TEST_F(SplitRun, ATrainerOrDriverThatDiesIsTakenUpFromTheRecordsOfAllProcesses) {
  for (const size_t worker : {size_t{0}, size_t{3}}) {
    fs::remove_all(folder_);
    Program run(endless(), variables());
    ASSERT_TRUE(run.wait_until_said("reward"));
    const auto workers = workers_of(run);
    ASSERT_EQ(workers.size(), 4u);
    ::kill(workers[worker], SIGKILL);
    ASSERT_TRUE(run.wait_until_said("messages as recorded; the run is live"));
    ::kill(run.pid(), SIGINT);
    const auto end = run.wait();
    ASSERT_EQ(end.code, 130) << end.err;
    EXPECT_THAT(end.err, HasSubstr(worker == 0 ? "process 'driver' was killed by signal 9"
                                               : "process 'training' was killed by signal 9"));
    expect_steps_and_rollouts_once(folder_);
    expect_replays(folder_);
    EXPECT_TRUE(socket_folders().empty());
  }
}

TEST_F(SplitRun, ContinuesAfterTheDeathOfAllItsProcesses) {
  {
    Program run(endless(), variables());
    ASSERT_TRUE(run.wait_until_said("reward"));
    ::kill(run.pid(), SIGKILL);
    EXPECT_EQ(run.wait().signal, SIGKILL);
  }
  const auto steps = lines_of(folder_ / "metrics.jsonl");
  ASSERT_FALSE(steps.empty());
  const int64_t more = *steps.back().get_int("step") + 10;
  const auto end = run_graph_program(
      {"run", "--resume", folder_.string(), "--max-steps", std::to_string(more)}, variables());
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("messages as recorded; the run is live"));
  EXPECT_EQ(expect_steps_and_rollouts_once(folder_), more);
  expect_replays(folder_);
}

TEST_F(SplitRun, ContinuesWithMoreEnginesFromItsCheckpoint) {
  {
    auto words = endless();
    words.insert(words.end(), {"--set", "tenant.main.checkpoint_every=5"});
    Program run(words, variables());
    ASSERT_TRUE(takes_steps(run, 20));
    ::kill(run.pid(), SIGKILL);
    run.wait();
  }
  const auto end = run_graph_program({"run", "--resume", folder_.string(), "--max-steps", "1000",
                                      "--set", "place.inference.replicas=3"},
                                     variables());
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, AllOf(HasSubstr("from the checkpoint only: "),
                             HasSubstr("it has 7 actor groups, this graph has 8"),
                             HasSubstr("resuming after step")));
  EXPECT_EQ(*lines_of(folder_ / "metrics.jsonl").back().get_int("step"), 1000);
  expect_replays(folder_);
}

TEST_F(SplitRun, AfterAnEnginesDeathATrainersDeathLosesNothingEither) {
  Program run(endless(), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  // The second time, the death of one engine is in the record, but of another start.
  for (const size_t death : {1, 2}) {
    const pid_t engine = worker_named(run, death == 1 ? "inference#1" : "inference#0");
    ASSERT_GT(engine, 0);
    ::kill(engine, SIGKILL);
    ASSERT_TRUE(run.wait_until_said("it is restarted as incarnation", death));
    ASSERT_TRUE(takes_steps(run, 10)) << run.wait().err;
    const pid_t victim = worker_named(run, death == 1 ? "training" : "driver");
    ASSERT_GT(victim, 0);
    ::kill(victim, SIGKILL);
    ASSERT_TRUE(run.wait_until_said("process 'inference#1' starts fresh", death));
    ASSERT_TRUE(takes_steps(run, 5)) << run.wait().err;
  }
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  EXPECT_THAT(end.err, Not(HasSubstr("from the checkpoint only")));
  expect_steps_and_rollouts_once(folder_);
  expect_replays(folder_);
}

/// One death may be chance: the record is followed again before the run uses only the checkpoint.
TEST_F(SplitRun, AWorkerThatDiesWhileTheyFollowCostsNothingEither) {
  Program run(endless(), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  ASSERT_TRUE(takes_steps(run, 20)) << run.wait().err;
  const pid_t trainer = worker_named(run, "training");
  ASSERT_GT(trainer, 0);
  ::kill(trainer, SIGKILL);
  ASSERT_TRUE(run.wait_until_said("following the record"));
  const pid_t driver = worker_named(run, "driver");
  ASSERT_GT(driver, 0);
  ::kill(driver, SIGKILL);
  ASSERT_TRUE(run.wait_until_said("process 'driver' was killed by signal 9"));
  ASSERT_TRUE(run.wait_until_said("messages as recorded; the run is live")) << run.wait().err;
  ASSERT_TRUE(takes_steps(run, 5)) << run.wait().err;
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  EXPECT_THAT(end.err, Not(HasSubstr("from the checkpoint only")));
  expect_steps_and_rollouts_once(folder_);
}

#if PRIMERL_HAS_TORCH
/// Real computation: two engines and a learner on libtorch, weights through shared memory.
TEST_F(SplitRun, TheExampleReplaysToTheLastBitAlthoughItsTrainerWasKilled) {
  Program run({"primerl-graph", "run", source_path("examples/split/graph.toml"), "--out",
               folder_.string(), "--max-steps", "30", "--set", "tenant.main.checkpoint_every=10"},
              variables());
  ASSERT_TRUE(waits_for(
      "checkpoint of step 10", run, [&] { return fs::exists(folder_ / "checkpoints" / "step_10"); },
      kLookOften));
  const auto workers = workers_of(run);
  ASSERT_EQ(workers.size(), 4u);
  ::kill(workers[3], SIGKILL);
  const auto end = run.wait();
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, AllOf(HasSubstr("process 'training' was killed by signal 9"),
                             HasSubstr("messages as recorded; the run is live")));
  EXPECT_EQ(expect_steps_and_rollouts_once(folder_), 30);
  const auto replay = run_graph_program({"replay", folder_.string(), "--depth", "full"});
  EXPECT_EQ(replay.code, 0) << replay.out << replay.err;
  EXPECT_THAT(replay.out, HasSubstr("identical"));
}
#endif

TEST_F(SplitRun, AProcessThatSaysNothingIsKilledAndComesBack) {
  auto line = endless();
  line.insert(line.end(), {"--set", "graph.dead_after=5s"});
  Program run(line, variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  ASSERT_TRUE(takes_steps(run, 8)) << run.wait().err;  // and has written a checkpoint
  const auto workers = workers_of(run);
  ASSERT_EQ(workers.size(), 4u);
  ::kill(workers[1], SIGSTOP);  // an engine
  ASSERT_TRUE(run.wait_until_said("it is restarted as incarnation 2"));
  ::kill(workers[3], SIGSTOP);  // training
  ASSERT_TRUE(run.wait_until_said("the run resumes"));
  ASSERT_TRUE(takes_steps(run, 2)) << run.wait().err;
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  EXPECT_THAT(end.err, HasSubstr("process 'inference#0' sent nothing for 5s and was killed"));
  EXPECT_THAT(end.err, HasSubstr("process 'training' sent nothing for 5s and was killed"));
}

TEST_F(SplitRun, AFullDiskEndsAllProcessesAndIsSaidOnce) {
  // A limit of the file size simulates a full disk; rollouts.jsonl, of the driver, reaches it.
  std::string command = "ulimit -f 64; exec '" + std::string(PRIMERL_BINARY_DIR) + "/bin/'";
  auto line = endless();
  line.insert(line.end(), {"--set", "trace.level=off"});
  for (const auto& word : line) command += "'" + word + "' ";
  write_text(scratch_.path() / "run.sh", command);
  const auto script = (scratch_.path() / "run.sh").string();
  const auto end = Program({"/bin/bash", script}, variables()).wait();
  EXPECT_EQ(end.code, 1) << end.err;
  EXPECT_THAT(end.err, AllOf(HasSubstr("error: "), HasSubstr("rollouts.jsonl"),
                             HasSubstr("File too large"), Not(HasSubstr("the run resumes"))));
  EXPECT_EQ(run_end(folder_), "failed");
  EXPECT_TRUE(socket_folders().empty());
}

TEST_F(SplitRun, APlaceThatCannotBeMadeIsNamed) {
  const auto cpu = run_graph_program(words({"--set", "place.training.cpus=\"1023\""}), variables());
  EXPECT_EQ(cpu.code, 2);
  EXPECT_THAT(cpu.err, HasSubstr("'cpus' of place 'training' names CPU 1023"));
  const auto host =
      run_graph_program(words({"--set", "place.training.host=elsewhere"}), variables());
  EXPECT_EQ(host.code, 2);
  EXPECT_THAT(host.err, HasSubstr("'training' is placed on host 'elsewhere'"));
}

}  // namespace
}  // namespace primerl
