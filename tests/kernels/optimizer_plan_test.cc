// Options of optimizers, and how a table is divided into parts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "kernels/models/padded_adapters.h"
#include "kernels/train/optimizer.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

OptimizerOptions of_kind(const std::string& kind) {
  OptimizerOptions options;
  options.kind = kind;
  return options;
}

template <class Change>
std::string refusal(const std::string& kind, const Change& change) {
  OptimizerOptions options = of_kind(kind);
  change(options);
  const Status valid = validate(options);
  return valid.ok() ? "" : valid.error().text();
}

TensorTable table() {
  return TensorTable(std::vector<Parameter>{{"embedding", ParameterKind::kEmbedding, {50, 8}},
                                            {"qkv", ParameterKind::kAttention, {16, 8}},
                                            {"bias", ParameterKind::kAttention, {16}},
                                            {"norm", ParameterKind::kNorm, {8}},
                                            {"up", ParameterKind::kMlp, {32, 8}},
                                            {"frozen", ParameterKind::kRouter, {8}, false},
                                            {"head", ParameterKind::kHead, {50, 8}}});
}

/// "embedding:adamw" of each part, by the tensors that begin in it.
std::vector<std::string> parts_of(const OptimizerOptions& options) {
  const TensorTable tensors = table();
  std::vector<std::string> texts;
  for (const UpdatePart& part : plan_optimizer(options, tensors).parts) {
    std::string text;
    for (const Parameter& parameter : tensors.parameters())
      if (parameter.offset >= part.offset && parameter.offset < part.offset + part.count)
        text += (text.empty() ? "" : "+") + parameter.name;
    texts.push_back(text + (part.rows > 0 ? " as matrix" : "") +
                    (part.decays ? "" : " without decay"));
  }
  return texts;
}

TEST(OptimizerOptions, OfEachKindHaveItsOwnNumbers) {
  for (const auto& kind : optimizer_names()) EXPECT_TRUE(validate(of_kind(kind)).ok()) << kind;
  EXPECT_EQ(rules_of(of_kind("adamw")).beta2, 0.999);
  EXPECT_EQ(rules_of(of_kind("muon")).beta2, 0.95);
  EXPECT_EQ(rules_of(of_kind("muon")).momentum, 0.95);
  EXPECT_EQ(rules_of(of_kind("sgd")).momentum, 0.9);
  OptimizerOptions options = of_kind("sgd");
  options.momentum = 0;
  EXPECT_EQ(rules_of(options).momentum, 0) << "0 is a number, not the default";
}

TEST(OptimizerOptions, OfAnotherOptimizerAreRefusedByName) {
  EXPECT_THAT(refusal("adamw", [](auto& o) { o.momentum = 0.9; }),
              HasSubstr("'optimizer.momentum' is not an option of 'adamw'"));
  EXPECT_THAT(refusal("sgd", [](auto& o) { o.beta1 = 0.9; }),
              HasSubstr("options of 'sgd': lr, weight_decay, max_norm, no_decay, momentum"));
  EXPECT_THAT(refusal("adafactor", [](auto& o) { o.nesterov = false; }),
              HasSubstr("'optimizer.nesterov' is not an option of 'adafactor'"));
  EXPECT_THAT(refusal("sign_sgd", [](auto& o) { o.moments_dtype = "bfloat16"; }),
              HasSubstr("'optimizer.moments_dtype' is not an option of 'sign_sgd'"));
  EXPECT_THAT(refusal("adafactor", [](auto& o) { o.moments_on = "host"; }),
              HasSubstr("'optimizer.moments_on'"));
  EXPECT_THAT(refusal("sgd",
                      [](auto& o) {
                        o.momentum = 0;
                        o.moments_dtype = "bfloat16";
                      }),
              HasSubstr("'optimizer.moments_dtype'"));
  EXPECT_THAT(refusal("muon", [](auto& o) { o.scale_min = 0.1; }),
              HasSubstr("'optimizer.scale_min'"));
  EXPECT_THAT(refusal("lion", [](auto&) {}), HasSubstr("adamw, muon, sgd, sign_sgd, adafactor"));
}

