/// Floating-point operations of a training step, and the peak of known devices: the two parts of
/// model FLOPs utilisation (MFU).
///
/// Counted are the multiply-adds of the model's matrices (2 operations each) and of attention, in
/// forward and backward, for the rows that the step computes. Activations that are computed again
/// (`recompute`), norms, softmax and the optimizer do not count. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/models/config.h"
#include "kernels/train/packing.h"

namespace primerl {

/// Parameters of the matrices that one token uses, without embedding and head: a row of the first
/// is read, not multiplied, and the head computes only rows with a loss. A mixture counts the
/// experts of a token.
double active_matrix_parameters(const ModelConfig& config);

/// The operations of all passes of one step. Whole weights need 6 for each parameter and row: 2 in
/// forward, 2 for the gradient of activations, 2 for that of weights. Beside adapters the weights
/// are frozen: 4. The head counts only for rows with a loss.
double training_flops(const ModelConfig& config, std::span<const MicroBatch> micro_batches,
                      bool has_frozen_weights);

/// Dense bf16 operations per second of a device by the name that its driver gives; 0: not known.
double known_peak_flops(std::string_view device_name);

}  // namespace primerl
