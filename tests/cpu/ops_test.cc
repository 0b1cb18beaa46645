// Every CPU op compared with a plain reference in double, and its backward with finite differences,
// for both instruction sets.
#include "kernels/ops/ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "graph/base/random.h"

namespace primerl {
namespace {

using Floats = std::vector<float>;

Floats random_floats(size_t count, uint64_t key, double scale = 1) {
  RandomStream random(key);
  Floats values(count);
  for (auto& value : values) value = static_cast<float>(scale * (2 * random.uniform() - 1));
  return values;
}

double inner(const Floats& a, const Floats& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

/// Compares d(inner(weights, forward(x)))/dx with `gradient`, along `gradient` itself.
void expect_slope(Floats& x, const Floats& gradient, const std::function<double()>& value,
                  double tolerance = 2e-3) {
  const double square = inner(gradient, gradient), h = 1e-2 / std::sqrt(square);
  const Floats kept = x;
  const auto move = [&](double step) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(kept[i] + step * gradient[i]);
    return value();
  };
  const double above = move(h), below = move(-h);
  x = kept;
  EXPECT_NEAR((above - below) / (2 * h * square), 1, tolerance);
}

class Ops : public ::testing::TestWithParam<bool> {
 protected:
  const CpuOps& ops_ = GetParam() ? baseline_cpu_ops() : cpu_ops();
};

TEST_P(Ops, RmsNormAndItsBackward) {
  for (const int64_t width : {1, 7, 8, 33, 128}) {
    const int64_t rows = 3;
    const auto size = static_cast<size_t>(rows * width);
    Floats x = random_floats(size, 1), weight = random_floats(static_cast<size_t>(width), 2);
    const Floats dy = random_floats(size, 3);
    Floats y(size), scale(static_cast<size_t>(rows));
    const auto forward = [&] {
      ops_.rms_norm({rows, width, 1e-5F, x.data(), weight.data(), y.data(), scale.data()});
      return inner(dy, y);
    };
    forward();
    for (int64_t row = 0; row < rows; ++row) {
      double squares = 0;
      for (int64_t i = 0; i < width; ++i) squares += std::pow(x[row * width + i], 2);
      const double inverse = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
      for (int64_t i = 0; i < width; ++i)
        EXPECT_NEAR(y[row * width + i], x[row * width + i] * inverse * weight[i], 2e-6);
    }
    Floats dx(size, 0), dweight(weight.size(), 0);
    ops_.rms_norm_backward(
        {rows, width, dy.data(), x.data(), weight.data(), scale.data(), dx.data(), dweight.data()});
    if (width > 1) expect_slope(x, dx, forward, 1e-2);
    expect_slope(weight, dweight, forward);
  }
}

TEST_P(Ops, SwigluAndItsBackward) {
  for (const int64_t width : {1, 8, 13, 64}) {
    const int64_t rows = 2;
    Floats x = random_floats(static_cast<size_t>(rows * 2 * width), 4, 4);
    Floats y(static_cast<size_t>(rows * width)), dx(x.size());
    const Floats dy = random_floats(y.size(), 5);
    const auto forward = [&] {
      ops_.swiglu({rows, width, x.data(), y.data()});
      return inner(dy, y);
    };
    forward();
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < width; ++i) {
        const double g = x[row * 2 * width + i], u = x[row * 2 * width + width + i];
        EXPECT_NEAR(y[row * width + i], g / (1 + std::exp(-g)) * u, 1e-5);
      }
    ops_.swiglu_backward({rows, width, x.data(), dy.data(), dx.data()});
    expect_slope(x, dx, forward);
  }
}

TEST_P(Ops, SoftmaxAndItsBackward) {
  for (const int64_t size : {1, 5, 8, 61, 128}) {
    Floats z = random_floats(static_cast<size_t>(size), 6, 5), weights(z.size());
    const float scale = 1.25F;
    const auto stats = ops_.softmax({size, scale, z.data(), weights.data()});
    double sum = 0, entropy = 0;
    for (const float value : z) sum += std::exp(value * scale);
    for (const float value : z)
      entropy -= std::exp(value * scale) / sum * (value * scale - std::log(sum));
    EXPECT_NEAR(stats.log_normalizer, std::log(sum), 1e-5);
    EXPECT_NEAR(stats.entropy, entropy, 2e-5);
    for (size_t i = 0; i < z.size(); ++i)
      EXPECT_NEAR(weights[i], std::exp(z[i] * scale - stats.largest), 1e-6);
    if (size == 1) continue;
    Floats dz = z;
    ops_.softmax_backward({size, scale, stats.log_normalizer, 0.5F, 2, dz.data()});
    expect_slope(z, dz, [&] {
      const auto now = ops_.softmax({size, scale, z.data(), nullptr});
      return 0.5 * (z[2] * scale - now.log_normalizer);
    });
  }
}

TEST_P(Ops, SoftmaxHandlesLargeNumbersAndReportsNan) {
  const Floats large = {1e4F, -1e4F, 1e4F, 0, 0, 0, 0, 0, -1e30F};
  const auto stats = ops_.softmax({9, 1, large.data(), nullptr});
  EXPECT_NEAR(stats.log_normalizer, 1e4 + std::log(2.0), 1e-2);
  EXPECT_NEAR(stats.entropy, std::log(2.0), 1e-5);
  Floats broken(9, 0);
  broken[3] = std::nanf("");
  EXPECT_TRUE(std::isnan(ops_.softmax({9, 1, broken.data(), nullptr}).log_normalizer));
}

TEST_P(Ops, AdamwMovesAgainstTheGradient) {
  Floats w = {1, -2, 3}, m(3, 0), v(3, 0);
  const Floats g = {0.5F, 0, -4};
  ops_.adamw({.count = 3,
              .weights = w.data(),
              .gradients = g.data(),
              .first_moments = m.data(),
              .second_moments = v.data(),
              .gradient_scale = 0.5F,
              .lr = 0.1F,
              .weight_decay = 0.5F,
              .beta1 = 0.9F,
              .beta2 = 0.99F,
              .epsilon = 1e-8F,
              .correction1 = 0.1F,
              .correction2 = 0.01F});
  EXPECT_NEAR(w[0], 0.95 - 0.1, 1e-5);
  EXPECT_NEAR(w[1], -1.9, 1e-5);
  EXPECT_NEAR(w[2], 2.85 + 0.1, 1e-5);
}

/// One sequence of `num_keys` rows in a shuffled cache, its last `num_queries` rows as queries.
struct Case {
  HeadShape heads;
  int32_t num_keys = 0;
  int32_t num_queries = 0;
};

class Attention {
 public:
  Attention(const CpuOps& ops, Case shape) : ops_(ops), case_(shape) {
    const auto keys = static_cast<size_t>(shape.num_keys);
    for (size_t i = 0; i < keys; ++i)
      rows_.push_back(static_cast<int32_t>((i * 7 + 3) % (keys % 7 == 0 ? keys + 1 : keys)));
    const size_t cache = (keys + 1) * width(shape.heads.num_kv_heads);
    const size_t queries = static_cast<size_t>(shape.num_queries) * width(shape.heads.num_heads);
    q = random_floats(queries, 11, 2);
    k = random_floats(cache, 12, 2);
    v = random_floats(cache, 13);
    dout = random_floats(queries, 14);
    out.resize(queries);
    lse.resize(static_cast<size_t>(shape.num_queries * shape.heads.num_heads));
    span_ = {0, shape.num_queries, shape.num_keys - shape.num_queries, 0};
  }

