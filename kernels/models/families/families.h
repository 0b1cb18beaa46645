/// The model families: one file each, which reads what its config.json says in its own words. No
/// arithmetic: the stages of a model are shared by all families.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/models/config.h"
#include "kernels/models/config_reader.h"

namespace primerl {

struct ModelFamily {
  std::string model_type;
  /// Of a head where the config does not say; 0: hidden_size / num_attention_heads.
  int32_t head_dim = 0;
  double rms_norm_epsilon = 1e-6;  // where the config does not say
  /// A config without `num_key_value_heads` means as many as heads; else it must say.
  bool has_all_kv_heads = false;
  /// Fills the fields in which the family differs, and chooses the sparse layers; the common fields
  /// are read before.
  Status (*read)(ConfigReader& reader, ModelConfig& config) = nullptr;
};

std::span<const ModelFamily> model_families();

/// The family of a model_type, or an error that lists what is known.
Result<ModelFamily> find_family(const std::string& model_type);

Status read_llama(ConfigReader& reader, ModelConfig& config);
Status read_qwen2(ConfigReader& reader, ModelConfig& config);
Status read_qwen3(ConfigReader& reader, ModelConfig& config);
Status read_qwen3_moe(ConfigReader& reader, ModelConfig& config);
Status read_glm4_moe(ConfigReader& reader, ModelConfig& config);

/// What several families share: every layer attends to the whole context.
Status need_full_attention(ConfigReader& reader);

/// The experts a token goes to must be among those that there are.
Status check_moe(const MoeSpec& moe);

}  // namespace primerl
