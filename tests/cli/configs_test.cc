// The graphs of configs/ are valid and fit together, on a machine without a CUDA device and without
// the bytes of weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/cli/hollow_model.h"
#include "tests/cli/program.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
namespace fs = std::filesystem;

/// The complete runs, sorted by name.
std::vector<fs::path> complete_runs() {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(source_path("configs")))
    if (entry.path().extension() == ".toml" && entry.path().filename() != "loop.toml")
      found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

class Configs : public testing::Test {
 protected:
  ProgramEnd ask(std::vector<std::string> words) const {
    words.insert(words.end(), {"--set", "model.policy.path=" + model_.string()});
    return run_graph_program(words);
  }

  const ScratchFolder scratch_;
  const fs::path model_ = write_hollow_model(scratch_.path() / "model");
};

TEST_F(Configs, EveryCompleteRunIsCheckedWithoutAFinding) {
  ASSERT_GE(complete_runs().size(), 2U);
  for (const fs::path& graph : complete_runs()) {
    const auto end = ask({"check", graph.string()});
    EXPECT_EQ(end.code, 0) << graph << "\n" << end.err;
    EXPECT_THAT(end.err, Not(HasSubstr("warning"))) << graph;
  }
}

TEST_F(Configs, OneCardHasEngineAndLearnerInOneProcess) {
  const auto end = ask({"show", "--plan", source_path("configs/qwen3_0.6b_one_gpu.toml")});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("process gpu on cuda:0"));
  EXPECT_THAT(end.out, HasSubstr("process driver on cpu"));
  EXPECT_THAT(end.out, Not(HasSubstr("cuda:1")));
}

TEST_F(Configs, TwoCardsHaveOneEach) {
  const auto end = ask({"show", "--plan", source_path("configs/qwen3_0.6b_two_gpus.toml")});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("process training on cuda:0"));
  EXPECT_THAT(end.out, HasSubstr("process inference on cuda:1"));
}

TEST_F(Configs, TwoCardsAreMoreByTwoSettings) {
  const auto end = ask({"show", "--plan", source_path("configs/qwen3_0.6b_two_gpus.toml"), "--set",
                        "place.inference.replicas=3", "--set",
                        "place.inference.devices=[\"cuda:1\", \"cuda:2\", \"cuda:3\"]"});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("process inference#2 on cuda:3"));
}

}  // namespace
}  // namespace primerl
