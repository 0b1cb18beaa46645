#include "kernels/cpu/learner/learner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <span>
#include <thread>

#include "kernels/train/loss.h"
#include "kernels/weights/safetensors.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using testing::make_folder;

bool never() { return false; }

/// The default objective's loss of one token.
TokenLoss dppo_loss(double log_pi, double log_mu, double advantage, const LossOptions& options) {
  return token_loss(objective_of(options),
                    {.log_pi = log_pi, .log_mu = log_mu, .advantage = advantage});
}

std::unique_ptr<CpuLearner> make_learner(const std::filesystem::path& folder,
                                         const LearnerOptions& options = {}) {
  auto learner = std::make_unique<CpuLearner>(options, read_model_folder(folder).value());
  CHECK(learner->fill(read_model_tensors(folder).value()).ok(), "cannot fill");
  return learner;
}

LearnerOptions frozen() {
  LearnerOptions options;
  options.optimizer.lr = 0;
  options.loss.kl_weight = 0.05;
  return options;
}

TrainSample sample(int32_t number, int32_t prompt, size_t length, float temperature = 1) {
  TrainSample made;
  made.temperature = temperature;
  for (size_t i = 0; i < length; ++i) {
    const bool sampled = i >= 4;
    made.tokens.push_back((sampled ? number * 13 : prompt * 31) % 59 + static_cast<int32_t>(i % 2));
    made.loss_mask.push_back(sampled ? 1 : 0);
    made.logprobs.push_back(sampled ? -3.0F - 0.2F * static_cast<float>(i % 4) : 0.0F);
    made.advantages.push_back(sampled ? static_cast<float>(number % 3) - 0.8F : 0.0F);
  }
  return made;
}

/// Two groups with shared prompts, lengths 6 to 10, two temperatures.
TrainBatch batch() {
  TrainBatch made;
  for (int32_t i = 0; i < 8; ++i)
    made.samples.push_back(sample(i, i / 4, static_cast<size_t>(6 + i % 5), i < 4 ? 1.0F : 0.7F));
  return made;
}

std::vector<float> values(const std::vector<WeightTensor>& tensors) {
  std::vector<float> all;
  for (const auto& tensor : tensors) {
    const auto bytes = tensor.bytes.bytes();
    const size_t old = all.size();
    all.resize(old + bytes.size() / sizeof(float));
    std::memcpy(all.data() + old, bytes.data(), bytes.size());
  }
  return all;
}

/// The same tensors with `step` times `direction` added.
std::vector<WeightTensor> moved(const std::vector<WeightTensor>& tensors, double step,
                                const std::vector<float>& direction) {
  std::vector<WeightTensor> result = tensors;
  size_t next = 0;
  for (auto& tensor : result) {
    std::vector<std::byte> bytes(tensor.bytes.bytes().begin(), tensor.bytes.bytes().end());
    auto* numbers = reinterpret_cast<float*>(bytes.data());
    for (size_t i = 0; i < bytes.size() / sizeof(float); ++i)
      numbers[i] += static_cast<float>(step * direction[next++]);
    tensor.bytes = Blob(std::move(bytes));
  }
  return result;
}

TEST(CpuLearner, TheLossIsTheSumOfItsTokensByTheReference) {
  const auto folder = make_folder({});
  auto learner = make_learner(folder, frozen());
  auto data = batch();
  double loss = 0, mismatch = 0, worst = 0, count = 0, masked = 0;
  for (auto& one : data.samples) {
    one.temperature = 1;
    const auto log_pi = learner->score(TenantSlot(0), one.tokens).value();
    for (size_t i = 4; i < one.tokens.size(); ++i) {
      const auto token =
          dppo_loss(log_pi[i - 1], one.logprobs[i], one.advantages[i], frozen().loss);
      loss += token.loss;
      mismatch += token.mismatch_kl;
      worst = std::max(worst, token.mismatch_kl);
      masked += token.masked ? 1 : 0;
      ++count;
    }
  }
  const auto report = learner->step(data, never).value();
  EXPECT_EQ(report.num_loss_tokens, static_cast<int64_t>(count));
  EXPECT_NEAR(report.loss, loss / count, 1e-6);
  EXPECT_NEAR(report.mismatch_kl_mean, mismatch / count, 1e-6);
  EXPECT_NEAR(report.mismatch_kl_max, worst, 1e-6);
  EXPECT_DOUBLE_EQ(report.masked_fraction, masked / count);
  EXPECT_GT(report.entropy_mean, 0);
}

