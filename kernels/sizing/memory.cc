#include "kernels/sizing/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/engine/kv_layout.h"
#include "kernels/models/activations.h"
#include "kernels/models/bf16_matrices.h"
#include "kernels/models/fp8_matrices.h"
#include "kernels/train/optimizer.h"

namespace primerl {
namespace {

constexpr double kBytes = sizeof(float);
constexpr double kBytesOfBf16 = 2;

/// Measured: the resident memory of a worker whose engine and learner have almost no weights.
constexpr double kLibrariesBytes = 200.0 * (1 << 20);

double bytes_of(const TensorTable& table) { return kBytes * static_cast<double>(table.count()); }

/// Engines and learners with the same model and GEMM numbers in one process share it.
MemoryPart base_of(const TensorTable& table, const std::string& gemm_numbers) {
  const std::string numbers = gemm_numbers == "fp8"    ? ", rounded to FP8"
                              : gemm_numbers == "bf16" ? ", matrices in bf16"
                                                       : "";
  return {.what = "base weights" + numbers,
          .bytes = packed_bytes(table, gemm_numbers),
          .sharing = Sharing::kModel};
}

/// Rounded copies of the FP8 matrices, beside a learner's masters.
double rounded_bytes(const TensorTable& table) {
  int64_t count = 0;
  for (const Parameter& parameter : table.parameters())
    if (is_fp8_matrix(parameter)) count += parameter.count;
  return kBytes * static_cast<double>(count);
}

/// Floats of one token's rows that a GEMM rounds to FP8: those of the widest.
int64_t rounded_width(const ModelConfig& config) {
  const AttentionSpec& attention = config.attention;
  int64_t width =
      std::max<int64_t>(config.hidden_size, int64_t{attention.num_heads} * attention.head_dim);
  width = std::max<int64_t>(width, config.mlp.width);
  if (!config.moe) return width;
  const int64_t k = config.moe->experts_per_token;
  return std::max(
      {width, k * config.hidden_size, k * config.moe->width, int64_t{config.moe->shared_width}});
}

/// The state of an optimizer of whole weights, and what its steps need.
void add_optimizer(const LearnerOptions& options, const TensorTable& table,
                   std::vector<MemoryPart>& parts) {
  const OptimizerPlan plan = plan_optimizer(options.optimizer, table);
  if (const double state = state_bytes(options.optimizer, plan); state > 0)
    parts.push_back({"optimizer moments", state});
  if (const int64_t scratch = scratch_floats(plan); scratch > 0)
    parts.push_back({"the largest matrix of an optimizer step, for each thread",
                     kBytes * static_cast<double>(scratch * std::max(options.threads, 1))});
}

/// Elements of one row of the stages' buffers; layers of the same form share theirs.
int64_t distinct_width(const ModelConfig& config,
                       std::vector<BufferSpec> (*specs_of)(const StageSpec&, int64_t)) {
  std::vector<std::vector<BufferSpec>> all;
  int64_t width = 0;
  for (const LayerSpec& layer : config.layers)
    for (const StageSpec& stage : layer.stages) {
      auto specs = specs_of(stage, config.hidden_size);
      if (std::ranges::find(all, specs) != all.end()) continue;
      width += width_of(specs);
      all.push_back(std::move(specs));
    }
  return width;
}

/// Beyond the bound they are in files.
double bytes_beside_slots(const EngineOptions& options, double bytes_of_one) {
  const double all = options.adapters_max * bytes_of_one;
  if (options.adapter_host_bytes_max == 0) return all;
  return std::min(all, static_cast<double>(options.adapter_host_bytes_max));
}

}  // namespace

double packed_bytes(const TensorTable& table, std::string_view numbers) {
  int64_t count = 0, count_bf16 = 0;
  for (const Parameter& parameter : table.parameters()) {
    const bool is_embedding = parameter.kind == ParameterKind::kEmbedding;
    const bool is_packed = parameter.shape.size() > 1 && (!is_embedding || table.is_tied());
    if (!is_packed || is_embedding) count += parameter.count;
    if (!is_packed) continue;
    const int64_t terms = parameter.shape.back(), columns = parameter.shape.rbegin()[1];
    const int64_t panels = (columns + kPackedColumns - 1) / kPackedColumns;
    const int64_t packed = parameter.count / (columns * terms) * panels * kPackedColumns;
    if (numbers == "bf16" && is_bf16_matrix(parameter, table.is_tied()))
      count_bf16 += packed * ((terms + kPackedBf16Terms - 1) / kPackedBf16Terms * kPackedBf16Terms);
    else
      count += packed * terms;
  }
  return kBytes * static_cast<double>(count) + kBytesOfBf16 * static_cast<double>(count_bf16);
}

std::vector<MemoryPart> engine_memory(const EngineOptions& options, const ModelConfig& config) {
  const TensorTable table(config);
  std::vector<MemoryPart> parts;
  if (options.adapter_slots == 0) {
    parts.push_back({"weights", packed_bytes(table, options.products)});
    if (options.has_second_set)
      parts.push_back({.what = "a second set of weights, for the next version",
                       .bytes = packed_bytes(table, options.products),
                       .is_optional = true});
  }
  if (options.adapter_slots > 0) {
    AdapterConfig widest{.rank = options.max_adapter_rank};
    if (targets_head(options.adapter_targets)) widest.targets.emplace_back(kHeadTarget);
    const AdapterTable largest(table, widest);
    parts.push_back(base_of(table, options.products));
    parts.push_back({fmt::format("{} adapter slots of rank {}", options.adapter_slots,
                                 options.max_adapter_rank),
                     options.adapter_slots * packed_bytes(largest.tensors())});
    if (options.adapters_max > options.adapter_slots)
      parts.push_back({fmt::format("{} adapters beside the slots", options.adapters_max),
                       bytes_beside_slots(options, bytes_of(largest.tensors()))});
  }
  parts.push_back(
      {fmt::format("{} KV blocks", options.kv_blocks),
       kv_layout(config, DataType::kF32).cache_bytes(options.kv_blocks, options.block_size)});
  if (options.routed_experts && config.moe)
    parts.push_back({"experts of the tokens in them",
                     static_cast<double>(options.kv_blocks) * options.block_size *
                         num_mixtures(config) * config.moe->experts_per_token *
                         (config.moe->num_experts > 256 ? 2 : 1)});
  const int64_t rows = std::max(options.max_batched_tokens, 1);
  const int64_t rounded = options.products == "fp8" ? rounded_width(config) : 0;
  const int64_t samples = std::min<int64_t>(rows, options.max_running);
  parts.push_back({fmt::format("activations of {} tokens, a step", rows),
                   kBytes * static_cast<double>(rows * (distinct_width(config, &activations_of) +
                                                        config.hidden_size + rounded))});
  parts.push_back(
      {fmt::format("logits of {} tokens", samples),
       kBytes * static_cast<double>(samples * (config.hidden_size + int64_t{config.vocab_size}))});
  return parts;
}

std::vector<MemoryPart> learner_memory(const LearnerOptions& options, const ModelConfig& config,
                                       const std::vector<TrainedAdapter>& adapters, int64_t rows) {
  const TensorTable table(config);
  const double bytes = bytes_of(table);
  std::vector<MemoryPart> parts;
  if (adapters.empty()) {
    parts = {{"weights, which it trains", bytes}, {"gradients", bytes}};
    add_optimizer(options, table, parts);
  } else if (options.numerics == "fast") {
    parts = {{"base weights of its own, as numerics = \"fast\" does not pack them", bytes}};
  } else {
    parts = {base_of(table, options.products)};
  }
  const bool is_fp8 = options.products == "fp8";
  if (is_fp8 && (adapters.empty() || options.numerics == "fast"))
    parts.push_back({"the matrices of layers, rounded to FP8", rounded_bytes(table)});
  for (const auto& [tenant, adapter, optimizer] : adapters) {
    const AdapterTable trained(table, adapter);
    parts.push_back({fmt::format("adapter of tenant '{}' (rank {}), its gradients and optimizer "
                                 "moments",
                                 tenant, adapter.rank),
                     2 * bytes_of(trained.tensors()) +
                         state_bytes(optimizer, plan_optimizer(optimizer, trained.tensors()))});
  }
  if (rows == 0) return parts;
  const int64_t hidden = config.hidden_size;
  const int64_t head_rows = std::min(rows, training_logits_rows(config.vocab_size));
  parts.push_back(
      {fmt::format("activations of {} tokens, a micro-batch", rows),
       kBytes * static_cast<double>(rows * (training_floats_per_row(config, options.recompute) +
                                            hidden + (is_fp8 ? rounded_width(config) : 0)))});
  parts.push_back(
      {fmt::format("logits of {} tokens", head_rows),
       kBytes * static_cast<double>(head_rows * (2 * hidden + int64_t{config.vocab_size}))});
  const auto saved_bytes = [](const OptimizerOptions& optimizer, const TensorTable& trained) {
    return bytes_of(trained) + state_bytes(optimizer, plan_optimizer(optimizer, trained));
  };
  double saved = adapters.empty() ? saved_bytes(options.optimizer, table) : 0;
  for (const auto& [tenant, adapter, optimizer] : adapters)
    saved += saved_bytes(optimizer, AdapterTable(table, adapter).tensors());
  parts.push_back(
      {"copy of what it trains and of the moments, while a checkpoint is written", saved});
  return parts;
}

int64_t training_floats_per_row(const ModelConfig& config, std::string_view recompute) {
  const int64_t hidden = config.hidden_size;
  const int64_t keys_and_values =
      int64_t{2} * config.attention.num_kv_heads * config.attention.head_dim;
  // After the last layer: its output, the norm's factor and result, and the residual's gradient.
  int64_t floats = 3 * hidden + 1 + distinct_width(config, &gradients_of);
  const bool keeps_all = recompute == "none";
  if (!keeps_all)  // one buffer of each form for all layers, and the rows between two stages
    floats += distinct_width(config, &activations_of) + keys_and_values + hidden;
  for (const LayerSpec& layer : config.layers) {
    floats += keeps_all ? keys_and_values : hidden;
    for (const StageSpec& stage : layer.stages) {
      const auto specs = activations_of(stage, hidden);
      if (keeps_all) floats += hidden + width_of(specs);
      if (recompute != "keep_attention") continue;
      for (const BufferSpec& spec : specs) floats += spec.is_attention_output ? spec.width : 0;
    }
  }
  return floats;
}

int64_t training_logits_rows(int64_t vocab_size) {
  constexpr int64_t kLogitsMax = int64_t{32} << 20;  // floats in a chunk of the head's logits
  constexpr int64_t kRowsMin = 48;                   // a GEMM of fewer rows reads the head's
                                                     // weights too often
  return std::max(kRowsMin, kLogitsMax / vocab_size);
}

std::vector<MemoryPart> versions_memory(const ModelConfig& config,
                                        const std::vector<TrainedAdapter>& adapters,
                                        int64_t versions) {
  const TensorTable table(config);
  double bytes = adapters.empty() ? bytes_of(table) : 0;
  for (const auto& [tenant, adapter, optimizer] : adapters)
    bytes += bytes_of(AdapterTable(table, adapter).tensors());
  return {{fmt::format("{} versions of the weights, and the next one", versions),
           static_cast<double>(versions + 1) * bytes}};
}

MemoryPart libraries_memory() {
  return {.what = "program, libtorch, threads and messages",
          .bytes = kLibrariesBytes,
          .sharing = Sharing::kProcess};
}

}  // namespace primerl
