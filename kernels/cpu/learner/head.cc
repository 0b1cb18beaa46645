#include "kernels/cpu/learner/head.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/common/memory.h"
#include "kernels/common/parallel.h"
#include "kernels/common/step_report.h"
#include "kernels/sizing/memory.h"
#include "kernels/train/top_k.h"

namespace primerl {
namespace {

constexpr int64_t kWorkOfLogitLoss = 32;  // of its softmax and back, in multiply-adds

void grow(std::vector<float>& values, int64_t count) {
  if (values.size() < static_cast<size_t>(count)) values.resize(static_cast<size_t>(count));
}

/// In a fixed order, whatever the threads are: eight sums, and then their sum.
double sum_of_row(const float* row, int64_t size) {
  std::array<double, 8> sums = {};
  int64_t i = 0;
  for (; i + std::ssize(sums) <= size; i += std::ssize(sums))
    for (size_t lane = 0; lane < sums.size(); ++lane)
      sums[lane] += static_cast<double>(row[i + static_cast<int64_t>(lane)]);
  double sum = 0;
  for (; i < size; ++i) sum += static_cast<double>(row[i]);
  for (const double lane : sums) sum += lane;
  return sum;
}

}  // namespace

int64_t TrainingHead::chunk_rows() const {
  return training_logits_rows(decoder_.config().vocab_size);
}

/// A piece is up to chunk_rows() targets of one part, counted from the part's first.
size_t TrainingHead::chunk_size(std::span<const TrainTarget> targets,
                                std::span<const LearnedPart* const> part_of) const {
  const auto most = static_cast<size_t>(chunk_rows());
  size_t size = 0;
  while (size < targets.size()) {
    const auto part = part_of.subspan(size);
    const auto other =
        std::ranges::find_if(part, [&](const LearnedPart* each) { return each != part.front(); });
    const size_t piece = std::min(most, static_cast<size_t>(other - part.begin()));
    if (size > 0 && size + piece > most) break;
    size += piece;
  }
  return size;
}

float* TrainingHead::make_logits(std::span<const TrainTarget> targets, const float* normed) {
  const int64_t hidden = decoder_.config().hidden_size;
  const auto count = static_cast<int64_t>(targets.size());
  grow(picked_, count * hidden);
  grow(dpicked_, count * hidden);
  const int64_t num_logits = count * decoder_.config().vocab_size;
  if (!logits_.defined() || logits_.numel() < num_logits) logits_ = zero_floats(num_logits);
  float* to = picked_.data();
  rows_.clear();
  for (const auto& target : targets) {
    rows_.push_back(target.row);
    std::memcpy(to, normed + target.row * hidden, static_cast<size_t>(hidden) * sizeof(float));
    to += hidden;
  }
  float* logits = logits_.mutable_data_ptr<float>();
  decoder_.head().forward_gathered(decoder_.tools(), rows_, picked_.data(), logits);
  return logits;
}

TrainingHead::ReadLogits TrainingHead::read_logits(const TrainTarget& target, float* logits,
                                                   KeptLogits& kept) const {
  if (target.kept.keeps_all()) return {logits, decoder_.config().vocab_size, target.label};
  target.kept.list(kept.ids);
  kept.logits.clear();
  for (const int32_t id : kept.ids) kept.logits.push_back(logits[id]);
  const auto at = std::lower_bound(kept.ids.begin(), kept.ids.end(), target.label);
  return {kept.logits.data(), static_cast<int64_t>(kept.ids.size()),
          static_cast<int32_t>(at - kept.ids.begin())};
}

TrainingHead::Learned TrainingHead::learn_token(const TrainTarget& target, float* logits,
                                                const LearnedPart& part, KeptLogits& kept) const {
  const int64_t vocab = decoder_.config().vocab_size;
  const CpuOps& ops = decoder_.tools().ops;
  const float scale = target.inverse_temperature;
  const bool is_kept_only = !target.kept.keeps_all();
  const auto [row, size, label] = read_logits(target, logits, kept);
  const SoftmaxStats stats = ops.softmax(
      {.vocab_size = size, .inverse_temperature = scale, .logits = row, .weights = nullptr});
  const float log_pi = row[label] * scale - stats.log_normalizer;
  const TokenLoss token = target_loss(target, log_pi, part);
  ops.softmax_backward({.vocab_size = size,
                        .inverse_temperature = scale,
                        .log_normalizer = stats.log_normalizer,
                        .coefficient = static_cast<float>(token.gradient * part.per_token),
                        .label = label,
                        .logits = row});
  if (is_kept_only) {
    std::fill_n(logits, vocab, 0.0F);
    for (size_t i = 0; i < kept.ids.size(); ++i) logits[kept.ids[i]] = kept.logits[i];
  }
  return {token, log_pi, stats.entropy};
}

/// The row becomes the learner's probabilities, whose sum without the k tokens is the rest, and
/// then their gradient.
TrainingHead::Learned TrainingHead::learn_top_k(const TrainTarget& target, float* logits,
                                                const LearnedPart& part, KeptLogits& kept) const {
  const auto vocab = static_cast<int64_t>(decoder_.config().vocab_size);
  const CpuOps& ops = decoder_.tools().ops;
  const float scale = target.inverse_temperature;
  const SoftmaxStats stats = ops.softmax(
      {.vocab_size = vocab, .inverse_temperature = scale, .logits = logits, .weights = nullptr});
  const auto logprob_of = [&](int32_t token) {
    return logits[token] * scale - stats.log_normalizer;
  };
  const float log_pi = logprob_of(target.label);
  TokenLoss token = target_loss(target, log_pi, part);
  kept.top_ids.clear();
  kept.teacher.clear();
  kept.learner.clear();
  for (size_t i = 0; i < target.top_tokens.size(); ++i) {
    if (target.top_tokens[i] >= vocab) continue;  // a further token of the teacher
    kept.top_ids.push_back(target.top_tokens[i]);
    kept.teacher.push_back(target.top_logprobs[i]);
    kept.learner.push_back(static_cast<double>(logprob_of(target.top_tokens[i])));
  }
  if (kept.top_ids.empty()) {  // one bucket: nothing to learn
    std::fill_n(logits, vocab, 0.0F);
    return {token, log_pi, stats.entropy};
  }
  ops.softmax_backward({.vocab_size = vocab,
                        .inverse_temperature = scale,
                        .log_normalizer = stats.log_normalizer,
                        .coefficient = -1 / scale,
                        .label = kept.top_ids.front(),
                        .logits = logits});
  for (const int32_t id : kept.top_ids) logits[id] = 0;
  const TopKRest rest{sum_of_row(logits, vocab), std::ssize(kept.top_ids) < vocab};
  kept.gradients.resize(kept.top_ids.size());
  const TopKLoss made =
      top_k_loss(part.objective->jsd_beta, kept.teacher, kept.learner, rest, kept.gradients);
  double sum = made.rest_gradient;
  for (const double gradient : kept.gradients) sum += gradient;
  const double factor = target.weight * part.per_token * static_cast<double>(scale);
  const double of_rest = made.rest_gradient == 0 ? 0 : made.rest_gradient / rest.learner;
  const auto of_others = static_cast<float>(factor * (of_rest - sum));
  for (int64_t i = 0; i < vocab; ++i) logits[i] *= of_others;
  for (size_t i = 0; i < kept.top_ids.size(); ++i)
    logits[kept.top_ids[i]] =
        static_cast<float>(factor * (kept.gradients[i] - std::exp(kept.learner[i]) * sum));
  token.loss = target.weight * made.loss;
  token.teacher_kl = made.kl;
  token.teacher_mass = made.mass;
  return {token, log_pi, stats.entropy};
}

void TrainingHead::learn(std::span<const TrainTarget> targets, std::span<const LearnedPart> parts,
                         const float* normed, float* dnormed) {
  const int64_t hidden = decoder_.config().hidden_size, vocab = decoder_.config().vocab_size;
  kept_.resize(static_cast<size_t>(std::max(at::get_num_threads(), 1)));
  part_of_.clear();
  for (const auto& part : parts) part_of_.insert(part_of_.end(), part.count, &part);
  for (std::span<const LearnedPart* const> part_of = part_of_; !targets.empty();) {
    const auto chunk = targets.first(chunk_size(targets, part_of));
    const auto count = static_cast<int64_t>(chunk.size());
    float* logits = make_logits(chunk, normed);
    learned_.resize(chunk.size());
    share(count, count * vocab * kWorkOfLogitLoss, [&](int64_t begin, int64_t end) {
      KeptLogits& kept = kept_[static_cast<size_t>(at::get_thread_num())];
      for (int64_t i = begin; i < end; ++i) {
        const auto index = static_cast<size_t>(i);
        const LearnedPart& part = *part_of[index];
        float* row = logits + i * vocab;
        learned_[index] = part.loss == LossKind::kTopK ? learn_top_k(chunk[index], row, part, kept)
                                                       : learn_token(chunk[index], row, part, kept);
      }
    });
    for (size_t i = 0; i < chunk.size(); ++i)
      add_token(chunk[i], learned_[i].token, learned_[i].log_pi, learned_[i].entropy, *part_of[i]);
    decoder_.head().backward_gathered(decoder_.tools(), rows_, picked_.data(), logits,
                                      dpicked_.data());
    const float* from = dpicked_.data();
    for (const auto& target : chunk) {
      float* to = dnormed + target.row * hidden;
      for (int64_t i = 0; i < hidden; ++i) to[i] += from[i];
      from += hidden;
    }
    targets = targets.subspan(chunk.size());
    part_of = part_of.subspan(chunk.size());
  }
}

void TrainingHead::score(std::span<const TrainTarget> targets, const float* normed,
                         std::vector<float>& logprobs) {
  const int64_t vocab = decoder_.config().vocab_size;
  while (!targets.empty()) {
    const auto chunk = targets.first(std::min(targets.size(), static_cast<size_t>(chunk_rows())));
    float* logits = make_logits(chunk, normed);
    kept_.resize(std::max(kept_.size(), size_t{1}));
    for (const auto& target : chunk) {
      const auto [row, size, label] = read_logits(target, logits, kept_.front());
      const float scale = target.inverse_temperature;
      const auto stats = decoder_.tools().ops.softmax(
          {.vocab_size = size, .inverse_temperature = scale, .logits = row, .weights = nullptr});
      logprobs.push_back(row[label] * scale - stats.log_normalizer);
      logits += vocab;
    }
    targets = targets.subspan(chunk.size());
  }
}

}  // namespace primerl
