/// All values of one training step in one file: `primerl-graph train-step --dump` writes it and
/// `compare-activations` reads it. One thread.
///
/// `step.safetensors` has every activation, gradient and new weight under "NNNNNN.name", numbered
/// in the order of computation: "000012.micro_batch.0.layers.3.attention.qkv", then "gradient.NAME"
/// from the last parameter to the first, then "weight.NAME". Everything is kept in memory until the
/// end of the step, at most kStepDumpBytesMax.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "kernels/weights/snapshot.h"

namespace primerl {

inline constexpr size_t kStepDumpBytesMax = size_t{8} << 30;

/// Gets an activation, [rows, width], as soon as it is computed: "layers.3.attention.qkv",
/// "layers.3.attention.output", "embedding.output", "final_norm.output".
using ActivationVisitor = std::function<void(const std::string& name, const at::Tensor& rows)>;

class StepDump {
 public:
  /// Copies rows of fp32 or int32.
  void add(const std::string& name, const at::Tensor& rows);
  /// Adds tensors in their order, under "prefix.name".
  void add(const std::string& prefix, const std::vector<WeightTensor>& tensors);
  /// Removes the file of an earlier step from `folder`.
  static Status remove(const std::filesystem::path& folder);
  /// Writes `step.safetensors` into `folder`, which it creates, and clears the dump.
  Status write(const std::filesystem::path& folder);

 private:
  void add(std::string name, WeightTensor tensor);

  std::vector<WeightTensor> tensors_;
  size_t num_bytes_ = 0;
  bool is_full_ = false;
};

}  // namespace primerl
