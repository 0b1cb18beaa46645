// Steps of several adapters in shared passes: each has the same bits as when run alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>
#include <thread>

#include "kernels/devices/make.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using testing::adapter_bytes;
using ::testing::HasSubstr;
using testing::make_adapter_learner;
using testing::make_folder;
using testing::never;

/// Groups with shared prompts, of random lengths.
TrainBatch drawn_batch(TenantSlot tenant, uint64_t seed, size_t num_groups = 0) {
  RandomStream random(mix(seed, tenant.value));
  TrainBatch made;
  made.tenant = tenant;
  made.loss = tenant.value % 4 == 3 ? LossKind::kCrossEntropy : LossKind::kPolicy;
  if (num_groups == 0) num_groups = 1 + random.below(3);
  for (size_t group = 0; group < num_groups; ++group) {
    std::vector<int32_t> prompt(2 + random.below(6));
    for (auto& token : prompt) token = static_cast<int32_t>(random.below(61));
    for (uint64_t i = 0; i < 2 + group; ++i) {
      TrainSample& sample = made.samples.emplace_back();
      sample.tokens = prompt;
      for (uint64_t t = 0; t < 1 + random.below(9); ++t)
        sample.tokens.push_back(static_cast<int32_t>(random.below(61)));
      sample.temperature = i == 0 ? 0.7F : 1.0F;
      for (size_t t = 0; t < sample.tokens.size(); ++t) {
        const bool is_sampled = t >= prompt.size();
        sample.loss_mask.push_back(is_sampled ? 1 : 0);
        sample.logprobs.push_back(is_sampled ? -1 - 4 * static_cast<float>(random.uniform()) : 0);
        sample.advantages.push_back(is_sampled ? static_cast<float>(i) - 0.6F : 0);
      }
    }
  }
  return made;
}

/// Five tenants of ranks 4 to 64, each with its own rules, two of them with dropout.
std::vector<AdapterTraining> five_tenants() {
  std::vector<AdapterTraining> all = {
      {TenantSlot(0), {.rank = 4}, {}},
      {TenantSlot(1), {.rank = 64, .targets = {"q_proj", "lm_head"}}, {}},
      {TenantSlot(2), {.rank = 9, .is_rank_stabilized = true}, {}},
      {TenantSlot(3), {.rank = 33, .alpha = 7}, {}},
      {TenantSlot(4), {.rank = 16, .targets = {"v_proj", "o_proj", "up_proj", "lm_head"}}, {}}};
  for (auto& training : all) training.rules.optimizer.lr = 0.001 * (1 + training.tenant.value);
  all[2].rules.optimizer.max_norm = 0.01;
  all[2].rules.schedule.warmup_steps = 3;
  all[2].rules.loss.kl_weight = 0.5;
  all[0].rules.loss = {.clip_low = 0.01, .clip_high = 0.02};
  all[4].rules.loss = {.advantage_weight = 3, .kl_weight = 0};
  all[1].adapter.dropout = 0.25;
  all[3].adapter.dropout = 0.5;
  return all;
}

std::vector<Result<TrainReport>> together(CpuLearner& learner,
                                          const std::vector<TrainBatch>& batches,
                                          const StopRequested& stop = never) {
  std::vector<const TrainBatch*> pointers;
  for (const auto& batch : batches) pointers.push_back(&batch);
  return learner.step_together(pointers, stop);
}

void expect_equal(const TrainReport& a, const TrainReport& b, const std::string& where) {
  EXPECT_EQ(a.loss, b.loss) << where;
  EXPECT_EQ(a.entropy_mean, b.entropy_mean) << where;
  EXPECT_EQ(a.mismatch_kl_mean, b.mismatch_kl_mean) << where;
  EXPECT_EQ(a.mismatch_kl_max, b.mismatch_kl_max) << where;
  EXPECT_EQ(a.masked_fraction, b.masked_fraction) << where;
  EXPECT_EQ(a.grad_norm, b.grad_norm) << where;
  EXPECT_EQ(a.learning_rate, b.learning_rate) << where;
  EXPECT_EQ(a.num_tokens, b.num_tokens) << where;
  EXPECT_EQ(a.num_loss_tokens, b.num_loss_tokens) << where;
  EXPECT_EQ(a.num_micro_batches, b.num_micro_batches) << where;
  EXPECT_EQ(a.skipped, b.skipped) << where;
}

