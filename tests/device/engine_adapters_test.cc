// Adapters in the engine on a CUDA device compared with the CPU's: in fp32 the same tokens and,
// except for rounding, the same log-probabilities, for any other rows in the batch. Heads of 64
// channels decode in graphs, heads of 16 do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/base/random.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"
#include "tests/device/engine_checks.h"

namespace primerl {
namespace {

using device_test::apply;
using device_test::Ends;
using device_test::expect_alike;
using device_test::made;
using device_test::request_of;
using device_test::run_all;
using device_test::Snapshots;
using device_test::take_step;
using ::testing::HasSubstr;

constexpr uint32_t kTenants = 5;

/// Ranks 4 to 64, with different targets.
std::vector<AdapterTraining> tenants() {
  return {{TenantSlot(0), {.rank = 4, .alpha = 8}},
          {TenantSlot(1),
           {.rank = 64, .alpha = 16, .targets = {"q_proj", "v_proj", "down_proj", "lm_head"}}},
          {TenantSlot(2), {.rank = 16, .alpha = 8, .is_rank_stabilized = true}},
          {TenantSlot(3), {.rank = 7, .alpha = 9, .targets = {"up_proj", "o_proj", "lm_head"}}},
          {TenantSlot(4), {.rank = 24, .targets = {"k_proj", "gate_proj"}}}};
}

EngineOptions with_slots(const std::string& device, int32_t slots = kTenants) {
  EngineOptions options = device_test::options_on(device);
  options.adapter_slots = slots;
  options.adapter_targets = {"all-linear", "lm_head"};
  options.adapters_max = std::max<int32_t>(slots, kTenants);
  return options;
}

/// Several requests of each tenant; some arrive while others decode.
std::vector<SequenceRequest> of_all_tenants() {
  std::vector<SequenceRequest> all;
  for (uint64_t number = 0; number < 23; ++number)
    all.push_back(request_of(number, static_cast<int32_t>(1 + 5 * (number % 9)),
                             static_cast<int32_t>(10 + number % 7), 1,
                             static_cast<uint32_t>(number * 3 % kTenants)));
  return all;
}

class CudaAdapterEngine : public ::testing::TestWithParam<int32_t> {
 protected:
  CudaAdapterEngine()
      : folder_(testing::make_folder({.head_dim = GetParam()})),
        model_(read_model_config(folder_).value()),
        learner_(testing::make_adapter_learner(folder_, tenants())) {
    for (uint32_t tenant = 0; tenant < kTenants; ++tenant)
      adapters_.push_back(testing::adapter_of(*learner_, TenantSlot(tenant), 1));
  }

  /// Another version of a tenant's adapter, with rank and targets of `like`.
  std::shared_ptr<const WeightSnapshot> version_of(uint32_t tenant, int64_t version,
                                                   uint32_t like) const {
    auto next = std::make_shared<WeightSnapshot>(*adapters_[tenant]);
    next->version = PolicyVersion(version);
    next->tensors = testing::random_adapter(AdapterTable(model_, tenants()[like].adapter),
                                            static_cast<uint64_t>(100 * version + tenant));
    return next;
  }

