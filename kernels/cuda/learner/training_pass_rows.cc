// The memory of CudaTrainingPass: its rows and their bytes.
#include "kernels/cuda/learner/training_pass.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace primerl {
namespace {

constexpr int64_t kBlockAlignment = 256;  // bytes, as libtorch aligns

}  // namespace

double CudaTrainingPass::bytes_needed(const ModelConfig& config, at::ScalarType type,
                                      Recompute recompute, int64_t rows) {
  const double hidden = config.hidden_size, layers = config.num_layers();
  const auto q = static_cast<double>(query_columns(config));
  const auto kv = static_cast<double>(key_columns(config));
  const double size = type == at::kFloat ? 4 : 2;
  double of_rows = 0, largest = 0, width = 0;  // of layers; bytes of a row
  double grads = 6 * q + 4 * kv;               // of attention, including those of its library
  double mixture = 0;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const bool is_mixture = is_mixture_layer(config, i);
    if (!is_mixture) width = config.mlp.width;
    double of_layer = (3 * hidden + 3 * q + 3 * kv + (is_mixture ? 0 : 3 * width)) * size;
    if (is_mixture) of_layer += CudaTrainingMixture::bytes_of_rows(config, type);
    if (is_mixture) mixture = CudaTrainingMixture::bytes_of_scratch(config, type);
    of_rows += of_layer;
    largest = std::max(largest, of_layer);
  }
  // The fp32 gradient of the rows before the head is freed by then.
  grads = std::max({width * size, grads * size, 2 * hidden * size, mixture});
  double bytes = (layers + 3) * hidden * size + grads;
  bytes += recompute == Recompute::kNone ? of_rows : largest;
  if (recompute == Recompute::kAttention) bytes += layers * q * size;
  const double of_gradients =
      config.moe.has_value() ? CudaTrainingMixture::bytes_of_gradients(config, type) : 0;
  return static_cast<double>(rows) * bytes + of_gradients;
}

void CudaTrainingPass::release() {
  rows_.clear();
  for (at::Tensor* tensor : {&shared_, &delta_, &last_, &last_inverse_rms_, &normed_, &workspace_})
    tensor->reset();
  capacity_ = 0;
}

at::Tensor CudaTrainingPass::block(int64_t width) const {
  return at::empty({capacity_, width}, at::TensorOptions(stream_.device()).dtype(type_));
}

at::Tensor CudaTrainingPass::reused_rows(const at::Tensor& rows, int64_t width) const {
  if (rows.size(1) < width) return block(width);
  return rows.view({-1}).narrow(0, 0, capacity_ * width).view({capacity_, width});
}

at::Tensor CudaTrainingPass::floats() const {
  return at::empty({capacity_}, at::TensorOptions(stream_.device()).dtype(at::kFloat));
}

CudaTrainingPass::Rows CudaTrainingPass::make_rows(bool is_mixture) const {
  Rows rows;
  for (const auto& [tensor, width] : widths_of(rows, is_mixture ? 0 : config_.mlp.width))
    *tensor = block(width);
  rows.inverse_rms = floats();
  rows.mlp_inverse_rms = floats();
  return rows;
}

int64_t CudaTrainingPass::shared_bytes() const {
  Rows rows;
  int64_t bytes = 0;
  for (const auto& [tensor, width] : widths_of(rows, dense_width())) bytes += bytes_of_block(width);
  return bytes;
}

CudaTrainingPass::Rows CudaTrainingPass::make_rows_in(const at::Tensor& bytes) const {
  Rows rows;
  int64_t begin = 0;
  for (const auto& [tensor, width] : widths_of(rows, dense_width())) {
    const int64_t size = capacity_ * width * static_cast<int64_t>(at::elementSize(type_));
    *tensor = bytes.narrow(0, begin, size).view(type_).view({capacity_, width});
    begin += bytes_of_block(width);
  }
  rows.inverse_rms = floats();
  rows.mlp_inverse_rms = floats();
  return rows;
}

int64_t CudaTrainingPass::bytes_of_block(int64_t width) const {
  const int64_t size = capacity_ * width * static_cast<int64_t>(at::elementSize(type_));
  return (size + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

/// 0: all layers are mixtures.
int64_t CudaTrainingPass::dense_width() const {
  const auto is_dense = [](const Layer& layer) { return !layer.is_mixture; };
  return std::ranges::any_of(layers_, is_dense) ? config_.mlp.width : 0;
}

std::vector<std::pair<at::Tensor*, int64_t>> CudaTrainingPass::widths_of(Rows& rows,
                                                                         int64_t width) const {
  const int64_t hidden = config_.hidden_size, q = query_columns(config_);
  const int64_t kv = key_columns(config_);
  return {{&rows.normed, hidden},     {&rows.qkv, q + 2 * kv}, {&rows.q, q},
          {&rows.keys, kv},           {&rows.between, hidden}, {&rows.mlp_normed, hidden},
          {&rows.gate_up, 2 * width}, {&rows.activated, width}};
}

void CudaTrainingPass::grow(int64_t rows) {
  if (rows <= capacity_) return;
  release();
  capacity_ = fp8_rows(rows);
  const int64_t hidden = config_.hidden_size;
  Rows shared;
  if (recompute_ != Recompute::kNone) {
    shared_ = at::empty({shared_bytes()}, at::TensorOptions(stream_.device()).dtype(at::kByte));
    shared = make_rows_in(shared_);
  }
  at::Tensor attended;
  for (size_t i = 0; i < layers_.size(); ++i) {
    LayerRows& layer = rows_.emplace_back();
    layer.input = block(hidden);
    layer.rows = recompute_ == Recompute::kNone ? make_rows(layers_[i].is_mixture) : shared;
    if (i == 0 || recompute_ != Recompute::kFull) attended = block(query_columns(config_));
    layer.rows.attended = attended;
  }
  delta_ = block(hidden);
  last_ = block(hidden);
  last_inverse_rms_ = floats();
  normed_ = block(hidden);
  const int64_t workspace_floats =
      std::max(cuda::rms_norm_workspace(capacity_, hidden),
               cuda::rotary_workspace(capacity_, config_.attention.head_dim));
  workspace_ = at::empty({workspace_floats}, at::TensorOptions(stream_.device()).dtype(at::kFloat));
}

}  // namespace primerl
