/// The tensors that one optimizer trains: their gradients and AdamW moments, in flat buffers of one
/// layout, and the steps it has done. Whole weights and adapters are trained in the same way.
///
/// Owns gradients and moments; the weights are shared with the decoder. With invariant numerics an
/// update has the same bits for any number of compute threads. One thread calls; work is divided
/// over its compute threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <vector>

#include "kernels/common/memory.h"
#include "kernels/models/tensors.h"
#include "kernels/train/learner.h"
#include "kernels/train/options.h"

namespace primerl {

class TrainedTensors {
 public:
  /// `weights` [table.count()] are changed in place; `table` must stay valid while this exists.
  TrainedTensors(const TensorTable& table, at::Tensor weights);

  const TensorTable& table() const { return table_; }
  int64_t num_steps() const { return num_steps_; }
  const float* weights() const { return weights_.const_data_ptr<float>(); }
  float* gradients() { return gradients_.mutable_data_ptr<float>(); }
  void clear_gradients() { gradients_.zero_(); }

  /// One AdamW step at report.learning_rate, after the clip; fills report.grad_norm. A gradient or
  /// loss that is NaN or infinite changes nothing: the report says that the step was skipped, and
  /// why.
  void update(const OptimizerOptions& options, TrainReport& report);

  /// The weights as views, valid until they change.
  std::vector<WeightTensor> view_weights() const { return view_parameters(table_, weights()); }
  /// Copies of the weights, in a buffer that is reused when the last copy is released; and of the
  /// gradients of the trained tensors.
  std::vector<WeightTensor> copy_weights();
  std::vector<WeightTensor> copy_gradients() const;

  /// Writes moments and steps into `folder` (optimizer_state.h).
  Status save(const std::filesystem::path& folder) const;
  /// Sets the weights to `tensors` and loads what save() wrote; all or nothing.
  Status load(const std::vector<WeightTensor>& tensors, const std::filesystem::path& folder);

 private:
  double gradient_norm();
  /// The first tensor whose gradient is not finite, as "NAME (NaN at ...)".
  std::string broken_gradient() const;

  const TensorTable& table_;
  // [table.count()] each.
  at::Tensor weights_;
  at::Tensor gradients_;
  at::Tensor first_moments_;
  at::Tensor second_moments_;
  int64_t num_steps_ = 0;
  BufferPool copies_;            // of the weights
  std::vector<double> squares_;  // scratch
};

}  // namespace primerl
