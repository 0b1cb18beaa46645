// Pausing an engine: the table of owners (EngineHolds), and Decode, which uses it.
#include "actors/common/engine_holds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/decode/decode.h"
#include "graph/testing/node_runner.h"
#include "kernels/engine/observed_engine.h"
#include "kernels/scripted/scripted_engine.h"
#include "tests/actors/fakes.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Duration kShortLease = Duration::seconds(1);

TEST(EngineHolds, RefusesAnInvalidLeaseOrName) {
  EngineHolds holds;
  EXPECT_TRUE(holds.hold(std::string(EngineHolds::kOwnerBytesMax, 'a'), kShortLease, Time()).ok());
  EXPECT_TRUE(holds.hold("b", EngineHolds::kLeaseMax, Time()).ok());
  for (const std::string& owner : {std::string(), std::string(65, 'a')})
    EXPECT_EQ(holds.hold(owner, kShortLease, Time()).error().code(), Code::kInvalid) << owner;
  for (const Duration lease : {Duration(), Duration::nanoseconds(-1), Duration::forever(),
                               EngineHolds::kLeaseMax + Duration::nanoseconds(1)})
    EXPECT_EQ(holds.hold("c", lease, Time()).error().code(), Code::kInvalid);
  EXPECT_FALSE(holds.let_go("c"));
}

TEST(EngineHolds, TakesAsManyOwnersAsItSaysAndRenewsThemWhenFull) {
  EngineHolds holds;
  for (size_t i = 0; i < EngineHolds::kOwnersMax; ++i)
    ASSERT_TRUE(holds.hold(fmt::format("owner {}", i), kShortLease, Time()).ok());
  const Status one_more = holds.hold("late", kShortLease, Time());
  ASSERT_FALSE(one_more.ok());
  EXPECT_EQ(one_more.error().code(), Code::kExhausted);
  EXPECT_THAT(one_more.error().text(), HasSubstr("owner 15"));
  EXPECT_TRUE(holds.hold("owner 3", kShortLease * 2, Time()).ok());
  EXPECT_TRUE(holds.let_go("owner 0"));
  EXPECT_TRUE(holds.hold("late", kShortLease, Time()).ok());
}

TEST(EngineHolds, ALeaseEndsAtItsEndAndARenewedOneAtItsNewEnd) {
  EngineHolds holds;
  ASSERT_TRUE(holds.hold("b", kShortLease, Time()).ok());
  ASSERT_TRUE(holds.hold("a", kShortLease * 5, Time()).ok());
  ASSERT_TRUE(holds.hold("a", kShortLease, Time() + kShortLease).ok());
  EXPECT_EQ(holds.next_end(), Time() + kShortLease);
  EXPECT_THAT(holds.expire(Time() + (kShortLease - Duration::nanoseconds(1))), IsEmpty());
  EXPECT_THAT(holds.expire(Time() + kShortLease), ElementsAre("b"));
  EXPECT_EQ(holds.owners(), "a");
  EXPECT_THAT(holds.expire(Time() + kShortLease * 2), ElementsAre("a"));
  EXPECT_FALSE(holds.is_held());
  EXPECT_EQ(holds.next_end(), std::nullopt);
}

/// Decode with one sequence that decodes during the whole test.
struct HeldEngine : ::testing::Test {
  HeldEngine() : weights(make_memory_channel()) {
    ScriptedEngineOptions options;
    options.new_tokens_min = options.new_tokens_max = 400;
    options.kv_blocks = 100;
    engine = std::make_unique<ObservedEngine>(*make_scripted_engine(options));
    decode.set_tenants({testing::a_tenant()});
    decode.use("engine", *engine);
    decode.use("weights", *weights);
    SequenceRequest request;
    request.id = sequence_of({TenantSlot(0), 1});
    request.prompt_tokens = {2, 3, 4};
    request.sampling.max_tokens = 400;
    EXPECT_TRUE(engine->submit(request).ok());
    while (engine->take_prefilled().empty()) EXPECT_TRUE(engine->step().ok());
    PrefillDone done;
    done.request = 1;
    done.kv.owner = NodeRunnerCore::kSelf;
    done.kv.incarnation = NodeRunnerCore::kIncarnation;
    done.kv.id = request.id.value;
    const Given given{.tenant = TenantSlot(0), .sender = NodeRunnerCore::kSelf, .origin = {}};
    EXPECT_TRUE(decode.give("request", done, given).ok());
  }
  Status hold(const std::string& owner, Duration lease) {
    return decode.give("hold", EngineHold{owner, lease}, {.tenant = TenantSlot(0)});
  }
  /// Tokens made in the next two work calls.
  uint64_t num_made() {
    const uint64_t before = engine->state().num_decode_tokens;
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(decode.run_work().ok());
    return engine->state().num_decode_tokens - before;
  }

