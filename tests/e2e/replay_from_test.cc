// `replay --from`: a long record is replayed from saved state in its middle.
#include <gmock/gmock.h>

#include <csignal>
#include <fstream>

#include "runtime/trace/cut_file.h"
#include "tests/cli/program.h"
#include "tests/e2e/run_files.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

/// Four processes that save their state often; the run ends in order after `num_steps` training
/// steps.
void run_split(const fs::path& folder, size_t num_steps) {
  Program run({"primerl-graph", "run", source_path("tests/cli/graphs/split.toml"), "--out",
               folder.string(), "--max-steps", "1000000", "--set",
               "resource.engine.backend=\"scripted\"", "--set",
               "resource.learner.backend=\"scripted\"", "--set", "tenant.main.checkpoint_every=10",
               "--set", "trace.cut_every=\"300ms\""});
  const auto has_cuts = [&](const std::string& process) {
    return list_cuts(folder / "trace", process).size() >= 3;
  };
  ASSERT_TRUE(waits_for("saved states of all processes", run, [&] {
    return num_lines(folder / "metrics.jsonl") >= num_steps && has_cuts("driver") &&
           has_cuts("inference#0") && has_cuts("inference#1") && has_cuts("training");
  }));
  ::kill(run.pid(), SIGINT);
  ASSERT_EQ(run.wait().code, 130);
}

uint64_t steps_of(const ProgramEnd& replay) {
  const auto report = parse_json(replay.out, "a report");
  EXPECT_TRUE(report.ok()) << replay.out << replay.err;
  return report.ok() ? static_cast<uint64_t>(*report->get_int("steps")) : 0;
}

class AReplayFrom : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = new ScratchFolder();
    run_split(folder(), 60);
  }
  static void TearDownTestSuite() { delete scratch_; }
  static fs::path folder() { return scratch_->path() / "run"; }
  static ProgramEnd replay(std::vector<std::string> more) {
    std::vector<std::string> words{"replay", folder().string()};
    words.insert(words.end(), more.begin(), more.end());
    return run_graph_program(words);
  }
  /// "router:2345", the last recorded step.
  static std::string last_step(const std::string& node) {
    const auto report = replay({"--depth", "control", "--node", node, "--json"});
    const auto json = parse_json(report.out, "a report");
    if (json.ok())
      for (const Json& group : json->find("groups")->as_array())
        if (*group.get_string("group") == node)
          return fmt::format("{}:{}", node, *group.get_int("recorded_steps"));
    return {};
  }
  static inline ScratchFolder* scratch_ = nullptr;
};

TEST_F(AReplayFrom, ATrainingStepPlaysTheRestOfAllProcesses) {
  const auto whole = replay({"--depth", "control", "--json"});
  ASSERT_EQ(whole.code, 0) << whole.out << whole.err;
  uint64_t before = steps_of(whole);
  const size_t last = num_lines(folder() / "metrics.jsonl");
  for (const size_t from : {last / 2, last * 3 / 4, last}) {
    const auto part = replay({"--depth", "control", "--from", std::to_string(from), "--json"});
    ASSERT_EQ(part.code, 0) << part.out << part.err;
    EXPECT_LE(steps_of(part), before) << from;
    before = steps_of(part);
  }
  EXPECT_LT(before, steps_of(whole));
}

TEST_F(AReplayFrom, PlaysEveryProcessOfARunThatEndedInOrder) {
  const auto whole = replay({"--depth", "control"});
  EXPECT_THAT(whole.out, Not(HasSubstr("is taken from the record")));
}

TEST_F(AReplayFrom, AStepOfANodePlaysThatNodeAlone) {
  const auto whole = replay({"--depth", "control", "--node", "router", "--json"});
  const auto part =
      replay({"--depth", "control", "--node", "router", "--from", last_step("router"), "--json"});
  ASSERT_EQ(part.code, 0) << part.out << part.err;
  EXPECT_GT(steps_of(part), 0U);
  EXPECT_LT(steps_of(part), steps_of(whole));
}

TEST_F(AReplayFrom, BeforeAnythingWasSavedBeginsWithTheFirstStep) {
  const auto part = replay({"--depth", "control", "--from", "1"});
  ASSERT_EQ(part.code, 0) << part.out << part.err;
  EXPECT_THAT(part.out, HasSubstr("the replay begins with the first step"));
}

// Other saved states must stay usable, and a replay that needs none must still work.
TEST_F(AReplayFrom, ADamagedStateTakesTheOlderOne) {
  const fs::path damaged = scratch_->path() / "damaged";
  fs::copy(folder(), damaged, fs::copy_options::recursive);
  for (const char* process : {"training", "driver", "inference#0", "inference#1"})
    std::ofstream(list_cuts(damaged / "trace", process).at(1), std::ios::app) << "more";
  const std::string last = std::to_string(num_lines(damaged / "metrics.jsonl"));
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{}, {"--from", last}}) {
    std::vector<std::string> words{"replay", damaged.string(), "--depth", "control"};
    words.insert(words.end(), more.begin(), more.end());
    const auto end = run_graph_program(words);
    EXPECT_EQ(end.code, 0) << end.out << end.err;
    EXPECT_THAT(end.out, HasSubstr("identical"));
    EXPECT_EQ(end.out.find("saved state is passed over") != std::string::npos, !more.empty());
  }
}

TEST_F(AReplayFrom, AStopBeforeTheBeginningIsRefused) {
  const auto end = replay(
      {"--depth", "control", "--node", "router", "--from", last_step("router"), "--stop-at", "2"});
  EXPECT_EQ(end.code, 3) << end.out;
  EXPECT_THAT(end.err, HasSubstr("the replay begins with step"));
}

TEST_F(AReplayFrom, AStepThatTheRecordDoesNotHaveIsRefused) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"1000000", "--from 1000000 is beyond the record, which ends with training step "},
      {"5x", "--from '5x' names no step"},
      {"0", "training steps are counted from 1"},
      {"router:99999999", "--from router:99999999 is beyond the record: 'router' has "},
      {"router", "--from 'router' names no step"},
      {"roter:5", "did you mean 'router'?"}};
  for (const auto& [from, what] : cases) {
    const auto end = replay({"--depth", "control", "--from", from});
    EXPECT_EQ(end.code, 3) << end.out;
    EXPECT_THAT(end.err, HasSubstr(what));
  }
  const auto full = replay({"--from", "15"});
  EXPECT_EQ(full.code, 3) << full.out;
  EXPECT_THAT(full.err, HasSubstr("--from needs --depth control"));
}

}  // namespace
}  // namespace primerl
