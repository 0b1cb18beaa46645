// `run --fork RUN@step=N`: another run from the middle of one, with other options.
#include <gmock/gmock.h>

#include <csignal>
#include <fstream>
#include <map>

#include "tests/cli/program.h"
#include "tests/e2e/run_files.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

/// Every file below a folder, with its content; no index of a trace, which any reader may make.
std::map<std::string, std::string> files_below(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().extension() != ".index")
      files[entry.path().lexically_relative(folder)] = *read_text_file(entry.path());
  return files;
}

/// A program in the place of primerl-worker.
std::string worker_script(const fs::path& file, const std::string& text) {
  std::ofstream(file) << "#!/bin/sh\n" << text << "\n";
  fs::permissions(file, fs::perms::owner_all);
  return "PRIMERL_WORKER=" + file.string();
}

class AFork : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = new ScratchFolder();
    const auto end = run_graph_program(
        scripted_run(run(), {"--max-steps", "12", "--set", "tenant.main.checkpoint_every=5",
                             "--set", "tenant.main.keep_last=0"}));
    ASSERT_EQ(end.code, 0) << end.err;
  }
  static void TearDownTestSuite() { delete scratch_; }
  static fs::path run() { return scratch_->path() / "run"; }
  /// A copy of the run without some of its checkpoints.
  static fs::path run_without(const std::string& name, const std::vector<int64_t>& steps) {
    const fs::path copy = scratch_->path() / name;
    fs::copy(run(), copy, fs::copy_options::recursive);
    for (const int64_t step : steps)
      fs::remove_all(copy / "checkpoints" / fmt::format("step_{}", step));
    return copy;
  }
  static void expect_same_checkpoint(const fs::path& folder, int64_t step) {
    const std::string name = fmt::format("checkpoints/step_{}", step);
    const auto made = files_below(folder / name);
    EXPECT_FALSE(made.empty()) << name;
    EXPECT_TRUE(made == files_below(run() / name)) << name;
  }
  static ProgramEnd fork(const std::string& what, std::vector<std::string> more = {}) {
    std::vector<std::string> words{"run", "--fork", what};
    words.insert(words.end(), more.begin(), more.end());
    return run_graph_program(words);
  }
  static inline ScratchFolder* scratch_ = nullptr;
};

TEST_F(AFork, BeginsAfterTheCheckpointAndLeavesTheOtherRunAlone) {
  const std::string before = *read_text_file(run() / "metrics.jsonl");
  const fs::path folder = scratch_->path() / "fork";
  const auto end = fork(run().string() + "@step=5",
                        {"--out", folder.string(), "--set", "tenant.main.max_off_policy_steps=0"});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("resuming after step 5"));
  const auto lines = lines_of(folder / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 7U);
  EXPECT_EQ(*lines.front().get_int("step"), 6);
  EXPECT_EQ(*lines.back().get_int("step"), 12);
  EXPECT_EQ(*read_text_file(run() / "metrics.jsonl"), before);
  const auto replay = run_graph_program({"replay", folder.string()});
  EXPECT_EQ(replay.code, 0) << replay.out << replay.err;
}

TEST_F(AFork, NeedsTheOtherRunNoMore) {
  const fs::path source = scratch_->path() / "source", folder = scratch_->path() / "alone";
  fs::copy(run(), source, fs::copy_options::recursive);
  ASSERT_EQ(fork(source.string() + "@step=5", {"--out", folder.string()}).code, 0);
  fs::remove_all(source);
  for (const char* depth : {"full", "control"}) {
    const auto replay = run_graph_program({"replay", folder.string(), "--depth", depth});
    EXPECT_EQ(replay.code, 0) << replay.out << replay.err;
  }
  EXPECT_TRUE(fs::exists(folder / "checkpoints" / "step_5" / "manifest.json"));
  const auto before =
      run_graph_program({"replay", folder.string(), "--depth", "control", "--from", "5"});
  EXPECT_EQ(before.code, 3) << before.out;
  EXPECT_THAT(before.err, HasSubstr("the record begins after training step 5"));
  const auto beyond =
      run_graph_program({"replay", folder.string(), "--depth", "control", "--from", "13"});
  EXPECT_EQ(beyond.code, 3) << beyond.out;
  EXPECT_THAT(beyond.err, HasSubstr("which ends with training step 12"));
}

