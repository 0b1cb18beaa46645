#include "kernels/torch/models/decoder.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace primerl {
namespace {

at::Tensor part(const at::Tensor& flat, int64_t offset, int64_t rows, int64_t columns) {
  if (offset == kNoParameter) return {};
  return flat.narrow(0, offset, rows * columns).view({rows, columns});
}

at::Tensor part(const at::Tensor& flat, int64_t offset, int64_t count) {
  if (offset == kNoParameter) return {};
  return flat.narrow(0, offset, count);
}

LayerParameters view_layer(const ModelConfig& c, const at::Tensor& flat, const LayerOffsets& at) {
  const int64_t d = c.head_dim, q = c.num_heads * d, all = q + 2 * c.num_kv_heads * d;
  LayerParameters layer;
  layer.input_norm = part(flat, at.input_norm, c.hidden_size);
  layer.qkv = part(flat, at.qkv, all, c.hidden_size);
  layer.qkv_bias = part(flat, at.qkv_bias, all);
  layer.q_norm = part(flat, at.q_norm, d);
  layer.k_norm = part(flat, at.k_norm, d);
  layer.out = part(flat, at.out, c.hidden_size, q);
  layer.out_bias = part(flat, at.out_bias, c.hidden_size);
  layer.mlp_norm = part(flat, at.mlp_norm, c.hidden_size);
  layer.gate_up =
      part(flat, at.gate_up, 2 * static_cast<int64_t>(c.intermediate_size), c.hidden_size);
  layer.gate_up_bias = part(flat, at.gate_up_bias, 2 * static_cast<int64_t>(c.intermediate_size));
  layer.down = part(flat, at.down, c.hidden_size, c.intermediate_size);
  layer.down_bias = part(flat, at.down_bias, c.hidden_size);
  return layer;
}

const float* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

void pack(const CpuOps& ops, const at::Tensor& weight, PackedWeights& to) {
  if (!to.floats.defined()) {
    to.columns = weight.size(0);
    to.terms = weight.size(1);
    to.floats = at::empty({packed_linear_floats(to.columns, to.terms)}, at::kFloat);
  }
  ops.pack_linear({.columns = to.columns,
                   .terms = to.terms,
                   .weight = weight.const_data_ptr<float>(),
                   .column_stride = to.terms,
                   .packed = to.floats.mutable_data_ptr<float>()});
}

/// Multiply-adds for which another thread is worth waking.
constexpr int64_t kWorkPerThread = int64_t{1} << 18;

/// Shares a product out: panels of columns, or rows where there are more tiles of these.
void share(const CpuOps& ops, const LinearRowsArgs& args) {
  const int64_t work = args.rows * args.columns * args.terms;
  const int64_t num_threads = std::min<int64_t>(at::get_num_threads(), work / kWorkPerThread);
  if (num_threads < 2) return ops.linear_rows(args);
  const bool by_rows = args.rows > args.columns;
  const int64_t count = by_rows ? args.rows : args.panel_end;
  at::parallel_for(0, count, (count + num_threads - 1) / num_threads,
                   [&](int64_t begin, int64_t end) {
                     LinearRowsArgs part = args;
                     if (!by_rows) {
                       part.panel_begin = begin;
                       part.panel_end = end;
                     } else {
                       part.rows = end - begin;
                       part.x += begin * args.x_stride;
                       part.y += begin * args.y_stride;
                       if (part.residual != nullptr) part.residual += begin * args.residual_stride;
                     }
                     ops.linear_rows(part);
                   });
}

/// out = residual + bias + x * weight'; `residual` and `bias` may be undefined, `out` may be
/// `residual`.
void linear(const CpuOps& ops, int64_t rows, const at::Tensor& x, const PackedWeights& weight,
            const at::Tensor& bias, const at::Tensor& residual, at::Tensor& out) {
  LinearRowsArgs args;
  args.rows = rows;
  args.columns = weight.columns;
  args.terms = weight.terms;
  args.panel_end = linear_panels_of(weight.columns);
  args.x = x.const_data_ptr<float>();
  args.x_stride = weight.terms;
  args.packed = weight.floats.const_data_ptr<float>();
  args.bias = data_or_null(bias);
  args.residual = data_or_null(residual);
  args.residual_stride = weight.columns;
  args.y = out.mutable_data_ptr<float>();
  args.y_stride = weight.columns;
  share(ops, args);
}

}  // namespace

