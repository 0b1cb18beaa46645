/// What a decoder-only model looks like, read from a Hugging Face folder. Torch-free, a plain
/// value.
///
/// Reads the spelling of transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`) and 5
/// (`rope_parameters`, `dtype`). The text of config.json is kept, so that a saved model carries it
/// on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/result.h"

namespace primerl {

/// Rotary embedding. kind is "default", "linear" or "llama3".
struct RopeConfig {
  std::string kind = "default";
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;          // llama3
  double high_freq_factor = 4.0;         // llama3
  double original_max_positions = 8192;  // llama3
};

struct ModelConfig {
  std::string model_type;  // "qwen3", "llama"
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t max_positions = 0;
  double rms_norm_epsilon = 1e-6;
  double initializer_range = 0.02;  // deviation of random weights
  RopeConfig rope;
  bool tied_embeddings = false;
  bool qk_norm = false;         // per-head RMS norm of q and k before the rotation
  bool attention_bias = false;  // of q, k, v and o
  bool mlp_bias = false;
  std::vector<int32_t> eos_ids;  // of config.json and generation_config.json
  Json source;                   // config.json as it was read
};

/// Reads config.json (and the eos ids of generation_config.json). Errors name the file and the key.
Result<ModelConfig> read_model_config(const std::filesystem::path& folder);

/// The inverse frequency of each rotated pair, scaling applied: [head_dim / 2].
std::vector<float> rope_frequencies(const ModelConfig& config);

}  // namespace primerl
