// The arithmetic_tool example, a few steps: several turns, and the prompt that the engine saw in
// each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "actors/env/environments/arithmetic_tool.h"
#include "kernels/text/tokenizer.h"
#include "tests/e2e/run_files.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<int32_t>;

constexpr double kTolerance = 1e-4;  // for one log-probability
constexpr size_t kScoredMax = 32;    // rollouts

/// One turn in the logged tokens: the sampled tokens [begin, end).
struct Turn {
  size_t begin = 0;
  size_t end = 0;
};

/// Adjacent spans of different versions are one turn; the policy's input separates turns.
std::vector<Turn> turns_of(const Json& rollout) {
  std::vector<Turn> turns;
  for (const auto& span : rollout.find("versions")->as_array()) {
    const auto begin = static_cast<size_t>(*span.get_int("begin"));
    const auto end = static_cast<size_t>(*span.get_int("end"));
    if (turns.empty() || turns.back().end != begin) turns.push_back({begin, begin});
    turns.back().end = end;
  }
  return turns;
}

bool is_of_version_0(const Json& rollout) {
  for (const auto& span : rollout.find("versions")->as_array())
    if (*span.get_int("version") != 0) return false;
  return true;
}

Tokens tokens_of(const Json& rollout, const char* key = "tokens") {
  Tokens tokens;
  for (const auto& id : rollout.find(key)->as_array())
    tokens.push_back(static_cast<int32_t>(id.as_int()));
  return tokens;
}

Tokens slice(const Tokens& tokens, size_t begin, size_t end) {
  return {tokens.begin() + static_cast<std::ptrdiff_t>(begin),
          tokens.begin() + static_cast<std::ptrdiff_t>(end)};
}

class ArithmeticToolExample : public testing::Test {
 protected:
  void SetUp() override {
    const auto end = run_graph_program({"run", source_path("examples/arithmetic_tool/graph.toml"),
                                        "--out", folder().string(), "--max-steps", "6", "--set",
                                        "node.rollout.log_tokens=true"});
    ASSERT_EQ(end.code, 0) << end.err;
    ASSERT_EQ(run_end(folder()), "finished");
    for (auto& rollout : lines_of(folder() / "rollouts.jsonl"))
      if (*rollout.get_string("end") == "trained") trained_.push_back(std::move(rollout));
    ASSERT_EQ(trained_.size(), 6 * 64U);
  }
  fs::path folder() const { return scratch_.path() / "run"; }

  const fs::path model_ = source_path("examples/arithmetic_tool/model");
  const ScratchFolder scratch_;
  std::vector<Json> trained_;
};

/// The task of a prompt, with the answer that the calculator itself gives.
EnvironmentTask task_of(Environment& environment, const std::string& prompt) {
  const std::string call = "c:" + prompt.substr(2, prompt.size() - 3) + "=";
  std::string answer = environment.step({prompt, ""}, {call})->text;
  answer.pop_back();
  return {prompt, answer};
}

TEST_F(ArithmeticToolExample, EveryTurnReadsTheTurnBeforeAndTheToolsAnswerAndNothingElse) {
  const auto tokenizer = *load_tokenizer(model_);
  const auto environment = *make_arithmetic_tool({});
  int num_called = 0;
  for (const auto& rollout : trained_) {
    SCOPED_TRACE(rollout.dump());
    const Tokens tokens = tokens_of(rollout);
    const auto turns = turns_of(rollout);
    ASSERT_EQ(static_cast<int64_t>(turns.size()), *rollout.get_int("turns"));
    const auto task = task_of(*environment, *rollout.get_string("prompt"));
    // The expected tokens before each turn's sampled tokens.
    Tokens read = *tokenizer->encode_text(task.prompt);
    EXPECT_EQ(tokens_of(rollout, "prompt_tokens"), read);
    std::vector<std::string> actions;
    EnvironmentStep step;
    for (const auto& turn : turns) {
      ASSERT_FALSE(step.done);
      ASSERT_EQ(slice(tokens, 0, turn.begin), read);
      const Tokens said = slice(tokens, turn.begin, turn.end);
      actions.push_back(*tokenizer->decode(said));
      step = *environment->step(task, actions);
      read.insert(read.end(), said.begin(), said.end());
      const Tokens observed = *tokenizer->encode_text(step.text);
      read.insert(read.end(), observed.begin(), observed.end());
    }
    EXPECT_EQ(tokens, read);
    EXPECT_TRUE(step.done);
    EXPECT_EQ(*rollout.get_double("reward"), step.reward);
    num_called += turns.size() > 1 ? 1 : 0;
  }
  EXPECT_GT(num_called, static_cast<int>(trained_.size()) / 2);
  for (const auto& metrics : lines_of(folder() / "metrics.jsonl"))
    EXPECT_TRUE(std::isfinite(*metrics.get_double("reward/all/mean")));
}

TEST_F(ArithmeticToolExample, TheEngineGaveEveryTokenTheProbabilityItHasAfterThatVeryPrefix) {
  std::vector<const Json*> checked;
  std::string ids;
  for (const auto& rollout : trained_) {
    if (!is_of_version_0(rollout) || turns_of(rollout).size() < 2) continue;
    if (checked.size() == kScoredMax) break;
    std::string line;
    for (const int32_t id : tokens_of(rollout))
      line += (line.empty() ? "" : ",") + fmt::format("{}", id);
    ids += line + "\n";
    checked.push_back(&rollout);
  }
  ASSERT_GT(checked.size(), 0U) << "no rollout of two turns was made by version 0 alone";
  const fs::path file = scratch_.path() / "ids.txt";
  std::ofstream(file) << ids;
  const auto scored = run_graph_program(
      {"score", "--model", model_.string(), "--ids-file", file.string(), "--json"});
  ASSERT_EQ(scored.code, 0) << scored.err;
  std::istringstream lines(scored.out);
  for (const Json* rollout : checked) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    const Json score = *parse_json(line, "score");
    const auto& learner = score.find("logprobs")->as_array();  // one per token after the first
    const auto& engine = rollout->find("logprobs")->as_array();
    for (const auto& turn : turns_of(*rollout))
      for (size_t i = turn.begin; i < turn.end; ++i)
        ASSERT_NEAR(engine[i].as_double(), learner[i - 1].as_double(), kTolerance)
            << i << " of " << rollout->dump();
  }
}

TEST(ArithmeticToolSft, LearnsFromWhatTheEnvironmentDemonstrates) {
  const ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  const auto end = run_graph_program({"sft", source_path("examples/arithmetic_tool/sft.toml"),
                                      "--out", folder.string(), "--max-steps", "8"});
  ASSERT_EQ(end.code, 0) << end.err;
  const auto steps = lines_of(folder / "metrics.jsonl");
  ASSERT_EQ(steps.size(), 8U);
  EXPECT_LT(*steps.back().get_double("loss/mean"), *steps.front().get_double("loss/mean") - 0.5);
  for (const auto& step : steps) EXPECT_EQ(*step.get_int("progress/samples_failed"), 0);
}

}  // namespace
}  // namespace primerl
