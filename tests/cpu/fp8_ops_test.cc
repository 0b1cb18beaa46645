// Rounding to FP8 numbers with block scales, compared with libtorch's float8_e4m3fn and with plain
// C++; the GEMMs that read them, compared with libtorch's autograd.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

// ATen.h has a CHECK of its own.
#undef CHECK
#include "graph/base/random.h"
#include "kernels/cpu/weights/product.h"
#include "kernels/ops/fp8.h"
#include "kernels/ops/ops.h"

namespace primerl {
namespace {

using Floats = std::vector<float>;

constexpr int64_t kBlock = 128;

/// Magnitudes from far below the least code to far above the largest, of both signs.
Floats spread_numbers(int64_t count, uint64_t seed) {
  RandomStream random(seed);
  Floats values(static_cast<size_t>(count));
  for (float& value : values) {
    const double magnitude = std::exp2(24 * random.uniform() - 14);
    value = static_cast<float>(random.uniform() < 0.5 ? -magnitude : magnitude);
  }
  return values;
}

at::Tensor tensor_of(const Floats& values, std::vector<int64_t> shape) {
  return at::tensor(values).view(shape);
}

Floats floats_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous();
  return Floats(flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel());
}

/// Each block [.., size] of the last dimension with one scale, by libtorch's type.
at::Tensor rounded_by_torch(const at::Tensor& blocks) {
  const at::Tensor scale = blocks.abs().amax({-1}, true).clamp_min(kFp8Floor) / kE4m3Largest;
  return (blocks / scale).clamp(-kE4m3Largest, kE4m3Largest).to(at::kFloat8_e4m3fn).to(at::kFloat) *
         scale;
}

/// A scale for each 128 numbers of a row; the last block is padded with zeros.
at::Tensor rows_by_torch(const at::Tensor& x) {
  const int64_t rows = x.size(0), width = x.size(1), blocks = (width + kBlock - 1) / kBlock;
  const at::Tensor padded = at::constant_pad_nd(x, {0, blocks * kBlock - width});
  return rounded_by_torch(padded.view({rows, blocks, kBlock}))
      .view({rows, blocks * kBlock})
      .narrow(1, 0, width);
}

/// A scale for each 128 x 128 of a matrix, padded with zeros.
at::Tensor matrix_by_torch(const at::Tensor& x) {
  const int64_t rows = x.size(0), width = x.size(1);
  const int64_t down = (rows + kBlock - 1) / kBlock, right = (width + kBlock - 1) / kBlock;
  const at::Tensor padded =
      at::constant_pad_nd(x, {0, right * kBlock - width, 0, down * kBlock - rows});
  const at::Tensor blocks = padded.view({down, kBlock, right, kBlock}).permute({0, 2, 1, 3});
  const at::Tensor rounded = rounded_by_torch(blocks.reshape({down, right, kBlock * kBlock}));
  return rounded.view({down, right, kBlock, kBlock})
      .permute({0, 2, 1, 3})
      .reshape({down * kBlock, right * kBlock})
      .narrow(0, 0, rows)
      .narrow(1, 0, width);
}

class Fp8Ops : public ::testing::TestWithParam<bool> {
 protected:
  Floats rows(const Floats& x, int64_t width) const {
    Floats y(x.size(), -7);
    ops_.round_fp8_rows({static_cast<int64_t>(x.size()) / width, width, x.data(), y.data()});
    return y;
  }
  const CpuOps& ops_ = GetParam() ? baseline_cpu_ops() : cpu_ops();
};

TEST_P(Fp8Ops, RowsHaveTheBitsOfTorchAndOfPlainCode) {
  for (const int64_t width : {1, 7, 8, 127, 128, 129, 200, 256, 300}) {
    const Floats x = spread_numbers(5 * width, static_cast<uint64_t>(width));
    const Floats got = rows(x, width);
    EXPECT_EQ(got, floats_of(rows_by_torch(tensor_of(x, {5, width})))) << width;
    for (int64_t row = 0; row < 5; ++row)
      for (int64_t first = 0; first < width; first += kBlock) {
        float largest = 0;
        const int64_t end = std::min(width, first + kBlock);
        for (int64_t i = first; i < end; ++i)
          largest = std::max(largest, std::abs(x[static_cast<size_t>(row * width + i)]));
        const float scale = fp8_scale(largest);
        for (int64_t i = first; i < end; ++i) {
          const auto at = static_cast<size_t>(row * width + i);
          ASSERT_EQ(got[at], float_of_e4m3(e4m3_of(x[at] / scale)) * scale) << width << " " << at;
        }
      }
  }
}

TEST_P(Fp8Ops, EveryCodeKeepsItsNumberAndTiesGoToEven) {
  Floats codes;
  for (int code = 0; code < 256; ++code)
    if ((code & 0x7f) != 0x7f) codes.push_back(float_of_e4m3(static_cast<uint8_t>(code)));
  codes.push_back(448);  // two blocks of 128, both with scale 1
  codes.push_back(448);
  codes[127] = 448;
  ASSERT_EQ(codes.size(), 256U);
  EXPECT_EQ(rows(codes, 256), codes);
  // 17 is between the codes 16 and 18, 19 between 18 and 20; 2^-10 between 0 and 2^-9.
  EXPECT_EQ(rows({448, 17, 19, -17, 0x1p-10F, 0x3p-10F}, 6),
            (Floats{448, 16, 20, -16, 0, 0x1p-8F}));
}

TEST_P(Fp8Ops, ZerosStayZerosAndABlockWithoutAScaleIsNaN) {
  EXPECT_EQ(rows(Floats(130, 0), 130), Floats(130, 0));
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float broken : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    Floats x(256, 1);
    x[3] = broken;
    const Floats y = rows(x, 256);
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i < 128) << broken << i;
  }
}

