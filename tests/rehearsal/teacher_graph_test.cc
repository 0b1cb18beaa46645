// Graphs with a teacher: short files that imply its nodes, and what `check` refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "graph/base/files.h"
#include "graph/frozen.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/rehearsal/rehearsal.h"
#include "tests/store/scratch_folder.h"

namespace primerl::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kTaught =
    "[graph]\nname = \"taught\"\n\n[tenant.main]\nenvironment = { name = \"reverse_text\" }\n"
    "sampling = { max_tokens = 8 }\ngroup_size = 2\nbatch_size = 4\n";
const std::string kTeacher = "teacher = { model = \"big\" }\nloss = { kind = \"opd\" }\n";
const std::string kTwoModels =
    "[model.policy]\npath = \"model\"\n[model.big]\npath = \"../arithmetic_tool/model\"\n";

CheckedGraph taught(const std::string& text, bool for_run = false) {
  Overrides overrides;
  overrides.cores = 2;
  overrides.for_run = for_run;
  return load_graph_text(text, "graph.toml", PRIMERL_SOURCE_DIR "/examples/reverse_text", overrides,
                         full_catalog());
}

std::string taught_faults(CheckedGraph graph) {
  if (graph.plan != nullptr) rehearse(graph, full_catalog());
  return render(graph.diagnostics, graph.sources);
}

std::string model_named(const Plan& plan, const std::string& resource) {
  for (const PlanResource& each : plan.resources)
    if (each.name == resource && each.kind != "tokenizer")
      return plan.models[static_cast<size_t>(each.model)].name;
  return "none";
}

TEST(TeacherGraph, AShortFileImpliesTheNodesOfTheTeacher) {
  auto graph = taught(kTaught + kTeacher + kTwoModels);
  ASSERT_NE(graph.plan, nullptr) << taught_faults(graph);
  const Plan& plan = *graph.plan;
  EXPECT_EQ(model_named(plan, "teacher"), "big");
  EXPECT_EQ(model_named(plan, "engine"), "policy");
  EXPECT_EQ(model_named(plan, "learner"), "policy");
  for (const auto* edge : {"rollout.group -> teacher.group", "teacher.scored -> trainer.group",
                           "teacher.generate -> teacher_router.generate",
                           "teacher_decode.completion -> teacher.completion"})
    EXPECT_THAT(plan.resolved_toml, HasSubstr(edge));
  EXPECT_THAT(plan.resolved_toml, Not(HasSubstr("rollout.group -> trainer.group")));
  for (size_t i = 0; i < plan.resources.size(); ++i)
    EXPECT_EQ(is_frozen(plan, static_cast<int32_t>(i)),
              plan.resources[i].kind == "engine" && plan.resources[i].name == "teacher");
  EXPECT_THAT(taught_faults(std::move(graph)), Not(HasSubstr("error")));
}

TEST(TeacherGraph, ItsResolvedFormIsTheSamePlan) {
  const auto graph = taught(kTaught + kTeacher + kTwoModels);
  ASSERT_NE(graph.plan, nullptr);
  const auto again = taught(graph.plan->resolved_toml);
  ASSERT_NE(again.plan, nullptr) << taught_faults(again);
  EXPECT_EQ(again.plan->resolved_toml, graph.plan->resolved_toml);
}

TEST(TeacherGraph, AJudgeAndATeacherLeaveOneModelForThePolicy) {
  const auto graph =
      taught(kTaught + kTeacher +
             "reward = { name = \"judge\", rubric = \"r\", prompt = \"{answer}\" }\n" + kTwoModels +
             "[model.judge]\npath = \"base\"\n[resource.judge]\nbackend = \"scripted\"\n");
  ASSERT_NE(graph.plan, nullptr) << taught_faults(graph);
  EXPECT_EQ(model_named(*graph.plan, "engine"), "policy");
  EXPECT_EQ(model_named(*graph.plan, "teacher"), "big");
}

TEST(TeacherGraph, GroupsOfATenantWithoutATeacherPassItsNode) {
  const std::string common =
      "environment = { name = \"reverse_text\" }\nsampling = { max_tokens = 8 }\n"
      "group_size = 2\nbatch_size = 4\nadapter = { rank = 4 }\n";
  auto graph = taught("[tenant.ada]\n" + common + kTeacher + "[tenant.bo]\n" + common + kTwoModels +
                      "[node.trainer]\nper_tenant = true\n");
  ASSERT_NE(graph.plan, nullptr) << taught_faults(graph);
  EXPECT_THAT(taught_faults(std::move(graph)), Not(HasSubstr("error")));
}

