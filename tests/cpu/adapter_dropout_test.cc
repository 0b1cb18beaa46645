// Dropout of adapters: its rate, its gradients, and that only seed, tenant, step, linear and token
// decide which elements are dropped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "kernels/cpu/weights/adapters.h"
#include "kernels/devices/make.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using testing::adapter_bytes;
using testing::make_adapter_learner;
using testing::make_folder;
using testing::moved;
using testing::never;
using testing::values;

constexpr TenantSlot kTenant(0);

AdapterTraining dropping(double dropout, double lr = 0.01, uint64_t seed = 3) {
  AdapterTraining training;
  training.tenant = kTenant;
  training.adapter = {.rank = 5, .alpha = 4, .init_seed = seed, .dropout = dropout};
  training.adapter.targets.emplace_back(kHeadTarget);
  training.rules.optimizer.lr = lr;
  return training;
}

/// Groups of three, each with its own prompt.
TrainBatch groups_of_three(size_t num_groups = 4) {
  TrainBatch made;
  made.tenant = kTenant;
  made.loss = LossKind::kCrossEntropy;
  for (size_t i = 0; i < 3 * num_groups; ++i) {
    TrainSample& sample = made.samples.emplace_back();
    for (size_t t = 0; t < 6 + i % 5; ++t) {
      const bool is_sampled = t >= 4;
      sample.tokens.push_back(
          static_cast<int32_t>(((is_sampled ? i * 13 : i / 3 * 31) + 7 * t) % 61));
      sample.loss_mask.push_back(is_sampled ? 1 : 0);
    }
  }
  return made;
}

/// y = x after `dropout` for a linear, or y + that.
std::vector<float> left_of(const AdapterDropout& dropout, uint64_t module,
                           const std::vector<uint64_t>& rows, const std::vector<float>& x,
                           const std::vector<float>* y = nullptr) {
  const auto num_rows = static_cast<int64_t>(rows.size());
  const auto columns = static_cast<int64_t>(x.size()) / num_rows;
  std::vector<uint64_t> keys;
  for (const uint64_t row : rows) keys.push_back(row_key(dropout, row));
  std::vector<uint16_t> draws(static_cast<size_t>(num_rows * drawn_columns(columns)));
  draw_dropout(module, keys, columns, draws.data());
  std::vector<float> left = y == nullptr ? std::vector<float>(x.size(), NAN) : *y;
  apply_dropout(dropout, num_rows, columns, draws.data(), x.data(), left.data(), y != nullptr);
  return left;
}

TEST(DropOut, LeavesOutItsPartAndScalesTheRest) {
  constexpr int64_t kColumns = 1003;
  const std::vector<uint64_t> rows = {5, 9, 5, 1ULL << 40};
  std::vector<float> x(rows.size() * kColumns);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(1 + i % kColumns) / 7;
  const std::vector<float> ones(x.size(), 1.0F);
  for (const double rate : {0.1, 0.5, 0.9}) {
    const AdapterDropout dropout{rate, 77};
    const auto y = left_of(dropout, 6, rows, x), sum = left_of(dropout, 6, rows, x, &ones);
    const auto scale = static_cast<float>(1 / (1 - rate));
    int64_t num_left_out = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      const auto column = static_cast<int64_t>(i % kColumns);
      const bool is_out = is_element_dropped(dropout, 6, rows[i / kColumns], column);
      ASSERT_EQ(y[i], is_out ? 0.0F : scale * x[i]);
      ASSERT_EQ(sum[i], 1 + y[i]) << "rounded twice, whatever the instruction set";
      num_left_out += is_out ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(num_left_out) / static_cast<double>(y.size()), rate, 0.03);
    const auto row = [&](size_t i) {
      return std::vector<float>(y.begin() + static_cast<ptrdiff_t>(i * kColumns),
                                y.begin() + static_cast<ptrdiff_t>((i + 1) * kColumns));
    };
    EXPECT_EQ(row(0), row(2)) << "rows of one name";
    EXPECT_NE(row(0), row(1));
    EXPECT_NE(left_of(dropout, 7, rows, x), y) << "another linear";
    EXPECT_NE(left_of({rate, 78}, 6, rows, x), y) << "another key";
  }
}

