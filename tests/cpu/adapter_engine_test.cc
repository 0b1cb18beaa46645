// Engines with adapters of several tenants: rows of one batch are independent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>
#include <thread>

#include "kernels/devices/make.h"
#include "kernels/weights/safetensors.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using testing::make_adapter_learner;
using testing::make_folder;

constexpr uint32_t kNumTenants = 4;

/// Ranks 4 to 64, with different targets.
std::vector<AdapterTraining> trainings() {
  return {{TenantSlot(0), {.rank = 4, .alpha = 8}},
          {TenantSlot(1),
           {.rank = 64, .alpha = 16, .targets = {"q_proj", "v_proj", "down_proj", "lm_head"}}},
          {TenantSlot(2), {.rank = 16, .alpha = 8, .is_rank_stabilized = true}},
          {TenantSlot(3), {.rank = 7, .alpha = 9, .targets = {"up_proj", "lm_head"}}}};
}

EngineOptions with_slots(int32_t slots, int32_t threads = 1) {
  EngineOptions options;
  options.adapter_slots = slots;
  options.threads = threads;
  return options;
}

SequenceRequest request(TenantSlot tenant, uint64_t number) {
  SequenceRequest made;
  made.id = SequenceId(100 * tenant.value + number);
  made.tenant = tenant;
  // Some tenants send the same requests as others.
  for (uint64_t i = 0; i < 5 + 3 * number; ++i)
    made.prompt_tokens.push_back(static_cast<int32_t>(2 + (number * 11 + i * i) % 59));
  made.sampling.max_tokens = 12;
  made.sampling.ignore_eos = true;
  made.sampling.prompt_logprobs = number == 1;
  made.seed = number;
  return made;
}

using Ends = std::map<uint64_t, FinishEvent>;

Ends run(Engine& engine) {
  Ends ends;
  while (engine.has_work()) {
    CHECK(engine.step().ok(), "a step failed");
    for (const auto& event : engine.take_prefilled())
      CHECK(engine.take_over(event.id).ok(), "nothing to take over");
    for (auto& event : engine.take_finished()) ends[event.id.value] = std::move(event);
  }
  return ends;
}

std::vector<std::shared_ptr<const WeightSnapshot>> snapshots(const std::filesystem::path& folder) {
  auto learner = make_adapter_learner(folder, trainings());
  std::vector<std::shared_ptr<const WeightSnapshot>> all;
  for (uint32_t tenant = 0; tenant < kNumTenants; ++tenant)
    all.push_back(testing::adapter_of(*learner, TenantSlot(tenant), 1));
  return all;
}

/// Three sequences of each of `tenants`, alternating, in an engine with `applied`.
Ends generate(const std::filesystem::path& folder, const EngineOptions& options,
              const std::vector<std::shared_ptr<const WeightSnapshot>>& applied,
              const std::vector<uint32_t>& tenants) {
  Ends ends;
  std::jthread([&] {
    auto made = make_torch_engine(options, folder);
    CHECK(made.ok(), made.error().text());
    Engine& engine = **made;
    for (const auto& snapshot : applied) {
      const auto took = engine.apply(*snapshot);
      CHECK(took.ok(), took.error().text());
    }
    for (uint64_t number = 0; number < 3; ++number)
      for (const uint32_t tenant : tenants)
        CHECK(engine.submit(request(TenantSlot(tenant), number)).ok(), "refused");
    ends = run(engine);
  }).join();
  return ends;
}

void expect_equal(const FinishEvent& one, const FinishEvent& other) {
  EXPECT_EQ(one.tokens, other.tokens) << one.id.value;
  EXPECT_EQ(one.logprobs, other.logprobs) << one.id.value;
  EXPECT_EQ(one.prompt_logprobs, other.prompt_logprobs) << one.id.value;
}

class AdapterEngine : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder(int32_t hidden_size = 32) const {
    return make_folder({.model_type = GetParam(),
                        .hidden_size = hidden_size,
                        .deviation = hidden_size > 32 ? 0.05 : 0.3});
  }
};

