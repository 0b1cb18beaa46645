// The row-invariant GEMM: bits equal its definition for any division of the work.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "graph/base/random.h"
#include "kernels/ops/ops.h"

namespace primerl {
namespace {

using Floats = std::vector<float>;

Floats random_floats(int64_t count, uint64_t key) {
  RandomStream random(key);
  Floats values(static_cast<size_t>(count));
  for (auto& value : values) value = static_cast<float>(2 * random.uniform() - 1);
  return values;
}

/// Numbers of rows, columns and terms, and the operands of that shape.
struct Product {
  int64_t rows, columns, terms;
  Floats x, weight, bias, residual;

  Product(int64_t num_rows, int64_t num_columns, int64_t num_terms, uint64_t seed)
      : rows(num_rows),
        columns(num_columns),
        terms(num_terms),
        x(random_floats(rows * terms, mix(seed, 1))),
        weight(random_floats(columns * terms, mix(seed, 2))),
        bias(random_floats(columns, mix(seed, 3))),
        residual(random_floats(rows * columns, mix(seed, 4))) {}

  Floats packed(const CpuOps& ops) const {
    Floats to(static_cast<size_t>(packed_linear_floats(columns, terms)), 0);
    ops.pack_linear({0, columns, terms, {weight.data(), terms, 1}, to.data()});
    return to;
  }
  LinearRowsArgs args(const Floats& packed_weights, Floats& y) const {
    LinearRowsArgs args;
    args.rows = rows;
    args.columns = columns;
    args.terms = terms;
    args.panel_end = linear_panels_of(columns);
    args.x = x.data();
    args.x_stride = terms;
    args.packed = packed_weights.data();
    args.y = y.data();
    args.y_stride = columns;
    return args;
  }
  Floats empty() const { return Floats(static_cast<size_t>(rows * columns), NAN); }
  Floats multiplied(const CpuOps& ops) const {
    Floats y = empty();
    const Floats weights = packed(ops);
    ops.linear_rows(args(weights, y));
    return y;
  }
};

/// One value, as ops.h defines it.
float defined(const Product& p, int64_t row, int64_t column, float start) {
  float total = start;
  for (int64_t block = 0; block < p.terms; block += kLinearBlock) {
    float sum = 0;
    for (int64_t k = block; k < std::min(p.terms, block + kLinearBlock); ++k)
      sum = std::fma(p.x[static_cast<size_t>(row * p.terms + k)],
                     p.weight[static_cast<size_t>(column * p.terms + k)], sum);
    total += sum;
  }
  return total;
}

bool has_fused() { return &cpu_ops() != &baseline_cpu_ops(); }

const int64_t kRows[] = {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 480, 612, 613, 700};
const int64_t kColumns[] = {1, 7, 8, 9, 15, 16, 17, 24, 33, 100};
const int64_t kTerms[] = {1, 5, 191, 192, 193, 385};

TEST(LinearRows, IsItsDefinitionToTheBit) {
  if (!has_fused()) GTEST_SKIP() << "this machine has no fused multiply-add";
  for (const int64_t rows : {1, 2, 3, 4, 5, 6, 13})
    for (const int64_t columns : kColumns)
      for (const int64_t terms : kTerms) {
        const Product p(rows, columns, terms, 1);
        const Floats y = p.multiplied(cpu_ops());
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < columns; ++c)
            ASSERT_EQ(y[static_cast<size_t>(r * columns + c)], defined(p, r, c, 0))
                << rows << " x " << columns << " x " << terms << " at " << r << ", " << c;
      }
}

TEST(LinearRows, BeginsWithTheResidualAndTheBias) {
  if (!has_fused()) GTEST_SKIP() << "this machine has no fused multiply-add";
  const Product p(9, 37, 400, 2);
  const Floats weights = p.packed(cpu_ops());
  for (const bool has_bias : {false, true})
    for (const bool has_residual : {false, true}) {
      Floats y = has_residual ? p.residual : p.empty();
      LinearRowsArgs args = p.args(weights, y);
      if (has_bias) args.bias = p.bias.data();
      if (has_residual) args.residual = y.data();  // in place
      args.residual_stride = p.columns;
      cpu_ops().linear_rows(args);
      for (int64_t r = 0; r < p.rows; ++r)
        for (int64_t c = 0; c < p.columns; ++c) {
          const auto at = static_cast<size_t>(r * p.columns + c);
          float start = has_residual ? p.residual[at] : 0;
          if (has_bias) start += p.bias[static_cast<size_t>(c)];
          ASSERT_EQ(y[at], defined(p, r, c, start));
        }
    }
}

class LinearRowsOf : public ::testing::TestWithParam<bool> {
 protected:
  const CpuOps& ops_ = GetParam() ? baseline_cpu_ops() : cpu_ops();
};

// An engine computes one token with the same bits as a learner computes it in a batch.
TEST_P(LinearRowsOf, ARowIsTheSameAmongAnyNumberOfRows) {
  const int64_t columns = 50, terms = 300;
  const Product all(700, columns, terms, 3);
  const Floats whole = all.multiplied(ops_);
  const Floats weights = all.packed(ops_);
  for (const int64_t rows : kRows)
    for (const int64_t first : {int64_t{0}, (700 - rows) / 2, 700 - rows}) {
      Floats y(static_cast<size_t>(rows * columns), NAN);
      LinearRowsArgs args = all.args(weights, y);
      args.rows = rows;
      args.x += first * terms;
      ops_.linear_rows(args);
      ASSERT_EQ(std::memcmp(y.data(), whole.data() + first * columns, y.size() * sizeof(float)), 0)
          << rows << " rows from " << first;
    }
}

TEST_P(LinearRowsOf, ThreadsThatShareTheWorkChangeNoBit) {
  RandomStream draw(4);
  for (const int64_t columns : {1, 16, 100, 255}) {
    const Product p(67, columns, 193, 5);
    const Floats whole = p.multiplied(ops_), weights = p.packed(ops_);
    const int64_t panels = linear_panels_of(columns);
    for (int64_t num_threads = 1; num_threads <= 16; ++num_threads) {
      Floats y = p.empty();
      std::vector<std::jthread> threads;
      const bool by_rows = draw.below(2) == 0;
      for (int64_t t = 0; t < num_threads; ++t)
        threads.emplace_back([&, t] {
          LinearRowsArgs args = p.args(weights, y);
          if (by_rows) {
            const int64_t begin = p.rows * t / num_threads;
            args.rows = p.rows * (t + 1) / num_threads - begin;
            args.x += begin * p.terms;
            args.y += begin * p.columns;
          } else {
            args.panel_begin = panels * t / num_threads;
            args.panel_end = panels * (t + 1) / num_threads;
          }
          ops_.linear_rows(args);
        });
      threads.clear();
      ASSERT_EQ(y, whole) << num_threads << " threads, " << columns << " columns";
    }
  }
}

// An adapter of a smaller rank is padded with zeros.
TEST_P(LinearRowsOf, ZerosAtTheEndOfTheTermsChangeNothing) {
  const Product p(7, 40, 10, 6);
  const Floats y = p.multiplied(ops_);
  for (const int64_t terms : {11, 16, 192, 193, 500}) {
    Product padded(p.rows, p.columns, terms, 6);
    for (auto [from, to, count] :
         {std::tuple{&p.x, &padded.x, p.rows}, std::tuple{&p.weight, &padded.weight, p.columns}}) {
      std::fill(to->begin(), to->end(), 0.0F);
      for (int64_t i = 0; i < count; ++i)
        std::copy_n(from->begin() + i * p.terms, p.terms, to->begin() + i * terms);
    }
    ASSERT_EQ(padded.multiplied(ops_), y) << terms;
  }
}

TEST_P(LinearRowsOf, TransposedWeightsArePackedAsTheyAre) {
  const Product p(3, 21, 50, 7);
  Floats transposed(p.weight.size());
  for (int64_t c = 0; c < p.columns; ++c)
    for (int64_t k = 0; k < p.terms; ++k)
      transposed[static_cast<size_t>(k * p.columns + c)] =
          p.weight[static_cast<size_t>(c * p.terms + k)];
  Floats packed(static_cast<size_t>(packed_linear_floats(p.columns, p.terms)), 0);
  ops_.pack_linear({0, p.columns, p.terms, {transposed.data(), 1, p.columns}, packed.data()});
  EXPECT_EQ(packed, p.packed(ops_));
}

// A folder has separate q, k and v; the GEMM has them as one matrix.
TEST_P(LinearRowsOf, WeightsMayBePackedInParts) {
  const Product p(1, 61, 37, 10);
  for (const int64_t cut : {1, 8, 16, 24, 33, 60}) {
    Floats packed(static_cast<size_t>(packed_linear_floats(p.columns, p.terms)), 0);
    for (const auto& [begin, end] : {std::pair{int64_t{0}, cut}, std::pair{cut, p.columns}})
      ops_.pack_linear(
          {begin, end, p.terms, {p.weight.data() + begin * p.terms, p.terms, 1}, packed.data()});
    EXPECT_EQ(packed, p.packed(ops_)) << cut;
  }
}

// Backward GEMMs read weights and rows in place, or weights that were packed for forward.
TEST_P(LinearRowsOf, WhatIsNotPackedGivesTheSameBits) {
  enum class Weight { kPlain, kTurned, kPackedForForward };
  for (const int64_t rows : kRows)
    for (const int64_t columns : {1, 8, 17, 100})
      for (const int64_t terms : {1, 7, 193}) {
        const Product p(rows, columns, terms, 11);
        const Floats whole = p.multiplied(ops_);
        Floats turned_weight(p.weight.size()), turned_x(p.x.size());
        for (int64_t k = 0; k < terms; ++k) {
          for (int64_t c = 0; c < columns; ++c)
            turned_weight[static_cast<size_t>(k * columns + c)] =
                p.weight[static_cast<size_t>(c * terms + k)];
          for (int64_t r = 0; r < rows; ++r)
            turned_x[static_cast<size_t>(k * rows + r)] = p.x[static_cast<size_t>(r * terms + k)];
        }
        Floats packed(static_cast<size_t>(packed_linear_floats(terms, columns)), 0);
        ops_.pack_linear({0, terms, columns, {p.weight.data(), 1, terms}, packed.data()});
        for (const Weight weight : {Weight::kPlain, Weight::kTurned, Weight::kPackedForForward})
          for (const bool is_x_turned : {false, true}) {
            Floats y = p.empty();
            LinearRowsArgs args = p.args({}, y);
            args.packed = nullptr;
            if (weight == Weight::kPackedForForward)
              args.packed_transposed = packed.data();
            else
              args.weights = weight == Weight::kTurned
                                 ? LinearWeights{turned_weight.data(), 1, columns}
                                 : LinearWeights{p.weight.data(), terms, 1};
            if (is_x_turned) {
              args.x = turned_x.data();
              args.x_stride = 1;
              args.x_term_stride = rows;
            }
            ops_.linear_rows(args);
            ASSERT_EQ(y, whole) << rows << " x " << columns << " x " << terms << ", "
                                << static_cast<int>(weight) << is_x_turned;
          }
      }
}

TEST_P(LinearRowsOf, WritesNothingBesideItsRowsAndColumns) {
  const Product p(5, 19, 30, 8);
  const Floats weights = p.packed(ops_);
  const int64_t stride = 24;
  Floats y(static_cast<size_t>(stride * (p.rows + 1)), -7);
  LinearRowsArgs args = p.args(weights, y);
  args.y_stride = stride;
  ops_.linear_rows(args);
  for (int64_t r = 0; r <= p.rows; ++r)
    for (int64_t c = r < p.rows ? p.columns : 0; c < stride; ++c)
      ASSERT_EQ(y[static_cast<size_t>(r * stride + c)], -7) << r << ", " << c;
}

TEST_P(LinearRowsOf, NoTermsLeaveWhatItBeginsWith) {
  const Product p(2, 5, 0, 9);
  Floats y = p.empty();
  const Floats weights(1);
  LinearRowsArgs args = p.args(weights, y);
  args.bias = p.bias.data();
  ops_.linear_rows(args);
  for (int64_t r = 0; r < p.rows; ++r)
    for (int64_t c = 0; c < p.columns; ++c)
      EXPECT_EQ(y[static_cast<size_t>(r * p.columns + c)], p.bias[static_cast<size_t>(c)]);
}

INSTANTIATE_TEST_SUITE_P(Targets, LinearRowsOf, ::testing::Bool(), [](const auto& with) {
  return std::string(with.param ? "baseline" : "best");
});

}  // namespace
}  // namespace primerl
