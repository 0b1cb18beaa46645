// The engine and the learner compared with transformers, on tiny random fp32 models.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <span>

#include "kernels/cpu/learner/learner.h"
#include "kernels/devices/make.h"
#include "kernels/weights/safetensors.h"
#include "tests/cpu/reference_models.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using testing::reference;
using testing::reference_models;

std::vector<int32_t> ids_of(const Json& json) {
  std::vector<int32_t> ids;
  for (const auto& id : json.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  return ids;
}

std::unique_ptr<Engine> make_engine(const std::string& name, const EngineOptions& options = {}) {
  auto engine = make_torch_engine(options, reference_models() / name);
  CHECK(engine.ok(), engine.error().text());
  return std::move(engine).value();
}

std::unique_ptr<Learner> make_learner(const std::string& name, LearnerOptions options = {}) {
  auto learner = make_torch_learner(options, reference_models() / name);
  CHECK(learner.ok(), learner.error().text());
  return std::move(learner).value();
}

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

class Parity : public ::testing::TestWithParam<std::string> {};
/// Tests that are the same for every family.
class SamplingParity : public Parity {};

TEST_P(Parity, ScoresLikeTransformers) {
  auto learner = make_learner(GetParam());
  double worst = 0;
  for (const auto& sequence : reference(GetParam()).find("sequences")->as_array()) {
    const auto scored = learner->score(TenantSlot(0), ids_of(*sequence.find("ids")));
    ASSERT_TRUE(scored.ok()) << scored.error().text();
    const auto& expected = sequence.find("logprobs")->as_array();
    ASSERT_EQ(scored->size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
      worst = std::max(worst, std::abs(scored->at(i) - expected[i].as_double()));
  }
  RecordProperty("worst_difference", std::to_string(worst));
  EXPECT_LE(worst, 1e-5);
  std::cout << "largest difference of a log-probability: " << worst << "\n";
}

TEST_P(Parity, GreedyTokensAreThoseOfTransformers) {
  auto engine = make_engine(GetParam());
  const auto& cases = reference(GetParam()).find("greedy")->as_array();
  for (size_t i = 0; i < cases.size(); ++i) {
    SequenceRequest request;
    request.id = SequenceId(i);
    request.prompt_tokens = ids_of(*cases[i].find("prompt"));
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 64;
    request.sampling.ignore_eos = true;
    ASSERT_TRUE(engine->submit(request).ok());
  }
  const auto ends = run(*engine);
  ASSERT_EQ(ends.size(), cases.size());
  for (size_t i = 0; i < cases.size(); ++i)
    EXPECT_EQ(ends[i].tokens, ids_of(*cases[i].find("tokens"))) << "prompt " << i;
}

TEST_P(Parity, EngineAndLearnerAgreeOnEveryLogprobBitForBit) {
  auto engine = make_engine(GetParam());
  auto learner = make_learner(GetParam());
  std::vector<SequenceRequest> requests;
  for (uint64_t i = 0; i < 24; ++i) {
    SequenceRequest request;
    request.id = SequenceId(i);
    for (uint64_t t = 0; t < 1 + i * 3; ++t)
      request.prompt_tokens.push_back(static_cast<int32_t>(2 + (i * 17 + t * 29) % 120));
    request.sampling.max_tokens = 30;
    request.sampling.ignore_eos = true;
    request.seed = i;
    requests.push_back(request);
    ASSERT_TRUE(engine->submit(request).ok());
  }
  const auto ends = run(*engine);
  ASSERT_EQ(ends.size(), requests.size());
  float worst = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    auto tokens = requests[i].prompt_tokens;
    const size_t prompt = tokens.size();
    tokens.insert(tokens.end(), ends[i].tokens.begin(), ends[i].tokens.end());
    const auto scored = learner->score(TenantSlot(0), tokens).value();
    for (size_t t = 0; t < ends[i].tokens.size(); ++t)
      worst = std::max(worst, std::abs(scored[prompt - 1 + t] - ends[i].logprobs[t]));
  }
  std::cout << "largest difference of engine and learner: " << worst << "\n";
  EXPECT_EQ(worst, 0.0F);
}

TEST_P(Parity, PromptLogprobsAreTheLearnersScoresBitForBit) {
  auto learner = make_learner(GetParam());
  for (const int32_t max_batched_tokens : {4096, 7}) {
    auto engine =
        make_engine(GetParam(), {.max_running = 5, .max_batched_tokens = max_batched_tokens});
    const auto& sequences = reference(GetParam()).find("sequences")->as_array();
    for (size_t i = 0; i < sequences.size(); ++i) {
      SequenceRequest request;
      request.id = SequenceId(i);
      request.prompt_tokens = ids_of(*sequences[i].find("ids"));
      request.sampling.max_tokens = 2;
      request.sampling.prompt_logprobs = true;
      ASSERT_TRUE(engine->submit(request).ok());
    }
    const auto ends = run(*engine);
    ASSERT_EQ(ends.size(), sequences.size());
    for (size_t i = 0; i < ends.size(); ++i)
      EXPECT_EQ(ends[i].prompt_logprobs,
                learner->score(TenantSlot(0), ids_of(*sequences[i].find("ids"))).value());
  }
}

/// Three uses of the options, with increasing strength.
std::vector<SequenceRequest> processed_requests() {
  std::vector<SequenceRequest> requests;
  for (uint64_t i = 0; i < 3; ++i) {
    SequenceRequest& request = requests.emplace_back();
    request.id = SequenceId(i);
    for (uint64_t t = 0; t < 5 + i * 4; ++t)
      request.prompt_tokens.push_back(static_cast<int32_t>(2 + (i * 17 + t * 29) % 120));
    request.seed = i;
    SamplingParams& sampling = request.sampling;
    sampling.temperature = 0.8 + 0.3 * static_cast<double>(i);
    sampling.top_k = 90;
    sampling.max_tokens = 40;
    sampling.min_tokens = 12 + static_cast<int32_t>(i);
    sampling.stop_ids = {9, 30};
    sampling.logit_bias = {{9, 2}, {40, -3}, {77, 1.5}};
    sampling.repetition_penalty = 0.7 + 0.5 * static_cast<double>(i);
    sampling.frequency_penalty = 0.6 * static_cast<double>(i);
    sampling.presence_penalty = -0.4 * static_cast<double>(i);
    sampling.num_top_logprobs = 6;
  }
  return requests;
}

Json wanted_of(const SequenceRequest& request, const FinishEvent& end) {
  const SamplingParams& sampling = request.sampling;
  Json biases = Json::array();
  for (const auto& [token, bias] : sampling.logit_bias) {
    Json both = Json::array();
    both.push_back(static_cast<int64_t>(token));
    both.push_back(bias);
    biases.push_back(std::move(both));
  }
  return Json::object()
      .set("prompt", Json::list(request.prompt_tokens))
      .set("tokens", Json::list(end.tokens))
      .set("logit_bias", std::move(biases))
      .set("ends", Json::list(std::vector<int32_t>{1, 9, 30}))  // its eos is 1
      .set("min_tokens", static_cast<int64_t>(sampling.min_tokens))
      .set("repetition_penalty", sampling.repetition_penalty)
      .set("frequency_penalty", sampling.frequency_penalty)
      .set("presence_penalty", sampling.presence_penalty)
      .set("temperature", sampling.temperature)
      .set("top_k", static_cast<int64_t>(sampling.top_k))
      .set("num_top", static_cast<int64_t>(sampling.num_top_logprobs));
}

TEST_P(SamplingParity, SamplingOptionsDoWhatTransformersDoes) {
  const auto requests = processed_requests();
  auto engine = make_engine(GetParam());
  for (const auto& request : requests) ASSERT_TRUE(engine->submit(request).ok());
  const auto ends = run(*engine);
  ASSERT_EQ(ends.size(), requests.size());
  Json wanted = Json::array();
  for (size_t i = 0; i < ends.size(); ++i) wanted.push_back(wanted_of(requests[i], ends[i]));
  const Json all = testing::transformers_processed(reference_models() / GetParam(), wanted);
  double worst = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    const Json& theirs = all.as_array().at(i);
    ASSERT_GT(ends[i].tokens.size(), 12U);
    for (size_t t = 0; t < ends[i].tokens.size(); ++t) {
      const double expected = theirs.find("logprobs")->as_array().at(t).as_double();
      worst = std::max(worst, std::abs(ends[i].logprobs[t] - expected));
      const auto& top = theirs.find("top")->as_array().at(t).as_array();
      for (size_t k = 0; k < top.size(); ++k) {
        const auto& own = ends[i].top_logprobs[t * top.size() + k];
        worst = std::max(worst, std::abs(own.logprob - top[k].as_array().at(1).as_double()));
      }
    }
  }
  std::cout << "largest difference of a processed log-probability: " << worst << "\n";
  EXPECT_LE(worst, 1e-4);
}