TEST_F(AFork, BeginsAtACheckpointThatKeepEveryKept) {
  const fs::path sparse = scratch_->path() / "sparse", folder = scratch_->path() / "from_sparse";
  const auto end = run_graph_program(
      scripted_run(sparse, {"--max-steps", "13", "--set", "tenant.main.checkpoint_every=2", "--set",
                            "tenant.main.keep_last=1", "--set", "tenant.main.keep_every=3"}));
  ASSERT_EQ(end.code, 0) << end.err;
  const auto kept = fork(sparse.string() + "@step=6", {"--out", folder.string()});
  ASSERT_EQ(kept.code, 0) << kept.err;
  EXPECT_EQ(*lines_of(folder / "metrics.jsonl").front().get_int("step"), 7);
}

TEST_F(AFork, BeginsAtAStepWithoutACheckpoint) {
  const fs::path folder = scratch_->path() / "between";
  const auto end = fork(run().string() + "@step=7", {"--out", folder.string()});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("re-making the checkpoint of step 7 from step 5: 2 steps"));
  EXPECT_THAT(end.err, HasSubstr("resuming after step 7 from " + folder.string()));
  const auto lines = lines_of(folder / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(*lines.front().get_int("step"), 8);
  const auto replay = run_graph_program({"replay", folder.string()});
  EXPECT_EQ(replay.code, 0) << replay.out << replay.err;
}

/// From an older checkpoint and saved state, and from the first step.
TEST_F(AFork, MakesTheCheckpointThatTheRunHadWrittenToTheBit) {
  const fs::path older = run_without("older", {10, 12});
  const fs::path none = run_without("none_left", {5, 10, 12});
  for (const auto& entry : fs::directory_iterator(none / "trace"))
    if (entry.path().extension() == ".cut") fs::remove(entry.path());
  for (const auto& [source, step, from] : {std::tuple(older, 10, "from step 5: 5 steps"),
                                           std::tuple(older, 12, "from step 5: 7 steps"),
                                           std::tuple(none, 10, "from the first step: 10 steps")}) {
    const auto before = files_below(source);
    const fs::path folder =
        scratch_->path() / fmt::format("{}_{}", source.filename().string(), step);
    const auto end = fork(fmt::format("{}@step={}", source.string(), step),
                          {"--max-steps", "13", "--out", folder.string()});
    ASSERT_EQ(end.code, 0) << end.err;
    EXPECT_THAT(end.err, HasSubstr(from));
    expect_same_checkpoint(folder, step);
    EXPECT_TRUE(files_below(source) == before) << source << " has changed";
  }
}

TEST_F(AFork, MakesADamagedCheckpointAgain) {
  const fs::path damaged = run_without("damaged", {});
  const fs::path state = damaged / "checkpoints" / "step_10" / "learner" / "state.json";
  std::string text = *read_text_file(state);
  text.front() ^= 1;
  std::ofstream(state) << text;
  const fs::path folder = scratch_->path() / "mended";
  const auto end =
      fork(damaged.string() + "@step=10", {"--max-steps", "11", "--out", folder.string()});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("ignoring a damaged checkpoint"));
  EXPECT_THAT(end.err, HasSubstr("re-making the checkpoint of step 10 from step 5: 5 steps"));
  expect_same_checkpoint(folder, 10);
}

TEST_F(AFork, WithoutARecordNamesTheCheckpointsThatAreLeft) {
  const fs::path bare = run_without("bare", {10});
  fs::remove_all(bare / "trace");
  const auto end = fork(bare.string() + "@step=10");
  EXPECT_EQ(end.code, 2) << end.err;
  EXPECT_THAT(end.err, HasSubstr("has no checkpoint of step 10, and it cannot be made again: "));
  EXPECT_THAT(end.err, HasSubstr("it can be forked at its checkpoints: steps 5, 12"));
  EXPECT_THAT(end.err, HasSubstr("tenant.NAME.keep_every = K keeps every K-th checkpoint"));
}

