#include "kernels/scripted/scripted_engine.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <string>

#include "kernels/scripted/scripted_weights.h"

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

SequenceRequest request(uint64_t id, int32_t max_tokens = 64) {
  SequenceRequest made;
  made.id = SequenceId(id);
  made.tenant = TenantSlot(0);
  made.prompt_tokens = {5, 6, 7, 8};
  made.sampling.max_tokens = max_tokens;
  made.seed = id;
  return made;
}

FinishEvent run_one(Engine& engine, SequenceRequest one) {
  EXPECT_TRUE(engine.submit(std::move(one)).ok());
  std::vector<FinishEvent> ends;
  while (engine.has_work()) {
    EXPECT_TRUE(engine.step().ok());
    for (const auto& event : engine.take_prefilled()) EXPECT_TRUE(engine.take_over(event.id).ok());
    for (auto& end : engine.take_finished()) ends.push_back(std::move(end));
  }
  EXPECT_EQ(ends.size(), 1u);
  return ends.empty() ? FinishEvent() : ends[0];
}

std::string fault_of(const ScriptedEngineOptions& options) {
  const auto made = make_scripted_engine(options);
  return made.ok() ? "no fault" : made.error().text();
}

TEST(ScriptedEngine, RefusesOptionsThatMakeNoEngine) {
  const auto with = [](auto change) {
    ScriptedEngineOptions options;
    change(options);
    return fault_of(options);
  };
  EXPECT_THAT(with([](auto& o) { o.new_tokens_min = 0; }),
              HasSubstr("'new_tokens_min' is 0, below 1"));
  EXPECT_THAT(with([](auto& o) { o.new_tokens_max = 3; }),
              HasSubstr("'new_tokens_max' is 3, below 4"));
  EXPECT_THAT(with([](auto& o) { o.first_token = 1; }), HasSubstr("'first_token' is 1, below 2"));
  EXPECT_THAT(with([](auto& o) { o.vocab_size = 2; }), HasSubstr("'vocab_size' is 2, below 3"));
  EXPECT_EQ(with([](auto& o) { o.vocab_size = 3; }), "no fault");
  EXPECT_THAT(with([](auto& o) { o.tail_fraction = 1.5; }), HasSubstr("'tail_fraction' 1.5"));
  EXPECT_THAT(with([](auto& o) { o.step_cost = Duration::seconds(-1); }), HasSubstr("below 0"));
}

TEST(ScriptedEngine, HasTheFaultOfADeviceThatAFileAsksForOnce) {
  const ScratchFolder scratch;
  ScriptedEngineOptions options;
  options.device_fault_file = scratch.path() / "fault";
  auto engine = *make_scripted_engine(options);
  for (uint64_t id = 1; id <= 2; ++id) ASSERT_TRUE(engine->submit(request(id)).ok());
  ASSERT_TRUE(engine->step().ok());
  ASSERT_EQ(engine->take_prefilled().size(), 2U);
  ASSERT_TRUE(engine->take_over(SequenceId(1)).ok());
  write_text(options.device_fault_file, "full");
  ASSERT_TRUE(engine->step().ok()) << "it continues";
  const auto failed = engine->take_finished();
  ASSERT_EQ(failed.size(), 1U) << "the one that was running";
  EXPECT_EQ(failed[0].reason, FinishReason::kFailed);
  EXPECT_THAT(failed[0].detail, HasSubstr("no memory left"));
  ASSERT_TRUE(engine->take_over(SequenceId(2)).ok());
  ASSERT_TRUE(engine->step().ok()) << "once";
  write_text(options.device_fault_file, "lost");
  EXPECT_EQ(engine->step().error().code(), Code::kDeviceLost);
  write_text(options.device_fault_file, "tired");
  EXPECT_THAT(engine->step().error().text(),
              HasSubstr("says 'tired', which is not a device fault"));
  EXPECT_FALSE(std::filesystem::exists(options.device_fault_file));
}

TEST(ScriptedEngine, LeavesTheFaultOfADiskToTheLearner) {
  const ScratchFolder scratch;
  ScriptedEngineOptions options;
  options.device_fault_file = scratch.path() / "fault";
  auto engine = *make_scripted_engine(options);
  ASSERT_TRUE(engine->submit(request(1)).ok());
  write_text(options.device_fault_file, "no space");
  ASSERT_TRUE(engine->step().ok());
  EXPECT_TRUE(std::filesystem::exists(options.device_fault_file));
}

