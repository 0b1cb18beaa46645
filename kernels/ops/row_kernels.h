/// Norm, SwiGLU, softmax and AdamW; see ops.h for shapes. Compiled once per instruction set.
#pragma once

#include "kernels/ops/lanes.h"
#include "kernels/ops/ops.h"

namespace primerl::PRIMERL_OPS_TARGET {

PRIMERL_INLINE float dot(const float* a, const float* b, int64_t width) {
  Lanes sum = spread(0);
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) sum += load(a + i) * load(b + i);
  sum += load_part(a + i, width - i, 0) * load_part(b + i, width - i, 0);
  return sum_of(sum);
}

PRIMERL_INLINE float inverse_rms_of(const float* x, int64_t width, float epsilon) {
  return 1.0F / __builtin_sqrtf(dot(x, x, width) / static_cast<float>(width) + epsilon);
}

static void rms_norm(const RmsNormArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* x = args.x + row * args.width;
    float* y = args.y + row * args.width;
    const float inverse = inverse_rms_of(x, args.width, args.epsilon);
    if (args.inverse_rms != nullptr) args.inverse_rms[row] = inverse;
    for (int64_t i = 0; i < args.width; ++i) y[i] = (x[i] * inverse) * args.weight[i];
  }
}

static void rms_norm_backward(const RmsNormBackwardArgs& args) {
  const int64_t width = args.width;
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* x = args.x + row * width;
    const float* dy = args.dy + row * width;
    float* dx = args.dx + row * width;
    const float inverse = args.inverse_rms[row];
    Lanes sum = spread(0);
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
      sum += load(dy + i) * load(args.weight + i) * load(x + i);
    for (; i < width; ++i) sum[0] += dy[i] * args.weight[i] * x[i];
    const float mean = sum_of(sum) * inverse * inverse / static_cast<float>(width);
    for (int64_t j = 0; j < width; ++j) {
      dx[j] += inverse * (dy[j] * args.weight[j] - x[j] * mean);
      args.dweight[j] += dy[j] * (x[j] * inverse);
    }
  }
}

static void column_sums(const ColumnSumsArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* x = args.x + row * args.x_stride;
    for (int64_t i = 0; i < args.columns; ++i) args.sums[i] += x[i];
  }
}

PRIMERL_INLINE Lanes sigmoid(Lanes x) { return 1.0F / (1.0F + exp_of(-x)); }

static void swiglu(const SwigluArgs& args) {
  const int64_t width = args.width;
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* gate = args.gate_up + row * 2 * width;
    const float* up = gate + width;
    float* out = args.activated + row * width;
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      const Lanes g = load(gate + i);
      store(out + i, g * sigmoid(g) * load(up + i));
    }
    const int64_t rest = width - i;
    const Lanes g = load_part(gate + i, rest, 0);
    store_part(out + i, g * sigmoid(g) * load_part(up + i, rest, 0), rest);
  }
}

static void swiglu_backward(const SwigluBackwardArgs& args) {
  const int64_t width = args.width;
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* gate = args.gate_up + row * 2 * width;
    const float* dout = args.dactivated + row * width;
    float* dgate = args.dgate_up + row * 2 * width;
    for (int64_t i = 0; i < width; i += kLanes) {
      const int64_t count = width - i < kLanes ? width - i : kLanes;
      const bool whole = count == kLanes;
      const Lanes g = whole ? load(gate + i) : load_part(gate + i, count, 0);
      const Lanes u = whole ? load(gate + width + i) : load_part(gate + width + i, count, 0);
      const Lanes d = whole ? load(dout + i) : load_part(dout + i, count, 0);
      const Lanes s = sigmoid(g);
      const Lanes dg = d * u * s * (1.0F + g * (1.0F - s)), du = d * g * s;
      if (whole) {
        store(dgate + i, dg);
        store(dgate + width + i, du);
      } else {
        store_part(dgate + i, dg, count);
        store_part(dgate + width + i, du, count);
      }
    }
  }
}

static SoftmaxStats softmax(const SoftmaxArgs& args) {
  const int64_t size = args.vocab_size, whole = size - size % kLanes;
  const float scale = args.inverse_temperature, lowest = -__builtin_inff();
  Lanes most = load_part(args.logits + whole, size - whole, lowest) * scale;
  for (int64_t i = 0; i < whole; i += kLanes) most = larger_of(most, load(args.logits + i) * scale);
  const float largest = largest_of(most);
  Lanes sum = spread(0), weighted = spread(0);
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Lanes z = load(args.logits + i) * scale - largest, e = exp_of(z);
    if (args.weights != nullptr) store(args.weights + i, e);
    sum += e;
    weighted += e * (e > 0 ? z : spread(0));
  }
  for (int64_t i = whole; i < size; ++i) {
    const Lanes z = spread(args.logits[i] * scale - largest), e = exp_of(z);
    if (args.weights != nullptr) args.weights[i] = e[0];
    sum[0] += e[0];
    weighted[0] += e[0] > 0 ? e[0] * z[0] : 0;
  }
  SoftmaxStats stats;
  stats.largest = largest;
  stats.sum = sum_of(sum);
  const float log_sum = __builtin_logf(stats.sum);
  stats.log_normalizer = largest + log_sum;
  stats.entropy = log_sum - sum_of(weighted) / stats.sum;
  return stats;
}

static void softmax_backward(const SoftmaxBackwardArgs& args) {
  const int64_t size = args.vocab_size, whole = size - size % kLanes;
  const float factor = -args.coefficient * args.inverse_temperature;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Lanes z = load(args.logits + i) * args.inverse_temperature - args.log_normalizer;
    store(args.logits + i, exp_of(z) * factor);
  }
  const int64_t rest = size - whole;
  const Lanes z = load_part(args.logits + whole, rest, 0) * args.inverse_temperature;
  store_part(args.logits + whole, exp_of(z - args.log_normalizer) * factor, rest);
  args.logits[args.label] -= factor;
}

static double sum_of_squares(const float* x, int64_t count) {
  using Doubles = double __attribute__((vector_size(32)));
  using Floats = float __attribute__((vector_size(16), aligned(4), may_alias));
  Doubles sums = {0, 0, 0, 0};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const Doubles wide = __builtin_convertvector(*reinterpret_cast<const Floats*>(x + i), Doubles);
    sums += wide * wide;
  }
  double sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  for (; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

static void adamw(const AdamwArgs& args) {
  const float keep = 1.0F - args.lr * args.weight_decay, rate = args.lr / args.correction1;
  const float root = 1.0F / __builtin_sqrtf(args.correction2);
  float* weights = args.weights;
  float* first = args.first_moments;
  float* second = args.second_moments;
  for (int64_t i = 0; i < args.count; ++i) {
    const float g = args.gradients[i] * args.gradient_scale;
    const float m = args.beta1 * first[i] + (1.0F - args.beta1) * g;
    const float v = args.beta2 * second[i] + (1.0F - args.beta2) * g * g;
    first[i] = m;
    second[i] = v;
    weights[i] = weights[i] * keep - rate * m / (__builtin_sqrtf(v) * root + args.epsilon);
  }
}

}  // namespace primerl::PRIMERL_OPS_TARGET
