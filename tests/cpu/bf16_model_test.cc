// Engines and learners on the CPU with products = "bf16": equal bits, gradients, memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "graph/base/random.h"
#include "kernels/cpu/weights/product.h"
#include "kernels/models/bf16_matrices.h"
#include "kernels/ops/bf16.h"
#include "kernels/sizing/memory.h"
#include "tests/cpu/products_model.h"
#include "tests/cpu/tiny_adapters.h"

namespace primerl {
namespace {

using testing::engine_options;
using testing::kTenant;
using testing::learner_options;
using testing::make_folder;
using testing::make_learner;
using testing::mismatch;
using testing::never;
using testing::wide_model;

class Bf16Model : public ::testing::TestWithParam<std::string> {
 protected:
  const std::filesystem::path folder_ = make_folder(wide_model(GetParam()));
};

TEST_P(Bf16Model, EngineAndLearnerHaveEqualBitsAtAnyNumberOfThreadsWithEitherNumerics) {
  auto learner = make_learner(folder_, learner_options("bf16"));
  LearnerOptions options = learner_options("bf16");
  options.numerics = "fast";
  auto fast = make_learner(folder_, options);
  auto plain = make_learner(folder_, learner_options("dtype"));
  for (const int32_t threads : {1, 3})
    std::jthread([&] {
      auto engine = make_torch_engine(engine_options("bf16", threads), folder_).value();
      EXPECT_EQ(mismatch(*engine, *learner), 0.0F) << threads;
      EXPECT_LT(mismatch(*engine, *fast), 2e-2F) << "the router of a mixture is libtorch's";
      EXPECT_GT(mismatch(*engine, *plain), 1e-4F) << "the rounding is seen";
    }).join();
}

TEST_P(Bf16Model, TheyStayEqualAfterUpdatesThatAreAppliedInPartsOrAtOnce) {
  testing::expect_equal_after_updates(folder_, "bf16");
}

TEST_P(Bf16Model, AdaptersOnABaseInBf16HaveEqualBitsAndLearnFromItsPanels) {
  EngineOptions options = engine_options("bf16");
  options.adapter_slots = 1;
  FrozenBases bases;
  auto engine = make_torch_engine(options, folder_, nullptr, &bases).value();
  const std::vector<AdapterTraining> training = {{kTenant, {.rank = 4, .alpha = 8}, {}, {}}};
  auto made = make_torch_adapter_learner(learner_options("bf16"), training, folder_, &bases);
  ASSERT_TRUE(made.ok()) << made.error().text();
  auto& learner = dynamic_cast<CpuLearner&>(**made);
  EXPECT_EQ(bases.size(), 1U) << "both read one base";
  const AdapterTable table(TensorTable(read_model_config(folder_).value()), training[0].adapter);
  const auto adapter = testing::random_adapter(table, 5);
  ASSERT_TRUE(learner.fill_adapter(kTenant, adapter).ok());
  ASSERT_TRUE(engine->apply(*testing::adapter_of(learner, kTenant, 1)).ok());
  EXPECT_EQ(mismatch(*engine, learner), 0.0F);
  std::vector<std::unique_ptr<Learner>> others;
  for (const char* products : {"dtype", "fp8"})
    others.push_back(
        make_torch_adapter_learner(learner_options(products), training, folder_, &bases).value());
  EXPECT_EQ(bases.size(), 3U) << "each has a base of its own";
  // With fast numerics the base is flat, and its GEMMs round what they read: the same gradients.
  LearnerOptions fast = learner_options("bf16");
  fast.numerics = "fast";
  auto flat = testing::make_adapter_learner(folder_, training, fast);
  ASSERT_TRUE(flat->fill_adapter(kTenant, adapter).ok());
  ASSERT_TRUE(flat->step(testing::two_groups(kTenant), never).ok());
  ASSERT_TRUE(learner.step(testing::two_groups(kTenant), never).ok());
  const auto near = flat->gradients(), from_panels = learner.gradients();
  ASSERT_EQ(near.size(), from_panels.size());
  for (size_t i = 0; i < near.size(); ++i) {
    const auto want = testing::values(near[i]), got = testing::values(from_panels[i]);
    double apart = 0, square = 0;
    for (size_t k = 0; k < got.size(); ++k) {
      apart += (double{got[k]} - want[k]) * (double{got[k]} - want[k]);
      square += double{want[k]} * want[k];
    }
    EXPECT_LE(apart, 0.05 * 0.05 * square) << near[i].name;
  }
}

TEST_P(Bf16Model, RecomputationAndThreadsChangeNoBitOfAGradient) {
  std::vector<std::byte> want;
  for (const int32_t threads : {1, 3})
    for (const char* recompute : {"none", "keep_attention", "full"})
      std::jthread([&] {
        LearnerOptions options = learner_options("bf16");
        options.recompute = recompute;
        options.threads = threads;
        auto learner = make_torch_learner(options, folder_).value();
        ASSERT_TRUE(learner->step(testing::two_groups(kTenant), never).ok());
        const auto got = testing::bytes_of(dynamic_cast<CpuLearner&>(*learner).gradients());
        if (want.empty()) want = got;
        EXPECT_EQ(got, want) << recompute << threads;
      }).join();
}

/// The tables of AVX-512 and AMX differ in linear_bf16 only.
TEST_P(Bf16Model, AnEngineWithoutAmxAndALearnerWithItHaveEqualBits) {
  const auto all = all_cpu_ops();
  if (std::string(all.back()->name) != "amx") GTEST_SKIP() << "this processor has no AMX";
  auto learner = make_learner(folder_, learner_options("bf16", 1e-2));
  const CpuOps& best = replace_cpu_ops(*all[all.size() - 2]);
  auto engine = make_torch_engine(engine_options("bf16"), folder_).value();
  auto other = make_learner(folder_, learner_options("bf16", 1e-2));
  replace_cpu_ops(best);
  EXPECT_EQ(mismatch(*engine, *learner), 0.0F);
  ASSERT_TRUE(learner->step(testing::two_groups(kTenant), never).ok());
  ASSERT_TRUE(other->step(testing::two_groups(kTenant), never).ok());
  EXPECT_EQ(testing::bytes_of(learner->gradients()), testing::bytes_of(other->gradients()));
}

TEST_P(Bf16Model, MatricesOfAnEngineHaveTwoBytesANumberAsCheckCounts) {
  const TensorTable table(read_model_config(folder_).value());
  const DecoderWeights weights(table, Numerics::kInvariant, DecoderWeights::Use::kEngine,
                               GemmNumbers::kBf16);
  const double bytes = static_cast<double>(weights.count()) * sizeof(float);
  EXPECT_EQ(bytes, packed_bytes(table, "bf16"));
  EXPECT_LT(bytes, 0.75 * packed_bytes(table));
}

INSTANTIATE_TEST_SUITE_P(Families, Bf16Model,
                         ::testing::Values("qwen3", "llama", "qwen3_moe", "glm4_moe"),
                         [](const auto& one) { return one.param; });

TEST(Bf16Matrices, AreThoseOfLayersAndTheHeadWithoutTheRouter) {
  const TensorTable table(read_model_config(make_folder(wide_model("glm4_moe"))).value());
  std::vector<std::string> bf16, other;
  for (const Parameter& parameter : table.parameters())
    (is_bf16_matrix(parameter, false) ? bf16 : other).push_back(parameter.name);
  EXPECT_THAT(bf16, ::testing::IsSupersetOf(
                        {"head", "layers.1.attention.qkv", "layers.1.moe.experts_down"}));
  EXPECT_THAT(other, ::testing::IsSupersetOf({"embedding", "final_norm", "layers.1.moe.router",
                                              "layers.1.attention.norm"}));
  EXPECT_TRUE(is_bf16_matrix(*table.find("embedding"), true)) << "a tied head reads it";
}

using Bf16Floats = std::vector<float>;

Bf16Floats random_numbers(int64_t count, uint64_t key) {
  RandomStream random(key);
  Bf16Floats values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(2 * random.uniform() - 1);
  return values;
}

/// Three groups, the second without rows: forward and both gradients are the reference's.
TEST(Bf16Gemms, ForwardAndBothGradientsReadRoundedNumbersFromMastersOrPanels) {
  constexpr int64_t kRows = 40, kColumns = 72, kTerms = 100, kGroups = 3;
  const std::array<int64_t, kGroups> ends = {25, 25, kRows};
  const Bf16Floats plain = random_numbers(kGroups * kColumns * kTerms, 1),
                   x = random_numbers(kRows * kTerms, 2), dy = random_numbers(kRows * kColumns, 3),
                   before = random_numbers(kGroups * kColumns * kTerms, 4);
  const int64_t count = packed_bf16_count(kColumns, kTerms);
  std::vector<uint16_t> panels(static_cast<size_t>(kGroups * count));
  for (int64_t g = 0; g < kGroups; ++g)
    cpu_ops().pack_bf16({0,
                         kColumns,
                         kTerms,
                         {plain.data() + g * kColumns * kTerms, kTerms, 1},
                         panels.data() + g * count});
  const auto read = [](const Bf16Floats& from, int64_t at) {
    return float_of_bf16(bf16_of(from[static_cast<size_t>(at)]));
  };
  const auto group_of = [&](int64_t row) { return row < ends[0] ? int64_t{0} : int64_t{2}; };
  Bf16Floats want_y, want_dx, want_dweight = before;
  for (int64_t r = 0; r < kRows; ++r) {
    const int64_t first = group_of(r) * kColumns;
    for (int64_t c = 0; c < kColumns; ++c)
      want_y.push_back(bf16_dot(
          kTerms, 0, [&](int64_t k) { return read(x, r * kTerms + k); },
          [&](int64_t k) { return read(plain, (first + c) * kTerms + k); }));
    for (int64_t k = 0; k < kTerms; ++k)
      want_dx.push_back(bf16_dot(
          kColumns, 0, [&](int64_t c) { return read(dy, r * kColumns + c); },
          [&](int64_t c) { return read(plain, (first + c) * kTerms + k); }));
  }
  for (const int64_t g : {0, 2})
    for (int64_t c = 0; c < kColumns; ++c)
      for (int64_t k = 0; k < kTerms; ++k) {
        const int64_t first = g == 0 ? 0 : ends[1];
        float& sum = want_dweight[static_cast<size_t>((g * kColumns + c) * kTerms + k)];
        sum = bf16_dot(
            ends[static_cast<size_t>(g)] - first, sum,
            [&](int64_t r) { return read(dy, (first + r) * kColumns + c); },
            [&](int64_t r) { return read(x, (first + r) * kTerms + k); });
      }

  for (const Numerics numerics : {Numerics::kInvariant, Numerics::kFast})
    for (const bool is_packed : {false, true}) {
      Matrix matrix{.groups = kGroups, .columns = kColumns, .terms = kTerms, .is_bf16 = true};
      matrix.plain = is_packed ? nullptr : plain.data();
      matrix.packed_bf16 = is_packed ? panels.data() : nullptr;
      Gemms gemms(numerics);
      Bf16Floats y(want_y.size()), dx(x.size()), dweight = before;
      gemms.grouped(ends, x.data(), matrix, y.data());
      gemms.grouped_input_gradient(ends, dy.data(), matrix, dx.data());
      gemms.grouped_weight_gradient(ends, dy.data(), x.data(), matrix, dweight.data());
      EXPECT_EQ(y, want_y) << is_packed;
      EXPECT_EQ(dx, want_dx) << is_packed;
      EXPECT_EQ(dweight, want_dweight) << is_packed;
    }
}

}  // namespace
}  // namespace primerl