/// Records the rows of each later pass.
std::shared_ptr<std::vector<int64_t>> rows_of_passes(CpuLearner& learner) {
  auto rows = std::make_shared<std::vector<int64_t>>();
  learner.visit([rows](const std::string& name, const at::Tensor& shown) {
    if (name == "embedding.output") rows->push_back(shown.size(0));
  });
  return rows;
}

void break_adapter(CpuLearner& learner, TenantSlot tenant) {
  std::vector<WeightTensor> tensors = learner.snapshot(tenant, PolicyVersion(0)).value()->tensors;
  std::vector<float> nan(tensors[0].bytes.size() / sizeof(float),
                         std::numeric_limits<float>::quiet_NaN());
  const auto* bytes = reinterpret_cast<const std::byte*>(nan.data());
  tensors[0].bytes = Blob(std::vector<std::byte>(bytes, bytes + tensors[0].bytes.size()));
  CHECK(learner.fill_adapter(tenant, tensors).ok(), "no fill");
}

class SharedPass : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder() const { return make_folder({.model_type = GetParam()}); }
};

TEST_P(SharedPass, EachStepIsEqualToTheBitToItsOwn) {
  const auto base = make_folder({.model_type = GetParam(), .hidden_size = 256, .deviation = 0.05});
  const auto all = five_tenants();
  LearnerOptions options;
  options.micro_batch_tokens = 60;
  struct Alone {
    std::vector<TrainReport> reports;
    std::vector<std::byte> weights;
  };
  constexpr uint64_t kRounds = 3;
  const auto takes_part = [](uint64_t round, size_t i) { return (round + i) % 4 != 0; };
  std::vector<Alone> alone(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    auto learner = make_adapter_learner(base, {all[i]}, options);
    for (uint64_t round = 0; round < kRounds; ++round)
      if (takes_part(round, i))
        alone[i].reports.push_back(learner->step(drawn_batch(all[i].tenant, round), never).value());
    alone[i].weights = adapter_bytes(*learner, all[i].tenant);
  }
  for (const int threads : {1, 2, 4})
    std::jthread([&] {
      const std::string where = fmt::format("{} threads", threads);
      LearnerOptions with_threads = options;
      with_threads.threads = threads;
      auto learner = make_adapter_learner(base, all, with_threads);
      const auto rows = rows_of_passes(*learner);
      int64_t num_micro_batches = 0;
      std::vector<size_t> next(all.size());
      for (uint64_t round = 0; round < kRounds; ++round) {
        std::vector<TrainBatch> batches;
        for (size_t i = 0; i < all.size(); ++i) {
          const size_t tenant = (i * 3 + round) % all.size();  // in another order each time
          if (takes_part(round, tenant)) batches.push_back(drawn_batch(all[tenant].tenant, round));
        }
        const auto reports = together(*learner, batches);
        for (size_t i = 0; i < batches.size(); ++i) {
          const size_t tenant = batches[i].tenant.index();
          ASSERT_TRUE(reports[i].ok()) << reports[i].error().text();
          expect_equal(*reports[i], alone[tenant].reports[next[tenant]++], where);
          num_micro_batches += reports[i]->num_micro_batches;
        }
      }
      for (size_t i = 0; i < all.size(); ++i)
        EXPECT_TRUE(adapter_bytes(*learner, all[i].tenant) == alone[i].weights)
            << "tenant " << i << ", " << where;
      EXPECT_LT(std::ssize(*rows), num_micro_batches) << "no pass was shared";
      for (const int64_t each : *rows) EXPECT_LE(each, options.micro_batch_tokens);
    }).join();
}

