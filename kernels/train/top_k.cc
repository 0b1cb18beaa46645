#include "kernels/train/top_k.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/train/loss.h"
#include "kernels/train/packing.h"

namespace primerl {
namespace {

constexpr double kMassMax = 1.001;  // of the teacher's tokens: rounding of 256 floats is far less

/// A part of the loss and its gradient by log p. A constant times p is left out of the gradient: it
/// adds up to 0 over all buckets.
struct BucketLoss {
  double loss = 0;
  double gradient = 0;
};

BucketLoss bucket_loss(double beta, double log_q, double log_p) {
  const double q = std::exp(log_q), p = std::exp(log_p);
  if (beta == 0) return {q * (log_q - log_p), -q};
  if (beta == 1) return {p * (log_p - log_q), p * (log_p - log_q)};
  const double a = std::log(beta) + log_q, b = std::log1p(-beta) + log_p;
  const double log_m = std::max(a, b) + std::log1p(std::exp(-std::abs(a - b)));
  const double moved = (1 - beta) * p * (log_p - log_m);
  return {beta * q * (log_q - log_m) + moved, moved};
}

size_t num_rows(const TrainSample& sample) {
  return static_cast<size_t>(
      std::count(sample.loss_mask.begin(), sample.loss_mask.end(), uint8_t{1}));
}

/// Checks the tokens of one row; `sorted` is scratch.
Status check_row(std::span<const int32_t> tokens, std::span<const float> logprobs, size_t position,
                 std::vector<int32_t>& sorted) {
  double mass = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0)
      return error(Code::kInvalid, "a top token of the teacher at token {} is {}", position,
                   tokens[i]);
    if (!(logprobs[i] >= kLogprobMin && logprobs[i] <= kLogprobMax))
      return error(Code::kInvalid,
                   "a top log-probability of the teacher at token {} is {}, not in [{}, {}]",
                   position, logprobs[i], kLogprobMin, kLogprobMax);
    mass += std::exp(static_cast<double>(logprobs[i]));
  }
  sorted.assign(tokens.begin(), tokens.end());
  std::ranges::sort(sorted);
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end())
    return error(Code::kInvalid, "token {} is twice among the teacher's top tokens at token {}",
                 *twice, position);
  if (mass > kMassMax)
    return error(Code::kInvalid,
                 "the probabilities of the teacher's top tokens at token {} add up to {:.4f}",
                 position, mass);
  return ok();
}

}  // namespace

TopKLoss top_k_loss(double beta, std::span<const float> teacher, std::span<const double> learner,
                    const TopKRest& rest, std::span<double> gradients) {
  TopKLoss all;
  const auto add = [&](double log_q, double log_p) {
    const BucketLoss bucket = bucket_loss(beta, log_q, log_p);
    all.loss += bucket.loss;
    all.kl += bucket_loss(0, log_q, log_p).loss;
    return bucket.gradient;
  };
  for (size_t i = 0; i < teacher.size(); ++i) {
    const auto log_q = static_cast<double>(teacher[i]);
    gradients[i] = add(log_q, learner[i]);
    all.mass += std::exp(log_q);
  }
  if (!rest.is_there) return all;
  const double gradient = add(std::log(std::max(1 - all.mass, kTeacherRestMin)),
                              std::log(std::max(rest.learner, kLearnerRestMin)));
  if (!(rest.learner < kLearnerRestMin)) all.rest_gradient = gradient;
  return all;
}

TopKLoss top_k_loss_of_row(double beta, std::span<const float> logits, double inverse_temperature,
                           std::span<const int32_t> ids, std::span<const float> teacher,
                           std::span<double> gradient) {
  std::vector<double> learner, gradients(ids.size()), p(logits.size());
  const double log_first = log_prob(logits, inverse_temperature, {}, 0);
  const auto log_p = [&](size_t i) {
    return log_first +
           (static_cast<double>(logits[i]) - static_cast<double>(logits[0])) * inverse_temperature;
  };
  for (size_t i = 0; i < logits.size(); ++i) p[i] = std::exp(log_p(i));
  std::vector<bool> is_other(logits.size(), true);
  for (const int32_t id : ids) {
    learner.push_back(log_p(static_cast<size_t>(id)));
    is_other[static_cast<size_t>(id)] = false;
  }
  TopKRest rest{0, ids.size() < logits.size()};
  for (size_t i = 0; i < p.size(); ++i) rest.learner += is_other[i] ? p[i] : 0;
  const TopKLoss made = top_k_loss(beta, teacher, learner, rest, gradients);
  if (gradient.empty()) return made;
  double sum = made.rest_gradient;
  for (const double each : gradients) sum += each;
  const double of_rest = made.rest_gradient == 0 ? 0 : made.rest_gradient / rest.learner;
  for (size_t i = 0; i < p.size(); ++i)
    gradient[i] = inverse_temperature * p[i] * ((is_other[i] ? of_rest : 0) - sum);
  for (size_t i = 0; i < ids.size(); ++i)
    gradient[static_cast<size_t>(ids[i])] += inverse_temperature * gradients[i];
  return made;
}

size_t top_k_of(const TrainSample& sample) {
  const size_t rows = num_rows(sample);
  return rows == 0 ? 0 : sample.top_tokens.size() / rows;
}

Status check_top_k(const TrainSample& sample) {
  const size_t rows = num_rows(sample);
  if (rows == 0) return ok();
  const size_t size = sample.top_tokens.size(), k = size / rows;
  if (size == 0) return error(Code::kInvalid, "it has no top tokens of a teacher");
  if (size % rows != 0 || sample.top_logprobs.size() != size)
    return error(Code::kInvalid,
                 "{} loss tokens, but {} top tokens of the teacher and {} log-probabilities", rows,
                 size, sample.top_logprobs.size());
  std::vector<int32_t> sorted;
  size_t row = 0;
  for (size_t i = 0; i < sample.loss_mask.size(); ++i) {
    if (sample.loss_mask[i] != 1) continue;
    const size_t begin = k * row++;
    if (i == 0) continue;
    RETURN_IF_ERROR(check_row(std::span(sample.top_tokens).subspan(begin, k),
                              std::span(sample.top_logprobs).subspan(begin, k), i, sorted));
  }
  return ok();
}

}  // namespace primerl
