// A run whose reward another model gives: two real models, real scores, replayed and resumed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/run_files.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

/// The policy is a model of 128 dimensions, the judge another one of 64 with the same letters.
std::string graph_text(const std::string& judge) {
  return fmt::format(
      "[graph]\nname = \"judged\"\nseed = 17\n\n"
      "[tenant.main]\nenvironment = {{ name = \"reverse_text\" }}\n"
      "reward = {{ name = \"judge\", rubric = \"r\", prompt = \"> {{answer}}\", {} }}\n"
      "group_size = 4\nbatch_size = 16\nmax_steps = 4\ncheckpoint_every = 2\n"
      "sampling = {{ max_tokens = 12 }}\n\n"
      "[model.policy]\npath = \"{}\"\n[model.judge]\npath = \"{}\"\n",
      judge, source_path("examples/reverse_text/model"),
      source_path("examples/arithmetic_tool/model"));
}

struct JudgedRun : ::testing::Test {
  std::vector<std::string> words(const std::string& judge, std::vector<std::string> more = {}) {
    write_text(scratch.path() / "graph.toml", graph_text(judge));
    std::vector<std::string> all{"run", (scratch.path() / "graph.toml").string(), "--out",
                                 folder.string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
};

const std::string kYesNo = "score = \"yes_no\", yes = \"y\", no = \"n\"";

TEST_F(JudgedRun, ThePlanHasNoSecondSetOfWeightsForTheFrozenJudge) {
  words(kYesNo);
  const auto plan = run_graph_program({"show", (scratch.path() / "graph.toml").string(), "--plan"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  const std::string second = "a second set of weights, for the next version";
  const size_t found = plan.out.find(second);
  ASSERT_NE(found, std::string::npos) << "the policy's engine has it: " << plan.out;
  EXPECT_EQ(plan.out.find(second, found + 1), std::string::npos) << plan.out;
}

TEST_F(JudgedRun, AnAnswerWithoutANumberFailsItsRolloutAndIsCounted) {
  const auto end = run_graph_program(
      words("max_tokens = 4", {"--max-steps", "1", "--set", "node.trainer.lost_batches_max=2"}));
  EXPECT_NE(end.code, 0);
  int num_failed = 0;
  for (const Json& line : lines_of(folder / "rollouts.jsonl")) {
    if (*line.get_string("end") != "failed") continue;
    ++num_failed;
    EXPECT_THAT(*line.get_string("reason"), HasSubstr("the judge: the"));
  }
  EXPECT_GT(num_failed, 0);
}

TEST_F(JudgedRun, ScoresAreProbabilitiesAndItsTokensDoNotTrain) {
  const auto end = run_graph_program(words(kYesNo));
  ASSERT_EQ(end.code, 0) << end.err;
  const auto steps = lines_of(folder / "metrics.jsonl");
  ASSERT_EQ(steps.size(), 4U);
  std::set<double> rewards;
  for (const Json& line : lines_of(folder / "rollouts.jsonl")) {
    if (*line.get_string("end") != "trained") continue;
    const double reward = *line.get_double("reward");
    EXPECT_GT(reward, 0);
    EXPECT_LT(reward, 1);
    rewards.insert(reward);
    for (const Json& span : line.find("versions")->as_array())
      EXPECT_LE(*span.get_int("end") - *span.get_int("begin"), 12) << "tokens of the policy alone";
  }
  EXPECT_GT(rewards.size(), 20U);
  EXPECT_TRUE(steps.back().get_double("reward/judge/mean").ok());
  expect_replays_at(folder, {"control", "full"});
}

TEST_F(JudgedRun, AKilledRunContinuesFromItsRecord) {
  expect_continues_after_a_kill(folder, words(kYesNo));
  expect_replays_at(folder, {"control", "full"});
}

}  // namespace
}  // namespace primerl
