// Cross-entropy in place compared with the CPU's softmax, row by row.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/base/random.h"
#include "tests/device/buffer.h"
#include "tests/device/memory.h"

namespace primerl::cuda {
namespace {

using cuda_test::Buffer;
using cuda_test::expect_near;
using cuda_test::expect_one_answer;
using cuda_test::Floats;
using cuda_test::Ints;
using cuda_test::name_of;
using cuda_test::num_seeds;
using cuda_test::random_floats;
using cuda_test::rounded;
using cuda_test::tolerance_of;
using ::testing::HasSubstr;

constexpr Type kTypes[] = {Type::kFloat32, Type::kBfloat16};
constexpr uint64_t kSeeds = 16;
constexpr int64_t kPadding = 8;  // of a row, never written

struct LogitsCase {
  Type type;
  uint64_t seed;
  int64_t rows;
  int64_t vocab_size;
  float inverse_temperature;

  int64_t stride() const { return vocab_size + kPadding; }
  std::string name() const {
    return std::string(name_of(type)) + ", seed " + std::to_string(seed) + ", " +
           std::to_string(rows) + " x " + std::to_string(vocab_size);
  }
};

LogitsCase random_case(Type type, uint64_t seed) {
  RandomStream random(seed);
  constexpr int64_t rows[] = {1, 3, 40}, sizes[] = {1, 2, 7, 1000, 4096, 32001, 151936};
  constexpr float temperatures[] = {1, 0.7F, 1.5F};
  return {type, seed, rows[random.below(3)], sizes[random.below(7)],
          1 / temperatures[random.below(3)]};
}

/// The CPU's result, and its operands.
struct LogitsAnswer {
  Floats logits, coefficients, logprobs, entropies, log_normalizers, gradients;
  Ints labels;

  explicit LogitsAnswer(const LogitsCase& one) {
    const auto rows = static_cast<size_t>(one.rows);
    logits = rounded(one.type, random_floats(one.rows * one.stride(), mix(one.seed, 1), 12));
    coefficients = random_floats(one.rows, mix(one.seed, 2));
    RandomStream random(mix(one.seed, 3));
    const auto size = static_cast<uint64_t>(one.vocab_size);
    for (size_t i = 0; i < rows; ++i)
      labels.push_back(i % 7 == 5 ? -1 : static_cast<int32_t>(random.below(size)));
    gradients = logits;
    for (size_t i = 0; i < rows; ++i) add_row(one, i);
  }

