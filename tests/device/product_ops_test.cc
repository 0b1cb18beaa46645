// Products of a few rows against sums in double on the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/device/buffer.h"

namespace primerl::cuda {
namespace {

using cuda_test::Buffer;
using cuda_test::expect_near;
using cuda_test::expect_one_answer;
using cuda_test::Floats;
using cuda_test::random_floats;
using cuda_test::rounded;

struct FewRowsCase {
  int64_t rows, terms, columns;
  bool has_bias;
};

void expect_product(const FewRowsCase& one, Type type) {
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
        return few_rows_product({.rows = one.rows,
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
  // Terms up to 1: what cancels is of the order of the root of their number.
  expect_near(y.floats(type), want, cuda_test::tolerance_of(type, 1e-4), "y");
}

TEST(CudaFewRows, MultiplyLikeTheHost) {
  for (const Type type : {Type::kFloat32, Type::kBfloat16})
    for (const FewRowsCase& one : {FewRowsCase{1, 8, 1, false}, FewRowsCase{1, 1024, 4096, false},
                                   FewRowsCase{2, 1032, 33, true}, FewRowsCase{3, 264, 100, true},
                                   FewRowsCase{4, 3072, 1024, true}})
      expect_product(one, type);
}

TEST(CudaFewRows, AreUpToFourOfMultiplesOfEight) {
  EXPECT_TRUE(few_rows_product({}, nullptr).is_ok());
  EXPECT_STREQ(few_rows_product({.rows = 5, .terms = 8, .columns = 1}, nullptr).fault,
               "rows must be from 0 to 4");
  EXPECT_STREQ(few_rows_product({.rows = 1, .terms = 9, .columns = 1}, nullptr).fault,
               "terms must be a multiple of 8, x and weight at addresses of 16 bytes");
}

struct NarrowCase {
  int64_t terms, columns, x_stride, y_stride;
  bool is_transposed;
};

/// Three slots of other numbers of rows, one tile full and one of a row; rows of nobody between.
void expect_narrow_products(const NarrowCase& one) {
  SCOPED_TRACE(::testing::Message() << one.terms << " terms, " << one.columns << " columns"
                                    << (one.is_transposed ? ", transposed" : ""));
  const std::vector<NarrowTile> tiles = {{0, 64, 2}, {64, 1, 2}, {70, 37, 0}, {107, 20, 1}};
  constexpr int64_t kRows = 130, kSlots = 3;
  const int64_t slot_stride = one.terms * one.columns + 8;
  const Type type = Type::kBfloat16;
  const Floats x = rounded(type, random_floats(kRows * one.x_stride, 1));
  const Floats weights = rounded(type, random_floats(kSlots * slot_stride, 2));
  const Floats before = rounded(type, random_floats(kRows * one.y_stride, 3));
  Floats want = before;
  for (const NarrowTile& tile : tiles)
    for (int64_t row = tile.first; row < tile.first + tile.rows; ++row)
      for (int64_t column = 0; column < one.columns; ++column) {
        double sum = want[static_cast<size_t>(row * one.y_stride + column)];
        for (int64_t t = 0; t < one.terms; ++t) {
          const int64_t at =
              one.is_transposed ? t * one.columns + column : column * one.terms + t;
          sum += double{x[static_cast<size_t>(row * one.x_stride + t)]} *
                 weights[static_cast<size_t>(tile.slot * slot_stride + at)];
        }
        want[static_cast<size_t>(row * one.y_stride + column)] = static_cast<float>(sum);
      }
  const Buffer on_x(type, x), on_weights(type, weights), on_tiles(tiles), y(type, before);
  expect_one_answer(
      [&](Stream stream) {
        return add_narrow_products({.terms = one.terms,
                                    .columns = one.columns,
                                    .num_tiles = std::ssize(tiles),
                                    .tiles = on_tiles.as<NarrowTile>(),
                                    .x = on_x.get(),
                                    .x_stride = one.x_stride,
                                    .weights = on_weights.get(),
                                    .slot_stride = slot_stride,
                                    .is_transposed = one.is_transposed,
                                    .y = y.get(),
                                    .y_stride = one.y_stride},
                                   stream);
      },
      {&y});
  expect_near(y.floats(type), want, cuda_test::tolerance_of(type, 1e-4), "y");
}

TEST(CudaNarrowProducts, AddToWhatIsThere) {
  for (const bool is_transposed : {false, true})
    for (const NarrowCase& one :
         {NarrowCase{16, 128, 16, 128, is_transposed}, NarrowCase{48, 200, 64, 304, is_transposed},
          NarrowCase{64, 8, 64, 8, is_transposed}, NarrowCase{112, 264, 120, 264, is_transposed}})
      expect_narrow_products(one);
}

TEST(CudaNarrowProducts, AreOfMultiples) {
  EXPECT_TRUE(add_narrow_products({}, nullptr).is_ok());
  EXPECT_STREQ(add_narrow_products({.terms = 8, .columns = 8, .num_tiles = 1}, nullptr).fault,
               "terms must be a multiple of 16");
  EXPECT_STREQ(add_narrow_products({.terms = 16, .columns = 12, .num_tiles = 1}, nullptr).fault,
               "columns must be a multiple of 8, up to 8388480");
  EXPECT_STREQ(
      add_narrow_products({.terms = 16, .columns = 8, .num_tiles = 1, .x_stride = 4}, nullptr)
          .fault,
      "strides must be multiples of 8, x, weights and y at addresses of 16 bytes");
}

}  // namespace
}  // namespace primerl::cuda