TEST(DropOut, IsWhatTheBaselineDrawsAndLeaves) {
  const CpuOps& plain = baseline_cpu_ops();
  RandomStream random(6);
  for (const int64_t columns : {1, 7, 8, 15, 16, 17, 100}) {
    constexpr int64_t kRows = 3;
    const auto drawn = static_cast<size_t>(kRows * drawn_columns(columns));
    std::vector<uint64_t> keys;
    for (int64_t i = 0; i < kRows; ++i) keys.push_back(random.next());
    std::vector<uint16_t> draws(drawn), expected(drawn);
    cpu_ops().draw({kRows, columns, keys.data(), draws.data()});
    plain.draw({kRows, columns, keys.data(), expected.data()});
    ASSERT_EQ(draws, expected);
    std::vector<float> x(static_cast<size_t>(kRows * columns));
    for (auto& number : x) number = static_cast<float>(random.uniform() - 0.5);
    // Every element dropped, none, and some; an extra float detects writes past the end.
    for (const int32_t threshold : {0, 65536, 30000})
      for (const bool adds : {false, true}) {
        std::vector<float> y(x.size() + 1, 3.0F), other(x.size() + 1, 3.0F);
        const auto args = [&](std::vector<float>& to) {
          return DropOutArgs{.rows = kRows,
                             .columns = columns,
                             .draws = draws.data(),
                             .threshold = threshold,
                             .scale = 1.3F,
                             .adds = adds,
                             .x = x.data(),
                             .y = to.data()};
        };
        cpu_ops().apply_dropout(args(y));
        plain.apply_dropout(args(other));
        ASSERT_EQ(y, other) << columns << ", " << threshold;
        EXPECT_EQ(y.back(), 3.0F);
        const float before = adds ? 3.0F : 0.0F;
        if (threshold != 30000) {
          EXPECT_EQ(y.front(), threshold == 0 ? before + 1.3F * x[0] : before);
        }
      }
  }
}

/// q, k and v each read x after their own dropout; the base GEMM reads all of x.
TEST(DropOut, IsOfWhatEachAReads) {
  const auto base = make_folder({});
  const auto config = read_model_config(base).value();
  const TensorTable model(config);
  const AdapterConfig wanted = {.rank = 3, .dropout = 0.4};
  AdapterWeights adapter(AdapterTable(model, wanted), DecoderWeights::Use::kLearner);
  ASSERT_TRUE(adapter.load(testing::random_adapter(adapter.table(), 4)).ok());
  const DecoderWeights weights(model, Numerics::kInvariant, DecoderWeights::Use::kLearner);
  const Matrix qkv = weights.matrix("layers.1.attention.qkv");
  constexpr int64_t kRows = 6;
  RowBatch batch;
  batch.tokens.resize(kRows);
  batch.spans.push_back({0, kRows, 0, 0, 0});
  for (uint64_t i = 0; i < kRows; ++i) batch.draws.push_back(i * i);
  RandomStream random(8);
  std::vector<float> x(static_cast<size_t>(kRows * qkv.terms));
  for (auto& number : x) number = static_cast<float>(random.uniform() - 0.5);
  Gemms products(Numerics::kInvariant);
  AdapterGemms adapters(products);
  const auto added = [&](const AdapterDropout& dropout, const std::vector<float>& from) {
    adapters.set(0, &adapter, dropout);
    adapters.begin(batch);
    std::vector<float> y(static_cast<size_t>(kRows * qkv.columns));
    adapters.forward(qkv, adapters.runs(), from.data(), y.data());
    return y;
  };
  const AdapterDropout dropout{0.4, 21};
  const auto seen = added(dropout, x);
  size_t num_compared = 0;
  for (const auto& linear : adapter.table().linears()) {
    if (linear.parameter != qkv.parameter) continue;
    const auto left = left_of(dropout, stable_hash(linear.module), batch.draws, x);
    const auto expected = added({}, left);
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t i = linear.column; i < linear.column + linear.outputs; ++i) {
        const auto at = static_cast<size_t>(row * qkv.columns + i);
        ASSERT_EQ(seen[at], expected[at]) << linear.module;
        ++num_compared;
      }
  }
  EXPECT_EQ(num_compared, seen.size());
  EXPECT_NE(seen, added({}, x));
}

class AdapterDropoutStep : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder(double deviation = 0.3) const {
    return make_folder({.model_type = GetParam(), .deviation = deviation});
  }
};

TEST_P(AdapterDropoutStep, EveryGradientIsTheDerivativeOfTheLossUnderTheSameMask) {
  const auto base = folder(0.1);
  const auto data = groups_of_three();
  // A new learner for each step: the first step always has the same dropout.
  std::vector<int32_t> experts;
  std::vector<WeightTensor> gradients;
  const auto loss_at = [&](const std::vector<WeightTensor>* tensors) {
    auto learner = make_adapter_learner(base, {dropping(0.4, 0)});
    if (tensors != nullptr) CHECK(learner->fill_adapter(kTenant, *tensors).ok(), "no fill");
    experts.clear();
    learner->visit([&](const std::string& name, const at::Tensor& rows) {
      const auto* ids = static_cast<const int32_t*>(rows.const_data_ptr());
      if (name.ends_with(".experts")) experts.insert(experts.end(), ids, ids + rows.numel());
    });
    const double loss = learner->step(data, never)->loss;
    gradients = learner->gradients();
    return loss;
  };
  const double loss = loss_at(nullptr);
  const auto chosen = experts;
  const auto slopes = gradients;
  const auto start = make_adapter_learner(base, {dropping(0.4, 0)})
                         ->snapshot(kTenant, PolicyVersion(0))
                         .value()
                         ->tensors;
  auto without = make_adapter_learner(base, {dropping(0, 0)});
  EXPECT_GT(std::abs(without->step(data, never)->loss - loss), 1e-4) << "it drops";
  size_t num_compared = 0;
  for (const auto& gradient : slopes) {
    const auto slope = values(gradient);
    double square = 0;
    for (const float g : slope) square += static_cast<double>(g) * g;
    if (square < 1e-7) continue;
    const double h = 4e-3 / std::sqrt(square);
    bool has_jumped = false;
    const auto moved_loss = [&](double step) {
      const auto tensors = moved(start, gradient.name, step, slope);
      const double there = loss_at(&tensors);
      has_jumped = has_jumped || experts != chosen;
      return there;
    };
    const double rise = moved_loss(h) - moved_loss(-h);
    if (has_jumped) continue;
    EXPECT_NEAR(rise / (2 * h) / square, 1, 0.02) << gradient.name;
    ++num_compared;
  }
  EXPECT_GE(num_compared, 22U) << "of two layers of seven linears and the head, A and B";
}