  size_t width(int32_t heads) const { return static_cast<size_t>(heads * case_.heads.head_dim); }

  AttentionArgs args() {
    return {&span_,
            1,
            case_.heads,
            0,
            case_.heads.num_heads,
            0.3F,
            rows_.data(),
            q.data(),
            k.data(),
            v.data(),
            out.data(),
            lse.data()};
  }
  double forward() {
    ops_.attention(args());
    return inner(dout, out);
  }
  /// One output value, computed directly.
  double expected(int32_t query, int32_t head, int32_t channel) const {
    const int32_t d = case_.heads.head_dim,
                  group = case_.heads.num_heads / case_.heads.num_kv_heads;
    const size_t stride = width(case_.heads.num_kv_heads),
                 at = static_cast<size_t>(head / group * d);
    const float* x = q.data() + static_cast<size_t>((query * case_.heads.num_heads + head) * d);
    double sum = 0, total = 0;
    for (int32_t j = 0; j <= span_.num_cached + query; ++j) {
      const size_t row = static_cast<size_t>(rows_[static_cast<size_t>(j)]) * stride + at;
      double score = 0;
      for (int32_t i = 0; i < d; ++i)
        score += static_cast<double>(x[i]) * k[row + static_cast<size_t>(i)];
      const double e = std::exp(0.3 * score);
      sum += e;
      total += e * v[row + static_cast<size_t>(channel)];
    }
    return total / sum;
  }

  Floats q, k, v, out, dout, lse;

