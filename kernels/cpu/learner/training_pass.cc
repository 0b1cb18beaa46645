#include "kernels/cpu/learner/training_pass.h"

#include <algorithm>

#include "kernels/common/memory.h"

namespace primerl {

TrainingPass::TrainingPass(Decoder& decoder, Recompute recompute)
    : decoder_(decoder), recompute_(recompute) {}

void TrainingPass::grow(int64_t rows) {
  if (rows <= capacity_) return;
  const int64_t hidden = decoder_.config().hidden_size;
  const AttentionSpec& attention = decoder_.config().attention;
  const int64_t kv_width = int64_t{attention.num_kv_heads} * attention.head_dim;
  const bool keeps_all = recompute_ == Recompute::kNone;
  SharedBuffers shared(rows), gradient_rows(rows);
  const at::Tensor keys = zero_floats(rows, kv_width), values = zero_floats(rows, kv_width);
  const at::Tensor between = zero_floats(rows, hidden);
  layers_.clear();
  gradient_rows_.clear();
  for (size_t i = 0; i < decoder_.num_layers(); ++i) {
    LayerRows& layer = layers_.emplace_back();
    auto& layer_slopes = gradient_rows_.emplace_back();
    layer.keys = keeps_all ? zero_floats(rows, kv_width) : keys;
    layer.values = keeps_all ? zero_floats(rows, kv_width) : values;
    for (const auto& stage : decoder_.layer(i)) {
      const auto specs = stage->activations();
      const bool is_first = layer.inputs.empty();
      layer.inputs.push_back(is_first || keeps_all ? zero_floats(rows, hidden) : between);
      Buffers buffers = keeps_all ? Buffers(specs, rows) : shared.of(specs);
      for (size_t b = 0; b < specs.size(); ++b)
        if (recompute_ == Recompute::kAttention && specs[b].is_attention_output)
          buffers.replace(b, zero_floats(rows, specs[b].width));
      layer.rows.push_back(std::move(buffers));
      layer_slopes.push_back(gradient_rows.of(stage->gradient_rows()));
    }
  }
  last_ = zero_floats(rows, hidden);
  inverse_rms_ = zero_floats(rows, 1);
  normed_ = zero_floats(rows, hidden);
  residual_ = zero_floats(rows, hidden);
  capacity_ = rows;
}

void TrainingPass::show(const std::string& name, const at::Tensor& tensor) const {
  visitor_(name, tensor.narrow(0, 0, step_.num_rows));
}

void TrainingPass::show_stage(size_t layer, size_t stage, const at::Tensor& output) const {
  const auto& spec = decoder_.config().layers[layer].stages[stage];
  const std::string prefix = fmt::format("layers.{}.{}.", layer, stage_name(spec));
  const auto specs = decoder_.layer(layer)[stage]->activations();
  for (size_t i = 0; i < specs.size(); ++i)
    if (specs[i].width > 0)
      show(prefix + std::string(specs[i].name), layers_[layer].rows[stage].tensor(i));
  show(prefix + "output", output);
}

void TrainingPass::run_layer(size_t layer, StepInput step, const at::Tensor& output) {
  const auto& stages = decoder_.layer(layer);
  LayerRows& rows = layers_[layer];
  step.keys = rows.keys.mutable_data_ptr<float>();
  step.values = rows.values.mutable_data_ptr<float>();
  for (size_t s = 0; s < stages.size(); ++s) {
    const bool is_last = s + 1 == stages.size();
    const at::Tensor& to = is_last ? output : rows.inputs[s + 1];
    stages[s]->forward(step, rows.rows[s], rows.inputs[s].const_data_ptr<float>(),
                       to.defined() ? to.mutable_data_ptr<float>() : nullptr);
    if (visitor_ && output.defined()) show_stage(layer, s, to);
  }
}

const float* TrainingPass::forward(const RowBatch& batch) {
  grow(batch.num_rows());
  step_ = decoder_.begin(batch);
  decoder_.embed(batch, layers_.front().inputs.front().mutable_data_ptr<float>());
  if (visitor_) show("embedding.output", layers_.front().inputs.front());
  for (size_t i = 0; i < layers_.size(); ++i) {
    run_layer(i, step_, i + 1 < layers_.size() ? layers_[i + 1].inputs.front() : last_);
    if (layer_done_) layer_done_();
  }
  float* normed = normed_.mutable_data_ptr<float>();
  decoder_.final_norm().forward(decoder_.tools(), batch.num_rows(), last_.const_data_ptr<float>(),
                                normed, inverse_rms_.mutable_data_ptr<float>());
  if (visitor_) show("final_norm.output", normed_);
  return normed;
}

void TrainingPass::backward(const RowBatch& batch, const float* dnormed) {
  float* residual = residual_.mutable_data_ptr<float>();
  std::fill_n(residual, batch.num_rows() * decoder_.config().hidden_size, 0.0F);
  decoder_.final_norm().backward(decoder_.tools(), batch.num_rows(), last_.const_data_ptr<float>(),
                                 inverse_rms_.const_data_ptr<float>(), dnormed, residual);
  for (size_t i = layers_.size(); i-- > 0;) {
    LayerRows& rows = layers_[i];
    StepInput step = step_;
    if (recompute_ != Recompute::kNone) {
      step.is_attended = recompute_ == Recompute::kAttention;
      run_layer(i, step, {});
    }
    step.keys = rows.keys.mutable_data_ptr<float>();
    step.values = rows.values.mutable_data_ptr<float>();
    for (size_t s = rows.rows.size(); s-- > 0;)
      decoder_.layer(i)[s]->backward(step, rows.rows[s], gradient_rows_[i][s],
                                     rows.inputs[s].const_data_ptr<float>(), residual);
    if (layer_done_) layer_done_();
  }
  decoder_.embed_backward(batch, residual);
}

}  // namespace primerl
