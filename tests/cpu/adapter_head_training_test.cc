// Adapters on the head: gradients, chunks of its logits, greedy decoding; tied and untied.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/devices/make.h"
#include "kernels/sizing/memory.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using testing::adapter_bytes;
using testing::make_adapter_learner;
using testing::make_folder;
using testing::moved;
using testing::never;
using testing::two_groups;
using testing::values;

/// An adapter of the head alone; `lr` 0 leaves it as it is.
AdapterTraining head_training(uint32_t tenant, int32_t rank, double lr) {
  AdapterTraining training{TenantSlot(tenant), {.rank = rank, .targets = {"lm_head"}}, {}};
  training.rules.optimizer.lr = lr;
  return training;
}

/// qwen3 is tied to its embedding, llama is not.
class HeadAdapter : public ::testing::TestWithParam<std::string> {};

TEST_P(HeadAdapter, GradientsOfAAndBAreTheDerivativesOfTheLoss) {
  const auto base = make_folder({.model_type = GetParam(), .deviation = 0.1});
  const TenantSlot tenant(0);
  auto learner = make_adapter_learner(base, {head_training(0, 5, 0)});
  const auto start = learner->snapshot(tenant, PolicyVersion(0)).value()->tensors;
  ASSERT_EQ(start.size(), 3U) << "A, B and the scaling";
  const auto data = two_groups(tenant, LossKind::kCrossEntropy);
  ASSERT_TRUE(learner->step(data, never).ok());
  const auto gradients = learner->gradients();
  ASSERT_EQ(gradients.size(), 2U);
  for (const auto& gradient : gradients) {
    const auto direction = values(gradient);
    double square = 0;
    for (const float g : direction) square += static_cast<double>(g) * g;
    ASSERT_GT(square, 1e-6) << gradient.name;
    const double h = 4e-3 / std::sqrt(square);
    const auto loss_at = [&](double step) {
      CHECK(learner->fill_adapter(tenant, moved(start, gradient.name, step, direction)).ok(),
            "fill");
      return learner->step(data, never)->loss;
    };
    EXPECT_NEAR((loss_at(h) - loss_at(-h)) / (2 * h) / square, 1, 0.02) << gradient.name;
  }
}

TEST_P(HeadAdapter, LearnsAndLeavesTheBaseAndOtherTenants) {
  const auto base = make_folder({.model_type = GetParam()});
  auto learner = make_torch_adapter_learner(
                     {}, std::vector{head_training(0, 8, 0.02), head_training(1, 8, 0.02)}, base)
                     .value();
  auto whole = make_torch_learner({}, base).value();
  const std::vector<int32_t> tokens = {3, 9, 40, 22, 5, 17, 60, 2, 33};
  const auto before = whole->score(TenantSlot(0), tokens).value();
  EXPECT_EQ(learner->score(TenantSlot(0), tokens).value(), before) << "B is 0";
  const auto data = two_groups(TenantSlot(0), LossKind::kCrossEntropy);
  const double first = learner->step(data, never)->loss;
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(learner->step(data, never).ok());
  EXPECT_LT(learner->step(data, never)->loss, 0.8 * first);
  EXPECT_NE(learner->score(TenantSlot(0), tokens).value(), before);
  EXPECT_EQ(learner->score(TenantSlot(1), tokens).value(), before);
}

