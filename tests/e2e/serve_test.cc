// A graph is served: tenants join while others train, leave, and another takes the slot. The run
// ends by Ctrl-C, its record is sound, and a resumed run has the same tenants.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <vector>

#include "graph/base/random.h"
#include "tests/base/raw_client.h"
#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class ServedRun : public ::testing::Test {
 protected:
  /// examples/hosted with two slots and without a model.
  std::vector<std::string> serve_words(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"primerl-graph", "serve"};
    words.insert(words.end(), more.begin(), more.end());
    words.push_back("--no-rehearsal");
    for (const char* set :
         {"resource.engine.backend=\"scripted\"", "resource.learner.backend=\"scripted\"",
          "graph.tenant_limits.tenants_max=2"})
      words.insert(words.end(), {"--set", set});
    return words;
  }
  /// The steps of a tenant in the order of their lines.
  std::vector<int64_t> steps_of(const std::string& name) const {
    std::vector<int64_t> steps;
    for (const Json& line : lines_of(folder_ / "metrics.jsonl"))
      if (line.get_string("tenant").value() == name && line.find("reward/all/mean") != nullptr)
        steps.push_back(line.get_int("step").value());
    return steps;
  }
  ProgramEnd tenant(std::vector<std::string> words) const {
    words.insert(words.begin(), "tenant");
    words.insert(words.end(), {"--serve", folder_.string()});
    return run_graph_program(std::move(words));
  }
  /// Asks again while the run cannot answer, because its worker follows the record.
  void expect_done(const std::vector<std::string>& words) const {
    ProgramEnd end;
    EXPECT_TRUE(wait_until([&] {
      end = tenant(words);
      return end.code != 1;
    }));
    EXPECT_EQ(end.code, 0) << end.err;
  }
  /// An environment makes a step for each task and each action. Without end it would make millions.
  void expect_few_steps_of_environments() const {
    const auto stat = run_graph_program({"trace", "stat", folder_.string(), "--json"});
    ASSERT_EQ(stat.code, 0) << stat.err;
    const Json groups = *parse_json(stat.out, "stat").value().find("groups");
    for (const Json& group : groups.as_array())
      if (const std::string name = group.get_string("group").value(); name.starts_with("env")) {
        EXPECT_LT(group.get_int("last_step").value(), 100'000) << name;
      }
  }
  /// A file of one tenant that trains until it is removed.
  std::string tenant_file(const std::string& name, int64_t max_steps = 1'000'000,
                          const std::string& more = "") const {
    const fs::path file = scratch_.path() / (name + ".toml");
    write_text(file, fmt::format("[tenant.{0}]\nenvironment = {{ name = \"reverse_text\" }}\n"
                                 "group_size = 2\nbatch_size = 4\nmax_off_policy_steps = 2\n"
                                 "max_steps = {1}\ncheckpoint_every = 5\n{2}"
                                 "[tenant.{0}.adapter]\nrank = 4\n",
                                 name, max_steps, more));
    return file.string();
  }
  void wait_until_it_serves() const {
    ASSERT_TRUE(wait_until([&] { return tenant({"ls"}).code == 0; })) << tenant({"ls"}).err;
  }
  size_t num_steps(const std::string& name) const {
    size_t num = 0;
    for (const Json& line : lines_of(folder_ / "metrics.jsonl"))
      if (line.get_string("tenant").value() == name && line.find("reward/all/mean") != nullptr)
        ++num;  // other lines count what waits
    return num;
  }
  void expect_it_trains(const std::string& name) const {
    const size_t before = num_steps(name);
    EXPECT_TRUE(wait_until([&] { return num_steps(name) >= before + 3; })) << name << "\n"
                                                                           << tenant({"ls"}).out;
  }
  std::string state_of(const std::string& name) const {
    const auto shown = tenant({"show", name, "--json"});
    if (shown.code != 0) return shown.err;
    return parse_json(shown.out, "show").value().get_string("state").value();
  }
  void expect_state(const std::string& name, const std::string& state) const {
    EXPECT_TRUE(wait_until([&] { return state_of(name).find(state) != std::string::npos; }))
        << name << ": " << state_of(name);
  }
  void end_well(Program& run) const {
    ::kill(run.pid(), SIGINT);
    const auto end = run.wait();
    EXPECT_EQ(end.code, 130) << end.err;
    const auto verified = run_graph_program({"trace", "verify", folder_.string()});
    EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
  }

  const ScratchFolder scratch_;
  const fs::path folder_ = scratch_.path() / "run";
};

