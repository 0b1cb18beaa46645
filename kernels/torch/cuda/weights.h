/// The weights of an engine on a CUDA device: all parameters in one flat buffer of one type, laid
/// out as the table says (models/tensors.h).
///
/// Addresses are fixed for life, so that captured graphs see new weights. What is loaded is
/// converted on the device, in parts of bounded size. One thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "kernels/models/tensors.h"
#include "kernels/torch/cuda/stream.h"

namespace primerl {

/// One matrix as products on a device read it.
struct CardLinear {
  at::Tensor transposed;  // [terms, columns], a view; undefined: there is none
  at::Tensor bias;        // [columns], or undefined
};

class CardWeights {
 public:
  /// `table` and `stream` outlive it; `type` is kFloat or kBFloat16. All weights are 0.
  CardWeights(const TensorTable& table, at::ScalarType type, const CardStream& stream);

  at::ScalarType type() const { return type_; }
  /// [of the parameter's shape], a view; undefined: the model has none of that name.
  at::Tensor tensor(std::string_view name) const;
  /// Null: the model has none of that name.
  const void* data(std::string_view name) const;
  CardLinear linear(std::string_view name) const;

  /// Takes what a folder or a snapshot has; all or nothing (tensors.h). Has read all of it when it
  /// returns.
  Status load(const std::vector<WeightTensor>& tensors);

 private:
  void copy(const WeightTensor& tensor, const TensorSlice& slice);

  const TensorTable& table_;
  const at::ScalarType type_;
  const CardStream& stream_;
  at::Tensor flat_;   // [table.count()]
  at::Tensor stage_;  // [bytes] of what comes in another type
};

}  // namespace primerl
