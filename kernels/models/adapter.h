/// An adapter (LoRA) of a model: what it adds to which linears, and its tensors and their places.
///
/// y = base(x) + scaling * B (A x), for each linear of Hugging Face's names by itself, as peft does
/// it: q, k and v have an A and a B each, though one product of ours makes all three. So an
/// adapter's linear is a range of columns of one of our matrices (tensors.h), or of one expert of
/// it. The names, shapes and places of its tensors are a TensorTable like a model's: reading,
/// snapshots and the optimizer work on either. Torch-free values, any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/models/tensors.h"

namespace primerl {

inline constexpr int32_t kAdapterRankMax = 512;
/// All linears of the layers but the routers: peft's word for it.
inline constexpr std::string_view kAllLinear = "all-linear";

struct AdapterConfig {
  int32_t rank = 16;  // 1 to kAdapterRankMax
  double alpha = 32;  // above 0
  /// Names of linears as Hugging Face has them ("q_proj"), or kAllLinear alone.
  std::vector<std::string> targets = {std::string(kAllLinear)};
  bool is_rank_stabilized = false;  // peft's use_rslora
  uint64_t init_seed = 0;           // of A at first, and of what dropout leaves out
  /// Part of what A reads that a training step leaves out, [0, 1); it scales the rest by
  /// 1 / (1 - dropout). Nothing else that reads the adapter has it.
  double dropout = 0;

  friend bool operator==(const AdapterConfig&, const AdapterConfig&) = default;
};

Status validate(const AdapterConfig& config);

/// The names of its targets, sorted, each once: those that kAllLinear stands for are among them.
std::vector<std::string> named_targets(const AdapterConfig& config);

/// alpha / rank, or alpha / sqrt(rank) where it is rank-stabilized (peft/tuners/lora/layer.py,
/// LoraLayer.update_layer).
double scaling_of(const AdapterConfig& config);

/// One targeted linear of one layer, or of one expert.
struct AdapterLinear {
  std::string module;    // "model.layers.0.self_attn.k_proj"
  size_t parameter = 0;  // of the model, index: the matrix that makes its outputs
  int64_t group = 0;     // of that matrix: the expert
  int64_t column = 0;    // of that group: the first of the linear's outputs
  int64_t inputs = 0;
  int64_t outputs = 0;
  size_t a = 0, b = 0;  // parameters of the adapter, index: [rank, inputs], [outputs, rank]
};

class AdapterTable {
 public:
  /// `config` is valid.
  AdapterTable(const TensorTable& model, AdapterConfig config);

  const AdapterConfig& config() const { return config_; }
  /// A and B of every linear, named as peft names them. Its last parameter, which is not trained,
  /// is kAdapterScaling, so that a snapshot says all that an engine needs.
  const TensorTable& tensors() const { return tensors_; }
  /// Sorted by parameter, group and column.
  std::span<const AdapterLinear> linears() const { return linears_; }

 private:
  AdapterConfig config_;
  std::vector<AdapterLinear> linears_;
  TensorTable tensors_;
};

/// [1]: the scaling of an adapter. In snapshots alone; a folder has it in its config.
inline constexpr std::string_view kAdapterScaling = "scaling";

inline bool is_adapter(const std::vector<WeightTensor>& tensors) {
  return std::ranges::any_of(
      tensors, [](const WeightTensor& tensor) { return tensor.name == kAdapterScaling; });
}

/// What names and shapes of a snapshot's tensors say of its adapter, of whatever model: rank,
/// targets, and the alpha that gives its scaling.
Result<AdapterConfig> told_adapter(const std::vector<WeightTensor>& tensors);

/// The adapter that a snapshot is one of: its rank and targets are those of its tensors. An error
/// names the first tensor that belongs to no adapter of the model.
Result<AdapterConfig> adapter_config_of(const TensorTable& model,
                                        const std::vector<WeightTensor>& tensors);

/// A uniform in +-1/sqrt(inputs) (peft: kaiming_uniform with a = sqrt(5)), B 0, and the scaling. A
/// pure function of seed, tensor name and place in it; until B is trained the adapter adds 0.
void initialize_adapter(const AdapterTable& table, float* buffer);

/// W += scaling * B A for every targeted linear, in fp32: what peft's merge_and_unload() does.
/// `adapter` as `table.tensors()`, `weights` as `model`, the table that `table` was made of.
void merge_adapter(const TensorTable& model, const AdapterTable& table, const float* adapter,
                   float* weights);

}  // namespace primerl
