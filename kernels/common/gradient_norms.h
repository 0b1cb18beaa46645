/// Gradient norms by part of a model, for the report of a step. Pure functions on the host.
#pragma once

#include <vector>

#include "kernels/models/tensors.h"
#include "kernels/train/step_measures.h"

namespace primerl {

GradientGroup group_of(ParameterKind kind);

/// The sum of squares of each trained parameter of `table`, in its order. `gradients` is a flat
/// buffer of that layout.
std::vector<double> squares_of_parameters(const TensorTable& table, const float* gradients);

/// The norms by GradientGroup, from these sums; empty without sums.
std::vector<double> norms_by_group(const TensorTable& table, const std::vector<double>& squares);

}  // namespace primerl
