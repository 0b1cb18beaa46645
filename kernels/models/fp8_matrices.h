/// Which parameters of a model are FP8 with `products = "fp8"`, on every device: one table.
///
/// | Parameters | With "fp8" |
/// |---|---|
/// | matrices of attention: qkv, out | e4m3 |
/// | matrices of a dense MLP, of experts, of a shared expert: gate_up, down | e4m3 |
/// | router and its selection bias: they choose the experts | as without it |
/// | embedding and head | as without it |
/// | norms and biases | as without it |
/// | adapters (LoRA), which also read their rows before these are rounded | as without it |
///
/// A matrix is quantised as the model stores it: q, k and v as one, gate and up as one, each expert
/// alone. So a block of 128 x 128 may hold rows of two tensors.
#pragma once

#include "kernels/models/tensors.h"

namespace primerl {

inline constexpr int64_t kFp8Block = 128;  // numbers of a row with one scale; sides of a block

inline bool is_fp8_matrix(const Parameter& parameter) {
  if (parameter.shape.size() < 2) return false;  // norms and biases
  switch (parameter.kind) {
    case ParameterKind::kAttention:
    case ParameterKind::kMlp:
    case ParameterKind::kExperts:
    case ParameterKind::kSharedExpert:
      return true;
    case ParameterKind::kEmbedding:
    case ParameterKind::kHead:
    case ParameterKind::kNorm:
    case ParameterKind::kRouter:
      break;
  }
  return false;
}

}  // namespace primerl
