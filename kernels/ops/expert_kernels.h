/// Choosing experts, and moving rows to them and back; see ops.h for shapes. Compiled once per
/// instruction set.
#pragma once

#include "kernels/ops/row_kernels.h"

namespace primerl::PRIMERL_OPS_TARGET {

/// Scores of one row.
static void score_experts(const RouterShape& shape, const float* logits, float* scores) {
  const int64_t count = shape.num_experts;
  const auto each = [&](auto of) {
    for (int64_t i = 0; i < count; i += kLanes) {
      const int64_t left = count - i;
      const Lanes z =
          left < kLanes ? load_part(logits + i, left, -__builtin_inff()) : load(logits + i);
      const Lanes s = of(z);
      if (left < kLanes)
        store_part(scores + i, s, left);
      else
        store(scores + i, s);
    }
  };
  if (shape.is_sigmoid) return each([](Lanes z) { return sigmoid(z); });
  float largest = logits[0];
  for (int64_t i = 1; i < count; ++i) largest = logits[i] > largest ? logits[i] : largest;
  Lanes sums = spread(0);
  each([&](Lanes z) {
    const Lanes e = exp_of(z - largest);
    sums += e;
    return e;
  });
  const float sum = sum_of(sums);
  for (int64_t i = 0; i < count; ++i) scores[i] /= sum;
}

/// Ids of the `wanted` greatest of values[0, count), by falling value, the lower id first; NaN is
/// never greater.
PRIMERL_INLINE void select_greatest(const float* values, int32_t count, int32_t wanted,
                                    int32_t* ids) {
  bool taken[kExpertsMax] = {};
  for (int32_t n = 0; n < wanted; ++n) {
    int32_t best = -1;
    for (int32_t i = 0; i < count; ++i)
      if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
    taken[best] = true;
    ids[n] = best;
  }
}

/// Excludes the choices of the groups that are not kept.
PRIMERL_INLINE void keep_groups(const RouterShape& shape, float* choices) {
  const int32_t size = shape.num_experts / shape.num_groups;
  float groups[kExpertsMax];
  for (int32_t g = 0; g < shape.num_groups; ++g) {
    const float* choice = choices + g * size;
    float first = -__builtin_inff(), second = first;
    for (int32_t i = 0; i < size; ++i) {
      if (choice[i] > first) {
        second = first;
        first = choice[i];
      } else if (choice[i] > second) {
        second = choice[i];
      }
    }
    groups[g] = size > 1 ? first + second : first;
  }
  int32_t kept[kExpertsMax];
  select_greatest(groups, shape.num_groups, shape.groups_kept, kept);
  bool is_kept[kExpertsMax] = {};
  for (int32_t g = 0; g < shape.groups_kept; ++g) is_kept[kept[g]] = true;
  for (int32_t i = 0; i < shape.num_experts; ++i)
    if (!is_kept[i / size]) choices[i] = -__builtin_inff();
}

static void route(const RouteArgs& args) {
  const RouterShape& shape = args.shape;
  const int32_t num_experts = shape.num_experts, wanted = shape.experts_per_token;
  float choices[kExpertsMax];
  for (int64_t row = 0; row < args.rows; ++row) {
    float* scores = args.scores + row * num_experts;
    score_experts(shape, args.logits + row * num_experts, scores);
    for (int32_t i = 0; i < num_experts; ++i)
      choices[i] = args.selection_bias == nullptr ? scores[i] : scores[i] + args.selection_bias[i];
    if (shape.groups_kept < shape.num_groups) keep_groups(shape, choices);
    int32_t* experts = args.experts + row * wanted;
    float* weights = args.weights + row * wanted;
    select_greatest(choices, num_experts, wanted, experts);
    float sum = 0;
    for (int32_t i = 0; i < wanted; ++i) sum += scores[experts[i]];
    const float divisor = shape.is_normalized ? sum + shape.epsilon : 1.0F;
    for (int32_t i = 0; i < wanted; ++i) weights[i] = scores[experts[i]] / divisor * shape.scale;
  }
}

static void route_backward(const RouteBackwardArgs& args) {
  const RouterShape& shape = args.shape;
  const int32_t num_experts = shape.num_experts, wanted = shape.experts_per_token;
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* scores = args.scores + row * num_experts;
    const int32_t* experts = args.experts + row * wanted;
    const float* dweights = args.dweights + row * wanted;
    float* dlogits = args.dlogits + row * num_experts;
    float sum = shape.epsilon, weighted = 0;
    for (int32_t i = 0; i < wanted; ++i) sum += scores[experts[i]];
    for (int32_t i = 0; i < wanted; ++i) weighted += dweights[i] * scores[experts[i]] / sum;
    // The gradient of the chosen experts' scores: through the division, if weights are normalized.
    float total = 0;  // of d score * score, for the softmax
    for (int32_t i = 0; i < num_experts; ++i) dlogits[i] = 0;
    for (int32_t i = 0; i < wanted; ++i) {
      const float d = shape.is_normalized ? (dweights[i] - weighted) / sum : dweights[i];
      dlogits[experts[i]] = d * shape.scale;
      total += d * shape.scale * scores[experts[i]];
    }
    for (int32_t i = 0; i < num_experts; ++i)
      dlogits[i] = shape.is_sigmoid ? dlogits[i] * scores[i] * (1.0F - scores[i])
                                    : (dlogits[i] - total) * scores[i];
  }
}

static void gather_rows(const GatherRowsArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* x = args.x + args.sources[row] * args.width;
    float* y = args.y + row * args.width;
    if (args.scale == nullptr)
      for (int64_t i = 0; i < args.width; ++i) y[i] = x[i];
    else
      for (int64_t i = 0; i < args.width; ++i) y[i] = args.scale[row] * x[i];
  }
}

static void combine_rows(const CombineRowsArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    float* y = args.y + row * args.width;
    for (int32_t j = 0; j < args.terms; ++j) {
      const int64_t at = row * args.terms + j;
      const float* x = args.x + args.places[at] * args.width;
      const float weight = args.weights == nullptr ? 1.0F : args.weights[at];
      for (int64_t i = 0; i < args.width; ++i) y[i] += weight * x[i];
    }
  }
}

static void dot_rows(const DotRowsArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row)
    for (int32_t j = 0; j < args.terms; ++j) {
      const int64_t at = row * args.terms + j;
      args.dots[at] =
          dot(args.a + row * args.width, args.b + args.places[at] * args.width, args.width);
    }
}

}  // namespace primerl::PRIMERL_OPS_TARGET
