#include "kernels/torch/learner.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "graph/base/files.h"
#include "kernels/torch/boundary.h"
#include "kernels/torch/device.h"
#include "kernels/torch/make.h"
#include "kernels/torch/optimizer_state.h"
#include "kernels/train/loss.h"
#include "kernels/train/schedule.h"
#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

constexpr int64_t kLogitsMax = int64_t{8} << 20;  // floats of a chunk of the head
constexpr int64_t kChunkRowsMin = 8;

int64_t count_loss_tokens(const TrainBatch& batch) {
  int64_t count = 0;
  for (const auto& sample : batch.samples)
    for (size_t i = 1; i < sample.loss_mask.size(); ++i) count += sample.loss_mask[i] != 0;
  return count;
}

void grow(at::Tensor& tensor, int64_t rows, int64_t width) {
  if (!tensor.defined() || tensor.size(0) < rows) tensor = at::zeros({rows, width}, at::kFloat);
}

}  // namespace

TorchLearner::TorchLearner(const LearnerOptions& options, ModelFolder model)
    : options_(options),
      model_(std::move(model)),
      layout_(model_.config),
      ops_(cpu_ops()),
      decoder_(model_.config, layout_),
      gradient_(decoder_, layout_),
      first_moments_(at::zeros({layout_.count}, at::kFloat)),
      second_moments_(at::zeros({layout_.count}, at::kFloat)) {}

Status TorchLearner::fill(const std::vector<WeightTensor>& tensors) {
  RETURN_IF_ERROR(
      fill_parameters(layout_, tensors, decoder_.parameters().flat.mutable_data_ptr<float>()));
  decoder_.pack_weights();
  return ok();
}

void TorchLearner::randomize(uint64_t seed) {
  randomize_parameters(layout_, seed, model_.config.initializer_range,
                       decoder_.parameters().flat.mutable_data_ptr<float>());
  decoder_.pack_weights();
}

int64_t TorchLearner::chunk_rows() const {
  return std::max<int64_t>(kChunkRowsMin, kLogitsMax / model_.config.vocab_size);
}

at::Tensor TorchLearner::chunk_logits(std::span<const int32_t> rows, const at::Tensor& normed) {
  const int64_t hidden = model_.config.hidden_size;
  const auto count = static_cast<int64_t>(rows.size());
  grow(picked_, count, hidden);
  grow(dpicked_, count, hidden);
  grow(logits_, count, model_.config.vocab_size);
  const float* from = normed.const_data_ptr<float>();
  float* to = picked_.mutable_data_ptr<float>();
  for (const int32_t row : rows) {
    std::memcpy(to, from + row * hidden, static_cast<size_t>(hidden) * sizeof(float));
    to += hidden;
  }
  at::Tensor logits = logits_.narrow(0, 0, count);
  decoder_.logits(picked_.narrow(0, 0, count), logits);
  return logits;
}

void TorchLearner::learn_token(const TrainTarget& target, float* logits, LossKind loss,
                               double per_token, Sums& sums) {
  const int64_t vocab = model_.config.vocab_size;
  const float scale = target.inverse_temperature;
  float* row = logits;
  int64_t size = vocab;
  int32_t label = target.label;
  const bool is_kept_only = !target.kept.keeps_all();
  if (is_kept_only) {
    target.kept.list(kept_ids_);
    kept_logits_.clear();
    for (const int32_t id : kept_ids_) kept_logits_.push_back(logits[id]);
    row = kept_logits_.data();
    size = static_cast<int64_t>(kept_ids_.size());
    const auto at = std::lower_bound(kept_ids_.begin(), kept_ids_.end(), target.label);
    label = static_cast<int32_t>(at - kept_ids_.begin());
  }
  const SoftmaxStats stats = ops_.softmax(
      {.vocab_size = size, .inverse_temperature = scale, .logits = row, .weights = nullptr});
  const float log_pi = row[label] * scale - stats.log_normalizer;
  const TokenLoss token = loss == LossKind::kCrossEntropy
                              ? cross_entropy_loss(log_pi)
                              : dppo_loss(log_pi, target.logprob, target.advantage, options_.loss);
  sums.loss += token.loss;
  sums.entropy += stats.entropy;
  sums.mismatch_kl += token.mismatch_kl;
  sums.mismatch_kl_max = std::max(sums.mismatch_kl_max, token.mismatch_kl);
  sums.masked += token.masked ? 1 : 0;
  ops_.softmax_backward({.vocab_size = size,
                         .inverse_temperature = scale,
                         .log_normalizer = stats.log_normalizer,
                         .coefficient = static_cast<float>(token.gradient * per_token),
                         .label = label,
                         .logits = row});
  if (!is_kept_only) return;
  std::fill_n(logits, vocab, 0.0F);
  for (size_t i = 0; i < kept_ids_.size(); ++i) logits[kept_ids_[i]] = kept_logits_[i];
}

