// Learners of adapters: gradients, independence of tenants, files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>
#include <utility>

#include "kernels/devices/make.h"
#include "kernels/models/adapter_folder.h"
#include "kernels/weights/safetensors.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using testing::adapter_bytes;
using testing::bytes_of;
using ::testing::HasSubstr;
using testing::make_adapter_learner;
using testing::make_folder;
using testing::moved;
using testing::never;
using testing::random_adapter;
using testing::two_groups;
using testing::values;

constexpr TenantSlot kFirst(0), kSecond(1), kThird(2);

TrainingRules at_rate(double lr) {
  TrainingRules rules;
  rules.optimizer.lr = lr;
  return rules;
}

class AdapterLearner : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder() const { return make_folder({.model_type = GetParam()}); }
};

TEST_P(AdapterLearner, EveryGradientIsTheDerivativeOfTheLoss) {
  const auto base = make_folder({.model_type = GetParam(), .deviation = 0.1});
  auto learner = make_adapter_learner(base, {{kFirst, {.rank = 5, .alpha = 4}, at_rate(0)}});
  const auto start = learner->snapshot(kFirst, PolicyVersion(0)).value()->tensors;
  const auto data = two_groups(kFirst, LossKind::kCrossEntropy);
  std::vector<int32_t> experts;  // chosen by the routers
  learner->visit([&](const std::string& name, const at::Tensor& rows) {
    const auto* ids = static_cast<const int32_t*>(rows.const_data_ptr());
    if (name.ends_with(".experts")) experts.insert(experts.end(), ids, ids + rows.numel());
  });
  ASSERT_TRUE(learner->step(data, never).ok());
  const auto chosen = std::exchange(experts, {});
  size_t num_compared = 0;
  const auto gradients = learner->gradients();
  for (const auto& gradient : gradients) {
    const auto slope = values(gradient);
    double square = 0;
    for (const float g : slope) square += static_cast<double>(g) * g;
    if (square < 1e-7) continue;  // of an expert with few tokens: below the rounding of the loss
    const double h = 4e-3 / std::sqrt(square);
    bool has_jumped = false;  // the loss jumps if a router chooses differently
    const auto loss_at = [&](double step) {
      CHECK(learner->fill_adapter(kFirst, moved(start, gradient.name, step, slope)).ok(), "fill");
      const double loss = learner->step(data, never)->loss;
      has_jumped = std::exchange(experts, {}) != chosen || has_jumped;
      return loss;
    };
    const double rise = loss_at(h) - loss_at(-h);
    if (has_jumped) continue;
    EXPECT_NEAR(rise / (2 * h) / square, 1, 0.02) << gradient.name;
    ++num_compared;
  }
  EXPECT_GE(num_compared, 24U) << "of two layers of seven linears, A and B";
}

TEST_P(AdapterLearner, BeginsAsTheBaseToTheBit) {
  const auto base = folder();
  const std::vector<AdapterTraining> adapters = {{kFirst, {.rank = 4}, at_rate(0.01)},
                                                 {kSecond, {.rank = 8}, at_rate(0.01)}};
  auto made = make_torch_adapter_learner({}, adapters, base).value();
  auto& learner = dynamic_cast<CpuLearner&>(*made);
  auto whole = make_torch_learner({}, base).value();
  const std::vector<int32_t> tokens = {3, 9, 40, 22, 5, 17, 60, 2, 33};
  const auto before = whole->score(TenantSlot(0), tokens).value();
  EXPECT_EQ(learner.score(kFirst, tokens).value(), before);
  const auto report = learner.step(two_groups(kFirst), never).value();
  EXPECT_FALSE(report.skipped) << report.skip_reason;
  EXPECT_NE(learner.score(kFirst, tokens).value(), before);
  EXPECT_EQ(learner.score(kSecond, tokens).value(), before) << "the base is frozen";
}

TEST_P(AdapterLearner, LowersTheLossOfItsBatch) {
  auto learner = make_adapter_learner(folder(), {{kFirst, {.rank = 8}, at_rate(0.02)}});
  const auto data = two_groups(kFirst, LossKind::kCrossEntropy);
  const double first = learner->step(data, never)->loss;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(learner->step(data, never).ok());
  EXPECT_LT(learner->step(data, never)->loss, 0.5 * first);
}

