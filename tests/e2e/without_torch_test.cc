// The features of a build with -DPRIMERL_TORCH=OFF: it checks, shows, runs scripted engines, and
// replays records of other builds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/run_files.h"

namespace primerl {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

ProgramEnd run_without_torch(std::vector<std::string> words) {
  return run_graph_program(std::move(words), {"PRIMERL_WORKER=" PRIMERL_WORKER_WITHOUT_TORCH});
}

TEST(WithoutTorch, AScriptedGraphRunsToItsEndAndReplaysInFull) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  const auto run = run_without_torch(scripted_run(folder));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run_end(folder), "finished");
  const auto replay = run_without_torch({"replay", folder.string()});
  EXPECT_EQ(replay.code, 0) << replay.err;
  EXPECT_THAT(replay.out, HasSubstr("identical"));
}

TEST(WithoutTorch, AModelIsRefusedWithWhatThereIs) {
  ScratchFolder scratch;
  const auto run = run_without_torch({"run", source_path("examples/reverse_text/graph.toml"),
                                      "--out", (scratch.path() / "run").string()});
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, HasSubstr("this primerl-worker has no engine with backend 'torch'"));
  EXPECT_THAT(run.err, HasSubstr("it has: engine scripted"));
  const auto model = run_without_torch(
      {"generate", "--model", source_path("examples/reverse_text/model"), "--prompt", "r:ab>"});
  EXPECT_EQ(model.code, 2);
  EXPECT_THAT(model.err, HasSubstr("built without libtorch"));
}

#if PRIMERL_HAS_TORCH
TEST(WithoutTorch, ARunOfAModelReplaysFromItsRecord) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  const auto run = run_graph_program({"run", source_path("examples/reverse_text/graph.toml"),
                                      "--out", folder.string(), "--max-steps", "3"});
  ASSERT_EQ(run.code, 0) << run.err;
  const auto replay = run_without_torch({"replay", folder.string(), "--depth", "control"});
  EXPECT_EQ(replay.code, 0) << replay.err;
  EXPECT_THAT(replay.out, HasSubstr("identical"));
}
#endif

}  // namespace
}  // namespace primerl
