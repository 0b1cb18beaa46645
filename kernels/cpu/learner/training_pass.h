/// Forward and backward of a decoder over one micro-batch: an explicit layer executor, no autograd
/// graph.
///
/// Keeps each layer's input, and of its activations what `recompute` says: "none" keeps all of
/// them, "attention" what attention gave (the rest is computed again, layer by layer, before its
/// backward), "full" nothing. What is computed again is equal to the bit. Memory grows with the
/// largest micro-batch seen. One thread, which shares work out over its compute threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/stages/decoder.h"

namespace primerl {

/// Sees an activation, [rows, width], as soon as it is made: "layers.3.attention.qkv",
/// "layers.3.attention.output", "embedding.output", "final_norm.output".
using ActivationVisitor = std::function<void(const std::string& name, const at::Tensor& rows)>;

enum class Recompute : uint8_t { kNone, kAttention, kFull };

class TrainingPass {
 public:
  /// `decoder`'s gradients are bound (Decoder::bind_gradients).
  TrainingPass(Decoder& decoder, Recompute recompute);

  /// Is called in every forward() from now on; null: nobody looks.
  void visit(ActivationVisitor visitor) { visitor_ = std::move(visitor); }

  /// Runs the layers and the final norm; the result [rows, hidden] is valid until the next call.
  const float* forward(const RowBatch& batch);
  /// Adds the gradients of the batch of the last forward(). `dnormed` [rows, hidden] is the
  /// gradient of its result.
  void backward(const RowBatch& batch, const float* dnormed);

 private:
  /// Of one layer: each stage's input and rows, and the keys and values of the batch.
  struct LayerRows {
    std::vector<at::Tensor> inputs;  // [rows, hidden]
    std::vector<Buffers> rows;
    at::Tensor keys, values;
  };

  void grow(int64_t rows);
  void show(const std::string& name, const at::Tensor& tensor) const;
  void show_stage(size_t layer, size_t stage, const at::Tensor& output) const;
  /// `output` may be undefined: only the rows are wanted, for backward.
  void run_layer(size_t layer, StepInput step, const at::Tensor& output);

  Decoder& decoder_;
  const Recompute recompute_;
  int64_t capacity_ = 0;  // rows
  // Tensors are shared: by layers of the same form where activations are not kept.
  std::vector<LayerRows> layers_;
  std::vector<std::vector<Buffers>> slopes_;  // by layer and stage
  at::Tensor last_, inverse_rms_, normed_;    // after the last layer
  at::Tensor residual_;
  StepInput step_;
  ActivationVisitor visitor_;
};

}  // namespace primerl
