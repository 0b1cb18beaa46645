// Engines with fewer adapter slots than tenants: every completion equals the one with a slot for
// each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "kernels/cpu/engine/engine.h"
#include "kernels/devices/make.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kTenants = 5;

std::vector<AdapterTraining> slot_trainings() {
  return {{TenantSlot(0), {.rank = 4}},
          {TenantSlot(1), {.rank = 16, .targets = {"q_proj", "lm_head"}}},
          {TenantSlot(2), {.rank = 8, .is_rank_stabilized = true}},
          {TenantSlot(3), {.rank = 7, .alpha = 9}},
          {TenantSlot(4), {.rank = 12, .targets = {"up_proj", "o_proj", "lm_head"}}}};
}

EngineOptions slot_options(int32_t slots, int64_t host_bytes_max = 0) {
  EngineOptions options;
  options.adapter_slots = slots;
  options.adapter_host_bytes_max = host_bytes_max;
  options.adapters_max = kTenants;
  return options;
}

using Ends = std::map<uint64_t, FinishEvent>;

/// Random prompts of all tenants, which arrive while others run; new versions at random steps, when
/// nothing is in flight. Completions by request.
Ends random_run(const std::filesystem::path& base, const EngineOptions& options, uint64_t seed,
                EngineState* state = nullptr) {
  auto engine = make_torch_engine(options, base).value();
  auto learner = testing::make_adapter_learner(base, slot_trainings());
  const auto apply = [&](uint32_t tenant, int64_t version) {
    auto snapshot =
        std::make_shared<WeightSnapshot>(*testing::adapter_of(*learner, TenantSlot(tenant), 1));
    if (version > 1)
      snapshot->tensors =
          testing::random_adapter(AdapterTable(TensorTable(read_model_config(base).value()),
                                               slot_trainings()[tenant].adapter),
                                  mix(seed, static_cast<uint64_t>(version) * kTenants + tenant));
    snapshot->version = PolicyVersion(version);
    const auto applied = engine->apply(*snapshot);
    CHECK(applied.ok(), applied.ok() ? "" : applied.error().text());
  };
  for (uint32_t tenant = 0; tenant < kTenants; ++tenant) apply(tenant, 1);
  RandomStream random(seed);
  Ends ends;
  uint64_t num_submitted = 0;
  for (int64_t round = 2; round < 4; ++round) {
    for (int wave = 0; wave < 8 || engine->has_work(); ++wave) {
      CHECK(wave < 10'000, "it does not end");
      for (uint64_t left = wave < 8 ? random.below(4) : 0; left > 0; --left) {
        SequenceRequest made;
        made.id = SequenceId(num_submitted);
        made.tenant = TenantSlot(static_cast<uint32_t>(random.below(kTenants)));
        made.prompt_tokens.resize(1 + random.below(20));
        for (auto& token : made.prompt_tokens) token = static_cast<int32_t>(2 + random.below(59));
        made.sampling.max_tokens = static_cast<int32_t>(1 + random.below(12));
        made.sampling.ignore_eos = true;
        made.seed = num_submitted++;
        CHECK(engine->submit(std::move(made)).ok(), "refused");
      }
      CHECK(engine->step().ok(), "a step failed");
      for (const auto& event : engine->take_prefilled())
        CHECK(engine->take_over(event.id).ok(), "nothing to take over");
      for (auto& event : engine->take_finished()) ends[event.id.value] = std::move(event);
    }
    // For tenants with a slot and without one.
    for (const uint32_t tenant : {0U, 3U}) apply(tenant, round);
  }
  CHECK(ends.size() == num_submitted, "some did not end");
  if (state != nullptr) *state = engine->state();
  return ends;
}

class FewSlots : public ::testing::TestWithParam<std::string> {};

TEST_P(FewSlots, GiveEveryCompletionThatASlotForEachGives) {
  const auto base = testing::make_folder({.model_type = GetParam()});
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    EngineState enough;
    const auto expected = random_run(base, slot_options(kTenants), seed, &enough);
    EXPECT_EQ(enough.num_adapter_loads, 0U) << "as many slots as adapters";
    for (const int32_t slots : {1, 2, static_cast<int32_t>(kTenants) - 1}) {
      EngineState state;
      const auto ends = random_run(base, slot_options(slots), seed, &state);
      ASSERT_EQ(ends.size(), expected.size());
      for (const auto& [id, end] : ends) {
        EXPECT_EQ(end.tokens, expected.at(id).tokens) << id;
        EXPECT_EQ(end.logprobs, expected.at(id).logprobs) << id;
        EXPECT_EQ(end.reason, expected.at(id).reason) << id;
        EXPECT_EQ(end.spans.back().version, expected.at(id).spans.back().version) << id;
      }
      EXPECT_GT(state.num_adapter_evictions, 0U);
      EXPECT_GE(state.num_adapter_loads, state.num_adapter_evictions);
    }
  }
}