TEST_P(HeadAdapter, GreedyTokensAreTheLikeliestOfTheLearner) {
  const auto base = make_folder({.model_type = GetParam()});
  auto learner = make_adapter_learner(base, {head_training(0, 6, 0)});
  EngineOptions options;
  options.adapter_slots = 1;
  auto engine = make_torch_engine(options, base).value();
  ASSERT_TRUE(engine->apply(*testing::adapter_of(*learner, TenantSlot(0), 1)).ok());
  SequenceRequest request;
  request.id = SequenceId(1);
  request.tenant = TenantSlot(0);
  request.prompt_tokens = {5, 9, 12, 44};
  request.sampling.max_tokens = 3;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  ASSERT_TRUE(engine->submit(request).ok());
  std::vector<int32_t> drawn;
  while (engine->has_work()) {
    ASSERT_TRUE(engine->step().ok());
    for (const auto& event : engine->take_prefilled())
      ASSERT_TRUE(engine->take_over(event.id).ok());
    for (const auto& event : engine->take_finished()) drawn = event.tokens;
  }
  ASSERT_EQ(drawn.size(), 3U);
  auto whole = make_torch_learner({}, base).value();
  bool differs = false;
  std::vector<int32_t> tokens = request.prompt_tokens;
  for (const int32_t token : drawn) {
    const auto likeliest = [&](Learner& scorer) {
      std::vector<float> scores;
      for (int32_t next = 0; next < 61; ++next) {
        auto with = tokens;
        with.push_back(next);
        scores.push_back(scorer.score(TenantSlot(0), with).value().back());
      }
      return static_cast<int32_t>(std::ranges::max_element(scores) - scores.begin());
    };
    EXPECT_EQ(token, likeliest(*learner));
    differs = differs || token != likeliest(*whole);
    tokens.push_back(token);
  }
  EXPECT_TRUE(differs) << "the adapter counts";
}

INSTANTIATE_TEST_SUITE_P(Torch, HeadAdapter, ::testing::Values("qwen3", "llama"),
                         [](const auto& one) { return one.param; });

/// `count` samples with one loss token each.
TrainBatch one_token_each(TenantSlot tenant, int32_t count) {
  TrainBatch made;
  made.tenant = tenant;
  made.loss = LossKind::kCrossEntropy;
  for (int32_t i = 0; i < count; ++i) {
    TrainSample& sample = made.samples.emplace_back();
    const auto seed = static_cast<int32_t>(tenant.value) * 1000 + i;
    sample.tokens = {seed % 97, (seed * 31 + 7) % 1009, (seed * 17 + 3) % 5003};
    sample.loss_mask = {0, 0, 1};
  }
  return made;
}

/// With a vocabulary as large as this, the logits of a pass are computed in several chunks. Where
/// a tenant's targets are divided does not depend on those of others.
TEST(HeadChunks, AddAGradientInOneOrderAloneAndAmongOthers) {
  constexpr int32_t kVocab = 400'003;
  const int64_t chunk = training_logits_rows(kVocab);
  ASSERT_LT(chunk, 100);
  const auto base =
      make_folder({.model_type = "llama", .vocab_size = kVocab, .hidden_size = 8, .num_layers = 1});
  const std::vector<AdapterTraining> all = {head_training(0, 2, 0.01), head_training(1, 3, 0.01),
                                            head_training(2, 2, 0.01)};
  // Less than a chunk, more than one, and what does not fit beside either.
  const std::vector<int32_t> counts = {static_cast<int32_t>(chunk) - 20,
                                       static_cast<int32_t>(chunk) + 30, 40};
  std::vector<TrainBatch> batches;
  for (const auto& training : all)
    batches.push_back(one_token_each(training.tenant, counts[training.tenant.index()]));
  auto together = make_adapter_learner(base, all);
  std::vector<const TrainBatch*> pointers;
  for (const auto& batch : batches) pointers.push_back(&batch);
  const auto reports = together->step_together(pointers, never);
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(reports[i].ok()) << reports[i].error().text();
    EXPECT_EQ(reports[i]->num_micro_batches, 1) << "one pass for all";
    auto alone = make_adapter_learner(base, {all[i]});
    const auto report = alone->step(batches[i], never);
    ASSERT_TRUE(report.ok()) << report.error().text();
    EXPECT_EQ(report->loss, reports[i]->loss) << i;
    EXPECT_EQ(report->grad_norm, reports[i]->grad_norm) << i;
    EXPECT_TRUE(adapter_bytes(*alone, all[i].tenant) == adapter_bytes(*together, all[i].tenant))
        << i;
  }
}

}  // namespace
}  // namespace primerl
