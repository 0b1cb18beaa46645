// Every objective on a CUDA device in fp32, compared with the CPU's learner: loss, dropped tokens
// and gradients of a step with kept sets, two temperatures, dropout and several micro-batches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/common/learner_core.h"
#include "kernels/devices/make.h"
#include "kernels/train/objective.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"
#include "tests/device/learner_checks.h"

namespace primerl {
namespace {

constexpr TenantSlot kTrained(0);

AdapterTraining objective_training(std::string_view name) {
  AdapterTraining training{kTrained, {.rank = 8, .dropout = 0.25}, {}};
  training.rules.optimizer.lr = 1e-3;
  training.rules.loss.kind = name;
  // Limits that some tokens cross, and none so closely that rounding decides.
  if (name == "gspo") training.rules.loss.clip_low = training.rules.loss.clip_high = 0.2;
  if (name == "m2po") training.rules.loss.moment_max = 1;
  if (name == "icepop") training.rules.loss.weight_low = 0.2;
  if (name == "dr_grpo") training.rules.loss.mean_tokens = 16;
  return training;
}

std::unique_ptr<LearnerCore> objective_learner(const std::filesystem::path& folder,
                                               const AdapterTraining& training,
                                               LearnerOptions options) {
  options.micro_batch_tokens = 64;
  options.adapter_batch_tokens = 64;
  auto made = make_torch_adapter_learner(options, {&training, 1}, folder);
  CHECK(made.ok(), made.error().text());
  std::unique_ptr<LearnerCore> learner(dynamic_cast<LearnerCore*>(made->release()));
  const TensorTable model(read_model_config(folder).value());
  const AdapterTable table(model, training.adapter);
  CHECK(learner->fill_adapter(kTrained, testing::random_adapter(table, 1, 0.1)).ok(), "no fill");
  return learner;
}

class ObjectiveOnCuda : public ::testing::TestWithParam<std::string> {};

TEST_P(ObjectiveOnCuda, IsThatOfTheCpu) {
  const auto folder = testing::make_folder({.deviation = 0.1});
  const AdapterTraining training = objective_training(GetParam());
  LearnerOptions host = testing::options_of("float32");
  host.device = "cpu";
  host.dtype = "auto";
  host.numerics = "invariant";
  auto want = objective_learner(folder, training, host);
  auto got = objective_learner(folder, training, testing::options_of("float32"));
  TrainBatch batch = testing::mixed_batch();
  batch.tenant = kTrained;
  const auto expected = want->step(batch, testing::never);
  const auto report = got->step(batch, testing::never);
  ASSERT_TRUE(expected.ok()) << expected.error().text();
  ASSERT_TRUE(report.ok()) << report.error().text();
  EXPECT_NEAR(report->loss, expected->loss, 1e-4 * (1 + std::abs(expected->loss)));
  EXPECT_NEAR(report->masked_fraction, expected->masked_fraction, 0.02);
  EXPECT_NEAR(report->capped_fraction, expected->capped_fraction, 0.02);
  EXPECT_NEAR(report->effective_size, expected->effective_size, 1e-3);
  EXPECT_LT(testing::distance_of(got->gradients(kTrained), want->gradients(kTrained)), 0.01);
  EXPECT_GT(report->grad_norm, 0);
}

/// The k likeliest tokens of a teacher; the last is one that the model lacks.
void add_teacher(size_t k, TrainSample& sample) {
  constexpr int32_t kVocabulary = 61;
  for (size_t at = 0; at < sample.tokens.size(); ++at) {
    if (sample.loss_mask[at] == 0) continue;
    for (size_t i = 0; i < k; ++i) {
      const auto number = static_cast<int32_t>(i);
      const int32_t token = (static_cast<int32_t>(at) * 11 + number * 17) % kVocabulary;
      sample.top_tokens.push_back(i + 1 == k && k < 20 ? kVocabulary + 3 : token);
      sample.top_logprobs.push_back(-1.5F - 0.35F * static_cast<float>(i));
    }
  }
}

/// The rest of a teacher of all tokens but one has little probability.
TEST(TopKObjectiveOnCuda, IsThatOfTheCpu) {
  const auto folder = testing::make_folder({.deviation = 0.1});
  for (const double beta : {0.0, 0.4, 1.0})
    for (const size_t k : {size_t{1}, size_t{6}, size_t{24}}) {
      SCOPED_TRACE(::testing::Message() << "beta " << beta << ", " << k << " tokens");
      AdapterTraining training = objective_training("gkd");
      training.rules.loss.jsd_beta = beta;
      LearnerOptions host = testing::options_of("float32");
      host.device = "cpu";
      host.dtype = "auto";
      host.numerics = "invariant";
      auto want = objective_learner(folder, training, host);
      auto got = objective_learner(folder, training, testing::options_of("float32"));
      TrainBatch batch = testing::mixed_batch();
      batch.tenant = kTrained;
      batch.loss = LossKind::kTopK;
      for (auto& sample : batch.samples) {
        sample.kept = Blob();
        sample.top_tokens.clear();
        add_teacher(k, sample);
      }
      const auto expected = want->step(batch, testing::never);
      const auto report = got->step(batch, testing::never);
      ASSERT_TRUE(expected.ok()) << expected.error().text();
      ASSERT_TRUE(report.ok()) << report.error().text();
      EXPECT_NEAR(report->loss, expected->loss, 1e-4 * (1 + std::abs(expected->loss)));
      EXPECT_NEAR(report->measures.teacher_kl, expected->measures.teacher_kl, 1e-3);
      EXPECT_NEAR(report->measures.teacher_mass, expected->measures.teacher_mass, 1e-5);
      EXPECT_LT(testing::distance_of(got->gradients(kTrained), want->gradients(kTrained)), 0.01);
      EXPECT_TRUE(report->grad_norm > 0 || k == 1) << "a teacher of no known token teaches nothing";
    }
}

std::vector<std::string> objectives_of_rollouts() {
  std::vector<std::string> names;
  for (const auto& spec : objectives())
    if (spec.uses_logprobs()) names.emplace_back(spec.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, ObjectiveOnCuda, ::testing::ValuesIn(objectives_of_rollouts()),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace primerl
