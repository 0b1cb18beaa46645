/// An adapter (LoRA) whatever its model: rank, scaling, targets, and what a snapshot says of them.
/// Which linears of a model it adds to: models/adapter.h. Values and plain functions, any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/result.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

inline constexpr int32_t kAdapterRankMax = 512;
/// peft's name for all linear layers except the routers and the head.
inline constexpr std::string_view kAllLinear = "all-linear";
/// The target, and the module, that computes logits. In a tied model the embedding is its matrix:
/// an adapter then adds to the logits only, and embeddings stay those of the base.
inline constexpr std::string_view kHeadTarget = "lm_head";
/// Names of the tensors of a linear's A and B, as peft has them: kAdapterPrefix, the module, a
/// suffix.
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";
inline constexpr std::string_view kAdapterSuffixA = ".lora_A.weight";
inline constexpr std::string_view kAdapterSuffixB = ".lora_B.weight";

/// The target of a module: "q_proj" of "model.layers.0.self_attn.q_proj".
inline std::string_view adapter_target(std::string_view module) {
  return module.substr(module.rfind('.') + 1);
}

struct AdapterConfig {
  int32_t rank = 16;  // 1 to kAdapterRankMax
  double alpha = 32;  // above 0
  /// Names of linear layers as in Hugging Face ("q_proj"), or kAllLinear, alone or with
  /// kHeadTarget.
  std::vector<std::string> targets = {std::string(kAllLinear)};
  bool is_rank_stabilized = false;  // peft's use_rslora
  uint64_t init_seed = 0;           // seeds the initial A, and the dropout
  /// The share of A's input that dropout sets to 0 in a training step, [0, 1); the rest is scaled
  /// by 1 / (1 - dropout). Engines and exports do not apply it.
  double dropout = 0;

  friend bool operator==(const AdapterConfig&, const AdapterConfig&) = default;
};

Status validate(const AdapterConfig& config);

/// The names of its targets, sorted, without duplicates; kAllLinear is expanded.
std::vector<std::string> named_targets(const AdapterConfig& config);

inline bool targets_head(const std::vector<std::string>& targets) {
  return std::ranges::find(targets, kHeadTarget) != targets.end();
}

/// alpha / rank, or alpha / sqrt(rank) if it is rank-stabilized (peft/tuners/lora/layer.py,
/// LoraLayer.update_layer).
double scaling_of(const AdapterConfig& config);

/// [1]: the scaling of an adapter. Only in snapshots; a folder has it in its config.
inline constexpr std::string_view kAdapterScaling = "scaling";

inline bool is_adapter(const std::vector<WeightTensor>& tensors) {
  return std::ranges::any_of(
      tensors, [](const WeightTensor& tensor) { return tensor.name == kAdapterScaling; });
}

/// The adapter config that follows from the names and shapes of a snapshot's tensors, for any
/// model: rank, targets, and the alpha that gives the snapshot's scaling.
Result<AdapterConfig> config_of_snapshot(const std::vector<WeightTensor>& tensors);

}  // namespace primerl
