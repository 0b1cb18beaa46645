// Frozen weights that the engine and the learner of a process share on a CUDA device: stored once,
// with the same results as separate copies.
#include "kernels/cuda/memory/frozen_base.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"
#include "tests/device/engine_checks.h"
#include "tests/device/learner_checks.h"

namespace primerl {
namespace {

using device_test::Ends;
using device_test::request_of;
using device_test::run_all;

constexpr TenantSlot kTenant(0);

std::vector<AdapterTraining> training() { return {{kTenant, {.rank = 8, .alpha = 8}, {}, {}}}; }

EngineOptions with_slots(const std::string& dtype) {
  EngineOptions options = device_test::options_on("cuda:0");
  options.adapter_slots = 2;
  options.dtype = dtype;
  return options;
}

std::unique_ptr<Engine> engine_of(const std::filesystem::path& folder, FrozenBases* bases,
                                  const std::string& dtype = "bfloat16") {
  auto engine = make_torch_engine(with_slots(dtype), folder, nullptr, bases);
  CHECK(engine.ok(), engine.error().text());
  return std::move(engine).value();
}

std::unique_ptr<Learner> learner_of(const std::filesystem::path& folder, FrozenBases* bases) {
  const LearnerOptions options = testing::options_of("bfloat16");
  auto made = make_torch_adapter_learner(options, training(), folder, bases);
  CHECK(made.ok(), made.error().text());
  return std::move(made).value();
}

std::shared_ptr<const WeightSnapshot> published(Learner& learner, int64_t version) {
  return with_key(*learner.snapshot(kTenant, PolicyVersion(version)).value(), {kTenant});
}

void train(Learner& learner) {
  TrainBatch batch = testing::mixed_batch();
  batch.tenant = kTenant;
  for (int step = 0; step < 3; ++step) {
    const auto report = learner.step(batch, testing::never);
    CHECK(report.ok(), report.error().text());
  }
}

/// Its tokens and log-probabilities with `adapter`.
Ends answers(Engine& engine, const WeightSnapshot& adapter) {
  device_test::apply(engine, adapter);
  std::vector<SequenceRequest> all;
  for (uint64_t number = 0; number < 9; ++number)
    all.push_back(request_of(number, static_cast<int32_t>(3 + 5 * number), 12, 1));
  return run_all(engine, all);
}

void expect_equal(const Ends& got, const Ends& want) {
  for (const auto& [id, wanted] : want) {
    EXPECT_EQ(got.at(id).tokens, wanted.tokens) << id;
    EXPECT_EQ(got.at(id).logprobs, wanted.logprobs) << id;
  }
}

int64_t bytes_on_cuda() {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  return stats.allocated_bytes[0].current;
}

/// Large enough that its weights dominate the memory.
std::filesystem::path folder_of_model() { return testing::make_folder({.head_dim = 64}); }

TEST(CudaFrozenBase, IsStoredOnceForTheEngineAndTheLearnerOfAProcess) {
  const auto folder = folder_of_model();
  const TensorTable table(read_model_config(folder).value());
  const auto bytes_of_learner = [&](FrozenBases* bases) {
    const auto engine = engine_of(folder, bases);
    const int64_t before = bytes_on_cuda();
    const auto learner = learner_of(folder, bases);
    return bytes_on_cuda() - before;
  };
  FrozenBases bases;
  const int64_t alone = bytes_of_learner(nullptr), shared = bytes_of_learner(&bases);
  EXPECT_GE(alone - shared, 2 * table.count());
  EXPECT_EQ(bases.size(), 0U) << "both are gone";
  const auto engine = engine_of(folder, &bases);
  const auto learner = learner_of(folder, &bases);
  EXPECT_EQ(bases.size(), 1U);
  const auto other = engine_of(folder, &bases, "float32");
  EXPECT_EQ(bases.size(), 2U) << "another data type";
}

TEST(CudaFrozenBase, ChangesNoBitOfTheResults) {
  const auto folder = folder_of_model();
  const auto alone = learner_of(folder, nullptr);
  const auto engine_alone = engine_of(folder, nullptr);
  train(*alone);
  const auto wanted = published(*alone, 1);
  const Ends want = answers(*engine_alone, *wanted);

  FrozenBases bases;
  const auto engine = engine_of(folder, &bases);
  const auto learner = learner_of(folder, &bases);
  train(*learner);
  const auto adapter = published(*learner, 1);
  ASSERT_EQ(adapter->tensors.size(), wanted->tensors.size());
  for (size_t i = 0; i < adapter->tensors.size(); ++i)
    EXPECT_EQ(testing::floats_of(adapter->tensors[i]), testing::floats_of(wanted->tensors[i]));
  expect_equal(answers(*engine, *adapter), want);
}

TEST(CudaFrozenBase, StaysAfterItsLoaderEnds) {
  const auto folder = folder_of_model();
  FrozenBases bases;
  auto first = engine_of(folder, &bases);
  const auto learner = learner_of(folder, &bases);
  train(*learner);
  const auto adapter = published(*learner, 1);
  const Ends want = answers(*first, *adapter);
  first.reset();
  // It would use the memory if that were free.
  const auto another = engine_of(folder, nullptr);
  EXPECT_EQ(bases.size(), 1U);
  train(*learner);
  const auto second = engine_of(folder, &bases);
  expect_equal(answers(*second, *adapter), want);
}

TEST(CudaFrozenBase, LeavesNothingWhenMemoryIsFull) {
  const auto folder = folder_of_model();
  FrozenBases bases;
  EngineOptions huge = with_slots("bfloat16");
  huge.kv_blocks = 1 << 26;
  const auto refused = make_torch_engine(huge, folder, nullptr, &bases);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), ::testing::HasSubstr("the engine needs"));
  EXPECT_EQ(bases.size(), 0U);
  const auto learner = learner_of(folder, &bases);
  const auto again = make_torch_engine(huge, folder, nullptr, &bases);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(bases.size(), 1U) << "the learner's";
}

}  // namespace
}  // namespace primerl