TEST_P(Parity, GradientsOfOneStepAreThoseOfAutograd) {
  const Json& expected = reference(GetParam());
  const auto folder = reference_models() / GetParam();
  LearnerOptions options;
  options.optimizer.lr = 0;
  CpuLearner learner(options, read_model_folder(folder).value());
  ASSERT_TRUE(learner.fill(read_model_tensors(folder).value()).ok());
  TrainBatch batch;
  batch.loss = LossKind::kCrossEntropy;
  const auto prompt = static_cast<size_t>(expected.find("num_prompt_tokens")->as_int());
  for (const auto& document : expected.find("documents")->as_array()) {
    TrainSample sample;
    sample.tokens = ids_of(document);
    sample.loss_mask.assign(sample.tokens.size(), 1);
    std::fill_n(sample.loss_mask.begin(), prompt, 0);
    batch.samples.push_back(std::move(sample));
  }
  const auto report = learner.step(batch, [] { return false; });
  ASSERT_TRUE(report.ok()) << report.error().text();
  EXPECT_NEAR(report->loss, expected.find("loss")->as_double(), 1e-5);
  double worst = 0;
  size_t num_compared = 0;
  for (const auto& gradient : learner.gradients()) {
    const Json* values = expected.find("gradients")->find(gradient.name);
    ASSERT_NE(values, nullptr) << gradient.name;
    const double norm = expected.find("gradient_norms")->find(gradient.name)->as_double();
    const std::span<const float> ours(reinterpret_cast<const float*>(gradient.bytes.bytes().data()),
                                      gradient.bytes.size() / 4);
    ASSERT_EQ(ours.size(), values->as_array().size()) << gradient.name;
    double squares = 0;
    for (size_t i = 0; i < ours.size(); ++i)
      squares += std::pow(ours[i] - values->as_array()[i].as_double(), 2);
    EXPECT_LE(std::sqrt(squares), 1e-4 * norm) << gradient.name;
    // 0: an expert without tokens
    if (norm > 0) worst = std::max(worst, std::sqrt(squares) / norm);
    ++num_compared;
  }
  EXPECT_EQ(num_compared, expected.find("gradients")->as_object().size());
  std::cout << "largest relative difference of a gradient: " << worst << "\n";
}

