// Adapters compared with peft, on the tiny models of the other parity tests.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <span>

#include "kernels/devices/make.h"
#include "kernels/models/adapter_folder.h"
#include "kernels/weights/channel.h"
#include "tests/cpu/reference_models.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using testing::adapter_reference;
using testing::reference_adapters;
using testing::reference_models;

constexpr TenantSlot kTenant(0);

std::vector<int32_t> ids_of(const Json& json) {
  std::vector<int32_t> ids;
  for (const auto& id : json.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  return ids;
}

std::vector<double> doubles_of(const Json& json) {
  std::vector<double> numbers;
  for (const auto& one : json.as_array()) numbers.push_back(one.as_double());
  return numbers;
}

/// A learner with the adapter that peft made.
std::unique_ptr<TorchLearner> make_learner(const std::string& name) {
  const auto base = reference_models() / name;
  const auto read =
      read_adapter_folder(reference_adapters() / name, read_model_config(base).value());
  CHECK(read.ok(), read.error().text());
  TrainingRules rules;
  rules.optimizer.lr = 0;
  auto learner = testing::make_adapter_learner(base, {{kTenant, read->config, rules}});
  const Status filled = learner->fill_adapter(kTenant, read->tensors);
  CHECK(filled.ok(), filled.error().text());
  return learner;
}

double worst_difference(const std::vector<float>& ours, const std::vector<double>& theirs) {
  CHECK(ours.size() == theirs.size(), "not as many");
  double worst = 0;
  for (size_t i = 0; i < ours.size(); ++i) worst = std::max(worst, std::abs(ours[i] - theirs[i]));
  return worst;
}

class AdapterParity : public ::testing::TestWithParam<std::string> {};

TEST_P(AdapterParity, AFolderOfPeftScoresAsInPeft) {
  auto learner = make_learner(GetParam());
  auto plain = make_torch_learner({}, reference_models() / GetParam()).value();
  double worst = 0;
  for (const auto& sequence : adapter_reference(GetParam()).find("sequences")->as_array()) {
    const auto ids = ids_of(*sequence.find("ids"));
    const auto expected = doubles_of(*sequence.find("logprobs"));
    worst = std::max(worst, worst_difference(learner->score(TenantSlot(0), ids).value(), expected));
    EXPECT_GT(worst_difference(plain->score(TenantSlot(0), ids).value(), expected), 0.01)
        << "the adapter counts";
  }
  std::cout << "largest difference of a log-probability: " << worst << "\n";
  EXPECT_LE(worst, 1e-5);
}

TEST_P(AdapterParity, GradientsOfOneStepAreThoseOfAutogradThroughPeft) {
  const Json& expected = adapter_reference(GetParam());
  auto learner = make_learner(GetParam());
  TrainBatch batch;
  batch.tenant = kTenant;
  batch.loss = LossKind::kCrossEntropy;
  const auto prompt = static_cast<size_t>(expected.find("num_prompt_tokens")->as_int());
  for (const auto& document : expected.find("documents")->as_array()) {
    TrainSample sample;
    sample.tokens = ids_of(document);
    sample.loss_mask.assign(sample.tokens.size(), 1);
    std::fill_n(sample.loss_mask.begin(), prompt, 0);
    batch.samples.push_back(std::move(sample));
  }
  const auto report = learner->step(batch, [] { return false; });
  ASSERT_TRUE(report.ok()) << report.error().text();
  EXPECT_NEAR(report->loss, expected.find("loss")->as_double(), 1e-5);
  double worst = 0;
  const auto gradients = learner->gradients();
  EXPECT_EQ(gradients.size(), expected.find("gradients")->as_object().size());
  for (const auto& gradient : gradients) {
    const Json* values = expected.find("gradients")->find(gradient.name);
    ASSERT_NE(values, nullptr) << gradient.name;
    const std::span<const float> ours(reinterpret_cast<const float*>(gradient.bytes.bytes().data()),
                                      gradient.bytes.size() / sizeof(float));
    ASSERT_EQ(ours.size(), values->as_array().size()) << gradient.name;
    double difference = 0, square = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      const double theirs = values->as_array()[i].as_double();
      difference += std::pow(ours[i] - theirs, 2);
      square += std::pow(theirs, 2);
    }
    EXPECT_LE(difference, 1e-8 * square) << gradient.name;
    worst = std::max(worst, std::sqrt(difference / square));
  }
  std::cout << "largest relative difference of a gradient: " << worst << "\n";
}

