// A person pauses a run that goes on and lets it go: no rollout is lost, the record has it, and
// whoever asks for what cannot be is told why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class PausedRun : public ::testing::Test {
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
  ProgramEnd say(std::vector<std::string> words) const {
    words.insert(words.begin() + 1, folder_.string());
    return run_graph_program(std::move(words), variables());
  }
  std::string table() const { return say({"ps"}).out; }
  void wait_for_table(const std::string& text) const {
    // Reports come once a second: CTest's limit ends a wait for one that never comes.
    while (table().find(text) == std::string::npos) {
    }
  }
  /// No line is written while it stands still: twice the same after a look at every process.
  size_t num_rollouts() const { return num_lines(folder_ / "rollouts.jsonl"); }
  void expect_none_failed() const {
    for (const Json& line : lines_of(folder_ / "rollouts.jsonl"))
      EXPECT_NE(*line.get_string("end"), "failed") << line.dump();
  }

  const ScratchFolder scratch_;
  const std::filesystem::path folder_ = scratch_.path() / "run";
};

void expect_paused(const ProgramEnd& said, const std::string& engines) {
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_THAT(said.out, HasSubstr(engines));
}

TEST_F(PausedRun, StandsStillForItsOwnersAndReplaysWithTheSamePauses) {
  Program run(words("scripted.toml", {"--max-steps", "1000000000"}), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  expect_paused(say({"pause", "--owner", "anna", "--lease", "1h"}),
                "paused for 1h by 'anna': decode");
  expect_paused(say({"pause", "--owner", "bert"}), "paused for 10m by 'bert': decode");
  expect_paused(say({"pause", "--owner", "bert"}), "paused for 10m by 'bert': decode");
  wait_for_table("engines that stand still: ");
  EXPECT_THAT(table(), AllOf(HasSubstr("paused by 'anna' for another "),
                             HasSubstr("paused by 'bert' for another ")));
  const auto status = say({"ps", "--json"});
  EXPECT_THAT(status.out, HasSubstr("\"held_engines\""));
  const size_t before = num_rollouts();
  expect_paused(say({"unpause", "--owner", "anna"}), "'anna' holds no longer: decode");
  EXPECT_THAT(table(), AllOf(Not(HasSubstr("'anna'")), HasSubstr("'bert'")));
  EXPECT_EQ(num_rollouts(), before) << "bert holds it";
  expect_paused(say({"unpause", "--owner", "bert"}), "'bert' holds no longer: decode");
  expect_paused(say({"unpause", "--owner", "bert"}), "'bert' holds no longer: decode");
  while (num_rollouts() < before + 100) {
  }
  EXPECT_THAT(table(), Not(HasSubstr("paused")));
  ::kill(run.pid(), SIGINT);
  EXPECT_EQ(run.wait().code, 130);
  expect_none_failed();
  expect_steps_and_rollouts_once(folder_);
  expect_replays(folder_);
  const auto steps = run_graph_program(
      {"trace", "ls", folder_.string(), "--node", "decode", "--limit", "1000000"});
  const size_t found = steps.out.find(" command ");
  ASSERT_NE(found, std::string::npos);
  const size_t line = steps.out.rfind('\n', found) + 1;
  const size_t name = steps.out.find("decode:", line);
  const std::string step = steps.out.substr(name, steps.out.find(' ', name) - name);
  const auto shown = run_graph_program({"trace", "cat", folder_.string(), step});
  EXPECT_THAT(shown.out, AllOf(HasSubstr("EngineHold"), HasSubstr("anna"))) << step;
}

/// A pause may be longer than what counts as a standstill, and ends with its lease.
TEST_F(PausedRun, IsNoStallAndEndsWithItsLease) {
  Program run(
      words("scripted.toml", {"--max-steps", "1000000000", "--set", "graph.stall_after=\"2s\""}),
      variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  expect_paused(say({"pause", "--lease", "6s"}), "paused for 6s by 'operator': decode");
  ASSERT_TRUE(run.wait_until_said("the lease of 'operator' on the engine has ended by itself"));
  const size_t before = num_rollouts();
  while (num_rollouts() < before + 100) {
  }
  ::kill(run.pid(), SIGINT);
  EXPECT_EQ(run.wait().code, 130);
  expect_none_failed();
  expect_replays(folder_);
}

TEST_F(PausedRun, ADrainLetsItGo) {
  Program run(words("scripted.toml", {"--max-steps", "1000000000"}), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  expect_paused(say({"pause", "--lease", "1h"}), "paused");
  ::kill(run.pid(), SIGINT);
  EXPECT_EQ(run.wait().code, 130);
  expect_none_failed();
  expect_replays(folder_);
}

TEST_F(PausedRun, OfSeveralProcessesStandsStillInAllOfThem) {
  Program run(words("split.toml", {"--max-steps", "1000000000"}), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  expect_paused(say({"pause"}), "decode#0, decode#1");
  wait_for_table("engines that stand still: ");
  expect_paused(say({"unpause"}), "decode#0, decode#1");
  const size_t before = num_rollouts();
  while (num_rollouts() < before + 100) {
  }
  ::kill(run.pid(), SIGINT);
  EXPECT_EQ(run.wait().code, 130);
  expect_none_failed();
  expect_replays(folder_);
}

/// A process that died has a fresh engine: it is told of the hold, and of its end.
TEST_F(PausedRun, AProcessThatIsStartedAgainStandsStillToo) {
  Program run(words("split.toml", {"--max-steps", "1000000000"}), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  expect_paused(say({"pause"}), "decode#0, decode#1");
  const pid_t worker = worker_named(run, "inference#1");
  ASSERT_GT(worker, 0);
  ::kill(worker, SIGKILL);
  ASSERT_TRUE(run.wait_until_said("it is started again as incarnation 2"));
  // Both engines again, of which one is new.
  while (true) {
    const auto status = parse_json(say({"ps", "--json"}).out, "ps --json");
    ASSERT_TRUE(status.ok());
    const Json* held = status->find("held_engines");
    if (held != nullptr && held->as_array().size() == 2) break;
  }
  expect_paused(say({"unpause"}), "decode#0, decode#1");
  const size_t before = num_rollouts();
  while (num_rollouts() < before + 100) {
  }
  ::kill(run.pid(), SIGINT);
  EXPECT_EQ(run.wait().code, 130);
}

/// The hold is part of the record that the next start follows; so is what lets go of it.
TEST_F(PausedRun, AKilledRunIsTakenUpWithItsHold) {
  {
    Program run(
        words("scripted.toml", {"--max-steps", "1000000000", "--set", "graph.restarts_max=0"}),
        variables());
    ASSERT_TRUE(run.wait_until_said("reward"));
    expect_paused(say({"pause", "--lease", "1h"}), "decode");
    ::kill(run.pid(), SIGKILL);
    (void)run.wait();
  }
  const auto gone = say({"pause"});
  EXPECT_EQ(gone.code, 1);
  EXPECT_THAT(gone.err, AllOf(HasSubstr("its control plane is gone"), HasSubstr("run --resume")));
  Program again({"primerl-graph", "run", "--resume", folder_.string()}, variables());
  ASSERT_TRUE(again.wait_until_said("going on live"));
  wait_for_table("engines that stand still: ");
  const size_t before = num_rollouts();
  expect_paused(say({"unpause"}), "'operator' holds no longer: decode");
  while (num_rollouts() < before + 100) {
  }
  ::kill(again.pid(), SIGINT);
  EXPECT_EQ(again.wait().code, 130);
  expect_steps_and_rollouts_once(folder_);
  expect_replays(folder_);
}

TEST_F(PausedRun, RefusesTheSeventeenthOwnerByTheNamesOfTheOthers) {
  Program run(words("scripted.toml", {"--max-steps", "1000000000"}), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  for (int i = 0; i < 16; ++i)
    expect_paused(say({"pause", "--owner", fmt::format("owner{:02}", i)}), "decode");
  const auto refused = say({"pause", "--owner", "one more"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr("16 owners hold it already"), HasSubstr("owner00, owner01")));
  expect_paused(say({"pause", "--owner", "owner15"}), "decode");
  EXPECT_TRUE(run.is_running());
  ::kill(run.pid(), SIGINT);
  EXPECT_EQ(run.wait().code, 130);
  expect_replays(folder_);
}

TEST_F(PausedRun, SaysWhatIsWrongWithAQuestion) {
  const auto nowhere = say({"pause"});
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_THAT(nowhere.err, HasSubstr("no run folder"));
  const auto long_lease = say({"pause", "--lease", "61m"});
  EXPECT_EQ(long_lease.code, 3);
  EXPECT_THAT(long_lease.err, HasSubstr("a lease is above 0 and at most 3600 s"));
  EXPECT_EQ(say({"pause", "--lease", "0s"}).code, 3);
  EXPECT_EQ(say({"pause", "--lease", "-1s"}).code, 3);
  const auto odd_lease = say({"pause", "--lease", "600"});
  EXPECT_EQ(odd_lease.code, 3);
  EXPECT_THAT(odd_lease.err, HasSubstr("--lease"));
  const auto long_name = say({"unpause", "--owner", std::string(65, 'a')});
  EXPECT_EQ(long_name.code, 3);
  EXPECT_THAT(long_name.err, HasSubstr("1 to 64 bytes are valid"));
  EXPECT_EQ(say({"pause", "--owner", ""}).code, 3);
  Program run(words("scripted.toml", {"--max-steps", "3"}), variables());
  EXPECT_EQ(run.wait().code, 0);
  const auto ended = say({"unpause"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("has ended (finished"), HasSubstr("no engine any more")));
}

}  // namespace
}  // namespace primerl