TEST(TeacherGraph, ThePolicysOwnFolderMayTeach) {
  auto graph = taught(kTaught + "teacher = { model = \"policy\" }\n" +
                      "loss = { reference_weight = 0.1 }\n[model.policy]\npath = \"model\"\n");
  ASSERT_NE(graph.plan, nullptr) << taught_faults(graph);
  EXPECT_THAT(taught_faults(std::move(graph)), Not(HasSubstr("error")));
}

TEST(TeacherGraph, AnObjectiveWithAReferenceAndNoneIsRefused) {
  EXPECT_THAT(taught_faults(taught(
                  kTaught + "loss = { kind = \"opd\" }\n[model.policy]\npath = \"model\"\n")),
              AllOf(HasSubstr("error[G083]"), HasSubstr("the base of an adapter or a teacher")));
}

TEST(TeacherGraph, ATeacherNeedsAModel) {
  EXPECT_THAT(taught_faults(taught(kTaught + "teacher = { timeout = \"5s\" }\n" + kTwoModels)),
              HasSubstr("error[G025]"));
}

TEST(TeacherGraph, AMisspeltModelIsOneError) {
  const std::string faults = taught_faults(
      taught(kTaught + "teacher = { model = \"bigg\" }\nloss = { kind = \"opd\" }\n" + kTwoModels));
  EXPECT_THAT(faults, AllOf(HasSubstr("error[G014]: 'teacher' of tenant 'main' names model 'bigg'"),
                            HasSubstr("did you mean 'big'?"), HasSubstr("1 error")));
}

TEST(TeacherGraph, ALongFileWithoutTheNodesIsRefused) {
  auto graph = taught(kTaught + "[model.policy]\npath = \"model\"\n");
  ASSERT_NE(graph.plan, nullptr);
  std::string text = graph.plan->resolved_toml;
  const std::string none = "teacher = { model = \"\"";
  ASSERT_NE(text.find(none), std::string::npos) << text;
  text.replace(text.find(none), none.size(), "teacher = { model = \"policy\"");
  EXPECT_THAT(taught_faults(taught(text)),
              AllOf(HasSubstr("error[G083]"), HasSubstr("but no node asks a teacher")));
}

TEST(TeacherGraph, AnotherModelThanItsNodeAsksIsRefused) {
  EXPECT_THAT(taught_faults(
                  taught(kTaught + kTeacher + kTwoModels + "[node.teacher]\nmodel = \"policy\"\n")),
              AllOf(HasSubstr("error[G083]"),
                    HasSubstr("names model 'big', and node 'teacher' asks 'policy'")));
}

TEST(TeacherGraph, SamplingThatTheTeacherDoesNotKnowIsRefused) {
  for (const auto* sampling : {"temperature = 0.7", "top_k = 5", "top_p = 0.9", "min_p = 0.1"})
    EXPECT_THAT(taught_faults(taught("[tenant.main]\nenvironment = { name = \"reverse_text\" }\n" +
                                     kTeacher + fmt::format("sampling = {{ {} }}\n", sampling) +
                                     kTwoModels)),
                AllOf(HasSubstr("error[G083]"), HasSubstr("the teacher's log-probabilities are")))
        << sampling;
}

TEST(TeacherGraph, ASampleAndOneTokenFitIntoASequenceOfTheTeacher) {
  const std::string short_engine = "[resource.teacher]\nmax_sequence_tokens = 64\n";
  EXPECT_THAT(
      taught_faults(taught(kTaught + "seq_len = 64\n" + kTeacher + kTwoModels + short_engine)),
      AllOf(HasSubstr("error[G084]"), HasSubstr("write seq_len = 63 or less")));
  EXPECT_THAT(
      taught_faults(taught(kTaught + "seq_len = 63\n" + kTeacher + kTwoModels + short_engine)),
      Not(HasSubstr("error")));
  const auto shortened = taught(kTaught + kTeacher + kTwoModels + short_engine);
  ASSERT_NE(shortened.plan, nullptr);
  EXPECT_EQ(shortened.plan->tenants.front().seq_len, 63) << "it was not written";
}

/// A copy of the policy's folder whose tokenizer has `from` replaced by `to`.
std::string other_tokens(const std::filesystem::path& folder, const std::string& from,
                         const std::string& to) {
  namespace fs = std::filesystem;
  fs::copy(PRIMERL_SOURCE_DIR "/examples/reverse_text/model", folder);
  std::string text = read_text_file((folder / "tokenizer.json").string(), 1 << 20).value();
  text.replace(text.find(from), from.size(), to);
  std::ofstream(folder / "tokenizer.json") << text;
  return folder.string();
}

