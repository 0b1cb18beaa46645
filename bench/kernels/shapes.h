/// Model folders of the peers' shapes (Qwen3, tied embeddings, vocabulary 128), with random
/// weights.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "graph/base/json.h"
#include "kernels/torch/make.h"

namespace primerl::bench {

struct Shape {
  const char* name;
  int hidden_size, num_layers, intermediate_size, num_heads, num_kv_heads;
};
inline constexpr Shape kOneMillion = {"1m", 128, 5, 384, 4, 2};
inline constexpr Shape kFiveMillion = {"5m", 256, 6, 768, 8, 4};

/// Parameters that a token passes through, the head included.
inline int64_t matrix_parameters(const Shape& s) {
  const int64_t attention = 32 * s.hidden_size * (2 * s.num_heads + 2 * s.num_kv_heads);
  const int64_t layer = attention + 3 * s.hidden_size * s.intermediate_size;
  return s.num_layers * layer + 128 * s.hidden_size;
}

inline std::unique_ptr<Learner> make_learner(const std::filesystem::path& folder) {
  LearnerOptions options;
  options.init_seed = 1;
  options.optimizer.lr = 1e-4;
  auto learner = make_torch_learner(options, folder);
  CHECK(learner.ok(), learner.error().text());
  return std::move(learner).value();
}

/// A folder with weights, below the system's folder for temporary files.
inline std::filesystem::path make_folder(const Shape& shape) {
  const auto folder =
      std::filesystem::temp_directory_path() / (std::string("primerl-bench-") + shape.name);
  std::filesystem::create_directories(folder);
  Json config = Json::object();
  config.set("model_type", "qwen3").set("vocab_size", 128).set("head_dim", 32);
  config.set("hidden_size", shape.hidden_size).set("num_hidden_layers", shape.num_layers);
  config.set("intermediate_size", shape.intermediate_size);
  config.set("num_attention_heads", shape.num_heads);
  config.set("num_key_value_heads", shape.num_kv_heads);
  config.set("max_position_embeddings", 4096).set("tie_word_embeddings", true);
  std::ofstream(folder / "config.json") << config.dump(2);
  CHECK(make_learner(folder)->save(folder).ok(), "cannot save the model");
  return folder / "weights";
}

}  // namespace primerl::bench