 private:
  void add_row(const LogitsCase& one, size_t i) {
    float* row = gradients.data() + static_cast<int64_t>(i) * one.stride();
    const SoftmaxStats stats =
        cpu_ops().softmax({one.vocab_size, one.inverse_temperature, row, nullptr});
    const int32_t label = labels[i];
    logprobs.push_back(label < 0 ? 0 : row[label] * one.inverse_temperature - stats.log_normalizer);
    entropies.push_back(stats.entropy);
    log_normalizers.push_back(stats.log_normalizer);
    if (label < 0)
      std::fill_n(row, one.vocab_size, 0.0F);
    else
      cpu_ops().softmax_backward({one.vocab_size, one.inverse_temperature, stats.log_normalizer,
                                  coefficients[i], label, row});
  }
};

void expect_cross_entropy(const LogitsCase& one) {
  SCOPED_TRACE(one.name());
  const LogitsAnswer want(one);
  const Buffer logits(one.type, want.logits), labels(want.labels), by(want.coefficients);
  const Floats none(want.labels.size(), NAN);
  const Buffer logprobs(none), entropies(none), normalizers(none);
  CrossEntropyArgs args{.rows = one.rows,
                        .vocab_size = one.vocab_size,
                        .row_stride = one.stride(),
                        .inverse_temperature = one.inverse_temperature,
                        .type = one.type,
                        .logits = logits.get(),
                        .labels = labels.as<int32_t>(),
                        .logprobs = logprobs.as<float>(),
                        .entropies = entropies.as<float>(),
                        .log_normalizers = normalizers.as<float>()};
  // Unlikely labels have log-probabilities far from 0: their error is 1e-5 of the logits.
  const auto expect_stats = [&] {
    expect_near(logprobs.floats(), want.logprobs, {2e-5, 1e-5}, "logprobs");
    expect_near(entropies.floats(), want.entropies, {5e-5, 1e-5}, "entropies");
    expect_near(normalizers.floats(), want.log_normalizers, {2e-5, 1e-5}, "log_normalizers");
  };
  const std::vector<const Buffer*> all = {&logits, &logprobs, &entropies, &normalizers};
  expect_one_answer([&](Stream stream) { return cross_entropy(args, stream); }, all);
  expect_stats();
  EXPECT_EQ(logits.floats(one.type), want.logits) << "without coefficients they are only read";

  args.coefficients = by.as<float>();
  // A probability near 1 has an error of about 1e-6 if its logit is large, and coefficients reach
  // 4.
  const auto tolerance = tolerance_of(one.type, 5e-6);
  expect_one_answer([&](Stream stream) { return cross_entropy(args, stream); }, all);
  expect_stats();
  expect_near(logits.floats(one.type), want.gradients, tolerance, "gradients");

  expect_one_answer(
      [&](Stream stream) {
        return cross_entropy_backward(
            {one.rows, one.vocab_size, one.stride(), one.inverse_temperature, one.type,
             labels.as<int32_t>(), by.as<float>(), normalizers.as<float>(), logits.get()},
            stream);
      },
      {&logits});
  expect_near(logits.floats(one.type), want.gradients, tolerance, "gradients in a second step");
  logits.reset();
  Floats before = want.gradients;  // the padding between two rows is not written
  for (size_t i = 0; i < before.size(); ++i)
    if (static_cast<int64_t>(i) % one.stride() < one.vocab_size) before[i] = 7;
  const Buffer grads(Type::kBfloat16, before);
  expect_one_answer(
      [&](Stream stream) {
        return cross_entropy_backward(
            {one.rows, one.vocab_size, one.stride(), one.inverse_temperature, one.type,
             labels.as<int32_t>(), by.as<float>(), normalizers.as<float>(), logits.get(),
             grads.get()},
            stream);
      },
      {&grads});
  expect_near(grads.floats(Type::kBfloat16), want.gradients,
              tolerance_of(Type::kBfloat16, tolerance.absolute), "gradients in bf16");
}

TEST(CudaCrossEntropy, IsTheCpusSoftmaxAndItsGradientInPlace) {
  for (const Type type : kTypes)
    for (uint64_t seed = 0; seed < num_seeds(kSeeds); ++seed)
      expect_cross_entropy(random_case(type, seed));
}

TEST(CudaCrossEntropy, HandlesLargeNumbersAndReportsNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  Floats logits(4 * 16, -infinity);
  logits[3] = 1e30F;                    // all mass on one token
  logits[16 + 2] = logits[16 + 5] = 2;  // all mass on two tokens
  logits[2 * 16] = NAN;                 // row 3 has only -infinity
  const Buffer on_logits(logits), labels(Ints{3, 5, 1, 1}), logprobs(Floats(4, 7));
  const Buffer entropies(Floats(4, 7));
  expect_one_answer(
      [&](Stream stream) {
        return cross_entropy({.rows = 4,
                              .vocab_size = 16,
                              .row_stride = 16,
                              .logits = on_logits.get(),
                              .labels = labels.as<int32_t>(),
                              .logprobs = logprobs.as<float>(),
                              .entropies = entropies.as<float>()},
                             stream);
      },
      {&logprobs, &entropies});
  const float half = std::log(0.5F);
  expect_near(logprobs.floats(), {0, half, NAN, NAN}, {1e-6, 0}, "logprobs");
  const Floats all = entropies.floats();
  expect_near({all[0], all[1], all[2]}, {0, -half, NAN}, {1e-6, 0}, "entropies");
}

TEST(CudaCrossEntropy, RefusesShapesItDoesNotSupport) {
  EXPECT_TRUE(cross_entropy({}, nullptr).is_ok());
  EXPECT_TRUE(cross_entropy_backward({}, nullptr).is_ok());
  EXPECT_THAT(cross_entropy({.rows = 1, .vocab_size = 9, .row_stride = 8}, nullptr).fault,
              HasSubstr("at least vocab_size"));
}

}  // namespace
}  // namespace primerl::cuda