TEST_F(ServedRun, TenantsJoinLeaveAndTakeTheSlotOfAnother) {
  Program run(serve_words({source_path("examples/hosted/graph.toml"), "--out", folder_.string()}));
  wait_until_it_serves();
  const auto alice = tenant({"add", tenant_file("alice"), "--wait"});
  ASSERT_EQ(alice.code, 0) << alice.err;
  EXPECT_THAT(alice.out, AllOf(HasSubstr("alice is training"), HasSubstr("checkpoints/alice")));
  expect_it_trains("alice");
  ASSERT_EQ(tenant({"add", tenant_file("bob"), "--wait"}).code, 0);
  expect_it_trains("bob");
  const auto full = tenant({"add", tenant_file("cy")});
  EXPECT_EQ(full.code, 2);
  EXPECT_THAT(full.err, HasSubstr("the graph is full"));
  EXPECT_EQ(tenant({"add", tenant_file("alice")}).code, 2) << "the name is taken";

  EXPECT_EQ(tenant({"remove", "alice", "--purge"}).code, 0);
  expect_state("alice", "alice");  // an error that names it: it is not there any more
  ASSERT_TRUE(wait_until([&] { return !fs::exists(folder_ / "rollouts/alice.jsonl"); }));
  EXPECT_FALSE(fs::exists(folder_ / "checkpoints/alice"));
  expect_it_trains("bob");

  const auto cy = tenant({"add", tenant_file("cy", 6), "--wait"});
  ASSERT_EQ(cy.code, 0) << cy.err;
  expect_state("cy", "ended");
  EXPECT_EQ(num_steps("cy~1"), 6U) << "the second use of the slot";
  EXPECT_TRUE(run.is_running()) << "a tenant that ends does not end the run";
  expect_it_trains("bob");
  end_well(run);
}

TEST_F(ServedRun, APausedTenantMakesNoStepAndAResumedRunHasTheSameTenants) {
  {
    Program run(
        serve_words({source_path("examples/hosted/graph.toml"), "--out", folder_.string()}));
    wait_until_it_serves();
    ASSERT_EQ(tenant({"add", tenant_file("alice"), "--wait"}).code, 0);
    ASSERT_EQ(tenant({"add", tenant_file("bob"), "--wait"}).code, 0);
    expect_it_trains("alice");
    EXPECT_EQ(tenant({"pause", "alice"}).code, 0);
    expect_state("alice", "paused");
    expect_it_trains("bob");
    EXPECT_EQ(tenant({"pause", "alice"}).code, 3) << "it is paused";
    end_well(run);
  }
  EXPECT_THAT(tenant({"ls"}).out, AllOf(HasSubstr("alice"), HasSubstr("paused")));
  Program again({"primerl-graph", "run", "--resume", folder_.string()});
  expect_state("alice", "paused");
  expect_it_trains("bob");
  EXPECT_EQ(tenant({"resume", "alice"}).code, 0);
  expect_it_trains("alice");
  end_well(again);
}

TEST_F(ServedRun, AKilledWorkerAndAKilledControlPlaneLoseNoTenant) {
  {
    Program run(
        serve_words({source_path("examples/hosted/graph.toml"), "--out", folder_.string()}));
    wait_until_it_serves();
    ASSERT_EQ(tenant({"add", tenant_file("alice"), "--wait"}).code, 0);
    expect_it_trains("alice");
    ::kill(worker_of(run), SIGKILL);
    expect_it_trains("alice");
    ::kill(run.pid(), SIGKILL);
    (void)run.wait();
  }
  Program again({"primerl-graph", "run", "--resume", folder_.string()});
  expect_it_trains("alice");
  EXPECT_THAT(tenant({"ls"}).out, Not(HasSubstr("bob")));
  end_well(again);
  expect_few_steps_of_environments();
}

