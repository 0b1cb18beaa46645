/// A LoRA adapter of a model: which linear layers it changes, and its tensors with their offsets.
///
/// y = base(x) + scaling * B (A x), separately for each linear layer of Hugging Face's names, as
/// peft does. So q, k and v have an A and a B each, though here one matrix computes all three. An
/// adapter's linear is a range of columns of one of our matrices (tensors.h), or of one expert of
/// it. In a tied model, `lm_head` adds to the columns of the embedding's matrix as the head has
/// it; merging gives the model a head of its own. The names, shapes and offsets of its tensors are
/// a TensorTable like that of a model: reading, snapshots and the optimizer work on either. Values
/// independent of torch, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/models/tensors.h"
#include "kernels/weights/adapter.h"

namespace primerl {

/// One targeted linear of one layer, or of one expert.
struct AdapterLinear {
  std::string module;    // "model.layers.0.self_attn.k_proj"
  size_t parameter = 0;  // index of the model's matrix that computes its outputs
  int64_t group = 0;     // the expert, if the matrix has experts
  int64_t column = 0;    // first of the linear's outputs, within the group
  int64_t inputs = 0;
  int64_t outputs = 0;
  size_t a = 0, b = 0;  // indices of the adapter's parameters [rank, inputs] and [outputs, rank]
};

class AdapterTable {
 public:
  /// `config` is valid.
  AdapterTable(const TensorTable& model, AdapterConfig config);

  const AdapterConfig& config() const { return config_; }
  /// A and B of every linear, with peft's names. The last parameter, which is not trained, is
  /// kAdapterScaling, so that a snapshot has everything an engine needs.
  const TensorTable& tensors() const { return tensors_; }
  /// Sorted by parameter, group and column.
  std::span<const AdapterLinear> linears() const { return linears_; }

 private:
  AdapterConfig config_;
  std::vector<AdapterLinear> linears_;
  TensorTable tensors_;
};

/// The adapter config of a snapshot: rank and targets follow from its tensors. An error names the
/// first tensor that does not fit the model.
Result<AdapterConfig> adapter_config_of(const TensorTable& model,
                                        const std::vector<WeightTensor>& tensors);

/// A is uniform in +-1/sqrt(inputs) (peft: kaiming_uniform with a = sqrt(5)), B is 0, and the
/// scaling is set. A pure function of seed, tensor name and element index. Until B is trained the
/// adapter adds 0.
void initialize_adapter(const AdapterTable& table, float* buffer);

/// Whether merging it needs a head of its own, which the model has not.
inline bool needs_own_head(const TensorTable& model, const AdapterConfig& adapter) {
  return model.is_tied() && targets_head(named_targets(adapter));
}

/// W += scaling * B A for every targeted linear, in fp32, as peft's merge_and_unload() does.
/// `adapter` is laid out as `table.tensors()`, `weights` as `model`, for which `table` was made.
/// `model` has a head of its own, if the adapter needs one.
void merge_adapter(const TensorTable& model, const AdapterTable& table, const float* adapter,
                   float* weights);

}  // namespace primerl
