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
#include "kernels/train/top_k.h"

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
    case ObjectiveRule::kTopK:
      return log_pi * 0;  // of a whole distribution: the tests below
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

constexpr double kBetas[] = {0, 0.1, 0.5, 0.9, 1};

/// TRL's generalized_jsd_loss, over buckets in the logarithm, summed.
at::Tensor jsd(double beta, const at::Tensor& log_q, const at::Tensor& log_p) {
  const at::Tensor q = log_q.exp(), p = log_p.exp();
  if (beta == 0) return (q * (log_q - log_p)).sum();
  if (beta == 1) return (p * (log_p - log_q)).sum();
  const at::Tensor log_m = at::logaddexp(log_q + std::log(beta), log_p + std::log(1 - beta));
  return (q * (log_q - log_m)).sum() * beta + (p * (log_p - log_m)).sum() * (1 - beta);
}

struct Row {
  std::vector<float> logits, teacher;  // of all tokens
  std::vector<int32_t> ids;            // the teacher's tokens, the likeliest first
};

Row row_of(int64_t vocab) {
  Row row;
  for (int64_t i = 0; i < vocab; ++i)
    row.logits.push_back(static_cast<float>(std::sin(1.7 * static_cast<double>(i)) * 2.5));
  std::vector<double> other;
  for (int64_t i = 0; i < vocab; ++i) other.push_back(std::cos(2.3 * static_cast<double>(i)) * 3);
  const at::Tensor log_q = at::log_softmax(tensor_of(other), 0);
  const at::Tensor order = std::get<1>(log_q.sort(0, true)).contiguous();
  for (int64_t i = 0; i < vocab; ++i) {
    row.ids.push_back(static_cast<int32_t>(order[i].item<int64_t>()));
    row.teacher.push_back(log_q[order[i]].item<float>());
  }
  return row;
}

TEST(TopKAutograd, LossAndGradientAreThoseOfAutogradForEachK) {
  constexpr int64_t kVocab = 17;
  const Row row = row_of(kVocab);
  for (const double beta : kBetas)
    for (const double scale : {1.0, 0.7})
      for (size_t k = 1; k <= static_cast<size_t>(kVocab); ++k) {
        at::Tensor logits = tensor_of({row.logits.begin(), row.logits.end()});
        logits.requires_grad_(true);
        const at::Tensor all = at::log_softmax(logits * scale, 0);
        std::vector<at::Tensor> of_ids, of_others;
        for (size_t i = 0; i < row.ids.size(); ++i)
          (i < k ? of_ids : of_others).push_back(all[row.ids[i]]);
        std::vector<double> log_q(row.teacher.begin(),
                                  row.teacher.begin() + static_cast<std::ptrdiff_t>(k));
        at::Tensor log_p = at::stack(of_ids);
        if (!of_others.empty()) {
          log_p = at::cat({log_p, at::logsumexp(at::stack(of_others), {0}).unsqueeze(0)});
          double mass = 0;
          for (const double each : log_q) mass += std::exp(each);
          log_q.push_back(std::log(1 - mass));
        }
        const at::Tensor wanted = jsd(beta, tensor_of(log_q), log_p);
        wanted.backward();
        std::vector<double> gradient(row.logits.size());
        const TopKLoss loss =
            top_k_loss_of_row(beta, row.logits, scale, std::span(row.ids).first(k),
                              std::span(row.teacher).first(k), gradient);
        ASSERT_NEAR(loss.loss, wanted.item<double>(), 1e-6) << beta << " " << k;
        for (int64_t i = 0; i < kVocab; ++i)
          ASSERT_NEAR(gradient[static_cast<size_t>(i)], logits.grad()[i].item<double>(), 1e-6)
              << beta << " " << k << " " << i;
      }
}

TEST(TopKAutograd, OfTheWholeVocabularyItIsTheWholeDivergence) {
  const Row row = row_of(29);
  std::vector<double> log_q(row.ids.size());
  for (size_t i = 0; i < row.ids.size(); ++i)
    log_q[static_cast<size_t>(row.ids[i])] = static_cast<double>(row.teacher[i]);
  const at::Tensor log_p = at::log_softmax(tensor_of({row.logits.begin(), row.logits.end()}), 0);
  for (const double beta : kBetas) {
    const double whole = jsd(beta, tensor_of(log_q), log_p).item<double>();
    EXPECT_NEAR(top_k_loss_of_row(beta, row.logits, 1, row.ids, row.teacher).loss, whole, 1e-9);
    for (const size_t k : {size_t{1}, size_t{5}, size_t{20}})
      EXPECT_LE(top_k_loss_of_row(beta, row.logits, 1, std::span(row.ids).first(k),
                                  std::span(row.teacher).first(k))
                    .loss,
                whole + 1e-4)
          << "buckets lose what tokens differ inside them";
  }
}

}  // namespace
}  // namespace primerl
