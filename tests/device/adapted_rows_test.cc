// Norms and SwiGLU that compute the LoRA deltas of the rows that they read: compared with sums in
// double on the host, in tiles of other sizes, and beside an adapter with NaN.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "graph/base/random.h"
#include "kernels/cuda/ops/cuda_checks.h"
#include "tests/device/adapted_rows.h"

namespace primerl::cuda {
namespace {

using cuda_test::AdaptedLinear;
using cuda_test::AdaptedRows;
using cuda_test::Buffer;
using cuda_test::expect_near;
using cuda_test::expect_one_answer;
using cuda_test::Floats;
using cuda_test::random_floats;
using cuda_test::rounded;
using cuda_test::tolerance_of;
using ::testing::HasSubstr;

constexpr Type kTypes[] = {Type::kFloat32, Type::kBfloat16};

struct Shape {
  int64_t rows, width;
};
/// Rows of one vector per thread, of several, and of no whole vectors; more than one block of
/// columns.
constexpr Shape kShapes[] = {{1, 8}, {3, 7}, {17, 100}, {21, 104}, {20, 1024}, {6, 5120}};
/// Two slices of the terms, one, and more than are read at once.
constexpr int64_t kTerms[] = {1032, 40, 3080};

struct Case {
  Type type;
  Shape shape;
  uint64_t seed;

