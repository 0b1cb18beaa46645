/// Rotary embedding and attention; see ops.h for shapes. Compiled once per instruction set.
///
/// Attention walks the keys in tiles with a running maximum, so that no buffer has the size of the
/// context. It processes eight keys at a time, so that eight dot products share one reduction.
/// Tiles are counted from key 0, so the chunks of a prompt change no bit. Several queries, and two
/// heads that share keys, use one tile, in strips that fit the L1 cache. The arithmetic of a query
/// and head is the same for any number of them.
#pragma once

#include "kernels/ops/row_kernels.h"

namespace primerl::PRIMERL_OPS_TARGET {

constexpr int64_t kTileKeys = 128;
constexpr int64_t kStripKeys = 32;
constexpr int32_t kTileQueries = 16;
constexpr int32_t kCopyQueries = 4;  // from this many queries on, a copy of the keys pays off

struct HeadView {
  const float* x;
  const float* weight;  // null: no norm
  const float* cosine;
  const float* sine;
  int32_t head_dim;
  int32_t rotary_dim;
  float epsilon;
};

PRIMERL_INLINE void rotate_head(const HeadView& head, float* out) {
  const int32_t half = head.rotary_dim / 2;
  float scaled[kHeadDimMax];
  const float* x = head.x;
  if (head.weight != nullptr) {
    const float inverse = inverse_rms_of(x, head.head_dim, head.epsilon);
    for (int32_t i = 0; i < head.head_dim; ++i) scaled[i] = (x[i] * inverse) * head.weight[i];
    x = scaled;
  }
  for (int32_t i = 0; i < half; ++i) {
    out[i] = x[i] * head.cosine[i] - x[i + half] * head.sine[i];
    out[i + half] = x[i + half] * head.cosine[i] + x[i] * head.sine[i];
  }
  for (int32_t i = head.rotary_dim; i < head.head_dim; ++i) out[i] = x[i];
}

static void rotary(const RotaryArgs& args) {
  const auto [num_heads, num_kv_heads, d] = args.heads;
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* x = args.qkv + row * (num_heads + 2 * num_kv_heads) * d;
    const int64_t angle = static_cast<int64_t>(args.positions[row]) * (args.rotary_dim / 2);
    const int64_t cached = static_cast<int64_t>(args.cache_rows[row]) * num_kv_heads * d;
    HeadView head{x, args.q_weight,   args.cosine + angle, args.sine + angle,
                  d, args.rotary_dim, args.epsilon};
    for (int32_t h = 0; h < num_heads; ++h, head.x += d)
      rotate_head(head, args.q + (row * num_heads + h) * d);
    head.weight = args.k_weight;
    for (int32_t h = 0; h < num_kv_heads; ++h, head.x += d)
      rotate_head(head, args.keys + cached + h * d);
    for (int32_t i = 0; i < num_kv_heads * d; ++i) args.values[cached + i] = head.x[i];
  }
}

PRIMERL_INLINE void rotate_head_backward(const HeadView& head, const float* dout, float* dx,
                                         float* dweight) {
  const int32_t d = head.head_dim, half = head.rotary_dim / 2;
  float turned[kHeadDimMax];
  for (int32_t i = 0; i < half; ++i) {
    turned[i] = dout[i] * head.cosine[i] + dout[i + half] * head.sine[i];
    turned[i + half] = dout[i + half] * head.cosine[i] - dout[i] * head.sine[i];
  }
  for (int32_t i = head.rotary_dim; i < d; ++i) turned[i] = dout[i];
  if (head.weight == nullptr) {
    for (int32_t i = 0; i < d; ++i) dx[i] = turned[i];
    return;
  }
  const float inverse = inverse_rms_of(head.x, d, head.epsilon);
  Lanes sum = spread(0);
  for (int32_t i = 0; i < d; i += kLanes)
    sum += load(turned + i) * load(head.weight + i) * load(head.x + i);
  const float mean = sum_of(sum) * inverse * inverse / static_cast<float>(d);
  for (int32_t i = 0; i < d; ++i) {
    dx[i] = inverse * (turned[i] * head.weight[i] - head.x[i] * mean);
    dweight[i] += turned[i] * (head.x[i] * inverse);
  }
}

