#include "kernels/torch/training/learner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "graph/base/files.h"
#include "kernels/torch/boundary.h"
#include "kernels/torch/device.h"
#include "kernels/torch/finite.h"
#include "kernels/torch/make.h"
#include "kernels/torch/memory.h"
#include "kernels/torch/parallel.h"
#include "kernels/torch/training/optimizer_state.h"
#include "kernels/train/schedule.h"
#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

constexpr int64_t kPartOfSquares = int64_t{1} << 16;  // their sums are added in order

int64_t count_loss_tokens(const TrainBatch& batch) {
  int64_t count = 0;
  for (const auto& sample : batch.samples)
    for (size_t i = 1; i < sample.loss_mask.size(); ++i) count += sample.loss_mask[i] != 0;
  return count;
}

Recompute recompute_of(std::string_view name) {
  if (name == "full") return Recompute::kFull;
  return name == "keep_attention" ? Recompute::kAttention : Recompute::kNone;
}

}  // namespace

TorchLearner::TorchLearner(const LearnerOptions& options, ModelFolder model)
    : options_(options),
      model_(std::move(model)),
      table_(model_.config),
      kept_batches_(options.debug.batch_folder, static_cast<size_t>(options.debug.batches_max)),
      weights_(table_, numerics_of(options.numerics), DecoderWeights::Use::kLearner),
      gradients_(zero_floats(table_.count())),
      first_moments_(zero_floats(table_.count())),
      second_moments_(zero_floats(table_.count())),
      decoder_(model_.config, weights_),
      pass_(decoder_, recompute_of(options.recompute)),
      head_(decoder_, options.loss) {
  decoder_.bind_gradients(gradients_.mutable_data_ptr<float>());
  if (options.debug.check_finite || !options.debug.dump_folder.empty())
    pass_.visit([this](const std::string& name, const at::Tensor& rows) { look(name, rows); });
}

void TorchLearner::look(const std::string& name, const at::Tensor& rows) {
  if (options_.debug.check_finite && broken_.empty())
    if (const std::string where = first_not_finite(rows); !where.empty())
      broken_ = fmt::format("activation '{}' is {} of micro-batch {}", name, where, micro_batch_);
  if (!options_.debug.dump_folder.empty())
    dump_.add(fmt::format("micro_batch.{}.{}", micro_batch_, name), rows);
}

/// A debug file that cannot be written is no reason to train otherwise than without it.
void TorchLearner::keep_batch(const TrainBatch& batch) {
  const Status kept = kept_batches_.keep(num_steps_ + 1, batch);
  if (kept.ok() || std::exchange(has_warned_, true)) return;
  fmt::print(stderr, "warning: the batch of step {} is not kept (said once): {}\n", num_steps_ + 1,
             kept.error().text());
}

Status TorchLearner::dump() {
  auto all = gradients();
  std::reverse(all.begin(), all.end());
  dump_.add("gradient", all);
  dump_.add("weight", copy_parameters(table_, weights_.flat().const_data_ptr<float>()));
  return dump_.write(options_.debug.dump_folder);
}

std::string TorchLearner::broken_gradient() {
  const float* gradients = gradients_.const_data_ptr<float>();
  for (const auto& slice : table_.slices())
    for (int64_t i = 0; i < slice.count; ++i)
      if (!std::isfinite(gradients[slice.offset + i]))
        return fmt::format("'{}' ({} at element {})", slice.name, gradients[slice.offset + i], i);
  return "none of the tensors";
}

Status TorchLearner::fill(const std::vector<WeightTensor>& tensors) {
  RETURN_IF_ERROR(weights_.load(tensors));
  unused_.clear();
  ASSIGN_OR_RETURN(const auto match, match_tensors(table_, tensors));
  for (const auto* tensor : match.unused) unused_.push_back(*tensor);
  return ok();
}

