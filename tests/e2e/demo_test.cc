// The demo as a user runs it, with fewer steps: a real model, real steps, rising reward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/e2e/run_files.h"
#include "tests/e2e/trace_files.h"

namespace primerl {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr const char* kGraph = "examples/reverse_text/graph.toml";

class Demo : public testing::Test {
 protected:
  void SetUp() override {
    const auto weights = source_path("examples/reverse_text/model/model.safetensors");
    ASSERT_TRUE(fs::exists(weights)) << weights << " is part of the repository and is missing; "
                                     << "'git checkout -- examples' brings it back";
  }
  ProgramEnd run(std::vector<std::string> more) {
    std::vector<std::string> words{"run", source_path(kGraph), "--out", folder().string()};
    words.insert(words.end(), more.begin(), more.end());
    return run_graph_program(words);
  }
  /// Resumes the run until it has `num_steps` steps.
  void expect_continues(int64_t num_steps) const {
    const auto end = run_graph_program(
        {"run", "--resume", folder().string(), "--max-steps", std::to_string(num_steps)});
    ASSERT_EQ(end.code, 0) << end.err;
    ASSERT_EQ(expect_steps_once(folder()), num_steps);
  }
  void expect_replays_and_continues(int64_t num_steps) const {
    expect_replays_at(folder(), {"full"});
    expect_continues(num_steps);
  }
  fs::path folder() const { return scratch_.path() / "run"; }
  double reward(size_t begin, size_t end) const {
    const auto steps = lines_of(folder() / "metrics.jsonl");
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += *steps.at(i).get_double("reward/all/mean");
    return sum / static_cast<double>(end - begin);
  }

 private:
  ScratchFolder scratch_;
};

TEST_F(Demo, RewardRisesAndNoTokenIsTooStale) {
  const auto end = run({"--max-steps", "60"});
  ASSERT_EQ(end.code, 0) << end.err;
  const auto steps = lines_of(folder() / "metrics.jsonl");
  ASSERT_EQ(steps.size(), 60U);
  EXPECT_GT(reward(50, 60), reward(0, 5) + 0.1);
  for (const auto& step : steps) EXPECT_LE(*step.get_double("off_policy/max"), 2);
}

TEST_F(Demo, LeavesATraceThatIsWholeAndClosed) {
  const auto end = run({"--max-steps", "4"});
  ASSERT_EQ(end.code, 0) << end.err;
  const TraceContent trace = read_trace(folder() / "trace");
  EXPECT_EQ(trace.num_ends, 1U);
  EXPECT_EQ(trace.deliveries_at_end, trace.num_deliveries);
  EXPECT_EQ(trace.num_bad_bytes, 0U);
  EXPECT_TRUE(trace.is_dense());
  EXPECT_EQ(trace.stored.at("WeightsReady"), 4U + 1U);
  EXPECT_GE(trace.stored.at("Completion"), lines_of(folder() / "rollouts.jsonl").size());
}

TEST_F(Demo, StrictlyOnPolicyMeansNoStaleness) {
  const auto end = run({"--max-steps", "5", "--set", "tenant.main.max_off_policy_steps=0"});
  ASSERT_EQ(end.code, 0) << end.err;
  for (const auto& step : lines_of(folder() / "metrics.jsonl"))
    EXPECT_EQ(*step.get_double("off_policy/max"), 0);
}

/// The first step of the demo at limit 0, on one thread, where engine and learner are equal bit for
/// bit.
std::vector<std::string> first_step() {
  return {"--max-steps", "1",
          "--set",       "tenant.main.max_off_policy_steps=0",
          "--set",       "resource.engine.threads=1",
          "--set",       "resource.learner.threads=1"};
}

TEST_F(Demo, TruncatedSamplingIsTrainedWithoutAnyMismatch) {
  auto words = first_step();
  words.insert(words.end(), {"--set", "tenant.main.sampling={ top_k = 3, max_tokens = 16 }"});
  const auto end = run(words);
  ASSERT_EQ(end.code, 0) << end.err;
  const auto step = lines_of(folder() / "metrics.jsonl").at(0);
  EXPECT_EQ(*step.get_double("mismatch_kl/all/max"), 0);
  EXPECT_EQ(*step.get_double("masked/all/mean"), 0);
  EXPECT_EQ(*step.get_double("progress/samples_failed"), 0);
}

/// The demo with an engine that is loaded from `model`.
std::vector<std::string> with_engine_of(const fs::path& model, const fs::path& overlay) {
  std::ofstream(overlay) << fmt::format(
      "[model.other]\npath = \"{}\"\n[resource.engine]\nmodel = \"other\"\n"
      "[resource.learner]\nmodel = \"policy\"\n[node.rollout]\nmodel = \"policy\"\n",
      model.string());
  auto words = first_step();
  words.insert(words.end(), {"--overlay", overlay.string()});
  return words;
}

TEST_F(Demo, AnEngineOfAnotherFolderMakesTheFirstStepWithTheLearnersWeights) {
  ScratchFolder other;
  const fs::path moved = other.path() / "run";
  ASSERT_EQ(run_graph_program({"run", source_path(kGraph), "--out", moved.string(), "--max-steps",
                               "1", "--set", "resource.learner.optimizer.lr=0.01"})
                .code,
            0);
  const auto end =
      run(with_engine_of(moved / "checkpoints/step_1/weights", other.path() / "overlay.toml"));
  ASSERT_EQ(end.code, 0) << end.err;
  const auto step = lines_of(folder() / "metrics.jsonl").at(0);
  EXPECT_EQ(*step.get_double("mismatch_kl/all/max"), 0);
}

TEST_F(Demo, AnEngineOfAnotherShapeIsRefusedBeforeTheRun) {
  ScratchFolder other;
  const auto end = run(
      with_engine_of(source_path("examples/arithmetic_tool/model"), other.path() / "overlay.toml"));
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, HasSubstr("error[G087]: model 'other' of engine 'engine'"));
  EXPECT_THAT(end.err, HasSubstr("hidden_size is 128 and 64"));
}

