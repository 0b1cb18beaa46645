#include "runtime/rehearsal/rehearsal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kernels/models/adapter_folder.h"
#include "runtime/backends/resource_catalog.h"
#include "tests/store/scratch_folder.h"

namespace primerl::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kExamples = PRIMERL_SOURCE_DIR "/examples";

std::string text_of(const std::string& example) {
  std::ifstream file(kExamples + "/" + example);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

CheckedGraph checked_text(const std::string& text, std::vector<std::string> sets = {}) {
  Overrides overrides;
  overrides.cores = 2;
  overrides.sets = std::move(sets);
  return load_graph_text(text, "graph.toml", kExamples + "/reverse_text", overrides,
                         full_catalog());
}

CheckedGraph checked_demo(std::vector<std::string> sets = {}) {
  return checked_text(text_of("reverse_text/graph.toml"), std::move(sets));
}

/// The demo without the line that contains `edge`.
std::string demo_without(const std::string& edge) {
  std::string text = text_of("reverse_text/full.toml");
  const size_t at = text.find(edge);
  EXPECT_NE(at, std::string::npos) << edge;
  const size_t begin = text.rfind('\n', at) + 1;
  return text.erase(begin, text.find('\n', at) + 1 - begin);
}

std::string findings_of(CheckedGraph& checked) {
  EXPECT_NE(checked.plan, nullptr) << render(checked.diagnostics, checked.sources);
  rehearse(checked, full_catalog());
  return render(checked.diagnostics, checked.sources);
}

// Like tests/graph/golden, for faults that only a rehearsal shows; PRIMERL_UPDATE_GOLDEN=1 writes
// them again.
TEST(RehearsalGolden, EveryFindingReadsAsWritten) {
  for (const auto& entry :
       std::filesystem::directory_iterator(PRIMERL_SOURCE_DIR "/tests/rehearsal/golden")) {
    if (entry.path().extension() != ".toml") continue;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    CheckedGraph checked = checked_text(text);
    const std::string seen = findings_of(checked);
    std::filesystem::path expected = entry.path();
    expected.replace_extension(".txt");
    if (std::getenv("PRIMERL_UPDATE_GOLDEN") != nullptr) std::ofstream(expected) << seen;
    std::ifstream written(expected);
    const std::string wanted{std::istreambuf_iterator<char>(written),
                             std::istreambuf_iterator<char>()};
    EXPECT_EQ(seen, wanted) << entry.path();
    const std::string code = entry.path().filename().string().substr(0, 4);
    EXPECT_THAT(seen, HasSubstr("[" + code + "]"));
  }
}

std::string driven(const std::string& file) {
  std::string text = text_of(file);
  const std::string environment = "{ name = \"reverse_text\" }";
  return text.replace(text.find(environment), environment.size(),
                      "{ name = \"verifiers\", id = \"x\" }");
}

TEST(Rehearsal, AFileWithEdgesThatLacksAGatewayForItsEnvironmentIsRefused) {
  const CheckedGraph checked = checked_text(driven("reverse_text/full.toml"));
  EXPECT_EQ(checked.plan, nullptr);
  EXPECT_THAT(render(checked.diagnostics, checked.sources),
              AllOf(HasSubstr("error[G076]"), HasSubstr("but the graph has no gateway")));
}

TEST(Rehearsal, RolloutsThatTheirEnvironmentDrivesArePlayedWithTheImpliedGateway) {
  CheckedGraph checked = checked_text(driven("reverse_text/graph.toml"));
  ASSERT_NE(checked.plan, nullptr) << render(checked.diagnostics, checked.sources);
  EXPECT_TRUE(std::ranges::any_of(
      checked.plan->nodes, [](const PlanNode& node) { return node.contract->name == "gateway"; }));
  EXPECT_EQ(findings_of(checked), "");
}

struct MissingLine {
  std::string edge;  // as the demo has it
  std::string help;
};

class AMissingEdge : public ::testing::TestWithParam<MissingLine> {};

// Each of these passes every static rule: the ports are optional, and another edge feeds the input.
TEST_P(AMissingEdge, IsFoundAndNamed) {
  CheckedGraph checked = checked_text(demo_without(GetParam().edge));
  const std::string seen = findings_of(checked);
  EXPECT_EQ(checked.plan, nullptr);
  EXPECT_THAT(seen, HasSubstr("error[G080]: the graph makes no progress"));
  EXPECT_THAT(seen, HasSubstr("add the feedback edge \"" + GetParam().help + "\""));
}

INSTANTIATE_TEST_SUITE_P(Demo, AMissingEdge,
                         ::testing::Values(MissingLine{"prefill.load        -> router.load",
                                                       "prefill.load -> router.load"},
                                           MissingLine{"broadcaster.update  -> prefill.update",
                                                       "broadcaster.update -> prefill.update"},
                                           MissingLine{"prefill.applied     -> broadcaster.applied",
                                                       "prefill.applied -> broadcaster.applied"},
                                           MissingLine{"decode.applied      -> broadcaster.applied",
                                                       "decode.applied -> broadcaster.applied"}),
                         [](const auto& param) {
                           std::string name =
                               param.param.help.substr(0, param.param.help.find(' '));
                           name[name.find('.')] = '_';
                           return name;
                         });

TEST(Rehearsal, PlaysEveryExampleToTheEnd) {
  for (const char* example :
       {"reverse_text/graph.toml", "reverse_text/sft.toml", "arithmetic_tool/graph.toml",
        "arithmetic_tool/sft.toml", "one_gpu/graph.toml", "copy/graph.toml",
        "long_context/graph.toml", "split/graph.toml"}) {
    CheckedGraph checked = load_graph(kExamples + "/" + example, {}, full_catalog());
    const Rehearsal rehearsal = rehearse(checked, full_catalog());
    EXPECT_EQ(rehearsal.end, Rehearsal::End::kPlayed)
        << example << ": " << rehearsal.text << render(checked.diagnostics, checked.sources);
    EXPECT_TRUE(checked.diagnostics.all().empty())
        << example << render(checked.diagnostics, checked.sources);
  }
}

TEST(Rehearsal, UsesTheNumbersOfTheFile) {
  // Each of them changes the rehearsal; none of them is a fault.
  for (const char* set :
       {"tenant.main.batch_size=8", "tenant.main.group_size=2",
        "tenant.main.max_off_policy_steps=0", "tenant.main.max_steps=1", "tenant.main.turns_max=1",
        "resource.engine.kv_blocks=4", "resource.engine.max_running=1",
        "node.rollout.max_inflight=8", "node.rollout.max_inflight=2147483648",
        "tenant.main.straggler_wait_ms=20000"}) {
    CheckedGraph plain = checked_demo(), changed = checked_demo({set});
    const Rehearsal before = rehearse(plain, full_catalog());
    const Rehearsal after = rehearse(changed, full_catalog());
    EXPECT_EQ(after.end, Rehearsal::End::kPlayed)
        << set << render(changed.diagnostics, changed.sources);
    EXPECT_EQ(before.end, Rehearsal::End::kPlayed);
  }
}

TEST(Rehearsal, TakesStepsOfEverySchedule) {
  for (const char* kind : {"constant", "linear", "cosine"})
    for (const char* steps : {"decay_steps=0", "decay_steps=2", "warmup_steps=199"}) {
      CheckedGraph checked = checked_demo({fmt::format("resource.learner.schedule.kind={}", kind),
                                           fmt::format("resource.learner.schedule.{}", steps),
                                           "tenant.main.max_steps=200"});
      EXPECT_EQ(rehearse(checked, full_catalog()).end, Rehearsal::End::kPlayed)
          << kind << " " << steps << render(checked.diagnostics, checked.sources);
    }
}

TEST(Rehearsal, LeavesOutAGraphWhoseScheduleIsLongerThanTheStepsOfTheTenant) {
  for (const char* decay_steps : {"17", "18"}) {
    CheckedGraph checked = checked_demo(
        {"resource.learner.schedule.kind=linear", "resource.learner.schedule.warmup_steps=3",
         fmt::format("resource.learner.schedule.decay_steps={}", decay_steps),
         "tenant.main.max_steps=20"});
    const bool fits = std::string_view(decay_steps) == "17";
    EXPECT_EQ(rehearse(checked, full_catalog()).end,
              fits ? Rehearsal::End::kPlayed : Rehearsal::End::kLeftOut);
    const std::string seen = render(checked.diagnostics, checked.sources);
    EXPECT_EQ(seen.find("together exceed max_steps 20") == std::string::npos, fits) << seen;
  }
}

TEST(Rehearsal, IsTheSameEveryTime) {
  const std::string text = demo_without("prefill.load ");
  CheckedGraph one = checked_text(text), other = checked_text(text);
  EXPECT_EQ(findings_of(one), findings_of(other));
}

TEST(Rehearsal, IsCutShortWhereItWouldTakeLong) {
  CheckedGraph checked = checked_demo(
      {"tenant.main.batch_size=65536", "tenant.main.group_size=8", "node.rollout.max_inflight=64"});
  const Rehearsal rehearsal = rehearse(checked, full_catalog());
  EXPECT_EQ(rehearsal.end, Rehearsal::End::kCutShort);
  EXPECT_THAT(rehearsal.text, HasSubstr("tenant 'main' has taken 0 of 3 steps"));
  EXPECT_NE(checked.plan, nullptr);
  EXPECT_TRUE(checked.diagnostics.all().empty());
}

TEST(Rehearsal, SkipsAGraphWithErrors) {
  CheckedGraph checked = checked_demo({"tenant.main.batch_size=60"});
  EXPECT_EQ(rehearse(checked, full_catalog()).end, Rehearsal::End::kLeftOut);
  EXPECT_EQ(checked.diagnostics.num_errors(), 1U);
}

TEST(Rehearsal, SaysWhyARunWouldFail) {
  CheckedGraph checked =
      checked_demo({"resource.engine.backend=scripted", "resource.learner.backend=scripted",
                    "resource.engine.refuse_every=1"});
  const std::string seen = findings_of(checked);
  EXPECT_THAT(seen, HasSubstr("error[G081]: the run would fail"));
  EXPECT_THAT(seen, HasSubstr("rollouts failed: refused"));
}

struct Refused {
  std::string set;
  std::string finding;
};

class AValueThatCannotTrain : public ::testing::TestWithParam<Refused> {};

TEST_P(AValueThatCannotTrain, IsRefusedByARule) {
  const CheckedGraph checked = checked_demo({GetParam().set});
  EXPECT_EQ(checked.plan, nullptr);
  EXPECT_THAT(render(checked.diagnostics, checked.sources), HasSubstr(GetParam().finding));
  EXPECT_EQ(checked.diagnostics.num_errors(), 1U);
}

INSTANTIATE_TEST_SUITE_P(
    Demo, AValueThatCannotTrain,
    ::testing::Values(
        Refused{"tenant.main.group_size=1", "error[G083]: 'group_size' of tenant 'main' is 1"},
        Refused{"tenant.main.sampling.temperature=0",
                "error[G083]: 'sampling.temperature' of tenant 'main' is 0"},
        Refused{"tenant.main.sampling.top_k=1",
                "error[G083]: 'sampling.top_k' of tenant 'main' is 1"},
        Refused{"tenant.main.sampling.top_p=1e-9",
                "error[G083]: 'sampling.top_p' of tenant 'main' is"},
        Refused{"tenant.main.sampling.min_p=0.9999999999",
                "error[G083]: 'sampling.min_p' of tenant 'main' is"},
        Refused{"tenant.main.sampling.temperature=1e-30", "error[G023]: 'temperature' of"},
        Refused{"tenant.main.adapter={rank=4,path=\"/nowhere\"}",
                "error[G044]: the adapter of tenant 'main' cannot be used"},
        Refused{"tenant.main.adapter.rank=513", "error[G023]: 'rank' of 'adapter' of tenant"},
        Refused{"tenant.main.adapter.alpha=8",
                "error[G025]: 'adapter' of tenant 'main' needs 'rank'"},
        Refused{"resource.learner.loss.clip_low=inf", "error[G023]: 'clip_low' of"},
        Refused{"tenant.main.environment.length_min=9",
                "error[G085]: environment 'reverse_text' refuses its options: 'length_min' 9"},
        Refused{"tenant.main.environment.letters=\"\"",
                "error[G085]: environment 'reverse_text' refuses its options: 'letters' is empty"},
        Refused{"node.rollout.max_inflight=5000000000000000000", "error[G023]: 'max_inflight' of"},
        Refused{"graph.dead_after=\"999ms\"", "error[G023]: 'dead_after' of [graph] is 999ms"},
        Refused{"graph.stall_after=\"999ms\"", "error[G023]: 'stall_after' of [graph] is 999ms"},
        Refused{"resource.engine.kv_blocks=1",
                "error[G084]: a sequence of engine 'engine' has at most 16 tokens, but tenant "
                "'main' requests 16 new ones"}));

TEST(AnAdapter, NamesExistingLinears) {
  const auto with_targets = [](const std::string& targets) {
    const CheckedGraph checked =
        checked_demo({"tenant.main.adapter.rank=512", "tenant.main.adapter.targets=" + targets});
    return render(checked.diagnostics, checked.sources);
  };
  EXPECT_EQ(with_targets(R"(["q_proj", "down_proj"])"), "");
  EXPECT_EQ(with_targets(R"(["all-linear"])"), "");
  EXPECT_EQ(with_targets(R"(["all-linear", "lm_head"])"), "");
  EXPECT_THAT(with_targets(R"(["q_proj", "qproj"])"),
              HasSubstr("error[G083]: 'adapter.targets' of tenant 'main' cannot be used"));
  EXPECT_THAT(with_targets(R"(["all-linear", "q_proj"])"), HasSubstr("error[G083]"));
}

TEST(AnAdapter, UsedAsAStartIsReadBeforeAnythingStarts) {
  const auto model = std::filesystem::path(kExamples) / "reverse_text/model";
  const AdapterTable table(TensorTable(read_model_config(model).value()),
                           {.rank = 4, .alpha = 8, .targets = {"q_proj"}});
  std::vector<float> numbers(static_cast<size_t>(table.tensors().count()), 0.5F);
  const auto folder = new_scratch_folder() / "adapter";
  const auto findings_with = [&](const std::string& more) {
    EXPECT_TRUE(write_adapter_folder(folder, table.config(), "",
                                     view_parameters(table.tensors(), numbers.data()))
                    .ok());
    const CheckedGraph checked =
        checked_demo({"tenant.main.adapter.rank=4", "tenant.main.adapter.targets=[\"q_proj\"]",
                      "model.policy.path=" + model.string(),
                      "tenant.main.adapter.path=" + folder.string(), more});
    return render(checked.diagnostics, checked.sources);
  };
  EXPECT_EQ(findings_with("tenant.main.adapter.alpha=8"), "");
  EXPECT_THAT(findings_with("tenant.main.adapter.rank=8"),
              AllOf(HasSubstr("error[G044]: the adapter of tenant 'main' cannot be used: "),
                    HasSubstr("the adapter there has rank 4, this one 8")));
  EXPECT_THAT(findings_with("tenant.main.adapter.alpha=9"), HasSubstr("scaled by 2 (alpha 8)"));
  numbers[1] = NAN;
  EXPECT_THAT(findings_with("tenant.main.adapter.alpha=8"), HasSubstr("is nan"));
}

// Without a model, the limit is 2,048 tokens.
TEST(ACheckedGraph, KnowsHowLongSequencesOfAScriptedEngineAre) {
  std::string text = text_of("long_context/graph.toml");
  const std::string line =
      "kv_blocks = 131072                       # of 16 tokens: 16 such rollouts "
      "at once\nmax_sequence_tokens = 131072\n";
  ASSERT_NE(text.find(line), std::string::npos);
  text.replace(text.find(line), line.size(), "kv_blocks = 131072\n");
  const std::string base = kExamples + "/long_context/model";
  const auto findings = [&](std::vector<std::string> sets) {
    sets.push_back("model.policy.path=" + base);
    const CheckedGraph checked = checked_text(text, std::move(sets));
    return render(checked.diagnostics, checked.sources);
  };
  EXPECT_THAT(findings({}), HasSubstr("error[G078]: 'seq_len' 131072 of tenant 'main' is more than "
                                      "'max_sequence_tokens' 2048 of resource 'engine'"));
  EXPECT_THAT(
      findings({"resource.engine.max_sequence_tokens=0", "tenant.main.sampling.max_tokens=2048"}),
      HasSubstr("error[G084]: a sequence of engine 'engine' has at most 2048 tokens"));
  EXPECT_EQ(
      findings({"resource.engine.max_sequence_tokens=0", "tenant.main.sampling.max_tokens=2047"}),
      "");
}

TEST(AValueThatTrains, IsTakenOneBeyondTheRefusedOne) {
  for (const char* set : {"tenant.main.group_size=2", "tenant.main.sampling.temperature=0.001",
                          "tenant.main.sampling.top_k=2", "tenant.main.sampling.top_p=0.00001",
                          "tenant.main.sampling.min_p=0.999", "resource.engine.kv_blocks=2",
                          "tenant.main.environment.length_min=8", "graph.dead_after=\"1s\"",
                          "graph.stall_after=\"1s\""}) {
    const CheckedGraph checked = checked_demo({set});
    EXPECT_NE(checked.plan, nullptr) << set << render(checked.diagnostics, checked.sources);
  }
}

TEST(ScriptedEngine, HasItsOwnOptionsChecked) {
  for (const char* set : {"eos_id=50", "first_token=200", "vocab_size=2"}) {
    const CheckedGraph checked =
        checked_demo({"resource.engine.backend=scripted", "resource.learner.backend=scripted",
                      fmt::format("resource.engine.{}", set)});
    EXPECT_THAT(render(checked.diagnostics, checked.sources),
                HasSubstr("error[G085]: resource 'engine' refuses its options"))
        << set;
  }
}

TEST(Tasks, LeaveTokensForAnAnswer) {
  // "r:abcdefgh>" has 11 tokens.
  const auto seen_with = [](const std::string& set) {
    CheckedGraph checked = checked_demo({set});
    return findings_of(checked);
  };
  EXPECT_EQ(seen_with("tenant.main.seq_len=12"), "");
  EXPECT_THAT(seen_with("tenant.main.seq_len=11"),
              HasSubstr("error[G086]: no task of environment 'reverse_text' fits tenant 'main': of "
                        "the first prompt, it has 11 tokens, and 'seq_len' 11 leaves no room"));
}

TEST(Tasks, TakeNoMoreTurnsThanTheTenantHas) {
  const auto seen_with = [](const std::string& turns_max) {
    CheckedGraph checked = checked_text(text_of("arithmetic_tool/graph.toml"), {turns_max});
    return findings_of(checked);
  };
  EXPECT_EQ(seen_with("tenant.main.turns_max=2"), "");
  EXPECT_THAT(seen_with("tenant.main.turns_max=1"),
              HasSubstr("an answer takes 2 turns, 'turns_max' is 1"));
}

TEST(Rehearsal, WaitsForALearnerThatIsBusyForLong) {
  Overrides overrides;
  overrides.sets = {"tenant.main.batch_size=131072", "tenant.main.group_size=1"};
  CheckedGraph checked =
      load_graph(kExamples + "/reverse_text/sft.toml", overrides, full_catalog());
  const Rehearsal rehearsal = rehearse(checked, full_catalog());
  EXPECT_NE(rehearsal.end, Rehearsal::End::kRefused)
      << rehearsal.text << render(checked.diagnostics, checked.sources);
}

TEST(Rehearsal, WaitsForAnEngineThatMakesLongCompletions) {
  Overrides overrides;
  // 8 x 60,000 tokens: 9.6 s of the virtual clock without a message.
  overrides.sets = {"model.policy.path=\"" + kExamples + "/reverse_text/base\"",
                    "resource.engine.backend=\"scripted\"",
                    "resource.engine.max_sequence_tokens=65536",
                    "resource.engine.kv_blocks=65536",
                    "resource.engine.new_tokens_min=60000",
                    "resource.engine.new_tokens_max=60000",
                    "resource.learner.backend=\"scripted\"",
                    "resource.learner.max_sequence_tokens=65536",
                    "tenant.main.group_size=8",
                    "tenant.main.batch_size=8",
                    "tenant.main.sampling={ max_tokens = 60000 }"};
  CheckedGraph checked =
      load_graph(kExamples + "/reverse_text/graph.toml", overrides, full_catalog());
  ASSERT_NE(checked.plan, nullptr) << render(checked.diagnostics, checked.sources);
  const Rehearsal rehearsal = rehearse(checked, full_catalog());
  EXPECT_NE(rehearsal.end, Rehearsal::End::kRefused)
      << rehearsal.text << render(checked.diagnostics, checked.sources);
}

TEST(SupervisedTraining, HasOneSourceOfExamples) {
  const std::string text = text_of("reverse_text/sft.toml");
  const CheckedGraph two = checked_text(text, {"node.data.replicas=2"});
  EXPECT_THAT(
      render(two.diagnostics, two.sources),
      HasSubstr("error[G070]: node 'data' has 2 replicas, but there can be only one 'data'"));
  const CheckedGraph second = checked_text(
      text +
      "[node.more]\nactor = \"data\"\nper_tenant = true\n[edges]\n"
      "forward = [\"data.group -> trainer.group\", \"more.group -> trainer.group\"]\n");
  EXPECT_THAT(render(second.diagnostics, second.sources),
              HasSubstr("is a second 'data', but a graph can have only one"));
}

TEST(SupervisedTraining, TakesGroupsOfOne) {
  Overrides overrides;
  overrides.sets = {"tenant.main.group_size=1", "tenant.main.sampling.temperature=0"};
  CheckedGraph checked =
      load_graph(kExamples + "/reverse_text/sft.toml", overrides, full_catalog());
  EXPECT_EQ(rehearse(checked, full_catalog()).end, Rehearsal::End::kPlayed)
      << render(checked.diagnostics, checked.sources);
}

}  // namespace
}  // namespace primerl::testing
