#include "kernels/train/loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace primerl {
namespace {

/// The default objective's loss of one token.
TokenLoss dppo_loss(double log_pi, double log_mu, double advantage, const LossOptions& options) {
  return token_loss(objective_of(options),
                    {.log_pi = log_pi, .log_mu = log_mu, .advantage = advantage});
}

/// d loss / d log_pi by central differences.
double slope(double log_pi, double log_mu, double advantage, const LossOptions& options) {
  const double h = 1e-6;
  return (dppo_loss(log_pi + h, log_mu, advantage, options).loss -
          dppo_loss(log_pi - h, log_mu, advantage, options).loss) /
         (2 * h);
}

TEST(LogProb, IsOfTheKeptTokensAloneAndItsGradientIsItsSlope) {
  const std::vector<float> logits = {0.4F, -1.0F, 2.0F, 0.1F, -0.3F, 1.5F};
  double all = 0;
  for (int32_t token = 0; token < 6; ++token) all += std::exp(log_prob(logits, 0.8, {}, token));
  EXPECT_NEAR(all, 1, 1e-12);
  const std::vector<int32_t> kept = {0, 3, 5};
  double mass = 0;
  for (const int32_t token : kept) {
    mass += std::exp(log_prob(logits, 0.8, kept, token));
    std::vector<double> gradient(logits.size());
    log_prob(logits, 0.8, kept, token, gradient);
    for (size_t i = 0; i < logits.size(); ++i) {
      auto above = logits, below = logits;
      above[i] += 0.0078125F;
      below[i] -= 0.0078125F;
      const double slope =
          (log_prob(above, 0.8, kept, token) - log_prob(below, 0.8, kept, token)) / 0.015625;
      EXPECT_NEAR(gradient[i], slope, 1e-5) << i;
    }
    EXPECT_EQ(gradient[1], 0);
    EXPECT_EQ(gradient[2], 0) << "the most likely token was not kept";
  }
  EXPECT_NEAR(mass, 1, 1e-12);
}

/// clip_high limits gains of good tokens, clip_low losses of bad ones.
TEST(DppoLoss, EachClipLimitAppliesToOneSide) {
  LossOptions options;
  options.clip_low = 0.1;
  options.clip_high = 0.3;
  const double less = std::log(0.3), more = std::log(0.5);  // 0.2 apart
  EXPECT_FALSE(dppo_loss(more, less, 1, options).masked);
  EXPECT_TRUE(dppo_loss(less, more, -1, options).masked);
}

TEST(DppoLoss, ARatioBeyondTheLimitHasNoGradient) {
  LossOptions options;
  options.kl_weight = 0;
  options.clip_high = 2;
  const double log_pi = -1, log_mu = log_pi - kLogRatioMax;
  EXPECT_NE(dppo_loss(log_pi, log_mu, 1, options).gradient, 0) << "at the limit";
  EXPECT_EQ(dppo_loss(log_pi, log_mu - 0.5, 1, options).gradient, 0);
}

TEST(DppoLoss, RefusesUnknownKindsAndNegativeNumbers) {
  LossOptions options;
  EXPECT_TRUE(validate(options).ok());
  options.kind = "pppo";
  EXPECT_FALSE(validate(options).ok());
  options = {};
  options.clip_low = -0.1;
  EXPECT_FALSE(validate(options).ok());
}

TEST(DppoLoss, OnPolicyIsTheAdvantageAndItsGradientTheSame) {
  const auto token = dppo_loss(-1.5, -1.5, 0.7, {});
  EXPECT_DOUBLE_EQ(token.loss, -0.7);
  EXPECT_DOUBLE_EQ(token.gradient, -0.7);
  EXPECT_DOUBLE_EQ(token.mismatch_kl, 0);
  EXPECT_FALSE(token.masked);
}

TEST(DppoLoss, GradientIsTheDerivativeOfTheLoss) {
  LossOptions options;
  options.kl_weight = 0.3;
  for (const double log_pi : {-4.0, -1.2, -0.3})
    for (const double log_mu : {-3.5, -1.0, -0.4})
      for (const double advantage : {-1.3, 0.0, 0.8})
        EXPECT_NEAR(dppo_loss(log_pi, log_mu, advantage, options).gradient,
                    slope(log_pi, log_mu, advantage, options), 1e-6);
}

TEST(DppoLoss, DropsAGoodTokenOnceItIsMoreLikelyByMoreThanTheClip) {
  const double mu = 0.5;
  EXPECT_FALSE(dppo_loss(std::log(0.6999), std::log(mu), 1, {}).masked);
  const auto dropped = dppo_loss(std::log(0.7001), std::log(mu), 1, {});
  EXPECT_TRUE(dropped.masked);
  const double d = std::log(0.7001) - std::log(mu);
  EXPECT_NEAR(dropped.loss, 1e-3 * d * d, 1e-12);
  EXPECT_NEAR(dropped.gradient, 2e-3 * d, 1e-12);
  EXPECT_FALSE(dppo_loss(std::log(0.2), std::log(mu), 1, {}).masked);
}

TEST(DppoLoss, DropsABadTokenOnceItIsLessLikelyByMoreThanTheClip) {
  EXPECT_FALSE(dppo_loss(std::log(0.3001), std::log(0.5), -1, {}).masked);
  EXPECT_TRUE(dppo_loss(std::log(0.2999), std::log(0.5), -1, {}).masked);
  EXPECT_TRUE(dppo_loss(std::log(0.2999), std::log(0.5), 0, {}).masked);
  EXPECT_FALSE(dppo_loss(std::log(0.99), std::log(0.5), -1, {}).masked);
}

TEST(DppoLoss, ABrokenTokenStaysFinite) {
  const auto token = dppo_loss(0, -1000, -1, {});
  EXPECT_TRUE(std::isfinite(token.loss));
  EXPECT_TRUE(std::isfinite(token.gradient));
  EXPECT_NEAR(token.mismatch_kl, std::exp(kLogRatioMax) - 1 - kLogRatioMax, 1);
}

TEST(CrossEntropyLoss, IsTheNegativeLogprob) {
  EXPECT_DOUBLE_EQ(cross_entropy_loss(-2.5).loss, 2.5);
  EXPECT_DOUBLE_EQ(cross_entropy_loss(-2.5).gradient, -1);
}

}  // namespace
}  // namespace primerl
