/// The mixture of experts of an engine's decoder on a CUDA device: rows in, rows out.
///
/// The router's logits, scores and weights are fp32, computed from the operands that GEMMs read;
/// its bias is kept in fp32. Pairs of row and expert are sorted by expert. bf16 uses libtorch's
/// grouped GEMMs, whose groups are in device memory, so a pass may be captured. fp32, which those
/// do not support, uses one GEMM per expert and waits for the device. Adapters add in tiles of
/// sorted rows of one expert and adapter, which the device computes. Experts process a few thousand
/// rows at a time, the shared expert all rows. Owns their memory, not the weights. One thread,
/// under a CudaStream::Use.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/cuda/engine/adapter_slots.h"
#include "kernels/cuda/memory/weights.h"
#include "kernels/models/config.h"
#include "kernels/ops/ops.h"

namespace primerl {

class EngineMixture {
 public:
  /// The weights of one layer.
  struct Layer {
    CudaLinear router, shared_gate_up, shared_down;
    /// Null: adapters cannot target it.
    const CudaAdapterSlots::Linear *on_gate_up = nullptr, *on_down = nullptr;
    const CudaAdapterSlots::Linear *on_shared_gate_up = nullptr, *on_shared_down = nullptr;
    at::Tensor gate_up;           // [experts, hidden, 2 width], a view
    at::Tensor down;              // [experts, width, hidden], likewise
    const float* bias = nullptr;  // [experts] router bias, or null
    bool is_fp8 = false;          // its GEMMs, but the router's, read rounded numbers or, of
    std::shared_ptr<const Fp8Experts> gate_up_codes = {}, down_codes = {};  // these, codes

    /// From now on GEMMs read the matrices that `all` rounds.
    void use_fp8(Fp8Weights& all);
  };

  /// All arguments must stay valid while it exists; without `adapters` no row has one. The model
  /// has a mixture.
  EngineMixture(const ModelConfig& config, const CudaWeights& weights,
                const CudaAdapterSlots* adapters, const CudaStream& stream, int64_t rows_max);

  /// The layer with our name "layers.3.moe.".
  Layer layer(const std::string& name) const;
  /// Reads the router biases from `tensors`, which are all of a model's, without rounding.
  Status take_biases(const TensorTable& table, const std::vector<WeightTensor>& tensors);

  bool may_be_captured() const { return type_ == at::kBFloat16; }
  /// y = the mixture of x, both [rows, hidden], for all rows of a pass.
  Status forward(int64_t rows, const CudaAdapterRows& adapters, const Layer& layer,
                 const at::Tensor& x, const at::Tensor& y) const;

  /// Bytes that it allocates.
  static double bytes_needed(const ModelConfig& config, int64_t element_size, int64_t rows_max);

 private:
  Status route(int64_t rows, const Layer& layer, const at::Tensor& x) const;
  at::Tensor grouped(const at::Tensor& x, const at::Tensor& weight) const;
  /// The first `rows` rows of x as GEMMs of the layer read them.
  at::Tensor read(int64_t rows, const Layer& layer, const at::Tensor& x) const;
  /// Adds the outputs of the experts for `rows` rows from `first` on.
  Status forward_some(int64_t first, int64_t rows, const CudaAdapterRows& adapters,
                      const Layer& layer, const at::Tensor& x, const at::Tensor& y) const;
  Status forward_shared(int64_t rows, const CudaAdapterRows& adapters, const Layer& layer,
                        const at::Tensor& x, const at::Tensor& y) const;
  /// Tiles of such rows after sorting; none if no adapter adds to experts.
  Result<CudaAdapterRows> tile(int64_t first, int64_t rows, const CudaAdapterRows& adapters) const;
  Status add(const CudaAdapterSlots::Linear* linear, const CudaAdapterRows& adapters,
             const at::Tensor& x, const at::Tensor& y) const;
  cuda::Type type() const;

  const ModelConfig& config_;
  const MoeSpec& spec_;
  const RouterShape shape_;
  const CudaWeights& weights_;
  const CudaAdapterSlots* const adapters_;  // or null
  const at::ScalarType type_;
  const CudaStream& stream_;
  const int64_t rows_max_;  // at a time
  at::Tensor biases_;       // all untrained parameters of the model, fp32; undefined: none
  at::Tensor scores_;       // [rows, experts] fp32; holds the logits first
  at::Tensor weights_of_;   // [rows, experts_per_token] fp32
  at::Tensor chosen_;       // [rows, experts_per_token] int32
  at::Tensor permutation_;  // likewise
  at::Tensor sources_;      // [pairs] int32
  at::Tensor ends_;         // [experts] int32
  at::Tensor gathered_;     // [pairs, hidden]
  at::Tensor tiles_;        // [pairs] AdapterTile, as bytes; undefined: no adapters
  at::Tensor activated_;    // [pairs, width]
  at::Tensor shared_gate_up_, shared_activated_;  // of all rows
};

}  // namespace primerl
