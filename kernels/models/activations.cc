#include "kernels/models/activations.h"

#include <numeric>

namespace primerl {
namespace {

struct Widths {
  int64_t hidden = 0;
  // Widths of attention.
  int64_t q = 0, kv = 0, qkv = 0;

  Widths(const AttentionSpec& spec, int64_t hidden_size)
      : hidden(hidden_size),
        q(int64_t{spec.num_heads} * spec.head_dim),
        kv(int64_t{spec.num_kv_heads} * spec.head_dim),
        qkv(q + 2 * kv) {}
};

std::vector<BufferSpec> activations(const AttentionSpec& spec, int64_t hidden) {
  const Widths widths(spec, hidden);
  return {{.name = "normed", .width = hidden},
          {.name = "inverse_rms", .width = 1},
          {.name = "qkv", .width = widths.qkv},
          {.name = "q", .width = widths.q},
          {.name = "attended", .width = widths.q, .is_attention_output = true},
          {.name = "log_sum_exp", .width = spec.num_heads, .is_attention_output = true}};
}

std::vector<BufferSpec> gradients(const AttentionSpec& spec, int64_t hidden) {
  const Widths widths(spec, hidden);
  return {{.name = "normed", .width = hidden},  {.name = "qkv", .width = widths.qkv},
          {.name = "q", .width = widths.q},     {.name = "attended", .width = widths.q},
          {.name = "keys", .width = widths.kv}, {.name = "values", .width = widths.kv}};
}

std::vector<BufferSpec> activations(const MlpSpec& spec, int64_t hidden) {
  return {{.name = "normed", .width = hidden},
          {.name = "inverse_rms", .width = 1},
          {.name = "gate_up", .width = int64_t{2} * spec.width},
          {.name = "activated", .width = spec.width}};
}

std::vector<BufferSpec> gradients(const MlpSpec& spec, int64_t hidden) {
  return {{.name = "normed", .width = hidden},
          {.name = "gate_up", .width = int64_t{2} * spec.width},
          {.name = "activated", .width = spec.width}};
}

std::vector<BufferSpec> activations(const MoeSpec& spec, int64_t hidden) {
  const int64_t k = spec.experts_per_token;
  return {{.name = "normed", .width = hidden},
          {.name = "inverse_rms", .width = 1},
          {.name = "scores", .width = spec.num_experts},
          {.name = "experts", .width = k, .is_integer = true},
          {.name = "expert_weights", .width = k},
          {.name = "places", .width = k, .is_integer = true},
          {.name = "sources", .width = k, .is_integer = true},
          {.name = "gathered", .width = k * hidden},
          {.name = "gate_up", .width = k * 2 * spec.width},
          {.name = "activated", .width = k * spec.width},
          {.name = "expert_outputs", .width = k * hidden},
          {.name = "shared_gate_up", .width = int64_t{2} * spec.shared_width},
          {.name = "shared_activated", .width = spec.shared_width}};
}

std::vector<BufferSpec> gradients(const MoeSpec& spec, int64_t hidden) {
  const int64_t k = spec.experts_per_token;
  return {{.name = "normed", .width = hidden},
          {.name = "logits", .width = spec.num_experts},
          {.name = "expert_weights", .width = k},
          {.name = "sorted_weights", .width = k},
          {.name = "gathered", .width = k * hidden},
          {.name = "gate_up", .width = k * 2 * spec.width},
          {.name = "activated", .width = k * spec.width},
          {.name = "shared_gate_up", .width = int64_t{2} * spec.shared_width},
          {.name = "shared_activated", .width = spec.shared_width}};
}

}  // namespace

std::vector<BufferSpec> activations_of(const StageSpec& stage, int64_t hidden_size) {
  return std::visit([&](const auto& spec) { return activations(spec, hidden_size); }, stage);
}

std::vector<BufferSpec> gradients_of(const StageSpec& stage, int64_t hidden_size) {
  return std::visit([&](const auto& spec) { return gradients(spec, hidden_size); }, stage);
}

int64_t width_of(const std::vector<BufferSpec>& specs) {
  return std::accumulate(specs.begin(), specs.end(), int64_t{0},
                         [](int64_t sum, const BufferSpec& spec) { return sum + spec.width; });
}

}  // namespace primerl
