#include "kernels/models/memory.h"

#include <fmt/format.h>

namespace primerl {
namespace {

constexpr double kBytes = sizeof(float);

double bytes_of(const TensorTable& table) { return kBytes * static_cast<double>(table.count()); }

}  // namespace

std::vector<MemoryPart> engine_memory(const EngineOptions& options, const ModelConfig& config) {
  const TensorTable table(config);
  std::vector<MemoryPart> parts = {{"base weights", bytes_of(table)}};
  if (options.adapter_slots > 0) {
    const double largest =
        bytes_of(AdapterTable(table, {.rank = options.max_adapter_rank}).tensors());
    parts.push_back({fmt::format("{} adapter slots of rank {}", options.adapter_slots,
                                 options.max_adapter_rank),
                     options.adapter_slots * largest});
    if (options.adapters_max > options.adapter_slots)
      parts.push_back({fmt::format("{} adapters beside the slots", options.adapters_max),
                       options.adapters_max * largest});
  }
  parts.push_back({fmt::format("{} KV blocks", options.kv_blocks),
                   2.0 * kBytes * config.num_layers() * static_cast<double>(options.kv_blocks) *
                       options.block_size * config.attention.num_kv_heads *
                       config.attention.head_dim});
  return parts;
}

std::vector<MemoryPart> learner_memory(const ModelConfig& config) {
  const double bytes = bytes_of(TensorTable(config));
  return {{"weights", bytes}, {"gradients", bytes}, {"optimizer moments", 2 * bytes}};
}

std::vector<MemoryPart> learner_memory(const ModelConfig& config,
                                       const std::vector<TrainedAdapter>& adapters) {
  const TensorTable table(config);
  std::vector<MemoryPart> parts = {{"base weights", bytes_of(table)}};
  for (const auto& [tenant, adapter] : adapters)
    parts.push_back({fmt::format("adapter of tenant '{}' (rank {}), its gradients and optimizer "
                                 "moments",
                                 tenant, adapter.rank),
                     4 * bytes_of(AdapterTable(table, adapter).tensors())});
  return parts;
}

}  // namespace primerl
