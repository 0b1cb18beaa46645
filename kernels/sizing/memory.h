/// The memory of engines and learners on the CPU, in fp32, by part. `check` counts it before
/// anything is allocated; the engine and the learner count it too. Plain functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/memory_part.h"
#include "kernels/engine/options.h"
#include "kernels/models/adapter.h"
#include "kernels/models/config.h"
#include "kernels/train/options.h"

namespace primerl {

/// Columns of the panels that CPU weights are packed into (kLinearPanel of kernels/ops).
inline constexpr int64_t kPackedColumns = 16;
/// Their terms are padded to a multiple of it in bf16 (kBf16Chunk).
inline constexpr int64_t kPackedBf16Terms = 32;
/// Bytes of packed weights, as engines, their adapters and frozen bases have them: matrices in
/// whole panels, and for a tied embedding an unpacked copy too. With `numbers` = "bf16" the bf16
/// matrices (bf16_matrices.h) have 2 bytes a number, and terms padded to 32.
double packed_bytes(const TensorTable& table, std::string_view numbers = "dtype");

/// Weights, KV blocks, adapter slots at their largest, and the rows and logits of a step. If there
/// are more adapters than slots, the copies beside the slots are counted too, up to
/// adapter_host_bytes_max. With slots, the
/// weights are a base that learners of adapters share. Without, a second set of weights receives
/// the next version while the first is in use, unless `has_second_set` is false.
std::vector<MemoryPart> engine_memory(const EngineOptions& options, const ModelConfig& config);

/// An adapter that a learner trains, its tenant and its optimizer.
struct TrainedAdapter {
  std::string tenant;
  AdapterConfig config;             // valid
  OptimizerOptions optimizer = {};  // valid
};
/// A learner of whole weights or, with `adapters`, of those adapters on a frozen base; with fast
/// numerics the base is not shared. `rows`: tokens of the largest micro-batch; 0: not counted.
std::vector<MemoryPart> learner_memory(const LearnerOptions& options, const ModelConfig& config,
                                       const std::vector<TrainedAdapter>& adapters, int64_t rows);

/// Floats that a learner keeps per token of a micro-batch (training_pass.h); depends on
/// `recompute`.
int64_t training_floats_per_row(const ModelConfig& config, std::string_view recompute);
/// Tokens whose logits a learner computes at a time (training/head.h).
int64_t training_logits_rows(int64_t vocab_size);

/// The snapshots of a channel that keeps `versions` of the weights, and the snapshot in progress.
std::vector<MemoryPart> versions_memory(const ModelConfig& config,
                                        const std::vector<TrainedAdapter>& adapters,
                                        int64_t versions);

/// Memory of a process that belongs to no engine or learner: program, libtorch, thread stacks,
/// messages.
MemoryPart libraries_memory();

}  // namespace primerl
