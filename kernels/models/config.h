/// The description of a decoder-only model: sizes, rotary embedding, and the stages of each layer,
/// read from the config.json of a Hugging Face folder. A plain value.
///
/// Reads the spelling of transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`) and 5
/// (`rope_parameters`, `dtype`). A field that changes the arithmetic in a way that is not supported
/// is an error that names it. Fields that change nothing are passed over; those that are not known
/// are listed. The text of config.json is kept and written again with a saved model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/result.h"
#include "kernels/models/rope.h"

namespace primerl {

/// Grouped-query attention with rotary positions.
struct AttentionSpec {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;
  int32_t rotary_dim = 0;  // channels of a head that RoPE rotates, from the first on
  bool has_qkv_bias = false;
  bool has_out_bias = false;
  bool has_qk_norm = false;  // per-head RMS norm of q and k before the rotation

  friend bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
};

/// down(silu(gate x) * up x)
struct MlpSpec {
  int32_t width = 0;
  bool has_bias = false;

  friend bool operator==(const MlpSpec&, const MlpSpec&) = default;
};

enum class ExpertScore : uint8_t { kSoftmax, kSigmoid };

/// A mixture of experts: a router sends each token through a few of many MLPs without biases.
struct MoeSpec {
  int32_t num_experts = 0;
  int32_t experts_per_token = 0;
  int32_t width = 0;         // of an expert
  int32_t shared_width = 0;  // of the shared expert, which every token uses; 0: none
  ExpertScore score = ExpertScore::kSoftmax;
  bool has_selection_bias = false;  // added to the scores when experts are chosen
  int32_t num_groups = 1;           // of experts
  int32_t groups_kept = 1;          // groups that experts are chosen from
  bool is_normalized = true;        // the weights of a token's experts sum to 1
  double epsilon = 0;               // added to that sum
  double scale = 1;                 // multiplies the weights

  friend bool operator==(const MoeSpec&, const MoeSpec&) = default;
};

/// x + body(rms_norm(x)): one stage of a layer. Its name is part of the names of its tensors and
/// activations.
using StageSpec = std::variant<AttentionSpec, MlpSpec, MoeSpec>;
std::string_view stage_name(const StageSpec& stage);  // "attention", "mlp", "moe"

struct LayerSpec {
  std::vector<StageSpec> stages;

  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

struct ModelConfig {
  std::string model_type;  // "qwen3", "llama", ...
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t max_positions = 0;
  double rms_norm_epsilon = 1e-6;
  double initializer_range = 0.02;  // standard deviation of random weights
  bool is_tied = false;             // the head uses the embedding's weights
  RopeConfig rope;
  AttentionSpec attention;                // shared by all layers, in the families so far
  MlpSpec mlp;                            // of the dense layers
  std::optional<MoeSpec> moe;             // of the sparse layers
  std::vector<LayerSpec> layers;          // the stages of each layer
  int32_t num_unused_layers = 0;          // extra layers in the files, for multi-token prediction
  std::vector<int32_t> eos_ids;           // of config.json and generation_config.json
  std::vector<std::string> unknown_keys;  // of config.json, quoted: they may change the arithmetic
  Json source;                            // config.json as read

  int32_t num_layers() const { return static_cast<int32_t>(layers.size()); }
};

/// Reads config.json (and the eos ids of generation_config.json). Errors name the file and the key.
Result<ModelConfig> read_model_config(const std::filesystem::path& folder);

/// Number of layers with a mixture of experts.
int32_t num_mixtures(const ModelConfig& config);

/// Identifies a model by the content of its config.json, not of its weights: 64 hex digits.
std::string fingerprint(const ModelConfig& config);

/// Whether both compute the same from the same weights, however their files write it.
bool is_same_model(const ModelConfig& a, const ModelConfig& b);

/// "'mup' of config.json is not known for model_type 'llama'"; empty if every key is known.
std::string unknown_keys_text(const ModelConfig& config);

/// Why this build cannot compute a model that was read; ok if it can.
Status check_is_supported(const ModelConfig& config);

}  // namespace primerl
