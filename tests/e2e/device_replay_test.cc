// Replays the record of a run on a device, within a tolerance that the report names. Scripted
// resources compute nothing and accept any device, so no GPU is needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/run_files.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

class DeviceReplay : public testing::Test {
 protected:
  /// Runs the split graph to its end with its engines on `device`.
  void record(const std::string& device) const {
    const auto end = run_graph_program({"run", source_path("tests/cli/graphs/split.toml"), "--out",
                                        folder_.string(), "--max-steps", "4", "--set",
                                        "place.inference.device=" + device});
    ASSERT_EQ(end.code, 0) << end.err;
  }
  ProgramEnd replay(const std::string& depth, std::vector<std::string> more = {}) const {
    std::vector<std::string> words{"replay", folder_.string(), "--depth", depth};
    words.insert(words.end(), more.begin(), more.end());
    return run_graph_program(words);
  }

  const ScratchFolder scratch_;
  const fs::path folder_ = scratch_.path() / "run";
};

TEST_F(DeviceReplay, NeedsNoMoreThanToBeNear) {
  record("cuda:0");
  const auto same = replay("full");
  EXPECT_EQ(same.code, 0) << same.out << same.err;
  EXPECT_THAT(same.out, AllOf(HasSubstr("identical within the tolerance"),
                              HasSubstr("log-probabilities none is further than 0 from")));
  const auto near = replay("full", {"--set", "resource.engine.logprob_shift=0.0625"});
  EXPECT_EQ(near.code, 0) << near.out << near.err;
  EXPECT_THAT(near.out, AllOf(HasSubstr("identical within the tolerance"),
                              HasSubstr("none is further than 0.0625 from"),
                              HasSubstr("log-probabilities within 0.125")));
  const auto trained = replay("learner", {"--set", "resource.learner.loss_shift=0.01"});
  EXPECT_EQ(trained.code, 0) << trained.out << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("of 4 training steps no number is further than"));
}

TEST_F(DeviceReplay, PartsWhereItIsNotNear) {
  record("cuda:0");
  const auto far = replay("full", {"--set", "resource.engine.logprob_shift=0.25"});
  EXPECT_EQ(far.code, 4) << far.out << far.err;
  EXPECT_THAT(far.out,
              HasSubstr("has log-probabilities further than 0.125 from the recorded ones"));
  const auto other = replay("full", {"--set", "resource.engine.seed=5"});
  EXPECT_EQ(other.code, 4) << other.out << other.err;
}

TEST_F(DeviceReplay, AtControlDepthRepeatsToTheBit) {
  record("cuda:0");
  const auto end = replay("control");
  EXPECT_EQ(end.code, 0) << end.out << end.err;
  EXPECT_THAT(end.out, AllOf(HasSubstr("identical"), Not(HasSubstr("tolerance"))));
}

TEST_F(DeviceReplay, OfTheCpuRepeatsToTheBitAtEveryDepth) {
  record("cpu");
  const auto same = replay("full");
  EXPECT_EQ(same.code, 0) << same.out << same.err;
  EXPECT_THAT(same.out, Not(HasSubstr("tolerance")));
  const auto near = replay("full", {"--set", "resource.engine.logprob_shift=0.0625"});
  EXPECT_EQ(near.code, 4) << "on the CPU near is not enough";
}

}  // namespace
}  // namespace primerl
