// The scripted graph on three "machines": this one and two agents. It runs to its end, is killed,
// silent or refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <csignal>
#include <map>
#include <memory>
#include <set>

#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

/// `primerl-graph agent` on a free loopback port, with the test's own folder for sockets.
class AgentProgram {
 public:
  explicit AgentProgram(const fs::path& scratch, std::vector<std::string> more = {},
                        std::vector<std::string> set = {}) {
    std::vector<std::string> words{"primerl-graph", "agent"};
    words.insert(words.end(), more.begin(), more.end());
    set.push_back("XDG_RUNTIME_DIR=" + scratch.string());
    program_ = std::make_unique<Program>(words, set);
    EXPECT_TRUE(program_->wait_until_said("agent listens on tcp://"));
    EXPECT_TRUE(program_->wait_until_said("\n"));
    const std::string said = program_->said();
    const size_t begin = said.find("tcp://") + 6;
    address_ = said.substr(begin, said.find('\n', begin) - begin);
  }
  Program& operator*() const { return *program_; }
  Program* operator->() const { return program_.get(); }
  const std::string& address() const { return address_; }

 private:
  std::unique_ptr<Program> program_;
  std::string address_;
};

class HostsRun : public testing::Test {
 protected:
  void write_hosts(const std::string& a, const std::string& b, const std::string& key_of_a = "",
                   const std::string& key_of_b = "") const {
    const auto line = [](const std::string& key) {
      return key.empty() ? "" : "key = \"" + key + "\"\n";
    };
    write_text(hosts_, "[host.a]\nagent = \"" + a + "\"\n" + line(key_of_a) +
                           "[host.b]\nagent = \"" + b + "\"\n" + line(key_of_b));
  }
  /// Makes a key pair in the file; returns the public key.
  static std::string new_key(const std::string& file) {
    const auto made = run_graph_program({"keys", "new", "--out", file});
    EXPECT_EQ(made.code, 0) << made.err;
    return made.out.substr(0, made.out.size() - 1);
  }
  static void let_in(const std::string& list, const std::string& key, const std::string& process) {
    const auto end =
        run_graph_program({"keys", "allow", key, "--process", process, "--list", list});
    EXPECT_EQ(end.code, 0) << end.err;
  }
  std::vector<std::string> words(std::vector<std::string> more = {}) const {
    std::vector<std::string> all{"run",     source_path("tests/cli/graphs/hosts.toml"),
                                 "--hosts", hosts_.string(),
                                 "--out",   folder_.string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<std::string> endless(std::vector<std::string> more = {}) const {
    auto all = words({"--max-steps", "1000000000"});
    all.insert(all.begin(), "primerl-graph");
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<std::string> variables() const {
    return {"XDG_RUNTIME_DIR=" + scratch_.path().string()};
  }
  /// A failure when the run ends before it has made `more` steps.
  ::testing::AssertionResult takes_steps(Program& run, size_t more) const {
    const fs::path file = folder_ / "metrics.jsonl";
    const size_t then = num_lines(file);
    return waits_for("further steps", run, [&] { return num_lines(file) >= then + more; });
  }
  static void expect_gone(const std::vector<pid_t>& workers) {
    for (const pid_t worker : workers)
      EXPECT_TRUE(wait_until([&] { return has_ended(worker); })) << "a worker never ended";
  }
  ProgramEnd run_to_its_end(std::vector<std::string> more = {}) const {
    return run_graph_program(words(std::move(more)), variables());
  }

  const ScratchFolder scratch_;
  const fs::path folder_ = scratch_.path() / "run";
  const fs::path hosts_ = scratch_.path() / "hosts.toml";
};

TEST_F(HostsRun, GoesToItsEndAndLeavesTheAgentsForTheNext) {
  const AgentProgram a(scratch_.path()), b(scratch_.path());
  write_hosts(a.address(), b.address());
  for (int i = 0; i < 2; ++i) {
    const auto end = run_to_its_end();
    ASSERT_EQ(end.code, 0) << end.err;
    EXPECT_EQ(run_end(folder_), "finished");
    EXPECT_EQ(lines_of(folder_ / "metrics.jsonl").size(), 8u);
    EXPECT_EQ(expect_steps_and_rollouts_once(folder_), 8);
    for (const auto& left : fs::directory_iterator(folder_))
      EXPECT_FALSE(left.path().filename().string().starts_with(".agent-")) << left.path();
    EXPECT_TRUE(workers_of(*a).empty());
    EXPECT_TRUE(workers_of(*b).empty());
    fs::remove_all(folder_);
  }
  ::kill(a->pid(), SIGTERM);
  EXPECT_EQ(a->wait().code, 0);
  ::kill(b->pid(), SIGINT);
  EXPECT_EQ(b->wait().code, 130);
}

TEST_F(HostsRun, GoesToItsEndByIPv6) {
  const AgentProgram a(scratch_.path(), {"--listen", "[::1]:0"});
  const AgentProgram b(scratch_.path(), {"--listen", "[::1]:0"});
  EXPECT_TRUE(a.address().starts_with("[::1]:")) << a.address();
  write_hosts(a.address(), b.address());
  const auto end = run_to_its_end({"--listen", "[::1]"});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(expect_steps_and_rollouts_once(folder_), 8);
}

TEST_F(HostsRun, OfOneMachineNeedsNoRuntimeFolderAndSaysOnceWhereItsSocketsAre) {
  const std::string missing = scratch_.path() / "missing";
  const auto end = run_graph_program(
      {"run", source_path("tests/cli/graphs/split.toml"), "--out", folder_.string()},
      {"XDG_RUNTIME_DIR=" + missing});
  ASSERT_EQ(end.code, 0) << end.err;
  const std::string said = "note: sockets are in '";
  const size_t begin = end.err.find(said);
  ASSERT_NE(begin, std::string::npos) << end.err;
  EXPECT_EQ(end.err.find(said, begin + 1), std::string::npos) << end.err;
  const size_t name = begin + said.size();
  const fs::path sockets = end.err.substr(name, end.err.find('\'', name) - name);
  EXPECT_TRUE(sockets.string().starts_with("/tmp/primerl-")) << sockets;
  EXPECT_FALSE(fs::exists(sockets));
}

TEST_F(HostsRun, TheAgentsStartTheirProcessesAndPsNamesTheHosts) {
  const AgentProgram a(scratch_.path()), b(scratch_.path());
  write_hosts(a.address(), b.address());
  Program run(endless(), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  EXPECT_EQ(workers_of(run).size(), 1u);  // the driver
  EXPECT_EQ(workers_of(*a).size(), 2u);
  EXPECT_EQ(workers_of(*b).size(), 1u);
  const auto ps = run_graph_program({"ps", folder_.string(), "--json"});
  ASSERT_EQ(ps.code, 0) << ps.err;
  const auto status = parse_json(ps.out, "ps");
  ASSERT_TRUE(status.ok());
  std::map<std::string, std::string> hosts;
  for (const Json& process : status->find("processes")->as_array())
    hosts[*process.get_string("name")] =
        process.find("host") == nullptr ? "" : *process.get_string("host");
  EXPECT_EQ(hosts,
            (std::map<std::string, std::string>{
                {"driver", ""}, {"inference#0", "a"}, {"inference#1", "a"}, {"training", "b"}}));
  EXPECT_THAT(run_graph_program({"ps", folder_.string()}).out, HasSubstr("host"));
  auto workers = workers_of(*a);
  workers.push_back(workers_of(*b).at(0));
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  EXPECT_EQ(run_end(folder_), "interrupted");
  expect_gone(workers);
}

TEST_F(HostsRun, AllProcessesMayBeElsewhereAndOneHostMayHaveSeveralThatTalk) {
  const AgentProgram a(scratch_.path()), b(scratch_.path());
  write_hosts(a.address(), b.address());
  const auto end = run_to_its_end({"--set", "place.driver.host=b"});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(expect_steps_and_rollouts_once(folder_), 8);
}

TEST_F(HostsRun, AnEngineThatDiesComesBackThroughItsAgent) {
  const AgentProgram a(scratch_.path()), b(scratch_.path());
  write_hosts(a.address(), b.address());
  Program run(endless(), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  const auto workers = workers_of(*a);
  ASSERT_EQ(workers.size(), 2u);
  ::kill(workers[1], SIGKILL);
  ASSERT_TRUE(run.wait_until_said("it is restarted as incarnation 2"));
  ASSERT_TRUE(
      waits_for("second worker of the agent", run, [&] { return workers_of(*a).size() >= 2; }));
  ASSERT_TRUE(takes_steps(run, 4));
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  EXPECT_THAT(end.err, HasSubstr("process 'inference#1' was killed by signal 9"));
  expect_steps_and_rollouts_once(folder_);
}

TEST_F(HostsRun, ATrainerThatDiesIsTakenUpThroughTheSameAgents) {
  const AgentProgram a(scratch_.path()), b(scratch_.path());
  write_hosts(a.address(), b.address());
  Program run(endless(), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  const auto workers = workers_of(*b);
  ASSERT_EQ(workers.size(), 1u);
  ::kill(workers[0], SIGKILL);
  ASSERT_TRUE(run.wait_until_said("messages as recorded; the run is live"));
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  ASSERT_EQ(end.code, 130) << end.err;
  EXPECT_THAT(end.err, HasSubstr("process 'training' was killed by signal 9"));
  expect_steps_and_rollouts_once(folder_);
  expect_replays(folder_);
}

TEST_F(HostsRun, TheWorkersOfAKilledAgentDieWithItAndItIsNamed) {
  const AgentProgram a(scratch_.path()), b(scratch_.path());
  write_hosts(a.address(), b.address());
  Program run(endless({"--set", "graph.restarts_max=0", "--set", "graph.dead_after=2s"}),
              variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  auto workers = workers_of(*a);
  workers.push_back(workers_of(*b).at(0));
  ::kill(b->pid(), SIGKILL);
  EXPECT_EQ(b->wait().signal, SIGKILL);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, HasSubstr("the agent of host 'b' at " + b.address()));
  EXPECT_EQ(run_end(folder_), "failed");
  expect_gone(workers);
}

TEST_F(HostsRun, AnAgentThatIsSilentForTooLongIsWaitedForAndTheRunTakenUp) {
  const AgentProgram a(scratch_.path()), b(scratch_.path());
  write_hosts(a.address(), b.address());
  Program run(endless({"--set", "graph.dead_after=2s"}), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  ASSERT_TRUE(takes_steps(run, 8));  // and has written a checkpoint
  const auto before = workers_of(*b);
  ASSERT_EQ(before.size(), 1u);
  ::kill(b->pid(), SIGSTOP);
  ASSERT_TRUE(run.wait_until_said("the agent of host 'b' at " + b.address() +
                                  ": it has sent nothing for 2s"));
  EXPECT_FALSE(has_ended(before[0]));  // only its agent may declare it dead
  ::kill(b->pid(), SIGCONT);
  ASSERT_TRUE(run.wait_until_said("the run resumes"));
  ASSERT_TRUE(run.wait_until_said("reward"));
  ASSERT_TRUE(takes_steps(run, 2));
  EXPECT_TRUE(has_ended(before[0]));
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  expect_steps_and_rollouts_once(folder_);
}

TEST_F(HostsRun, NothingOutlivesAKilledControlPlane) {
  const AgentProgram a(scratch_.path()), b(scratch_.path());
  write_hosts(a.address(), b.address());
  std::vector<pid_t> workers;
  {
    Program run(endless({"--set", "graph.dead_after=2s"}), variables());
    ASSERT_TRUE(run.wait_until_said("reward"));
    workers = workers_of(*a);
    workers.push_back(workers_of(*b).at(0));
    ::kill(run.pid(), SIGKILL);
    EXPECT_EQ(run.wait().signal, SIGKILL);
  }
  ASSERT_TRUE(a->wait_until_said("the control plane has sent nothing for 2s"));
  ASSERT_TRUE(b->wait_until_said("the control plane has sent nothing for 2s"));
  expect_gone(workers);
  // The agents serve the next control plane, which continues the run.
  Program again({"primerl-graph", "run", "--resume", folder_.string(), "--hosts", hosts_.string()},
                variables());
  ASSERT_TRUE(takes_steps(again, 4));
  ::kill(again.pid(), SIGINT);
  const auto end = again.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  expect_steps_and_rollouts_once(folder_);
}

TEST_F(HostsRun, TheSameRunFencesWhatIsLeftOfItsOlderStart) {
  const AgentProgram a(scratch_.path()), b(scratch_.path());
  write_hosts(a.address(), b.address());
  std::vector<pid_t> workers;
  {
    Program run(endless({"--set", "graph.dead_after=1h"}), variables());
    ASSERT_TRUE(run.wait_until_said("reward"));
    ASSERT_TRUE(takes_steps(run, 4));
    workers = workers_of(*a);
    workers.push_back(workers_of(*b).at(0));
    ::kill(run.pid(), SIGKILL);
    EXPECT_EQ(run.wait().signal, SIGKILL);
  }
  for (const pid_t worker : workers) EXPECT_FALSE(has_ended(worker));
  // Another run is refused as long as the agents consider this one alive.
  const fs::path other = scratch_.path() / "other";
  auto second = words();
  second.back() = other.string();
  const auto refused = run_graph_program(second, variables());
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("the agent serves run " +
                                           *json_file(folder_ / "run.json").get_string("run_id") +
                                           " of graph 'hosts' already"),
                                 HasSubstr("one run at a time")));
  for (const pid_t worker : workers) EXPECT_FALSE(has_ended(worker));
  // The workers have continued to make steps, so they are stopped before their steps are counted.
  for (const pid_t worker : workers) ::kill(worker, SIGSTOP);
  const auto resume = [&](int64_t max_steps) {
    return run_graph_program({"run", "--resume", folder_.string(), "--hosts", hosts_.string(),
                              "--max-steps", std::to_string(max_steps)},
                             variables());
  };
  const auto too_few = resume(1);
  ASSERT_EQ(too_few.code, 2);
  const std::string offer = "continue with --max-steps ";
  const size_t at = too_few.err.find(offer);
  ASSERT_NE(at, std::string::npos) << too_few.err;
  const int64_t more = std::stol(too_few.err.substr(at + offer.size())) + 3;
  const auto end = resume(more);
  ASSERT_EQ(end.code, 0) << end.err;
  expect_gone(workers);
  EXPECT_EQ(expect_steps_and_rollouts_once(folder_), more);
}

TEST_F(HostsRun, AnAgentThatIsToldToStopLetsTheRunDrain) {
  const AgentProgram a(scratch_.path()), b(scratch_.path());
  write_hosts(a.address(), b.address());
  Program run(endless(), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  ::kill(a->pid(), SIGTERM);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  EXPECT_THAT(end.err, HasSubstr("host 'a': the agent was told to stop; the run drains"));
  EXPECT_EQ(run_end(folder_), "interrupted");
  EXPECT_EQ(a->wait().code, 0);
  expect_steps_and_rollouts_once(folder_);
}

TEST_F(HostsRun, WithAKeyForEachMachineGoesToItsEndAndLetsNoOtherIn) {
  const auto file = [this](const char* name) { return (scratch_.path() / name).string(); };
  const std::string control = new_key(file("control")), key_a = new_key(file("a")),
                    key_b = new_key(file("b")), other = new_key(file("other"));
  const std::string allow = file("allow");
  let_in(allow, control, "control");
  let_in(allow, control, "driver");
  let_in(allow, key_a, "inference");
  let_in(allow, key_b, "training");
  const AgentProgram a(scratch_.path(), {"--keys", file("a"), "--allow", allow});
  const AgentProgram b(scratch_.path(), {"--keys", file("b"), "--allow", allow});
  const std::vector<std::string> with_keys = {"--keys", file("control"), "--allow", allow};
  write_hosts(a.address(), b.address(), key_a, key_b);
  const auto end = run_to_its_end(with_keys);
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(expect_steps_and_rollouts_once(folder_), 8);
  fs::remove_all(folder_);

  const auto bare = run_to_its_end();
  EXPECT_EQ(bare.code, 2);
  EXPECT_THAT(bare.err, HasSubstr("host 'a' has a key, this run has none"));
  write_hosts(a.address(), b.address());
  const auto unkeyed = run_to_its_end();
  EXPECT_EQ(unkeyed.code, 1);
  EXPECT_THAT(unkeyed.err, HasSubstr("the handshake failed"));
  fs::remove_all(folder_);
  write_hosts(a.address(), b.address(), key_a, other);
  const auto mistaken = run_to_its_end(with_keys);
  EXPECT_EQ(mistaken.code, 1);
  EXPECT_THAT(mistaken.err,
              AllOf(HasSubstr("the agent of host 'b'"), HasSubstr("the handshake failed")));
  fs::remove_all(folder_);
  // A key that is allowed only in its own list.
  const std::string their_allow = file("their_allow");
  for (const char* process : {"driver", "inference", "training"})
    let_in(their_allow, other, process);
  write_hosts(a.address(), b.address(), key_a, key_b);
  const auto stranger = run_to_its_end({"--keys", file("other"), "--allow", their_allow});
  EXPECT_EQ(stranger.code, 1);
  EXPECT_THAT(stranger.err, AllOf(HasSubstr("does not let this key in"),
                                  HasSubstr("keys allow '" + other + "' --process control")));
}

TEST_F(HostsRun, AnAgentThatIsNotThereIsNamed) {
  const AgentProgram a(scratch_.path());
  // Bound but not listening, so no other program can use the port meanwhile.
  const int held = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(held, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::getsockname(held, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string gone = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  write_hosts(a.address(), gone);
  const auto end = run_to_its_end();
  ::close(held);
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, AllOf(HasSubstr("the agent of host 'b' at " + gone +
                                       " cannot be reached: nothing listens there"),
                             HasSubstr("primerl-graph agent --listen")));
  EXPECT_TRUE(workers_of(*a).empty());
}

TEST_F(HostsRun, AMachineWithoutTheWorkerProgramIsNamed) {
  const AgentProgram a(scratch_.path());
  const fs::path missing = scratch_.path() / "primerl-worker";
  const AgentProgram b(scratch_.path(), {}, {"PRIMERL_WORKER=" + missing.string()});
  write_hosts(a.address(), b.address());
  const auto end = run_to_its_end();
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, AllOf(HasSubstr("the agent of host 'b'"),
                             HasSubstr("no program '" + missing.string() + "'")));
  EXPECT_TRUE(workers_of(*a).empty());
}

TEST_F(HostsRun, AHostWithoutAnAgentIsABadConfiguration) {
  const auto none = run_graph_program(
      {"run", source_path("tests/cli/graphs/hosts.toml"), "--out", folder_.string()}, variables());
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, AllOf(HasSubstr("placed on host 'a'"), HasSubstr("--hosts FILE")));
  write_text(hosts_, "[host.a]\nagent = \"127.0.0.1:1\"\n[host.bb]\nagent = \"127.0.0.1:2\"\n");
  const auto near = run_to_its_end();
  EXPECT_EQ(near.code, 2);
  EXPECT_THAT(near.err, AllOf(HasSubstr("no [host.b]"), HasSubstr("did you mean 'bb'?")));
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(HostsRun, AnAgentRefusesWhatIsNotSafe) {
  const auto beyond = run_graph_program({"agent", "--listen", "0.0.0.0:0"}, variables());
  EXPECT_EQ(beyond.code, 2);
  EXPECT_THAT(beyond.err, HasSubstr("'tcp://0.0.0.0:0' is beyond this machine and needs keys"));
  const auto no_address = run_graph_program({"agent", "--listen", "127.0.0.1"}, variables());
  EXPECT_EQ(no_address.code, 3);
  const AgentProgram first(scratch_.path());
  const auto second = run_graph_program({"agent", "--listen", first.address()}, variables());
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.err, AllOf(HasSubstr(first.address()), HasSubstr("Address already in use")));
}

TEST_F(HostsRun, OnceMeansOneRun) {
  const AgentProgram a(scratch_.path(), {"--once"}), b(scratch_.path());
  write_hosts(a.address(), b.address());
  const auto end = run_to_its_end();
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(a->wait().code, 0);
  EXPECT_TRUE(b->is_running());
}

}  // namespace
}  // namespace primerl
