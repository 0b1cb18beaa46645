/// The backward of attention; see ops.h for shapes. Compiled once per instruction set.
///
/// Some queries and a strip of keys are computed together, so that a gradient row is read and
/// written once for all of them, and keys once for two queries. Each gradient is the sum over
/// heads, then queries, or over keys, in their order: the tiles change no bit.
#pragma once

#include "kernels/ops/attention_kernels.h"

namespace primerl::PRIMERL_OPS_TARGET {

/// Rows that are added to other rows, with a weight for each pair.
struct WeightedRows {
  const float* rows;      // of the first term
  int64_t stride;         // floats from one row to the next
  const float* weights;   // of the first term and target
  int64_t term_stride;    // floats from the weight of one term to that of the next
  int64_t target_stride;  // the same for targets
  int64_t count;          // terms
};

/// to[t] += sum over i, in order, of weight[t, i] * row i, for kTargets rows from one channel on.
template <int kTargets, int kChunks>
PRIMERL_INLINE void add_channels(const WeightedRows& from, int64_t channel, float* const* to) {
  Lanes sums[kTargets][kChunks];
  for (int t = 0; t < kTargets; ++t)
    for (int c = 0; c < kChunks; ++c) sums[t][c] = load(to[t] + channel + c * kLanes);
  const float* row = from.rows + channel;
  const float* weights = from.weights;
  for (int64_t i = 0; i < from.count; ++i, row += from.stride, weights += from.term_stride) {
    Lanes weight[kTargets];
    for (int t = 0; t < kTargets; ++t) weight[t] = spread(weights[t * from.target_stride]);
    for (int c = 0; c < kChunks; ++c) {
      const Lanes x = load(row + c * kLanes);
      for (int t = 0; t < kTargets; ++t) sums[t][c] = multiply_add(weight[t], x, sums[t][c]);
    }
  }
  for (int t = 0; t < kTargets; ++t)
    for (int c = 0; c < kChunks; ++c) store(to[t] + channel + c * kLanes, sums[t][c]);
}

/// The same for all channels.
template <int kTargets>
PRIMERL_INLINE void add_rows(const WeightedRows& from, int64_t head_dim, float* const* to) {
  constexpr int64_t kChunks = 4;
  int64_t c = 0;
  for (; c + kChunks * kLanes <= head_dim; c += kChunks * kLanes)
    add_channels<kTargets, kChunks>(from, c, to);
  for (; c < head_dim; c += kLanes) add_channels<kTargets, 1>(from, c, to);
}

/// One head of up to kTileQueries queries.
struct BackwardTile {
  QueryTile queries;         // q
  const float* out;          // of the first query, as dout and dq
  const float* dout;         //
  const float* log_sum_exp;  // of the first query
  int64_t num_heads;         // floats from the log_sum_exp of one query to that of the next
  float scale;
  float* dq;
  float deltas[kTileQueries];  // dout . out
};

/// Weights and score gradients of the queries of a tile for the keys of a strip.
struct BackwardScores {
  float weights[kTileQueries][kStripKeys];
  float gradients[kTileQueries][kStripKeys];
  int64_t counts[kTileQueries];  // keys of the strip that a query attends to; never falls
};

template <int kWidth>
PRIMERL_INLINE void score_strip(const BackwardTile& tile, int64_t first, const KeyRows& keys,
                                const KeyRows& values, int64_t d, BackwardScores& scores) {
  for (int32_t i = 0; i < tile.queries.count; ++i) {
    const int64_t count = seen_by(tile.queries, i, first, keys).count;
    scores.counts[i] = count;
    float* weights = scores.weights[i];
    float* gradients = scores.gradients[i];
    const float* q = tile.queries.q + i * tile.queries.stride;
    const float* dout = tile.dout + i * tile.queries.stride;
    dot_keys<kWidth>(q, seen_by(tile.queries, i, first, keys), d / kLanes, weights);
    dot_keys<kWidth>(dout, seen_by(tile.queries, i, first, values), d / kLanes, gradients);
    const float log_sum_exp = tile.log_sum_exp[i * tile.num_heads], delta = tile.deltas[i];
    for (int64_t k = 0; k < count; k += kLanes) {
      const Lanes p = exp_of(load(weights + k) * tile.scale - log_sum_exp);
      store(weights + k, p);
      store(gradients + k, p * (load(gradients + k) - delta) * tile.scale);
    }
  }
}

/// dq of the queries += score gradients * keys. Of two queries, the second attends to more keys.
PRIMERL_INLINE void add_to_queries(const BackwardTile& tile, const BackwardScores& scores,
                                   const KeyRows& keys, int64_t d) {
  const int64_t stride = tile.queries.stride;
  for (int32_t i = 0; i < tile.queries.count; i += 2) {
    const bool is_pair = i + 1 < tile.queries.count;
    float* const to[2] = {tile.dq + i * stride, tile.dq + (i + is_pair) * stride};
    const int64_t both = scores.counts[i], all = scores.counts[i + is_pair];
    WeightedRows from{keys.matrix, keys.stride, scores.gradients[i], 1, kStripKeys, both};
    if (!is_pair) {
      add_rows<1>(from, d, to);
      continue;
    }
    add_rows<2>(from, d, to);
    from.rows += both * keys.stride;
    from.weights += kStripKeys + both;
    from.count = all - both;
    if (from.count > 0) add_rows<1>(from, d, to + 1);
  }
}

/// Rows `to` of the keys of a strip += weights * rows of the queries. Of two keys, fewer queries
/// attend to the second.
PRIMERL_INLINE void add_to_keys(const BackwardTile& tile, const BackwardScores& scores,
                                const float (*weights)[kStripKeys], const float* rows,
                                const KeyRows& to, float* matrix, int64_t d) {
  const int64_t stride = tile.queries.stride, count = tile.queries.count;
  int64_t first = 0;  // the first query that attends to the key
  for (int64_t k = 0; k < to.count; k += 2) {
    const bool is_pair = k + 1 < to.count;
    while (first < count && scores.counts[first] <= k) ++first;
    int64_t both = first;
    while (both < count && scores.counts[both] <= k + is_pair) ++both;
    float* const pair[2] = {matrix + to.rows[k] * to.stride,
                            matrix + to.rows[k + is_pair] * to.stride};
    WeightedRows from{rows + first * stride, stride, weights[first] + k, kStripKeys, 1,
                      both - first};
    if (from.count > 0) add_rows<1>(from, d, pair);
    from = {rows + both * stride, stride, weights[both] + k, kStripKeys, 1, count - both};
    if (from.count == 0) continue;
    if (is_pair)
      add_rows<2>(from, d, pair);
    else
      add_rows<1>(from, d, pair);
  }
}

/// One head of all queries of a span.
template <int kWidth>
static void attend_backward(const AttentionBackwardArgs& args, const AttentionSpan& span,
                            int32_t h) {
  const AttentionArgs& forward = args.forward;
  const auto [num_heads, num_kv_heads, head_dim] = forward.heads;
  const int64_t d = kWidth > 0 ? kWidth * kLanes : head_dim;
  const int64_t offset = static_cast<int64_t>(h / (num_heads / num_kv_heads)) * d;
  const int64_t kv_stride = static_cast<int64_t>(num_kv_heads) * d, stride = num_heads * d;
  const int32_t* rows = forward.kv_rows + span.kv_offset;
  StripCopy key_copy, value_copy;
  BackwardScores scores;
  for (int32_t first = 0; first < span.num_queries; first += kTileQueries) {
    const int32_t left = span.num_queries - first;
    const int64_t at = static_cast<int64_t>(span.query_begin + first) * num_heads + h;
    BackwardTile tile{{forward.q + at * d, stride, left < kTileQueries ? left : kTileQueries,
                       static_cast<int64_t>(span.num_cached) + first + 1},
                      forward.out + at * d,
                      args.dout + at * d,
                      forward.log_sum_exp + at,
                      num_heads,
                      forward.scale,
                      args.dq + at * d,
                      {}};
    for (int32_t i = 0; i < tile.queries.count; ++i) {
      tile.deltas[i] = dot(tile.dout + i * stride, tile.out + i * stride, d);
      for (int64_t c = 0; c < d; c += kLanes) store(tile.dq + i * stride + c, spread(0));
    }
    const int64_t num_keys = tile.queries.num_keys + tile.queries.count - 1;
    const KeyRows keys{forward.keys + offset, rows, num_keys, kv_stride};
    const KeyRows values{forward.values + offset, rows, num_keys, kv_stride};
    for (int64_t begin = 0; begin < num_keys; begin += kStripKeys) {
      const KeyRows some_keys = strip_of(keys, begin, d, &key_copy);
      score_strip<kWidth>(tile, begin, some_keys, strip_of(values, begin, d, &value_copy), d,
                          scores);
      add_to_queries(tile, scores, some_keys, d);
      const KeyRows to{nullptr, rows + begin, some_keys.count, kv_stride};
      add_to_keys(tile, scores, scores.gradients, tile.queries.q, to, args.dkeys + offset, d);
      add_to_keys(tile, scores, scores.weights, tile.dout, to, args.dvalues + offset, d);
    }
  }
}

template <int kWidth>
static void attention_backward_of(const AttentionBackwardArgs& args) {
  for (int64_t s = 0; s < args.forward.num_spans; ++s)
    for (int32_t h = args.forward.head_begin; h < args.forward.head_end; ++h)
      attend_backward<kWidth>(args, args.forward.spans[s], h);
}

static void attention_backward(const AttentionBackwardArgs& args) {
  switch (args.forward.heads.head_dim) {
    case 32:
      return attention_backward_of<4>(args);
    case 64:
      return attention_backward_of<8>(args);
    case 128:
      return attention_backward_of<16>(args);
    default:
      return attention_backward_of<0>(args);
  }
}

}  // namespace primerl::PRIMERL_OPS_TARGET
