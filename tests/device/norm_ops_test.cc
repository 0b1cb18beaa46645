// RMS norm, SwiGLU and AdamW of the CUDA device compared with those of the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "graph/base/random.h"
#include "tests/device/buffer.h"
#include "tests/device/memory.h"

namespace primerl::cuda {
namespace {

using cuda_test::Buffer;
using cuda_test::expect_near;
using cuda_test::expect_one_answer;
using cuda_test::Floats;
using cuda_test::name_of;
using cuda_test::num_seeds;
using cuda_test::random_floats;
using cuda_test::rounded;
using cuda_test::tolerance_of;
using ::testing::HasSubstr;

constexpr Type kTypes[] = {Type::kFloat32, Type::kBfloat16};
constexpr int64_t kRows[] = {1, 2, 3, 17, 300, 2049};
constexpr int64_t kWidths[] = {1, 7, 8, 64, 100, 129, 1000, 1024, 4095, 4096, 5120, 16384};
constexpr uint64_t kSeeds = 24;

template <size_t kCount>
int64_t one_of(const int64_t (&values)[kCount], RandomStream& random) {
  return values[random.below(kCount)];
}

struct Matrix {
  int64_t rows;
  int64_t width;
  int64_t size() const { return rows * width; }
};
Matrix random_shape(uint64_t seed) {
  RandomStream random(seed);
  return {one_of(kRows, random), one_of(kWidths, random)};
}
std::string name_of_case(Type type, uint64_t seed, Matrix shape) {
  return std::string(name_of(type)) + ", seed " + std::to_string(seed) + ", " +
         std::to_string(shape.rows) + " x " + std::to_string(shape.width);
}

Floats sum_of(Floats a, const Floats& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

/// The CPU's norm of `s`, with the inverse RMS of each row.
struct CpuNorm {
  Floats y, inverse;
};
CpuNorm cpu_norm(Matrix shape, const Floats& s, const Floats& weight) {
  CpuNorm norm{Floats(s.size()), Floats(static_cast<size_t>(shape.rows))};
  cpu_ops().rms_norm({shape.rows, shape.width, 1e-6F, s.data(), weight.data(), norm.y.data(),
                      norm.inverse.data()});
  return norm;
}

void expect_norm(Type type, uint64_t seed, Matrix shape, bool has_delta) {
  SCOPED_TRACE(name_of_case(type, seed, shape));
  const Floats x = rounded(type, random_floats(shape.size(), mix(seed, 1), 3));
  const Floats delta = rounded(type, random_floats(shape.size(), mix(seed, 2)));
  const Floats weight = rounded(type, random_floats(shape.width, mix(seed, 3)));
  const Floats s = has_delta ? rounded(type, sum_of(x, delta)) : x;
  const CpuNorm want = cpu_norm(shape, s, weight);

  const Buffer on_x(type, x), on_delta(type, delta), on_weight(type, weight);
  const Buffer sum(type, Floats(x.size(), NAN)), y(type, Floats(x.size(), NAN));
  const Buffer inverse(Floats(want.inverse.size(), NAN));
  expect_one_answer(
      [&](Stream stream) {
        RmsNormArgs args{.rows = shape.rows,
                         .width = shape.width,
                         .epsilon = 1e-6F,
                         .type = type,
                         .x = on_x.get(),
                         .weight = on_weight.get(),
                         .y = y.get(),
                         .inverse_rms = inverse.as<float>()};
        if (has_delta) args.residual = {GemmOutput{on_delta.get()}, sum.get()};
        return rms_norm(args, stream);
      },
      {&sum, &y, &inverse});
  if (has_delta) expect_near(sum.floats(type), s, {0, 0}, "sum");
  expect_near(inverse.floats(), want.inverse, {0, 1e-5}, "inverse_rms");
  expect_near(y.floats(type), want.y, tolerance_of(type, 1e-6), "y");
}

TEST(CudaRmsNorm, IsTheCpusWithAndWithoutAResidual) {
  for (const Type type : kTypes)
    for (uint64_t seed = 0; seed < num_seeds(kSeeds); ++seed)
      expect_norm(type, seed, random_shape(seed), seed % 2 == 0);
}

/// A residual in parts gives the same bits as the residual summed before.
TEST(CudaRmsNorm, AddsUpThePartsOfAResidual) {
  for (const Type type : kTypes)
    for (const int32_t num_parts : {1, 3, 8}) {
      SCOPED_TRACE(testing::Message() << name_of(type) << ", " << num_parts << " parts");
      const Matrix shape{17, 1024};
      const Floats x = rounded(type, random_floats(shape.size(), 1, 3));
      const Floats parts = random_floats(num_parts * shape.size(), 2);
      Floats delta(x.size(), 0);
      for (size_t i = 0; i < parts.size(); ++i) delta[i % delta.size()] += parts[i];
      const Buffer on_x(type, x), on_delta(type, delta), on_parts(parts);
      const Buffer weight(type, random_floats(shape.width, 3));
      const Buffer sum(type, Floats(x.size(), NAN)), y(type, Floats(x.size(), NAN));
      RmsNormArgs args{.rows = shape.rows,
                       .width = shape.width,
                       .epsilon = 1e-6F,
                       .type = type,
                       .x = on_x.get(),
                       .weight = weight.get(),
                       .y = y.get(),
                       .residual = Residual{GemmOutput{on_delta.get()}, sum.get()}};
      const auto run = [&](Stream stream) { return rms_norm(args, stream); };
      expect_one_answer(run, {&sum, &y});
      const auto want_sum = sum.bytes(), want_y = y.bytes();
      args.residual->delta = SplitKOutput{on_parts.as<float>(), num_parts};
      expect_one_answer(run, {&sum, &y});
      EXPECT_TRUE(sum.bytes() == want_sum) << "sum";
      EXPECT_TRUE(y.bytes() == want_y) << "y";
    }
}

void expect_norm_backward(Type type, uint64_t seed, Matrix shape, bool has_dsum) {
  SCOPED_TRACE(name_of_case(type, seed, shape));
  const Floats x = rounded(type, random_floats(shape.size(), mix(seed, 1), 3));
  const Floats dy = rounded(type, random_floats(shape.size(), mix(seed, 2)));
  const Floats weight = rounded(type, random_floats(shape.width, mix(seed, 3)));
  const Floats dsum = rounded(type, random_floats(shape.size(), mix(seed, 4)));
  const Floats before = random_floats(shape.width, mix(seed, 5));
  const CpuNorm norm = cpu_norm(shape, x, weight);
  Floats dx = has_dsum ? dsum : Floats(x.size(), 0), dweight = before;
  cpu_ops().rms_norm_backward({shape.rows, shape.width, dy.data(), x.data(), weight.data(),
                               norm.inverse.data(), dx.data(), dweight.data()});

  const Buffer on_x(type, x), on_dy(type, dy), on_weight(type, weight), inverse(norm.inverse);
  const Buffer on_dx(type, dsum), on_dweight(before);
  const auto workspace = static_cast<size_t>(rms_norm_workspace(shape.rows, shape.width));
  const Buffer work(Floats(workspace, NAN));
  expect_one_answer(
      [&](Stream stream) {
        return rms_norm_backward(
            {shape.rows, shape.width, type, on_dy.get(), on_x.get(), on_weight.get(),
             inverse.as<float>(), has_dsum ? on_dx.get() : nullptr, on_dx.get(),
             on_dweight.as<float>(), work.as<float>()},
            stream);
      },
      {&on_dx, &on_dweight});
  // In short rows most of the sum cancels, and the rest is multiplied by the inverse.
  const double cancelled = shape.width < 10 ? 1e-3 : 2e-5;
  expect_near(on_dx.floats(type), dx, tolerance_of(type, cancelled), "dx");
  const double spread = 2e-5 * std::sqrt(static_cast<double>(shape.rows));
  expect_near(on_dweight.floats(), dweight, {spread, 1e-5}, "dweight");
}

TEST(CudaRmsNorm, BackwardIsTheCpusAndAddsToTheWeight) {
  for (const Type type : kTypes)
    for (uint64_t seed = 100; seed < 100 + num_seeds(kSeeds); ++seed)
      expect_norm_backward(type, seed, random_shape(seed), seed % 2 == 0);
}

TEST(CudaRmsNorm, ARowIsTheSameInAnyBatch) {
  const Matrix many{333, 1024};
  const Floats x = random_floats(many.size(), 7), weight = random_floats(many.width, 8);
  const Buffer on_x(x), on_weight(weight), y(Floats(x.size(), NAN)), one(Floats(1024, NAN));
  const int64_t row = 200;
  const auto norm = [&](int64_t rows, const float* from, const Buffer& to) {
    expect_one_answer(
        [&](Stream stream) {
          return rms_norm(
              {rows, many.width, 1e-6F, Type::kFloat32, from, on_weight.get(), to.get()}, stream);
        },
        {&to});
  };
  norm(many.rows, on_x.as<float>(), y);
  norm(1, on_x.as<float>() + row * many.width, one);
  const Floats all = y.floats();
  const auto begin = all.begin() + row * many.width;
  EXPECT_EQ(Floats(begin, begin + many.width), one.floats());
}

TEST(CudaRmsNorm, RefusesShapesItDoesNotSupport) {
  EXPECT_THAT(rms_norm({.rows = 1, .width = 4097}, nullptr).fault, HasSubstr("at most 4096"));
  EXPECT_THAT(rms_norm({.rows = 1, .width = 16388}, nullptr).fault, HasSubstr("at most 65536"));
  EXPECT_THAT(rms_norm({.rows = 1, .width = 0}, nullptr).fault, HasSubstr("at least 1"));
  float number = 0;
  const auto fault_with = [](const Residual& residual) {
    return rms_norm({.rows = 1, .width = 1, .residual = residual}, nullptr).fault;
  };
  EXPECT_THAT(fault_with({GemmOutput{&number}, nullptr}), HasSubstr("a buffer for the sum"));
  EXPECT_THAT(fault_with({GemmOutput{}, &number}), HasSubstr("needs delta"));
  EXPECT_THAT(fault_with({SplitKOutput{&number, 0}, &number}), HasSubstr("1 or more"));
  EXPECT_TRUE(rms_norm({}, nullptr).is_ok()) << "without rows there is no work";
  EXPECT_TRUE(rms_norm_backward({}, nullptr).is_ok());
}

TEST(CudaSwiglu, IsTheCpusForwardAndBackward) {
  for (const Type type : kTypes)
    for (uint64_t seed = 200; seed < 200 + num_seeds(kSeeds); ++seed) {
      const Matrix shape = random_shape(seed);
      SCOPED_TRACE(name_of_case(type, seed, shape));
      const Floats gate_up = rounded(type, random_floats(2 * shape.size(), mix(seed, 1), 6));
      const Floats d = rounded(type, random_floats(shape.size(), mix(seed, 2)));
      Floats want(d.size()), dwant(gate_up.size());
      cpu_ops().swiglu({shape.rows, shape.width, gate_up.data(), want.data()});
      cpu_ops().swiglu_backward({shape.rows, shape.width, gate_up.data(), d.data(), dwant.data()});
      const Buffer on_gate_up(type, gate_up), on_d(type, d);
      const Buffer out(type, Floats(d.size(), NAN)), dout(type, Floats(gate_up.size(), NAN));
      expect_one_answer(
          [&](Stream stream) {
            return swiglu({shape.rows, shape.width, type, {on_gate_up.get()}, out.get()}, stream);
          },
          {&out});
      expect_one_answer(
          [&](Stream stream) {
            return swiglu_backward(
                {shape.rows, shape.width, type, on_gate_up.get(), on_d.get(), dout.get()}, stream);
          },
          {&dout});
      expect_near(out.floats(type), want, tolerance_of(type, 1e-6), "activated");
      expect_near(dout.floats(type), dwant, tolerance_of(type, 5e-6), "dgate_up");
    }
  EXPECT_TRUE(swiglu({}, nullptr).is_ok());
  EXPECT_TRUE(swiglu_backward({}, nullptr).is_ok());
  EXPECT_THAT(swiglu({.rows = 1}, nullptr).fault, HasSubstr("at least 1"));
}

TEST(CudaAdamw, IsTheCpusAndWritesBf16) {
  for (const int64_t count : {1, 3, 4, 1000, 1'000'001, 3'000'000}) {
    SCOPED_TRACE(count);
    Floats weights = random_floats(count, 1), first = random_floats(count, 2, 1e-2);
    Floats second = random_floats(count, 3, 1e-3);
    const Floats gradients = random_floats(count, 4);
    for (float& value : second) value = std::abs(value);
    const Buffer w(weights), m(first), v(second), g(gradients), scale(Floats{0.5F});
    const Buffer low(Type::kBfloat16, Floats(weights.size(), NAN));
    AdamwArgs args{.count = count,
                   .gradient_scale = 0.5F,
                   .lr = 1e-2F,
                   .weight_decay = 0.1F,
                   .beta1 = 0.9F,
                   .beta2 = 0.95F,
                   .epsilon = 1e-8F,
                   .correction1 = 0.5F,
                   .correction2 = 0.25F};
    MasterAdamwArgs on_device{args, scale.as<float>(), low.get()};
    on_device.step.weights = w.as<float>();
    on_device.step.gradients = g.as<float>();
    on_device.step.first_moments = m.as<float>();
    on_device.step.second_moments = v.as<float>();
    expect_one_answer([&](Stream stream) { return adamw(on_device, stream); }, {&w, &m, &v, &low});
    args.gradient_scale = 0.25F;
    args.weights = weights.data();
    args.gradients = gradients.data();
    args.first_moments = first.data();
    args.second_moments = second.data();
    cpu_ops().adamw(args);
    expect_near(w.floats(), weights, {1e-6, 1e-5}, "weights");
    expect_near(m.floats(), first, {1e-8, 1e-5}, "first_moments");
    expect_near(v.floats(), second, {1e-9, 1e-5}, "second_moments");
    EXPECT_EQ(low.floats(Type::kBfloat16), rounded(Type::kBfloat16, w.floats()));
  }
  EXPECT_TRUE(adamw({}, nullptr).is_ok());
}

}  // namespace
}  // namespace primerl::cuda