/// Its reward is a program of the tenant: it starts with the tenant and ends with it.
TEST_F(ServedRun, ATenantThatJoinsMayHaveARewardInPython) {
  const std::string reward = (scratch_.path() / "reward.py").string();
  const std::string pids = (scratch_.path() / "pids").string();
  write_text(reward, fmt::format("import os\n"
                                 "with open('{}', 'a') as file:\n"
                                 "    print(os.getpid(), file=file)\n"
                                 "def reward(completion):\n"
                                 "    return float(len(completion) % 3)\n",
                                 pids));
  const std::string python =
      tenant_file("alice", 1'000'000,
                  fmt::format("reward = {{ name = \"python\", file = \"{}\", python = \"{}\" }}\n",
                              reward, PRIMERL_PYTHON));
  const auto newest_pid = [&] {
    pid_t pid = 0;
    std::ifstream in(pids);
    for (pid_t each = 0; in >> each;) pid = each;
    return pid;
  };
  {
    Program run(
        serve_words({source_path("examples/hosted/graph.toml"), "--out", folder_.string()}));
    wait_until_it_serves();
    const auto added = tenant({"add", python, "--wait"});
    ASSERT_EQ(added.code, 0) << added.err;
    expect_it_trains("alice");
    ::kill(worker_of(run), SIGKILL);
    expect_it_trains("alice");
    expect_done({"add", tenant_file("bob"), "--wait"});
    const pid_t pid = newest_pid();
    EXPECT_EQ(::kill(pid, 0), 0);
    EXPECT_EQ(tenant({"remove", "alice"}).code, 0);
    EXPECT_TRUE(wait_until([&] { return ::kill(pid, 0) != 0; })) << "its process is still there";
    expect_it_trains("bob");
    end_well(run);
  }
  const pid_t last = newest_pid();
  const auto replayed = run_graph_program({"replay", folder_.string()});
  EXPECT_EQ(replayed.code, 0) << replayed.out << replayed.err;
  EXPECT_EQ(newest_pid(), last) << "a replay starts no process";
}

/// Over HTTP it brings rows, and names a reward that runs a program of the operator.
TEST_F(ServedRun, ATenantOverHttpBringsItsDataAndNamesAService) {
  write_text(scratch_.path() / "reward.py", "def reward(completion):\n    return 1.0\n");
  const std::string service = (scratch_.path() / "service.toml").string();
  write_text(service, fmt::format("[service.reward.long]\nname = \"python\"\n"
                                  "file = \"reward.py\"\npython = \"{}\"\n",
                                  PRIMERL_PYTHON));
  Program run(serve_words({source_path("examples/hosted/graph.toml"), "--out", folder_.string(),
                           "--overlay", service, "--set",
                           "graph.tenant_limits.environments=[\"dataset\"]"}));
  wait_until_it_serves();
  std::string token = tenant({"token", "--operator", "--rotate"}).out;
  token.erase(token.find_last_not_of('\n') + 1);
  const std::string url = json_file(folder_ / "run.json").get_string("control_api").value();
  const auto port = static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
  const auto send = [&](const std::string& line, const std::string& body) {
    return RawClient(port)
        .say(fmt::format("{} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n"
                         "Connection: close\r\nContent-Type: application/toml\r\n"
                         "Content-Length: {}\r\n\r\n{}",
                         line, token, body.size(), body))
        .hear_all();
  };
  // A rotated token counts within a second.
  EXPECT_TRUE(wait_until([&] {
    return send("PUT /v1/uploads/dora/rows.jsonl",
                "{\"prompt\": \"1+1=\", \"answer\": \"2\"}\n"
                "{\"prompt\": \"2+3=\", \"answer\": \"5\"}\n")
        .starts_with("HTTP/1.1 200");
  }));
  const std::string file =
      "[tenant.dora]\nenvironment = { name = \"dataset\", file = \"rows.jsonl\" }\n"
      "reward = { service = \"long\" }\ngroup_size = 2\nbatch_size = 4\nmax_steps = 1000000\n"
      "max_off_policy_steps = 2\nfilters = { zero_advantage = false }\n"
      "[tenant.dora.adapter]\nrank = 4\n";
  const std::string added = send("POST /v1/tenants", file);
  ASSERT_THAT(added, ::testing::StartsWith("HTTP/1.1 200")) << added;
  expect_it_trains("dora");
  EXPECT_FALSE(fs::is_empty(folder_ / "tenant_data"));
  ::kill(worker_of(run), SIGKILL);
  expect_it_trains("dora");
  // 503 while the worker follows the record.
  EXPECT_TRUE(wait_until(
      [&] { return send("DELETE /v1/tenants/dora?purge=1", "").starts_with("HTTP/1.1 200"); }));
  EXPECT_TRUE(wait_until([&] { return fs::is_empty(folder_ / "tenant_data"); }));
  end_well(run);
}