void TorchLearner::randomize(uint64_t seed) {
  randomize_parameters(table_, seed, model_.config.initializer_range,
                       weights_.flat().mutable_data_ptr<float>());
}

void TorchLearner::accumulate(const MicroBatch& batch, LossKind loss, double per_token,
                              LossSums& sums) {
  const float* normed = pass_.forward(batch.rows);
  dnormed_.assign(static_cast<size_t>(batch.rows.num_rows() * model_.config.hidden_size), 0.0F);
  head_.learn(batch.targets, normed, loss, per_token, dnormed_.data(), sums);
  pass_.backward(batch.rows, dnormed_.data());
}

double TorchLearner::gradient_norm() {
  const float* gradients = gradients_.const_data_ptr<float>();
  const int64_t count = table_.trained_count();
  const int64_t parts = (count + kPartOfSquares - 1) / kPartOfSquares;
  squares_.resize(static_cast<size_t>(parts));
  share(parts, count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      squares_[static_cast<size_t>(i)] = cpu_ops().sum_of_squares(
          gradients + i * kPartOfSquares, std::min(kPartOfSquares, count - i * kPartOfSquares));
  });
  double sum = 0;
  for (const double part : squares_) sum += part;
  return std::sqrt(sum);
}

void TorchLearner::update(TrainReport& report) {
  const OptimizerOptions& optimizer = options_.optimizer;
  report.grad_norm = gradient_norm();
  if (!std::isfinite(report.grad_norm) || !std::isfinite(report.loss)) {
    report.skipped = true;
    report.skip_reason = fmt::format("the gradient is not finite (norm {}, loss {}), first in {}",
                                     report.grad_norm, report.loss, broken_gradient());
    return;
  }
  ++num_steps_;
  const double max_norm = optimizer.max_norm;
  const bool clip = max_norm > 0 && report.grad_norm > max_norm;
  const auto steps = static_cast<double>(num_steps_);
  share(
      table_.trained_count(), 8 * table_.trained_count(),
      [&](int64_t begin, int64_t end) {
        cpu_ops().adamw(
            {.count = end - begin,
             .weights = weights_.flat().mutable_data_ptr<float>() + begin,
             .gradients = gradients_.const_data_ptr<float>() + begin,
             .first_moments = first_moments_.mutable_data_ptr<float>() + begin,
             .second_moments = second_moments_.mutable_data_ptr<float>() + begin,
             .gradient_scale = clip ? static_cast<float>(max_norm / report.grad_norm) : 1.0F,
             .lr = static_cast<float>(report.learning_rate),
             .weight_decay = static_cast<float>(optimizer.weight_decay),
             .beta1 = static_cast<float>(optimizer.beta1),
             .beta2 = static_cast<float>(optimizer.beta2),
             .epsilon = static_cast<float>(optimizer.epsilon),
             .correction1 = static_cast<float>(1 - std::pow(optimizer.beta1, steps)),
             .correction2 = static_cast<float>(1 - std::pow(optimizer.beta2, steps))});
      },
      64);
}

Result<TrainReport> TorchLearner::step(const TrainBatch& batch,
                                       const StopRequested& stop_requested) {
  RETURN_IF_ERROR(check_samples(batch, limits()));
  if (!options_.debug.batch_folder.empty()) keep_batch(batch);
  broken_.clear();
  dump_ = {};
  // An older dump must not be taken for that of a step that fails.
  if (!options_.debug.dump_folder.empty())
    RETURN_IF_ERROR(StepDump::remove(options_.debug.dump_folder));
  micro_batch_ = 0;
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
    LossSums sums;
    gradients_.zero_();
    for (const auto& micro_batch : batches) {
      if (stop_requested && stop_requested())
        return error(Code::kCancelled, "the step was stopped after {} of {} micro-batches",
                     report.num_micro_batches, batches.size());
      accumulate(micro_batch, batch.loss, per_token, sums);
      ++report.num_micro_batches;
      ++micro_batch_;
      if (broken_.empty()) continue;
      report.skipped = true;
      report.skip_reason = fmt::format("{} (step {})", broken_, num_steps_ + 1);
      if (!options_.debug.dump_folder.empty())
        RETURN_IF_ERROR(dump_.write(options_.debug.dump_folder));
      return report;
    }
    report.loss = sums.loss * per_token;
    report.entropy_mean = sums.entropy * per_token;
    report.mismatch_kl_mean = sums.mismatch_kl * per_token;
    report.mismatch_kl_max = sums.mismatch_kl_max;
    report.masked_fraction = static_cast<double>(sums.masked) * per_token;
    update(report);
    if (!options_.debug.dump_folder.empty()) RETURN_IF_ERROR(dump());
    return report;
  });
}

