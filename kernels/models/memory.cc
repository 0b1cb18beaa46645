#include "kernels/models/memory.h"

#include <fmt/format.h>

namespace primerl {
namespace {

constexpr double kBytes = sizeof(float);

double bytes_of(const TensorTable& table) { return kBytes * static_cast<double>(table.count()); }

/// Engines and learners of one model and process hold it once.
MemoryPart base_of(const TensorTable& table) {
  return {.what = "base weights", .bytes = packed_bytes(table), .is_shared = true};
}

}  // namespace

double packed_bytes(const TensorTable& table) {
  int64_t count = 0;
  for (const Parameter& parameter : table.parameters()) {
    const bool is_embedding = parameter.kind == ParameterKind::kEmbedding;
    const bool is_packed = parameter.shape.size() > 1 && (!is_embedding || table.is_tied());
    if (!is_packed || is_embedding) count += parameter.count;
    if (!is_packed) continue;
    const int64_t terms = parameter.shape.back(), columns = parameter.shape.rbegin()[1];
    const int64_t panels = (columns + kPackedColumns - 1) / kPackedColumns;
    count += parameter.count / (columns * terms) * panels * kPackedColumns * terms;
  }
  return kBytes * static_cast<double>(count);
}

std::vector<MemoryPart> engine_memory(const EngineOptions& options, const ModelConfig& config) {
  const TensorTable table(config);
  std::vector<MemoryPart> parts;
  if (options.adapter_slots == 0)
    parts.push_back({"weights, which each version replaces", packed_bytes(table)});
  if (options.adapter_slots > 0) {
    const AdapterTable largest(table, {.rank = options.max_adapter_rank});
    parts.push_back(base_of(table));
    parts.push_back({fmt::format("{} adapter slots of rank {}", options.adapter_slots,
                                 options.max_adapter_rank),
                     options.adapter_slots * packed_bytes(largest.tensors())});
    if (options.adapters_max > options.adapter_slots)
      parts.push_back({fmt::format("{} adapters beside the slots", options.adapters_max),
                       options.adapters_max * bytes_of(largest.tensors())});
  }
  parts.push_back({fmt::format("{} KV blocks", options.kv_blocks),
                   2.0 * kBytes * config.num_layers() * static_cast<double>(options.kv_blocks) *
                       options.block_size * config.attention.num_kv_heads *
                       config.attention.head_dim});
  return parts;
}

std::vector<MemoryPart> learner_memory(const ModelConfig& config) {
  const double bytes = bytes_of(TensorTable(config));
  return {{"weights, which it trains", bytes},
          {"gradients", bytes},
          {"optimizer moments", 2 * bytes}};
}

std::vector<MemoryPart> learner_memory(const LearnerOptions& options, const ModelConfig& config,
                                       const std::vector<TrainedAdapter>& adapters) {
  const TensorTable table(config);
  std::vector<MemoryPart> parts = {base_of(table)};
  if (options.numerics == "fast")
    parts = {{"base weights of its own, as numerics = \"fast\" does not pack them",
              bytes_of(table)}};
  for (const auto& [tenant, adapter] : adapters)
    parts.push_back({fmt::format("adapter of tenant '{}' (rank {}), its gradients and optimizer "
                                 "moments",
                                 tenant, adapter.rank),
                     4 * bytes_of(AdapterTable(table, adapter).tensors())});
  return parts;
}

}  // namespace primerl
