// The loss over a teacher's likeliest tokens in whole training steps: its specification, its
// gradient, and the same bits whatever shares the step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "kernels/train/top_k.h"
#include "tests/cpu/derivatives.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using testing::adapter_bytes;
using ::testing::HasSubstr;
using testing::make_adapter_learner;
using testing::make_folder;
using testing::two_groups;

constexpr TenantSlot kTaught(0), kOther(1);
constexpr size_t kWholeVocabulary = 61;  // of the tiny model

AdapterTraining taught_adapter(double beta, double lr = 0) {
  AdapterTraining training{kTaught, {.rank = 4}, {}};
  training.rules.loss.kind = "gkd";
  training.rules.loss.jsd_beta = beta;
  training.rules.optimizer.lr = lr;
  return training;
}

/// A distribution that depends on the position; its k likeliest tokens.
void add_teacher_row(size_t k, int32_t number, TrainSample& sample) {
  std::vector<std::pair<double, int32_t>> all;
  double sum = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(kWholeVocabulary); ++i) {
    all.emplace_back(2.5 * std::sin(0.7 * i + 1.3 * number), i);
    sum += std::exp(all.back().first);
  }
  std::ranges::sort(all, std::greater());
  for (size_t i = 0; i < k; ++i) {
    sample.top_tokens.push_back(all[i].second);
    sample.top_logprobs.push_back(static_cast<float>(all[i].first - std::log(sum)));
  }
}

/// Two groups with a teacher's tokens; `is_given`: without log-probabilities at sampling.
TrainBatch taught_batch(size_t k, bool is_given = false) {
  TrainBatch batch = two_groups(kTaught, LossKind::kTopK);
  int32_t number = 0;
  for (auto& sample : batch.samples) {
    for (size_t i = 4; i < sample.tokens.size(); ++i) add_teacher_row(k, number++, sample);
    if (!is_given) continue;
    sample.logprobs.clear();
    sample.advantages.clear();
  }
  return batch;
}

struct Wanted {
  double loss = 0, kl = 0, mass = 0;
};

/// The means of top_k_loss_of_row() over all loss tokens. The learner's distribution is that of
/// each token after the ones before.
Wanted wanted_of(Learner& learner, const TrainBatch& batch, double beta, size_t k) {
  Wanted all;
  double count = 0;
  for (const auto& sample : batch.samples)
    for (size_t i = 4; i < sample.tokens.size(); ++i) {
      std::vector<float> log_p;
      std::vector<int32_t> tokens(sample.tokens.begin(),
                                  sample.tokens.begin() + static_cast<std::ptrdiff_t>(i));
      tokens.push_back(0);
      for (; tokens.back() < static_cast<int32_t>(kWholeVocabulary); ++tokens.back())
        log_p.push_back(learner.score(kTaught, tokens).value().back());
      const size_t row = (i - 4) * k;
      const TopKLoss made =
          top_k_loss_of_row(beta, log_p, 1, std::span(sample.top_tokens).subspan(row, k),
                            std::span(sample.top_logprobs).subspan(row, k));
      all.loss += made.loss;
      all.kl += made.kl;
      all.mass += made.mass;
      ++count;
    }
  return {all.loss / count, all.kl / count, all.mass / count};
}

TEST(TopKLearner, HasTheLossOfItsSpecificationForEachK) {
  const auto folder = make_folder({});
  for (const double beta : {0.0, 0.4, 1.0}) {
    auto learner = make_adapter_learner(folder, {taught_adapter(beta)});
    for (const size_t k : {size_t{1}, size_t{8}, kWholeVocabulary}) {
      const TrainBatch batch = taught_batch(k);
      const auto report = learner->step(batch, testing::never);
      ASSERT_TRUE(report.ok()) << report.error().text();
      const Wanted wanted = wanted_of(*learner, batch, beta, k);
      EXPECT_NEAR(report->loss, wanted.loss, 1e-5) << beta << " " << k;
      EXPECT_NEAR(report->measures.teacher_kl, wanted.kl, 1e-5) << beta << " " << k;
      EXPECT_NEAR(report->measures.teacher_mass, wanted.mass, 1e-6) << beta << " " << k;
      EXPECT_GT(report->grad_norm, 0);
      EXPECT_GT(report->mismatch_kl_mean, 0) << "tokens with log-probabilities have a ratio";
    }
  }
}

TEST(TopKLearner, HasTheDerivativeOfItsLossAsGradient) {
  const auto folder = make_folder({});
  for (const double beta : {0.0, 0.4, 1.0}) {
    auto learner = make_adapter_learner(folder, {taught_adapter(beta)});
    const TrainBatch batch = taught_batch(5);
    ASSERT_TRUE(learner->step(batch, testing::never).ok());
    SCOPED_TRACE(beta);
    testing::expect_derivatives(*learner, kTaught, batch, 1e-5);
  }
}

TEST(TopKLearner, DoesNotDependOnMicroBatches) {
  const auto folder = make_folder({});
  LearnerOptions small;
  small.micro_batch_tokens = small.adapter_batch_tokens = 1;
  auto whole = make_adapter_learner(folder, {taught_adapter(0.4)});
  auto divided = make_adapter_learner(folder, {taught_adapter(0.4)}, small);
  const TrainBatch batch = taught_batch(6);
  const auto one = whole->step(batch, testing::never).value();
  const auto many = divided->step(batch, testing::never).value();
  EXPECT_GT(many.num_micro_batches, one.num_micro_batches);
  EXPECT_NEAR(one.loss, many.loss, 1e-7);
  EXPECT_NEAR(one.grad_norm, many.grad_norm, 1e-5 * one.grad_norm);
}