TEST(TeacherGraph, ATeacherWithAnotherTokenizerIsRefused) {
  const auto folder = new_scratch_folder();
  const std::string text =
      read_text_file(PRIMERL_SOURCE_DIR "/examples/reverse_text/model/tokenizer.json", 1 << 20)
          .value();
  ASSERT_NE(text.find("\"q\""), std::string::npos);
  const auto path = other_tokens(folder / "other", "\"q\"", "\"qq\"");
  EXPECT_THAT(taught_faults(taught(kTaught + kTeacher +
                                       "[model.policy]\npath = \"model\"\n[model.big]\npath = \"" +
                                       path + "\"\n",
                                   true)),
              AllOf(HasSubstr("error[G044]"), HasSubstr("model 'big' cannot teach model 'policy'"),
                    HasSubstr("is 'q' in"), HasSubstr("and 'qq' in")));
}

TEST(TeacherGraph, SupervisedTrainingHasNoTeacher) {
  EXPECT_THAT(taught_faults(taught("include = [\"primerl:sft\"]\n" + kTaught +
                                   "teacher = { model = \"policy\" }\n"
                                   "[model.policy]\npath = \"model\"\n")),
              HasSubstr("supervised examples train on given answers"));
}

const std::string kTopK = "teacher = { model = \"big\", top_k = 8 }\nloss = { kind = \"gkd\" }\n";

TEST(TeacherGraph, SupervisedExamplesGoThroughATeacherThatGivesItsLikeliestTokens) {
  auto graph = taught("include = [\"primerl:sft\"]\n" + kTaught + kTopK + kTwoModels);
  ASSERT_NE(graph.plan, nullptr) << taught_faults(std::move(graph));
  const Plan& plan = *graph.plan;
  EXPECT_EQ(model_named(plan, "teacher"), "big");
  EXPECT_EQ(model_named(plan, "learner"), "policy");
  for (const auto* edge : {"data.group -> teacher.group", "teacher.scored -> trainer.group",
                           "teacher_decode.completion -> teacher.completion"})
    EXPECT_THAT(plan.resolved_toml, HasSubstr(edge));
  EXPECT_THAT(plan.resolved_toml, Not(HasSubstr("data.group -> trainer.group")));
  EXPECT_THAT(taught_faults(std::move(graph)), Not(HasSubstr("error")));
}

TEST(TeacherGraph, AnEngineOfATeacherHasAbortsOfAllRequestsOfTheTeacher) {
  const auto bound = [](const std::string& first, const std::string& more) {
    const auto graph = taught(first + kTaught + kTopK + kTwoModels + more);
    if (graph.plan == nullptr) return int64_t{-1};
    for (const auto& edge : graph.plan->edges)
      if (edge.name == "teacher_router.abort -> teacher_prefill.abort") return edge.bound;
    return int64_t{0};
  };
  const std::string supervised = "include = [\"primerl:sft\"]\n";
  EXPECT_EQ(bound(supervised, ""), 2 * 64) << "no rollout is in flight";
  EXPECT_EQ(bound(supervised, "[node.teacher]\nrequests_max = 256\n"), 2 * 256);
  EXPECT_EQ(bound("", "[node.rollout]\nmax_inflight = 8\n"), 2 * 64)
      << "its samples are of rollouts that have ended";
  // Small groups: the rehearsal ends while samples are at the engine.
  for (const auto* size : {"1", "4"})
    EXPECT_THAT(
        taught_faults(taught(supervised +
                             "[graph]\nname = \"taught\"\n\n[tenant.main]\n"
                             "environment = { name = \"reverse_text\" }\ngroup_size = " +
                             std::string(size) + "\nbatch_size = 64\n" + kTopK + kTwoModels)),
        Not(HasSubstr("error")));
}

TEST(TeacherGraph, TheLikeliestTokensAreAskedForByTheObjectiveThatReadsThem) {
  EXPECT_THAT(taught_faults(taught(kTaught + kTopK + kTwoModels)), Not(HasSubstr("error")));
  EXPECT_THAT(
      taught_faults(taught(kTaught + "teacher = { model = \"big\" }\nloss = { kind = \"gkd\" }\n" +
                           kTwoModels)),
      AllOf(HasSubstr("error[G083]"), HasSubstr("teacher.top_k is 0")));
  EXPECT_THAT(
      taught_faults(taught(kTaught +
                           "teacher = { model = \"big\", top_k = 8 }\nloss = { kind = \"opd\" }\n" +
                           kTwoModels)),
      AllOf(HasSubstr("error[G083]"), HasSubstr("'opd' does not read the likeliest tokens")));
  EXPECT_THAT(taught_faults(taught(
                  kTaught +
                  "teacher = { model = \"big\", top_k = 8 }\nloss = { reference_weight = 0.1 }\n" +
                  kTwoModels)),
              HasSubstr("'dppo' does not read the likeliest tokens"));
}