  const std::filesystem::path folder_;
  const TensorTable model_;
  const std::unique_ptr<CpuLearner> learner_;
  Snapshots adapters_;  // by tenant
};

TEST_P(CudaAdapterEngine, RowsOfAMixedBatchAreTheCpus) {
  auto device_engine = made(with_slots("cuda:0"), folder_, adapters_);
  auto cpu = made(with_slots("cpu"), folder_, adapters_);
  const Ends got = run_all(*device_engine, of_all_tenants());
  expect_alike(got, run_all(*cpu, of_all_tenants()));
  EXPECT_TRUE(device_engine->manifest().empty());
}

/// The tiny model's head is its embedding; this one has its own.
TEST(CudaAdapterEngineHead, OfItsOwnHasTheCpusRows) {
  const auto folder = testing::make_folder({.model_type = "llama", .head_dim = 64});
  const auto learner = testing::make_adapter_learner(folder, tenants());
  Snapshots adapters;
  for (uint32_t tenant = 0; tenant < kTenants; ++tenant)
    adapters.push_back(testing::adapter_of(*learner, TenantSlot(tenant), 1));
  auto device_engine = made(with_slots("cuda:0"), folder, adapters);
  auto cpu = made(with_slots("cpu"), folder, adapters);
  const Ends got = run_all(*device_engine, of_all_tenants());
  expect_alike(got, run_all(*cpu, of_all_tenants()));
}

/// A client's moving key and sixteen snapshots, each with a slot, and one key after another that
/// takes the place of a dropped one.
TEST_P(CudaAdapterEngine, SnapshotsOfATenantEachHaveASlot) {
  constexpr uint32_t kKeys = 17;
  const WeightsKey moving{TenantSlot(2)};
  Snapshots keys;
  std::vector<SequenceRequest> requests;
  for (uint32_t number = 0; number < kKeys; ++number) {
    const WeightsKey key = number == 0 ? moving : snapshot_key(moving, number);
    keys.push_back(with_key(*version_of(2, number + 1, 2), key));
    for (uint64_t i = 0; i < 2; ++i) {
      requests.push_back(request_of(2 * number + i, 12, 6, 1, 2));
      requests.back().adapter = key.adapter;
    }
  }
  auto device_engine = made(with_slots("cuda:0", kKeys), folder_, keys);
  auto cpu = made(with_slots("cpu", kKeys), folder_, keys);
  expect_alike(run_all(*device_engine, requests), run_all(*cpu, requests));
  EXPECT_EQ(device_engine->state().num_adapter_evictions, 0U);
  for (Engine* engine : {device_engine.get(), cpu.get()}) {
    engine->drop(keys[5]->key);
    apply(*engine, *with_key(*version_of(2, 40, 2), snapshot_key(moving, 40)));
  }
  for (auto& one : requests) {
    one.salt = "main:2";
    if (one.adapter == keys[5]->key.adapter) one.adapter = snapshot_key(moving, 40).adapter;
  }
  expect_alike(run_all(*device_engine, requests), run_all(*cpu, requests));
}

TEST_P(CudaAdapterEngine, SoAreThoseOfLongPrompts) {
  const auto requests = device_test::long_prompts(kTenants);
  auto device_engine = made(with_slots("cuda:0"), folder_, adapters_);
  auto cpu = made(with_slots("cpu"), folder_, adapters_);
  const Ends got = run_all(*device_engine, requests);
  expect_alike(got, run_all(*cpu, requests));
}

TEST_P(CudaAdapterEngine, AnAdapterThatAddsNothingIsTheBaseToTheBit) {
  const auto training = tenants()[2];
  auto fresh = make_torch_adapter_learner({}, std::vector{training}, folder_).value();
  auto nothing = fresh->snapshot(TenantSlot(2), PolicyVersion(0)).value();
  nothing = with_key(*nothing, {TenantSlot(2)});
  std::vector<SequenceRequest> requests;
  for (uint64_t number = 0; number < 5; ++number)
    requests.push_back(request_of(number, 12, 8, 1, 2));
  auto with = made(with_slots("cuda:0"), folder_, {nothing});
  const Ends got = run_all(*with, requests);
  EngineOptions options = with_slots("cuda:0");
  options.adapter_slots = options.adapters_max = 0;
  auto base = made(options, folder_, {});
  const Ends want = run_all(*base, requests);
  for (const auto& [id, end] : want) EXPECT_EQ(got.at(id).logprobs, end.logprobs) << id;
}

TEST_P(CudaAdapterEngine, NewVersionsCountOncePreparedOrNot) {
  auto device_engine = made(with_slots("cuda:0"), folder_, adapters_);
  auto cpu = made(with_slots("cpu"), folder_, adapters_);
  auto requests = of_all_tenants();
  const auto compare = [&](const std::string& what) {
    SCOPED_TRACE(what);
    for (auto& one : requests) one.salt = std::to_string(stable_hash(what));
    const Ends got = run_all(*device_engine, requests), want = run_all(*cpu, requests);
    expect_alike(got, want);
    for (const auto& [id, end] : want)
      EXPECT_EQ(got.at(id).spans.back().version, end.spans.back().version) << id;
  };
  compare("first");  // graphs exist, and read the new values
  const auto prepared = version_of(0, 2, 0), wider = version_of(3, 2, 1);
  while (!device_engine->prepare(prepared)) ASSERT_TRUE(device_engine->step().ok());
  compare("prepared and not applied");
  for (Engine* engine : {device_engine.get(), cpu.get()}) apply(*engine, *prepared);
  compare("prepared");
  EXPECT_EQ(device_engine->apply(*prepared).value(), 0U) << "it has that version";
  for (Engine* engine : {device_engine.get(), cpu.get()}) apply(*engine, *wider);
  compare("of another rank and other targets, not prepared");
  // Another snapshot replaces it: the prepared one is not the applied one.
  const auto unwanted = version_of(2, 7, 2), other = version_of(2, 6, 2);
  while (!device_engine->prepare(unwanted)) ASSERT_TRUE(device_engine->step().ok());
  for (Engine* engine : {device_engine.get(), cpu.get()}) apply(*engine, *other);
  compare("another than was prepared");
}

TEST_P(CudaAdapterEngine, AVersionThatArrivesDuringDecodeDoesNotChangeOtherSlots) {
  auto engine = made(with_slots("cuda:0"), folder_, adapters_);
  const auto run = [&](const WeightSnapshot* next) {
    Ends ends;
    for (uint64_t number = 0; number < 10; ++number)
      EXPECT_TRUE(
          engine->submit(request_of(number, 9, 40, 1, static_cast<uint32_t>(number % kTenants)))
              .ok());
    for (int step = 0; step < 8; ++step) take_step(*engine, ends);
    if (next != nullptr) apply(*engine, *next);
    while (engine->has_work()) take_step(*engine, ends);
    return ends;
  };
  const Ends before = run(nullptr), after = run(version_of(1, 2, 1).get());
  ASSERT_EQ(after.size(), 10U);
  for (const auto& [id, end] : after) {
    if (id % kTenants != 1) {
      expect_alike(end, before.at(id));
      continue;
    }
    EXPECT_NE(end.logprobs, before.at(id).logprobs);
    EXPECT_EQ(end.spans.size(), 2U);
    EXPECT_EQ(end.spans.back().version, PolicyVersion(2));
  }
}

TEST_P(CudaAdapterEngine, FewerSlotsThanTenantsGiveTheSameTokens) {
  auto cpu = made(with_slots("cpu"), folder_, adapters_);
  const Ends want = run_all(*cpu, of_all_tenants());
  for (const int32_t slots : {1, 2, 4}) {
    SCOPED_TRACE(slots);
    auto device_engine = made(with_slots("cuda:0", slots), folder_, adapters_);
    expect_alike(run_all(*device_engine, of_all_tenants()), want);
    EXPECT_GT(device_engine->state().num_adapter_evictions, 0U);
  }
}

TEST_P(CudaAdapterEngine, ANewVersionOfAWaitingAdapterIsTheOneThatIsLoaded) {
  Snapshots adapters = adapters_;
  auto cpu = made(with_slots("cpu"), folder_, adapters_);
  auto device_engine = made(with_slots("cuda:0", 1), folder_, adapters_);
  const auto next = version_of(4, 2, 4);
  for (Engine* engine : {device_engine.get(), cpu.get()}) apply(*engine, *next);
  const std::vector<SequenceRequest> requests = {request_of(0, 9, 4, 1, 0),
                                                 request_of(1, 9, 12, 1, 4)};
  const Ends want = run_all(*cpu, requests);
  expect_alike(run_all(*device_engine, requests), want);
  // It is still being uploaded when the next version arrives.
  ASSERT_TRUE(device_engine->submit(request_of(2, 9, 4, 1, 0)).ok());
  Ends ends;
  ASSERT_TRUE(device_engine->step().ok());
  apply(*device_engine, *version_of(0, 3, 0));
  apply(*cpu, *version_of(0, 3, 0));
  while (device_engine->has_work()) take_step(*device_engine, ends);
  expect_alike(ends, run_all(*cpu, {request_of(2, 9, 4, 1, 0)}));
}

TEST_P(CudaAdapterEngine, ABrokenNeighbourChangesNothing) {
  auto healthy = made(with_slots("cuda:0"), folder_, adapters_);
  const Ends want = run_all(*healthy, of_all_tenants());
  auto broken = std::make_shared<WeightSnapshot>(*adapters_[1]);
  for (auto& tensor : broken->tensors) {
    const std::vector<float> nan(tensor.bytes.size() / sizeof(float),
                                 std::numeric_limits<float>::quiet_NaN());
    const auto bytes = std::as_bytes(std::span(nan));
    tensor.bytes = Blob(std::vector<std::byte>(bytes.begin(), bytes.end()));
  }
  Snapshots adapters = adapters_;
  adapters[1] = broken;
  auto engine = made(with_slots("cuda:0"), folder_, adapters);
  for (const auto& [id, end] : run_all(*engine, of_all_tenants())) {
    if (id * 3 % kTenants == 1)
      EXPECT_EQ(end.reason, FinishReason::kFailed) << id;
    else
      expect_alike(end, want.at(id));
  }
}

TEST_P(CudaAdapterEngine, Bf16IsNearTheCpusFp32) {
  std::vector<SequenceRequest> requests;
  for (uint64_t number = 0; number < 10; ++number) {
    requests.push_back(request_of(number, 60, 1, 1, static_cast<uint32_t>(number % kTenants)));
    requests.back().sampling.prompt_logprobs = true;
  }
  EngineOptions options = with_slots("cuda:0");
  options.dtype = "bfloat16";
  auto device_engine = made(options, folder_, adapters_),
       cpu = made(with_slots("cpu"), folder_, adapters_);
  const Ends got = run_all(*device_engine, requests), want = run_all(*cpu, requests);
  double squares = 0, spread = 0;
  for (const auto& [id, end] : want)
    for (size_t i = 0; i < end.prompt_logprobs.size(); ++i) {
      const double off = got.at(id).prompt_logprobs.at(i) - end.prompt_logprobs[i];
      squares += off * off;
      spread += end.prompt_logprobs[i] * end.prompt_logprobs[i];
    }
  // Without adapters the factor is 0.02; here u is rounded too.
  EXPECT_LT(std::sqrt(squares), 0.03 * std::sqrt(spread));
  EXPECT_GT(squares, 0);
}

INSTANTIATE_TEST_SUITE_P(HeadDim, CudaAdapterEngine, ::testing::Values(64, 16),
                         [](const auto& one) { return std::to_string(one.param); });

template <class T>
std::string text(const T& result) {
  return result.ok() ? "" : result.error().text();
}

TEST(CudaAdapterEngineRefuses, UnsupportedOptionsByName) {
  const auto folder = testing::make_folder({.head_dim = 64});
  EngineOptions options = with_slots("cuda:0");
  options.max_adapter_rank = 65;
  EXPECT_THAT(text(make_torch_engine(options, folder)),
              HasSubstr("adapters may have rank 65: engines on cuda:0 take ranks up to 64"));
  options = with_slots("cuda:0");
  options.max_adapter_rank = 16;
  auto learner = testing::make_adapter_learner(folder, tenants());
  auto engine = made(options, folder, {});
  EXPECT_THAT(text(engine->apply(*testing::adapter_of(*learner, TenantSlot(1), 1))),
              HasSubstr("of tenant 1 has rank 64, this engine takes up to 16"));
  EXPECT_THAT(text(engine->submit(request_of(1, 4, 4, 1, 1))), HasSubstr("no adapter of tenant 1"));
  options = with_slots("cuda:0");
  options.adapter_slots = options.adapters_max = 0;
  engine = made(options, folder, {});
  auto of_other =
      with_key(*testing::adapter_of(*learner, TenantSlot(0), 1), {TenantSlot(0), AdapterId(1)});
  EXPECT_THAT(text(engine->apply(*of_other)), HasSubstr("give the engine 'adapter_slots'"));
  const auto odd = testing::make_folder({.hidden_size = 36, .head_dim = 64}, "odd");
  EXPECT_THAT(text(make_torch_engine(with_slots("cuda:0"), odd)),
              HasSubstr("reads 36 numbers: on cuda:0 an adapter's linear reads a multiple of 8"));
}

}  // namespace
}  // namespace primerl