TEST(TopKLearner, HasTheSameBitsBesideAnotherTenant) {
  const auto folder = make_folder({});
  AdapterTraining other{kOther, {.rank = 4}, {}};
  other.rules.optimizer.lr = 0.02;
  auto alone = make_adapter_learner(folder, {taught_adapter(0.4, 0.01)});
  auto shared = make_adapter_learner(folder, {taught_adapter(0.4, 0.01), other});
  const TrainBatch first = taught_batch(6), second = two_groups(kOther);
  const auto report = alone->step(first, testing::never).value();
  const TrainBatch* const both[] = {&first, &second};
  const auto reports = shared->step_together(both, testing::never);
  ASSERT_TRUE(reports[0].ok() && reports[1].ok());
  EXPECT_EQ(reports[0]->loss, report.loss);
  EXPECT_EQ(adapter_bytes(*shared, kTaught), adapter_bytes(*alone, kTaught));
}

TEST(TopKLearner, WeightsOfTokensAreFactorsOfTheirLoss) {
  auto learner = make_adapter_learner(make_folder({}), {taught_adapter(0)});
  TrainBatch batch = taught_batch(4, true);
  const auto one = learner->step(batch, testing::never).value();
  for (auto& sample : batch.samples) sample.weights.assign(sample.tokens.size(), 0.5F);
  const auto half = learner->step(batch, testing::never).value();
  EXPECT_NEAR(half.loss, one.loss / 2, 1e-9);
  EXPECT_NEAR(half.grad_norm, one.grad_norm / 2, 1e-6);
  EXPECT_EQ(half.measures.teacher_kl, one.measures.teacher_kl) << "it is of the model alone";
  EXPECT_EQ(one.mismatch_kl_mean, 0) << "given answers have no ratio";
}

TEST(TopKLearner, FurtherTokensOfTheTeacherAreOthers) {
  auto learner = make_adapter_learner(make_folder({}), {taught_adapter(0)});
  TrainBatch batch = taught_batch(4);
  const auto known = learner->step(taught_batch(3), testing::never).value();
  for (auto& sample : batch.samples)
    for (size_t i = 3; i < sample.top_tokens.size(); i += 4) sample.top_tokens[i] = 1000;
  const auto further = learner->step(batch, testing::never).value();
  EXPECT_NEAR(further.loss, known.loss, 1e-6);
  for (auto& sample : batch.samples)
    for (size_t i = 0; i < sample.top_tokens.size(); ++i)
      sample.top_tokens[i] = 1000 + static_cast<int32_t>(i % 4);
  EXPECT_EQ(learner->step(batch, testing::never)->loss, 0) << "one bucket";
}

TEST(TopKLearner, OfAWholeVocabularyTheLearnerBecomesTheTeacher) {
  LearnerOptions options;
  options.loss.kind = "gkd";
  options.optimizer.lr = 0.01;
  auto learner = make_torch_learner(options, make_folder({})).value();
  const TrainBatch batch = taught_batch(kWholeVocabulary, true);
  const auto first = learner->step(batch, testing::never).value();
  for (int step = 0; step < 60; ++step) ASSERT_TRUE(learner->step(batch, testing::never).ok());
  const auto last = learner->step(batch, testing::never).value();
  EXPECT_LT(last.loss, 0.5 * first.loss);
  EXPECT_NEAR(first.measures.teacher_mass, 1, 1e-5);
}

TEST(TopKLearner, AResumedLearnerHasTheBitsOfOneThatNeverStopped) {
  const auto folder = make_folder({});
  const auto saved = new_scratch_folder() / "saved";
  std::filesystem::create_directories(saved);
  auto learner = make_adapter_learner(folder, {taught_adapter(0.4, 0.01)});
  auto resumed = make_adapter_learner(folder, {taught_adapter(0.4, 0.01)});
  const TrainBatch batch = taught_batch(6);
  ASSERT_TRUE(learner->step(batch, testing::never).ok());
  ASSERT_TRUE(learner->save(kTaught, saved).ok());
  ASSERT_TRUE(resumed->load(kTaught, saved).ok());
  const auto one = learner->step(batch, testing::never).value();
  const auto two = resumed->step(batch, testing::never).value();
  EXPECT_EQ(one.loss, two.loss);
  EXPECT_EQ(adapter_bytes(*learner, kTaught), adapter_bytes(*resumed, kTaught));
}

TEST(TopKLearner, BatchesOfAnotherObjectiveAreRefused) {
  const auto folder = make_folder({});
  auto taught = make_adapter_learner(folder, {taught_adapter(0)});
  const auto without = taught->step(two_groups(kTaught), testing::never);
  ASSERT_FALSE(without.ok());
  EXPECT_THAT(without.error().text(), HasSubstr("'gkd' needs the top tokens of a teacher"));
  AdapterTraining other{kTaught, {.rank = 4}, {}};
  auto learner = make_adapter_learner(folder, {other});
  const auto with = learner->step(taught_batch(2), testing::never);
  ASSERT_FALSE(with.ok());
  EXPECT_THAT(with.error().text(), HasSubstr("which the objective does not read"));
  TrainBatch bad = taught_batch(2);
  bad.samples[1].top_logprobs[0] = std::nanf("");
  const auto refused = taught->step(bad, testing::never);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("sample 1: a top log-probability"));
}

}  // namespace
}  // namespace primerl
