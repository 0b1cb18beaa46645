// A disk that is full at one file of a run: the next start follows the record and loses nothing.
#include <gmock/gmock.h>

#include <csignal>

#include "tests/cli/program.h"
#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"
#include "tests/ends/faulty_disk.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

bool has_cut(const fs::path& run) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(run / "trace", ignored))
    if (entry.path().extension() == ".cut") return true;
  return false;
}

/// A full disk is no fault of the record: the next start follows it. The resumed start begins from
/// a cut, which it writes as number 0.
TEST(AFullDisk, ThatStopsAResumeLeavesItsRecordToTheNext) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  {
    auto words =
        scripted_run(folder, {"--max-steps", "1000000", "--set", "graph.restarts_max=0", "--set",
                              "tenant.main.checkpoint_every=5", "--set",
                              "trace.cut_every=\"100ms\"", "--set", "trace.cut_steps=1000"});
    words.insert(words.begin(), "primerl-graph");
    Program run(words);
    ASSERT_TRUE(wait_until([&] {
      return !run.is_running() || (num_lines(folder / "metrics.jsonl") >= 12 && has_cut(folder));
    }));
    ASSERT_TRUE(run.is_running());
    ::kill(worker_of(run), SIGKILL);
    ASSERT_EQ(run.wait().code, 1);
  }
  FaultyDisk disk(scratch.path() / "disk", folder, {.files = "trace/*.0.cut*"});
  const std::string last = std::to_string(num_lines(folder / "metrics.jsonl") + 40);
  const std::vector<std::string> words{"run", "--resume", folder.string(), "--max-steps", last};
  const auto full = run_graph_program(words, disk.variables());
  EXPECT_GT(disk.num_refused(), 0U);
  EXPECT_EQ(full.code, 1) << full.err;
  EXPECT_THAT(full.err, HasSubstr("No space left on device"));
  EXPECT_THAT(full.err, Not(HasSubstr("from the checkpoint only")));
  const auto end = run_graph_program(words);
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("the run is live"));
  EXPECT_EQ(std::to_string(expect_steps_and_rollouts_once(folder)), last);
  expect_replays(folder);
}

std::vector<std::string> checkpoint_of_every_step() {
  return {"--max-steps",          "1000000", "--set",
          "graph.restarts_max=0", "--set",   "tenant.main.checkpoint_every=1"};
}

/// A run on a disk with this fault, which ends it. It is resumed on a disk with space and must have
/// everything.
void expect_nothing_lost(const fs::path& folder, std::vector<std::string> words,
                         const DiskFault& fault) {
  FaultyDisk disk(folder.parent_path() / "disk", folder, fault);
  const auto full = run_graph_program(std::move(words), disk.variables());
  ASSERT_EQ(full.code, 1) << full.err;
  EXPECT_THAT(full.err, HasSubstr("No space left on device"));
  const std::string last = std::to_string(num_lines(folder / "metrics.jsonl") + 30);
  const auto end = run_graph_program({"run", "--resume", folder.string(), "--max-steps", last});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("the run is live")) << full.err;
  EXPECT_EQ(std::to_string(expect_steps_and_rollouts_once(folder)), last) << full.err << end.err;
  expect_rollouts_of_every_step(folder);
  const auto verify = run_graph_program({"trace", "verify", folder.string()});
  EXPECT_EQ(verify.code, 0) << verify.out;
  expect_replays(folder);
}

// A checkpoint that is newer than the refused line would let the resumed run begin after it.
TEST(AFullDisk, AtTheLineOfAStepLosesNoStep) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  expect_nothing_lost(folder, scripted_run(folder, checkpoint_of_every_step()),
                      {.files = "logs/main.steps.jsonl", .calls_before = 4});
}

// The next line could be written again.
TEST(AFullDisk, AtTheLineOfTheFirstStepLosesNoStepIfThereIsSpaceAgain) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  expect_nothing_lost(folder, scripted_run(folder, checkpoint_of_every_step()),
                      {.files = "logs/main.steps.jsonl", .refusals_max = 1});
}

// Another process commits checkpoints until it is told that the run ends.
TEST(AFullDisk, AtARolloutLosesNoRolloutThatTrained) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  auto words = scripted_run(folder, checkpoint_of_every_step());
  words[1] = source_path("tests/cli/graphs/split.toml");
  expect_nothing_lost(folder, std::move(words), {.files = "rollouts.jsonl", .calls_before = 40});
}

// The other processes leave a record without a step. Nothing is lost with it, so no note speaks of
// it.
TEST(AFullDisk, AtTheStartOfOneProcessLeavesTheCheckpointToTheNextStart) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  auto words = scripted_run(folder, {"--max-steps", "8"});
  words[1] = source_path("tests/cli/graphs/split.toml");
  ASSERT_EQ(run_graph_program(std::move(words)).code, 0);
  const FaultyDisk disk(scratch.path() / "disk", folder, {.files = "trace/inference#0*"});
  const std::vector<std::string> resume{"run", "--resume", folder.string(), "--max-steps", "12"};
  const auto full = run_graph_program(resume, disk.variables());
  EXPECT_EQ(full.code, 1) << full.err;
  EXPECT_THAT(full.err, HasSubstr("No space left on device"));
  const auto end = run_graph_program(resume);
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("resuming after step 8"));
  EXPECT_THAT(end.err, Not(HasSubstr("from the checkpoint only")));
  EXPECT_EQ(expect_steps_and_rollouts_once(folder), 12);
}

// Nothing is recorded after the refused payload, so state that is saved later is of no use.
TEST(AFullDisk, AtAPayloadOfTheRecordLosesNoStep) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  expect_nothing_lost(
      folder, run_with_blobs(scratch.path() / "graph.toml", folder, checkpoint_of_every_step()),
      {.files = "trace/blobs*", .calls_before = 25});
}

}  // namespace
}  // namespace primerl
