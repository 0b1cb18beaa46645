/// The numbers of a model: parameters by kind, bytes, KV bytes per token. For people and plans.
/// Pure functions of a config.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/base/json.h"
#include "kernels/models/tensors.h"

namespace primerl {

/// Consecutive layers with the same stages: [first, last].
struct LayerRange {
  int32_t first = 0;
  int32_t last = 0;
  std::vector<std::string> stages;  // "attention: 4 heads, ..."
};

struct ModelSummary {
  struct Kind {
    ParameterKind kind = ParameterKind::kMlp;
    int64_t count = 0;
    int64_t active = 0;  // parameters that one token uses
  };
  std::vector<Kind> kinds;  // in the order of ParameterKind; empty kinds are left out
  int64_t num_parameters = 0;
  int64_t num_active = 0;
  int64_t kv_elements_per_token = 0;  // keys and values of all layers
  std::vector<LayerRange> layers;
};

ModelSummary summarize(const ModelConfig& config, const TensorTable& table);

/// The text that `primerl-graph model` prints.
std::string to_text(const ModelConfig& config, const ModelSummary& summary);
Json to_json(const ModelConfig& config, const ModelSummary& summary);

}  // namespace primerl