  std::unique_ptr<Engine> engine;
  std::shared_ptr<WeightChannel> weights;
  NodeRunner<Decode> decode;
};

TEST_F(HeldEngine, KeepsItsSequencesAndMakesNoTokenWhileItIsPaused) {
  EXPECT_EQ(num_made(), 2U);
  const int32_t num_free = engine->state().num_free_blocks;
  ASSERT_TRUE(hold("operator", kShortLease).ok());
  EXPECT_EQ(num_made(), 0U);
  EXPECT_EQ(engine->state().num_running, 1);
  EXPECT_EQ(engine->state().num_free_blocks, num_free);
  EXPECT_EQ(decode.counter("engine_pauses"), 1);
  ASSERT_TRUE(decode.advance(Duration::milliseconds(250)).ok());
  ASSERT_TRUE(hold("operator", Duration()).ok());
  EXPECT_FALSE(decode.timer("hold").has_value());
  EXPECT_EQ(decode.counter("engine_paused_ms"), 250);
  EXPECT_EQ(num_made(), 2U);
  EXPECT_TRUE(hold("operator", Duration()).ok()) << "for an actor, letting go twice is no error";
  const auto person = decode.give("hold", EngineHold{"operator", Duration()},
                                  {.tenant = TenantSlot(0), .sender = InstanceId(), .origin = {}});
  ASSERT_FALSE(person.ok()) << "who sends a command is told";
  EXPECT_EQ(person.error().code(), Code::kNotFound);
}

TEST_F(HeldEngine, ResumesWhenTheLastPauseOrLeaseHasEnded) {
  ASSERT_TRUE(hold("sync", kShortLease).ok());
  ASSERT_TRUE(hold("operator", kShortLease * 3).ok());
  EXPECT_EQ(decode.timer("hold"), decode.now() + kShortLease);
  ASSERT_TRUE(hold("operator", Duration()).ok());
  EXPECT_EQ(num_made(), 0U) << "sync holds it";
  ASSERT_TRUE(hold("operator", kShortLease * 3).ok());
  ASSERT_TRUE(decode.advance(kShortLease).ok());
  EXPECT_EQ(decode.counter("holds_expired"), 1);
  EXPECT_EQ(num_made(), 0U) << "the operator holds it";
  ASSERT_TRUE(decode.advance(kShortLease * 2).ok());
  EXPECT_EQ(num_made(), 2U) << "nobody said so: the lease ended";
  EXPECT_EQ(decode.counter("holds_expired"), 2);
  EXPECT_EQ(decode.counter("engine_pauses"), 1);
  EXPECT_EQ(decode.counter("engine_paused_ms"), 3000);
}

/// A run without any step for [graph] stall_after counts as stalled, so Decode makes steps during a
/// long lease.
TEST_F(HeldEngine, ReportsProgressWhileItIsPaused) {
  ASSERT_TRUE(hold("operator", EngineHolds::kLeaseMax).ok());
  for (int second = 0; second < 5; ++second) {
    EXPECT_EQ(decode.timer("hold"), decode.now() + Duration::seconds(1));
    ASSERT_TRUE(decode.advance(Duration::seconds(1)).ok());
  }
  EXPECT_EQ(num_made(), 0U);
  EXPECT_EQ(decode.counter("holds_expired"), 0);
  EXPECT_EQ(decode.counter("engine_pauses"), 1);
}

TEST_F(HeldEngine, IsNotPausedByAnInvalidMessage) {
  EXPECT_FALSE(hold("operator", EngineHolds::kLeaseMax * 2).ok());
  EXPECT_FALSE(hold("", kShortLease).ok());
  EXPECT_EQ(num_made(), 2U);
}

TEST_F(HeldEngine, AnswersAnAbortWhileItIsPaused) {
  ASSERT_TRUE(hold("operator", kShortLease).ok());
  ASSERT_TRUE(decode.give("abort", Abort{1, 0}, {.tenant = TenantSlot(0)}).ok());
  ASSERT_TRUE(decode.run_work().ok());
  const auto answers = decode.sent<Completion>("completion");
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].end, FinishReason::kCancelled);
  EXPECT_EQ(engine->state().num_free_blocks, engine->state().num_blocks);
}

TEST_F(HeldEngine, ADrainEndsItsPauses) {
  ASSERT_TRUE(hold("operator", EngineHolds::kLeaseMax).ok());
  ASSERT_TRUE(decode.drain().ok());
  EXPECT_FALSE(decode.timer("hold").has_value());
  EXPECT_EQ(num_made(), 2U);
}

/// An actor that resumes from saved state may have a new engine, which is not paused yet.
TEST_F(HeldEngine, AWorkCallPausesANewEngineAgain) {
  ASSERT_TRUE(hold("operator", kShortLease).ok());
  engine->set_paused(false);
  ASSERT_TRUE(decode.run_work().ok());
  EXPECT_EQ(num_made(), 0U);
}

}  // namespace
}  // namespace primerl
