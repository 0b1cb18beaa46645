#include "kernels/train/objective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/train/advantage.h"
#include "kernels/train/loss.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

LossOptions options_of(std::string_view kind) {
  LossOptions options;
  options.kind = kind;
  return options;
}

/// The loss of a token as the papers write it, apart from the code under test: `x` is log pi where
/// it has a gradient, facts.log_pi where it is a constant.
double paper_loss(std::string_view name, const Objective& o, const TokenFacts& f, double x) {
  const double advantage = f.advantage, r = std::exp(x - f.log_mu);
  const double constant_ratio = std::exp(f.log_pi - f.log_mu);
  const double d = x - f.log_mu, p = std::exp(f.log_pi) - std::exp(f.log_mu);
  const auto clipped = [&](double ratio) {
    const double other = std::clamp(ratio, 1 - o.clip_low, 1 + o.clip_high);
    const double value = std::min(ratio * advantage, other * advantage);
    return advantage < 0 && o.clip_dual > 0 ? std::max(value, o.clip_dual * advantage) : value;
  };
  const double k = f.log_reference - x;
  const double penalty = o.reference_weight * (std::exp(k) - k - 1);
  if (name == "dppo")
    return ((advantage > 0 && p > o.clip_high) || (advantage <= 0 && p < -o.clip_low)
                ? 0
                : -advantage * r) +
           o.kl_weight * d * d + penalty;
  if (name == "ipo")
    return (p > o.clip_high || p < -o.clip_low ? 0 : -advantage * r) + o.kl_weight * d * d +
           penalty;
  if (name == "ppo" || name == "grpo" || name == "dapo" || name == "dr_grpo" ||
      name == "reinforce_pp")
    return -clipped(r) + penalty;
  // A sequence of this token alone.
  if (name == "gspo") return -clipped(r) + penalty;
  if (name == "cispo" || name == "tis")
    return -std::min(std::max(constant_ratio, o.weight_low), o.weight_high) * advantage * x +
           penalty;
  if (name == "icepop")
    return (constant_ratio < o.weight_low || constant_ratio > o.weight_high
                ? 0
                : -constant_ratio * advantage * x) +
           penalty;
  if (name == "decoupled_ppo") {
    const double prox = std::isnan(f.log_proximal)
                            ? f.log_mu + o.proximal_share * (f.log_pi - f.log_mu)
                            : f.log_proximal;
    const double w = std::exp(prox - f.log_mu);
    return (w > o.weight_high ? 0 : -w * clipped(std::exp(x - prox))) + penalty;
  }
  if (name == "m2po") return (f.is_dropped ? 0 : -r * advantage) + penalty;
  if (name == "importance_sampling") return -r * advantage + penalty;
  if (name == "dro") return -advantage * x + o.kl_weight * d * d + penalty;
  if (name == "ref_kl")
    return (p < -o.clip_low ? 0 : -(f.log_reference - f.log_pi) * r) + o.kl_weight * d * d;
  if (name == "opd") return -o.reference_weight * (f.log_reference - f.log_mu) * r;
  if (name == "gkd") return 0;  // of a whole distribution: top_k_test.cc
  return -x;
}

/// Tokens on all sides of all limits, and none on a limit.
template <class Visit>
void visit_tokens(const Visit& visit) {
  for (const double log_pi : {-6.1, -2.3, -1.05, -0.31})
    for (const double moved : {-2.21, -0.53, -0.13, 0.0, 0.11, 0.47, 1.73})
      for (const double advantage : {-1.3, 0.0, 0.8})
        for (const double proximal : {std::numeric_limits<double>::quiet_NaN(), log_pi - 0.09})
          for (const bool is_dropped : {false, true})
            if (log_pi - moved < 0)
              visit(TokenFacts{.log_pi = log_pi,
                               .log_mu = log_pi - moved,
                               .advantage = advantage,
                               .log_proximal = proximal,
                               .log_reference = log_pi - 0.4,
                               .sequence_log_ratio = log_pi - (log_pi - moved),
                               .is_dropped = is_dropped});
}

TEST(Objectives, EachLossIsItsFormulaAndEachGradientItsDerivative) {
  for (const ObjectiveSpec& spec : objectives()) {
    for (const bool is_changed : {false, true}) {
      LossOptions options = options_of(spec.name);
      for (const auto& number : spec.numbers)
        if (is_changed && number.name == "reference_weight") options.*number.member = 0.3;
      for (const auto& number : spec.numbers)
        if (is_changed && number.name == "clip_dual") options.*number.member = 1.5;
      for (const auto& number : spec.numbers)
        if (is_changed && number.name == "proximal_share") options.*number.member = 0.4;
      ASSERT_TRUE(validate(options).ok()) << spec.name;
      const Objective objective = objective_of(options);
      visit_tokens([&](const TokenFacts& facts) {
        const TokenLoss token = token_loss(objective, facts);
        const auto at = [&](double x) { return paper_loss(spec.name, objective, facts, x); };
        ASSERT_NEAR(token.loss, at(facts.log_pi), 1e-6) << spec.name;
        const double h = 1e-6;
        const double derivative = (at(facts.log_pi + h) - at(facts.log_pi - h)) / (2 * h);
        ASSERT_NEAR(token.gradient, derivative, 1e-6)
            << spec.name << " log_pi " << facts.log_pi << " log_mu " << facts.log_mu << " A "
            << facts.advantage;
      });
    }
  }
}