/// The same batch and adapter: only the loss options of the tenants differ.
TEST_P(SharedPass, EachHasItsOwnLoss) {
  const auto base = folder();
  std::vector<AdapterTraining> all;
  for (uint32_t tenant = 0; tenant < 4; ++tenant)
    all.push_back({TenantSlot(tenant), {.rank = 4}, {}});
  all[1].rules.loss.kl_weight = 2;
  all[2].rules.loss.clip_low = all[2].rules.loss.clip_high = 0;
  std::vector<TrainBatch> batches;
  for (const auto& training : all) {
    batches.push_back(drawn_batch(TenantSlot(0), 3));
    batches.back().tenant = training.tenant;
  }
  batches[3].loss = LossKind::kCrossEntropy;
  auto learner = make_adapter_learner(base, all);
  const AdapterTable table(TensorTable(read_model_config(base).value()), all[0].adapter);
  for (const auto& training : all)
    ASSERT_TRUE(learner->fill_adapter(training.tenant, testing::random_adapter(table, 9)).ok());
  const auto reports = together(*learner, batches);
  std::set<double> losses;
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(reports[i].ok());
    losses.insert(reports[i]->loss);
    auto alone = make_adapter_learner(base, {all[i]});
    ASSERT_TRUE(alone->fill_adapter(all[i].tenant, testing::random_adapter(table, 9)).ok());
    expect_equal(*reports[i], alone->step(batches[i], never).value(), fmt::format("{}", i));
    EXPECT_TRUE(adapter_bytes(*learner, all[i].tenant) == adapter_bytes(*alone, all[i].tenant));
  }
  EXPECT_EQ(losses.size(), all.size());
}

TEST_P(SharedPass, ANeighbourThatCannotTrainChangesNothing) {
  const auto base = folder();
  const auto all = five_tenants();
  auto learner = make_adapter_learner(base, all);
  auto alone = make_adapter_learner(base, {all[4]});
  break_adapter(*learner, all[0].tenant);
  const auto before = adapter_bytes(*learner, all[2].tenant);
  for (uint64_t round = 0; round < 2; ++round) {
    std::vector<TrainBatch> batches;
    for (const uint32_t tenant : {0U, 1U, 2U, 9U, 4U, 4U})
      batches.push_back(drawn_batch(TenantSlot(tenant), round));
    batches[1].samples[0].tokens[0] = 61;  // outside the vocabulary
    for (auto& sample : batches[2].samples) sample.loss_mask.assign(sample.tokens.size(), 0);
    const auto reports = together(*learner, batches);
    EXPECT_TRUE(reports[0]->skipped);
    EXPECT_THAT(reports[0]->skip_reason, HasSubstr("not finite"));
    EXPECT_THAT(reports[1].error().text(), HasSubstr("outside the vocabulary"));
    EXPECT_THAT(reports[2]->skip_reason, HasSubstr("no token of the batch has a loss"));
    EXPECT_THAT(reports[3].error().text(), HasSubstr("no adapter of tenant 9"));
    EXPECT_THAT(reports[5].error().text(), HasSubstr("tenant 4 has two batches in one pass"));
    expect_equal(*reports[4], alone->step(batches[4], never).value(), "the fifth");
  }
  EXPECT_TRUE(adapter_bytes(*learner, all[4].tenant) == adapter_bytes(*alone, all[4].tenant));
  EXPECT_TRUE(adapter_bytes(*learner, all[2].tenant) == before);
}

/// An exception in one step does not end the others.
TEST_P(SharedPass, WhatBreaksAPassIsOfOneStep) {
  const auto base = folder();
  const auto all = five_tenants();
  auto learner = make_adapter_learner(base, all);
  auto alone = make_adapter_learner(base, {all[3]});
  break_adapter(*learner, all[0].tenant);
  learner->visit([](const std::string& name, const at::Tensor& rows) {
    const float* numbers = rows.is_floating_point() ? rows.const_data_ptr<float>() : nullptr;
    for (int64_t i = 0; numbers != nullptr && i < rows.numel(); ++i)
      if (std::isnan(numbers[i])) throw std::runtime_error(name + " has a number that is none");
  });
  const std::vector<TrainBatch> batches = {drawn_batch(all[0].tenant, 1),
                                           drawn_batch(all[3].tenant, 1)};
  const auto reports = together(*learner, batches);
  EXPECT_THAT(reports[0].error().text(), HasSubstr("has a number that is none"));
  expect_equal(*reports[1], alone->step(batches[1], never).value(), "the neighbour");
  EXPECT_TRUE(adapter_bytes(*learner, all[3].tenant) == adapter_bytes(*alone, all[3].tenant));
}

