/// Rotary embedding and attention; see ops.h for shapes. Compiled once per instruction set.
///
/// Attention walks the keys in tiles with a running maximum, so that nothing of the size of the
/// context is stored, and eight keys at a time, so that eight dot products share one reduction.
/// Tiles are counted from key 0: where a prompt was cut into chunks changes no bit.
#pragma once

#include "kernels/ops/expert_kernels.h"
#include "kernels/ops/linear_kernels.h"
#include "kernels/ops/row_kernels.h"

namespace primerl::PRIMERL_OPS_TARGET {

constexpr int64_t kTileKeys = 128;

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

/// One head of one query: where its keys and values are.
struct KeyView {
  const float* keys;  // of the key-value head
  const float* values;
  const int32_t* rows;  // [num_keys]
  int64_t num_keys;
  int64_t stride;  // floats from one cache row to the next
};

/// products[i] = x . matrix[rows[i]] for `count` keys, up to kTileKeys. kWidth = head_dim / 8, 0 =
/// ask.
template <int kWidth>
PRIMERL_INLINE void dot_keys(const float* x, const float* matrix, const int32_t* rows,
                             int64_t stride, int64_t count, int64_t width, float* products) {
  const int64_t lanes = kWidth > 0 ? kWidth : width;
  for (int64_t i = 0; i < count; i += kLanes) {
    Lanes sums[kLanes];
    for (int64_t k = 0; k < kLanes; ++k) {
      const int64_t key = i + k < count ? i + k : count - 1;
      const float* y = matrix + rows[key] * stride;
      Lanes sum = load(x) * load(y);
      for (int64_t w = 1; w < lanes; ++w) sum += load(x + w * kLanes) * load(y + w * kLanes);
      sums[k] = sum;
    }
    store(products + i, sums_of(sums));
  }
}

template <int kWidth>
PRIMERL_INLINE float attend(const float* q, const KeyView& view, float scale, int64_t width,
                            float* out) {
  const int64_t lanes = kWidth > 0 ? kWidth : width;
  float scores[kTileKeys];
  Lanes total[kHeadDimMax / kLanes];
  for (int64_t w = 0; w < lanes; ++w) total[w] = spread(0);
  float largest = -__builtin_inff(), sum = 0;
  for (int64_t begin = 0; begin < view.num_keys; begin += kTileKeys) {
    const int64_t left = view.num_keys - begin, count = left < kTileKeys ? left : kTileKeys;
    const int32_t* rows = view.rows + begin;
    dot_keys<kWidth>(q, view.keys, rows, view.stride, count, width, scores);
    float most = largest;
    for (int64_t i = 0; i < count; ++i) {
      scores[i] *= scale;
      most = scores[i] > most ? scores[i] : most;
    }
    if (begin > 0 && most > largest) {
      const float shrink = exp_of(spread(largest - most))[0];
      sum *= shrink;
      for (int64_t w = 0; w < lanes; ++w) total[w] *= shrink;
    }
    largest = most;
    Lanes tile_sum = spread(0);
    for (int64_t i = 0; i < count; i += kLanes) {
      const bool whole = i + kLanes <= count;
      const Lanes s =
          whole ? load(scores + i) : load_part(scores + i, count - i, -__builtin_inff());
      const Lanes e = exp_of(s - largest);
      tile_sum += e;
      store(scores + i, e);
    }
    sum += sum_of(tile_sum);
    for (int64_t i = 0; i < count; ++i) {
      const float* v = view.values + rows[i] * view.stride;
      for (int64_t w = 0; w < lanes; ++w) total[w] += scores[i] * load(v + w * kLanes);
    }
  }
  const float inverse = 1.0F / sum;
  for (int64_t w = 0; w < lanes; ++w) store(out + w * kLanes, total[w] * inverse);
  return largest + __builtin_logf(sum);
}

template <int kWidth>
static void attention_of(const AttentionArgs& args) {
  const auto [num_heads, num_kv_heads, d] = args.heads;
  const int32_t group = num_heads / num_kv_heads;
  for (int64_t s = 0; s < args.num_spans; ++s) {
    const AttentionSpan& span = args.spans[s];
    for (int32_t h = args.head_begin; h < args.head_end; ++h) {
      const int64_t offset = static_cast<int64_t>(h / group) * d;
      KeyView view{args.keys + offset, args.values + offset, args.kv_rows + span.kv_offset, 0,
                   static_cast<int64_t>(num_kv_heads) * d};
      for (int32_t i = 0; i < span.num_queries; ++i) {
        const int64_t at = static_cast<int64_t>(span.query_begin + i) * num_heads + h;
        view.num_keys = span.num_cached + i + 1;
        const float lse =
            attend<kWidth>(args.q + at * d, view, args.scale, d / kLanes, args.out + at * d);
        if (args.log_sum_exp != nullptr) args.log_sum_exp[at] = lse;
      }
    }
  }
}

/// What one head of one query gives back.
struct AttendBackward {
  const float* q;
  const float* out;
  const float* dout;
  float log_sum_exp;
  float scale;
  float* dq;
  float* dkeys;  // of the key-value head
  float* dvalues;
};

template <int kWidth>
PRIMERL_INLINE void attend_backward(const AttendBackward& a, const KeyView& view, int64_t width) {
  const int64_t lanes = kWidth > 0 ? kWidth : width;
  const float delta = dot(a.dout, a.out, lanes * kLanes);
  float weights[kTileKeys], slopes[kTileKeys];
  Lanes total[kHeadDimMax / kLanes];
  for (int64_t w = 0; w < lanes; ++w) total[w] = spread(0);
  for (int64_t begin = 0; begin < view.num_keys; begin += kTileKeys) {
    const int64_t left = view.num_keys - begin, count = left < kTileKeys ? left : kTileKeys;
    const int32_t* rows = view.rows + begin;
    dot_keys<kWidth>(a.q, view.keys, rows, view.stride, count, width, weights);
    dot_keys<kWidth>(a.dout, view.values, rows, view.stride, count, width, slopes);
    for (int64_t i = 0; i < count; i += kLanes) {
      const Lanes p = exp_of(load(weights + i) * a.scale - a.log_sum_exp);
      store(weights + i, p);
      store(slopes + i, p * (load(slopes + i) - delta) * a.scale);
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = rows[i] * view.stride;
      for (int64_t w = 0; w < lanes; ++w) {
        const int64_t c = w * kLanes;
        total[w] += slopes[i] * load(view.keys + at + c);
        store(a.dkeys + at + c, load(a.dkeys + at + c) + slopes[i] * load(a.q + c));
        store(a.dvalues + at + c, load(a.dvalues + at + c) + weights[i] * load(a.dout + c));
      }
    }
  }
  for (int64_t w = 0; w < lanes; ++w) store(a.dq + w * kLanes, total[w]);
}

template <int kWidth>
static void attention_backward_of(const AttentionBackwardArgs& args) {
  const AttentionArgs& forward = args.forward;
  const auto [num_heads, num_kv_heads, d] = forward.heads;
  const int32_t group = num_heads / num_kv_heads;
  for (int64_t s = 0; s < forward.num_spans; ++s) {
    const AttentionSpan& span = forward.spans[s];
    for (int32_t h = forward.head_begin; h < forward.head_end; ++h) {
      const int64_t offset = static_cast<int64_t>(h / group) * d;
      KeyView view{forward.keys + offset, forward.values + offset, forward.kv_rows + span.kv_offset,
                   0, static_cast<int64_t>(num_kv_heads) * d};
      for (int32_t i = 0; i < span.num_queries; ++i) {
        const int64_t at = static_cast<int64_t>(span.query_begin + i) * num_heads + h;
        view.num_keys = span.num_cached + i + 1;
        attend_backward<kWidth>(
            {forward.q + at * d, forward.out + at * d, args.dout + at * d, forward.log_sum_exp[at],
             forward.scale, args.dq + at * d, args.dkeys + offset, args.dvalues + offset},
            view, d / kLanes);
      }
    }
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

constexpr CpuOps table(const char* name) {
  return {name,
          rms_norm,
          rms_norm_backward,
          column_sums,
          rotary,
          rotary_backward,
          attention,
          attention_backward,
          swiglu,
          swiglu_backward,
          route,
          route_backward,
          gather_rows,
          combine_rows,
          dot_rows,
          softmax,
          softmax_backward,
          adamw,
          sum_of_squares,
          pack_linear,
          linear_rows};
}

}  // namespace primerl::PRIMERL_OPS_TARGET
