// What `cmake --install` leaves is enough to build, test and run examples/plugin, a repository of
// its own, with plain CMake.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/e2e/run_files.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

/// Both installed and built once, for all tests.
class Installed : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = std::make_unique<ScratchFolder>();
    const auto installed =
        Program({PRIMERL_CMAKE, "--install", PRIMERL_BINARY_DIR, "--prefix", prefix()}).wait();
    ASSERT_EQ(installed.code, 0) << installed.err;
    const auto copied =
        Program({prefix() + "/bin/primerl-graph", "init", "--template", "plugin", repository()})
            .wait();
    ASSERT_EQ(copied.code, 0) << copied.err;
    const auto configured = Program({PRIMERL_CMAKE, "-S", repository(), "-B",
                                     repository() + "/build", "-DCMAKE_PREFIX_PATH=" + prefix()})
                                .wait();
    ASSERT_EQ(configured.code, 0) << configured.out << configured.err;
    const auto built =
        Program({PRIMERL_CMAKE, "--build", repository() + "/build", "--parallel", "2"}).wait();
    ASSERT_EQ(built.code, 0) << built.out << built.err;
  }
  static void TearDownTestSuite() { scratch_.reset(); }

  static std::string prefix() { return scratch_->path() / "prefix"; }
  static std::string repository() { return scratch_->path() / "word_games"; }
  /// The installed program, in the repository.
  static ProgramEnd program(std::vector<std::string> words) {
    words.insert(words.begin(), prefix() + "/bin/primerl-graph");
    return Program(std::move(words), {}, repository()).wait();
  }

  static std::unique_ptr<ScratchFolder> scratch_;
};
std::unique_ptr<ScratchFolder> Installed::scratch_;

TEST_F(Installed, AnActorIsTestedByHand) {
  const auto end =
      Program({PRIMERL_CTEST, "--test-dir", repository() + "/build", "--output-on-failure"}).wait();
  EXPECT_EQ(end.code, 0) << end.out << end.err;
  EXPECT_THAT(end.out, HasSubstr("100% tests passed"));
}

TEST_F(Installed, AGraphWithAPluginIsCheckedAndRehearsed) {
  const auto end = program({"check", "graph.toml"});
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out + end.err, HasSubstr("8 nodes, 24 edges, 1 tenant; rehearsed 3 steps"));
  const auto wrong = program({"check", "graph.toml", "--set", "tenant.main.environment.length=1"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("'length' of environment 'rotate_word' is 1"));
  const auto policy =
      program({"check", "graph.toml", "--set", "node.router.policy=\"to_choices\""});
  EXPECT_THAT(policy.err, HasSubstr("did you mean 'two_choices'?"));
}

#if PRIMERL_HAS_TORCH
TEST_F(Installed, AGraphWithAPluginTrainsAndReplays) {
  const std::string folder = scratch_->path() / "run";
  const auto run = program({"run", "graph.toml", "--max-steps", "3", "--out", folder});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(expect_steps_and_rollouts_once(folder), 3);
  const auto replay = program({"replay", folder});
  EXPECT_EQ(replay.code, 0) << replay.err;
  EXPECT_THAT(replay.out, HasSubstr("identical"));
}
#endif

}  // namespace
}  // namespace primerl