TEST(ScriptedEngine, RefusesEveryNthSubmitWhenAsked) {
  ScriptedEngineOptions options;
  options.refuse_every = 3;
  auto engine = *make_scripted_engine(options);
  for (uint64_t id = 1; id <= 9; ++id) {
    const Status submitted = engine->submit(request(id));
    EXPECT_EQ(submitted.ok(), id % 3 != 0) << id;
    if (!submitted.ok()) {
      EXPECT_EQ(submitted.error().code(), Code::kUnavailable);
    }
  }
  EXPECT_EQ(engine->state().num_waiting, 6);
}

TEST(ScriptedEngine, EndsByItselfAfterMinTokensWhateverItsScriptSays) {
  ScriptedEngineOptions options;
  options.new_tokens_max = options.new_tokens_min = 3;
  auto engine = *make_scripted_engine(options);
  auto one = request(1);
  one.sampling.min_tokens = 10;
  const auto end = run_one(*engine, one);
  EXPECT_EQ(end.tokens.size(), 11U) << "the end token may be drawn after ten others";
  EXPECT_EQ(end.tokens.back(), options.eos_id);
  EXPECT_EQ(std::ranges::count(end.tokens, options.eos_id), 1);
}

TEST(ScriptedEngine, RefusesMinTokensWhereEveryTokenWouldEndTheSequence) {
  ScriptedEngineOptions options;
  options.vocab_size = options.first_token + 2;
  auto engine = *make_scripted_engine(options);
  auto one = request(1);
  one.prompt_tokens = {options.first_token};
  one.sampling.stop_ids = {options.first_token, options.first_token + 1};
  EXPECT_TRUE(engine->submit(one).ok());
  one.id = SequenceId(2);
  one.sampling.min_tokens = 1;
  const Status refused = engine->submit(one);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("no token can be sampled"));
}

TEST(ScriptedEngine, DrawsLengthsFromItsRangeAndEndsWithEos) {
  ScriptedEngineOptions options;
  options.new_tokens_min = 3;
  options.new_tokens_max = 6;
  auto engine = *make_scripted_engine(options);
  std::set<size_t> lengths;
  for (uint64_t id = 0; id < 200; ++id) {
    const auto end = run_one(*engine, request(id));
    ASSERT_EQ(end.reason, FinishReason::kStop);
    ASSERT_EQ(end.tokens.back(), options.eos_id);
    for (size_t i = 0; i + 1 < end.tokens.size(); ++i)
      ASSERT_GE(end.tokens[i], options.first_token);
    for (const int32_t token : end.tokens) ASSERT_LT(token, options.vocab_size);
    lengths.insert(end.tokens.size());
  }
  EXPECT_THAT(lengths, ::testing::ElementsAre(3, 4, 5, 6));
}

TEST(ScriptedEngine, MakesAShareOfTheRequestsMuchLonger) {
  ScriptedEngineOptions options;
  options.new_tokens_min = options.new_tokens_max = 4;
  options.tail_fraction = 0.25;
  options.tail_factor = 10;
  auto engine = *make_scripted_engine(options);
  int num_long = 0;
  for (uint64_t id = 0; id < 400; ++id) {
    const size_t length = run_one(*engine, request(id)).tokens.size();
    ASSERT_TRUE(length == 4 || length == 40) << length;
    num_long += length == 40 ? 1 : 0;
  }
  EXPECT_GT(num_long, 70);
  EXPECT_LT(num_long, 130);
}

TEST(ScriptedEngine, SaysWhatItsStepsWouldHaveCost) {
  ScriptedEngineOptions options;
  options.step_cost = Duration::milliseconds(100);
  options.prefill_token_cost = Duration::milliseconds(10);
  options.decode_token_cost = Duration::milliseconds(1);
  auto engine = *make_scripted_engine(options);
  EXPECT_EQ(engine->take_cost(), Duration());
  ASSERT_TRUE(engine->submit(request(1, 2)).ok());
  auto other = request(2, 2);
  other.prompt_tokens = {9, 10, 11, 12};
  ASSERT_TRUE(engine->submit(other).ok());
  EXPECT_EQ(engine->take_cost(), Duration());
  ASSERT_TRUE(engine->step().ok());
  EXPECT_EQ(engine->take_cost(), Duration::milliseconds(180));
  for (const auto& event : engine->take_prefilled()) ASSERT_TRUE(engine->take_over(event.id).ok());
  ASSERT_TRUE(engine->step().ok());
  EXPECT_EQ(engine->take_cost(), Duration::milliseconds(102));
  EXPECT_EQ(engine->take_cost(), Duration());
  ASSERT_TRUE(engine->step().ok());
  EXPECT_EQ(engine->take_cost(), Duration()) << "a step without work costs nothing";
}

