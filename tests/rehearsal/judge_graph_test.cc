// Graphs with the reward `judge`: short files that imply its nodes, and what `check` refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/frozen.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/rehearsal/rehearsal.h"

namespace primerl::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kTop =
    "[graph]\nname = \"judged\"\n\n[tenant.main]\nenvironment = { name = \"reverse_text\" }\n"
    "sampling = { max_tokens = 40 }\n";
const std::string kRewards =
    "reward = [\n  { name = \"exact\" },\n"
    "  { name = \"judge\", weight = 0.5, score = \"yes_no\", yes = \"y\", no = \"n\", "
    "rubric = \"r\", prompt = \"{answer}\" },\n]\n";
const std::string kModels =
    "[model.policy]\npath = \"model\"\n[model.judge]\npath = \"../arithmetic_tool/model\"\n";

CheckedGraph checked(const std::string& text) {
  Overrides overrides;
  overrides.cores = 2;
  return load_graph_text(text, "graph.toml", PRIMERL_SOURCE_DIR "/examples/reverse_text", overrides,
                         full_catalog());
}

std::string faults(CheckedGraph graph) {
  if (graph.plan != nullptr) rehearse(graph, full_catalog());
  return render(graph.diagnostics, graph.sources);
}

const PlanResource& resource(const Plan& plan, const std::string& name) {
  for (const PlanResource& each : plan.resources)
    if (each.name == name && each.kind != "tokenizer") return each;
  ADD_FAILURE() << "no resource " << name;
  return plan.resources.front();
}

std::string model_of(const Plan& plan, const std::string& name) {
  return plan.models[static_cast<size_t>(resource(plan, name).model)].name;
}

TEST(JudgeGraph, AShortFileImpliesTheNodesOfTheJudge) {
  auto graph = checked(kTop + kRewards + kModels);
  ASSERT_NE(graph.plan, nullptr) << faults(graph);
  const Plan& plan = *graph.plan;
  EXPECT_EQ(model_of(plan, "judge"), "judge");
  EXPECT_EQ(model_of(plan, "engine"), "policy");
  EXPECT_EQ(model_of(plan, "learner"), "policy");
  for (const auto* edge :
       {"env.question -> judge.question", "judge.generate -> judge_router.generate",
        "judge_decode.completion -> judge.completion", "judge.score -> env.score"})
    EXPECT_THAT(plan.resolved_toml, HasSubstr(edge));
  EXPECT_THAT(faults(graph), Not(HasSubstr("error")));
}

TEST(JudgeGraph, ARehearsalPlaysAJudgeThatWritesNumbers) {
  EXPECT_THAT(faults(checked(kTop + "reward = { name = \"judge\", rubric = \"r\" }\n" + kModels)),
              Not(HasSubstr("error")));
}

TEST(JudgeGraph, OnlyTheJudgesEngineIsFrozen) {
  const auto graph = checked(kTop + kRewards + kModels);
  ASSERT_NE(graph.plan, nullptr) << faults(graph);
  for (size_t i = 0; i < graph.plan->resources.size(); ++i)
    EXPECT_EQ(is_frozen(*graph.plan, static_cast<int32_t>(i)),
              graph.plan->resources[i].kind == "engine" && graph.plan->resources[i].name == "judge")
        << graph.plan->resources[i].name;
}

TEST(JudgeGraph, ItsResolvedFormIsTheSamePlan) {
  const auto graph = checked(kTop + kRewards + kModels);
  ASSERT_NE(graph.plan, nullptr) << faults(graph);
  const auto again = checked(graph.plan->resolved_toml);
  ASSERT_NE(again.plan, nullptr) << faults(again);
  EXPECT_EQ(again.plan->resolved_toml, graph.plan->resolved_toml);
}

TEST(JudgeGraph, WithOneModelItsWeightsAtTheStartJudge) {
  auto graph = checked(kTop + kRewards + "[model.policy]\npath = \"model\"\n");
  ASSERT_NE(graph.plan, nullptr) << faults(graph);
  EXPECT_EQ(model_of(*graph.plan, "judge"), "policy");
  EXPECT_THAT(faults(graph), Not(HasSubstr("error")));
}

TEST(JudgeGraph, AFileWithoutAJudgeHasNoneOfItsNodes) {
  const auto graph = checked(kTop + "[model.policy]\npath = \"model\"\n");
  ASSERT_NE(graph.plan, nullptr);
  EXPECT_THAT(graph.plan->resolved_toml, Not(HasSubstr("[node.judge")));
}

TEST(JudgeGraph, ALongFileWithoutTheNodesIsRefused) {
  auto graph = checked(kTop + "[model.policy]\npath = \"model\"\n");
  ASSERT_NE(graph.plan, nullptr);
  std::string text = graph.plan->resolved_toml;
  const size_t at = text.find("seq_len");
  ASSERT_NE(at, std::string::npos);
  text.insert(at, kRewards);
  EXPECT_THAT(faults(checked(text)),
              HasSubstr("reward 'judge' asks a judge, but 'question' is not connected"));
}

TEST(JudgeGraph, AWordOfSeveralTokensIsRefused) {
  std::string rewards = kRewards;
  rewards.replace(rewards.find("yes = \"y\""), 9, "yes = \"yes\"");
  EXPECT_THAT(faults(checked(kTop + rewards + kModels)),
              AllOf(HasSubstr("error[G085]"), HasSubstr("does not fit the judge's model"),
                    HasSubstr("'yes' is 'yes', which is 3 tokens of the judge")));
}

TEST(JudgeGraph, AMissingRubricIsRefused) {
  EXPECT_THAT(faults(checked(kTop + "reward = { name = \"judge\" }\n" + kModels)),
              HasSubstr("rubric"));
}

TEST(JudgeGraph, NodesOfOneEngineAgreeAboutItsWeights) {
  EXPECT_THAT(faults(checked(kTop + "[model.policy]\npath = \"model\"\n"
                                    "[node.decode]\nweights = \"none\"\n")),
              AllOf(HasSubstr("error[G087]"),
                    HasSubstr("node 'decode' has no weight channel, but other nodes of engine "
                              "'engine' have one")));
}

TEST(JudgeGraph, AFrozenEngineGetsNoNewWeights) {
  EXPECT_THAT(faults(checked(kTop + "[model.policy]\npath = \"model\"\n"
                                    "[node.decode]\nweights = \"none\"\n"
                                    "[node.prefill]\nweights = \"none\"\n")),
              HasSubstr("node 'decode' has no weight channel, but 'broadcaster' sends it new "
                        "weights"));
}

TEST(JudgeGraph, OnlyAnEngineMayHaveNoWeightChannel) {
  EXPECT_THAT(faults(checked(kTop + "[model.policy]\npath = \"model\"\n"
                                    "[node.trainer]\nweights = \"none\"\n")),
              HasSubstr("names resource 'none', which does not exist"));
}

TEST(JudgeGraph, AMisspeltNodeOfTheJudgeIsNamed) {
  EXPECT_THAT(faults(checked(kTop + kRewards + kModels +
                             "[node.judge_rooter]\n"
                             "policy = \"random\"\n")),
              HasSubstr("did you mean [node.judge_router]?"));
}

}  // namespace
}  // namespace primerl::testing