TEST_P(AdapterEngine, SamplesWhatTheLearnerScoresToTheBit) {
  const auto base = folder();
  const auto ends = generate(base, with_slots(4), snapshots(base), {0, 1, 2, 3});
  auto learner = make_adapter_learner(base, trainings());
  ASSERT_EQ(ends.size(), 12U);
  for (const auto& [id, end] : ends) {
    const TenantSlot tenant(static_cast<uint32_t>(id / 100));
    auto tokens = request(tenant, id % 100).prompt_tokens;
    tokens.insert(tokens.end(), end.tokens.begin(), end.tokens.end());
    const auto scored = learner->score(tenant, tokens).value();
    EXPECT_EQ(std::vector<float>(scored.end() - 12, scored.end()), end.logprobs) << id;
    const auto num_prompt = id % 100 == 1 ? scored.end() - 12 : scored.begin();
    EXPECT_EQ(std::vector<float>(scored.begin(), num_prompt), end.prompt_logprobs) << id;
  }
  // The differences are larger than rounding.
  EXPECT_NE(ends.at(0).logprobs, ends.at(100).logprobs);
  EXPECT_NE(ends.at(0).logprobs, ends.at(200).logprobs);
}

TEST_P(AdapterEngine, RowsOfAMixedBatchEqualThoseAloneOnAnyNumberOfThreads) {
  const auto base = folder(256);
  const auto adapters = snapshots(base);
  Ends alone;
  for (uint32_t tenant = 0; tenant < kNumTenants; ++tenant)
    alone.merge(generate(base, with_slots(1), {adapters[tenant]}, {tenant}));
  ASSERT_EQ(alone.size(), 12U);
  for (const int threads : {1, 2, 4}) {
    const auto mixed = generate(base, with_slots(4, threads), adapters, {3, 1, 0, 2});
    ASSERT_EQ(mixed.size(), alone.size());
    for (const auto& [id, end] : mixed) expect_equal(end, alone.at(id));
  }
}

TEST_P(AdapterEngine, ABrokenNeighbourChangesNothing) {
  const auto base = folder();
  auto adapters = snapshots(base);
  const auto healthy = generate(base, with_slots(4), adapters, {0, 1, 2, 3});
  auto broken = std::make_shared<WeightSnapshot>(*adapters[1]);
  for (auto& tensor : broken->tensors) {
    std::vector<float> nan(tensor.bytes.size() / sizeof(float),
                           std::numeric_limits<float>::quiet_NaN());
    const auto* bytes = reinterpret_cast<const std::byte*>(nan.data());
    tensor.bytes = Blob(std::vector<std::byte>(bytes, bytes + tensor.bytes.size()));
  }
  adapters[1] = broken;
  const auto beside = generate(base, with_slots(4), adapters, {0, 1, 2, 3});
  for (const auto& [id, end] : beside) {
    if (id / 100 == 1)
      EXPECT_EQ(end.reason, FinishReason::kFailed) << id;
    else
      expect_equal(end, healthy.at(id));
  }
}

TEST_P(AdapterEngine, AnAdapterThatAddsNothingIsTheBaseToTheBit) {
  const auto base = folder();
  const auto training = trainings().front();
  auto learner = make_torch_adapter_learner({}, std::vector{training}, base).value();
  const auto with = generate(base, with_slots(1),
                             {learner->snapshot(TenantSlot(0), PolicyVersion(0)).value()}, {0});
  const auto without = generate(base, with_slots(0), {}, {0});
  ASSERT_EQ(with.size(), 3U);
  for (const auto& [id, end] : with) expect_equal(end, without.at(id));
}

TEST_P(AdapterEngine, ANewVersionOfOneTenantDoesNotChangeTheOthers) {
  const auto base = folder();
  const auto adapters = snapshots(base);
  const auto before = generate(base, with_slots(2), {adapters[0], adapters[2]}, {0, 2});
  auto engine = make_torch_engine(with_slots(2), base).value();
  ASSERT_EQ(engine->apply(*adapters[0]).value(), adapters[0]->tensors.size());
  ASSERT_TRUE(engine->apply(*adapters[2]).ok());
  EXPECT_EQ(engine->apply(*adapters[2]).value(), 0U) << "it has that version";
  for (uint64_t number = 0; number < 3; ++number)
    for (const uint32_t tenant : {0, 2})
      ASSERT_TRUE(engine->submit(request(TenantSlot(tenant), number)).ok());
  for (int step = 0; step < 5; ++step) {
    ASSERT_TRUE(engine->step().ok());
    for (const auto& event : engine->take_prefilled())
      ASSERT_TRUE(engine->take_over(event.id).ok());
  }
  // The same rank and targets; then another rank.
  auto next = std::make_shared<WeightSnapshot>(*adapters[0]);
  next->version = PolicyVersion(2);
  next->tensors = testing::random_adapter(
      AdapterTable(TensorTable(read_model_config(base).value()), trainings()[0].adapter), 77);
  ASSERT_TRUE(engine->apply(*next).ok());
  ASSERT_TRUE(engine->step().ok());
  auto third = with_key(*adapters[1], {TenantSlot(0)});
  next = std::make_shared<WeightSnapshot>(*third);
  next->version = PolicyVersion(3);
  ASSERT_TRUE(engine->apply(*next).ok());
  const auto ends = run(*engine);
  ASSERT_EQ(ends.size(), 6U);
  for (const auto& [id, end] : ends) {
    if (id / 100 == 2) {
      expect_equal(end, before.at(id));
      continue;
    }
    EXPECT_NE(end.logprobs, before.at(id).logprobs);
    EXPECT_EQ(end.spans.size(), 3U);
    EXPECT_EQ(end.spans.back().version, PolicyVersion(3));
  }
}