 private:
  const CpuOps& ops_;
  const Case case_;
  std::vector<int32_t> rows_;
  AttentionSpan span_;
};

const std::vector<Case> kCases = {{{4, 2, 8}, 1, 1},      {{4, 2, 32}, 20, 20},
                                  {{2, 1, 64}, 127, 3},   {{2, 2, 128}, 128, 2},
                                  {{4, 1, 16}, 129, 129}, {{3, 1, 24}, 300, 5}};

TEST_P(Ops, AttentionIsTheWeightedMeanOfValues) {
  for (const auto& shape : kCases) {
    Attention attention(ops_, shape);
    attention.forward();
    const int32_t heads = shape.heads.num_heads, d = shape.heads.head_dim;
    for (int32_t query = 0; query < shape.num_queries; ++query)
      for (int32_t head = 0; head < heads; ++head)
        for (const int32_t channel : {0, d - 1})
          EXPECT_NEAR(attention.out[static_cast<size_t>((query * heads + head) * d + channel)],
                      attention.expected(query, head, channel), 1e-5);
  }
}

TEST_P(Ops, AttentionBackwardIsTheDerivativeOfForward) {
  for (const auto& shape : kCases) {
    if (shape.num_keys < 2) continue;
    Attention attention(ops_, shape);
    attention.forward();
    Floats dq(attention.q.size()), dk(attention.k.size(), 0), dv(attention.v.size(), 0);
    ops_.attention_backward(
        {attention.args(), attention.dout.data(), dq.data(), dk.data(), dv.data()});
    const auto forward = [&] { return attention.forward(); };
    expect_slope(attention.q, dq, forward, 1e-2);
    expect_slope(attention.k, dk, forward, 1e-2);
    expect_slope(attention.v, dv, forward);
  }
}

// Engine and learner call it with other chunks, other rows and other heads.
TEST_P(Ops, AQueryAndHeadAloneGetTheBitsTheyGetAmongOthers) {
  for (const HeadShape heads : {HeadShape{1, 1, 8}, HeadShape{4, 2, 32}, HeadShape{3, 1, 40},
                                HeadShape{5, 1, 64}, HeadShape{2, 2, 128}, HeadShape{6, 2, 256}})
    for (const int32_t num_queries : {1, 3, 4, 17, 40}) {
      Attention attention(ops_, {heads, 270, num_queries});
      attention.forward();
      const Floats out = attention.out, lse = attention.lse;
      std::fill(attention.out.begin(), attention.out.end(), 0.0F);
      for (int32_t i = 0; i < num_queries; ++i)
        for (int32_t h = 0; h < heads.num_heads; ++h) {
          AttentionArgs alone = attention.args();
          AttentionSpan span = *alone.spans;
          span.query_begin += i;
          span.num_cached += i;
          span.num_queries = 1;
          alone.spans = &span;
          alone.head_begin = h;
          alone.head_end = h + 1;
          ops_.attention(alone);
        }
      EXPECT_EQ(attention.out, out) << heads.head_dim << " channels, " << num_queries << " queries";
      EXPECT_EQ(attention.lse, lse);
    }
}

// Tiles of queries and strips of keys must not change the order of any sum.
TEST_P(Ops, AttentionBackwardOfManyQueriesIsThatOfOneAfterTheOther) {
  for (const HeadShape heads :
       {HeadShape{1, 1, 8}, HeadShape{4, 2, 32}, HeadShape{3, 1, 40}, HeadShape{3, 3, 64}})
    for (const int32_t num_queries : {1, 2, 16, 17, 70}) {
      Attention attention(ops_, {heads, 101, num_queries});
      attention.forward();
      const Floats start = random_floats(attention.k.size(), 7);
      Floats dq(attention.q.size()), dk = start, dv = start;
      ops_.attention_backward(
          {attention.args(), attention.dout.data(), dq.data(), dk.data(), dv.data()});
      Floats dq_alone(attention.q.size()), dk_alone = start, dv_alone = start;
      for (int32_t h = 0; h < heads.num_heads; ++h)
        for (int32_t i = 0; i < num_queries; ++i) {
          AttentionArgs alone = attention.args();
          AttentionSpan span = *alone.spans;
          span.query_begin += i;
          span.num_cached += i;
          span.num_queries = 1;
          alone.spans = &span;
          alone.head_begin = h;
          alone.head_end = h + 1;
          ops_.attention_backward(
              {alone, attention.dout.data(), dq_alone.data(), dk_alone.data(), dv_alone.data()});
        }
      EXPECT_EQ(dq, dq_alone) << heads.head_dim << " channels, " << num_queries << " queries";
      EXPECT_EQ(dk, dk_alone) << heads.head_dim << " channels, " << num_queries << " queries";
      EXPECT_EQ(dv, dv_alone) << heads.head_dim << " channels, " << num_queries << " queries";
    }
}

TEST_P(Ops, RotaryRotatesSomeChannelsAndCopiesTheRest) {
  const HeadShape heads{1, 1, 16};
  Floats x = random_floats(48, 31), cosine(4, 0), sine(4, 1);  // a quarter turn of 4 pairs
  const std::vector<int32_t> zero = {0};
  Floats q(16), k(16), v(16);
  ops_.rotary({1, heads, 8, 1e-6F, x.data(), nullptr, nullptr, zero.data(), zero.data(),
               cosine.data(), sine.data(), q.data(), k.data(), v.data()});
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(q[i], -x[i + 4]);
    EXPECT_EQ(q[i + 4], x[i]);
    EXPECT_EQ(k[i], -x[16 + i + 4]);
  }
  for (size_t i = 8; i < 16; ++i) EXPECT_EQ(q[i], x[i]);
  Floats dx(48);
  const Floats dq = random_floats(16, 32), dk = random_floats(16, 33), dv = random_floats(16, 34);
  ops_.rotary_backward({1, heads, 8, 1e-6F, x.data(), nullptr, nullptr, zero.data(), cosine.data(),
                        sine.data(), dq.data(), dk.data(), dv.data(), dx.data(), nullptr, nullptr});
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(dx[i + 4], -dq[i]);
  for (size_t i = 8; i < 16; ++i) EXPECT_EQ(dx[i], dq[i]);
}

