// Every objective against the autograd of libtorch: the same formula in tensors, constants
// detached.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string_view>
#include <vector>

// ATen.h has a CHECK of its own.
#undef CHECK
#include "kernels/train/loss.h"

namespace primerl {
namespace {

struct Tokens {
  std::vector<double> log_pi, log_mu, log_ref, advantage;
};

Tokens test_tokens() {
  Tokens made;
  for (int i = 0; i < 96; ++i) {
    made.log_pi.push_back(-0.11 - 0.043 * (i % 24));
    made.log_mu.push_back(made.log_pi.back() - 0.61 + 0.0137 * i - 0.0001 * i * i);
    if (made.log_mu.back() > -0.001) made.log_mu.back() = -0.001;
    made.log_ref.push_back(made.log_pi.back() - 0.3 + 0.007 * i);
    made.advantage.push_back(i % 3 == 0 ? -0.9 : 0.37 * (i % 5));
  }
  return made;
}

at::Tensor tensor_of(const std::vector<double>& values) {
  return at::tensor(values, at::TensorOptions().dtype(at::kDouble));
}

at::Tensor clipped(const at::Tensor& ratio, const at::Tensor& advantage, const Objective& o) {
  const at::Tensor value =
      at::minimum(ratio * advantage, at::clamp(ratio, 1 - o.clip_low, 1 + o.clip_high) * advantage);
  if (o.clip_dual <= 0) return value;
  return at::where(advantage < 0, at::maximum(value, advantage * o.clip_dual), value);
}

/// Losses [tokens], with the graph of their gradient.
at::Tensor losses(const Objective& o, const at::Tensor& log_pi, const at::Tensor& log_mu,
                  const at::Tensor& log_ref, const at::Tensor& advantage) {
  const at::Tensor d = log_pi - log_mu, r = at::exp(d);
  const at::Tensor moved = (at::exp(log_pi) - at::exp(log_mu)).detach();
  const at::Tensor square = d * d * o.kl_weight;
  const at::Tensor k = log_ref - log_pi;
  const at::Tensor penalty = (at::exp(k) - k - 1) * o.reference_weight;
  const auto kept = [](const at::Tensor& drop, const at::Tensor& gain) {
    return at::where(drop, at::zeros_like(gain), -gain);
  };
  switch (o.rule) {
    case ObjectiveRule::kDppo:
      return kept(at::where(advantage > 0, moved > o.clip_high, moved < -o.clip_low),
                  advantage * r) +
             square + penalty;
    case ObjectiveRule::kIpo:
      return kept(at::logical_or(moved > o.clip_high, moved < -o.clip_low), advantage * r) +
             square + penalty;
    case ObjectiveRule::kRatioClip:
    case ObjectiveRule::kSequenceClip:  // sequences of one token
      return penalty - clipped(r, advantage, o);
    case ObjectiveRule::kWeightCap:
      return penalty - at::clamp(r.detach(), o.weight_low, o.weight_high) * advantage * log_pi;
    case ObjectiveRule::kWeightBand: {
      const at::Tensor w = r.detach();
      return kept(at::logical_or(w<o.weight_low, w> o.weight_high), w * advantage * log_pi) +
             penalty;
    }
    case ObjectiveRule::kDecoupled: {
      const at::Tensor prox = (log_mu + d * o.proximal_share).detach();
      const at::Tensor w = at::exp(prox - log_mu);
      return kept(w > o.weight_high, w * clipped(at::exp(log_pi - prox), advantage, o)) + penalty;
    }
    case ObjectiveRule::kMoment:
      return penalty - r * advantage;
    case ObjectiveRule::kReferenceKl:
      return kept(moved < -o.clip_low, k.detach() * r) + square;
    case ObjectiveRule::kDistillation:
      return (log_ref - log_mu) * r * -o.reference_weight;
    case ObjectiveRule::kImportance:
      return penalty - r * advantage;
    case ObjectiveRule::kRegularized:
      return penalty + square - advantage * log_pi;
    case ObjectiveRule::kCrossEntropy:
      return -log_pi;
    case ObjectiveRule::kOwn:
      break;
  }
  return {};
}

TEST(ObjectiveAutograd, TheGradientOfEachObjectiveIsThatOfAutograd) {
  const Tokens data = test_tokens();
  for (const ObjectiveSpec& spec : objectives()) {
    LossOptions options;
    options.kind = spec.name;
    for (const auto& number : spec.numbers) {
      if (number.name == "reference_weight") options.*number.member = 0.2;
      if (number.name == "clip_dual") options.*number.member = 1.4;
      if (number.name == "proximal_share") options.*number.member = 0.3;
    }
    ASSERT_TRUE(validate(options).ok());
    const Objective objective = objective_of(options);
    at::Tensor log_pi = tensor_of(data.log_pi);
    log_pi.requires_grad_(true);
    const at::Tensor all = losses(objective, log_pi, tensor_of(data.log_mu),
                                  tensor_of(data.log_ref), tensor_of(data.advantage));
    all.sum().backward();
    const at::Tensor gradient = log_pi.grad();
    int num_masked = 0;
    for (size_t i = 0; i < data.log_pi.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      const TokenLoss token =
          token_loss(objective, {.log_pi = data.log_pi[i],
                                 .log_mu = data.log_mu[i],
                                 .advantage = data.advantage[i],
                                 .log_reference = data.log_ref[i],
                                 .sequence_log_ratio = data.log_pi[i] - data.log_mu[i]});
      ASSERT_NEAR(token.loss, all[index].item<double>(), 1e-6) << spec.name << " " << i;
      ASSERT_NEAR(token.gradient, gradient[index].item<double>(), 1e-6) << spec.name << " " << i;
      num_masked += token.masked ? 1 : 0;
    }
    EXPECT_LT(num_masked, 90) << spec.name << ": most tokens have to train";
  }
}

}  // namespace
}  // namespace primerl