/// A later tenant of a slot has another key, here with the adapter and the requests of tenant 3.
constexpr WeightsKey kLater{TenantSlot(0), AdapterId(1)};

SequenceRequest later_request(uint64_t number) {
  SequenceRequest made = request(TenantSlot(3), number);
  made.tenant = kLater.tenant;
  made.adapter = kLater.adapter;
  return made;
}

TEST_P(AdapterEngine, ATenantLeavesAndAnotherComesWithoutABitOfTheOthers) {
  const auto base = folder();
  const auto adapters = snapshots(base);
  const auto before = generate(base, with_slots(2), {adapters[0], adapters[2]}, {0, 2});
  const auto later = generate(base, with_slots(1), {adapters[3]}, {3});
  auto engine = make_torch_engine(with_slots(2), base).value();
  for (const uint32_t tenant : {0, 2}) ASSERT_TRUE(engine->apply(*adapters[tenant]).ok());
  for (uint64_t number = 0; number < 3; ++number)
    for (const uint32_t tenant : {0, 2})
      ASSERT_TRUE(engine->submit(request(TenantSlot(tenant), number)).ok());
  for (int step = 0; step < 5; ++step) {
    ASSERT_TRUE(engine->step().ok());
    for (const auto& event : engine->take_prefilled())
      ASSERT_TRUE(engine->take_over(event.id).ok());
  }
  engine->drop({TenantSlot(0)});
  for (const auto& end : engine->take_finished())
    EXPECT_EQ(end.reason, FinishReason::kCancelled) << end.id.value;
  const Status refused = engine->submit(request(TenantSlot(0), 1));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("this engine has no adapter of tenant 0"));
  EXPECT_EQ(engine->state().versions.list().size(), 1U);
  ASSERT_TRUE(engine->apply(*with_key(*adapters[3], kLater)).ok());
  for (uint64_t number = 0; number < 3; ++number)
    ASSERT_TRUE(engine->submit(later_request(number)).ok());
  const auto ends = run(*engine);
  ASSERT_EQ(ends.size(), 6U);
  for (const auto& [id, end] : ends)
    expect_equal(end, id / 100 == 2 ? before.at(id) : later.at(id));
  engine->drop(kLater);
  engine->drop({TenantSlot(2)});
  EXPECT_TRUE(engine->state().versions.empty());
  EXPECT_EQ(engine->state().num_free_blocks, engine->state().num_blocks);
}

TEST_P(AdapterEngine, AnAdapterIsDroppedWithASlotOrWithoutOne) {
  const auto base = folder();
  const auto adapters = snapshots(base);
  const auto before = generate(base, with_slots(1), {adapters[2]}, {2});
  const auto later = generate(base, with_slots(1), {adapters[3]}, {3});
  EngineOptions options = with_slots(1);
  options.adapters_max = 2;
  for (const int num_steps : {0, 1, 2}) {
    auto engine = make_torch_engine(options, base).value();
    for (const uint32_t tenant : {2, 0}) ASSERT_TRUE(engine->apply(*adapters[tenant]).ok());
    ASSERT_TRUE(engine->submit(request(TenantSlot(0), 0)).ok());  // tenant 2 has the slot
    for (int step = 0; step < num_steps; ++step) ASSERT_TRUE(engine->step().ok());
    engine->drop({TenantSlot(0)});
    EXPECT_EQ(engine->take_finished().size(), 1U);
    ASSERT_TRUE(engine->apply(*with_key(*adapters[3], kLater)).ok()) << "one of two left";
    for (uint64_t number = 0; number < 3; ++number) {
      ASSERT_TRUE(engine->submit(later_request(number)).ok());
      ASSERT_TRUE(engine->submit(request(TenantSlot(2), number)).ok());
    }
    const auto ends = run(*engine);
    ASSERT_EQ(ends.size(), 6U);
    for (const auto& [id, end] : ends)
      expect_equal(end, id / 100 == 2 ? before.at(id) : later.at(id));
  }
}

