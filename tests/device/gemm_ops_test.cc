// GEMMs of a few rows compared with sums in double on the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/cuda/ops/cuda_checks.h"
#include "tests/device/buffer.h"

namespace primerl::cuda {
namespace {

using cuda_test::Buffer;
using cuda_test::expect_near;
using cuda_test::expect_one_answer;
using cuda_test::Floats;
using cuda_test::random_floats;
using cuda_test::rounded;
using cuda_test::Tolerance;

struct FewRowsCase {
  int64_t rows, terms, columns;
  bool has_bias;
};

void expect_gemm(const FewRowsCase& one, Type type) {
  SCOPED_TRACE(::testing::Message() << one.rows << " rows of " << one.terms << " terms, "
                                    << one.columns << " columns, " << cuda_test::name_of(type));
  const Floats x = rounded(Type::kBfloat16, random_floats(one.rows * one.terms, 1));
  const Floats weight = rounded(Type::kBfloat16, random_floats(one.columns * one.terms, 2));
  const Floats bias = rounded(Type::kBfloat16, random_floats(one.columns, 3));
  Floats want;
  for (int64_t row = 0; row < one.rows; ++row)
    for (int64_t column = 0; column < one.columns; ++column) {
      double sum = one.has_bias ? bias[static_cast<size_t>(column)] : 0.0;
      for (int64_t t = 0; t < one.terms; ++t)
        sum += double{x[static_cast<size_t>(row * one.terms + t)]} *
               weight[static_cast<size_t>(column * one.terms + t)];
      want.push_back(static_cast<float>(sum));
    }
  const Buffer on_x(Type::kBfloat16, x), on_weight(Type::kBfloat16, weight);
  const Buffer on_bias(Type::kBfloat16, bias);
  const Buffer y(type, Floats(want.size(), 7));
  expect_one_answer(
      [&](Stream stream) {
        return few_rows_gemm({.rows = one.rows,
                              .terms = one.terms,
                              .columns = one.columns,
                              .x = on_x.get(),
                              .weight = on_weight.get(),
                              .bias = one.has_bias ? on_bias.get() : nullptr,
                              .y = y.get(),
                              .type = type},
                             stream);
      },
      {&y});
  // Terms up to 1: the cancelling part grows with the root of their number.
  expect_near(y.floats(type), want, cuda_test::tolerance_of(type, 1e-4), "y");
}

TEST(CudaFewRows, MultiplyLikeTheHost) {
  for (const Type type : {Type::kFloat32, Type::kBfloat16})
    for (const FewRowsCase& one : {FewRowsCase{1, 8, 1, false}, FewRowsCase{1, 1024, 4096, false},
                                   FewRowsCase{2, 1032, 33, true}, FewRowsCase{3, 264, 100, true},
                                   FewRowsCase{4, 3072, 1024, true}})
      expect_gemm(one, type);
}

TEST(CudaFewRows, AreUpToFourOfMultiplesOfEight) {
  EXPECT_TRUE(few_rows_gemm({}, nullptr).is_ok());
  EXPECT_STREQ(few_rows_gemm({.rows = 5, .terms = 8, .columns = 1}, nullptr).fault,
               "rows must be from 0 to 4");
  EXPECT_STREQ(few_rows_gemm({.rows = 1, .terms = 9, .columns = 1}, nullptr).fault,
               "terms must be a multiple of 8, x and weight at addresses of 16 bytes");
}

struct SmallMCase {
  int64_t rows, terms, columns;
  int32_t num_parts;
};

/// [num_parts, rows, columns], as sums in double.
Floats gemm_in_parts(const SmallMCase& one, const Floats& x, const Floats& weight) {
  const int64_t of_part = one.terms / one.num_parts;
  Floats parts;
  for (int64_t part = 0; part < one.num_parts; ++part)
    for (int64_t row = 0; row < one.rows; ++row)
      for (int64_t column = 0; column < one.columns; ++column) {
        double sum = 0;
        for (int64_t t = part * of_part; t < (part + 1) * of_part; ++t)
          sum += double{x[static_cast<size_t>(row * one.terms + t)]} *
                 weight[static_cast<size_t>(column * one.terms + t)];
        parts.push_back(static_cast<float>(sum));
      }
  return parts;
}

void expect_small_m(const SmallMCase& one) {
  SCOPED_TRACE(::testing::Message() << one.rows << " rows of " << one.terms << " terms, "
                                    << one.columns << " columns, " << one.num_parts << " parts");
  const Type bf16 = Type::kBfloat16;
  const Floats x = rounded(bf16, random_floats(one.rows * one.terms, 1));
  const Floats weight = rounded(bf16, random_floats(one.columns * one.terms, 2, 0.25));
  const Floats want = gemm_in_parts(one, x, weight);
  const Buffer on_x(bf16, x), on_weight(bf16, weight), parts(Floats(want.size(), NAN));
  expect_one_answer(
      [&](Stream stream) {
        return small_m_gemm({.rows = one.rows,
                             .terms = one.terms,
                             .columns = one.columns,
                             .x = on_x.get(),
                             .weight = on_weight.get(),
                             .num_parts = one.num_parts,
                             .parts = parts.as<float>()},
                            stream);
      },
      {&parts});
  expect_near(parts.floats(), want, cuda_test::tolerance_of(Type::kFloat32, 1e-4), "parts");
}

/// Up to 6 chunks of 128 terms of a part are in flight at once: more, exactly 6, and fewer.
TEST(CudaSmallMGemm, MultipliesLikeTheHost) {
  for (const SmallMCase& one :
       {SmallMCase{1, 128, 32, 1}, SmallMCase{5, 256, 64, 2}, SmallMCase{33, 2048, 64, 1},
        SmallMCase{64, 896, 96, 1}, SmallMCase{64, 2048, 1024, 4}, SmallMCase{64, 3072, 1024, 4},
        SmallMCase{40, 2048, 32, 8}})
    expect_small_m(one);
}

/// A row has the same bits as when it is alone.
TEST(CudaSmallMGemm, GivesARowTheSameBitsInAnyBatch) {
  constexpr int64_t kRows = 64, kTerms = 1024, kColumns = 96;
  const Type bf16 = Type::kBfloat16;
  const Buffer x(bf16, random_floats(kRows * kTerms, 1));
  const Buffer weight(bf16, random_floats(kColumns * kTerms, 2));
  const auto rows_of = [&](int64_t first, int64_t rows) {
    const Buffer parts(Floats(static_cast<size_t>(rows * kColumns), NAN));
    const auto* from = static_cast<const std::byte*>(x.get()) + first * kTerms * 2;
    expect_one_answer(
        [&](Stream stream) {
          return small_m_gemm({.rows = rows,
                               .terms = kTerms,
                               .columns = kColumns,
                               .x = from,
                               .weight = weight.get(),
                               .parts = parts.as<float>()},
                              stream);
        },
        {&parts});
    return parts.floats();
  };
  const Floats all = rows_of(0, kRows);
  for (const int64_t first : {0, 17, 63}) {
    SCOPED_TRACE(first);
    const auto begin = all.begin() + first * kColumns;
    // ATen's GEMMs do not promise equal bits.
    const Tolerance tolerance{has_own_kernels() ? 0 : 1e-4, has_own_kernels() ? 0 : 1e-5};
    expect_near(rows_of(first, 1), Floats(begin, begin + kColumns), tolerance, "row");
  }
}

TEST(CudaSmallMGemm, RefusesShapesItDoesNotSupport) {
  EXPECT_TRUE(small_m_gemm({}, nullptr).is_ok()) << "without rows there is no work";
  alignas(16) float room[4] = {};
  const SmallMGemmArgs args{
      .rows = 64, .terms = 1024, .columns = 96, .num_parts = 8, .parts = room};
  const auto fault = [&](auto change) {
    SmallMGemmArgs changed = args;
    change(changed);
    return fault_of(changed);
  };
  EXPECT_EQ(fault_of(args), nullptr);
  EXPECT_STREQ(fault([](auto& a) { a.rows = 65; }), "rows must be from 0 to 64");
  EXPECT_THAT(fault([](auto& a) { a.columns = 95; }), ::testing::HasSubstr("a multiple of 32"));
  EXPECT_THAT(fault([](auto& a) { a.num_parts = 9; }), ::testing::HasSubstr("from 1 to 8"));
  EXPECT_THAT(fault([](auto& a) { a.num_parts = 0; }), ::testing::HasSubstr("from 1 to 8"));
  EXPECT_THAT(fault([](auto& a) { a.terms = 512; }), ::testing::HasSubstr("in each part"));
  EXPECT_THAT(fault([&](auto& a) { a.parts = room + 1; }), ::testing::HasSubstr("of 16 bytes"));
}

struct LowRankCase {
  int64_t terms, columns, x_stride, y_stride;
  bool is_transposed;
};

/// Three slots of two groups each; one tile is full, one has one row and one is empty; rows without
/// a tile between them.
void expect_low_rank_gemms(const LowRankCase& one) {
  SCOPED_TRACE(::testing::Message() << one.terms << " terms, " << one.columns << " columns"
                                    << (one.is_transposed ? ", transposed" : ""));
  std::vector<AdapterTile> tiles = {{0, 64, 2}, {64, 1, 2}, {}, {70, 37, 0}, {107, 20, 1}};
  tiles[1].group = tiles[4].group = 1;
  constexpr int64_t kRows = 130, kSlots = 3, kGroups = 2;
  const int64_t group_stride = one.terms * one.columns + 16;
  const int64_t slot_stride = kGroups * group_stride + 8;
  const Type type = Type::kBfloat16;
  const Floats x = rounded(type, random_floats(kRows * one.x_stride, 1));
  const Floats weights = rounded(type, random_floats(kSlots * slot_stride, 2));
  const Floats before = rounded(type, random_floats(kRows * one.y_stride, 3));
  Floats want = before;
  for (const AdapterTile& tile : tiles)
    for (int64_t row = tile.first; row < tile.first + tile.rows; ++row)
      for (int64_t column = 0; column < one.columns; ++column) {
        double sum = want[static_cast<size_t>(row * one.y_stride + column)];
        for (int64_t t = 0; t < one.terms; ++t) {
          const int64_t at = one.is_transposed ? t * one.columns + column : column * one.terms + t;
          sum += double{x[static_cast<size_t>(row * one.x_stride + t)]} *
                 weights[static_cast<size_t>(tile.slot * slot_stride + tile.group * group_stride +
                                             at)];
        }
        want[static_cast<size_t>(row * one.y_stride + column)] = static_cast<float>(sum);
      }
  const Buffer on_x(type, x), on_weights(type, weights), on_tiles(tiles), y(type, before);
  expect_one_answer(
      [&](Stream stream) {
        return add_low_rank_gemms({.terms = one.terms,
                                   .columns = one.columns,
                                   .num_tiles = std::ssize(tiles),
                                   .tiles = on_tiles.as<AdapterTile>(),
                                   .x = on_x.get(),
                                   .x_stride = one.x_stride,
                                   .weights = on_weights.get(),
                                   .slot_stride = slot_stride,
                                   .group_stride = group_stride,
                                   .is_transposed = one.is_transposed,
                                   .y = y.get(),
                                   .y_stride = one.y_stride},
                                  stream);
      },
      {&y});
  expect_near(y.floats(type), want, cuda_test::tolerance_of(type, 1e-4), "y");
}

TEST(CudaLowRankGemm, AddToTheOutput) {
  for (const bool is_transposed : {false, true})
    for (const LowRankCase& one :
         {LowRankCase{16, 128, 16, 128, is_transposed},
          LowRankCase{48, 200, 64, 304, is_transposed}, LowRankCase{64, 8, 64, 8, is_transposed},
          LowRankCase{112, 264, 120, 264, is_transposed}})
      expect_low_rank_gemms(one);
}

TEST(CudaLowRankGemm, HaveSizesOfMultiples) {
  EXPECT_TRUE(add_low_rank_gemms({}, nullptr).is_ok());
  EXPECT_STREQ(add_low_rank_gemms({.terms = 8, .columns = 8, .num_tiles = 1}, nullptr).fault,
               "terms must be a multiple of 16");
  EXPECT_STREQ(add_low_rank_gemms({.terms = 16, .columns = 12, .num_tiles = 1}, nullptr).fault,
               "columns must be a multiple of 8, up to 8388480");
  EXPECT_STREQ(
      add_low_rank_gemms({.terms = 16, .columns = 8, .num_tiles = 1, .x_stride = 4}, nullptr).fault,
      "strides must be multiples of 8, x, weights and y at addresses of 16 bytes");
}

}  // namespace
}  // namespace primerl::cuda
