#include "kernels/cuda/engine/mixture.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "kernels/common/router_shape.h"
#include "kernels/cuda/layers/gemm.h"
#include "kernels/cuda/layers/swiglu.h"
#include "kernels/cuda/ops/cuda_expert_tiles.h"

namespace primerl {

EngineMixture::EngineMixture(const ModelConfig& config, const CudaWeights& weights,
                             const CudaAdapterSlots* adapters, const CudaStream& stream,
                             int64_t rows_max)
    : config_(config),
      spec_(*config.moe),
      shape_(router_shape(*config.moe)),
      weights_(weights),
      adapters_(adapters),
      type_(weights.type()),
      stream_(stream),
      rows_max_(expert_rows_max(rows_max, config.moe->experts_per_token)) {
  const auto of = [&](at::ScalarType type, std::vector<int64_t> shape) {
    return at::empty(shape, at::TensorOptions(stream.device()).dtype(type));
  };
  const int64_t k = spec_.experts_per_token, pairs = rows_max_ * k;
  const TensorTable& table = weights.table();
  if (spec_.has_selection_bias)
    biases_ = at::zeros({table.count() - table.trained_count()},
                        at::TensorOptions(stream.device()).dtype(at::kFloat));
  scores_ = of(at::kFloat, {rows_max_, spec_.num_experts});
  weights_of_ = of(at::kFloat, {rows_max_, k});
  chosen_ = of(at::kInt, {rows_max_, k});
  permutation_ = of(at::kInt, {rows_max_, k});
  sources_ = of(at::kInt, {pairs});
  ends_ = of(at::kInt, {spec_.num_experts});
  gathered_ = of(type_, {pairs, config.hidden_size});
  activated_ = of(type_, {pairs, spec_.width});
  if (adapters != nullptr) tiles_ = of(at::kByte, {pairs, sizeof(cuda::AdapterTile)});
  shared_gate_up_ = of(type_, {rows_max, 2 * int64_t{spec_.shared_width}});
  shared_activated_ = of(type_, {rows_max, spec_.shared_width});
}

/// Grouped GEMMs allocate a multiple of it.
double EngineMixture::bytes_needed(const ModelConfig& config, int64_t element_size,
                                   int64_t rows_max) {
  const MoeSpec& spec = *config.moe;
  const double pairs = spec.experts_per_token;
  const double of_row = pairs * (2.0 * config.hidden_size + 3.0 * spec.width);
  const auto rows = static_cast<double>(expert_rows_max(rows_max, spec.experts_per_token));
  return rows * (of_row * static_cast<double>(element_size) + 4.0 * spec.num_experts +
                 (16.0 + sizeof(cuda::AdapterTile)) * pairs) +
         static_cast<double>(rows_max * element_size) * 3.0 * spec.shared_width;
}

EngineMixture::Layer EngineMixture::layer(const std::string& name) const {
  const TensorTable& table = weights_.table();
  const Parameter* bias = table.find(name + "selection_bias");
  const auto on = [&](std::string_view matrix) {
    return adapters_ == nullptr ? nullptr : adapters_->find(name + std::string(matrix));
  };
  return {weights_.linear(name + "router"),
          weights_.linear(name + "shared_gate_up"),
          weights_.linear(name + "shared_down"),
          on("experts_gate_up"),
          on("experts_down"),
          on("shared_gate_up"),
          on("shared_down"),
          weights_.tensor(name + "experts_gate_up").transpose(1, 2),
          weights_.tensor(name + "experts_down").transpose(1, 2),
          bias == nullptr ? nullptr
                          : biases_.const_data_ptr<float>() + bias->offset - table.trained_count()};
}

void EngineMixture::Layer::use_fp8(Fp8Weights& all) {
  is_fp8 = true;
  const bool has_codes = cuda::has_own_kernels();
  for (const auto& [matrices, codes] :
       {std::pair(&gate_up, &gate_up_codes), std::pair(&down, &down_codes)})
    if (has_codes)
      *codes = all.add_experts(matrices->transpose(1, 2), false);
    else
      *matrices = all.add_rounded(matrices->transpose(1, 2)).transpose(1, 2);
  for (CudaLinear* shared : {&shared_gate_up, &shared_down})
    if (shared->transposed.defined())
      shared->transposed = all.add_rounded(shared->transposed.t()).t();
}

/// The flat weights have them too, but rounded to bf16: other experts would be chosen.
Status EngineMixture::take_biases(const TensorTable& table,
                                  const std::vector<WeightTensor>& tensors) {
  if (!biases_.defined()) return ok();
  const at::Tensor host = at::zeros(biases_.sizes(), at::kFloat);
  RETURN_IF_ERROR(fill_untrained(table, tensors, host.mutable_data_ptr<float>()));
  biases_.copy_(host);
  return stream_.wait();
}

cuda::Type EngineMixture::type() const { return op_type(type_); }

Status EngineMixture::route(int64_t rows, const Layer& layer, const at::Tensor& x) const {
  RETURN_IF_ERROR(multiply(rows, x, layer.router, scores_, stream_));
  RETURN_IF_ERROR(launched(cuda::route({.rows = rows,
                                        .shape = shape_,
                                        .selection_bias = layer.bias,
                                        .logits = scores_.const_data_ptr<float>(),
                                        .scores = scores_.mutable_data_ptr<float>(),
                                        .experts = chosen_.mutable_data_ptr<int32_t>(),
                                        .weights = weights_of_.mutable_data_ptr<float>()},
                                       stream_.raw()),
                           "route"));
  return launched(cuda::sort_by_expert({.rows = rows,
                                        .experts_per_token = spec_.experts_per_token,
                                        .num_experts = spec_.num_experts,
                                        .experts = chosen_.const_data_ptr<int32_t>(),
                                        .permutation = permutation_.mutable_data_ptr<int32_t>(),
                                        .sources = sources_.mutable_data_ptr<int32_t>(),
                                        .ends = ends_.mutable_data_ptr<int32_t>()},
                                       stream_.raw()),
                  "sort_by_expert");
}

/// Returns [pairs, columns] for x [pairs, terms] and weight [experts, terms, columns].
at::Tensor EngineMixture::grouped(const at::Tensor& x, const at::Tensor& weight) const {
  if (type_ == at::kBFloat16) return at::_grouped_mm(x, weight, ends_);
  const at::Tensor ends = ends_.cpu(), y = at::empty({x.size(0), weight.size(2)}, x.options());
  int64_t begin = 0;
  for (int64_t expert = 0; expert < spec_.num_experts; ++expert) {
    const int64_t count = ends.const_data_ptr<int32_t>()[expert] - begin;
    at::Tensor to = y.narrow(0, begin, count);
    if (count > 0) at::mm_out(to, x.narrow(0, begin, count), weight.select(0, expert));
    begin += count;
  }
  return y;
}

at::Tensor EngineMixture::read(int64_t rows, const Layer& layer, const at::Tensor& x) const {
  return layer.is_fp8 ? rounded_rows(rows, x, stream_) : x.narrow(0, 0, rows);
}

Status EngineMixture::add(const CudaAdapterSlots::Linear* linear, const CudaAdapterRows& adapters,
                          const at::Tensor& x, const at::Tensor& y) const {
  if (linear == nullptr || !adapters.applies_adapters()) return ok();
  return adapters_->add(*linear, adapters, x, y);
}

Status EngineMixture::forward_shared(int64_t rows, const CudaAdapterRows& adapters,
                                     const Layer& layer, const at::Tensor& x,
                                     const at::Tensor& y) const {
  RETURN_IF_ERROR(
      multiply(rows, read(rows, layer, x), layer.shared_gate_up, shared_gate_up_, stream_));
  RETURN_IF_ERROR(add(layer.on_shared_gate_up, adapters, x, shared_gate_up_));
  RETURN_IF_ERROR(apply_swiglu(rows, shared_gate_up_, shared_activated_, stream_));
  RETURN_IF_ERROR(
      multiply(rows, read(rows, layer, shared_activated_), layer.shared_down, y, stream_));
  return add(layer.on_shared_down, adapters, shared_activated_, y);
}

Result<CudaAdapterRows> EngineMixture::tile(int64_t first, int64_t rows,
                                            const CudaAdapterRows& adapters) const {
  const auto runs = adapters.known_runs;  // the known runs that have some of the rows
  const auto is_before = [&](const auto& run) { return run.first + run.rows <= first; };
  const auto is_within = [&](const auto& run) { return run.first < first + rows; };
  const auto begin = std::ranges::partition_point(runs, is_before) - runs.begin();
  const auto end = std::ranges::partition_point(runs, is_within) - runs.begin();
  const int64_t num_runs = runs.empty() ? adapters.num_expert_runs : end - begin;
  if (num_runs <= 0) return CudaAdapterRows();
  const int64_t num_pairs = rows * spec_.experts_per_token;
  const int64_t tile_rows = expert_tile_rows(num_pairs, spec_.num_experts);
  const int64_t num_tiles =
      cuda::num_expert_tiles_of(num_pairs, spec_.num_experts, num_runs, tile_rows);
  auto* tiles = static_cast<cuda::AdapterTile*>(tiles_.mutable_data_ptr());
  RETURN_IF_ERROR(launched(cuda::make_expert_tiles({.num_pairs = num_pairs,
                                                    .num_experts = spec_.num_experts,
                                                    .ends = ends_.const_data_ptr<int32_t>(),
                                                    .sources = sources_.const_data_ptr<int32_t>(),
                                                    .first_row = first,
                                                    .runs = adapters.expert_runs + begin,
                                                    .num_runs = num_runs,
                                                    .tile_rows = tile_rows,
                                                    .num_tiles = num_tiles,
                                                    .tiles = tiles},
                                                   stream_.raw()),
                           "tiles of experts"));
  return CudaAdapterRows{tiles, num_tiles};
}

Status EngineMixture::forward_some(int64_t first, int64_t rows, const CudaAdapterRows& adapters,
                                   const Layer& layer, const at::Tensor& x,
                                   const at::Tensor& y) const {
  RETURN_IF_ERROR(route(rows, layer, x));
  ASSIGN_OR_RETURN(const CudaAdapterRows tiles, tile(first, rows, adapters));
  const int64_t pairs = rows * spec_.experts_per_token;
  RETURN_IF_ERROR(launched(cuda::gather_rows({.rows = pairs,
                                              .width = config_.hidden_size,
                                              .type = type(),
                                              .x = x.const_data_ptr(),
                                              .sources = sources_.const_data_ptr<int32_t>(),
                                              .y = gathered_.mutable_data_ptr()},
                                             stream_.raw()),
                           "rows of experts"));
  const at::Tensor gate_up =
      layer.gate_up_codes == nullptr
          ? grouped(read(pairs, layer, gathered_), layer.gate_up)
          : grouped_fp8(quantised_rows(pairs, x, stream_, sources_.const_data_ptr<int32_t>()),
                        *layer.gate_up_codes, ends_, false, stream_);
  RETURN_IF_ERROR(add(layer.on_gate_up, tiles, gathered_, gate_up));
  RETURN_IF_ERROR(apply_swiglu(pairs, gate_up, activated_, stream_));
  const at::Tensor outputs =
      layer.down_codes == nullptr
          ? grouped(read(pairs, layer, activated_), layer.down)
          : grouped_fp8(quantised_rows(pairs, activated_, stream_), *layer.down_codes, ends_, false,
                        stream_);
  RETURN_IF_ERROR(add(layer.on_down, tiles, activated_, outputs));
  return launched(cuda::combine_rows({.rows = rows,
                                      .width = config_.hidden_size,
                                      .terms = spec_.experts_per_token,
                                      .type = type(),
                                      .x = outputs.const_data_ptr(),
                                      .row_indices = permutation_.const_data_ptr<int32_t>(),
                                      .weights = weights_of_.const_data_ptr<float>(),
                                      .y = y.mutable_data_ptr()},
                                     stream_.raw()),
                  "sum over experts");
}

Status EngineMixture::forward(int64_t rows, const CudaAdapterRows& adapters, const Layer& layer,
                              const at::Tensor& x, const at::Tensor& y) const {
  if (spec_.shared_width > 0)
    RETURN_IF_ERROR(forward_shared(rows, adapters, layer, x, y));
  else
    y.narrow(0, 0, rows).zero_();
  for (int64_t first = 0; first < rows; first += rows_max_) {
    const int64_t count = std::min(rows_max_, rows - first);
    RETURN_IF_ERROR(forward_some(first, count, adapters, layer, x.narrow(0, first, count),
                                 y.narrow(0, first, count)));
  }
  return ok();
}

}  // namespace primerl