DecoderParameters::DecoderParameters(const ModelConfig& config, const DecoderLayout& layout)
    : flat(at::zeros({layout.count}, at::kFloat)) {
  for (const auto& offsets : layout.layers) layers.push_back(view_layer(config, flat, offsets));
  embedding = part(flat, layout.embedding, config.vocab_size, config.hidden_size);
  final_norm = part(flat, layout.final_norm, config.hidden_size);
  head = part(flat, layout.head, config.vocab_size, config.hidden_size);
}

LayerRows LayerRows::make(const ModelConfig& c, int64_t rows, bool in_place) {
  const int64_t q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim;
  const auto block = [rows](int64_t width) { return at::zeros({rows, width}, at::kFloat); };
  LayerRows made;
  made.input = block(c.hidden_size);
  made.input_scale = at::zeros({rows}, at::kFloat);
  made.input_normed = block(c.hidden_size);
  made.qkv = block(q + 2 * kv);
  made.q = block(q);
  made.attended = block(q);
  made.log_sum_exp = block(c.num_heads);
  made.middle = in_place ? made.input : block(c.hidden_size);
  made.mlp_scale = at::zeros({rows}, at::kFloat);
  made.mlp_normed = in_place ? made.input_normed : block(c.hidden_size);
  made.gate_up = block(2 * static_cast<int64_t>(c.intermediate_size));
  made.activated = block(c.intermediate_size);
  return made;
}

LayerRows LayerRows::first(int64_t rows) const {
  const auto cut = [rows](const at::Tensor& tensor) { return tensor.narrow(0, 0, rows); };
  return {cut(input),     cut(input_scale), cut(input_normed), cut(qkv),
          cut(q),         cut(attended),    cut(log_sum_exp),  cut(middle),
          cut(mlp_scale), cut(mlp_normed),  cut(gate_up),      cut(activated)};
}

Decoder::Decoder(ModelConfig config, const DecoderLayout& layout)
    : config_(std::move(config)),
      ops_(cpu_ops()),
      parameters_(config_, layout),
      packed_(parameters_.layers.size()),
      frequencies_(rope_frequencies(config_)) {
  pack_weights();
}

void Decoder::pack_weights() {
  for (size_t i = 0; i < packed_.size(); ++i) {
    const LayerParameters& layer = parameters_.layers[i];
    pack(ops_, layer.qkv, packed_[i].qkv);
    pack(ops_, layer.out, packed_[i].out);
    pack(ops_, layer.gate_up, packed_[i].gate_up);
    pack(ops_, layer.down, packed_[i].down);
  }
  pack(ops_, parameters_.head, head_);
}

HeadShape Decoder::heads() const {
  return {config_.num_heads, config_.num_kv_heads, config_.head_dim};
}

float Decoder::attention_scale() const {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
}

void Decoder::prepare_positions(int64_t count) {
  const auto half = static_cast<int64_t>(frequencies_.size());
  const auto ready = static_cast<int64_t>(cosine_.size()) / half;
  if (count <= ready) return;
  const int64_t wanted = std::max(count, 2 * ready);
  cosine_.reserve(static_cast<size_t>(wanted * half));
  sine_.reserve(static_cast<size_t>(wanted * half));
  for (int64_t position = ready; position < wanted; ++position) {
    for (const float frequency : frequencies_) {
      const float angle = static_cast<float>(position) * frequency;
      cosine_.push_back(static_cast<float>(std::cos(static_cast<double>(angle))));
      sine_.push_back(static_cast<float>(std::sin(static_cast<double>(angle))));
    }
  }
}