TEST_P(Ops, RotaryRotatesPairsAndItsBackwardRotatesBack) {
  const HeadShape heads{2, 1, 16};
  const int64_t rows = 3, width = (2 + 2) * 16;
  Floats x = random_floats(static_cast<size_t>(rows * width), 21);
  Floats qw = random_floats(16, 22), kw = random_floats(16, 23), cosine, sine;
  for (int i = 0; i < 8 * 8; ++i) {
    cosine.push_back(static_cast<float>(std::cos(0.1 * i)));
    sine.push_back(static_cast<float>(std::sin(0.1 * i)));
  }
  const std::vector<int32_t> positions = {0, 5, 7}, cache = {2, 0, 1}, same = {0, 1, 2};
  for (const bool normed : {false, true}) {
    Floats q(static_cast<size_t>(rows * 32)), k(static_cast<size_t>(rows * 16)), v(k.size());
    const Floats dq = random_floats(q.size(), 24), dk = random_floats(k.size(), 25),
                 dv = random_floats(v.size(), 26);
    const float* q_weight = normed ? qw.data() : nullptr;
    const float* k_weight = normed ? kw.data() : nullptr;
    const auto forward = [&](const std::vector<int32_t>& to) {
      ops_.rotary({rows, heads, 16, 1e-6F, x.data(), q_weight, k_weight, positions.data(),
                   to.data(), cosine.data(), sine.data(), q.data(), k.data(), v.data()});
      return inner(dq, q) + inner(dk, k) + inner(dv, v);
    };
    forward(cache);
    if (!normed) {
      EXPECT_FLOAT_EQ(q[0], x[0]) << "position 0 turns nothing";
      EXPECT_FLOAT_EQ(k[2 * 16], x[32]) << "row 0 went to cache row 2";
      const double angle = 0.1 * (5 * 8 + 3);
      const float* row = x.data() + width;
      EXPECT_NEAR(q[32 + 3], row[3] * std::cos(angle) - row[11] * std::sin(angle), 1e-6);
      EXPECT_NEAR(q[32 + 11], row[11] * std::cos(angle) + row[3] * std::sin(angle), 1e-6);
    }
    Floats dx(x.size()), dqw(16, 0), dkw(16, 0);
    ops_.rotary_backward({rows, heads, 16, 1e-6F, x.data(), q_weight, k_weight, positions.data(),
                          cosine.data(), sine.data(), dq.data(), dk.data(), dv.data(), dx.data(),
                          dqw.data(), dkw.data()});
    forward(same);
    expect_slope(
        x, dx, [&] { return forward(same); }, 1e-2);
    if (normed) expect_slope(qw, dqw, [&] { return forward(same); });
    if (normed) expect_slope(kw, dkw, [&] { return forward(same); });
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Ops, ::testing::Bool(),
                         [](const auto& one) { return one.param ? "baseline" : "best"; });

}  // namespace
}  // namespace primerl
