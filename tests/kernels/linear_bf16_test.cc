// The GEMM of bf16 numbers: every instruction set of this machine has the bits of plain C++
// (bf16.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "graph/base/random.h"
#include "kernels/ops/bf16.h"
#include "kernels/ops/ops.h"

namespace primerl {
namespace {

using Floats = std::vector<float>;
using Codes = std::vector<uint16_t>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// kTiny: products around the least normal number. kDenormal: half of them denormal. kHuge: sums
/// that become infinite. kBroken: some are NaN or infinite.
enum class Kind { kUsual, kTiny, kDenormal, kHuge, kBroken };

float number_of(Kind kind, RandomStream& random) {
  const double mantissa = (random.uniform() < 0.5 ? -1 : 1) * (1 + random.uniform());
  const auto between = [&](int least, int range) {
    return static_cast<float>(
        std::ldexp(mantissa, least + static_cast<int>(range * random.uniform())));
  };
  switch (kind) {
    case Kind::kTiny:
      return between(-82, 40);
    case Kind::kDenormal:
      return between(-130, 8);
    case Kind::kHuge:
      return between(50, 25);
    case Kind::kBroken: {
      const double which = random.uniform();
      if (which < 0.01) return kNaN;
      if (which < 0.02) return which < 0.015 ? kInfinity : -kInfinity;
      return which < 0.03 ? -0.0F : between(-3, 4);
    }
    case Kind::kUsual:
      break;
  }
  return between(-3, 4);
}

Floats numbers_of(int64_t count, Kind kind, uint64_t key) {
  RandomStream random(key);
  Floats values(static_cast<size_t>(count));
  for (float& value : values) value = number_of(kind, random);
  return values;
}

/// Bits, where all NaN are equal.
std::vector<uint32_t> bits_of(const Floats& values) {
  std::vector<uint32_t> bits;
  for (const float value : values)
    bits.push_back(std::isnan(value) ? 0x7fc00000U : std::bit_cast<uint32_t>(value));
  return bits;
}

float rounded(float value) { return float_of_bf16(bf16_of(value)); }

Floats transposed(const Floats& values, int64_t rows, int64_t columns) {
  Floats other;
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r)
      other.push_back(values[static_cast<size_t>(r * columns + c)]);
  return other;
}

/// How a GEMM finds its weights.
enum class Layout { kRows, kColumns, kPacked, kPackedTransposed };
constexpr Layout kLayouts[] = {Layout::kRows, Layout::kColumns, Layout::kPacked,
                               Layout::kPackedTransposed};

struct Gemm {
  int64_t rows, columns, terms;
  Floats x, weight, bias, residual;
  bool has_bias = true, has_residual = true;

  Gemm(int64_t num_rows, int64_t num_columns, int64_t num_terms, Kind kind, uint64_t seed)
      : rows(num_rows),
        columns(num_columns),
        terms(num_terms),
        x(numbers_of(rows * terms, kind, mix(seed, 1))),
        weight(numbers_of(columns * terms, kind, mix(seed, 2))),
        bias(numbers_of(columns, kind, mix(seed, 3))),
        residual(numbers_of(rows * columns, kind == Kind::kTiny ? Kind::kDenormal : kind,
                            mix(seed, 4))) {}