TEST_P(Parity, TokensGoToTheExpertsOfTransformers) {
  const Json* layers = reference(GetParam()).find("experts");
  if (layers == nullptr) return;  // a dense model
  const auto folder = reference_models() / GetParam();
  CpuLearner learner({}, read_model_folder(folder).value());
  ASSERT_TRUE(learner.fill(read_model_tensors(folder).value()).ok());
  std::map<std::string, std::vector<std::vector<int32_t>>> chosen;
  learner.visit([&](const std::string& name, const at::Tensor& rows) {
    if (!name.ends_with(".moe.experts")) return;
    for (int64_t row = 0; row < rows.size(0); ++row) {
      const int32_t* ids = rows.const_data_ptr<int32_t>() + row * rows.size(1);
      auto& sorted = chosen[name].emplace_back(ids, ids + rows.size(1));
      std::sort(sorted.begin(), sorted.end());
    }
  });
  const auto& longest = reference(GetParam()).find("sequences")->as_array().back();
  ASSERT_TRUE(learner.score(TenantSlot(0), ids_of(*longest.find("ids"))).ok());
  EXPECT_EQ(chosen.size(), layers->as_object().size());
  for (const auto& [layer, expected] : layers->as_object()) {
    const auto& ours = chosen.at("layers." + layer + ".moe.experts");
    // The last token is scored by the row before it: its own row is not computed.
    ASSERT_GE(expected.as_array().size(), ours.size());
    for (size_t i = 0; i < ours.size(); ++i)
      EXPECT_EQ(ours[i], ids_of(expected.as_array()[i])) << layer << ", token " << i;
  }
}