/// A queued step runs one pass at a time, and passes of others run between; a tenant that leaves in
/// the middle starts again. The result is that of the step alone.
TEST_P(SharedPass, AStepInLineIsDividedAndEqualToTheBit) {
  const auto base = folder();
  const auto all = five_tenants();
  LearnerOptions options;
  options.micro_batch_tokens = 24;
  constexpr size_t kSteps = 3;
  std::vector<std::vector<TrainReport>> alone(all.size());
  std::vector<std::vector<std::byte>> weights(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    auto learner = make_adapter_learner(base, {all[i]}, options);
    for (uint64_t step = 0; step < kSteps; ++step)
      alone[i].push_back(learner->step(drawn_batch(all[i].tenant, step, 1 + i), never).value());
    weights[i] = adapter_bytes(*learner, all[i].tenant);
  }
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomStream random(mix(seed, 77));
    auto learner = make_adapter_learner(base, all, options);
    learner->share_out(std::vector<double>(all.size(), 0.2), options.micro_batch_tokens);
    std::vector<std::shared_ptr<const TrainBatch>> batches(all.size());
    std::vector<size_t> num_done(all.size());
    int64_t num_between = 0;
    for (uint64_t turn = 1; num_done != std::vector<size_t>(all.size(), kSteps); ++turn) {
      ASSERT_LT(turn, 2000U);
      // A drain comes between two work calls.
      if (random.below(12) == 0) {
        const size_t left = random.below(all.size());
        learner->leave_queue(all[left].tenant);
        batches[left].reset();
      }
      for (size_t i = 0; i < all.size(); ++i) {
        const TenantSlot tenant = all[i].tenant;
        if (num_done[i] == kSteps) continue;
        if (batches[i] == nullptr) {
          if (random.below(3) == 0) continue;  // its batch is not complete yet
          batches[i] = std::make_shared<TrainBatch>(drawn_batch(tenant, num_done[i], 1 + i));
        }
        const auto report = learner->step_queued(batches[i], turn, never);
        num_between += report ? 0 : 1;
        if (!report) continue;
        ASSERT_TRUE(report->ok()) << report->error().text();
        expect_equal(**report, alone[i][num_done[i]++], fmt::format("tenant {}", i));
        batches[i].reset();
        if (num_done[i] == kSteps) learner->leave_queue(tenant);
      }
    }
    for (size_t i = 0; i < all.size(); ++i)
      EXPECT_TRUE(adapter_bytes(*learner, all[i].tenant) == weights[i]) << "tenant " << i;
    EXPECT_GT(num_between, 20);
  }
}

/// Between two passes of a step, scores or a checkpoint may be requested.
TEST_P(SharedPass, WhatIsAskedBetweenPassesChangesNoBitOfAStep) {
  const auto base = folder();
  const auto all = five_tenants();
  LearnerOptions options;
  options.micro_batch_tokens = 24;
  const std::vector<int32_t> tokens = {3, 9, 40, 22, 5, 17};
  const auto trained = [&](bool is_asked) {
    auto learner = make_adapter_learner(base, all, options);
    learner->share_out(std::vector<double>(all.size(), 0.2), options.micro_batch_tokens);
    std::vector<std::shared_ptr<const TrainBatch>> batches;
    for (const auto& training : all)
      batches.push_back(std::make_shared<TrainBatch>(drawn_batch(training.tenant, 1, 3)));
    int64_t num_between = 0;
    for (uint64_t turn = 1; !batches.empty(); ++turn)
      for (size_t i = 0; i < batches.size();) {
        const TenantSlot tenant = batches[i]->tenant;
        const auto report = learner->step_queued(batches[i], turn, never);
        if (report) {
          EXPECT_TRUE(report->ok());
          learner->leave_queue(tenant);
          batches.erase(batches.begin() + static_cast<ptrdiff_t>(i));
        } else {
          ++i;
          ++num_between;
          if (!is_asked) continue;
          EXPECT_TRUE(learner->score(tenant, tokens).ok());
          EXPECT_TRUE(learner->save(tenant, testing::scratch_folder("between")).ok());
        }
      }
    EXPECT_GT(num_between, std::ssize(all)) << "steps are divided";
    std::vector<std::vector<std::byte>> adapters;
    for (const auto& training : all) adapters.push_back(adapter_bytes(*learner, training.tenant));
    return adapters;
  };
  const auto asked = trained(true), unasked = trained(false);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(asked[i] == unasked[i]) << "tenant " << i;
}