void TorchLearner::head(std::span<const TrainTarget> targets, const at::Tensor& normed,
                        LossKind loss, double per_token, Sums& sums) {
  const int64_t hidden = model_.config.hidden_size, vocab = model_.config.vocab_size;
  std::vector<int32_t> rows;
  for (const auto& target : targets) rows.push_back(target.row);
  at::Tensor logits = chunk_logits(rows, normed);
  float* row = logits.mutable_data_ptr<float>();
  for (const auto& target : targets) {
    learn_token(target, row, loss, per_token, sums);
    row += vocab;
  }
  const auto count = static_cast<int64_t>(targets.size());
  at::Tensor dlogits = logits.narrow(0, 0, count), dpicked = dpicked_.narrow(0, 0, count);
  at::Tensor& dhead = gradient_.gradients().head;
  at::addmm_out(dhead, dhead, dlogits.t(), picked_.narrow(0, 0, count));
  at::mm_out(dpicked, dlogits, decoder_.parameters().head);
  const float* from = dpicked.const_data_ptr<float>();
  for (const int32_t at : rows) {
    float* to = dnormed_.mutable_data_ptr<float>() + at * hidden;
    for (int64_t i = 0; i < hidden; ++i) to[i] += from[i];
    from += hidden;
  }
}

void TorchLearner::accumulate(const MicroBatch& batch, LossKind loss, double per_token,
                              Sums& sums) {
  const at::Tensor& normed = gradient_.forward(batch.rows);
  grow(dnormed_, normed.size(0), normed.size(1));
  at::Tensor dnormed = dnormed_.narrow(0, 0, normed.size(0));
  dnormed.zero_();
  std::span<const TrainTarget> left = batch.targets;
  while (!left.empty()) {
    const auto count = std::min(left.size(), static_cast<size_t>(chunk_rows()));
    head(left.first(count), normed, loss, per_token, sums);
    left = left.subspan(count);
  }
  gradient_.backward(batch.rows, dnormed);
}

void TorchLearner::update(TrainReport& report) {
  const OptimizerOptions& optimizer = options_.optimizer;
  const at::Tensor& gradients = gradient_.gradients().flat;
  report.grad_norm = at::linalg_vector_norm(gradients).item<float>();
  if (!std::isfinite(report.grad_norm) || !std::isfinite(report.loss)) {
    report.skipped = true;
    report.skip_reason =
        fmt::format("the gradient is not finite (norm {}, loss {})", report.grad_norm, report.loss);
    return;
  }
  ++num_steps_;
  const double max_norm = optimizer.max_norm;
  const bool clip = max_norm > 0 && report.grad_norm > max_norm;
  const auto steps = static_cast<double>(num_steps_);
  ops_.adamw({.count = layout_.count,
              .weights = decoder_.parameters().flat.mutable_data_ptr<float>(),
              .gradients = gradients.const_data_ptr<float>(),
              .first_moments = first_moments_.mutable_data_ptr<float>(),
              .second_moments = second_moments_.mutable_data_ptr<float>(),
              .gradient_scale = clip ? static_cast<float>(max_norm / report.grad_norm) : 1.0F,
              .lr = static_cast<float>(report.learning_rate),
              .weight_decay = static_cast<float>(optimizer.weight_decay),
              .beta1 = static_cast<float>(optimizer.beta1),
              .beta2 = static_cast<float>(optimizer.beta2),
              .epsilon = static_cast<float>(optimizer.epsilon),
              .correction1 = static_cast<float>(1 - std::pow(optimizer.beta1, steps)),
              .correction2 = static_cast<float>(1 - std::pow(optimizer.beta2, steps))});
  decoder_.pack_weights();
}

