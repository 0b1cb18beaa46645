#include "kernels/common/optimizer.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <utility>

#include "graph/base/random.h"

namespace primerl {
namespace {

/// Keller Jordan, "Muon: an optimizer for hidden layers in neural networks", 2024.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr int kIterations = 5;
constexpr double kNormMin = 1e-7;
/// The root mean square of an update of AdamW, which Muon's then has too (Liu et al., "Muon is
/// scalable for LLM training", 2025).
constexpr double kMuonScale = 0.2;

float as_float(double value) { return static_cast<float>(value); }

AdamNumbers numbers_of(const OptimizerOptions& options, const OptimizerRules& rules) {
  return {.lr = options.lr,
          .beta1 = rules.beta1,
          .beta2 = rules.beta2,
          .epsilon = rules.epsilon,
          .weight_decay = options.weight_decay,
          .max_norm = options.max_norm};
}

// A step within these bounds is finite: an update of AdamW is at most kSmallRate times a moment of
// kSmall / 1e-7, divided by kEpsilonMin, that is 1e37.
constexpr double kSmall = 1e12, kSmallRate = 1e6, kEpsilonMin = 1e-12;
constexpr double kBetaMax = 1 - 1e-7;

/// False if one is NaN.
bool all_small(const at::Tensor& values) {
  if (!values.defined() || values.numel() == 0) return true;
  const auto [least, greatest] = at::aminmax(values);
  return least.item<double>() >= -kSmall && greatest.item<double>() <= kSmall;
}

/// The first elements of each dimension.
at::Tensor cut(at::Tensor padded, const std::vector<int64_t>& shape) {
  for (size_t i = 0; i < shape.size(); ++i)
    padded = padded.narrow(static_cast<int64_t>(i), 0, shape[i]);
  return padded;
}

}  // namespace

at::Tensor round_at_random(const at::Tensor& values, uint64_t seed) {
  const auto seed32 = static_cast<int32_t>(seed >> 32);
  // For one element, a random seed gives a uniform product, since the factors are odd.
  at::Tensor noise = at::arange(values.numel(), values.options().dtype(at::kInt));
  noise.mul_(static_cast<int32_t>(0x9E3779B1)).bitwise_xor_(seed32);
  noise.mul_(static_cast<int32_t>(0x85EBCA6B)).bitwise_right_shift_(16).bitwise_and_(0xFFFF);
  noise.add_(values.view(at::kInt)).bitwise_right_shift_(16);
  return noise.to(at::kShort).view(at::kBFloat16);
}

at::Tensor orthogonalize(const OptimizerDevice& device, const at::Tensor& x) {
  const bool is_tall = x.size(1) > x.size(2);
  at::Tensor made = device.in_bf16(is_tall ? x.transpose(1, 2).contiguous() : x);
  const at::Tensor norm =
      device.in_bf16(at::linalg_vector_norm(made, 2, at::IntArrayRef{1, 2}, true, at::kFloat));
  made = device.in_bf16(made.to(at::kFloat).div_(norm.to(at::kFloat).clamp_min_(kNormMin)));
  for (int i = 0; i < kIterations; ++i) {
    const at::Tensor gram = device.multiply_add({}, 0, made, made, true, 1);
    const at::Tensor factor = device.multiply_add(gram, kB, gram, gram, true, kC);
    made = device.multiply_add(made, kA, factor, made, false, 1);
  }
  made = made.to(at::kFloat);
  return is_tall ? made.transpose(1, 2) : made;
}

Optimizer::Optimizer(const OptimizerOptions& options, const TensorTable& table,
                     const TensorTable& files, OptimizerBuffers buffers,
                     std::unique_ptr<OptimizerDevice> device)
    : options_(options),
      rules_(rules_of(options)),
      plan_(plan_optimizer(options, table, files)),
      buffers_(std::move(buffers)),
      device_(std::move(device)),
      units_(units_of_plan()),
      own_numbers_(numbers_of(options, rules_)) {
  const auto type = bytes_of_moment(options) == 2 ? at::kBFloat16 : at::kFloat;
  for (size_t i = 0; i < states_.size(); ++i)
    states_[i] = device_->zeros(plan_.counts[i], type, has_host_moments(options));
  for (const Unit& unit : units_)
    reserved_floats_ = std::max(reserved_floats_, floats_of_unit(unit));
}

std::vector<Optimizer::Unit> Optimizer::units_of_plan() const {
  std::vector<Unit> units;
  for (size_t i = 0; i < plan_.parts.size(); ++i) {
    const UpdatePart& part = plan_.parts[i];
    const bool is_vector = part.rule == UpdateRule::kAdafactor && part.rows == 0;
    const int64_t all = is_vector ? 1 : part.rows > 0 ? part.num : part.count;
    const int64_t most =
        part.rows > 0
            ? std::max<int64_t>(1, device_->matrix_elements_max() / (part.rows * part.columns))
            : device_->elements_max();
    for (int64_t begin = 0; begin < all; begin += most)
      units.push_back({i, begin, std::min(most, all - begin)});
  }
  return units;
}

int64_t Optimizer::floats_of_unit(const Unit& unit) const {
  const UpdatePart& part = plan_.parts[unit.part];
  const bool is_plain = bytes_of_moment(options_) == 4 && !has_host_moments(options_);
  if (part.rule == UpdateRule::kAdamw && is_plain) return 0;
  if (part.rule == UpdateRule::kMuon) {
    const int64_t side = std::min(part.rows, part.columns);
    return unit.count * (5 * part.rows * part.columns + 3 * side * side);
  }
  return 4 * std::min(device_->elements_max(), part.count);
}

Status Optimizer::update(TrainReport& report, const AdamNumbers* adam) {
  numbers_ = adam != nullptr ? *adam : own_numbers_;
  report.grad_norm = device_->gradient_norm();
  if (!std::isfinite(report.grad_norm) || !std::isfinite(report.loss)) {
    report.skipped = true;
    report.skip_reason = fmt::format("the gradient is not finite (norm {}, loss {}), first in {}",
                                     report.grad_norm, report.loss, device_->broken_gradient());
    return ok();
  }
  const bool clips = numbers_.max_norm > 0 && report.grad_norm > numbers_.max_norm;
  return step(report.learning_rate, clips ? numbers_.max_norm / report.grad_norm : 1.0);
}

bool Optimizer::may_overflow(double lr, const AdamNumbers* adam) const {
  const AdamNumbers& numbers = adam != nullptr ? *adam : own_numbers_;
  const bool has_adamw = std::ranges::any_of(
      plan_.parts, [](const UpdatePart& part) { return part.rule == UpdateRule::kAdamw; });
  if (has_adamw &&
      (numbers.epsilon < kEpsilonMin || numbers.beta1 > kBetaMax || numbers.beta2 > kBetaMax))
    return true;
  return lr > kSmallRate || numbers.weight_decay > kSmallRate || !all_small(buffers_.weights) ||
         !all_small(buffers_.gradients) || !all_small(states_[0]) || !all_small(states_[1]);
}

Optimizer::Undo Optimizer::undo() const {
  Undo undo{buffers_.weights.clone(), {}, num_steps_};
  for (size_t i = 0; i < states_.size(); ++i)
    if (states_[i].defined()) undo.states[i] = states_[i].clone();
  return undo;
}

void Optimizer::restore(const Undo& undo) {
  buffers_.weights.copy_(undo.weights);
  for (size_t i = 0; i < states_.size(); ++i)
    if (states_[i].defined()) states_[i].copy_(undo.states[i]);
  num_steps_ = undo.num_steps;
}

Status Optimizer::step(double lr, double gradient_scale) {
  // An update that ends for lack of memory would leave some weights changed.
  RETURN_IF_ERROR(device_->reserve(reserved_floats_));
  lr_ = as_float(lr);
  scale_ = as_float(gradient_scale);
  // An error undoes it, and so does an exception of a unit.
  struct Counted {
    int64_t& num_steps;
    bool is_done = false;
    ~Counted() { num_steps -= is_done ? 0 : 1; }
  } counted{++num_steps_};
  int64_t work = 0;
  for (const UpdatePart& part : plan_.parts)
    work += part.count * (part.rule == UpdateRule::kMuon ? std::min(part.rows, part.columns) : 8);
  Status done = device_->run(std::ssize(units_), work,
                             [&](int64_t i) { return step_unit(units_[static_cast<size_t>(i)]); });
  counted.is_done = done.ok();
  return done;
}

Status Optimizer::step_unit(const Unit& unit) {
  const UpdatePart& part = plan_.parts[unit.part];
  switch (part.rule) {
    case UpdateRule::kAdamw:
      return step_adamw(unit);
    case UpdateRule::kSgd:
    case UpdateRule::kSignSgd:
      step_elements(unit);
      break;
    case UpdateRule::kMuon:
      step_muon(unit);
      break;
    case UpdateRule::kAdafactor:
      if (part.rows == 0)
        step_vector(part);
      else
        step_adafactor(unit);
  }
  return ok();
}

Optimizer::Moments Optimizer::moments(size_t buffer, int64_t offset, int64_t count) const {
  Moments made;
  made.stored = states_[buffer].narrow(0, offset, count);
  made.seed = mix(mix(static_cast<uint64_t>(num_steps_), buffer), static_cast<uint64_t>(offset));
  // Bytes are copied as they are: a conversion on the host would be slow. If device and type are
  // the same, it is the same tensor.
  made.values =
      made.stored.to(buffers_.weights.device(), made.stored.scalar_type(), /*non_blocking=*/true)
          .to(at::kFloat);
  return made;
}

void Optimizer::store(const Moments& moments) {
  if (moments.values.is_same(moments.stored)) return;
  const bool is_bf16 = moments.stored.scalar_type() == at::kBFloat16;
  moments.stored.copy_(is_bf16 ? round_at_random(moments.values, moments.seed) : moments.values,
                       /*non_blocking=*/true);
}

at::Tensor Optimizer::gradient(int64_t offset, int64_t count) const {
  return buffers_.gradients.narrow(0, offset, count).mul(scale_);
}

void Optimizer::decay(const UpdatePart& part, const at::Tensor& weights) const {
  if (part.decays && numbers_.weight_decay > 0)
    weights.mul_(1.0F - lr_ * as_float(numbers_.weight_decay));
}

void Optimizer::round_weights(int64_t offset, int64_t count) const {
  if (buffers_.rounded.defined())
    buffers_.rounded.narrow(0, offset, count).copy_(buffers_.weights.narrow(0, offset, count));
}

Status Optimizer::step_adamw(const Unit& unit) {
  const UpdatePart& part = plan_.parts[unit.part];
  const int64_t offset = part.offset + unit.begin;
  const Moments first = moments(0, part.states[0] + unit.begin, unit.count);
  const Moments second = moments(1, part.states[1] + unit.begin, unit.count);
  const auto steps = static_cast<double>(num_steps_);
  AdamwArgs args;
  args.count = unit.count;
  args.weights = buffers_.weights.mutable_data_ptr<float>() + offset;
  args.gradients = buffers_.gradients.const_data_ptr<float>() + offset;
  args.first_moments = first.values.mutable_data_ptr<float>();
  args.second_moments = second.values.mutable_data_ptr<float>();
  args.gradient_scale = scale_;
  args.lr = lr_;
  args.weight_decay = part.decays ? as_float(numbers_.weight_decay) : 0.0F;
  args.beta1 = as_float(numbers_.beta1);
  args.beta2 = as_float(numbers_.beta2);
  args.epsilon = as_float(numbers_.epsilon);
  args.correction1 = as_float(1 - std::pow(numbers_.beta1, steps));
  args.correction2 = as_float(1 - std::pow(numbers_.beta2, steps));
  RETURN_IF_ERROR(device_->adamw(args, offset));
  store(first);
  store(second);
  return ok();
}

/// The decay of sgd is part of its gradient, as in torch.optim.SGD.
void Optimizer::step_elements(const Unit& unit) {
  const UpdatePart& part = plan_.parts[unit.part];
  const int64_t offset = part.offset + unit.begin;
  const at::Tensor weights = buffers_.weights.narrow(0, offset, unit.count);
  at::Tensor change = gradient(offset, unit.count);
  if (part.rule == UpdateRule::kSignSgd) {
    decay(part, weights);
    weights.add_(change.sign_(), -lr_);
    return round_weights(offset, unit.count);
  }
  if (part.decays && numbers_.weight_decay > 0) change.add_(weights, numbers_.weight_decay);
  if (rules_.momentum > 0) {
    const Moments sum = moments(0, part.states[0] + unit.begin, unit.count);
    sum.values.mul_(rules_.momentum).add_(change);
    if (rules_.nesterov)
      change.add_(sum.values, rules_.momentum);
    else
      change.copy_(sum.values);
    store(sum);
  }
  weights.add_(change, -lr_);
  round_weights(offset, unit.count);
}

void Optimizer::step_muon(const Unit& unit) {
  const UpdatePart& part = plan_.parts[unit.part];
  const int64_t size = part.rows * part.columns, count = unit.count * size;
  const int64_t offset = part.offset + unit.begin * size;
  at::Tensor change = gradient(offset, count);
  const Moments mean = moments(0, part.states[0] + unit.begin * size, count);
  mean.values.lerp_(change, 1 - rules_.momentum);
  if (rules_.nesterov)
    change.lerp_(mean.values, rules_.momentum);
  else
    change.copy_(mean.values);
  store(mean);
  const at::Tensor direction =
      orthogonalize(*device_, change.view({unit.count, part.rows, part.columns}));
  const auto longest = static_cast<double>(std::max(part.file_rows, part.file_columns));
  const at::Tensor weights = buffers_.weights.narrow(0, offset, count);
  decay(part, weights);
  weights.view({unit.count, part.rows, part.columns})
      .add_(direction, -lr_ * kMuonScale * std::sqrt(longest));
  round_weights(offset, count);
}

namespace {

/// The sum of squares, as a tensor in fp64.
at::Tensor squares(const at::Tensor& values) { return values.square().sum(at::kDouble); }

}  // namespace

/// torch.optim.Adafactor. Rows go through in chunks, once for the moments, once for the size of the
/// update and once for the update, so that no other matrix of this size is needed.
void Optimizer::step_adafactor(const Unit& unit) {
  const UpdatePart& part = plan_.parts[unit.part];
  const auto step = static_cast<double>(num_steps_);
  const double fresh = std::pow(step, -rules_.decay_rate);
  const double rate = std::min<double>(lr_, 1 / std::sqrt(step));
  const double num_elements = static_cast<double>(part.file_rows * part.file_columns);
  const int64_t size = part.rows * part.columns;
  const int64_t chunk = std::max<int64_t>(1, device_->elements_max() / part.columns);
  for (int64_t i = unit.begin; i < unit.begin + unit.count; ++i) {
    const int64_t offset = part.offset + i * size;
    const auto rows_of = [&](const at::Tensor& flat, int64_t first, int64_t rows) {
      return flat.narrow(0, offset + first * part.columns, rows * part.columns)
          .view({rows, part.columns});
    };
    const auto each_chunk = [&](const auto& body) {
      for (int64_t first = 0; first < part.rows; first += chunk)
        body(first, std::min(chunk, part.rows - first));
    };
    const at::Tensor rows = states_[0].narrow(0, part.states[0] + i * part.rows, part.rows);
    const at::Tensor columns =
        states_[1].narrow(0, part.states[1] + i * part.columns, part.columns);
    at::Tensor column_sums = at::zeros_like(columns, columns.options().dtype(at::kDouble));
    at::Tensor weight_squares = at::zeros({}, column_sums.options());
    each_chunk([&](int64_t first, int64_t count) {
      const at::Tensor square = rows_of(buffers_.gradients, first, count).mul(scale_).square_();
      rows.narrow(0, first, count)
          .lerp_(square.mean(1).mul_(as_float(double(part.columns) / part.file_columns)), fresh);
      column_sums.add_(square.sum(0, false, at::kDouble));
      weight_squares.add_(squares(rows_of(buffers_.weights, first, count)));
    });
    columns.lerp_(column_sums.div_(part.file_rows).to(at::kFloat), fresh);
    const at::Tensor row_mean =
        rows.sum(at::kDouble).div_(part.file_rows).to(at::kFloat).clamp_min_(rules_.epsilon);
    const auto update_of = [&](int64_t first, int64_t count) {
      at::Tensor update = rows.narrow(0, first, count).unsqueeze(1).mul(columns.unsqueeze(0));
      update.div_(row_mean).clamp_min_(rules_.epsilon * rules_.epsilon).rsqrt_();
      return update.mul_(rows_of(buffers_.gradients, first, count)).mul_(scale_);
    };
    at::Tensor update_squares = at::zeros({}, column_sums.options());
    each_chunk([&](int64_t first, int64_t count) {
      update_squares.add_(squares(update_of(first, count)));
    });
    const at::Tensor factor =
        weight_squares.div_(num_elements).sqrt_().clamp_min_(rules_.scale_min).mul_(rate);
    factor.div_(update_squares.div_(num_elements).sqrt_().div_(rules_.update_clip).clamp_min_(1));
    const at::Tensor factor32 = factor.to(at::kFloat);
    each_chunk([&](int64_t first, int64_t count) {
      const at::Tensor update = update_of(first, count);
      const at::Tensor weights = rows_of(buffers_.weights, first, count);
      decay(part, weights);
      weights.sub_(update.mul_(factor32));
    });
    round_weights(offset, size);
  }
}

void Optimizer::step_vector(const UpdatePart& part) {
  const auto step = static_cast<double>(num_steps_);
  const double rate = std::min<double>(lr_, 1 / std::sqrt(step));
  const auto num_elements = static_cast<double>(part.file_columns);
  const at::Tensor change = gradient(part.offset, part.count);
  const at::Tensor second = states_[0].narrow(0, part.states[0], part.count);
  const at::Tensor weights = buffers_.weights.narrow(0, part.offset, part.count);
  second.lerp_(change.square(), std::pow(step, -rules_.decay_rate));
  change.mul_(second.clamp_min(rules_.epsilon * rules_.epsilon).rsqrt_());
  const at::Tensor factor =
      squares(weights).div_(num_elements).sqrt_().clamp_min_(rules_.scale_min).mul_(rate);
  factor.div_(squares(change).div_(num_elements).sqrt_().div_(rules_.update_clip).clamp_min_(1));
  decay(part, weights);
  weights.sub_(change.mul_(factor.to(at::kFloat)));
  round_weights(part.offset, part.count);
}

std::vector<WeightTensor> Optimizer::copy_state() {
  constexpr int64_t kCopied = int64_t{1} << 20;  // elements at once
  for (size_t i = 0; i < states_.size(); ++i) {
    const at::Tensor& from = states_[i];
    if (!copies_[i].defined() || copies_[i].storage().use_count() > 1)
      copies_[i] = at::empty(from.sizes(), at::TensorOptions(from.scalar_type()));
    const int64_t all = from.numel();
    (void)device_->run((all + kCopied - 1) / kCopied, all, [&](int64_t part) {
      const int64_t begin = part * kCopied, count = std::min(kCopied, all - begin);
      copies_[i].narrow(0, begin, count).copy_(from.narrow(0, begin, count));
      return ok();
    });
  }
  std::vector<WeightTensor> tensors;
  tensors.reserve(plan_.tensors.size());
  for (const StateTensor& tensor : plan_.tensors) {
    const at::Tensor whole =
        copies_[tensor.buffer].narrow(0, tensor.offset, tensor.count).view(tensor.shape);
    const auto host =
        std::make_shared<const at::Tensor>(cut(whole, tensor.file_shape).contiguous());
    const std::span all(static_cast<const std::byte*>(host->const_data_ptr()), host->nbytes());
    tensors.push_back({tensor.name,
                       host->scalar_type() == at::kFloat ? DataType::kF32 : DataType::kBF16,
                       tensor.file_shape, Blob(host, all)});
  }
  return tensors;
}

Result<OptimizerState> Optimizer::read(const std::filesystem::path& folder) const {
  return read_optimizer_state(folder, options_.kind, plan_);
}

void Optimizer::set_state(const OptimizerState& state) {
  for (size_t i = 0; i < plan_.tensors.size(); ++i) {
    const StateTensor& tensor = plan_.tensors[i];
    const WeightTensor& read = state.tensors[i];
    at::Tensor values = at::empty(tensor.file_shape, at::kFloat);
    convert_to_f32(read, 0, values.numel(), values.mutable_data_ptr<float>());
    const at::Tensor whole =
        states_[tensor.buffer].narrow(0, tensor.offset, tensor.count).view(tensor.shape);
    cut(whole, tensor.file_shape).copy_(values);
  }
  num_steps_ = state.num_steps;
}

}  // namespace primerl
