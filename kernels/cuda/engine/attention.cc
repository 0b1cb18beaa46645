#include "kernels/cuda/engine/attention.h"

#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace primerl {
namespace {

constexpr int64_t kGatheredKeysMax = int64_t{1} << 18;  // of a group, except for a single long span
constexpr int64_t kScoresMax = int64_t{1} << 26;        // fp32 scores at a time
constexpr int32_t kDecodeBlockMin = 16;

}  // namespace

bool has_decode_attention(const AttentionSpec& spec, int32_t block_size) {
  const int32_t d = spec.head_dim;
  return (d == 64 || d == 128 || d == 256) && block_size >= kDecodeBlockMin &&
         std::has_single_bit(static_cast<uint32_t>(block_size));
}

float CudaAttention::scale() const {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec_.head_dim)));
}

cuda::DecodeAttentionArgs CudaAttention::decode_args(const DecodeRows& rows,
                                                     const CudaKvCache& cache, size_t layer,
                                                     cuda::Type type,
                                                     const at::Tensor& attended) const {
  return {.rows = rows.count,
          .heads = {spec_.num_heads, spec_.num_kv_heads, spec_.head_dim},
          .scale = scale(),
          .type = type,
          .cache = cache.paged(layer, cache.block_size, spec_.head_dim),
          .block_table = rows.block_table,
          .table_stride = rows.table_stride,
          .lengths = rows.lengths,
          .length_max = rows.keys_max,
          .num_splits = rows.num_splits,
          .out = attended.mutable_data_ptr(),
          .workspace = rows.workspace};
}

Status CudaAttention::decode(const DecodeRows& rows, const CudaKvCache& cache, size_t layer,
                             cuda::Type type, const at::Tensor& queries,
                             const at::Tensor& attended) const {
  auto args = decode_args(rows, cache, layer, type, attended);
  args.q = queries.const_data_ptr();
  return launched(cuda::decode_attention(args, stream_.raw()), "decode_attention");
}

Status CudaAttention::rope_and_decode(const cuda::PagedRotaryArgs& rope, const DecodeRows& rows,
                                      const CudaKvCache& cache, size_t layer,
                                      const at::Tensor& attended) const {
  const auto args = decode_args(rows, cache, layer, rope.type, attended);
  return launched(cuda::rope_decode_attention(rope, args, stream_.raw()), "rope_decode_attention");
}

void CudaAttention::begin(const RowBatch& batch, size_t num_decoded) {
  groups_.clear();
  SpanGroup group;
  std::vector<int32_t> slots;
  for (size_t i = num_decoded; i < batch.spans.size(); ++i) {
    const RowSpan& span = batch.spans[i];
    const int64_t keys = span.num_keys();
    if (!group.spans.empty() && group.num_keys + keys > kGatheredKeysMax) {
      finish(std::move(group), slots);
      group = {};
      slots.clear();
    }
    if (group.spans.empty()) group.first_row = span.query_begin;
    const int32_t* block = batch.kv_blocks.data() + span.kv_offset;
    for (int32_t left = span.num_keys(); left > 0; left -= batch.block_size, ++block)
      for (int32_t j = 0; j < std::min(left, batch.block_size); ++j)
        slots.push_back(*block * batch.block_size + j);
    group.spans.push_back(span);
    group.num_rows += span.num_queries;
    group.num_keys += keys;
    group.queries_max = std::max<int64_t>(group.queries_max, span.num_queries);
    group.keys_max = std::max(group.keys_max, keys);
  }
  if (!group.spans.empty()) finish(std::move(group), slots);
}

void CudaAttention::finish(SpanGroup group, const std::vector<int32_t>& slots) {
  const auto jump = std::adjacent_find(slots.begin(), slots.end(),
                                       [](int32_t a, int32_t b) { return b != a + 1; });
  if (jump == slots.end())
    group.first_slot = slots.front();
  else
    group.slots = stream_.ints(slots);
  std::vector<int32_t> query_ends = {0}, key_ends = {0};
  for (const RowSpan& span : group.spans) {
    query_ends.push_back(query_ends.back() + span.num_queries);
    key_ends.push_back(key_ends.back() + span.num_keys());
  }
  group.query_ends = stream_.ints(query_ends);
  group.key_ends = stream_.ints(key_ends);
  groups_.push_back(std::move(group));
}

