/// All numbers of one training step in one file: what `primerl-graph train-step --dump` writes and
/// `compare-activations` reads. One thread.
///
/// `step.safetensors` holds every activation, gradient and new weight under
/// "NNNNNN.name", numbered in the order in which they were computed:
/// "000012.micro_batch.0.layers.3.attention.qkv", then "gradient.NAME" from the last parameter to
/// the first, then "weight.NAME". Everything is kept in memory until the end of the step, at most
/// kStepDumpBytesMax.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "kernels/weights/snapshot.h"

namespace primerl {

inline constexpr size_t kStepDumpBytesMax = size_t{8} << 30;

class StepDump {
 public:
  /// Copies rows that are fp32 or int32.
  void add(const std::string& name, const at::Tensor& rows);
  /// Takes tensors in their order, under "prefix.name".
  void add(const std::string& prefix, const std::vector<WeightTensor>& tensors);
  /// Removes what an earlier step left in `folder`.
  static Status remove(const std::filesystem::path& folder);
  /// Writes `step.safetensors` into `folder`, which it makes, and forgets everything.
  Status write(const std::filesystem::path& folder);

 private:
  void add(std::string name, WeightTensor tensor);

  std::vector<WeightTensor> tensors_;
  size_t num_bytes_ = 0;
  bool is_full_ = false;
};

}  // namespace primerl