Result<TrainReport> TorchLearner::step(const TrainBatch& batch,
                                       const StopRequested& stop_requested) {
  RETURN_IF_ERROR(check_samples(batch, limits()));
  return at_boundary("training step", [&]() -> Result<TrainReport> {
    TrainReport report;
    for (const auto& sample : batch.samples)
      report.num_tokens += static_cast<int64_t>(sample.tokens.size());
    report.num_loss_tokens = count_loss_tokens(batch);
    report.learning_rate =
        learning_rate(options_.schedule, options_.optimizer.lr, options_.max_steps, num_steps_ + 1);
    if (report.num_loss_tokens == 0) {
      report.skipped = true;
      report.skip_reason = "no token of the batch has a loss";
      return report;
    }
    const auto batches = pack(batch.samples, options_.micro_batch_tokens);
    const double per_token = 1.0 / static_cast<double>(report.num_loss_tokens);
    Sums sums;
    gradient_.gradients().flat.zero_();
    for (const auto& micro_batch : batches) {
      if (stop_requested && stop_requested())
        return error(Code::kCancelled, "the step was stopped after {} of {} micro-batches",
                     report.num_micro_batches, batches.size());
      accumulate(micro_batch, batch.loss, per_token, sums);
      ++report.num_micro_batches;
    }
    report.loss = sums.loss * per_token;
    report.entropy_mean = sums.entropy * per_token;
    report.mismatch_kl_mean = sums.mismatch_kl * per_token;
    report.mismatch_kl_max = sums.mismatch_kl_max;
    report.masked_fraction = static_cast<double>(sums.masked) * per_token;
    update(report);
    return report;
  });
}

Result<std::shared_ptr<const WeightSnapshot>> TorchLearner::snapshot(PolicyVersion version) {
  auto taken = std::make_shared<WeightSnapshot>();
  taken->version = version;
  taken->tensors = copy_parameters(layout_, decoder_.parameters().flat.const_data_ptr<float>());
  return std::shared_ptr<const WeightSnapshot>(std::move(taken));
}

Result<std::vector<float>> TorchLearner::score(const std::vector<int32_t>& tokens) {
  TrainBatch batch;
  batch.loss = LossKind::kCrossEntropy;
  TrainSample& sample = batch.samples.emplace_back();
  sample.tokens = tokens;
  sample.loss_mask.assign(tokens.size(), 1);
  Status checked = check_samples(batch, limits());
  if (!checked.ok()) return Error(checked.error());
  return at_boundary("scoring", [&]() -> Result<std::vector<float>> {
    std::vector<float> logprobs;
    const auto batches = pack(batch.samples, static_cast<int32_t>(tokens.size()));
    if (batches.empty()) return logprobs;
    const at::Tensor& normed = gradient_.forward(batches.front().rows);
    const int64_t vocab = model_.config.vocab_size;
    std::span<const TrainTarget> left = batches.front().targets;
    while (!left.empty()) {
      const auto chunk = left.first(std::min(left.size(), static_cast<size_t>(chunk_rows())));
      std::vector<int32_t> rows;
      for (const auto& target : chunk) rows.push_back(target.row);
      const at::Tensor logits = chunk_logits(rows, normed);
      const float* row = logits.const_data_ptr<float>();
      for (const auto& target : chunk) {
        const auto stats = ops_.softmax(
            {.vocab_size = vocab, .inverse_temperature = 1, .logits = row, .weights = nullptr});
        logprobs.push_back(row[target.label] - stats.log_normalizer);
        row += vocab;
      }
      left = left.subspan(chunk.size());
    }
    return logprobs;
  });
}

Status TorchLearner::save(const std::filesystem::path& folder) {
  const float* weights = decoder_.parameters().flat.const_data_ptr<float>();
  RETURN_IF_ERROR(
      write_model_folder(folder / "weights", model_, copy_parameters(layout_, weights)));
  const OptimizerState state{num_steps_, first_moments_.const_data_ptr<float>(),
                             second_moments_.const_data_ptr<float>()};
  RETURN_IF_ERROR(write_optimizer_state(folder / "learner", layout_, state));
  return system_files().sync(folder);
}

