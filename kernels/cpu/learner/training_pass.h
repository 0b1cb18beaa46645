/// Forward and backward of a decoder over one micro-batch: an explicit layer executor, no autograd
/// graph.
///
/// Keeps each layer's input, and the activations that `recompute` selects: "none" keeps all,
/// "keep_attention" only the output of attention (the rest is recomputed, layer by layer, before
/// its backward), "full" keeps none. Recomputed values have the same bits. Memory grows with the
/// largest micro-batch so far. One thread calls; work is divided over its compute threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/common/step_dump.h"
#include "kernels/common/step_report.h"
#include "kernels/cpu/stages/decoder.h"

namespace primerl {

class TrainingPass {
 public:
  /// The gradients of `decoder` must be bound (Decoder::bind_gradients).
  TrainingPass(Decoder& decoder, Recompute recompute);

  /// Sets a function that every later forward() calls; null: no calls.
  void visit(ActivationVisitor visitor) { visitor_ = std::move(visitor); }
  /// Sets a function that every later forward() and backward() calls after each layer.
  void on_layer(std::function<void()> done) { layer_done_ = std::move(done); }

  /// Runs the layers and the final norm; the result [rows, hidden] is valid until the next call.
  const float* forward(const RowBatch& batch);
  /// Adds the gradients of the batch of the last forward(). `dnormed` [rows, hidden] is the
  /// gradient of its result.
  void backward(const RowBatch& batch, const float* dnormed);

 private:
  /// For one layer: each stage's input and rows, and the keys and values of the batch.
  struct LayerRows {
    std::vector<at::Tensor> inputs;  // [rows, hidden]
    std::vector<Buffers> rows;
    at::Tensor keys, values;
  };

  void grow(int64_t rows);
  void show(const std::string& name, const at::Tensor& tensor) const;
  void show_stage(size_t layer, size_t stage, const at::Tensor& output) const;
  /// `output` may be undefined: then only the rows for backward are computed.
  void run_layer(size_t layer, StepInput step, const at::Tensor& output);

  Decoder& decoder_;
  const Recompute recompute_;
  int64_t capacity_ = 0;  // rows
  // If activations are not kept, layers of the same form share tensors.
  std::vector<LayerRows> layers_;
  std::vector<std::vector<Buffers>> gradient_rows_;  // by layer and stage
  at::Tensor last_, inverse_rms_, normed_;           // after the last layer
  at::Tensor residual_;
  StepInput step_;
  ActivationVisitor visitor_;
  std::function<void()> layer_done_;
};

}  // namespace primerl