TEST_P(AdapterLearner, TenantsTrainAsIfEachWereAlone) {
  const auto base = folder();
  TrainingRules third = at_rate(0.05);
  third.optimizer.max_norm = 0.01;
  third.schedule.warmup_steps = 3;
  third.loss.kl_weight = 0.5;
  const std::vector<AdapterTraining> all = {
      {kFirst, {.rank = 4}, at_rate(0.01)},
      {kSecond, {.rank = 64, .targets = {"q_proj", "down_proj"}}, at_rate(0.001)},
      {kThird, {.rank = 9, .is_rank_stabilized = true}, third}};
  auto together = make_adapter_learner(base, all);
  std::vector<TrainReport> reports;
  for (const int32_t step : {0, 1, 2})
    for (const auto tenant : {kThird, kFirst, kSecond})
      reports.push_back(together->step(two_groups(tenant, LossKind::kPolicy, step), never).value());
  for (size_t i = 0; i < all.size(); ++i) {
    auto alone = make_adapter_learner(base, {all[i]});
    const size_t place = (i + 1) % 3;
    for (const int32_t step : {0, 1, 2}) {
      const auto data = two_groups(all[i].tenant, LossKind::kPolicy, step);
      const auto report = alone->step(data, never).value();
      const TrainReport& other = reports[static_cast<size_t>(3 * step) + place];
      EXPECT_EQ(report.loss, other.loss);
      EXPECT_EQ(report.grad_norm, other.grad_norm);
      EXPECT_EQ(report.learning_rate, other.learning_rate);
    }
    EXPECT_EQ(adapter_bytes(*alone, all[i].tenant), adapter_bytes(*together, all[i].tenant)) << i;
  }
}

TEST_P(AdapterLearner, ABrokenNeighbourIsSkippedAlone) {
  const auto base = folder();
  const std::vector<AdapterTraining> both = {{kFirst, {.rank = 4}, at_rate(0.01)},
                                             {kSecond, {.rank = 4}, at_rate(0.01)}};
  auto learner = make_adapter_learner(base, both);
  auto alone = make_adapter_learner(base, {both[1]});
  auto broken = learner->snapshot(kFirst, PolicyVersion(0)).value()->tensors;
  const std::vector<float> nan(values(broken[0]).size(), std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(learner->fill_adapter(kFirst, moved(broken, broken[0].name, 1, nan)).ok());
  for (int i = 0; i < 2; ++i) {
    const auto skipped = learner->step(two_groups(kFirst), never).value();
    EXPECT_TRUE(skipped.skipped);
    EXPECT_THAT(skipped.skip_reason, HasSubstr("not finite"));
    EXPECT_EQ(learner->step(two_groups(kSecond), never)->grad_norm,
              alone->step(two_groups(kSecond), never)->grad_norm);
  }
  EXPECT_EQ(adapter_bytes(*learner, kSecond), adapter_bytes(*alone, kSecond));
}

TEST_P(AdapterLearner, ThreadsAndRecomputationLeaveStepsEqualToTheBit) {
  const auto base = make_folder({.model_type = GetParam(), .hidden_size = 256, .deviation = 0.05});
  const auto trained = [&](int threads, const char* recompute) {
    std::vector<std::byte> bytes;
    std::jthread([&] {
      LearnerOptions options;
      options.threads = threads;
      options.recompute = recompute;
      options.micro_batch_tokens = 30;
      auto learner = make_adapter_learner(base, {{kFirst, {.rank = 200}, at_rate(0.01)}}, options);
      for (int i = 0; i < 2; ++i)
        CHECK(learner->step(two_groups(kFirst), never).ok(), "a step failed");
      bytes = adapter_bytes(*learner, kFirst);
    }).join();
    return bytes;
  };
  const auto one = trained(1, "none");
  for (const int threads : {2, 4}) EXPECT_TRUE(trained(threads, "none") == one) << threads;
  EXPECT_TRUE(trained(2, "full") == one);
  EXPECT_TRUE(trained(2, "keep_attention") == one);
}

/// Fast numerics change only the order of additions.
TEST_P(AdapterLearner, FastNumericsStayNearInvariantOnes) {
  const auto base = make_folder({.model_type = GetParam(), .deviation = 0.1});
  const auto report_of = [&](const char* numerics) {
    LearnerOptions options;
    options.numerics = numerics;
    auto learner = make_adapter_learner(base, {{kFirst, {.rank = 5}, at_rate(0)}}, options);
    return learner->step(two_groups(kFirst), never).value();
  };
  const auto invariant = report_of("invariant"), fast = report_of("fast");
  EXPECT_NEAR(fast.loss, invariant.loss, 1e-5);
  EXPECT_NEAR(fast.grad_norm, invariant.grad_norm, 1e-4 * invariant.grad_norm);
}

TEST_P(AdapterLearner, ASkippedBatchChangesNothing) {
  auto learner = make_adapter_learner(folder(), {{kFirst, {.rank = 4}, at_rate(0.01)}});
  const auto before = adapter_bytes(*learner, kFirst);
  auto silent = two_groups(kFirst);
  for (auto& sample : silent.samples) sample.loss_mask.assign(sample.tokens.size(), 0);
  EXPECT_TRUE(learner->step(silent, never)->skipped);
  const auto stopped = learner->step(two_groups(kFirst), [] { return true; });
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code(), Code::kCancelled);
  EXPECT_TRUE(adapter_bytes(*learner, kFirst) == before);
  EXPECT_THAT(learner->describe(), HasSubstr("0 optimizer steps, 1 adapters of "));
}

