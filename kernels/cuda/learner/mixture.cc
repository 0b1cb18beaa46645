#include "kernels/cuda/learner/mixture.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>

#include "kernels/common/router_shape.h"
#include "kernels/cuda/layers/swiglu.h"

namespace primerl {
namespace {

/// The matrix that GEMMs read.
const at::Tensor& matrix_of(const CudaParameter& weight) {
  return weight.rounded.defined() ? weight.rounded : weight.weight;
}

}  // namespace

CudaTrainingMixture::CudaTrainingMixture(const ModelConfig& config, at::ScalarType type,
                                         LearnerAdapters* adapters, const CudaStream& stream)
    : config_(config),
      spec_(*config.moe),
      shape_(router_shape(*config.moe)),
      type_(type),
      adapters_(adapters),
      stream_(stream) {}

double CudaTrainingMixture::bytes_of_rows(const ModelConfig& config, at::ScalarType type) {
  const MoeSpec& spec = *config.moe;
  const double pairs = spec.experts_per_token, size = static_cast<double>(at::elementSize(type));
  const double of_pair = config.hidden_size + 3.0 * spec.width;
  return size * (pairs * of_pair + 3.0 * spec.shared_width) + 4.0 * spec.num_experts + 28.0 * pairs;
}

/// Forward: the outputs of the experts. Backward: gradients of sorted rows before and after the
/// experts, and of the activations between; the router's rows in fp32.
double CudaTrainingMixture::bytes_of_scratch(const ModelConfig& config, at::ScalarType type) {
  const MoeSpec& spec = *config.moe;
  const double pairs = spec.experts_per_token, size = static_cast<double>(at::elementSize(type));
  return size * pairs * (2.0 * config.hidden_size + 2.0 * spec.width) + 8.0 * config.hidden_size +
         8.0 * spec.num_experts + 40.0 * pairs;
}

double CudaTrainingMixture::bytes_of_gradients(const ModelConfig& config, at::ScalarType type) {
  if (type == at::kFloat) return 0;
  const MoeSpec& spec = *config.moe;
  return 2.0 * static_cast<double>(at::elementSize(type)) * spec.num_experts * spec.width *
         config.hidden_size;
}

cuda::Type CudaTrainingMixture::type() const { return op_type(type_); }

Status CudaTrainingMixture::route(const Weights& weights, const at::Tensor& x, Rows& rows) const {
  const int64_t count = x.size(0), k = spec_.experts_per_token;
  const auto of = [&](at::ScalarType type) { return x.options().dtype(type); };
  rows.scores = at::empty({count, spec_.num_experts}, of(at::kFloat));
  rows.experts = at::empty({count, k}, of(at::kInt));
  rows.weights = at::empty({count, k}, of(at::kFloat));
  if (type_ == at::kFloat)
    at::mm_out(rows.scores, x, weights.router.weight.t());
  else
    at::mm_out(rows.scores, x, weights.router.weight.t(), at::kFloat);
  const at::Tensor& bias = weights.selection_bias.exact;
  return launched(
      cuda::route({.rows = count,
                   .shape = shape_,
                   .selection_bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr,
                   .logits = rows.scores.const_data_ptr<float>(),
                   .scores = rows.scores.mutable_data_ptr<float>(),
                   .experts = rows.experts.mutable_data_ptr<int32_t>(),
                   .weights = rows.weights.mutable_data_ptr<float>()},
                  stream_.raw()),
      "route");
}

Status CudaTrainingMixture::sort(Rows& rows) const {
  rows.permutation = at::empty(rows.experts.sizes(), rows.experts.options());
  rows.sources = at::empty({rows.experts.numel()}, rows.experts.options());
  rows.ends = at::empty({spec_.num_experts}, rows.experts.options());
  RETURN_IF_ERROR(
      launched(cuda::sort_by_expert({.rows = rows.experts.size(0),
                                     .experts_per_token = spec_.experts_per_token,
                                     .num_experts = spec_.num_experts,
                                     .experts = rows.experts.const_data_ptr<int32_t>(),
                                     .permutation = rows.permutation.mutable_data_ptr<int32_t>(),
                                     .sources = rows.sources.mutable_data_ptr<int32_t>(),
                                     .ends = rows.ends.mutable_data_ptr<int32_t>()},
                                    stream_.raw()),
               "sort_by_expert"));
  if (type_ != at::kFloat) return ok();
  const at::Tensor host = rows.ends.to(at::kLong).cpu();
  rows.on_host.assign(host.const_data_ptr<int64_t>(),
                      host.const_data_ptr<int64_t>() + spec_.num_experts);
  return ok();
}

at::Tensor CudaTrainingMixture::grouped(const Rows& rows, const at::Tensor& x,
                                        const at::Tensor& weight) const {
  if (type_ != at::kFloat) return at::_grouped_mm(x, weight, rows.ends);
  const at::Tensor y = at::empty({x.size(0), weight.size(2)}, x.options());
  int64_t begin = 0;
  for (int64_t e = 0; e < spec_.num_experts; ++e) {
    const int64_t end = rows.on_host[static_cast<size_t>(e)];
    at::Tensor to = y.narrow(0, begin, end - begin);
    if (end > begin) at::mm_out(to, x.narrow(0, begin, end - begin), weight.select(0, e));
    begin = end;
  }
  return y;
}

at::Tensor CudaTrainingMixture::forward_gemm(const Rows& rows, const CudaParameter& weight,
                                             const at::Tensor& gathered, const at::Tensor& x,
                                             const int32_t* sources) const {
  if (weight.experts != nullptr)
    return grouped_fp8(quantised_rows(gathered.size(0), x, stream_, sources), *weight.experts,
                       rows.ends, false, stream_);
  return grouped(rows, read(weight, gathered), matrix_of(weight).transpose(1, 2));
}

at::Tensor CudaTrainingMixture::backward_gemm(const Rows& rows, const CudaParameter& weight,
                                              const at::Tensor& gathered, const at::Tensor& dy,
                                              const int32_t* sources) const {
  if (weight.experts != nullptr)
    return grouped_fp8(quantised_rows(gathered.size(0), dy, stream_, sources), *weight.experts,
                       rows.ends, true, stream_);
  return grouped(rows, gathered, matrix_of(weight));
}

void CudaTrainingMixture::add_gradient(const Rows& rows, const at::Tensor& dy, const at::Tensor& x,
                                       const at::Tensor& gradient) const {
  if (!gradient.defined()) return;
  if (type_ != at::kFloat) {
    gradient.add_(at::_grouped_mm(dy.t(), x, rows.ends));
    return;
  }
  int64_t begin = 0;
  for (int64_t e = 0; e < spec_.num_experts; ++e) {
    const int64_t end = rows.on_host[static_cast<size_t>(e)];
    if (end > begin)
      add_gemm(dy.narrow(0, begin, end - begin), x.narrow(0, begin, end - begin),
               gradient.select(0, e));
    begin = end;
  }
}

void CudaTrainingMixture::add_gemm(const at::Tensor& dy, const at::Tensor& x,
                                   const at::Tensor& gradient) const {
  if (!gradient.defined()) return;
  at::Tensor to = gradient;
  if (x.scalar_type() == at::kFloat)
    at::addmm_out(to, to, dy.t(), x);
  else
    at::addmm_out(to, to, dy.t(), x, at::kFloat);
}

Status CudaTrainingMixture::gather(const at::Tensor& x, const at::Tensor& sources,
                                   const at::Tensor& y) const {
  return launched(cuda::gather_rows({.rows = y.size(0),
                                     .width = y.size(1),
                                     .type = type(),
                                     .x = x.const_data_ptr(),
                                     .sources = sources.const_data_ptr<int32_t>(),
                                     .y = y.mutable_data_ptr()},
                                    stream_.raw()),
                  "rows of experts");
}

Status CudaTrainingMixture::combine(const Rows& rows, const at::Tensor& x,
                                    const at::Tensor& weights, const at::Tensor& y) const {
  return launched(
      cuda::combine_rows({.rows = y.size(0),
                          .width = y.size(1),
                          .terms = spec_.experts_per_token,
                          .type = type(),
                          .x = x.const_data_ptr(),
                          .row_indices = rows.permutation.const_data_ptr<int32_t>(),
                          .weights = weights.defined() ? weights.const_data_ptr<float>() : nullptr,
                          .y = y.mutable_data_ptr()},
                         stream_.raw()),
      "sum over experts");
}

at::Tensor CudaTrainingMixture::read(const CudaParameter& weight, const at::Tensor& x) const {
  return weight.rounded.defined() ? rounded_rows(x.size(0), x, stream_) : x;
}

void CudaTrainingMixture::gemm(const at::Tensor& x, const CudaParameter& weight,
                               const at::Tensor& y) const {
  at::Tensor to = y;
  at::mm_out(to, read(weight, x), matrix_of(weight).t());
  if (weight.adapters != nullptr) adapters_->forward(*weight.adapters, x, to);
}

Result<CudaTrainingMixture::Rows> CudaTrainingMixture::forward(const Weights& weights,
                                                               const at::Tensor& x,
                                                               const at::Tensor& y) const {
  Rows rows;
  RETURN_IF_ERROR(route(weights, x, rows));
  RETURN_IF_ERROR(sort(rows));
  const int64_t num_pairs = rows.sources.numel();
  rows.gathered = at::empty({num_pairs, config_.hidden_size}, x.options());
  RETURN_IF_ERROR(gather(x, rows.sources, rows.gathered));
  const auto *on_gate_up = weights.gate_up.adapters, *on_down = weights.down.adapters;
  if (on_gate_up != nullptr || on_down != nullptr) {
    ASSIGN_OR_RETURN(rows.adapters, adapters_->sort_rows(rows.sources, rows.ends));
  }
  rows.gate_up = forward_gemm(rows, weights.gate_up, rows.gathered, x,
                              rows.sources.const_data_ptr<int32_t>());
  if (on_gate_up != nullptr)
    adapters_->forward(*on_gate_up, rows.adapters, rows.gathered, rows.gate_up);
  rows.activated = at::empty({num_pairs, spec_.width}, x.options());
  RETURN_IF_ERROR(apply_swiglu(num_pairs, rows.gate_up, rows.activated, stream_));
  if (spec_.shared_width > 0) {
    rows.shared_gate_up = at::empty({x.size(0), 2 * int64_t{spec_.shared_width}}, x.options());
    gemm(x, weights.shared_gate_up, rows.shared_gate_up);
    rows.shared_activated = at::empty({x.size(0), spec_.shared_width}, x.options());
    RETURN_IF_ERROR(apply_swiglu(x.size(0), rows.shared_gate_up, rows.shared_activated, stream_));
  }
  if (!y.defined()) return rows;
  if (spec_.shared_width > 0)
    gemm(rows.shared_activated, weights.shared_down, y);
  else
    y.zero_();
  const at::Tensor outputs =
      forward_gemm(rows, weights.down, rows.activated, rows.activated, nullptr);
  if (on_down != nullptr) adapters_->forward(*on_down, rows.adapters, rows.activated, outputs);
  RETURN_IF_ERROR(combine(rows, outputs, rows.weights, y));
  return rows;
}

Status CudaTrainingMixture::backward(const Weights& weights, const Rows& rows, const at::Tensor& x,
                                     const at::Tensor& dy, const at::Tensor& dx) const {
  const int64_t num_pairs = rows.sources.numel();
  const at::Tensor dweights = at::empty({num_pairs, 1}, rows.weights.options());
  at::Tensor by_sorted_row = at::empty({num_pairs}, rows.weights.options());
  by_sorted_row.index_copy_(0, rows.permutation.view({-1}).to(at::kLong), rows.weights.view({-1}));
  by_sorted_row = by_sorted_row.unsqueeze(1);
  at::Tensor dactivated;
  {
    const at::Tensor grads = at::empty(rows.gathered.sizes(), x.options());
    RETURN_IF_ERROR(gather(dy, rows.sources, grads));
    // Before the routing weights are applied: dy . (the expert's output) = its gradient .
    // activated, with and without adapters.
    dactivated =
        backward_gemm(rows, weights.down, grads, dy, rows.sources.const_data_ptr<int32_t>());
    if (weights.down.adapters != nullptr)
      adapters_->backward(*weights.down.adapters, rows.adapters, rows.activated, grads, dactivated,
                          by_sorted_row);
    const at::Tensor same = at::arange(num_pairs, rows.permutation.options());
    RETURN_IF_ERROR(launched(cuda::dot_rows({.rows = num_pairs,
                                             .width = spec_.width,
                                             .terms = 1,
                                             .type = type(),
                                             .a = dactivated.const_data_ptr(),
                                             .b = rows.activated.const_data_ptr(),
                                             .row_indices = same.const_data_ptr<int32_t>(),
                                             .dots = dweights.mutable_data_ptr<float>()},
                                            stream_.raw()),
                             "gradients of the weights of experts"));
    dactivated.mul_(by_sorted_row);
    if (weights.down.gradient.defined())
      add_gradient(rows, grads.mul_(by_sorted_row), rows.activated, weights.down.gradient);
  }
  RETURN_IF_ERROR(apply_swiglu_backward(dactivated.size(0), rows.gate_up, dactivated, stream_));
  dactivated.reset();
  add_gradient(rows, rows.gate_up, rows.gathered, weights.gate_up.gradient);
  const at::Tensor dgathered =
      backward_gemm(rows, weights.gate_up, rows.gate_up, rows.gate_up, nullptr);
  if (weights.gate_up.adapters != nullptr)
    adapters_->backward(*weights.gate_up.adapters, rows.adapters, rows.gathered, rows.gate_up,
                        dgathered, {});
  RETURN_IF_ERROR(route_backward(weights, rows, dweights, x, dx));
  if (spec_.shared_width > 0) RETURN_IF_ERROR(backward_shared(weights, rows, x, dy, dx));
  return combine(rows, dgathered, {}, dx);
}

Status CudaTrainingMixture::route_backward(const Weights& weights, const Rows& rows,
                                           const at::Tensor& dweights, const at::Tensor& x,
                                           const at::Tensor& dx) const {
  const at::Tensor by_pair = at::index_select(dweights.view({-1}), 0, rows.permutation.view({-1}))
                                 .view(rows.weights.sizes());
  const at::Tensor dlogits = at::empty(rows.scores.sizes(), rows.scores.options());
  RETURN_IF_ERROR(launched(cuda::route_backward({.rows = x.size(0),
                                                 .shape = shape_,
                                                 .scores = rows.scores.const_data_ptr<float>(),
                                                 .experts = rows.experts.const_data_ptr<int32_t>(),
                                                 .dweights = by_pair.const_data_ptr<float>(),
                                                 .dlogits = dlogits.mutable_data_ptr<float>()},
                                                stream_.raw()),
                           "route_backward"));
  add_gemm(dlogits, x.to(at::kFloat), weights.router.gradient);
  at::Tensor to = dx;
  to.copy_(at::mm(dlogits, weights.router.weight.to(at::kFloat)));
  return ok();
}

Status CudaTrainingMixture::backward_shared(const Weights& weights, const Rows& rows,
                                            const at::Tensor& x, const at::Tensor& dy,
                                            const at::Tensor& dx) const {
  add_gemm(dy, rows.shared_activated, weights.shared_down.gradient);
  const at::Tensor dactivated = at::mm(dy, matrix_of(weights.shared_down));
  if (weights.shared_down.adapters != nullptr)
    adapters_->backward(*weights.shared_down.adapters, rows.shared_activated, dy, dactivated);
  RETURN_IF_ERROR(
      apply_swiglu_backward(dactivated.size(0), rows.shared_gate_up, dactivated, stream_));
  add_gemm(rows.shared_gate_up, x, weights.shared_gate_up.gradient);
  at::Tensor to = dx;
  at::addmm_out(to, to, rows.shared_gate_up, matrix_of(weights.shared_gate_up));
  if (weights.shared_gate_up.adapters != nullptr)
    adapters_->backward(*weights.shared_gate_up.adapters, x, rows.shared_gate_up, dx);
  return ok();
}

}  // namespace primerl