Result<std::shared_ptr<const WeightSnapshot>> TorchLearner::snapshot(PolicyVersion version) {
  auto taken = std::make_shared<WeightSnapshot>();
  taken->version = version;
  taken->tensors = copy_parameters(table_, weights_.flat().const_data_ptr<float>());
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
    const float* normed = pass_.forward(batches.front().rows);
    head_.score(batches.front().targets, normed, logprobs);
    return logprobs;
  });
}

Status TorchLearner::save(const std::filesystem::path& folder) {
  auto tensors = copy_parameters(table_, weights_.flat().const_data_ptr<float>());
  tensors.insert(tensors.end(), unused_.begin(), unused_.end());
  RETURN_IF_ERROR(write_model_folder(folder / "weights", model_, tensors));
  const OptimizerState state{num_steps_, first_moments_.const_data_ptr<float>(),
                             second_moments_.const_data_ptr<float>()};
  RETURN_IF_ERROR(write_optimizer_state(folder / "learner", table_, state));
  return system_files().sync(folder);
}

Status TorchLearner::load(const std::filesystem::path& folder) {
  return at_boundary("loading a learner", [&]() -> Status {
    const at::Tensor weights = zero_floats(table_.count());
    const at::Tensor first = zero_floats(table_.count());
    const at::Tensor second = zero_floats(table_.count());
    ASSIGN_OR_RETURN(const auto tensors, read_model_tensors(folder / "weights"));
    Status filled = fill_parameters(table_, tensors, weights.mutable_data_ptr<float>());
    if (!filled.ok()) return Error(filled.error()).while_doing((folder / "weights").string());
    ASSIGN_OR_RETURN(
        const int64_t num_steps,
        read_optimizer_state(folder / "learner", table_, first.mutable_data_ptr<float>(),
                             second.mutable_data_ptr<float>()));
    weights_.flat().copy_(weights);
    first_moments_.copy_(first);
    second_moments_.copy_(second);
    num_steps_ = num_steps;
    return ok();
  });
}

std::string TorchLearner::describe() const {
  return fmt::format("{} optimizer steps, {} parameters", num_steps_, table_.num_parameters());
}

std::vector<WeightTensor> TorchLearner::gradients() {
  auto all = copy_parameters(table_, gradients_.const_data_ptr<float>());
  std::erase_if(all, [&](const WeightTensor& tensor) {
    for (const auto& slice : table_.slices())
      if (slice.name == tensor.name) return !table_.parameters()[slice.parameter].is_trained;
    return true;
  });
  return all;
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
  Status supported = check_is_supported(model.config);
  if (!supported.ok()) return Error(supported.error()).while_doing(model_folder.string());
  const LearnerDebugOptions& debug = options.debug;
  if (!debug.batch_folder.empty())
    RETURN_IF_ERROR(
        KeptBatches(debug.batch_folder, static_cast<size_t>(debug.batches_max)).prepare());
  RETURN_IF_ERROR(check_memory("the learner (weights, gradients and two moments in fp32)",
                               bytes_needed_to_train(TensorTable(model.config))));
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