TEST_P(AdapterParity, PeftReadsOurFolderWithTheSameScores) {
  auto learner = make_learner(GetParam());
  const auto folder = new_scratch_folder();
  const Status saved = learner->save(TenantSlot(0), folder);
  ASSERT_TRUE(saved.ok()) << saved.error().text();
  const auto& sequence = adapter_reference(GetParam()).find("sequences")->as_array().back();
  const auto again = testing::peft_logprobs("logprobs", reference_models() / GetParam(),
                                            folder / "weights", ids_of(*sequence.find("ids")));
  EXPECT_EQ(again, doubles_of(*sequence.find("logprobs")));
}

/// What another engine would load: the version folder that the files channel wrote.
TEST_P(AdapterParity, PeftReadsAVersionOfTheFilesChannelWithTheSameScores) {
  auto learner = make_learner(GetParam());
  ChannelSetup setup;
  setup.run_folder = new_scratch_folder();
  setup.run_id = "run";
  setup.resource = "weights";
  setup.model_folder = reference_models() / GetParam();
  const auto channel = make_files_channel(setup).value();
  const WeightsKey key{TenantSlot(2)};
  const auto published = with_key(*learner->snapshot(kTenant, PolicyVersion(5)).value(), key);
  const Status written = channel->publish(published);
  ASSERT_TRUE(written.ok()) << written.error().text();
  const auto folder = setup.run_folder / "weights" / "weights" / "version_5-tenant_2";
  const auto& sequence = adapter_reference(GetParam()).find("sequences")->as_array().back();
  const auto again = testing::peft_logprobs("logprobs", reference_models() / GetParam(), folder,
                                            ids_of(*sequence.find("ids")));
  EXPECT_EQ(again, doubles_of(*sequence.find("logprobs")));
  // The engine here gets the same bits.
  const auto fetched = make_files_channel(setup).value()->fetch(key, PolicyVersion(5)).value();
  ASSERT_EQ(fetched->tensors.size(), published->tensors.size());
  for (size_t i = 0; i < published->tensors.size(); ++i)
    EXPECT_TRUE(fetched->tensors[i].bytes == published->tensors[i].bytes)
        << published->tensors[i].name;
}

/// Experts too, which peft does not support if transformers stores them in one tensor.
TEST_P(AdapterParity, AnAdapterOfAllLinearsEqualsTheMergedWeights) {
  const auto base = reference_models() / GetParam();
  auto learner = testing::make_adapter_learner(base, {{kTenant, {.rank = 6, .alpha = 3}, {}}});
  const TensorTable model(read_model_config(base).value());
  const AdapterTable table(model, {.rank = 6, .alpha = 3});
  ASSERT_TRUE(learner->fill_adapter(kTenant, testing::random_adapter(table, 5, 0.06)).ok());
  const auto folder = new_scratch_folder();
  ASSERT_TRUE(learner->save(TenantSlot(0), folder).ok());
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 40; ++i) ids.push_back(2 + (i * i * 7 + 3 * i) % 120);
  const auto theirs = testing::peft_logprobs("merged", base, folder / "weights", ids);
  const double worst = worst_difference(learner->score(TenantSlot(0), ids).value(), theirs);
  std::cout << "largest difference of a log-probability: " << worst << "\n";
  EXPECT_LE(worst, 1e-5);
  auto plain = make_torch_learner({}, base).value();
  EXPECT_GT(worst_difference(plain->score(TenantSlot(0), ids).value(), theirs), 0.01);
}

INSTANTIATE_TEST_SUITE_P(Torch, AdapterParity,
                         ::testing::Values("qwen3", "llama", "qwen2", "qwen3_moe", "glm4_moe"),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace primerl