  float start(int64_t row, int64_t column) const {
    const float b = bias[static_cast<size_t>(column)];
    if (!has_residual) return has_bias ? b : 0;
    const float r = residual[static_cast<size_t>(row * columns + column)];
    return has_bias ? add_bf16(r, b) : r;
  }
  Floats wanted() const {
    Floats y;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        y.push_back(bf16_dot(
            terms, start(r, c),
            [&](int64_t k) { return rounded(x[static_cast<size_t>(r * terms + k)]); },
            [&](int64_t k) { return rounded(weight[static_cast<size_t>(c * terms + k)]); }));
    return y;
  }
  Codes packed(const CpuOps& ops) const {
    Codes codes(static_cast<size_t>(packed_bf16_count(columns, terms)));
    ops.pack_bf16({0, columns, terms, {weight.data(), terms, 1}, codes.data()});
    return codes;
  }
  LinearRowsArgs args(Floats& y) const {
    LinearRowsArgs args;
    args.rows = rows;
    args.columns = columns;
    args.terms = terms;
    args.panel_end = linear_panels_of(columns);
    args.is_bf16 = true;
    args.x = x.data();
    args.x_stride = terms;
    args.bias = has_bias ? bias.data() : nullptr;
    args.residual = has_residual ? residual.data() : nullptr;
    args.residual_stride = columns;
    args.y = y.data();
    args.y_stride = columns;
    return args;
  }
  /// `is_transposed`: the terms of a row of x are not adjacent.
  Floats computed(const CpuOps& ops, Layout layout, bool is_transposed = false) const {
    Floats y(static_cast<size_t>(rows * columns), 77);
    LinearRowsArgs call = args(y);
    const Floats x_by_term = transposed(x, rows, terms);
    const Floats weight_by_term = transposed(weight, columns, terms);
    if (is_transposed) {
      call.x = x_by_term.data();
      call.x_stride = 1;
      call.x_term_stride = rows;
    }
    const Codes codes = packed(ops);
    Codes other(static_cast<size_t>(packed_bf16_count(terms, columns)));
    ops.pack_bf16({0, terms, columns, {weight_by_term.data(), columns, 1}, other.data()});
    if (layout == Layout::kRows) call.weights = {weight.data(), terms, 1};
    if (layout == Layout::kColumns) call.weights = {weight_by_term.data(), 1, columns};
    if (layout == Layout::kPacked) call.packed_bf16 = codes.data();
    if (layout == Layout::kPackedTransposed) call.packed_bf16_transposed = other.data();
    ops.linear_bf16(call);
    return y;
  }
};

class LinearBf16 : public ::testing::TestWithParam<size_t> {
 protected:
  const CpuOps& ops_ = *all_cpu_ops()[GetParam()];
};

TEST_P(LinearBf16, HasTheBitsOfPlainCodeForAllSizesLayoutsAndNumbers) {
  const int64_t shapes[][3] = {{1, 1, 1},    {1, 16, 32},  {3, 17, 33},   {15, 15, 31},
                               {16, 32, 64}, {17, 48, 65}, {33, 31, 127}, {40, 20, 2},
                               {5, 7, 515},  {18, 9, 1056}};
  for (const Kind kind : {Kind::kUsual, Kind::kTiny, Kind::kDenormal, Kind::kHuge, Kind::kBroken})
    for (uint64_t seed = 0; const auto& [rows, columns, terms] : shapes) {
      Gemm gemm(rows, columns, terms, kind, ++seed);
      gemm.has_bias = seed % 2 == 0;
      gemm.has_residual = seed % 3 != 0;
      const auto want = bits_of(gemm.wanted());
      for (const Layout layout : kLayouts)
        for (const bool is_transposed : {false, true})
          ASSERT_EQ(bits_of(gemm.computed(ops_, layout, is_transposed)), want)
              << static_cast<int>(kind) << ": " << rows << " x " << columns << " x " << terms
              << ", layout " << static_cast<int>(layout) << is_transposed;
    }
}

TEST_P(LinearBf16, WithoutTermsIsResidualAndBias) {
  Gemm gemm(5, 19, 0, Kind::kDenormal, 3);
  for (const bool has_bias : {false, true})
    for (const bool has_residual : {false, true}) {
      gemm.has_bias = has_bias;
      gemm.has_residual = has_residual;
      Floats want;
      for (const float value : gemm.wanted()) want.push_back(value);
      EXPECT_EQ(bits_of(gemm.computed(ops_, Layout::kRows)), bits_of(want));
    }
}

TEST_P(LinearBf16, ARowDependsOnNoOtherRowAndNoSplitOfThePanels) {
  Gemm gemm(70, 100, 600, Kind::kUsual, 9);
  const Codes codes = gemm.packed(ops_);
  const Floats whole = gemm.computed(ops_, Layout::kPacked);
  for (const int64_t rows : {1, 2, 15, 16, 17, 69}) {
    Floats y(whole.size(), 77);
    for (int64_t first = 0; first < gemm.rows; first += rows)
      for (int64_t panel = 0; panel < linear_panels_of(gemm.columns); panel += 3) {
        LinearRowsArgs part = gemm.args(y);
        part.rows = std::min(rows, gemm.rows - first);
        part.x += first * part.x_stride;
        part.y += first * part.y_stride;
        part.residual += first * part.residual_stride;
        part.panel_begin = panel;
        part.panel_end = std::min(panel + 3, linear_panels_of(gemm.columns));
        part.packed_bf16 = codes.data();
        ops_.linear_bf16(part);
      }
    EXPECT_EQ(bits_of(y), bits_of(whole)) << rows;
  }
}

TEST_P(LinearBf16, AddsToItsResidualInPlace) {
  Gemm gemm(35, 40, 50, Kind::kUsual, 4);
  gemm.has_bias = false;
  Floats y = gemm.residual;
  LinearRowsArgs call = gemm.args(y);
  call.residual = y.data();
  call.weights = {gemm.weight.data(), gemm.terms, 1};
  ops_.linear_bf16(call);
  EXPECT_EQ(bits_of(y), bits_of(gemm.wanted()));
}

TEST_P(LinearBf16, KeepsDenormalsOfTheCallingThread) {
  Gemm gemm(20, 20, 40, Kind::kTiny, 4);
  gemm.computed(ops_, Layout::kRows);
  volatile float least = std::numeric_limits<float>::min();
  EXPECT_GT(least / 2, 0) << "its floating-point mode is as before";
  EXPECT_EQ(std::fegetround(), FE_TONEAREST);
}

TEST_P(LinearBf16, PacksTheSameCodesAsTheBaselineInPartsOrAtOnce) {
  for (const Kind kind : {Kind::kUsual, Kind::kDenormal, Kind::kHuge}) {
    const Gemm gemm(1, 37, 70, kind, 6);
    const Codes want = gemm.packed(baseline_cpu_ops());
    EXPECT_EQ(gemm.packed(ops_), want);
    Codes codes(want.size());
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 5}, {5, 20}, {20, 37}})
      ops_.pack_bf16({begin, end, 70, {gemm.weight.data() + begin * 70, 70, 1}, codes.data()});
    EXPECT_EQ(codes, want);
    EXPECT_EQ(want[0], bf16_of(gemm.weight[0])) << "the first pair of the first column";
    EXPECT_EQ(want[1], bf16_of(gemm.weight[1]));
    EXPECT_EQ(want[2], bf16_of(gemm.weight[70])) << "then the second column";
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, LinearBf16, ::testing::Range(size_t{0}, all_cpu_ops().size()),
                         [](const auto& one) {
                           return std::string(all_cpu_ops()[one.param]->name);
                         });