  int64_t size() const { return shape.rows * shape.width; }
  /// The linears with adapters: a stage's output, or gate and up.
  AdaptedLinear whole() const { return {kTerms[seed], {shape.width}}; }
  AdaptedLinear halves() const { return {kTerms[seed], {shape.width, shape.width}}; }
  std::string name() const {
    return std::string(cuda_test::name_of(type)) + ", seed " + std::to_string(seed) + ", " +
           std::to_string(shape.rows) + " x " + std::to_string(shape.width);
  }
};
template <class Body>
void for_cases(const Body& body, uint64_t num_seeds = std::size(kTerms)) {
  for (const Type type : kTypes)
    for (const Shape& shape : kShapes)
      for (uint64_t seed = 0; seed < num_seeds; ++seed) {
        const Case one{type, shape, seed};
        SCOPED_TRACE(one.name());
        body(one);
      }
}

/// Sum and norm, in one buffer.
struct Normed {
  Floats sum, y;
};
Normed normed(const Case& one, const AdaptedRows& added, bool is_in_parts) {
  const Floats delta = rounded(one.type, random_floats(one.size(), mix(one.seed, 2)));
  const Buffer x(one.type, random_floats(one.size(), mix(one.seed, 1), 3));
  const Buffer dense(one.type, delta), parts(delta);
  const Buffer weight(one.type, random_floats(one.shape.width, mix(one.seed, 3)));
  const Buffer sum(one.type, Floats(delta.size(), NAN)), y(one.type, Floats(delta.size(), NAN));
  RmsNormArgs args{.rows = one.shape.rows,
                   .width = one.shape.width,
                   .epsilon = 1e-6F,
                   .type = one.type,
                   .x = x.get(),
                   .weight = weight.get(),
                   .y = y.get(),
                   .residual = Residual{.sum = sum.get()}};
  if (is_in_parts)
    args.residual->delta = SplitKOutput{parts.as<float>(), 1, added.lora_delta()};
  else
    args.residual->delta = GemmOutput{dense.get(), added.lora_delta()};
  expect_one_answer(
      [&](Stream stream) { return added.before([&] { return rms_norm(args, stream); }, stream); },
      {&sum, &y});
  return {sum.floats(one.type), y.floats(one.type)};
}

TEST(CudaAdaptedRows, AreNormed) {
  for_cases([](const Case& one) {
    const AdaptedRows added(one.type, one.shape.rows, one.whole(), one.seed);
    const Floats sums = added.sums();
    const Normed got = normed(one, added, false);
    Floats want = rounded(one.type, random_floats(one.size(), mix(one.seed, 1), 3));
    const Floats delta = rounded(one.type, random_floats(one.size(), mix(one.seed, 2)));
    for (size_t i = 0; i < want.size(); ++i) want[i] += delta[i] + sums[i];
    expect_near(got.sum, want, tolerance_of(one.type, 1e-4), "sum");
    const Floats weight = rounded(one.type, random_floats(one.shape.width, mix(one.seed, 3)));
    Floats y(want.size()), inverse(static_cast<size_t>(one.shape.rows));
    cpu_ops().rms_norm({one.shape.rows, one.shape.width, 1e-6F, got.sum.data(), weight.data(),
                        y.data(), inverse.data()});
    expect_near(got.y, y, tolerance_of(one.type, 1e-6), "y");
    const Normed of_parts = normed(one, added, true);
    EXPECT_TRUE(of_parts.sum == got.sum && of_parts.y == got.y) << "in parts";
  });
}

Floats activated(const Case& one, const AdaptedRows& added) {
  const Buffer gate_up(one.type, random_floats(2 * one.size(), mix(one.seed, 1), 3));
  const Buffer out(one.type, Floats(static_cast<size_t>(one.size()), NAN));
  expect_one_answer(
      [&](Stream stream) {
        return added.before(
            [&] {
              return swiglu({one.shape.rows,
                             one.shape.width,
                             one.type,
                             {gate_up.get(), added.lora_delta()},
                             out.get()},
                            stream);
            },
            stream);
      },
      {&out});
  return out.floats(one.type);
}

TEST(CudaAdaptedRows, AreActivated) {
  for_cases([](const Case& one) {
    const AdaptedRows added(one.type, one.shape.rows, one.halves(), one.seed);
    const Floats sums = added.sums();
    Floats sum = rounded(one.type, random_floats(2 * one.size(), mix(one.seed, 1), 3));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += sums[i];
    Floats want(static_cast<size_t>(one.size()));
    cpu_ops().swiglu({one.shape.rows, one.shape.width, sum.data(), want.data()});
    expect_near(activated(one, added), want, tolerance_of(one.type, 5e-4), "activated");
  });
}

TEST(CudaAdaptedRows, AreTheSameInTilesOfAnySize) {
  for_cases(
      [](const Case& one) {
        const auto with = [&](const AdaptedLinear& linear, bool has_small_tiles) {
          return AdaptedRows(one.type, one.shape.rows, linear, one.seed, {has_small_tiles, -1});
        };
        EXPECT_TRUE(activated(one, with(one.halves(), false)) ==
                    activated(one, with(one.halves(), true)));
        const Normed wide = normed(one, with(one.whole(), false), false);
        const Normed narrow = normed(one, with(one.whole(), true), false);
        EXPECT_TRUE(wide.sum == narrow.sum && wide.y == narrow.y);
      },
      1);
}

TEST(CudaAdaptedRows, AreTheSameBesideABrokenRow) {
  constexpr int32_t kBroken = 1;
  for_cases(
      [](const Case& one) {
        const auto expect_apart = [&](const AdaptedRows& broken, const Floats& whole,
                                      const Floats& got) {
          const auto width = static_cast<size_t>(one.shape.width);
          for (size_t row = 0; row < static_cast<size_t>(one.shape.rows); ++row) {
            if (broken.has_slot(static_cast<int64_t>(row), kBroken)) {
              EXPECT_TRUE(std::isnan(got[row * width])) << row;
              continue;
            }
            EXPECT_TRUE(std::equal(whole.begin() + static_cast<int64_t>(row * width),
                                   whole.begin() + static_cast<int64_t>((row + 1) * width),
                                   got.begin() + static_cast<int64_t>(row * width)))
                << row;
          }
        };
        const auto with = [&](const AdaptedLinear& linear, int32_t broken_slot) {
          return AdaptedRows(one.type, one.shape.rows, linear, one.seed, {false, broken_slot});
        };
        const AdaptedRows halves = with(one.halves(), kBroken);
        const AdaptedRows whole = with(one.whole(), kBroken);
        expect_apart(halves, activated(one, with(one.halves(), -1)), activated(one, halves));
        expect_apart(whole, normed(one, with(one.whole(), -1), false).y,
                     normed(one, whole, false).y);
      },
      1);
}

TEST(CudaAdaptedRows, NameWhatIsWrong) {
  const AdaptedRows added(Type::kFloat32, 2, {8, {8}}, 0);
  float number = 0;
  RmsNormArgs norm{.rows = 2, .width = 8};
  const auto fault_with = [&](const auto& change) {
    LoraDelta other = *added.lora_delta();
    change(other);
    norm.residual = {GemmOutput{&number, &other}, &number};
    const char* fault = fault_of(norm);
    return std::string(fault == nullptr ? "" : fault);
  };
  EXPECT_EQ(fault_with([](auto&) {}), "");
  EXPECT_THAT(fault_with([](auto& a) { a.num_rows = 3; }), HasSubstr("rows and columns"));
  EXPECT_THAT(fault_with([](auto& a) { a.of.columns = 9; }), HasSubstr("rows and columns"));
  EXPECT_THAT(fault_with([](auto& a) { a.of.type = Type::kBfloat16; }), HasSubstr("the type"));
  EXPECT_THAT(fault_with([](auto& a) { a.of.parts[0].columns = 4; }), HasSubstr("whole norms"));
  EXPECT_THAT(fault_with([](auto& a) { a.rows = nullptr; }), HasSubstr("the adapter of each row"));
  EXPECT_THAT(fault_with([](auto& a) { a.of.workspace = nullptr; }), HasSubstr("a workspace"));
  LoraDelta many = *added.lora_delta();
  many.of.rank_max = 65;
  EXPECT_STREQ(shrink_adapters(many, nullptr).fault, "rank_max must be from 1 to 64");
  EXPECT_TRUE(shrink_adapters({}, nullptr).is_ok()) << "without rows there is no work";
}

}  // namespace
}  // namespace primerl::cuda