TEST(Objectives, StayFiniteForTheWorstTokens) {
  for (const ObjectiveSpec& spec : objectives())
    for (const double log_pi : {0.0, -1000.0})
      for (const double log_mu : {0.0, -1000.0}) {
        const auto token = token_loss(objective_of(options_of(spec.name)),
                                      {.log_pi = log_pi,
                                       .log_mu = log_mu,
                                       .advantage = -1,
                                       .log_reference = -1000,
                                       .sequence_log_ratio = log_pi - log_mu});
        EXPECT_TRUE(std::isfinite(token.loss)) << spec.name;
        EXPECT_TRUE(std::isfinite(token.gradient)) << spec.name;
      }
}

/// A learner skips a step whose loss is not finite.
TEST(Objectives, AreNotANumberForATokenThatIsNotOne) {
  for (const ObjectiveSpec& spec : objectives()) {
    if (spec.rule == ObjectiveRule::kTopK) continue;  // top_k_test.cc
    const double nan = std::nan("");
    const auto token = token_loss(objective_of(options_of(spec.name)), {.log_pi = nan,
                                                                        .log_mu = -1,
                                                                        .advantage = 0.7,
                                                                        .log_reference = -1,
                                                                        .sequence_log_ratio = nan,
                                                                        .is_dropped = true});
    EXPECT_TRUE(std::isnan(token.loss)) << spec.name;
    EXPECT_FALSE(token.masked) << spec.name;
  }
}

TEST(Objectives, OnPolicyTheyAllFollowTheAdvantage) {
  for (const ObjectiveSpec& spec : objectives()) {
    if (!spec.uses_advantages()) continue;
    const auto token = token_loss(objective_of(options_of(spec.name)),
                                  {.log_pi = -1.5, .log_mu = -1.5, .advantage = 0.7});
    EXPECT_DOUBLE_EQ(token.gradient, -0.7) << spec.name;
    EXPECT_FALSE(token.masked) << spec.name;
  }
}

MaskReason mask_reason(const LossOptions& options, const TokenFacts& facts) {
  const TokenLoss token = token_loss(objective_of(options), facts);
  EXPECT_EQ(token.masked, token.reason != MaskReason::kNone && !token.capped);
  return token.reason;
}

TEST(Objectives, SayWhyATokenWasDroppedOrLimited) {
  const auto facts = [](double ratio, double advantage) {
    return TokenFacts{.log_pi = -3 + std::log(ratio),
                      .log_mu = -3,
                      .advantage = advantage,
                      .sequence_log_ratio = std::log(ratio)};
  };
  EXPECT_EQ(mask_reason(options_of("grpo"), facts(1.19, 1)), MaskReason::kNone);
  EXPECT_EQ(mask_reason(options_of("grpo"), facts(1.21, 1)), MaskReason::kHigh);
  EXPECT_EQ(mask_reason(options_of("dapo"), facts(1.21, 1)), MaskReason::kNone);
  EXPECT_EQ(mask_reason(options_of("grpo"), facts(0.79, -1)), MaskReason::kLow);
  EXPECT_EQ(mask_reason(options_of("grpo"), facts(9, -1)), MaskReason::kNone);
  LossOptions dual = options_of("grpo");
  dual.clip_dual = 3;
  EXPECT_EQ(mask_reason(dual, facts(9, -1)), MaskReason::kDual);
  EXPECT_EQ(mask_reason(options_of("gspo"), facts(1.0005, 1)), MaskReason::kHigh);
  EXPECT_EQ(mask_reason(options_of("cispo"), facts(5.1, 1)), MaskReason::kHigh);
  EXPECT_EQ(mask_reason(options_of("tis"), facts(1.9, 1)), MaskReason::kNone);
  EXPECT_EQ(mask_reason(options_of("icepop"), facts(0.49, 1)), MaskReason::kLow);
  EXPECT_EQ(mask_reason(options_of("icepop"), facts(5.1, 1)), MaskReason::kHigh);
  EXPECT_EQ(mask_reason(options_of("decoupled_ppo"), facts(5.1, 1)), MaskReason::kWeight);
}