/// Others continue.
TEST_F(ServedRun, ATenantWhoseRewardCannotStartFailsAlone) {
  Program run(serve_words({source_path("examples/hosted/graph.toml"), "--out", folder_.string()}));
  wait_until_it_serves();
  ASSERT_EQ(tenant({"add", tenant_file("bob"), "--wait"}).code, 0);
  const std::string reward = (scratch_.path() / "reward.py").string();
  write_text(reward, "raise RuntimeError('no reward today')\n");
  const std::string python =
      tenant_file("alice", 1'000'000,
                  fmt::format("reward = {{ name = \"python\", file = \"{}\", python = \"{}\" }}\n",
                              reward, PRIMERL_PYTHON));
  ASSERT_EQ(tenant({"add", python}).code, 0);
  expect_state("alice", "failed");
  EXPECT_THAT(tenant({"show", "alice"}).out, HasSubstr("no reward today"));
  expect_it_trains("bob");
  end_well(run);
}

/// The record of a start that was resumed from checkpoints is followed from these checkpoints.
TEST_F(ServedRun, ATenantThatContinuedAtItsCheckpointIsFollowedFromThere) {
  {
    Program run(
        serve_words({source_path("examples/hosted/graph.toml"), "--out", folder_.string()}));
    wait_until_it_serves();
    ASSERT_EQ(tenant({"add", tenant_file("alice"), "--wait"}).code, 0);
    expect_it_trains("alice");
    end_well(run);
  }
  const size_t num_before = steps_of("alice").size();
  {
    Program again({"primerl-graph", "run", "--resume", folder_.string()});
    expect_it_trains("alice");
    const pid_t worker = worker_of(again);
    ::kill(again.pid(), SIGKILL);
    ::kill(worker, SIGKILL);
    (void)again.wait();
  }
  ASSERT_GT(steps_of("alice").size(), num_before);
  Program third({"primerl-graph", "run", "--resume", folder_.string()});
  expect_it_trains("alice");
  ::kill(third.pid(), SIGINT);
  const auto end = third.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  EXPECT_THAT(end.err, Not(HasSubstr("otherwise than recorded")));
  const std::vector<int64_t> steps = steps_of("alice");
  for (size_t i = 0; i < steps.size(); ++i)
    EXPECT_EQ(steps[i], static_cast<int64_t>(i) + 1) << "steps are neither lost nor made twice";
}

/// Joins and kills of a run: PRIMERL_SERVE_KILLS="200 100", or few.
struct KillsOfServe {
  int64_t joins = 3, kills = 1;
  static KillsOfServe wanted() {
    KillsOfServe size;
    if (const char* const text = std::getenv("PRIMERL_SERVE_KILLS"); text != nullptr)
      std::istringstream(text) >> size.joins >> size.kills;
    return size;
  }
};

