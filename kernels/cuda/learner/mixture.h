/// A mixture of experts in a training pass on a CUDA device: router, rows sorted by expert, grouped
/// GEMMs, their weighted sum, and the shared expert beside them; forward and backward.
///
/// The router's logits, scores, weights and gradients are fp32, computed from the operands that
/// GEMMs read. Experts are chosen as on the CPU (ops.h); the choice is constant for the gradient.
/// The state that forward keeps is allocated anew each time. bf16 uses _grouped_mm, whose weight
/// gradients are rounded to bf16 before they are added to the fp32 ones; fp32 uses one GEMM per
/// expert and waits for the device. Adapters add to the GEMMs, whose weights are then frozen,
/// including the shared expert's. One thread, under a CudaStream::Use.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/cuda/learner/adapters.h"
#include "kernels/cuda/learner/trained_weights.h"
#include "kernels/models/config.h"
#include "kernels/ops/ops.h"

namespace primerl {

class CudaTrainingMixture {
 public:
  /// The weights of one layer.
  struct Weights {
    CudaParameter router, selection_bias, gate_up, down, shared_gate_up, shared_down;
  };
  /// The state that forward keeps for backward. Sorted rows are in the order of their expert; rows
  /// of one expert keep their order. Pair i is choice i % experts_per_token of a row.
  struct Rows {
    at::Tensor scores;                // [rows, experts] fp32
    at::Tensor experts;               // [rows, experts_per_token] int32
    at::Tensor weights;               // [rows, experts_per_token] fp32
    at::Tensor permutation, sources;  // of SortByExpertArgs
    at::Tensor ends;                  // [experts] int32: the end of each expert's sorted rows
    std::vector<int64_t> on_host;     // the same on the host, for fp32
    at::Tensor gathered;              // [pairs, hidden]
    at::Tensor gate_up;               // [pairs, 2 width]; backward overwrites it
    at::Tensor activated;             // [pairs, width]
    at::Tensor shared_gate_up, shared_activated;
    LearnerAdapters::ExpertRows adapters;  // only if adapters add to experts
  };

  /// All arguments must stay valid while it exists. `adapters`: null, or the adapters of these
  /// weights.
  CudaTrainingMixture(const ModelConfig& config, at::ScalarType type, LearnerAdapters* adapters,
                      const CudaStream& stream);

  /// Bytes per row: those that forward keeps, and those that forward and backward allocate
  /// temporarily.
  static double bytes_of_rows(const ModelConfig& config, at::ScalarType type);
  static double bytes_of_scratch(const ModelConfig& config, at::ScalarType type);
  /// Bytes of the gradient of a layer's experts before it is added.
  static double bytes_of_gradients(const ModelConfig& config, at::ScalarType type);

  /// y = the mixture of x, both [rows, hidden]; y undefined: computes only the rows for backward.
  Result<Rows> forward(const Weights& weights, const at::Tensor& x, const at::Tensor& y) const;
  /// dx [rows, hidden] is written; adds the gradients of the weights.
  Status backward(const Weights& weights, const Rows& rows, const at::Tensor& x,
                  const at::Tensor& dy, const at::Tensor& dx) const;

 private:
  cuda::Type type() const;
  Status route(const Weights& weights, const at::Tensor& x, Rows& rows) const;
  Status sort(Rows& rows) const;
  /// Returns y [pairs, columns] for x [pairs, terms] and weight [experts, terms, columns].
  at::Tensor grouped(const Rows& rows, const at::Tensor& x, const at::Tensor& weight) const;
  /// The same for the parameter of experts [experts, columns, terms], as its GEMMs read numbers.
  /// Row i is x[sources[i]] or, without `sources`, x[i]; `gathered` has these rows already.
  at::Tensor forward_gemm(const Rows& rows, const CudaParameter& weight, const at::Tensor& gathered,
                          const at::Tensor& x, const int32_t* sources) const;
  /// dy [pairs, columns] times the parameter: [pairs, terms]; likewise.
  at::Tensor backward_gemm(const Rows& rows, const CudaParameter& weight,
                           const at::Tensor& gathered, const at::Tensor& dy,
                           const int32_t* sources) const;
  /// gradient [experts, columns, terms] += dy' x, for the sorted rows of each expert.
  void add_gradient(const Rows& rows, const at::Tensor& dy, const at::Tensor& x,
                    const at::Tensor& gradient) const;
  /// y = x times a weight of the shared expert, plus the LoRA delta.
  void gemm(const at::Tensor& x, const CudaParameter& weight, const at::Tensor& y) const;
  Status gather(const at::Tensor& x, const at::Tensor& sources, const at::Tensor& y) const;
  /// y [rows, hidden] += x [pairs, hidden], by pair; multiplied by `weights`, if given.
  Status combine(const Rows& rows, const at::Tensor& x, const at::Tensor& weights,
                 const at::Tensor& y) const;
  /// dx = the router's part of the gradient; adds the gradient of its weights.
  Status route_backward(const Weights& weights, const Rows& rows, const at::Tensor& dweights,
                        const at::Tensor& x, const at::Tensor& dx) const;
  Status backward_shared(const Weights& weights, const Rows& rows, const at::Tensor& x,
                         const at::Tensor& dy, const at::Tensor& dx) const;
  void add_gemm(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gradient) const;
  /// The rows that GEMMs with `weight` read: x, or x rounded to FP8 numbers.
  at::Tensor read(const CudaParameter& weight, const at::Tensor& x) const;

  const ModelConfig& config_;
  const MoeSpec& spec_;
  const RouterShape shape_;
  const at::ScalarType type_;
  LearnerAdapters* const adapters_;
  const CudaStream& stream_;
};

}  // namespace primerl
