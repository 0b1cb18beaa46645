#include "kernels/cpu/stages/decoder.h"

#include <algorithm>
#include <cstring>

#include "kernels/common/parallel.h"

namespace primerl {

Decoder::Decoder(const ModelConfig& config, const DecoderWeights& weights)
    : config_(config),
      products_(weights.numerics()),
      adapters_(products_),
      tools_{cpu_ops(), products_,          adapters_,
             room_,     config.hidden_size, static_cast<float>(config.rms_norm_epsilon)},
      embedding_(weights.vector("embedding")),
      final_norm_{weights.vector("final_norm"), nullptr},
      weights_(weights),
      frequencies_(rope_frequencies(config.rope, config.attention.rotary_dim)) {
  for (size_t i = 0; i < config.layers.size(); ++i) {
    auto& stages = layers_.emplace_back();
    for (const auto& spec : config.layers[i].stages)
      stages.push_back(
          make_stage(spec, fmt::format("layers.{}.{}.", i, stage_name(spec)), weights, tools_));
  }
  head_.weight = weights.matrix(config.is_tied ? "embedding" : "head");
}

void Decoder::bind_gradients(float* flat) {
  const Parameters parameters{weights_, ""};
  dembedding_ = parameters.gradient(flat, "embedding");
  final_norm_.dweight = parameters.gradient(flat, "final_norm");
  head_.dweight = parameters.gradient(flat, config_.is_tied ? "embedding" : "head");
  for (auto& layer : layers_)
    for (auto& stage : layer) stage->bind_gradients(flat);
}

StepInput Decoder::begin(const RowBatch& batch) {
  adapters_.begin(batch);
  prepare_positions(1 + *std::max_element(batch.positions.begin(), batch.positions.end()));
  spans_.clear();
  kv_rows_.clear();
  const int32_t size = batch.block_size;
  for (const auto& span : batch.spans) {
    spans_.push_back({span.query_begin, span.num_queries, span.num_cached, span.kv_offset});
    if (size == 1) continue;
    spans_.back().kv_offset = static_cast<int32_t>(kv_rows_.size());
    const int32_t* block = batch.kv_blocks.data() + span.kv_offset;
    for (int32_t left = span.num_keys(); left > 0; left -= size, ++block)
      for (int32_t i = 0; i < std::min(left, size); ++i) kv_rows_.push_back(*block * size + i);
  }
  const int32_t* kv_rows = size == 1 ? batch.kv_blocks.data() : kv_rows_.data();
  // Sequences that share a prefix begin with the same key.
  const auto first_key = [&](const AttentionSpan& span) { return kv_rows[span.kv_offset]; };
  std::ranges::stable_sort(spans_, {}, first_key);
  family_ends_.clear();
  for (size_t i = 1; i <= spans_.size(); ++i)
    if (i == spans_.size() || first_key(spans_[i]) != first_key(spans_[i - 1]))
      family_ends_.push_back(static_cast<int64_t>(i));
  StepInput step;
  step.num_rows = batch.num_rows();
  step.batch = &batch;
  step.spans = spans_;
  step.kv_rows = kv_rows;
  step.family_ends = family_ends_;
  step.cosine = cosine_.data();
  step.sine = sine_.data();
  return step;
}

void Decoder::prepare_positions(int64_t count) {
  const auto half = static_cast<int64_t>(frequencies_.size());
  const auto ready = static_cast<int64_t>(cosine_.size()) / half;
  if (count <= ready) return;
  const int64_t wanted = std::max(count, 2 * ready);
  cosine_.resize(static_cast<size_t>(wanted * half));
  sine_.resize(static_cast<size_t>(wanted * half));
  write_rope_angles(config_.rope, frequencies_, ready, wanted, cosine_.data() + ready * half,
                    sine_.data() + ready * half);
}

void Decoder::embed(const RowBatch& batch, float* hidden) const {
  const int64_t width = config_.hidden_size, rows = batch.num_rows();
  share(rows, rows * width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      std::memcpy(hidden + row * width, embedding_ + batch.tokens[static_cast<size_t>(row)] * width,
                  static_cast<size_t>(width) * sizeof(float));
  });
}

/// Rows of one token add to the same table row, in order: each thread computes some columns of all
/// rows.
void Decoder::embed_backward(const RowBatch& batch, const float* dhidden) const {
  if (dembedding_ == nullptr) return;
  const int64_t width = config_.hidden_size;
  share(
      width, batch.num_rows() * width,
      [&](int64_t begin, int64_t end) {
        const float* from = dhidden;
        for (const int32_t token : batch.tokens) {
          float* to = dembedding_ + token * width;
          for (int64_t i = begin; i < end; ++i) to[i] += from[i];
          from += width;
        }
      },
      64);
}

}  // namespace primerl
