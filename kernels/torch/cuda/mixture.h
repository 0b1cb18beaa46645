/// The mixture of experts of an engine's decoder on a CUDA device: rows in, rows out.
///
/// The router's logits, scores and weights are fp32, made of the operands that products read; the
/// bias that experts are chosen with is kept in fp32. Pairs of row and expert are sorted by expert,
/// bf16 takes libtorch's grouped products, whose groups the device knows: so a pass may be
/// captured. fp32, which those have not, takes one product an expert and waits for the device.
/// Adapters add in tiles of places of one expert and adapter, which the device finds. Experts have
/// some thousand rows at a time, the shared one all. Owns their memory, not the weights. One
/// thread, under a CardStream::Use.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/models/config.h"
#include "kernels/ops/ops.h"
#include "kernels/torch/cuda/card_adapters.h"
#include "kernels/torch/cuda/weights.h"

namespace primerl {

class EngineMixture {
 public:
  /// Of one layer.
  struct Layer {
    CardLinear router, shared_gate_up, shared_down;
    /// Null: nothing can be added to it.
    const CardAdapters::Linear *on_gate_up = nullptr, *on_down = nullptr;
    const CardAdapters::Linear *on_shared_gate_up = nullptr, *on_shared_down = nullptr;
    at::Tensor gate_up;      // [experts, hidden, 2 width], a view
    at::Tensor down;         // [experts, width, hidden], likewise
    const float* bias = nullptr;  // [experts] of the choice, or null
  };

  /// All outlive it; without `adapters` no row has one. The model has a mixture.
  EngineMixture(const ModelConfig& config, const CardWeights& weights, const CardAdapters* adapters,
                const CardStream& stream, int64_t rows_max);

  /// The layer with our name "layers.3.moe.".
  Layer layer(const std::string& name) const;
  /// The biases of `tensors`, which are all of a model's, as they are.
  Status take_biases(const TensorTable& table, const std::vector<WeightTensor>& tensors);

  bool may_be_captured() const { return type_ == at::kBFloat16; }
  /// y = the mixture of x, [rows, hidden] both, all rows of a pass.
  Status forward(int64_t rows, const CardAdapterRows& adapters, const Layer& layer,
                 const at::Tensor& x, const at::Tensor& y) const;

  /// Bytes that it allocates.
  static double bytes_needed(const ModelConfig& config, int64_t element_size, int64_t rows_max);

 private:
  Status route(int64_t rows, const Layer& layer, const at::Tensor& x) const;
  at::Tensor grouped(const at::Tensor& x, const at::Tensor& weight) const;
  /// Adds what the experts of `rows` rows from `first` on give.
  Status forward_some(int64_t first, int64_t rows, const CardAdapterRows& adapters,
                      const Layer& layer, const at::Tensor& x, const at::Tensor& y) const;
  Status forward_shared(int64_t rows, const CardAdapterRows& adapters, const Layer& layer,
                        const at::Tensor& x, const at::Tensor& y) const;
  /// Tiles of the places of such rows, once they are sorted; none where no adapter adds to experts.
  Result<CardAdapterRows> tile(int64_t first, int64_t rows, const CardAdapterRows& adapters) const;
  Status add(const CardAdapters::Linear* linear, const CardAdapterRows& adapters,
             const at::Tensor& x, const at::Tensor& y) const;
  cuda::Type type() const;

  const ModelConfig& config_;
  const MoeSpec& spec_;
  const RouterShape shape_;
  const CardWeights& weights_;
  const CardAdapters* const adapters_;  // or null
  const at::ScalarType type_;
  const CardStream& stream_;
  const int64_t rows_max_;  // at a time
  at::Tensor biases_;       // all of the model that is not trained, fp32; undefined: nothing
  at::Tensor scores_;       // [rows, experts] fp32, first the logits
  at::Tensor weights_of_;   // [rows, experts_per_token] fp32
  at::Tensor chosen_;       // [rows, experts_per_token] int32
  at::Tensor places_;       // likewise
  at::Tensor sources_;      // [pairs] int32
  at::Tensor ends_;         // [experts] int32
  at::Tensor gathered_;     // [pairs, hidden]
  at::Tensor tiles_;        // [pairs] AdapterTile, as bytes; undefined: no adapters
  at::Tensor activated_;    // [pairs, width]
  at::Tensor shared_gate_up_, shared_activated_;  // of all rows
};

}  // namespace primerl