TEST_F(AFork, WhoseRecordLacksTheGroupsIsRefused) {
  std::string text = *read_text_file(source_path("tests/cli/graphs/scripted.toml"));
  const auto replace = [&text](const std::string& from, const std::string& by) {
    text.replace(text.find(from), from.size(), by);
  };
  replace("\"rollout.group       -> trainer.group\"",
          "{ path = \"rollout.group -> trainer.group\", record = \"header\" }");
  replace("\"env.task            -> rollout.task\"",
          "{ path = \"env.task -> rollout.task\", record = \"header\" }");
  replace("../../../examples", source_path("examples"));
  const fs::path graph = scratch_->path() / "headers.toml", folder = scratch_->path() / "headers";
  std::ofstream(graph) << text;
  const auto made =
      run_graph_program({"run", graph.string(), "--out", folder.string(), "--max-steps", "5"});
  ASSERT_EQ(made.code, 0) << made.err;
  const auto end = fork(folder.string() + "@step=3");
  EXPECT_EQ(end.code, 2) << end.err;
  EXPECT_THAT(end.err, HasSubstr("its record does not keep what was trained on"));
  EXPECT_THAT(end.err,
              HasSubstr("the messages of 'rollout.group -> trainer.group' are not stored"));
  EXPECT_THAT(end.err, HasSubstr("it can be forked at its checkpoints: steps 4, 5"));
}

/// The worker never speaks: only Ctrl-C ends the wait.
TEST_F(AFork, ThatIsInterruptedWhileItMakesACheckpointLeavesNothing) {
  const fs::path here = scratch_->path() / "interrupted";
  fs::create_directories(here / "runs" / "before");
  fs::create_directory_symlink("before", here / "runs" / "latest");
  const fs::path mark = here / "worker_is_here";
  Program program({"primerl-graph", "run", "--fork", run().string() + "@step=7"},
                  {worker_script(here / "worker", "touch " + mark.string() + "\nsleep 1000")},
                  here.string());
  ASSERT_TRUE(wait_until([&] { return fs::exists(mark); }));
  ::kill(program.pid(), SIGINT);
  const auto end = program.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(here / "runs"))
    left.push_back(entry.path().filename().string());
  EXPECT_THAT(left, ::testing::UnorderedElementsAre("before", "latest"));
  EXPECT_EQ(fs::read_symlink(here / "runs" / "latest"), "before");
}

TEST_F(AFork, WhoseWorkerDiesSaysItsLastWordsAndLeavesNothing) {
  const fs::path folder = scratch_->path() / "died";
  const std::string worker =
      worker_script(scratch_->path() / "worker", "echo no memory here >&2\nexit 3");
  const auto end = run_graph_program(
      {"run", "--fork", run().string() + "@step=7", "--out", folder.string()}, {worker});
  EXPECT_EQ(end.code, 1) << end.err;
  EXPECT_THAT(end.err, HasSubstr("re-making the checkpoint of step 7"));
  EXPECT_THAT(end.err, HasSubstr("exited with code 3"));
  EXPECT_THAT(end.err, HasSubstr("no memory here"));
  EXPECT_THAT(end.err, HasSubstr("it can be forked at its checkpoints: steps 5, 10, 12"));
  EXPECT_FALSE(fs::exists(folder));
}

TEST_F(AFork, FromWhatIsNotThereIsRefusedWithWhatThereIs) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {run().string() + "@step=13",
       "step 13 is beyond '" + run().string() + "', which has taken 12 steps"},
      {run().string() + "@step=13", "steps 1 to 12 can be forked"},
      {run().string() + "@step=0", "names no step of a run"},
      {run().string() + "@step=5x", "names no step of a run"},
      {run().string(), "write it as in --fork runs/latest@step=40"},
      {(scratch_->path() / "none").string() + "@step=5", "is no run folder"}};
  for (const auto& [from, what] : cases) {
    const auto end = fork(from);
    EXPECT_EQ(end.code, 2) << end.err;
    EXPECT_THAT(end.err, HasSubstr(what));
  }
  const auto both = fork(run().string() + "@step=5", {"--resume", run().string()});
  EXPECT_THAT(both.err, HasSubstr("--fork begins a new run: leave --resume out"));
}

}  // namespace
}  // namespace primerl