TEST(CpuLearner, TheGradientIsTheSlopeOfTheLoss) {
  const auto folder = make_folder({});
  const auto weights = read_model_tensors(folder).value();
  for (const LossKind kind : {LossKind::kPolicy, LossKind::kCrossEntropy}) {
    auto learner = make_learner(folder, frozen());
    auto data = batch();
    data.loss = kind;
    ASSERT_TRUE(learner->step(data, never).ok());
    const auto gradient = values(learner->gradients());
    double square = 0;
    for (const float g : gradient) square += static_cast<double>(g) * g;
    // Along the gradient, the loss must rise by |gradient|^2 per unit step.
    const double h = 1e-3 / std::sqrt(square);
    ASSERT_TRUE(learner->fill(moved(weights, h, gradient)).ok());
    const double above = learner->step(data, never)->loss;
    ASSERT_TRUE(learner->fill(moved(weights, -h, gradient)).ok());
    const double below = learner->step(data, never)->loss;
    EXPECT_NEAR((above - below) / (2 * h) / square, 1, 5e-3);
  }
}

TEST(CpuLearner, PackedDocumentsGiveWhatDocumentsAloneGive) {
  const auto folder = make_folder({});
  auto together = make_learner(folder, frozen());
  auto options = frozen();
  options.micro_batch_tokens = 1;
  auto alone = make_learner(folder, options);
  const auto one = together->step(batch(), never).value();
  const auto many = alone->step(batch(), never).value();
  EXPECT_EQ(one.num_micro_batches, 1);
  EXPECT_EQ(many.num_micro_batches, 8);
  EXPECT_NEAR(one.loss, many.loss, 1e-12) << "the forward is equal bit for bit";
  EXPECT_EQ(one.mismatch_kl_max, many.mismatch_kl_max);
  const auto a = values(together->gradients()), b = values(alone->gradients());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(a[i] - b[i], 2);
    norm += std::pow(b[i], 2);
  }
  EXPECT_LE(std::sqrt(difference / norm), 1e-5);
}

/// Ten sequences that an engine of the folder samples, two temperatures, as a learner's batch.
TrainBatch sampled(const std::filesystem::path& folder, const SamplingParams& sampling) {
  auto engine = make_torch_engine({}, folder).value();
  TrainBatch data;
  for (uint64_t id = 0; id < 10; ++id) {
    SequenceRequest request;
    request.id = SequenceId(id);
    request.prompt_tokens = {3, 7, static_cast<int32_t>(id / 3)};
    request.sampling = sampling;
    request.sampling.temperature = id < 5 ? 1.0 : 0.75;
    request.sampling.max_tokens = 12;
    request.seed = id;
    TrainSample& made = data.samples.emplace_back();
    made.tokens = request.prompt_tokens;
    made.temperature = static_cast<float>(request.sampling.temperature);
    CHECK(engine->submit(request).ok(), "refused");
  }
  while (engine->has_work()) {
    CHECK(engine->step().ok(), "a step failed");
    for (const auto& event : engine->take_prefilled())
      CHECK(engine->take_over(event.id).ok(), "nothing to take over");
  }
  for (const auto& end : engine->take_finished()) {
    TrainSample& made = data.samples[end.id.value];
    made.loss_mask.assign(3, 0);
    made.logprobs.assign(3, 0);
    made.advantages.assign(3 + end.tokens.size(), end.id.value % 2 == 0 ? 1.0F : -1.0F);
    made.tokens.insert(made.tokens.end(), end.tokens.begin(), end.tokens.end());
    made.loss_mask.insert(made.loss_mask.end(), end.tokens.size(), 1);
    made.logprobs.insert(made.logprobs.end(), end.logprobs.begin(), end.logprobs.end());
    made.kept = end.kept;
  }
  return data;
}

std::vector<SamplingParams> kinds_of_sampling() {
  return {{}, {.top_k = 3}, {.top_p = 0.9}, {.min_p = 0.1}, {.top_k = 20, .top_p = 0.8}};
}