TEST(Bf16, RoundsToNearestWithTiesToEvenAndWithoutDenormals) {
  const auto number = [](float value) { return float_of_bf16(bf16_of(value)); };
  EXPECT_EQ(number(1), 1);
  EXPECT_EQ(number(1 + 0x1p-8F), 1) << "a tie";
  EXPECT_EQ(number(1 + 0x3p-8F), 1 + 0x1p-6F) << "a tie";
  EXPECT_EQ(number(1 + 0x1.1p-8F), 1 + 0x1p-7F);
  EXPECT_EQ(number(-1 - 0x1.1p-8F), -1 - 0x1p-7F);
  EXPECT_EQ(number(std::numeric_limits<float>::max()), kInfinity);
  EXPECT_EQ(number(-kInfinity), -kInfinity);
  EXPECT_TRUE(std::isnan(number(kNaN)));
  EXPECT_TRUE(std::isnan(number(std::bit_cast<float>(0x7f800001U)))) << "not infinite";
  EXPECT_EQ(bf16_of(-0x1p-127F), 0x8000) << "0 of its sign";
  EXPECT_EQ(bf16_of(std::bit_cast<float>(0x007fffffU)), 0) << "also the largest denormal";
}

TEST(Bf16, SumsHaveTheOrderOfTwoChainsOfThirtyTwoTerms) {
  // 2^24 + 1 + 1: one after the other both ones are lost.
  const auto sum = [](std::vector<float> terms) {
    return bf16_dot(
        static_cast<int64_t>(terms.size()), 0,
        [&](int64_t k) { return terms[static_cast<size_t>(k)]; }, [](int64_t) { return 1.0F; });
  };
  EXPECT_EQ(sum({0x1p24F, 0, 1, 0, 1}), 0x1p24F) << "one chain";
  EXPECT_EQ(sum({0x1p24F, 1, 0, 1}), 0x1p24F + 2) << "the odd chain is added as a whole";
  std::vector<float> two(64, 0);
  two[0] = 0x1p24F;
  two[32] = two[34] = 1;
  EXPECT_EQ(sum(two), 0x1p24F + 2) << "so is the next sum";
}

TEST(CpuOpsTables, BeginWithTheBaselineAndEndWithTheBest) {
  const auto all = all_cpu_ops();
  EXPECT_EQ(all.front(), &baseline_cpu_ops());
  EXPECT_EQ(all.back(), &cpu_ops());
}

TEST(CpuOpsTables, CanBeReplacedUntilTheLastOneIsPutBack) {
  const CpuOps& before = replace_cpu_ops(baseline_cpu_ops());
  EXPECT_EQ(&cpu_ops(), &baseline_cpu_ops());
  EXPECT_EQ(&replace_cpu_ops(before), &baseline_cpu_ops());
  EXPECT_EQ(&cpu_ops(), all_cpu_ops().back());
}

}  // namespace
}  // namespace primerl
