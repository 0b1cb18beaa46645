// FP8 with block scales compared with plain C++ (kernels/ops/fp8.h), bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/base/random.h"
#include "kernels/ops/fp8.h"
#include "tests/device/buffer.h"

namespace primerl::cuda {
namespace {

using cuda_test::Buffer;
using cuda_test::expect_one_answer;
using cuda_test::Floats;
using cuda_test::name_of;
using cuda_test::random_floats;
using cuda_test::rounded;
using ::testing::HasSubstr;

using Codes = std::vector<uint8_t>;

constexpr Type kTypes[] = {Type::kFloat32, Type::kBfloat16};

Codes codes_of(const Buffer& buffer) {
  const auto bytes = buffer.bytes();
  Codes codes;
  for (const std::byte byte : bytes) codes.push_back(static_cast<uint8_t>(byte));
  return codes;
}

/// Values of many magnitudes, some of them 0; some blocks are all 0.
Floats varied(int64_t count, uint64_t seed) {
  Floats x = random_floats(count, seed, 3);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = std::ldexp(x[i], static_cast<int>(i % 23) - 11);
    if (i / 128 % 11 == 4 || i % 31 == 0) x[i] = 0;
  }
  return x;
}

TEST(Fp8, CodesAreTheNearestNumbers) {
  for (int code = 0; code < 256; ++code) {
    const float value = float_of_e4m3(static_cast<uint8_t>(code));
    if (std::isnan(value)) continue;
    EXPECT_EQ(e4m3_of(value), code);
  }
  // Every pair of adjacent codes: the midpoint rounds to the even one, values beside it to their
  // side.
  for (uint8_t code = 0; code < 0x7e; ++code) {
    const float low = float_of_e4m3(code), high = float_of_e4m3(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(e4m3_of(middle), code + (code & 1)) << int{code};
    EXPECT_EQ(e4m3_of(std::nextafter(middle, 0.0F)), code);
    EXPECT_EQ(e4m3_of(std::nextafter(middle, 1000.0F)), code + 1);
    EXPECT_EQ(e4m3_of(-high), (code + 1) | 0x80);
  }
  EXPECT_EQ(float_of_e4m3(e4m3_of(1e30F)), 448);
  EXPECT_TRUE(std::isnan(float_of_e4m3(e4m3_of(NAN))));
}

struct RowsOfFp8 {
  Type type;
  int64_t rows, width, code_stride, scale_stride;
};

void expect_rows(const RowsOfFp8& one) {
  SCOPED_TRACE(testing::Message() << name_of(one.type) << ", " << one.rows << " x " << one.width
                                  << ", stride " << one.code_stride);
  const Floats x = rounded(one.type, varied(one.rows * one.width, 5));
  const int64_t blocks = one.code_stride / kFp8Block;
  Codes want(static_cast<size_t>(one.rows * one.code_stride), 0);
  Floats scales(static_cast<size_t>(blocks * one.scale_stride), 7);
  for (int64_t row = 0; row < one.rows; ++row)
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t begin = block * kFp8Block;
      float largest = 0;
      for (int64_t i = begin; i < begin + kFp8Block && i < one.width; ++i)
        largest = std::max(largest, std::abs(x[static_cast<size_t>(row * one.width + i)]));
      const float scale = fp8_scale(largest);
      scales[static_cast<size_t>(block * one.scale_stride + row)] = scale;
      for (int64_t i = begin; i < begin + kFp8Block && i < one.width; ++i)
        want[static_cast<size_t>(row * one.code_stride + i)] =
            e4m3_of(x[static_cast<size_t>(row * one.width + i)] / scale);
    }
  const Buffer on_x(one.type, x), codes(Codes(want.size(), 0x55));
  const Buffer to_scales(Floats(scales.size(), 7));
  expect_one_answer(
      [&](Stream stream) {
        return quantise_rows({one.rows, one.width, one.type, on_x.get(), one.code_stride,
                              codes.get(), one.scale_stride, to_scales.as<float>()},
                             stream);
      },
      {&codes, &to_scales});
  EXPECT_EQ(to_scales.floats(), scales);
  EXPECT_TRUE(codes_of(codes) == want) << "the codes differ";
}

TEST(CudaFp8, RowsAreTheHostsToTheBit) {
  for (const Type type : kTypes)
    for (const RowsOfFp8& one :
         {RowsOfFp8{type, 1, 128, 128, 1}, RowsOfFp8{type, 1, 128, 512, 16},
          RowsOfFp8{type, 77, 896, 1024, 80}, RowsOfFp8{type, 300, 3072, 3072, 304}})
      expect_rows(one);
}

void expect_blocks(Type type, int64_t rows, int64_t width) {
  SCOPED_TRACE(testing::Message() << name_of(type) << ", " << rows << " x " << width);
  const Floats x = rounded(type, varied(rows * width, 6));
  const int64_t code_stride = width + 128, scale_stride = code_stride / kFp8Block;
  const int64_t transposed_code_stride = rows + 256, transposed_scale_stride = rows / kFp8Block + 2;
  Codes want(static_cast<size_t>(rows * code_stride), 0x55);
  Codes transposed(static_cast<size_t>(width * transposed_code_stride), 0x55);
  Floats scales(static_cast<size_t>(rows / kFp8Block * scale_stride), 7);
  Floats transposed_scales(static_cast<size_t>(width / kFp8Block * transposed_scale_stride), 7);
  const auto number = [&](int64_t row, int64_t column) {
    return x[static_cast<size_t>(row * width + column)];
  };
  for (int64_t r = 0; r < rows; r += kFp8Block)
    for (int64_t c = 0; c < width; c += kFp8Block) {
      float largest = 0;
      for (int64_t i = 0; i < kFp8Block * kFp8Block; ++i)
        largest = std::max(largest, std::abs(number(r + i / kFp8Block, c + i % kFp8Block)));
      const float scale = fp8_scale(largest);
      scales[static_cast<size_t>(r / kFp8Block * scale_stride + c / kFp8Block)] = scale;
      transposed_scales[static_cast<size_t>(c / kFp8Block * transposed_scale_stride +
                                            r / kFp8Block)] = scale;
      for (int64_t i = 0; i < kFp8Block * kFp8Block; ++i) {
        const int64_t row = r + i / kFp8Block, column = c + i % kFp8Block;
        const uint8_t code = e4m3_of(number(row, column) / scale);
        want[static_cast<size_t>(row * code_stride + column)] = code;
        transposed[static_cast<size_t>(column * transposed_code_stride + row)] = code;
      }
    }
  const Buffer on_x(type, x), codes(Codes(want.size(), 0x55));
  const Buffer transposed_codes(Codes(transposed.size(), 0x55)),
      to_scales(Floats(scales.size(), 7));
  const Buffer to_transposed_scales(Floats(transposed_scales.size(), 7));
  expect_one_answer(
      [&](Stream stream) {
        return quantise_blocks(
            {rows, width, type, on_x.get(), code_stride, codes.get(), scale_stride,
             to_scales.as<float>(), transposed_code_stride, transposed_codes.get(),
             transposed_scale_stride, to_transposed_scales.as<float>()},
            stream);
      },
      {&codes, &to_scales, &transposed_codes, &to_transposed_scales});
  EXPECT_EQ(to_scales.floats(), scales);
  EXPECT_EQ(to_transposed_scales.floats(), transposed_scales);
  EXPECT_TRUE(codes_of(codes) == want) << "the codes differ";
  EXPECT_TRUE(codes_of(transposed_codes) == transposed) << "the transposed codes differ";
}

TEST(CudaFp8, MatricesAreTheHostsToTheBitBothWays) {
  for (const Type type : kTypes) {
    expect_blocks(type, 128, 128);
    expect_blocks(type, 384, 896);
    expect_blocks(type, 1024, 256);
  }
}

TEST(CudaFp8, RefusesShapesItDoesNotSupport) {
  EXPECT_TRUE(quantise_rows({}, nullptr).is_ok());
  EXPECT_TRUE(quantise_blocks({}, nullptr).is_ok());
  EXPECT_THAT(quantise_rows({.rows = 1, .width = 127, .code_stride = 128}, nullptr).fault,
              HasSubstr("multiples of 128"));
  EXPECT_THAT(quantise_rows({.rows = 1, .width = 256, .code_stride = 128}, nullptr).fault,
              HasSubstr("at least width"));
  EXPECT_THAT(quantise_blocks({.rows = 64, .width = 128}, nullptr).fault,
              HasSubstr("multiples of 128"));
  EXPECT_THAT(quantise_blocks({.rows = 128, .width = 128}, nullptr).fault,
              HasSubstr("at least the size of a row"));
}

}  // namespace
}  // namespace primerl::cuda