void Decoder::embed(const RowBatch& batch, at::Tensor& hidden) const {
  const float* table = parameters_.embedding.const_data_ptr<float>();
  float* to = hidden.mutable_data_ptr<float>();
  const int64_t width = config_.hidden_size;
  for (const int32_t token : batch.tokens) {
    std::memcpy(to, table + token * width, static_cast<size_t>(width) * sizeof(float));
    to += width;
  }
}

void Decoder::norm(const at::Tensor& weight, int64_t rows, const at::Tensor& x, at::Tensor& y,
                   at::Tensor& scale) const {
  ops_.rms_norm({.rows = rows,
                 .width = config_.hidden_size,
                 .epsilon = static_cast<float>(config_.rms_norm_epsilon),
                 .x = x.const_data_ptr<float>(),
                 .weight = weight.const_data_ptr<float>(),
                 .y = y.mutable_data_ptr<float>(),
                 .inverse_rms = scale.mutable_data_ptr<float>()});
}

void Decoder::forward(size_t layer, const RowBatch& batch, std::span<const AttentionSpan> spans,
                      LayerRows& rows, float* keys, float* values, at::Tensor& output) {
  const LayerParameters& weights = parameters_.layers[layer];
  const PackedLayer& packed = packed_[layer];
  const int64_t num_rows = batch.num_rows();
  norm(weights.input_norm, num_rows, rows.input, rows.input_normed, rows.input_scale);
  linear(ops_, num_rows, rows.input_normed, packed.qkv, weights.qkv_bias, {}, rows.qkv);
  ops_.rotary({.rows = num_rows,
               .heads = heads(),
               .epsilon = static_cast<float>(config_.rms_norm_epsilon),
               .qkv = rows.qkv.const_data_ptr<float>(),
               .q_weight = data_or_null(weights.q_norm),
               .k_weight = data_or_null(weights.k_norm),
               .positions = batch.positions.data(),
               .cache_rows = batch.cache_rows.data(),
               .cosine = cosine_.data(),
               .sine = sine_.data(),
               .q = rows.q.mutable_data_ptr<float>(),
               .keys = keys,
               .values = values});
  ops_.attention({.spans = spans.data(),
                  .num_spans = static_cast<int64_t>(spans.size()),
                  .heads = heads(),
                  .head_begin = 0,
                  .head_end = config_.num_heads,
                  .scale = attention_scale(),
                  .kv_rows = batch.kv_rows.data(),
                  .q = rows.q.const_data_ptr<float>(),
                  .keys = keys,
                  .values = values,
                  .out = rows.attended.mutable_data_ptr<float>(),
                  .log_sum_exp = rows.log_sum_exp.mutable_data_ptr<float>()});
  linear(ops_, num_rows, rows.attended, packed.out, weights.out_bias, rows.input, rows.middle);
  norm(weights.mlp_norm, num_rows, rows.middle, rows.mlp_normed, rows.mlp_scale);
  linear(ops_, num_rows, rows.mlp_normed, packed.gate_up, weights.gate_up_bias, {}, rows.gate_up);
  ops_.swiglu({.rows = num_rows,
               .width = config_.intermediate_size,
               .gate_up = rows.gate_up.const_data_ptr<float>(),
               .activated = rows.activated.mutable_data_ptr<float>()});
  linear(ops_, num_rows, rows.activated, packed.down, weights.down_bias, rows.middle, output);
}

void Decoder::logits(const at::Tensor& normed, at::Tensor& logits) const {
  linear(ops_, normed.size(0), normed, head_, {}, {}, logits);
}

void copy_spans(const RowBatch& batch, std::vector<AttentionSpan>& spans) {
  spans.clear();
  for (const auto& span : batch.spans)
    spans.push_back({span.query_begin, span.num_queries, span.num_cached, span.kv_offset});
}

}  // namespace primerl
