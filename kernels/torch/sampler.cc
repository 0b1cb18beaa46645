#include "kernels/torch/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "graph/base/random.h"

namespace primerl {
namespace {

bool keeps_all(const SamplingParams& params, size_t vocab_size) {
  const bool top_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < vocab_size;
  return !top_k && params.top_p >= 1 && params.min_p <= 0;
}

}  // namespace

SampledToken Sampler::most_likely(std::span<const float> logits) {
  const auto best = std::max_element(logits.begin(), logits.end());
  const SoftmaxStats stats = ops_.softmax({.vocab_size = static_cast<int64_t>(logits.size()),
                                           .inverse_temperature = 1,
                                           .logits = logits.data(),
                                           .weights = nullptr});
  return {static_cast<int32_t>(best - logits.begin()), *best - stats.log_normalizer};
}

SampledToken Sampler::sample(std::span<const float> logits, const SamplingParams& params,
                             uint64_t seed, int32_t index) {
  if (params.temperature == 0) return most_likely(logits);
  weights_.resize(logits.size());
  const float inverse = 1.0F / static_cast<float>(params.temperature);
  const SoftmaxStats stats = ops_.softmax({.vocab_size = static_cast<int64_t>(logits.size()),
                                           .inverse_temperature = inverse,
                                           .logits = logits.data(),
                                           .weights = weights_.data()});
  const double uniform = sampling_uniform(seed, static_cast<uint64_t>(index));
  if (!keeps_all(params, logits.size())) return filtered(logits, params, uniform);
  double total = 0;
  for (const float weight : weights_) total += weight;
  const double target = uniform * total;
  double reached = 0;
  size_t chosen = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] <= 0) continue;
    chosen = i;
    reached += weights_[i];
    if (reached > target) break;
  }
  return {static_cast<int32_t>(chosen), logits[chosen] * inverse - stats.log_normalizer};
}

SampledToken Sampler::filtered(std::span<const float> logits, const SamplingParams& params,
                               double uniform) {
  candidates_.resize(logits.size());
  std::iota(candidates_.begin(), candidates_.end(), 0);
  const auto weight = [this](int32_t token) { return weights_[static_cast<size_t>(token)]; };
  const auto before = [&](int32_t a, int32_t b) {
    return weight(a) != weight(b) ? weight(a) > weight(b) : a < b;
  };
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + params.top_k, candidates_.end(),
                     before);
    candidates_.resize(static_cast<size_t>(params.top_k));
  }
  std::sort(candidates_.begin(), candidates_.end(), before);
  double total = 0;
  for (const int32_t token : candidates_) total += weight(token);
  const double enough = params.top_p * total;
  const double least = params.min_p * weight(candidates_.front());
  double mass = 0;
  size_t kept = 0;
  while (kept < candidates_.size() && (kept == 0 || (mass < enough || params.top_p >= 1)) &&
         (kept == 0 || weight(candidates_[kept]) >= least))
    mass += weight(candidates_[kept++]);
  const double target = uniform * mass;
  double reached = 0;
  size_t chosen = 0;
  for (; chosen + 1 < kept; ++chosen) {
    reached += weight(candidates_[chosen]);
    if (reached > target) break;
  }
  const int32_t token = candidates_[chosen];
  return {token, static_cast<float>(std::log(weight(token) / mass))};
}

}  // namespace primerl
