/// Model folders with the shapes of the peers (Qwen3 and Qwen3 mixtures, tied embeddings) and
/// random weights.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "graph/base/json.h"
#include "kernels/devices/make.h"

namespace primerl::bench {

struct Shape {
  const char* name;
  int hidden_size, num_layers, intermediate_size, num_heads, num_kv_heads;
  int head_dim = 32, vocab_size = 128;
  int num_experts = 0, experts_per_token = 1;  // with experts, intermediate_size is that of one
                                               // expert
};
inline constexpr Shape kOneMillion = {"1m", 128, 5, 384, 4, 2};
inline constexpr Shape kFiveMillion = {"5m", 256, 6, 768, 8, 4};
inline constexpr Shape kFiftyMillion = {"50m", 640, 9, 1920, 10, 5, 64, 8192};
/// As many parameters for one token as kFiftyMillion has.
inline constexpr Shape kMixture = {"50m_of_16_experts", 640, 9, 480, 10, 5, 64, 8192, 16, 4};

/// Parameters that a token uses, including the head.
inline int64_t matrix_parameters(const Shape& s) {
  const int64_t attention =
      int64_t{s.head_dim} * s.hidden_size * (2 * s.num_heads + 2 * s.num_kv_heads);
  const int64_t layer =
      attention + int64_t{3} * s.hidden_size * s.intermediate_size * s.experts_per_token;
  return s.num_layers * layer + int64_t{s.vocab_size} * s.hidden_size;
}

inline std::unique_ptr<Learner> make_learner(const std::filesystem::path& folder,
                                             LearnerOptions options = {}) {
  options.init_seed = 1;
  options.optimizer.lr = 1e-4;
  auto learner = make_torch_learner(options, folder);
  CHECK(learner.ok(), learner.error().text());
  return std::move(learner).value();
}

/// A folder with only a config, in the system's folder for temporary files.
inline std::filesystem::path make_config(const Shape& shape, const std::string& suffix = {}) {
  const auto folder = std::filesystem::temp_directory_path() /
                      (std::string("primerl-bench-") + shape.name + suffix);
  std::filesystem::create_directories(folder);
  Json config = Json::object();
  const bool is_mixture = shape.num_experts > 0;
  config.set("model_type", is_mixture ? "qwen3_moe" : "qwen3").set("head_dim", shape.head_dim);
  config.set("vocab_size", shape.vocab_size);
  if (is_mixture) {
    config.set("num_experts", shape.num_experts).set("norm_topk_prob", true);
    config.set("num_experts_per_tok", shape.experts_per_token);
    config.set("moe_intermediate_size", shape.intermediate_size);
  }
  config.set("hidden_size", shape.hidden_size).set("num_hidden_layers", shape.num_layers);
  config.set("intermediate_size", shape.intermediate_size);
  config.set("num_attention_heads", shape.num_heads);
  config.set("num_key_value_heads", shape.num_kv_heads);
  config.set("max_position_embeddings", 4096).set("tie_word_embeddings", true);
  std::ofstream(folder / "config.json") << config.dump(2);
  return folder;
}

/// The same with random weights.
inline std::filesystem::path make_folder(const Shape& shape) {
  const auto folder = make_config(shape);
  CHECK(make_learner(folder)->save(TenantSlot(0), folder).ok(), "cannot save the model");
  return folder / "weights";
}

}  // namespace primerl::bench