static void rotary_backward(const RotaryBackwardArgs& args) {
  const auto [num_heads, num_kv_heads, d] = args.heads;
  for (int64_t row = 0; row < args.rows; ++row) {
    const int64_t begin = row * (num_heads + 2 * num_kv_heads) * d;
    const int64_t angle = static_cast<int64_t>(args.positions[row]) * (args.rotary_dim / 2);
    HeadView head{args.qkv + begin, args.q_weight, args.cosine + angle, args.sine + angle, d,
                  args.rotary_dim,  args.epsilon};
    float* dx = args.dqkv + begin;
    for (int32_t h = 0; h < num_heads; ++h, head.x += d, dx += d)
      rotate_head_backward(head, args.dq + (row * num_heads + h) * d, dx, args.dq_weight);
    head.weight = args.k_weight;
    for (int32_t h = 0; h < num_kv_heads; ++h, head.x += d, dx += d)
      rotate_head_backward(head, args.dkeys + (row * num_kv_heads + h) * d, dx, args.dk_weight);
    for (int32_t i = 0; i < num_kv_heads * d; ++i) dx[i] = args.dvalues[row * num_kv_heads * d + i];
  }
}

/// Keys or values of a key-value head.
struct KeyRows {
  const float* matrix;
  const int32_t* rows;  // [count]
  int64_t count;
  int64_t stride;  // floats from one row of the matrix to the next
};

/// products[i] = x . matrix[rows[i]]. kWidth = head_dim / 8; 0: use the runtime value. Writes up to
/// the next multiple of kLanes.
template <int kWidth>
PRIMERL_INLINE void dot_keys(const float* x, const KeyRows& keys, int64_t width, float* products) {
  const int64_t d = (kWidth > 0 ? kWidth : width) * kLanes;
  for (int64_t i = 0; i < keys.count; i += kLanes) {
    const float* y[kLanes];
    for (int64_t k = 0; k < kLanes; ++k)
      y[k] = keys.matrix + keys.rows[i + k < keys.count ? i + k : keys.count - 1] * keys.stride;
    Lanes sums[kLanes];
    for (int64_t k = 0; k < kLanes; ++k) sums[k] = load(x) * load(y[k]);
    for (int64_t c = kLanes; c < d; c += kLanes)
      for (int64_t k = 0; k < kLanes; ++k)
        sums[k] = multiply_add(load(x + c), load(y[k] + c), sums[k]);
    store(products + i, sums_of(sums));
  }
}

/// Softmax state of one head of one query over the keys so far.
struct Attended {
  float largest = -__builtin_inff();  // score
  float sum = 0;                      // of e^(score - largest)
  float total[kHeadDimMax] = {};      // sum of these times the values
};

/// Turns scores into weights, in place. Earlier sums are rescaled if a larger score appears.
PRIMERL_INLINE void weigh(float* scores, int64_t count, float scale, int64_t head_dim,
                          Attended& state) {
  Lanes larger = spread(state.largest);
  for (int64_t i = 0; i < count; i += kLanes) {
    const bool whole = i + kLanes <= count;
    const Lanes s =
        (whole ? load(scores + i) : load_part(scores + i, count - i, -__builtin_inff())) * scale;
    larger = larger_of(s, larger);
    store(scores + i, s);
  }
  const float most = largest_of(larger);
  if (most > state.largest) {
    const float shrink = exp_of(spread(state.largest - most))[0];
    state.sum *= shrink;
    for (int64_t c = 0; c < head_dim; c += kLanes)
      store(state.total + c, load(state.total + c) * shrink);
  }
  state.largest = most;
  Lanes sum = spread(0);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Lanes e = exp_of(load(scores + i) - most);
    sum += e;
    store(scores + i, e);
  }
  state.sum += sum_of(sum);
}

