/// A model folder of a few thousand random weights, made by the learner itself.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "kernels/devices/make.h"

namespace primerl::testing {

struct TinyModel {
  std::string model_type = "qwen3";
  int32_t vocab_size = 61;
  int32_t hidden_size = 32;
  int32_t num_layers = 2;
  int32_t head_dim = 16;  // 4 heads, 2 for keys and values
  int32_t max_positions = 256;
  int32_t eos_id = 1;
  int64_t seed = 1;
  double deviation = 0.3;   // large enough that the next token matters
  int32_t num_experts = 8;  // of a mixture, three per token
};

/// An empty folder named after the running test.
std::filesystem::path scratch_folder(const std::string& name);

/// Writes config.json without weights.
std::filesystem::path write_config(const TinyModel& model, const std::filesystem::path& folder);

/// A whole folder; created again on every call.
std::filesystem::path make_folder(const TinyModel& model, const std::string& name = "model");

/// The weights of a model with another seed, as `version`.
std::shared_ptr<const WeightSnapshot> make_snapshot(TinyModel model, PolicyVersion version);

}  // namespace primerl::testing