TEST_P(Parity, ASavedModelIsTheSameToTransformers) {
  auto learner = make_learner(GetParam());
  const auto folder = new_scratch_folder();
  const Status saved = learner->save(TenantSlot(0), folder);
  ASSERT_TRUE(saved.ok()) << saved.error().text();
  const auto original = read_model_tensors(reference_models() / GetParam()).value();
  const auto written = read_model_tensors(folder / "weights").value();
  ASSERT_EQ(original.size(), written.size());
  for (size_t i = 0; i < original.size(); ++i) {
    EXPECT_EQ(original[i].name, written[i].name);
    EXPECT_TRUE(original[i].bytes == written[i].bytes) << original[i].name;
  }
  const std::vector<int32_t> ids = {5, 9, 33, 80, 2, 14};
  EXPECT_EQ(testing::transformers_logprobs(folder / "weights", ids),
            testing::transformers_logprobs(reference_models() / GetParam(), ids));
}

INSTANTIATE_TEST_SUITE_P(Torch, Parity,
                         ::testing::Values("qwen3", "llama", "llama_linear", "llama_yarn",
                                           "qwen3_yarn", "qwen2", "qwen3_moe", "qwen3_moe_plain",
                                           "glm4_moe", "glm4_moe_groups"),
                         [](const auto& one) { return one.param; });

INSTANTIATE_TEST_SUITE_P(Torch, SamplingParity, ::testing::Values("qwen3", "llama"),
                         [](const auto& one) { return one.param; });

TEST(FusedParity, ExpertsThatAreFusedInTheFileAreTheSame) {
  auto apart = make_learner("qwen3_moe"), fused = make_learner("qwen3_moe_fused");
  const std::vector<int32_t> ids = {5, 9, 33, 80, 2, 14, 77, 3};
  EXPECT_EQ(apart->score(TenantSlot(0), ids).value(), fused->score(TenantSlot(0), ids).value());
}

TEST(ShardedParity, ABfloat16FolderOfShardsScoresLikeTransformers) {
  auto learner = make_learner("qwen3_sharded_bf16");
  const std::vector<int32_t> ids = {5, 9, 33, 80, 2, 14, 77, 3};
  const auto scored = learner->score(TenantSlot(0), ids).value();
  const auto expected =
      testing::transformers_logprobs(reference_models() / "qwen3_sharded_bf16", ids);
  ASSERT_EQ(scored.size(), expected.size());
  for (size_t i = 0; i < scored.size(); ++i) EXPECT_NEAR(scored[i], expected[i], 1e-4);
  // The engine packs and the learner widens the same values.
  auto engine = make_engine("qwen3_sharded_bf16");
  SequenceRequest request;
  request.prompt_tokens = ids;
  request.sampling.max_tokens = 20;
  request.sampling.ignore_eos = true;
  ASSERT_TRUE(engine->submit(request).ok());
  const auto ends = run(*engine);
  ASSERT_EQ(ends.size(), 1U);
  auto tokens = ids;
  tokens.insert(tokens.end(), ends[0].tokens.begin(), ends[0].tokens.end());
  const auto again = learner->score(TenantSlot(0), tokens).value();
  EXPECT_EQ(
      std::vector<float>(again.begin() + static_cast<std::ptrdiff_t>(ids.size()) - 1, again.end()),
      ends[0].logprobs);
}

}  // namespace
}  // namespace primerl
