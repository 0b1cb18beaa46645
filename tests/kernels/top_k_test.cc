// The loss over a teacher's likeliest tokens: its limits, its derivative and what is refused.
#include "kernels/train/top_k.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/train/objective.h"
#include "kernels/train/packing.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kTopKBetas[] = {0, 0.3, 0.5, 1};

std::vector<float> some_logits() { return {0.3F, -1.2F, 2.1F, 0.0F, 0.9F, -0.4F, 1.4F}; }

/// Log-probabilities of the teacher for the tokens 2, 6, 0, ...
const std::vector<int32_t> kTopIds = {2, 6, 0, 4, 5, 1, 3};
std::vector<float> top_of(size_t k) {
  const std::vector<double> q = {0.45, 0.25, 0.12, 0.08, 0.05, 0.03, 0.02};
  std::vector<float> logprobs;
  for (size_t i = 0; i < k; ++i) logprobs.push_back(static_cast<float>(std::log(q[i])));
  return logprobs;
}

TEST(TopKLoss, TheGradientIsTheDerivativeForEachK) {
  for (const double beta : kTopKBetas)
    for (size_t k = 1; k <= kTopIds.size(); ++k) {
      const auto ids = std::span(kTopIds).first(k);
      const auto teacher = top_of(k);
      std::vector<float> logits = some_logits();
      std::vector<double> gradient(logits.size());
      top_k_loss_of_row(beta, logits, 0.8, ids, teacher, gradient);
      EXPECT_NEAR(std::accumulate(gradient.begin(), gradient.end(), 0.0), 0, 1e-12);
      for (size_t i = 0; i < logits.size(); ++i) {
        const float at = logits[i], h = 0x1p-10F;
        const auto loss_at = [&](float logit) {
          logits[i] = logit;
          return top_k_loss_of_row(beta, logits, 0.8, ids, teacher).loss;
        };
        const double above = loss_at(at + h), below = loss_at(at - h);
        logits[i] = at;
        EXPECT_NEAR(gradient[i], (above - below) / (2 * static_cast<double>(h)), 1e-6)
            << beta << " " << k << " " << i;
      }
    }
}

TEST(TopKLoss, IsZeroAndFlatWhereTheLearnerIsTheTeacher) {
  std::vector<float> logits(kTopIds.size());
  const auto teacher = top_of(kTopIds.size());
  for (size_t i = 0; i < kTopIds.size(); ++i)
    logits[static_cast<size_t>(kTopIds[i])] = teacher[i] + 3;
  for (const double beta : kTopKBetas)
    for (const size_t k : {size_t{1}, size_t{3}, kTopIds.size()}) {
      std::vector<double> gradient(logits.size());
      const auto loss = top_k_loss_of_row(beta, logits, 1, std::span(kTopIds).first(k),
                                          std::span(teacher).first(k), gradient);
      EXPECT_NEAR(loss.loss, 0, 1e-6) << beta << " " << k;
      for (const double each : gradient) EXPECT_NEAR(each, 0, 1e-6) << beta << " " << k;
    }
}

TEST(TopKLoss, ReportsTheForwardKlAndTheMassWhateverBetaIs) {
  const auto teacher = top_of(2);
  const auto ids = std::span(kTopIds).first(2);
  const auto forward = top_k_loss_of_row(0, some_logits(), 1, ids, teacher);
  EXPECT_EQ(forward.loss, forward.kl);
  EXPECT_NEAR(forward.mass, 0.7, 1e-6);
  const auto reverse = top_k_loss_of_row(1, some_logits(), 1, ids, teacher);
  EXPECT_EQ(reverse.kl, forward.kl);
  EXPECT_NE(reverse.loss, forward.loss);
}

TEST(TopKLoss, OfEqualLogitsTreatsTokensAlikeInAnyOrder) {
  const std::vector<float> logits(5, 0.5F);
  const std::vector<float> teacher = {std::log(0.3F), std::log(0.3F)};
  std::vector<double> one(5), two(5);
  const std::vector<int32_t> ids = {1, 3}, turned = {3, 1};
  const auto a = top_k_loss_of_row(0.3, logits, 1, ids, teacher, one);
  const auto b = top_k_loss_of_row(0.3, logits, 1, turned, teacher, two);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(one, two);
  EXPECT_EQ(one[1], one[3]);
  EXPECT_EQ(one[0], one[2]);
}

/// A learner that is sure of the teacher's tokens has no other probability left in any float.
TEST(TopKLoss, StaysFiniteWhereNothingIsLeftForOtherTokens) {
  const std::vector<float> logits = {300, -300, 300, -300};
  const std::vector<int32_t> ids = {0, 2};
  const std::vector<float> sure = {std::log(0.5F), std::log(0.5F)}, unsure = {-1, -2};
  for (const double beta : kTopKBetas)
    for (const auto& teacher : {sure, unsure}) {
      std::vector<double> gradient(4);
      const auto loss = top_k_loss_of_row(beta, logits, 1, ids, teacher, gradient);
      EXPECT_TRUE(std::isfinite(loss.loss)) << beta;
      EXPECT_EQ(loss.rest_gradient, 0) << beta;
      for (const double each : gradient) EXPECT_TRUE(std::isfinite(each)) << beta;
    }
  const std::vector<float> certain = {0, -900};
  EXPECT_TRUE(std::isfinite(top_k_loss_of_row(1, logits, 1, ids, certain).loss));
}