/// With one byte all adapters are in files, with 50,000 those used last are in memory.
TEST_P(FewSlots, AndFewHostBytesGiveEveryCompletionThatManyGive) {
  const auto base = testing::make_folder({.model_type = GetParam()});
  for (uint64_t seed = 6; seed < 9; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const auto expected = random_run(base, slot_options(kTenants), seed);
    for (const int64_t host_bytes_max : {1, 50'000, 1 << 30}) {
      SCOPED_TRACE(fmt::format("{} bytes", host_bytes_max));
      const auto ends = random_run(base, slot_options(2, host_bytes_max), seed);
      ASSERT_EQ(ends.size(), expected.size());
      for (const auto& [id, end] : ends) {
        EXPECT_EQ(end.tokens, expected.at(id).tokens) << id;
        EXPECT_EQ(end.logprobs, expected.at(id).logprobs) << id;
        EXPECT_EQ(end.spans.back().version, expected.at(id).spans.back().version) << id;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Torch, FewSlots, ::testing::Values("qwen3", "qwen3_moe"),
                         [](const auto& one) { return one.param; });

/// An adapter larger than the part loaded before a step: the steps of other tenants continue
/// meanwhile.
TEST(FewSlotsOfAnEngine, BringALargeAdapterInParts) {
  const auto base = testing::make_folder({.hidden_size = 256, .num_layers = 4, .deviation = 0.05});
  EngineOptions options = slot_options(2);
  options.adapters_max = 3;
  options.max_adapter_rank = 512;
  auto engine = make_torch_engine(options, base).value();
  const AdapterConfig large = {.rank = 512};
  auto learner = testing::make_adapter_learner(
      base, {{TenantSlot(0), {.rank = 2}}, {TenantSlot(1), {.rank = 2}}, {TenantSlot(2), large}});
  const AdapterTable table(TensorTable(read_model_config(base).value()), large);
  ASSERT_GT(table.tensors().count(), 2 * CpuEngine::kPreparedElements);
  for (const uint32_t tenant : {0U, 1U, 2U})
    ASSERT_TRUE(engine->apply(*testing::adapter_of(*learner, TenantSlot(tenant), 1)).ok());
  SequenceRequest made;
  made.prompt_tokens = {5, 9, 12};
  made.sampling.max_tokens = 200;
  made.sampling.ignore_eos = true;
  made.id = SequenceId(0);
  ASSERT_TRUE(engine->submit(made).ok());
  ASSERT_TRUE(engine->step().ok());
  for (const auto& event : engine->take_prefilled()) ASSERT_TRUE(engine->take_over(event.id).ok());
  made.id = SequenceId(2);
  made.tenant = TenantSlot(2);
  made.sampling.max_tokens = 2;
  ASSERT_TRUE(engine->submit(made).ok());
  const uint64_t before = engine->state().num_decode_tokens;
  int num_steps = 0;
  for (; engine->take_prefilled().empty(); ++num_steps) ASSERT_TRUE(engine->step().ok());
  EXPECT_GT(num_steps, 2) << "not in one step";
  EXPECT_EQ(engine->state().num_decode_tokens - before, static_cast<uint64_t>(num_steps) + 1)
      << "one token a step of the other, and the first of this one";
}

/// While an adapter is loaded in parts, a version of another tenant moves its copy to a file.
TEST(FewSlotsOfAnEngine, LoadAnAdapterWhoseCopyMovesMeanwhile) {
  const auto base = testing::make_folder({.hidden_size = 256, .num_layers = 4, .deviation = 0.05});
  const AdapterConfig large = {.rank = 512};
  auto learner = testing::make_adapter_learner(
      base, {{TenantSlot(0), {.rank = 2}}, {TenantSlot(1), {.rank = 2}}, {TenantSlot(2), large}});
  const AdapterTable table(TensorTable(read_model_config(base).value()), large);
  SequenceRequest made;
  made.prompt_tokens = {5, 9, 12};
  made.sampling.max_tokens = 3;
  made.sampling.ignore_eos = true;
  made.tenant = TenantSlot(2);
  const auto completion = [&](int64_t host_bytes_max, bool moves) {
    EngineOptions options = slot_options(1, host_bytes_max);
    options.adapters_max = 3;
    options.max_adapter_rank = 512;
    auto engine = make_torch_engine(options, base).value();
    for (const uint32_t tenant : {0U, 1U, 2U})
      CHECK(engine->apply(*testing::adapter_of(*learner, TenantSlot(tenant), 1)).ok(), "refused");
    CHECK(engine->submit(made).ok(), "refused");
    CHECK(engine->step().ok(), "a step failed");
    CHECK(engine->take_prefilled().empty(), "it is loaded in one step");
    if (moves)
      CHECK(engine->apply(*testing::adapter_of(*learner, TenantSlot(1), 2)).ok(), "refused");
    std::vector<FinishEvent> ends;
    for (int step = 0; ends.empty(); ++step) {
      CHECK(step < 1'000 && engine->step().ok(), "it does not end");
      for (const auto& event : engine->take_prefilled())
        CHECK(engine->take_over(event.id).ok(), "nothing to take over");
      ends = engine->take_finished();
    }
    return ends.front();
  };
  const int64_t bytes_of_large = table.tensors().count() * static_cast<int64_t>(sizeof(float));
  const auto want = completion(0, false);
  const auto got = completion(bytes_of_large + 64, true);
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.logprobs, want.logprobs);
}

TEST(FewSlotsOfAnEngine, KnowAtMostTheAdaptersThatTheyMay) {
  const auto base = testing::make_folder({});
  auto learner = testing::make_adapter_learner(base, slot_trainings());
  EngineOptions options = slot_options(1);
  options.adapters_max = 2;
  auto engine = make_torch_engine(options, base).value();
  for (const uint32_t tenant : {0U, 1U})
    ASSERT_TRUE(engine->apply(*testing::adapter_of(*learner, TenantSlot(tenant), 1)).ok());
  const auto refused = engine->apply(*testing::adapter_of(*learner, TenantSlot(2), 1));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("the 2 adapters of this engine are in use"));
  EXPECT_EQ(engine->state().versions.list().size(), 2U);
  const auto bound = [&](int32_t adapters_max) {
    EngineOptions one = slot_options(1);
    one.adapters_max = adapters_max;
    const auto made = make_torch_engine(one, base);
    return made.ok() ? "" : made.error().text();
  };
  EXPECT_EQ(bound(8192), "");
  EXPECT_THAT(bound(8193), HasSubstr("adapters_max is 8193, it must be 0 to 8192"));
  EXPECT_THAT(bound(-1), HasSubstr("adapters_max is -1"));
}

}  // namespace
}  // namespace primerl
