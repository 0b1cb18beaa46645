// `run --fork RUN@step=N`: a new run from the middle of another, with other options.
#include <gmock/gmock.h>

#include "tests/cli/program.h"
#include "tests/e2e/run_files.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

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
  const auto removed = fork(sparse.string() + "@step=8");
  EXPECT_EQ(removed.code, 2) << removed.err;
  EXPECT_THAT(removed.err, HasSubstr("it can be forked at steps 6, 12, 13"));
  EXPECT_THAT(removed.err, HasSubstr("tenant.NAME.keep_every = K keeps every K-th checkpoint"));
  const auto kept = fork(sparse.string() + "@step=6", {"--out", folder.string()});
  ASSERT_EQ(kept.code, 0) << kept.err;
  EXPECT_EQ(*lines_of(folder / "metrics.jsonl").front().get_int("step"), 7);
}

TEST_F(AFork, IsNotOfferedAnIncompleteCheckpoint) {
  const fs::path damaged = scratch_->path() / "damaged";
  fs::copy(run(), damaged, fs::copy_options::recursive);
  fs::remove(damaged / "checkpoints" / "step_10" / "manifest.json");
  const auto end = fork(damaged.string() + "@step=10");
  EXPECT_EQ(end.code, 2) << end.err;
  EXPECT_THAT(end.err, HasSubstr("has no checkpoint of step 10"));
  EXPECT_THAT(end.err, HasSubstr("it can be forked at steps 5, 12"));
}

TEST_F(AFork, FromWhatIsNotThereIsRefusedWithWhatThereIs) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {run().string() + "@step=7", "has no checkpoint of step 7"},
      {run().string() + "@step=7", "it can be forked at steps 5, 10, 12"},
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