TEST_P(Fp8Ops, ABlockHasOneScaleForAllItsRunsAndReportsItsGreatestMagnitude) {
  const int64_t width = 200;
  const Floats x = spread_numbers(128 * width, 5);
  const at::Tensor all = tensor_of(x, {128, width});
  const Floats want = floats_of(matrix_by_torch(all));
  Floats y(x.size());
  for (const int64_t first : {0, 128}) {
    const int64_t count = std::min(kBlock, width - first);
    const float largest = ops_.round_fp8_block({.runs = 128,
                                                .count = count,
                                                .stride = width,
                                                .x = x.data() + first,
                                                .y = y.data() + first});
    EXPECT_EQ(largest, all.narrow(1, first, count).abs().max().item<float>());
  }
  EXPECT_EQ(y, want);
  Floats broken = x;
  broken[width + 1] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(std::isfinite(ops_.round_fp8_block(
      {.runs = 128, .count = 128, .stride = width, .x = broken.data(), .y = broken.data()})));
}

INSTANTIATE_TEST_SUITE_P(Tables, Fp8Ops, ::testing::Bool(), [](const auto& one) {
  return one.param ? std::string("baseline") : std::string("best");
});

/// x + (rounded(x) - x), where only the first x has a gradient.
at::Tensor straight_through(const at::Tensor& x) {
  return x + (rows_by_torch(x.detach()) - x.detach());
}

void expect_near(const Floats& got, const at::Tensor& want) {
  const Floats values = floats_of(want);
  ASSERT_EQ(got.size(), values.size());
  const double scale = want.abs().max().item<double>();
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], values[i], 2e-6 * scale) << i;
}

/// Both numerics: each of three groups, the second without rows.
class Fp8Gemms : public ::testing::TestWithParam<Numerics> {};

TEST_P(Fp8Gemms, ReadRoundedNumbersAndHaveTheGradientsOfTheRoundedGraph) {
  constexpr int64_t kRows = 40, kColumns = 72, kTerms = 200, kGroups = 3;
  const std::array<int64_t, kGroups> ends = {25, 25, kRows};
  const at::Tensor masters =
      tensor_of(spread_numbers(kGroups * kColumns * kTerms, 1), {kGroups, kColumns, kTerms});
  std::vector<at::Tensor> rounded;
  for (int64_t g = 0; g < kGroups; ++g) rounded.push_back(matrix_by_torch(masters[g]));
  at::Tensor weights = at::stack(rounded).requires_grad_(true);
  at::Tensor x = tensor_of(spread_numbers(kRows * kTerms, 2), {kRows, kTerms}).requires_grad_(true);
  const at::Tensor dy = tensor_of(spread_numbers(kRows * kColumns, 3), {kRows, kColumns});
  const at::Tensor read = straight_through(x);
  const at::Tensor y = at::cat(
      {read.narrow(0, 0, 25).mm(weights[0].t()), read.narrow(0, 25, 15).mm(weights[2].t())});
  (y * dy).sum().backward();

  const Floats plain = floats_of(weights), rows = floats_of(x), gradient = floats_of(dy);
  const Matrix matrix{.groups = kGroups,
                      .columns = kColumns,
                      .terms = kTerms,
                      .plain = plain.data(),
                      .is_fp8 = true};
  Gemms gemms(GetParam());
  Floats out(kRows * kColumns), dx(rows.size()), dweight(plain.size());
  gemms.grouped(ends, rows.data(), matrix, out.data());
  gemms.grouped_input_gradient(ends, gradient.data(), matrix, dx.data());
  gemms.grouped_weight_gradient(ends, gradient.data(), rows.data(), matrix, dweight.data());
  expect_near(out, y);
  expect_near(dx, x.grad());
  expect_near(dweight, weights.grad());

  // A dense matrix is one group.
  const Matrix dense{.columns = kColumns, .terms = kTerms, .plain = plain.data(), .is_fp8 = true};
  Floats alone(25 * kColumns);
  gemms.linear(25, rows.data(), dense, nullptr, nullptr, alone.data());
  expect_near(alone, y.narrow(0, 0, 25));
}

INSTANTIATE_TEST_SUITE_P(Both, Fp8Gemms, ::testing::Values(Numerics::kInvariant, Numerics::kFast),
                         [](const auto& one) {
                           return one.param == Numerics::kFast ? std::string("fast")
                                                               : std::string("invariant");
                         });

}  // namespace
}  // namespace primerl