Status TorchLearner::load(const std::filesystem::path& folder) {
  return at_boundary("loading a learner", [&]() -> Status {
    const at::Tensor weights = at::zeros({layout_.count}, at::kFloat);
    const at::Tensor first = at::zeros({layout_.count}, at::kFloat);
    const at::Tensor second = at::zeros({layout_.count}, at::kFloat);
    ASSIGN_OR_RETURN(const auto tensors, read_model_tensors(folder / "weights"));
    Status filled = fill_parameters(layout_, tensors, weights.mutable_data_ptr<float>());
    if (!filled.ok()) return Error(filled.error()).while_doing((folder / "weights").string());
    ASSIGN_OR_RETURN(
        const int64_t num_steps,
        read_optimizer_state(folder / "learner", layout_, first.mutable_data_ptr<float>(),
                             second.mutable_data_ptr<float>()));
    decoder_.parameters().flat.copy_(weights);
    decoder_.pack_weights();
    first_moments_.copy_(first);
    second_moments_.copy_(second);
    num_steps_ = num_steps;
    return ok();
  });
}

std::string TorchLearner::describe() const {
  return fmt::format("{} optimizer steps, {} parameters", num_steps_, layout_.count);
}

std::vector<WeightTensor> TorchLearner::gradients() {
  return copy_parameters(layout_, gradient_.gradients().flat.const_data_ptr<float>());
}

namespace {

Status check_options(const LearnerOptions& options) {
  RETURN_IF_ERROR(validate(options.loss));
  RETURN_IF_ERROR(validate(options.schedule, options.optimizer.lr, options.max_steps));
  const OptimizerOptions& optimizer = options.optimizer;
  if (optimizer.kind != "adamw")
    return error(Code::kInvalid, "unknown optimizer '{}'", optimizer.kind)
        .note("known optimizers: adamw");
  const auto fraction = [](double value) { return value >= 0 && value < 1; };
  if (!fraction(optimizer.beta1) || !fraction(optimizer.beta2))
    return error(Code::kInvalid, "beta1 {} and beta2 {} must be in [0, 1)", optimizer.beta1,
                 optimizer.beta2);
  if (!(optimizer.epsilon > 0) || !(optimizer.weight_decay >= 0) || !(optimizer.max_norm >= 0))
    return error(Code::kInvalid,
                 "epsilon {} must be above 0, weight_decay {} and max_norm {} 0 or above",
                 optimizer.epsilon, optimizer.weight_decay, optimizer.max_norm);
  if (options.micro_batch_tokens < 1 || options.threads < 0)
    return error(Code::kInvalid, "micro_batch_tokens {} must be at least 1, threads {} 0 or above",
                 options.micro_batch_tokens, options.threads);
  return ok();
}

}  // namespace

Result<std::unique_ptr<Learner>> make_torch_learner(const LearnerOptions& options,
                                                    const std::filesystem::path& model_folder) {
  if (const std::string why = why_not_on(options.device); !why.empty())
    return error(Code::kUnavailable, "it is placed on '{}', which {}", options.device, why);
  RETURN_IF_ERROR(check_options(options));
  ASSIGN_OR_RETURN(auto model, read_model_folder(model_folder));
  const auto tensors = read_model_tensors(model_folder);
  const bool random =
      !tensors.ok() && tensors.error().code() == Code::kNotFound && options.init_seed >= 0;
  if (!tensors.ok() && !random) return Error(tensors.error());
  return at_boundary("learner", [&]() -> Result<std::unique_ptr<Learner>> {
    use_threads(options.threads);
    auto learner = std::make_unique<TorchLearner>(options, std::move(model));
    if (random) {
      learner->randomize(static_cast<uint64_t>(options.init_seed));
      return std::unique_ptr<Learner>(std::move(learner));
    }
    Status filled = learner->fill(*tensors);
    if (!filled.ok()) return Error(filled.error()).while_doing(model_folder.string());
    return std::unique_ptr<Learner>(std::move(learner));
  });
}

}  // namespace primerl