TEST(TopKLoss, IsNotANumberForALogitThatIsNotOne) {
  auto logits = some_logits();
  logits[3] = std::numeric_limits<float>::quiet_NaN();
  for (const double beta : kTopKBetas)
    EXPECT_TRUE(std::isnan(
        top_k_loss_of_row(beta, logits, 1, std::span(kTopIds).first(2), top_of(2)).loss));
}

TEST(TopKLoss, ItsBetaIsANumberOfItsObjectiveAlone) {
  LossOptions options;
  options.kind = "gkd";
  EXPECT_EQ(objective_of(options).jsd_beta, 0);
  for (const double beta : {0.0, 0.5, 1.0}) {
    options.jsd_beta = beta;
    EXPECT_TRUE(validate(options).ok()) << beta;
    EXPECT_EQ(objective_of(options).jsd_beta, beta);
  }
  options.jsd_beta = 1.01;
  EXPECT_THAT(validate(options).error().text(), HasSubstr("jsd_beta 1.01 is not in [0, 1]"));
  options.jsd_beta = 0.5;
  options.kind = "opd";
  EXPECT_THAT(validate(options).error().text(), HasSubstr("jsd_beta"));
  EXPECT_FALSE(find_objective("gkd")->uses_advantages());
  EXPECT_FALSE(find_objective("gkd")->uses_logprobs());
}

/// Three tokens, of which the last two have a loss; k = 2.
TrainSample taught_sample() {
  TrainSample sample;
  sample.tokens = {4, 5, 6};
  sample.loss_mask = {0, 1, 1};
  sample.top_tokens = {5, 1, 6, 2};
  sample.top_logprobs = {-0.5F, -1.5F, -0.25F, -2};
  return sample;
}

std::string refusal_of(const TrainSample& sample) {
  const Status checked = check_sample(sample, LossKind::kTopK, {16, 10});
  return checked.ok() ? "" : checked.error().text();
}

TEST(TopKSample, BadRowsAreRefusedByName) {
  EXPECT_EQ(refusal_of(taught_sample()), "");
  const auto changed = [](auto change) {
    TrainSample sample = taught_sample();
    change(sample);
    return refusal_of(sample);
  };
  EXPECT_THAT(changed([](auto& s) { s.top_tokens[3] = 6; }),
              HasSubstr("token 6 is twice among the teacher's top tokens at token 2"));
  EXPECT_THAT(changed([](auto& s) { s.top_tokens[0] = -1; }), HasSubstr("at token 1 is -1"));
  EXPECT_THAT(changed([](auto& s) { s.top_logprobs[1] = std::nanf(""); }),
              HasSubstr("a top log-probability of the teacher at token 1 is nan"));
  EXPECT_THAT(changed([](auto& s) { s.top_logprobs[1] = -1001; }), HasSubstr("is -1001"));
  EXPECT_THAT(changed([](auto& s) { s.top_logprobs[3] = 0.02F; }), HasSubstr("is 0.02"));
  EXPECT_THAT(changed([](auto& s) { s.top_logprobs[3] = -0.25F; }), HasSubstr("add up to 1.55"));
  EXPECT_THAT(changed([](auto& s) { s.top_tokens.pop_back(); }),
              HasSubstr("2 loss tokens, but 3 top tokens of the teacher and 4"));
  EXPECT_THAT(changed([](auto& s) { s.top_tokens.clear(); }), HasSubstr("has no top tokens"));
  EXPECT_THAT(changed([](auto& s) { s.kept = Blob(std::vector<std::byte>(2)); }),
              HasSubstr("it has kept sets"));
  EXPECT_EQ(changed([](auto& s) { s.top_tokens[1] = 10; }), "")
      << "a further token of the teacher is one of the others";
  const Status other = check_sample(taught_sample(), LossKind::kCrossEntropy, {16, 10});
  EXPECT_THAT(other.error().text(), HasSubstr("which only 'gkd' reads"));
}

TEST(TopKSample, EachTargetHasTheRowOfItsToken) {
  std::vector<TrainSample> samples(3, taught_sample());
  samples[1].top_tokens = {7, 8, 9, 0};
  samples[2].loss_mask = {1, 0, 1};  // no row predicts the first token
  int num_targets = 0;
  for (const MicroBatch& batch : pack(samples, 4))
    for (const TrainTarget& target : batch.targets) {
      ++num_targets;
      const auto& sample = samples[static_cast<size_t>(target.sample)];
      const size_t row = target.position == 2 ? 2 : 0;
      EXPECT_THAT(target.top_tokens,
                  ElementsAre(sample.top_tokens[row], sample.top_tokens[row + 1]));
      EXPECT_THAT(target.top_logprobs,
                  ElementsAre(sample.top_logprobs[row], sample.top_logprobs[row + 1]));
    }
  EXPECT_EQ(num_targets, 5);
}

}  // namespace
}  // namespace primerl