TEST(TeacherGraph, ATeacherHasAsManyTokensAsTopKAtLeast) {
  const auto with = [](int64_t top_k) {
    return taught_faults(
        taught(kTaught + fmt::format("teacher = {{ model = \"big\", top_k = {} }}\n", top_k) +
               "loss = { kind = \"gkd\" }\n" + kTwoModels));
  };
  EXPECT_THAT(with(97), Not(HasSubstr("error")));
  EXPECT_THAT(with(98), AllOf(HasSubstr("error[G083]"), HasSubstr("write top_k = 97 or less")));
  EXPECT_THAT(with(kTeacherTopKMax + 1), HasSubstr("error["));
}

/// Rollouts of one member compare only in a batch, whatever the environment.
TEST(MixedGraph, TheGroupSizeFitsTheAdvantageOfEachEnvironment) {
  const auto faults = [](const std::string& of_tenant, const std::string& of_item) {
    const std::string item =
        "[[tenant.main.environments]]\nenvironment = { name = \"reverse_text\" }\n";
    return taught_faults(
        taught("[graph]\nname = \"mixed\"\n[tenant.main]\nsampling = { max_tokens = 8 }\n"
               "group_size = 1\nbatch_size = 4\n" +
               of_tenant + item + of_item + item + "name = \"more\"\n" + of_item +
               "[model.policy]\npath = \"model\"\n"));
  };
  const std::string batch = "advantage = { kind = \"batch\" }\n";
  const std::string mean = "advantage = { kind = \"mean\" }\n";
  EXPECT_THAT(faults("", batch), Not(HasSubstr("'group_size'")));
  EXPECT_THAT(faults(batch, ""), Not(HasSubstr("'group_size'")));
  EXPECT_THAT(faults(batch, mean),
              HasSubstr("'group_size' of tenant 'main' is 1: a group of one rollout"));
}

TEST(SupervisedGraph, HasNoCurriculum) {
  EXPECT_THAT(taught_faults(taught("include = [\"primerl:sft\"]\n" + kTaught +
                                   "curriculum = { rows = 8, easy_threshold = 1.0 }\n"
                                   "[model.policy]\npath = \"model\"\n")),
              HasSubstr("'curriculum' of tenant 'main' has no effect: supervised examples"));
}

/// The edges of supervised data are counted as full, those of rollouts by the gate.
TEST(TeacherGraph, GroupsOfExamplesThatWaitAreInTheMemoryPlan) {
  const auto waiting_bytes = [](const Plan& plan) {
    double bytes = 0;
    for (const PlanResource& resource : plan.resources)
      for (const MemoryPart& part : resource.memory)
        if (part.what.find("that wait for the trainer") != std::string::npos) bytes += part.bytes;
    return bytes;
  };
  const auto capacity = [](const Plan& plan, std::string_view name) {
    for (const PlanEdge& edge : plan.edges)
      if (edge.name == name) return edge.capacity;
    return int64_t{0};
  };
  const auto rollouts = taught(kTaught + kTeacher + kTwoModels);
  EXPECT_EQ(waiting_bytes(*rollouts.plan), 0);
  const std::string supervised =
      "include = [\"primerl:sft\"]\n[graph]\nname = \"sft\"\n[tenant.main]\n"
      "environment = { name = \"reverse_text\" }\ngroup_size = 2\nbatch_size = 4\nseq_len = 32\n";
  const auto plain = taught(supervised + "[model.policy]\npath = \"model\"\n");
  ASSERT_NE(plain.plan, nullptr) << taught_faults(plain);
  // Groups of 2 examples of 32 tokens of 13 bytes.
  EXPECT_EQ(waiting_bytes(*plain.plan),
            capacity(*plain.plan, "data.group -> trainer.group") * 2 * 32 * 13);
  EXPECT_GT(waiting_bytes(*plain.plan), 0);
  const auto with_teacher =
      taught(supervised + "teacher = { model = \"big\", top_k = 4 }\nloss = { kind = \"gkd\" }\n" +
             kTwoModels);
  ASSERT_NE(with_teacher.plan, nullptr) << taught_faults(with_teacher);
  // After the teacher a token also has 4 bytes, and 8 of each likeliest token.
  const Plan& plan = *with_teacher.plan;
  EXPECT_EQ(waiting_bytes(plan),
            capacity(plan, "data.group -> teacher.group") * 2 * 32 * 13 +
                capacity(plan, "teacher.scored -> trainer.group") * 2 * 32 * (13 + 4 + 4 * 8));
  EXPECT_GT(waiting_bytes(plan), waiting_bytes(*plain.plan));
}

}  // namespace
}  // namespace primerl::testing