TEST(OptimizerOptions, OutOfRangeAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(refusal("adamw", [](auto& o) { o.beta2 = 1; }), HasSubstr("beta2"));
  EXPECT_EQ(refusal("adamw", [](auto& o) { o.beta2 = 0.9999; }), "");
  EXPECT_EQ(refusal("adamw", [](auto& o) { o.beta1 = 0; }), "");
  EXPECT_THAT(refusal("adamw", [](auto& o) { o.beta1 = -0.5; }), HasSubstr("beta1"));
  EXPECT_THAT(refusal("adamw", [](auto& o) { o.epsilon = 0; }), HasSubstr("epsilon"));
  EXPECT_THAT(refusal("adamw", [&](auto& o) { o.lr = nan; }), HasSubstr("'optimizer.lr'"));
  EXPECT_THAT(refusal("sgd", [](auto& o) { o.weight_decay = -0.1; }), HasSubstr("weight_decay"));
  EXPECT_THAT(refusal("sgd", [](auto& o) { o.max_norm = -1; }), HasSubstr("max_norm"));
  EXPECT_THAT(refusal("muon", [](auto& o) { o.momentum = 1; }), HasSubstr("momentum"));
  EXPECT_THAT(refusal("adafactor", [](auto& o) { o.decay_rate = 0; }), HasSubstr("decay_rate"));
  EXPECT_THAT(refusal("adamw", [](auto& o) { o.no_decay = {"norm"}; }),
              HasSubstr("norms, biases, embeddings, head"));
  EXPECT_THAT(refusal("adamw", [](auto& o) { o.moments_dtype = "float16"; }), HasSubstr("float16"));
  EXPECT_THAT(refusal("adamw", [](auto& o) { o.moments_on = "disk"; }), HasSubstr("disk"));
}

TEST(OptimizerPlan, OfAdamwIsOnePartOfAllTrainedTensors) {
  const TensorTable tensors = table();
  const OptimizerPlan plan = plan_optimizer({}, tensors);
  ASSERT_EQ(plan.parts.size(), 1U);
  EXPECT_EQ(plan.parts[0].offset, 0);
  EXPECT_EQ(plan.parts[0].count, tensors.trained_count());
  EXPECT_EQ(plan.counts[0], tensors.trained_count());
  EXPECT_EQ(plan.counts[1], tensors.trained_count());
  EXPECT_EQ(plan.tensors.size(), 12U) << "two of each of six trained tensors";
}

TEST(OptimizerPlan, DividesTensorsByDecay) {
  OptimizerOptions options;
  options.no_decay = {"norms", "biases"};
  EXPECT_THAT(parts_of(options),
              ElementsAre("embedding+qkv", "bias+norm without decay", "up+head"));
  options.no_decay = {"embeddings", "head"};
  EXPECT_THAT(parts_of(options),
              ElementsAre("embedding without decay", "qkv+bias+norm+up", "head without decay"));
}

TEST(OptimizerPlan, OfMuonGivesMatricesOfLayersToMuonAndTheRestToAdamw) {
  EXPECT_THAT(parts_of(of_kind("muon")),
              ElementsAre("embedding", "qkv as matrix", "bias+norm", "up as matrix", "head"));
}

TEST(OptimizerPlan, JoinsTheMatricesOfExperts) {
  const TensorTable tensors(std::vector<Parameter>{{"up", ParameterKind::kExperts, {6, 16, 8}}});
  const OptimizerPlan plan = plan_optimizer(of_kind("muon"), tensors);
  ASSERT_EQ(plan.parts.size(), 1U);
  EXPECT_EQ(plan.parts[0].num, 6);
  EXPECT_EQ(plan.parts[0].rows, 16);
}

TEST(OptimizerPlan, SaysTheBytesOfEachKind) {
  const TensorTable tensors(std::vector<Parameter>{{"up", ParameterKind::kMlp, {64, 32}},
                                                   {"norm", ParameterKind::kNorm, {32}}});
  const auto bytes = [&](OptimizerOptions options) {
    return state_bytes(options, plan_optimizer(options, tensors));
  };
  constexpr double kMatrix = 64 * 32, kNorm = 32;
  EXPECT_EQ(bytes(of_kind("adamw")), 8 * (kMatrix + kNorm));
  EXPECT_EQ(bytes(of_kind("muon")), 4 * kMatrix + 8 * kNorm);
  EXPECT_EQ(bytes(of_kind("sgd")), 4 * (kMatrix + kNorm));
  EXPECT_EQ(bytes(of_kind("sign_sgd")), 0);
  EXPECT_EQ(bytes(of_kind("adafactor")), 4 * (64 + 32 + kNorm));
  OptimizerOptions options;
  options.moments_dtype = "bfloat16";
  EXPECT_EQ(bytes(options), 4 * (kMatrix + kNorm));
  options = of_kind("sgd");
  options.momentum = 0;
  EXPECT_EQ(bytes(options), 0);
}

}  // namespace
}  // namespace primerl