std::vector<std::string> with_adapter(std::vector<std::string> words) {
  words.insert(words.end(), {"--set", "tenant.main.adapter.rank=16", "--set",
                             "resource.learner.optimizer.lr=1e-3"});
  return words;
}

TEST_F(Demo, AnAdapterLearnsOnWeightsThatStay) {
  const auto end = run(with_adapter({"--max-steps", "100"}));
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_GT(reward(90, 100), reward(0, 5) + 0.1);
  const fs::path weights = folder() / "checkpoints/step_100/weights";
  EXPECT_TRUE(fs::exists(weights / "adapter_config.json"));
  EXPECT_TRUE(fs::exists(weights / "adapter_model.safetensors"));
  EXPECT_FALSE(fs::exists(weights / "model.safetensors"));
}

TEST_F(Demo, AnAdapterIsTheSameToEngineAndLearnerAndToAReplay) {
  auto words = with_adapter(first_step());
  words[1] = "4";  // the first version's adapter is still zero
  const auto end = run(words);
  ASSERT_EQ(end.code, 0) << end.err;
  for (const auto& step : lines_of(folder() / "metrics.jsonl"))
    EXPECT_EQ(*step.get_double("mismatch_kl/all/max"), 0);
  // From the checkpoint the adapter continues, with its optimizer state.
  expect_replays_and_continues(6);
}

/// Runs with other numbers of matmuls.
class DemoOfProducts : public Demo, public testing::WithParamInterface<const char*> {};