TEST(AdapterSlots, TakeMoreUsesOfASlotThanTheyAre) {
  const auto base = make_folder({});
  const auto adapters = snapshots(base);
  auto engine = make_torch_engine(with_slots(2), base).value();
  ASSERT_TRUE(engine->apply(*adapters[0]).ok());
  for (uint32_t use = 1; use <= 300; ++use) {
    const WeightsKey key{TenantSlot(1), AdapterId(use)};
    ASSERT_TRUE(engine->apply(*with_key(*adapters[1 + use % 3], key)).ok()) << use;
    engine->drop(key);
  }
  EXPECT_EQ(engine->state().versions.list().size(), 1U);
}

INSTANTIATE_TEST_SUITE_P(Torch, AdapterEngine,
                         ::testing::Values("qwen3", "llama", "qwen3_moe", "glm4_moe"),
                         [](const auto& one) { return one.param; });

template <class T>
std::string text(const T& result) {
  return result.ok() ? "" : result.error().text();
}

TEST(AdapterSlots, AreAsManyAsTheEngineHas) {
  const auto base = make_folder({});
  const auto adapters = snapshots(base);
  auto engine = make_torch_engine(with_slots(2), base).value();
  EXPECT_THAT(text(engine->submit(request(TenantSlot(0), 1))),
              HasSubstr("this engine has no adapter of tenant 0"));
  ASSERT_TRUE(engine->apply(*adapters[0]).ok());
  ASSERT_TRUE(engine->apply(*adapters[1]).ok());
  const std::string refused = text(engine->apply(*adapters[2]));
  EXPECT_THAT(refused, HasSubstr("the 2 adapters of this engine are in use, tenant 2"));
  EXPECT_THAT(refused, HasSubstr("'adapter_slots'"));
  EXPECT_EQ(engine->state().versions.list().size(), 2U);
  EXPECT_TRUE(engine->manifest().empty());
  EXPECT_EQ(text(engine->submit(request(TenantSlot(1), 1))), "");
}

TEST(AdapterSlots, RefuseWhatDoesNotFitAndKeepTheirAdapters) {
  const auto base = make_folder({});
  const auto adapters = snapshots(base);
  const auto before = generate(base, with_slots(1), {adapters[0]}, {0});
  auto options = with_slots(1);
  options.max_adapter_rank = 63;
  auto engine = make_torch_engine(options, base).value();
  ASSERT_TRUE(engine->apply(*adapters[0]).ok());
  auto next = std::make_shared<WeightSnapshot>(*with_key(*adapters[1], {TenantSlot(0)}));
  next->version = PolicyVersion(2);
  EXPECT_THAT(text(engine->apply(*next)),
              HasSubstr("of tenant 0 has rank 64, this engine takes up to 63"));
  *next = *adapters[0];
  next->version = PolicyVersion(2);
  next->tensors.erase(next->tensors.begin());
  EXPECT_THAT(text(engine->apply(*next)), HasSubstr("is missing"));
  next->tensors = read_model_tensors(base).value();
  EXPECT_THAT(text(engine->apply(*next)), HasSubstr("does not belong to an adapter"));
  for (uint64_t number = 0; number < 3; ++number)
    ASSERT_TRUE(engine->submit(request(TenantSlot(0), number)).ok());
  for (const auto& [id, end] : run(*engine)) {
    expect_equal(end, before.at(id));
    EXPECT_EQ(end.spans.back().version, PolicyVersion(1));
  }
  // An engine of whole weights refuses an adapter.
  auto whole = make_torch_engine({}, base).value();
  EXPECT_THAT(text(whole->apply(*adapters[0])), HasSubstr("not part of the model"));
  EXPECT_THAT(text(whole->apply(*with_key(*adapters[0], {TenantSlot(0), AdapterId(1)}))),
              HasSubstr("'adapter_slots'"));
}

TEST(AdapterSlots, HaveBounds) {
  const auto base = make_folder({});
  const auto refusal = [&](EngineOptions options) {
    return text(make_torch_engine(options, base));
  };
  EXPECT_THAT(refusal({.adapter_slots = -1}), HasSubstr("adapter_slots is -1"));
  EXPECT_THAT(refusal({.adapter_slots = 8193}), HasSubstr("it must be 0 to 8192"));
  EXPECT_THAT(refusal({.adapter_slots = 1, .max_adapter_rank = 0}), HasSubstr("1 to 512"));
  EXPECT_THAT(refusal({.adapter_slots = 1, .max_adapter_rank = 513}), HasSubstr("1 to 512"));
  EXPECT_EQ(refusal({.adapter_slots = 1024, .max_adapter_rank = 512}), "");
}

}  // namespace
}  // namespace primerl
