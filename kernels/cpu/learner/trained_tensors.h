/// The tensors that one optimizer trains, with their gradients, in flat buffers of one layout.
/// Whole weights and adapters are trained in the same way.
///
/// Owns gradients and optimizer; the weights are shared with the decoder. With invariant numerics
/// an update has the same bits for any number of compute threads. One thread calls; work is divided
/// over its compute threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "kernels/common/memory.h"
#include "kernels/common/optimizer.h"
#include "kernels/models/tensors.h"
#include "kernels/train/learner.h"
#include "kernels/train/learner_copy.h"
#include "kernels/train/options.h"

namespace primerl {

class TrainedTensors {
 public:
  /// `weights` [table.count()] are changed in place; `table` must stay valid while this exists.
  /// `options` are valid.
  TrainedTensors(const TensorTable& table, at::Tensor weights, const OptimizerOptions& options);

  const TensorTable& table() const { return table_; }
  int64_t num_steps() const { return optimizer_->num_steps(); }
  const float* weights() const { return weights_.const_data_ptr<float>(); }
  float* gradients() { return gradients_.mutable_data_ptr<float>(); }
  void clear_gradients() { gradients_.zero_(); }

  Status update(TrainReport& report, const AdamNumbers* adam = nullptr) {
    return optimizer_->update(report, adam);
  }
  Optimizer& optimizer() { return *optimizer_; }

  /// The weights as views, valid until they change.
  std::vector<WeightTensor> view_weights() const { return view_parameters(table_, weights()); }
  /// Copies of the weights, in a buffer that is reused when the last copy is released; and of the
  /// gradients of the trained tensors.
  std::vector<WeightTensor> copy_weights();
  std::vector<WeightTensor> copy_gradients() const;

  /// Copies of weights, moments and steps, in buffers that are reused as those of copy_weights().
  LearnerCopy capture();
  /// Sets the weights to `tensors` and loads the files of moments and steps (optimizer_state.h);
  /// all or nothing.
  Status load(const std::vector<WeightTensor>& tensors, const std::filesystem::path& folder);

 private:
  const TensorTable& table_;
  // [table.count()] each.
  at::Tensor weights_;
  at::Tensor gradients_;
  std::unique_ptr<Optimizer> optimizer_;
  BufferPool copies_;  // of the weights
};

}  // namespace primerl