TEST(ScriptedEngine, GreedyTokensDoNotDependOnTheRequestsSeed) {
  auto engine = *make_scripted_engine({});
  auto one = request(1), other = request(2);
  one.sampling.temperature = other.sampling.temperature = 0;
  EXPECT_EQ(run_one(*engine, one).tokens, run_one(*engine, other).tokens);
}

TEST(ScriptedEngine, AnotherSeedOfTheEngineGivesOtherTokens) {
  ScriptedEngineOptions options;
  options.seed = 1;
  auto engine = *make_scripted_engine({}), other = *make_scripted_engine(options);
  EXPECT_NE(run_one(*engine, request(1)).tokens, run_one(*other, request(1)).tokens);
}

/// Two tenants that always have waiting requests, with different lengths.
TEST(ScriptedEngine, ServesTenantsByTheirShares) {
  ScriptedEngineOptions options;
  options.new_tokens_min = options.new_tokens_max = 1000;
  options.max_running = 8;
  options.shares = {0.75, 0.25};
  auto engine = *make_scripted_engine(options);
  std::vector<int> num_here(2);
  std::vector<double> served(2);
  uint64_t next = 0;
  for (int i = 0; i < 2000; ++i) {
    for (uint32_t tenant = 0; tenant < 2; ++tenant)
      for (; num_here[tenant] < 20; ++num_here[tenant]) {
        auto one = request(2 * next++ + tenant, tenant == 0 ? 10 : 50);
        one.tenant = TenantSlot(tenant);
        one.salt = std::to_string(one.id.value);
        ASSERT_TRUE(engine->submit(std::move(one)).ok());
      }
    ASSERT_TRUE(engine->step().ok());
    for (const auto& event : engine->take_prefilled())
      ASSERT_TRUE(engine->take_over(event.id).ok());
    for (const auto& end : engine->take_finished()) {
      --num_here[end.id.value % 2];
      served[end.id.value % 2] += static_cast<double>(4 + end.tokens.size());
    }
  }
  EXPECT_NEAR(served[0] / (served[0] + served[1]), 0.75, 0.03);
}

TEST(ScriptedEngine, BringsAdaptersIntoItsSlotAtACost) {
  ScriptedEngineOptions options;
  options.adapter_slots = 1;
  options.adapters_max = 2;
  options.apply_cost = options.step_cost = Duration();
  options.prefill_token_cost = options.decode_token_cost = Duration();
  options.adapter_load_cost = Duration::milliseconds(7);
  auto engine = *make_scripted_engine(options);
  const auto apply = [&](uint32_t tenant) {
    return engine->apply(*with_key(*scripted_snapshot(PolicyVersion(1), 99), {TenantSlot(tenant)}));
  };
  EXPECT_THAT(engine->submit(request(1)).error().text(), HasSubstr("has no adapter"));
  ASSERT_TRUE(apply(0).ok());
  ASSERT_TRUE(apply(1).ok());
  EXPECT_THAT(apply(2).error().text(), HasSubstr("the 2 adapters of this engine are in use"));
  run_one(*engine, request(1));
  EXPECT_EQ(engine->take_cost(), Duration()) << "it lay in the slot";
  auto other = request(2);
  other.tenant = TenantSlot(1);
  run_one(*engine, other);
  EXPECT_EQ(engine->take_cost(), Duration::milliseconds(7));
  EXPECT_EQ(engine->state().num_adapter_evictions, 1U);
}

TEST(ScriptedEngine, WaitsForBlocksWithoutClaimingWork) {
  ScriptedEngineOptions options;
  options.kv_blocks = 2;
  options.block_size = 8;
  auto engine = *make_scripted_engine(options);
  auto one = request(1, 4), two = request(2, 4);
  one.prompt_tokens.resize(12, 5);
  two.prompt_tokens.resize(12, 6);
  ASSERT_TRUE(engine->submit(one).ok());
  ASSERT_TRUE(engine->submit(two).ok());
  ASSERT_TRUE(engine->step().ok());
  EXPECT_EQ(engine->state().num_free_blocks, 0);
  EXPECT_EQ(engine->state().num_waiting, 1);
  EXPECT_FALSE(engine->has_work()) << "only a take_over or an abort can help now";
  engine->abort(SequenceId(1));
  EXPECT_TRUE(engine->has_work());
  EXPECT_EQ(engine->describe(), "0 running, 1 waiting, 0 held, 2 of 2 blocks free");
}

}  // namespace
}  // namespace primerl
