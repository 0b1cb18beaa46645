/// Which parameters of a model are bf16 with `products = "bf16"`: one table.
///
/// | Parameters | With "bf16" |
/// |---|---|
/// | matrices of attention, of dense MLPs, of experts and of shared experts | bf16 |
/// | head, or the embedding if the head is tied to it | bf16 in the GEMM of the head |
/// | rows that the embedding gives the first layer | float32 |
/// | router and its selection bias: they choose the experts | float32 |
/// | norms and biases | float32 |
/// | adapters (LoRA), which also read their rows before these are rounded | float32 |
#pragma once

#include "kernels/models/fp8_matrices.h"
#include "kernels/models/tensors.h"

namespace primerl {

/// `is_tied`: the head has the numbers of the embedding.
inline bool is_bf16_matrix(const Parameter& parameter, bool is_tied) {
  if (parameter.kind == ParameterKind::kHead) return true;
  if (parameter.kind == ParameterKind::kEmbedding) return is_tied;
  return is_fp8_matrix(parameter);
}

}  // namespace primerl
