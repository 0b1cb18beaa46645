// A real model, SmolLM2-135M-Instruct, compared with transformers: ids, greedy tokens,
// log-probabilities; and engine compared with learner.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <sstream>

#include "kernels/devices/make.h"
#include "kernels/text/chat/format.h"
#include "kernels/text/tokenizer.h"
#include "tests/base/made_by_python.h"
#include "tests/base/real_model.h"

namespace primerl {
namespace {

constexpr double kTolerance = 2e-4;  // for one log-probability

std::vector<int32_t> ids_of(const Json& json) {
  std::vector<int32_t> ids;
  for (const auto& id : json.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  return ids;
}

/// Skips if the folder is not there; else reads what transformers computes with it, made once.
class SmolLM2 : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto folder = testing::smollm2_folder();
    if (!folder) GTEST_SKIP() << "no folder of SmolLM2: `scripts/setup.sh --tests` makes it";
    folder_ = *folder;
    const auto made = testing::made_by_python(PRIMERL_PYTHON, "transformers",
                                              "tests/cpu/make_smollm2.py", "smollm2");
    ASSERT_TRUE(made.has_value()) << "no package 'transformers' in " PRIMERL_PYTHON;
    std::ostringstream text;
    text << std::ifstream(*made / "expected.json").rdbuf();
    expected_ = parse_json(text.str(), "expected.json").value();
  }

  const std::vector<Json>& cases() const { return expected_.find("cases")->as_array(); }

  std::unique_ptr<Engine> make_engine() const {
    EngineOptions options;
    options.kv_blocks = 256;
    auto engine = make_torch_engine(options, folder_);
    CHECK(engine.ok(), engine.error().text());
    return std::move(engine).value();
  }

  std::unique_ptr<Learner> make_learner() const {
    auto learner = make_torch_learner(LearnerOptions(), folder_);
    CHECK(learner.ok(), learner.error().text());
    return std::move(learner).value();
  }

  std::filesystem::path folder_;
  Json expected_;
};

/// Runs all submitted requests; events in the order of their ids.
std::vector<FinishEvent> run(Engine& engine) {
  std::vector<FinishEvent> ends;
  while (engine.has_work()) {
    CHECK(engine.step().ok(), "a step failed");
    for (const auto& event : engine.take_prefilled())
      CHECK(engine.take_over(event.id).ok(), "nothing to take over");
    for (auto& event : engine.take_finished()) ends.push_back(std::move(event));
  }
  std::sort(ends.begin(), ends.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return ends;
}

TEST_F(SmolLM2, TokenizerAndChatTemplateGiveTheIdsOfTransformers) {
  const auto tokenizer = load_tokenizer(folder_).value();
  const auto& texts = expected_.find("texts")->as_array();
  ASSERT_EQ(texts.size(), 200U);
  for (const Json& each : texts) {
    const std::string& text = each.find("text")->as_string();
    const auto ids = tokenizer->encode_with_specials(text);
    ASSERT_TRUE(ids.ok()) << ids.error().text();
    EXPECT_EQ(*ids, ids_of(*each.find("ids"))) << text;
  }
  const auto format = chat::ChatFormat::make(*tokenizer, {}).value();
  ASSERT_GE(cases().size(), 7U);
  for (const Json& each : cases()) {
    std::vector<ChatMessage> messages;
    for (const Json& message : each.find("messages")->as_array()) {
      messages.emplace_back();
      messages.back().role = *message.get_string("role");
      messages.back().content = {{.text = *message.get_string("content")}};
    }
    EXPECT_EQ(format.prompt(messages, nullptr).value(), ids_of(*each.find("prompt")));
  }
}

TEST_F(SmolLM2, GreedyTokensAndLikeliestTokensAreThoseOfTransformers) {
  const auto engine = make_engine();
  for (size_t i = 0; i < cases().size(); ++i) {
    SequenceRequest request;
    request.id = SequenceId(i);
    request.prompt_tokens = ids_of(*cases()[i].find("prompt"));
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 32;
    request.sampling.ignore_eos = true;
    request.sampling.num_top_logprobs = 5;
    ASSERT_TRUE(engine->submit(request).ok());
  }
  const auto ends = run(*engine);
  ASSERT_EQ(ends.size(), cases().size());
  double worst = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    ASSERT_EQ(ends[i].tokens, ids_of(*cases()[i].find("tokens"))) << "chat " << i;
    const auto& rows = cases()[i].find("top")->as_array();
    ASSERT_EQ(ends[i].top_logprobs.size(), rows.size() * 5);
    // Two tokens of nearly equal probability may change places, so the rank decides.
    for (size_t t = 0; t < rows.size(); ++t)
      for (size_t k = 0; k < 5; ++k)
        worst = std::max(worst, std::abs(ends[i].top_logprobs[t * 5 + k].logprob -
                                         rows[t].as_array()[k].as_array().at(1).as_double()));
  }
  std::cout << "largest difference of a likeliest token: " << worst << "\n";
  EXPECT_LE(worst, kTolerance);
}

TEST_F(SmolLM2, ScoresAreThoseOfTransformers) {
  const auto learner = make_learner();
  double worst = 0;
  for (const Json& each : cases()) {
    auto ids = ids_of(*each.find("prompt"));
    const auto tokens = ids_of(*each.find("tokens"));
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    const auto scores = learner->score(TenantSlot(0), ids);
    ASSERT_TRUE(scores.ok()) << scores.error().text();
    const auto& logprobs = each.find("logprobs")->as_array();
    ASSERT_EQ(scores->size(), logprobs.size());
    for (size_t i = 0; i < logprobs.size(); ++i)
      worst = std::max(worst, std::abs(scores->at(i) - logprobs[i].as_double()));
  }
  std::cout << "largest difference of a log-probability: " << worst << "\n";
  EXPECT_LE(worst, kTolerance);
}

TEST_F(SmolLM2, EngineAndLearnerAgreeOnSampledTokensBitForBit) {
  std::vector<std::vector<int32_t>> sequences;
  std::vector<std::vector<float>> logprobs;
  {
    const auto engine = make_engine();
    for (size_t i = 0; i < cases().size(); ++i) {
      SequenceRequest request;
      request.id = SequenceId(i);
      request.prompt_tokens = ids_of(*cases()[i].find("prompt"));
      request.sampling.max_tokens = 16;
      request.sampling.ignore_eos = true;
      request.seed = i;
      sequences.push_back(request.prompt_tokens);
      ASSERT_TRUE(engine->submit(request).ok());
    }
    for (const auto& end : run(*engine)) {
      auto& sequence = sequences[static_cast<size_t>(end.id.value)];
      sequence.insert(sequence.end(), end.tokens.begin(), end.tokens.end());
      ASSERT_EQ(end.logprobs.size(), 16U);
      logprobs.push_back(end.logprobs);
    }
  }
  const auto learner = make_learner();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto scores = learner->score(TenantSlot(0), sequences[i]).value();
    EXPECT_EQ(std::vector<float>(scores.end() - 16, scores.end()), logprobs[i]) << "chat " << i;
  }
}

}  // namespace
}  // namespace primerl