/// total += weights[i] * value i, for some channels of kHeads heads, whose weights are kTileKeys
/// apart.
template <int kHeads, int kChunks>
PRIMERL_INLINE void add_values(const float* weights, const KeyRows& values, int64_t channel,
                               Attended* states) {
  Lanes total[kHeads][kChunks];
  for (int h = 0; h < kHeads; ++h)
    for (int c = 0; c < kChunks; ++c) total[h][c] = load(states[h].total + channel + c * kLanes);
  for (int64_t i = 0; i < values.count; ++i) {
    const float* v = values.matrix + values.rows[i] * values.stride + channel;
    for (int c = 0; c < kChunks; ++c) {
      const Lanes value = load(v + c * kLanes);
      for (int h = 0; h < kHeads; ++h)
        total[h][c] = multiply_add(spread(weights[h * kTileKeys + i]), value, total[h][c]);
    }
  }
  for (int h = 0; h < kHeads; ++h)
    for (int c = 0; c < kChunks; ++c) store(states[h].total + channel + c * kLanes, total[h][c]);
}

/// Space for a dense copy of kStripKeys keys or values. In the cache, rows of one head are a power
/// of two apart and would share few sets of the CPU's cache.
struct StripCopy {
  float matrix[kStripKeys * kHeadDimMax];
  int32_t rows[kStripKeys];
};

/// The strip that starts at `first`: in place or, if `copy` is given, as a copy.
PRIMERL_INLINE KeyRows strip_of(const KeyRows& all, int64_t first, int64_t d, StripCopy* copy) {
  const int64_t left = all.count - first, count = left < kStripKeys ? left : kStripKeys;
  if (copy == nullptr) return {all.matrix, all.rows + first, count, all.stride};
  for (int64_t i = 0; i < count; ++i) {
    const float* from = all.matrix + all.rows[first + i] * all.stride;
    for (int64_t c = 0; c < d; c += kLanes) store(copy->matrix + i * d + c, load(from + c));
    copy->rows[i] = static_cast<int32_t>(i);
  }
  return {copy->matrix, copy->rows, count, d};
}

/// Up to kTileQueries queries of a span.
struct QueryTile {
  const float* q;  // of the first query and head
  int64_t stride;  // floats from one query to the next
  int32_t count;
  int64_t num_keys;  // that the first query attends to; each further query attends to one more
};

/// The part of `keys`, which start at key `first`, that query i attends to; may be empty.
PRIMERL_INLINE KeyRows seen_by(const QueryTile& tile, int32_t i, int64_t first, KeyRows keys) {
  const int64_t left = tile.num_keys + i - first;
  if (left < keys.count) keys.count = left > 0 ? left : 0;
  return keys;
}

/// A tile of keys, from `begin` on, for kHeads adjacent heads.
template <int kWidth, int kHeads>
PRIMERL_INLINE void attend_tile(const QueryTile& tile, const KeyRows& keys, const KeyRows& values,
                                int64_t begin, float scale, int64_t head_dim,
                                Attended (*states)[kHeads]) {
  constexpr int64_t kChunks = 4;
  const int64_t d = kWidth > 0 ? kWidth * kLanes : head_dim;
  float weights[kTileQueries][kHeads * kTileKeys];
  StripCopy room;
  StripCopy* copy = tile.count >= kCopyQueries ? &room : nullptr;
  for (int64_t first = 0; first < keys.count; first += kStripKeys) {
    const KeyRows part = strip_of(keys, first, d, copy);
    for (int32_t i = 0; i < tile.count; ++i) {
      const KeyRows seen = seen_by(tile, i, begin + first, part);
      for (int h = 0; h < kHeads; ++h)
        dot_keys<kWidth>(tile.q + i * tile.stride + h * d, seen, d / kLanes,
                         weights[i] + h * kTileKeys + first);
    }
  }
  for (int32_t i = 0; i < tile.count; ++i) {
    const int64_t count = seen_by(tile, i, begin, keys).count;
    for (int h = 0; h < kHeads && count > 0; ++h)
      weigh(weights[i] + h * kTileKeys, count, scale, d, states[i][h]);
  }
  for (int64_t first = 0; first < values.count; first += kStripKeys) {
    const KeyRows part = strip_of(values, first, d, copy);
    for (int32_t i = 0; i < tile.count; ++i) {
      const KeyRows seen = seen_by(tile, i, begin + first, part);
      int64_t c = 0;
      for (; c + kChunks * kLanes <= d; c += kChunks * kLanes)
        add_values<kHeads, kChunks>(weights[i] + first, seen, c, states[i]);
      for (; c < d; c += kLanes) add_values<kHeads, 1>(weights[i] + first, seen, c, states[i]);
    }
  }
}