/// [keys, num_kv_heads, head_dim] of a layer's [cache rows, num_kv_heads * head_dim].
at::Tensor CudaAttention::gathered(const SpanGroup& group, const at::Tensor& layer) const {
  const at::Tensor rows = group.first_slot >= 0 ? layer.narrow(0, group.first_slot, group.num_keys)
                                                : at::index_select(layer, 0, group.slots);
  return rows.view({group.num_keys, spec_.num_kv_heads, spec_.head_dim});
}

void CudaAttention::attend(const CudaKvCache& cache, size_t layer, const at::Tensor& queries,
                           const at::Tensor& attended) const {
  const auto at = static_cast<int64_t>(layer);
  for (const SpanGroup& group : groups_) {
    const at::Tensor q = queries.narrow(0, group.first_row, group.num_rows)
                             .view({group.num_rows, spec_.num_heads, spec_.head_dim});
    at::Tensor out = attended.narrow(0, group.first_row, group.num_rows)
                         .view({group.num_rows, spec_.num_heads, spec_.head_dim});
    const at::Tensor keys = gathered(group, cache.keys.select(0, at));
    const at::Tensor values = gathered(group, cache.values.select(0, at));
    if (q.scalar_type() == at::kFloat) {
      attend_exactly(group, q, keys, values, out);
      continue;
    }
    // The last query of a span attends to all its keys: causal masks are aligned to the end.
    out.copy_(std::get<0>(at::_flash_attention_forward(
        q, keys, values, group.query_ends, group.key_ends, group.queries_max, group.keys_max, 0.0,
        true, false, static_cast<double>(scale()))));
  }
}

/// For fp32: softmax(q k' + mask) v, a few queries of one span at a time.
void CudaAttention::attend_exactly(const SpanGroup& group, const at::Tensor& queries,
                                   const at::Tensor& keys, const at::Tensor& values,
                                   const at::Tensor& attended) const {
  const int64_t kv_heads = spec_.num_kv_heads, shared = spec_.num_heads / kv_heads;
  const int64_t d = spec_.head_dim;
  const auto options = at::TensorOptions(stream_.device()).dtype(at::kLong);
  int64_t first_key = 0, first_row = 0;
  for (const RowSpan& span : group.spans) {
    const int64_t num_keys = span.num_keys();
    // [kv_heads, head_dim, keys], [kv_heads, keys, head_dim]
    const at::Tensor k = keys.narrow(0, first_key, num_keys).permute({1, 2, 0});
    const at::Tensor v = values.narrow(0, first_key, num_keys).permute({1, 0, 2});
    const at::Tensor key_indices = at::arange(num_keys, options);
    const int64_t part = std::max<int64_t>(1, kScoresMax / (spec_.num_heads * num_keys));
    for (int64_t begin = 0; begin < span.num_queries; begin += part) {
      const int64_t count = std::min<int64_t>(part, span.num_queries - begin);
      const at::Tensor q = queries.narrow(0, first_row + begin, count)
                               .view({count, kv_heads, shared, d})
                               .permute({1, 2, 0, 3})
                               .reshape({kv_heads, shared * count, d});
      at::Tensor scores = at::bmm(q, k).mul_(scale()).view({kv_heads, shared, count, num_keys});
      const at::Tensor last =
          at::arange(span.num_cached + begin, span.num_cached + begin + count, options);
      scores.masked_fill_(key_indices.unsqueeze(0).gt(last.unsqueeze(1)),
                          -std::numeric_limits<float>::infinity());
      const at::Tensor weights = at::softmax(scores, -1).view({kv_heads, shared * count, num_keys});
      at::Tensor to =
          attended.narrow(0, first_row + begin, count).view({count, kv_heads, shared, d});
      to.copy_(at::bmm(weights, v).view({kv_heads, shared, count, d}).permute({2, 0, 1, 3}));
    }
    first_key += num_keys;
    first_row += span.num_queries;
  }
}

}  // namespace primerl