TEST(CpuLearner, SeesNoMismatchInWhatTheEngineJustSampled) {
  const auto folder = make_folder({});
  auto options = frozen();
  options.loss.clip_low = options.loss.clip_high = 0;
  for (const auto& sampling : kinds_of_sampling()) {
    auto data = sampled(folder, sampling);
    const auto report = make_learner(folder, options)->step(data, never).value();
    EXPECT_EQ(report.mismatch_kl_max, 0) << "to the bit";
    EXPECT_EQ(report.masked_fraction, 0) << "even where the trust region allows nothing";
    if (!has_kept_sets(sampling)) continue;
    // Without its kept set, truncation looks like a change of the policy.
    for (auto& one : data.samples) one.kept = Blob();
    EXPECT_GT(make_learner(folder, options)->step(data, never)->mismatch_kl_mean, 0.001);
  }
}

TEST(CpuLearner, TheLossOfTruncatedTokensIsThatOfTheReferenceOverTheirKeptSets) {
  const auto folder = make_folder({});
  const auto other = make_folder({.seed = 2}, "other");
  // The learner's weights differ from those that sampled: the sets stay.
  const auto data = sampled(other, {.top_k = 5, .min_p = 0.05});
  auto learner = make_learner(folder, frozen());
  double loss = 0, count = 0;
  for (const auto& one : data.samples) {
    KeptReader reader(one.kept.bytes());
    for (size_t i = 3; i < one.tokens.size(); ++i) {
      // The whole distribution after the prefix, one token at a time.
      std::vector<float> logits;
      for (int32_t token = 0; token < 61; ++token) {
        std::vector<int32_t> tokens(one.tokens.begin(),
                                    one.tokens.begin() + static_cast<std::ptrdiff_t>(i));
        tokens.push_back(token);
        logits.push_back(learner->score(TenantSlot(0), tokens)->back());
      }
      std::vector<int32_t> ids;
      reader.next()->list(ids);
      const double log_pi = log_prob(logits, 1 / one.temperature, ids, one.tokens[i]);
      loss += dppo_loss(log_pi, one.logprobs[i], one.advantages[i], frozen().loss).loss;
      ++count;
    }
  }
  EXPECT_NEAR(learner->step(data, never)->loss, loss / count, 1e-5);
}

TEST(CpuLearner, TheGradientOfTruncatedTokensIsTheSlopeOfTheLoss) {
  const auto folder = make_folder({});
  const auto weights = read_model_tensors(folder).value();
  const auto data = sampled(folder, {.top_k = 5});
  auto options = frozen();
  // Start away from the sampled weights, so that both terms of the loss have a gradient.
  auto start = moved(weights, 0.02, values(weights));
  auto learner = make_learner(folder, options);
  ASSERT_TRUE(learner->fill(start).ok());
  ASSERT_TRUE(learner->step(data, never).ok());
  const auto gradient = values(learner->gradients());
  double square = 0;
  for (const float g : gradient) square += static_cast<double>(g) * g;
  ASSERT_GT(square, 1e-6);
  const double h = 1e-3 / std::sqrt(square);
  ASSERT_TRUE(learner->fill(moved(start, h, gradient)).ok());
  const double above = learner->step(data, never)->loss;
  ASSERT_TRUE(learner->fill(moved(start, -h, gradient)).ok());
  const double below = learner->step(data, never)->loss;
  EXPECT_NEAR((above - below) / (2 * h) / square, 1, 5e-3);
}

TEST(CpuLearner, StepOneHasNoMismatchThoughTheEngineWasLoadedFromAnotherFolder) {
  const auto folder = make_folder({});
  auto learner = make_learner(folder, frozen());
  auto engine = make_torch_engine({}, make_folder({.seed = 2}, "other")).value();
  ASSERT_GT(engine->apply(*learner->snapshot(TenantSlot(0), PolicyVersion(0)).value()).value(), 0U);
  SequenceRequest request;
  request.id = SequenceId(1);
  request.prompt_tokens = {3, 7, 9};
  request.sampling.max_tokens = 12;
  request.sampling.ignore_eos = true;
  ASSERT_TRUE(engine->submit(request).ok());
  while (engine->has_work()) {
    ASSERT_TRUE(engine->step().ok());
    for (const auto& event : engine->take_prefilled())
      ASSERT_TRUE(engine->take_over(event.id).ok());
  }
  const auto end = engine->take_finished().at(0);
  EXPECT_EQ(end.spans, std::vector({VersionSpan{PolicyVersion(0), 0, 12}}));
  TrainSample one;
  one.tokens = request.prompt_tokens;
  one.tokens.insert(one.tokens.end(), end.tokens.begin(), end.tokens.end());
  one.loss_mask.assign(15, 1);
  std::fill_n(one.loss_mask.begin(), 3, uint8_t{0});
  one.logprobs.assign(3, 0);
  one.logprobs.insert(one.logprobs.end(), end.logprobs.begin(), end.logprobs.end());
  one.advantages.assign(15, 1);
  const auto report = learner->step({.tenant = {}, .samples = {one}}, never).value();
  EXPECT_EQ(report.mismatch_kl_max, 0);
}