TEST_P(SharedPass, AStopLeavesAllAsTheyWere) {
  const auto all = five_tenants();
  LearnerOptions options;
  options.micro_batch_tokens = 20;
  auto learner = make_adapter_learner(folder(), all, options);
  std::vector<TrainBatch> batches;
  std::vector<std::vector<std::byte>> before;
  for (const auto& training : all) {
    batches.push_back(drawn_batch(training.tenant, 2, 3));
    before.push_back(adapter_bytes(*learner, training.tenant));
  }
  int num_stopped = 0;
  for (int most = 1;; ++most) {
    int num_asked = 0;
    const auto reports = together(*learner, batches, [&] { return ++num_asked >= most; });
    if (reports.front().ok()) break;  // the stop came in the last pass, or after it
    ++num_stopped;
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_FALSE(reports[i].ok());
      EXPECT_EQ(reports[i].error().code(), Code::kCancelled);
      EXPECT_TRUE(adapter_bytes(*learner, all[i].tenant) == before[i]) << i;
    }
  }
  EXPECT_GT(num_stopped, 2);
}

INSTANTIATE_TEST_SUITE_P(Torch, SharedPass,
                         ::testing::Values("qwen3", "llama", "qwen3_moe", "glm4_moe"),
                         [](const auto& one) { return one.param; });

/// At the bound two micro-batches share a pass; with one more row they do not.
TEST(SharedPasses, HaveAtMostTheRowsOfAMicroBatch) {
  const auto base = make_folder({});
  const auto all = five_tenants();
  const std::vector<TrainBatch> batches = {drawn_batch(all[0].tenant, 5),
                                           drawn_batch(all[1].tenant, 6)};
  std::vector<int64_t> alone;
  for (const auto& batch : batches) {
    auto learner = make_adapter_learner(base, all);
    const auto rows = rows_of_passes(*learner);
    ASSERT_TRUE(learner->step(batch, never).ok());
    ASSERT_EQ(rows->size(), 1U);
    alone.push_back(rows->front());
  }
  for (const int64_t spare : {0, -1}) {
    LearnerOptions options;
    options.micro_batch_tokens = static_cast<int32_t>(alone[0] + alone[1] + spare);
    auto learner = make_adapter_learner(base, all, options);
    const auto rows = rows_of_passes(*learner);
    for (const auto& report : together(*learner, batches)) ASSERT_TRUE(report.ok());
    EXPECT_EQ(*rows, spare == 0 ? std::vector{alone[0] + alone[1]} : alone) << spare;
  }
}

/// Fast numerics may give other bits for other rows, and debug options observe one step.
TEST(SharedPasses, AreNotUsedIfAStepWouldChange) {
  const auto base = make_folder({});
  const auto all = five_tenants();
  const std::vector<TrainBatch> batches = {drawn_batch(all[0].tenant, 5),
                                           drawn_batch(all[1].tenant, 6)};
  for (const bool is_fast : {true, false}) {
    LearnerOptions options;
    if (is_fast) options.numerics = "fast";
    options.debug.check_finite = !is_fast;
    auto learner = make_adapter_learner(base, all, options);
    if (!is_fast) break_adapter(*learner, all[0].tenant);
    const auto reports = together(*learner, batches);
    auto alone = make_adapter_learner(base, {all[1]}, options);
    expect_equal(*reports[1], alone->step(batches[1], never).value(), options.numerics);
    EXPECT_EQ(reports[0]->skipped, !is_fast);
    const char* why = is_fast ? "" : "of micro-batch 0 (step 1)";
    EXPECT_THAT(reports[0]->skip_reason, HasSubstr(why));
  }
  // Whole weights are trained by one step after the other.
  auto whole = make_torch_learner({}, base).value();
  const std::vector<const TrainBatch*> pointers = {&batches[0], &batches[1]};
  for (const auto& report : whole->step_together(pointers, never)) EXPECT_TRUE(report.ok());
  EXPECT_THAT(whole->describe(), HasSubstr("2 optimizer steps"));
}

}  // namespace
}  // namespace primerl
