// Distillation with real models: a student follows a teacher of the graph, and supervised training
// measures held-out rows. Runs are replayed, killed and resumed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/e2e/run_files.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

struct DistilledRun : ::testing::Test {
  std::vector<std::string> words(std::vector<std::string> more) const {
    std::vector<std::string> all{"run", source_path("examples/distill/graph.toml"), "--out",
                                 folder.string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void expect_replays() const { expect_replays_at(folder, {"control", "full"}); }
  /// The numbers of this name, in the order of the lines that have it.
  std::vector<double> curve(const std::string& name) const {
    std::vector<double> values;
    for (const Json& line : lines_of(folder / "metrics.jsonl"))
      if (line.find(name) != nullptr) values.push_back(*line.get_double(name));
    return values;
  }

  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
};

TEST_F(DistilledRun, TheStudentComesNearerToItsTeacher) {
  const auto end = run_graph_program(words({"--max-steps", "12"}));
  ASSERT_EQ(end.code, 0) << end.err;
  const auto distance = curve("teacher_kl/all/mean");
  ASSERT_EQ(distance.size(), 12U);
  EXPECT_LT(distance.back(), 0.7 * distance.front()) << ::testing::PrintToString(distance);
  for (const Json& line : lines_of(folder / "rollouts.jsonl"))
    EXPECT_NE(*line.get_string("end"), "failed") << *line.get_string("reason");
  expect_replays();
}

/// Each log-probability belongs to its token: the teacher and the first policy are one model.
TEST_F(DistilledRun, ATeacherWithTheWeightsOfThePolicyStartsAtADistanceOfZero) {
  write_text(
      scratch.path() / "graph.toml",
      fmt::format("[tenant.main]\nenvironment = {{ name = \"reverse_text\" }}\n"
                  "teacher = {{ model = \"policy\" }}\nloss = {{ reference_weight = 0.05 }}\n"
                  "group_size = 4\nbatch_size = 16\nmax_steps = 2\n"
                  "max_off_policy_steps = 0\nsampling = {{ max_tokens = 12 }}\n"
                  "[model.policy]\npath = \"{}\"\n"
                  "[resource.learner]\nthreads = 1\noptimizer = {{ lr = 2e-4 }}\n",
                  source_path("examples/reverse_text/model")));
  const auto end = run_graph_program(
      {"run", (scratch.path() / "graph.toml").string(), "--out", folder.string()});
  ASSERT_EQ(end.code, 0) << end.err;
  const auto distance = curve("teacher_kl/all/mean");
  ASSERT_EQ(distance.size(), 2U);
  EXPECT_NEAR(distance[0], 0, 1e-6);
  EXPECT_GT(std::abs(distance[1]), 1e-4) << "all weights have changed, those of the teacher not";
}

TEST_F(DistilledRun, TheLikeliestTokensOfTheTeacherBringTheStudentNearer) {
  const auto end = run_graph_program({"run", source_path("examples/distill/top_k.toml"), "--out",
                                      folder.string(), "--max-steps", "12"});
  ASSERT_EQ(end.code, 0) << end.err;
  const auto distance = curve("teacher_kl/top_k/mean"), mass = curve("teacher_mass/top_k/mean");
  ASSERT_EQ(distance.size(), 12U);
  EXPECT_LT(distance.back(), 0.7 * distance.front()) << ::testing::PrintToString(distance);
  EXPECT_THAT(mass, ::testing::Each(::testing::AllOf(::testing::Gt(0.5), ::testing::Le(1.001))));
  EXPECT_EQ(curve("teacher_kl/all/mean").size(), 12U);
  for (const Json& line : lines_of(folder / "rollouts.jsonl"))
    EXPECT_NE(*line.get_string("end"), "failed") << *line.get_string("reason");
  expect_replays();
}

TEST_F(DistilledRun, ATeacherScoresGivenAnswersAndTheStudentFollowsItsLikeliestTokens) {
  const auto end = run_graph_program({"sft", source_path("examples/distill/answers.toml"), "--out",
                                      folder.string(), "--max-steps", "12"});
  ASSERT_EQ(end.code, 0) << end.err;
  const auto distance = curve("teacher_kl/top_k/mean");
  ASSERT_EQ(distance.size(), 12U);
  EXPECT_LT(distance.back(), 0.7 * distance.front()) << ::testing::PrintToString(distance);
  EXPECT_THAT(curve("teacher_kl/all/mean"), IsEmpty()) << "answers were not sampled";
  expect_replays();
}

/// Each row belongs to its token: the teacher and the first policy are one model, and k is the
/// vocabulary.
TEST_F(DistilledRun, TheWholeDistributionOfTheFirstPolicyIsItsOwn) {
  write_text(scratch.path() / "graph.toml",
             fmt::format("[tenant.main]\nenvironment = {{ name = \"reverse_text\" }}\n"
                         "teacher = {{ model = \"policy\", top_k = 97 }}\n"
                         "loss = {{ kind = \"gkd\", jsd_beta = 0.5 }}\n"
                         "group_size = 4\nbatch_size = 16\nmax_steps = 1\n"
                         "max_off_policy_steps = 0\nsampling = {{ max_tokens = 12 }}\n"
                         "[model.policy]\npath = \"{}\"\n"
                         "[resource.learner]\nthreads = 1\n",
                         source_path("examples/reverse_text/model")));
  const auto end = run_graph_program(
      {"run", (scratch.path() / "graph.toml").string(), "--out", folder.string()});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_NEAR(curve("teacher_kl/top_k/mean").at(0), 0, 1e-6);
  EXPECT_NEAR(curve("teacher_mass/top_k/mean").at(0), 1, 1e-5);
  EXPECT_NEAR(curve("loss/mean").at(0), 0, 1e-6);
}

TEST_F(DistilledRun, ThePlanHasTheTeachersWeightsOnceAndNoSecondSet) {
  const auto plan =
      run_graph_program({"show", source_path("examples/distill/graph.toml"), "--plan"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("teacher"));
  const std::string second = "a second set of weights, for the next version";
  const size_t found = plan.out.find(second);
  ASSERT_NE(found, std::string::npos) << plan.out;
  EXPECT_EQ(plan.out.find(second, found + 1), std::string::npos) << plan.out;
}

TEST_F(DistilledRun, AKilledRunContinuesFromItsRecord) {
  expect_continues_after_a_kill(folder, words({"--set", "tenant.main.checkpoint_every=2"}));
  expect_replays();
}

TEST_F(DistilledRun, ATeacherThatRefusesSamplesLosesTheirMembersAlone) {
  const auto end =
      run_graph_program(words({"--max-steps", "2", "--set", "resource.teacher.backend=\"scripted\"",
                               "--set", "resource.teacher.refuse_every=5"}));
  ASSERT_EQ(end.code, 0) << end.err;
  int num_failed = 0;
  for (const Json& line : lines_of(folder / "rollouts.jsonl")) {
    if (*line.get_string("end") != "failed") continue;
    ++num_failed;
    EXPECT_THAT(*line.get_string("reason"), HasSubstr("the teacher: refused"));
  }
  EXPECT_GT(num_failed, 0);
}

/// Rows of "r:word>" and the word backwards; a `weight` where one is given.
std::string rows_of(const std::vector<std::string>& words, const std::string& weight = {}) {
  std::string text;
  for (const std::string& word : words)
    text += fmt::format("{{\"prompt\": \"r:{}>\", \"completion\": \"{}\"{}}}\n", word,
                        std::string(word.rbegin(), word.rend()), weight);
  return text;
}

TEST_F(DistilledRun, SupervisedTrainingMeasuresHeldOutRows) {
  write_text(scratch.path() / "train.jsonl", rows_of({"abc", "bcd", "cde", "def"}) +
                                                 rows_of({"efg", "fgh"}, ", \"weight\": 0.5") +
                                                 rows_of({"ghi", "hij"}, ", \"weight\": 2"));
  write_text(scratch.path() / "held_out.jsonl", rows_of({"abd", "ceg", "bdf"}));
  write_text(scratch.path() / "graph.toml",
             fmt::format("include = [\"primerl:sft\"]\n[graph]\nname = \"sft\"\nseed = 17\n\n"
                         "[tenant.main]\nenvironment = {{ name = \"reverse_text\" }}\n"
                         "group_size = 4\nbatch_size = 8\nepochs = 6\ncheckpoint_every = 3\n"
                         "eval = {{ interval = 2 }}\n\n[model.policy]\npath = \"{}\"\n"
                         "[resource.learner]\nthreads = 1\noptimizer = {{ lr = 1e-3 }}\n"
                         "[node.data]\nfile = \"train.jsonl\"\neval_file = \"held_out.jsonl\"\n",
                         source_path("examples/reverse_text/model")));
  const auto end = run_graph_program(
      {"run", (scratch.path() / "graph.toml").string(), "--out", folder.string()});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("eval of version 6: loss "));
  EXPECT_THAT(end.out, HasSubstr("(3 rows)"));
  std::vector<int64_t> versions;
  for (const Json& line : lines_of(folder / "metrics.jsonl"))
    if (line.find("eval/loss") != nullptr) versions.push_back(*line.get_int("step"));
  EXPECT_THAT(versions, ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(curve("eval/rows"), ElementsAre(3, 3, 3, 3));
  const auto losses = curve("eval/loss");
  EXPECT_LT(losses.back(), losses.front()) << ::testing::PrintToString(losses);
  EXPECT_EQ(curve("loss/mean").size(), 6U);
  expect_replays();
}

}  // namespace
}  // namespace primerl