TEST(CpuLearner, AStepIsAdamw) {
  const auto folder = make_folder({});
  LearnerOptions options;
  options.optimizer.lr = 0.01;
  options.optimizer.weight_decay = 0.1;
  options.optimizer.max_norm = 0.05;
  auto learner = make_learner(folder, options);
  auto weights = values(learner->snapshot(TenantSlot(0), PolicyVersion(0)).value()->tensors);
  std::vector<double> w(weights.begin(), weights.end()), m(w.size(), 0), v(w.size(), 0);
  for (int step = 1; step <= 3; ++step) {
    const auto report = learner->step(batch(), never).value();
    ASSERT_GT(report.grad_norm, 0.05) << "the clip must matter";
    const auto gradient = values(learner->gradients());
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = gradient[i] * 0.05 / report.grad_norm;
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.999 * v[i] + 0.001 * g * g;
      const double root = std::sqrt(v[i] / (1 - std::pow(0.999, step))) + 1e-8;
      w[i] -= 0.01 * (0.1 * w[i] + m[i] / (1 - std::pow(0.9, step)) / root);
    }
    const auto now = values(learner->snapshot(TenantSlot(0), PolicyVersion(step)).value()->tensors);
    double worst = 0;
    for (size_t i = 0; i < w.size(); ++i) worst = std::max(worst, std::abs(now[i] - w[i]));
    EXPECT_LE(worst, 2e-5) << step;
  }
}

TEST(CpuLearner, SkipsAGradientThatIsNotFiniteAndGoesOn) {
  const auto folder = make_folder({});
  auto learner = make_learner(folder);
  auto tensors = read_model_tensors(folder).value();
  std::vector<float> nothing(values(tensors).size(), 0);
  nothing[100] = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(learner->fill(moved(tensors, 1, nothing)).ok());
  const auto broken = learner->step(batch(), never).value();
  EXPECT_TRUE(broken.skipped);
  EXPECT_THAT(broken.skip_reason, HasSubstr("not finite"));
  ASSERT_TRUE(learner->fill(tensors).ok());
  EXPECT_FALSE(learner->step(batch(), never)->skipped);
}

TEST(CpuLearner, WorksBesideAnEngineOnAnotherThread) {
  const auto folder = make_folder({});
  const auto train = [&] {
    LearnerOptions options;
    options.micro_batch_tokens = 16;
    options.threads = 1;
    auto learner = make_torch_learner(options, folder).value();
    for (int i = 0; i < 20; ++i) CHECK(learner->step(batch(), never).ok(), "a step failed");
    return values(learner->snapshot(TenantSlot(0), PolicyVersion(1)).value()->tensors);
  };
  const auto generate = [&] {
    auto engine = make_torch_engine({.threads = 1}, folder).value();
    SequenceRequest request;
    request.id = SequenceId(1);
    request.prompt_tokens = {1, 2, 3};
    request.sampling.max_tokens = 200;
    request.sampling.ignore_eos = true;
    CHECK(engine->submit(request).ok(), "refused");
    while (engine->has_work()) {
      CHECK(engine->step().ok(), "a step failed");
      for (const auto& event : engine->take_prefilled())
        CHECK(engine->take_over(event.id).ok(), "nothing to take over");
    }
    return engine->take_finished().at(0).tokens;
  };
  const auto weights = train();
  const auto tokens = generate();
  std::vector<float> weights_beside;
  std::vector<int32_t> tokens_beside;
  std::thread trainer([&] { weights_beside = train(); });
  std::thread generator([&] { tokens_beside = generate(); });
  trainer.join();
  generator.join();
  EXPECT_EQ(weights_beside, weights);
  EXPECT_EQ(tokens_beside, tokens);
}