TEST_P(DemoOfProducts, HasTheSameNumbersInEngineAndLearnerAndInAReplay) {
  auto words = first_step();
  words[1] = "3";
  for (const char* resource : {"engine", "learner"})
    words.insert(words.end(),
                 {"--set", fmt::format("resource.{}.products={}", resource, GetParam())});
  const auto end = run(words);
  ASSERT_EQ(end.code, 0) << end.err;
  for (const auto& step : lines_of(folder() / "metrics.jsonl"))
    EXPECT_EQ(*step.get_double("mismatch_kl/all/max"), 0);
  // The checkpoint has the masters, which are rounded again.
  expect_replays_and_continues(4);
  EXPECT_EQ(*lines_of(folder() / "metrics.jsonl").at(3).get_double("mismatch_kl/all/max"), 0);
}

INSTANTIATE_TEST_SUITE_P(Numbers, DemoOfProducts, testing::Values("bf16", "fp8"),
                         [](const auto& one) { return std::string(one.param); });

TEST_F(Demo, ACheckpointsAdapterGeneratesOnItsModelAlone) {
  ASSERT_EQ(run(with_adapter({"--max-steps", "2"})).code, 0);
  const std::string adapter = (folder() / "checkpoints/step_2/weights").string();
  const auto generate = [](const std::string& model, std::vector<std::string> more) {
    std::vector<std::string> words{"generate", "--model", source_path(model), "--prompt-ids",
                                   "5,6,7",    "--json",  "--temperature",    "0"};
    words.insert(words.end(), more.begin(), more.end());
    return run_graph_program(words);
  };
  const auto base = generate("examples/reverse_text/model", {});
  const auto adapted = generate("examples/reverse_text/model", {"--adapter", adapter});
  ASSERT_EQ(adapted.code, 0) << adapted.err;
  EXPECT_NE(adapted.out, base.out);
  const auto other = generate("examples/arithmetic_tool/model", {"--adapter", adapter});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("adapter"));
}

TEST_F(Demo, AnAdapterMayStartFromAFolder) {
  ASSERT_EQ(run(with_adapter({"--max-steps", "2"})).code, 0);
  const fs::path first = folder() / "checkpoints/step_2/weights";
  const auto start = [&](const std::string& rank) {
    return run_graph_program({"run", source_path(kGraph), "--out", (folder() / "more").string(),
                              "--max-steps", "1", "--set", "resource.learner.optimizer.lr=0",
                              "--set", "tenant.main.adapter.rank=" + rank, "--set",
                              "tenant.main.adapter.path=" + first.string()});
  };
  const auto end = start("16");
  ASSERT_EQ(end.code, 0) << end.err;
  const auto adapter = [](const fs::path& weights) {
    return *read_text_file(weights / "adapter_model.safetensors");
  };
  EXPECT_EQ(adapter(folder() / "more/checkpoints/step_1/weights"), adapter(first))
      << "a learning rate of 0 changes nothing";
  fs::remove_all(folder() / "more");
  const auto other = start("8");
  EXPECT_NE(other.code, 0);
  EXPECT_THAT(other.err, HasSubstr("rank"));
}

TEST_F(Demo, AResumedRunContinuesFromTheSameWeights) {
  ASSERT_EQ(run({"--max-steps", "4"}).code, 0);
  expect_continues(6);
  EXPECT_EQ(*json_file(folder() / "checkpoints/step_6/manifest.json").get_int("version"), 6);
}

TEST_F(Demo, ACheckpointIsAModelThatGenerates) {
  ASSERT_EQ(run({"--max-steps", "2"}).code, 0);
  const auto end =
      run_graph_program({"generate", "--model", (folder() / "checkpoints/step_2/weights").string(),
                         "--prompt", "r:abc>", "--max-tokens", "6", "--json"});
  ASSERT_EQ(end.code, 0) << end.err;
  const auto completion = parse_json(end.out, "generate");
  ASSERT_TRUE(completion.ok()) << end.out;
  EXPECT_FALSE(completion->find("token_ids")->as_array().empty());
  EXPECT_EQ(completion->find("token_ids")->as_array().size(),
            completion->find("logprobs")->as_array().size());
}

}  // namespace
}  // namespace primerl
