// The files of `cmake --install` are enough to build, test and run examples/plugin, a separate
// repository, with plain CMake.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/e2e/run_files.h"

namespace primerl {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class Installed : public testing::Test {
 protected:
  /// Runs a program that must succeed.
  static std::string run(std::vector<std::string> words) {
    const std::string what = fmt::format("{}", fmt::join(words, " "));
    const auto end = Program(std::move(words)).wait();
    EXPECT_EQ(end.code, 0) << what << "\n" << end.out << end.err;
    return end.out;
  }
  /// Runs the installed program in the repository.
  ProgramEnd program(std::vector<std::string> words) const {
    words.insert(words.begin(), prefix_ + "/bin/primerl-graph");
    return Program(std::move(words), {}, repository_).wait();
  }

  const ScratchFolder scratch_;
  const std::string prefix_ = scratch_.path() / "prefix";
  const std::string repository_ = scratch_.path() / "word_games";
};

TEST_F(Installed, IsEnoughForASeparateRepository) {
  run({PRIMERL_CMAKE, "--install", PRIMERL_BINARY_DIR, "--prefix", prefix_});
  run({prefix_ + "/bin/primerl-graph", "init", "--template", "plugin", repository_});
  const std::string build = repository_ + "/build";
  run({PRIMERL_CMAKE, "-S", repository_, "-B", build, "-DCMAKE_PREFIX_PATH=" + prefix_});
  run({PRIMERL_CMAKE, "--build", build, "--parallel", "2"});
  // The repository's own test of its actor.
  EXPECT_THAT(run({PRIMERL_CTEST, "--test-dir", build, "--output-on-failure"}),
              HasSubstr("100% tests passed"));
  // A graph with the plugin is checked and rehearsed, and the plugin's options are checked like
  // built-in ones.
  const auto checked = program({"check", "graph.toml"});
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_THAT(checked.out + checked.err,
              HasSubstr("8 nodes, 24 edges, 1 tenant; rehearsed 3 steps"));
  const auto length = program({"check", "graph.toml", "--set", "tenant.main.environment.length=1"});
  EXPECT_EQ(length.code, 2);
  EXPECT_THAT(length.err, HasSubstr("'length' of environment 'rotate_word' is 1"));
  const auto policy =
      program({"check", "graph.toml", "--set", "node.router.policy=\"to_choices\""});
  EXPECT_THAT(policy.err, HasSubstr("did you mean 'two_choices'?"));
  const auto objective =
      program({"check", "graph.toml", "--set", "resource.learner.loss.kind=\"soft_gates\""});
  EXPECT_THAT(objective.err, HasSubstr("did you mean 'soft_gate'?"));
  const auto option =
      program({"check", "graph.toml", "--set", "resource.learner.loss.kl_weight=0.1"});
  EXPECT_EQ(option.code, 2);
  EXPECT_THAT(option.err, HasSubstr("objective 'soft_gate' has no option 'kl_weight'"));
#if PRIMERL_HAS_TORCH
  // It trains and replays.
  const std::string folder = scratch_.path() / "run";
  const auto trained = program({"run", "graph.toml", "--max-steps", "3", "--out", folder});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(expect_steps_and_rollouts_once(folder), 3);
  const auto replay = program({"replay", folder});
  EXPECT_EQ(replay.code, 0) << replay.err;
  EXPECT_THAT(replay.out, HasSubstr("identical"));
#endif
}

}  // namespace
}  // namespace primerl