TEST(Objectives, ReportOnlyReasonsThatTheyHave) {
  for (const ObjectiveSpec& spec : objectives()) {
    const auto reasons = reasons_of(spec.rule);
    visit_tokens([&](const TokenFacts& facts) {
      const auto token = token_loss(objective_of(options_of(spec.name)), facts);
      if (!token.masked) return;
      EXPECT_THAT(reasons, ::testing::Contains(token.reason)) << spec.name;
    });
  }
}

TEST(Objectives, OfAPluginMayDropATokenWithoutAReason) {
  Objective own;
  own.rule = ObjectiveRule::kOwn;
  own.own_loss = [](const Objective&, const TokenFacts&) {
    TokenLoss token;
    token.masked = token.capped = true;
    return token;
  };
  const TokenLoss token = token_loss(own, {.log_pi = std::log(0.5), .log_mu = std::log(0.25)});
  EXPECT_TRUE(token.masked);
  EXPECT_TRUE(token.capped);
  EXPECT_EQ(token.reason, MaskReason::kNone);
  EXPECT_NEAR(token.ratio, 2, 1e-9);
}

TEST(Objectives, CeIsCrossEntropy) {
  const ObjectiveSpec* const ce = find_objective("ce");
  ASSERT_NE(ce, nullptr);
  EXPECT_EQ(ce->rule, ObjectiveRule::kCrossEntropy);
  EXPECT_FALSE(ce->uses_advantages());
  EXPECT_FALSE(ce->uses_logprobs());
}

TEST(Objectives, HaveAKnownAdvantageAndAText) {
  for (const ObjectiveSpec& spec : objectives()) {
    EXPECT_TRUE(advantage_kind(spec.advantage)) << spec.name;
    EXPECT_FALSE(spec.doc.empty()) << spec.name;
    EXPECT_EQ(find_objective(spec.name), &spec);
  }
  EXPECT_EQ(find_objective("gpro"), nullptr);
}

TEST(LossOptions, OfAnotherObjectiveAreRefusedByName) {
  for (const ObjectiveSpec& spec : objectives())
    for (const ObjectiveSpec& other : objectives())
      for (const auto& number : other.numbers) {
        LossOptions options = options_of(spec.name);
        options.*number.member = 0.5;
        if (number.name == "clip_dual") options.*number.member = 2;
        const bool is_own = std::ranges::any_of(
            spec.numbers, [&](const auto& own) { return own.name == number.name; });
        const Status valid = validate(options);
        ASSERT_EQ(valid.ok(), is_own) << spec.name << " " << number.name;
        if (is_own) continue;
        EXPECT_THAT(valid.error().text(), HasSubstr(fmt::format("no option '{}'", number.name)));
      }
}

TEST(LossOptions, AreRefusedOutsideOfTheirRange) {
  const auto fault = [](const auto& change, std::string_view kind = "ppo") {
    LossOptions options = options_of(kind);
    change(options);
    const Status valid = validate(options);
    return valid.ok() ? std::string() : valid.error().text();
  };
  EXPECT_THAT(fault([](auto& o) { o.kind = "gpro"; }), HasSubstr("unknown objective 'gpro'"));
  EXPECT_THAT(fault([](auto& o) { o.kind = "gpro"; }), HasSubstr("dr_grpo"));
  EXPECT_THAT(fault([](auto& o) { o.clip_low = std::nan(""); }), HasSubstr("clip_low nan"));
  EXPECT_THAT(fault([](auto& o) { o.clip_low = -0.5; }), HasSubstr("0 or above"));
  EXPECT_THAT(fault([](auto& o) { o.clip_dual = 0.9; }), HasSubstr("clip_dual"));
  EXPECT_EQ(fault([](auto& o) { o.clip_dual = 1; }), "");
  EXPECT_THAT(fault([](auto& o) { o.weight_low = 6; }, "icepop"), HasSubstr("is above"));
  for (const char* kind : {"cispo", "tis", "icepop", "decoupled_ppo"})
    EXPECT_THAT(fault([](auto& o) { o.weight_high = 0; }, kind), HasSubstr("weight_high 0"));
  EXPECT_THAT(fault([](auto& o) { o.reference_weight = 0; }, "opd"), HasSubstr("would train"));
  EXPECT_EQ(fault([](auto& o) { o.reference_weight = 0; }, "grpo"), "");
  EXPECT_THAT(fault([](auto& o) { o.proximal_share = 1.1; }, "decoupled_ppo"), HasSubstr("[0, 1]"));
  EXPECT_THAT(fault([](auto& o) { o.mean = "words"; }), HasSubstr("unknown mean 'words'"));
  EXPECT_THAT(fault([](auto& o) { o.mean = "token"; }, "cross_entropy"), HasSubstr("'mean'"));
  EXPECT_THAT(fault([](auto& o) { o.mean_tokens = 8; }), HasSubstr("has no effect"));
  EXPECT_EQ(fault([](auto& o) { o.mean_tokens = 8; }, "dr_grpo"), "");
}

}  // namespace
}  // namespace primerl
