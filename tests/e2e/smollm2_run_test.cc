// The example of a real model, two small steps: its chat template, its reward, its record.
#include <gmock/gmock.h>

#include "tests/base/real_model.h"
#include "tests/e2e/run_files.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

/// Skips if the folder of the model is not there.
class SmolLM2Run : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto folder = testing::smollm2_folder();
    if (!folder) GTEST_SKIP() << "no folder of SmolLM2: `scripts/setup.sh --tests` makes it";
    model_ = folder->string();
  }

  std::vector<std::string> words(const std::string& command) const {
    return {command, source_path("examples/smollm2/graph.toml"), "--set",
            "model.policy.path=\"" + model_ + "\""};
  }

  std::string model_;
  ScratchFolder scratch_;
};

TEST_F(SmolLM2Run, ChecksAndRehearsesTheExample) {
  const auto end = run_graph_program(words("check"));
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("rehearsed"));
}

TEST_F(SmolLM2Run, TrainsTwoStepsAndRepeatsThem) {
  const std::string run = (scratch_.path() / "run").string();
  auto command = words("run");
  for (const char* set :
       {"tenant.main.batch_size=4", "tenant.main.group_size=2", "tenant.main.sampling.max_tokens=8",
        "tenant.main.filters.zero_advantage=false",
        // 1.1 GB of checkpoint in place of 1.6.
        "resource.learner.optimizer.moments_dtype=\"bfloat16\""})
    command.insert(command.end(), {"--set", set});
  command.insert(command.end(), {"--max-steps", "2", "--metrics-port", "off", "--out", run});
  const auto end = run_graph_program(command);
  ASSERT_EQ(end.code, 0) << end.err;
  const auto steps = lines_of(scratch_.path() / "run/metrics.jsonl");
  ASSERT_EQ(steps.size(), 2);
  for (const Json& step : steps) {
    EXPECT_EQ(step.find("reward/number/mean")->as_double(),
              step.find("reward/all/mean")->as_double());
    EXPECT_EQ(*step.get_int("progress/samples"), 4);
  }
  // Tokens of the first version train under the same weights: engine and learner agree to the bit.
  EXPECT_EQ(steps[0].find("mismatch_kl/all/mean")->as_double(), 0.0);
  for (const Json& rollout : lines_of(scratch_.path() / "run/rollouts.jsonl"))
    EXPECT_THAT(*rollout.get_string("prompt"), HasSubstr("Answer with one number."));
  std::filesystem::remove_all(scratch_.path() / "run/checkpoints");  // a replay needs none
  const auto replay = run_graph_program({"replay", run});
  EXPECT_EQ(replay.code, 0) << replay.out << replay.err;
}

}  // namespace
}  // namespace primerl