TEST_P(AdapterLearner, ResumesFromItsCheckpoint) {
  const auto base = folder();
  const std::vector<AdapterTraining> both = {{kFirst, {.rank = 4}, at_rate(0.01)},
                                             {kSecond, {.rank = 8}, at_rate(0.01)}};
  auto learner = make_adapter_learner(base, both);
  ASSERT_TRUE(learner->step(two_groups(kSecond), never).ok());
  const auto saved = testing::scratch_folder("saved");
  const Status written = learner->save(kSecond, saved);
  ASSERT_TRUE(written.ok()) << written.error().text();
  // Into another slot of another learner.
  auto other = make_adapter_learner(base, {both[1]});
  const Status read = other->load(kSecond, saved);
  ASSERT_TRUE(read.ok()) << read.error().text();
  EXPECT_EQ(other->step(two_groups(kSecond), never)->grad_norm,
            learner->step(two_groups(kSecond), never)->grad_norm);
  EXPECT_EQ(adapter_bytes(*other, kSecond), adapter_bytes(*learner, kSecond));
  // Not into an adapter of another rank, which stays unchanged.
  const auto before = adapter_bytes(*learner, kFirst);
  const Status refused = learner->load(kFirst, saved);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("the adapter there has rank 8, this one 4"));
  EXPECT_TRUE(adapter_bytes(*learner, kFirst) == before);
}

INSTANTIATE_TEST_SUITE_P(Torch, AdapterLearner,
                         ::testing::Values("qwen3", "llama", "qwen3_moe", "glm4_moe"),
                         [](const auto& one) { return one.param; });

TEST(AdapterLearnerOptions, TellWhatIsWrong) {
  const auto base = make_folder({});
  const auto fault = [&](std::vector<AdapterTraining> adapters) {
    const auto made = make_torch_adapter_learner({}, adapters, base);
    return made.ok() ? "" : made.error().text();
  };
  EXPECT_EQ(fault({{kFirst}}), "");
  EXPECT_THAT(fault({}), HasSubstr("a learner of 0 adapters: it may have 1 to 1024"));
  std::vector<AdapterTraining> many;
  for (uint32_t i = 0; i < 1024; ++i) many.push_back({TenantSlot(i), {.rank = 1}});
  EXPECT_EQ(fault(many), "");
  many.push_back({TenantSlot(1024), {.rank = 1}});
  EXPECT_THAT(fault(many), HasSubstr("a learner of 1025 adapters"));
  EXPECT_THAT(fault({{kFirst}, {kFirst}}), HasSubstr("tenant 0 has two adapters"));
  EXPECT_THAT(fault({{kSecond, {.rank = 0}}}), HasSubstr("tenant 1: the adapter's rank is 0"));
  EXPECT_THAT(fault({{kSecond, {}, at_rate(-1)}}), HasSubstr("tenant 1: "));
}

TEST(AdapterLearnerOptions, ATenantThatItDoesNotTrainIsNamed) {
  const auto base = make_folder({});
  auto learner = make_adapter_learner(base, {{kFirst}, {kSecond}});
  const auto text = [](const auto& result) { return result.ok() ? "" : result.error().text(); };
  EXPECT_THAT(text(learner->snapshot(kThird, PolicyVersion(1))),
              HasSubstr("no adapter of tenant 2"));
  EXPECT_THAT(text(learner->score(kThird, {1, 2})), HasSubstr("trains adapters of 2 tenants"));
  EXPECT_THAT(text(learner->save(kThird, base)), HasSubstr("no adapter of tenant 2"));
  EXPECT_THAT(text(learner->load(kThird, base)), HasSubstr("no adapter of tenant 2"));
  EXPECT_THAT(text(learner->step(two_groups(kThird), never)), HasSubstr("no adapter of tenant 2"));
  EXPECT_EQ(text(learner->score(kSecond, {1, 2})), "");
}

TEST(AdapterLearnerOptions, ASnapshotHasTheAdapterAlone) {
  const auto base = make_folder({});
  auto learner = make_adapter_learner(base, {{kFirst, {.rank = 2, .targets = {"q_proj"}}}});
  const auto snapshot = learner->snapshot(kFirst, PolicyVersion(3)).value();
  EXPECT_EQ(snapshot->version, PolicyVersion(3));
  ASSERT_EQ(snapshot->tensors.size(), 5U);
  EXPECT_EQ(snapshot->tensors[0].name,
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
  EXPECT_EQ(snapshot->tensors[4].name, "scaling");
}

}  // namespace
}  // namespace primerl