TEST(CpuLearner, LearnsATextByHeart) {
  LearnerOptions options;
  options.optimizer.lr = 0.01;
  auto learner = make_learner(make_folder({.deviation = 0.1}), options);
  auto data = batch();
  data.samples.resize(3);
  data.loss = LossKind::kCrossEntropy;
  const double first = learner->step(data, never)->loss;
  double last = first;
  for (int i = 0; i < 80; ++i) last = learner->step(data, never)->loss;
  EXPECT_GT(first, 2);
  EXPECT_LT(last, 0.5);
}

TEST(CpuLearner, RandomWeightsAreAFunctionOfTheSeed) {
  const auto one = testing::make_snapshot({.seed = 5}, PolicyVersion(0));
  const auto same = testing::make_snapshot({.seed = 5}, PolicyVersion(0));
  const auto other = testing::make_snapshot({.seed = 6}, PolicyVersion(0));
  EXPECT_EQ(values(one->tensors), values(same->tensors));
  EXPECT_NE(values(one->tensors), values(other->tensors));
  double sum = 0, squares = 0, count = 0;
  for (const auto& tensor : one->tensors) {
    if (tensor.shape.size() < 2) continue;
    for (const float value : values({tensor})) {
      sum += value;
      squares += value * value;
      ++count;
    }
  }
  EXPECT_NEAR(sum / count, 0, 0.01);
  EXPECT_NEAR(std::sqrt(squares / count), 0.3, 0.01);
}

TEST(CpuLearner, RefusesOptionsThatMakeNoSense) {
  const auto folder = make_folder({});
  const auto refusal = [&](auto change) {
    LearnerOptions options;
    change(options);
    const auto made = make_torch_learner(options, folder);
    return made.ok() ? std::string() : made.error().text();
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_THAT(refusal([](auto& o) { o.optimizer.kind = "lion"; }), HasSubstr("adamw"));
  EXPECT_THAT(refusal([](auto& o) { o.optimizer.beta2 = 1; }), HasSubstr("beta2' 1"));
  EXPECT_THAT(refusal([](auto& o) { o.loss.kind = "pppo"; }), HasSubstr("cross_entropy"));
  EXPECT_THAT(refusal([](auto& o) { o.schedule.kind = "cosine"; }), HasSubstr("max_steps"));
  EXPECT_THAT(refusal([](auto& o) { o.micro_batch_tokens = 0; }), HasSubstr("micro_batch_tokens"));
}

TEST(CpuLearner, ACheckpointOfAnotherModelIsRefusedWhole) {
  auto learner = make_learner(make_folder({}));
  auto other = make_learner(make_folder({.num_layers = 1}, "other"));
  const auto folder = testing::scratch_folder("checkpoint");
  ASSERT_TRUE(other->save(TenantSlot(0), folder).ok());
  const auto before = values(learner->snapshot(TenantSlot(0), PolicyVersion(0)).value()->tensors);
  const Status loaded = learner->load(TenantSlot(0), folder);
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(loaded.error().text(), HasSubstr("model.layers.1"));
  EXPECT_EQ(values(learner->snapshot(TenantSlot(0), PolicyVersion(0)).value()->tensors), before);
}

TEST(CpuLearner, ACheckpointWithABrokenOptimizerIsRefusedWhole) {
  LearnerOptions options;
  options.optimizer.lr = 0.1;
  auto learner = make_learner(make_folder({}), options);
  const auto folder = testing::scratch_folder("checkpoint");
  ASSERT_TRUE(learner->save(TenantSlot(0), folder).ok());
  ASSERT_TRUE(learner->step(batch(), never).ok());
  const auto before = values(learner->snapshot(TenantSlot(0), PolicyVersion(0)).value()->tensors);
  std::ofstream(folder / "learner/state.json") << "{\"format\":1,\"num_steps\":-1}";
  EXPECT_FALSE(learner->load(TenantSlot(0), folder).ok());
  std::ofstream(folder / "learner/state.json") << "{\"format\":1,\"num_steps\":0}";
  std::filesystem::resize_file(folder / "learner/optimizer.safetensors", 100);
  const Status loaded = learner->load(TenantSlot(0), folder);
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(loaded.error().text(), HasSubstr("optimizer.safetensors"));
  EXPECT_EQ(values(learner->snapshot(TenantSlot(0), PolicyVersion(0)).value()->tensors), before);
}

}  // namespace
}  // namespace primerl