/// Tenants that join and leave while the worker and the control plane are killed at random moments,
/// also during a join. Half of them make their last step, the others are removed.
class KilledServe : public ServedRun {
 protected:
  void start(bool resumes) {
    if (resumes) {
      run_.emplace(std::vector<std::string>{"primerl-graph", "run", "--resume", folder_.string()});
      return;
    }
    run_.emplace(serve_words({source_path("examples/hosted/graph.toml"), "--out", folder_.string(),
                              "--set", "graph.restarts_max=65536"}));
  }
  /// Kills the worker, or the control plane, which is started again.
  void kill_one() {
    ++num_kills_;
    if (random_.below(3) > 0) {
      if (const pid_t worker = worker_of(*run_); worker > 0) ::kill(worker, SIGKILL);
      return;
    }
    ::kill(run_->pid(), SIGKILL);
    (void)run_->wait();
    start(true);
  }
  /// Asks again until the run answers, because it may be killed and started meanwhile.
  ProgramEnd ask(const std::vector<std::string>& words) {
    ProgramEnd end;
    EXPECT_TRUE(waits_for("answer to a command", *run_, [&] {
      end = tenant(words);
      return end.code != 1;
    })) << end.err;
    return end;
  }
  /// Waits until `name` is in `state`, or until it is unknown if `state` is empty.
  ::testing::AssertionResult reaches(const std::string& name, const std::string& state) {
    return waits_for(name + " in state '" + state + "'", *run_, [&] {
      const auto shown = tenant({"show", name, "--json"});
      if (shown.code != 0) return state.empty() && shown.err.find(name) != std::string::npos;
      return !state.empty() &&
             parse_json(shown.out, "show").value().get_string("state").value() == state;
    });
  }
  /// The last step of each use of a name; every step is there once and in order.
  std::map<std::string, int64_t> expect_no_gap() const {
    std::map<std::string, int64_t> last;
    for (const Json& line : primerl::steps_of(folder_)) {
      int64_t& of_tenant = last[line.get_string("tenant").value()];
      EXPECT_EQ(*line.get_int("step"), of_tenant + 1) << line.get_string("tenant").value();
      of_tenant = *line.get_int("step");
    }
    return last;
  }
  /// The file of a use of a name has each rollout once, and those of every step.
  void expect_whole_file(const std::string& label, int64_t steps) const {
    const std::string file = std::regex_replace(label, std::regex("~"), "-") + ".jsonl";
    std::map<int64_t, int> trained;
    std::set<std::string> seen;
    for (const Json& line : lines_of(folder_ / "rollouts" / file)) {
      EXPECT_TRUE(seen.insert(*line.get_string("rollout")).second) << line.dump();
      if (*line.get_string("end") == "trained") ++trained[*line.get_int("step")];
    }
    for (int64_t step = 1; step <= steps; ++step) EXPECT_EQ(trained[step], 4) << label << step;
  }

  std::optional<Program> run_;
  RandomStream random_{29};
  int64_t num_kills_ = 0;
};

TEST_F(KilledServe, LosesNoStepOfTenantsThatComeAndGo) {
  const KillsOfServe size = KillsOfServe::wanted();
  constexpr int64_t kLastStep = 6;
  start(false);
  wait_until_it_serves();
  int64_t num_ended = 0;
  for (int64_t i = 0; i < size.joins && !HasFailure(); ++i) {
    const std::string name = fmt::format("t{}", i % 3);
    const bool ends = i % 2 == 0;
    const bool is_killed = num_kills_ * size.joins < size.kills * (i + 1);
    const std::string file = tenant_file(name, ends ? kLastStep : 1'000'000);
    if (is_killed && i % 4 == 3) {  // during the join
      Program adding({"primerl-graph", "tenant", "add", file, "--serve", folder_.string()});
      run_->listen_for(Duration::milliseconds(static_cast<int64_t>(random_.below(40))));
      kill_one();
      (void)adding.wait();
      if (tenant({"show", name}).code != 0) {
        ASSERT_EQ(ask({"add", file}).code, 0);
      }
    } else {
      const ProgramEnd added = ask({"add", file});
      ASSERT_EQ(added.code, 0) << added.err;
      if (is_killed) {
        run_->listen_for(Duration::milliseconds(static_cast<int64_t>(random_.below(300))));
        kill_one();
      }
    }
    if (ends) {
      ASSERT_TRUE(reaches(name, "ended"));
      ++num_ended;
    } else {
      ASSERT_TRUE(reaches(name, "training"));
    }
    const auto removed = ask({"remove", name});
    EXPECT_EQ(removed.code, 0) << removed.err;
    ASSERT_TRUE(reaches(name, ""));
  }
  EXPECT_GE(num_kills_, size.kills);
  end_well(*run_);
  int64_t num_whole = 0;
  for (const auto& [label, last] : expect_no_gap()) {
    expect_whole_file(label, last);
    num_whole += last == kLastStep ? 1 : 0;
  }
  EXPECT_GE(num_whole, num_ended) << "some that ended have fewer steps";
}

}  // namespace
}  // namespace primerl