TEST_P(AdapterDropoutStep, ThreadsRecomputationAndASecondTryChangeNoBit) {
  const auto base = folder();
  const auto trained = [&](int threads, const char* recompute) {
    std::vector<std::byte> bytes;
    std::jthread([&] {
      LearnerOptions options;
      options.threads = threads;
      options.recompute = recompute;
      auto learner = make_adapter_learner(base, {dropping(0.3)}, options);
      for (int i = 0; i < 3; ++i)
        CHECK(learner->step(groups_of_three(), never).ok(), "a step failed");
      bytes = adapter_bytes(*learner, kTenant);
    }).join();
    return bytes;
  };
  const auto one = trained(1, "none");
  EXPECT_TRUE(trained(1, "none") == one) << "the same again";
  for (const int threads : {2, 4}) EXPECT_TRUE(trained(threads, "none") == one) << threads;
  EXPECT_TRUE(trained(2, "full") == one);
  EXPECT_TRUE(trained(2, "keep_attention") == one);
}

TEST_P(AdapterDropoutStep, MicroBatchesDoNotChangeTheDropout) {
  const auto base = folder(0.1);
  const auto report_of = [&](int32_t rows_max, uint64_t seed) {
    LearnerOptions options;
    options.micro_batch_tokens = rows_max;
    auto learner = make_adapter_learner(base, {dropping(0.5, 0.01, seed)}, options);
    return learner->step(groups_of_three(), never).value();
  };
  const auto whole = report_of(4096, 3);
  EXPECT_EQ(whole.num_micro_batches, 1);
  // With so few rows, samples of one prompt are separated.
  for (const int32_t rows_max : {40, 20, 8}) {
    const auto cut = report_of(rows_max, 3);
    EXPECT_GT(cut.num_micro_batches, 1);
    EXPECT_NEAR(cut.loss, whole.loss, 1e-6 * std::abs(whole.loss)) << rows_max;
    EXPECT_NEAR(cut.grad_norm, whole.grad_norm, 1e-4 * whole.grad_norm) << rows_max;
  }
  EXPECT_GT(std::abs(report_of(4096, 4).loss - whole.loss), 1e-4) << "another seed is another mask";
}

TEST_P(AdapterDropoutStep, EachStepHasNewDropoutAndScoresHaveNone) {
  const auto base = folder();
  auto learner = make_adapter_learner(base, {dropping(0.5, 0)});
  auto without = make_adapter_learner(base, {dropping(0, 0)});
  const auto data = groups_of_three();
  const double first = learner->step(data, never)->loss;
  EXPECT_NE(learner->step(data, never)->loss, first) << "nothing was learned in between";
  const std::vector<int32_t> tokens = {3, 9, 40, 22, 5, 17};
  EXPECT_EQ(learner->score(kTenant, tokens).value(), without->score(kTenant, tokens).value());
  EXPECT_EQ(without->step(data, never)->loss,
            make_adapter_learner(base, {dropping(0, 0)})->step(data, never)->loss);
}

TEST_P(AdapterDropoutStep, AResumedLearnerHasTheDropoutOfTheFirst) {
  const auto base = folder();
  auto learner = make_adapter_learner(base, {dropping(0.3)});
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(learner->step(groups_of_three(), never).ok());
  const auto saved = testing::scratch_folder("saved");
  ASSERT_TRUE(learner->save(kTenant, saved).ok());
  auto other = make_adapter_learner(base, {dropping(0.3)});
  const Status read = other->load(kTenant, saved);
  ASSERT_TRUE(read.ok()) << read.error().text();
  EXPECT_EQ(other->step(groups_of_three(), never)->loss,
            learner->step(groups_of_three(), never)->loss);
  EXPECT_TRUE(adapter_bytes(*other, kTenant) == adapter_bytes(*learner, kTenant));
}

INSTANTIATE_TEST_SUITE_P(Torch, AdapterDropoutStep,
                         ::testing::Values("qwen3", "llama", "qwen3_moe", "glm4_moe"),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace primerl