/// kHeads heads from h on, for all queries of a span. Keys are processed tile by tile, each tile
/// for kTileQueries queries, so that memory is read once for all of them.
template <int kWidth, int kHeads>
static void attend(const AttentionArgs& args, const AttentionSpan& span, int32_t h) {
  const auto [num_heads, num_kv_heads, d] = args.heads;
  const int64_t offset = static_cast<int64_t>(h / (num_heads / num_kv_heads)) * d;
  const int64_t stride = static_cast<int64_t>(num_kv_heads) * d;
  const int32_t* rows = args.kv_rows + span.kv_offset;
  Attended states[kTileQueries][kHeads];
  for (int32_t first = 0; first < span.num_queries; first += kTileQueries) {
    const int32_t left = span.num_queries - first;
    const int64_t at = static_cast<int64_t>(span.query_begin + first) * num_heads + h;
    const QueryTile tile{args.q + at * d, static_cast<int64_t>(num_heads) * d,
                         left < kTileQueries ? left : kTileQueries,
                         static_cast<int64_t>(span.num_cached) + first + 1};
    for (int32_t i = 0; i < tile.count; ++i)
      for (int k = 0; k < kHeads; ++k) states[i][k] = {};
    const int64_t num_keys = tile.num_keys + tile.count - 1;
    for (int64_t begin = 0; begin < num_keys; begin += kTileKeys) {
      const int64_t count = num_keys - begin < kTileKeys ? num_keys - begin : kTileKeys;
      attend_tile<kWidth, kHeads>(tile, {args.keys + offset, rows + begin, count, stride},
                                  {args.values + offset, rows + begin, count, stride}, begin,
                                  args.scale, d, states);
    }
    for (int32_t i = 0; i < tile.count; ++i)
      for (int k = 0; k < kHeads; ++k) {
        const Attended& state = states[i][k];
        const int64_t to = at + static_cast<int64_t>(i) * num_heads + k;
        const float inverse = 1.0F / state.sum;
        for (int64_t c = 0; c < d; c += kLanes)
          store(args.out + to * d + c, load(state.total + c) * inverse);
        if (args.log_sum_exp != nullptr)
          args.log_sum_exp[to] = state.largest + __builtin_logf(state.sum);
      }
  }
}

template <int kWidth>
static void attention_of(const AttentionArgs& args) {
  const int32_t group = args.heads.num_heads / args.heads.num_kv_heads;
  for (int64_t s = 0; s < args.num_spans; ++s)
    for (int32_t h = args.head_begin; h < args.head_end;) {
      const bool is_pair = h + 1 < args.head_end && (h + 1) % group != 0;
      if (is_pair)
        attend<kWidth, 2>(args, args.spans[s], h);
      else
        attend<kWidth, 1>(args, args.spans[s], h);
      h += is_pair ? 2 : 1;
    }
}

static void attention(const AttentionArgs& args) {
  switch (args.heads.head_dim) {
    case 32:
      return attention_of<4>(args);
    case 64:
      return attention_of<8>(args);
    case 128:
      return attention_of<16>(args);
    default:
      return attention_of<0>(args);
  }
}

}  // namespace primerl::PRIMERL_OPS_TARGET
