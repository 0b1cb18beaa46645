#include "kernels/common/flops.h"

#include <array>
#include <utility>

namespace primerl {
namespace {

double matrix_parameters(const ModelConfig& config, const AttentionSpec& attention) {
  const double head = attention.head_dim, hidden = config.hidden_size;
  return hidden * head * (2.0 * attention.num_heads + 2.0 * attention.num_kv_heads);
}

double matrix_parameters(const ModelConfig& config, const MlpSpec& mlp) {
  return 3.0 * config.hidden_size * mlp.width;
}

double matrix_parameters(const ModelConfig& config, const MoeSpec& moe) {
  const double widths = double{1} * moe.experts_per_token * moe.width + moe.shared_width;
  return config.hidden_size * (3.0 * widths + moe.num_experts);
}

/// Pairs of a query and a key that it attends to.
double attended_keys(const RowBatch& rows) {
  double count = 0;
  for (const RowSpan& span : rows.spans) {
    const double queries = span.num_queries;
    count += queries * span.num_cached + queries * (queries + 1) / 2;
  }
  return count;
}

}  // namespace

double active_matrix_parameters(const ModelConfig& config) {
  double sum = 0;
  for (const LayerSpec& layer : config.layers)
    for (const StageSpec& stage : layer.stages)
      sum += std::visit([&](const auto& spec) { return matrix_parameters(config, spec); }, stage);
  return sum;
}

double training_flops(const ModelConfig& config, std::span<const MicroBatch> micro_batches,
                      bool has_frozen_weights) {
  const double of_parameter = has_frozen_weights ? 4 : 6;
  const double body = active_matrix_parameters(config);
  const double head = double{1} * config.vocab_size * config.hidden_size;
  // Scores and weighted values, forward and twice as much backward.
  const double of_key =
      12.0 * config.attention.num_heads * config.attention.head_dim * config.num_layers();
  double sum = 0;
  for (const MicroBatch& batch : micro_batches)
    sum += of_parameter * (body * static_cast<double>(batch.rows.num_rows()) +
                           head * static_cast<double>(batch.targets.size())) +
           of_key * attended_keys(batch.rows);
  return sum;
}

double known_peak_flops(std::string_view device_name) {
  // Dense bf16 with fp32 sums, of the vendors' data sheets, in TFLOP/s. A longer name comes before
  // one that is a part of it.
  static constexpr std::pair<std::string_view, double> kPeaks[] = {
      {"B200", 2250}, {"H200", 989}, {"H100 PCIe", 756}, {"H100", 989},
      {"A100", 312},  {"L40S", 362}, {"L40", 181},       {"L4", 121}};
  for (const auto& [name, peak] : kPeaks)
    if (device_name.find(name) != std::string_view::npos) return peak * 1e12;
  return 0;
}

}  // namespace primerl
