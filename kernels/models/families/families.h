/// The model families: one file each, which reads the fields of its config.json. No arithmetic: all
/// families share the same stages.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/models/config.h"
#include "kernels/models/config_reader.h"

namespace primerl {

struct ModelFamily {
  std::string model_type;
  /// Head size if the config does not set it; 0: hidden_size / num_attention_heads.
  int32_t head_dim = 0;
  double rms_norm_epsilon = 1e-6;  // if the config does not set it
  /// A config without `num_key_value_heads` means num_attention_heads. If false, the field is
  /// required.
  bool has_all_kv_heads = false;
  /// Fills the fields that are specific to the family, and chooses the sparse layers. The common
  /// fields were read before.
  Status (*read)(ConfigReader& reader, ModelConfig& config) = nullptr;
};

std::span<const ModelFamily> model_families();

/// The family of a model_type, or an error that lists the known ones.
Result<ModelFamily> find_family(const std::string& model_type);

Status read_llama(ConfigReader& reader, ModelConfig& config);
Status read_mistral(ConfigReader& reader, ModelConfig& config);
Status read_qwen2(ConfigReader& reader, ModelConfig& config);
Status read_qwen3(ConfigReader& reader, ModelConfig& config);
Status read_qwen3_moe(ConfigReader& reader, ModelConfig& config);
Status read_glm4_moe(ConfigReader& reader, ModelConfig& config);

/// Check that several families share: every layer attends to the whole context. A window that no
/// sequence is longer than, or that no layer uses, is none.
Status need_full_attention(ConfigReader& reader, const ModelConfig& config);

/// Checks that a token cannot choose more experts than there are.
Status check_moe(const MoeSpec& moe);

}  // namespace primerl
