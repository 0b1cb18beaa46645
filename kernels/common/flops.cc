#include "kernels/common/flops.h"

#include <utility>

namespace primerl {
namespace {

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

double active_matrix_parameters(const ModelConfig& config) { return row_costs(config).per_row; }

double training_flops(const ModelConfig& config, std::span<const MicroBatch> micro_batches,
                      bool has_frozen_weights) {
  const double of_parameter = has_frozen_weights ? 4 : 6;
  const RowCosts costs = row_costs(config);
  // Two operations for each multiply-add, forward and twice as much backward.
  const double of_key = 6 * costs.per_pair;
  double sum = 0;
  for (const MicroBatch& batch : micro_batches)
    sum += of_parameter * (costs.per_row * static_cast<double>(batch.rows.num_rows()) +
                           costs.per_target * static_cast<double>(batch.targets.size())) +
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
