#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/decode/decode.h"
#include "actors/prefill/prefill.h"
#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

GenerateRequest a_request(uint64_t request) {
  GenerateRequest made;
  made.request = request;
  made.session = 70 + request;
  made.attempt = 2;
  made.prompt_tokens = {1, 2, 3};
  made.sampling.max_tokens = 4;
  made.seed = 11;
  made.salt = "main:0";
  return made;
}

/// Prefill and Decode of one actor group: they share an engine and a weight channel.
/// The versions that a router knows after these loads.
VersionsByKey known_after(const std::vector<EngineLoad>& loads) {
  VersionsByKey known;
  for (const EngineLoad& load : loads)
    for (const auto& [key, version] : load.applied.list())
      CHECK(known.raise(key, version), "too many keys");
  return known;
}

struct EngineStory : ::testing::Test {
  EngineStory() : weights(make_memory_channel()) {
    for (NodeRunnerCore* node :
         {static_cast<NodeRunnerCore*>(&prefill), static_cast<NodeRunnerCore*>(&decode)}) {
      node->set_tenants({testing::a_tenant(), testing::a_tenant()});
      node->use("engine", engine);
      node->use("weights", *weights);
    }
  }
  void publish(int64_t version, TenantSlot tenant = TenantSlot(0)) {
    auto snapshot = std::make_shared<WeightSnapshot>();
    snapshot->key.tenant = tenant;
    snapshot->version = PolicyVersion(version);
    ASSERT_TRUE(weights->publish(snapshot).ok());
  }
  void ask(uint64_t request) {
    ASSERT_TRUE(prefill.give("request", a_request(request), rollout).ok());
  }
  /// Makes both work calls and delivers PrefillDone, as the actor group does.
  void turn() {
    ASSERT_TRUE(prefill.run_work().ok());
    for (const auto& emission : prefill.emissions("done"))
      ASSERT_TRUE(decode
                      .NodeRunnerCore::give(
                          "request", emission.payload,
                          {emission.options.tenant, NodeRunnerCore::kSelf, emission.options.origin})
                      .ok());
    prefill.forget_sent("done");
    ASSERT_TRUE(decode.run_work().ok());
  }
  void abort(uint64_t request) {
    ASSERT_TRUE(prefill.give("abort", Abort{request, 2}, rollout).ok());
    ASSERT_TRUE(decode.give("abort", Abort{request, 2}, rollout).ok());
  }
  SequenceId id(uint64_t request) { return sequence_of({rollout.tenant, request}); }
  std::vector<Completion> answers() { return decode.sent<Completion>("completion"); }

  Given rollout{.tenant = TenantSlot(1), .sender = InstanceId(5), .origin = InstanceId(3)};
  testing::FakeEngine engine;
  std::shared_ptr<WeightChannel> weights;
  NodeRunner<Prefill> prefill;
  NodeRunner<Decode> decode;
};

TEST(RequestName, FitsIntoASequenceUpToItsLimit) {
  const uint64_t last = (uint64_t{1} << kRequestBits) - 1;
  EXPECT_TRUE(is_nameable({TenantSlot(65535), last}));
  EXPECT_FALSE(is_nameable({TenantSlot(65536), last}));
  EXPECT_FALSE(is_nameable({TenantSlot(0), last + 1}));
  EXPECT_EQ(request_of(sequence_of({TenantSlot(65535), last})),
            (RequestName{TenantSlot(65535), last}));
}

TEST(CancelledEarly, ForgetsTheOldestAndNoMore) {
  CancelledEarly cancelled;
  for (uint64_t i = 0; i < CancelledEarly::kNamesMax; ++i) cancelled.add({TenantSlot(0), i});
  EXPECT_TRUE(cancelled.contains({TenantSlot(0), 0}));
  cancelled.add({TenantSlot(0), CancelledEarly::kNamesMax});
  EXPECT_FALSE(cancelled.contains({TenantSlot(0), 0}));
  EXPECT_TRUE(cancelled.contains({TenantSlot(0), 1}));
}

TEST_F(EngineStory, ARefusalHasTheTextOfTheEngine) {
  auto request = a_request(1);
  request.prompt_tokens.resize(101);
  EXPECT_FALSE(prefill.give("request", request, rollout).ok());
  const auto refused = prefill.sent<Completion>("refused");
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].end, FinishReason::kRefused);
  EXPECT_EQ(refused[0].session, 71U);
  EXPECT_EQ(refused[0].attempt, 2U);
  EXPECT_THAT(refused[0].detail, HasSubstr("too long"));
  EXPECT_EQ(prefill.emissions("refused")[0].options.origin, InstanceId(3));
  turn();
  EXPECT_THAT(answers(), IsEmpty());
}

TEST_F(EngineStory, ALaterTurnSendsOnlyWhatFollowsTheSessionsLastPrompt) {
  ask(1);
  auto next = a_request(2);
  next.session = 71;
  next.known = TokenPrefix().extended(std::vector<int32_t>{1, 2, 3});
  next.prompt_tokens = {4, 5};
  ASSERT_TRUE(prefill.give("request", next, rollout).ok());
  ASSERT_THAT(engine.submitted, SizeIs(2));
  EXPECT_THAT(engine.submitted[1].prompt_tokens, ElementsAre(1, 2, 3, 4, 5));
  engine.prefill(id(2));
  ASSERT_TRUE(prefill.run_work().ok());
  EXPECT_EQ(prefill.sent<PrefillDone>("done")[0].num_prompt_tokens, 5);
}

TEST_F(EngineStory, AnUnknownSessionIsAnsweredAndTheEngineIsNotAsked) {
  auto request = a_request(1);
  request.known = TokenPrefix().extended(std::vector<int32_t>{1, 2, 3});
  ASSERT_TRUE(prefill.give("request", request, rollout).ok());
  EXPECT_THAT(engine.submitted, IsEmpty());
  const auto refused = prefill.sent<Completion>("refused");
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].end, FinishReason::kUnknownSession);
  EXPECT_EQ(refused[0].session, 71U);
  EXPECT_EQ(prefill.counter("sessions_unknown"), 1);
  EXPECT_TRUE(prefill.idle());
}

TEST_F(EngineStory, AParkedTurnKeepsItsWholePrompt) {
  ask(1);
  engine.max_waiting = engine.waiting.size();
  auto next = a_request(2);
  next.session = 71;
  next.known = TokenPrefix().extended(std::vector<int32_t>{1, 2, 3});
  next.prompt_tokens = {4};
  ASSERT_TRUE(prefill.give("request", next, rollout).ok());
  ASSERT_THAT(engine.submitted, SizeIs(1));
  engine.max_waiting = 100;
  turn();
  ASSERT_THAT(engine.submitted, SizeIs(2));
  EXPECT_THAT(engine.submitted[1].prompt_tokens, ElementsAre(1, 2, 3, 4));
}

TEST_F(EngineStory, TheFirstTokenIsLoggedOnce) {
  turn();
  EXPECT_THAT(decode.log(), IsEmpty());
  engine.num_decode_tokens = 1;
  turn();
  ASSERT_THAT(decode.log(), SizeIs(1));
  EXPECT_THAT(decode.log()[0], HasSubstr(kFirstTokenLine));
  engine.num_decode_tokens = 2;
  turn();
  EXPECT_THAT(decode.log(), SizeIs(1));
}

TEST_F(EngineStory, ARequestIsPrefilledTakenOverAndAnswered) {
  ask(1);
  ASSERT_THAT(engine.submitted, SizeIs(1));
  EXPECT_EQ(engine.submitted[0].salt, "main:0");
  EXPECT_EQ(engine.submitted[0].seed, 11U);
  EXPECT_EQ(engine.submitted[0].tenant, TenantSlot(1));
  engine.prefill(id(1));
  turn();
  EXPECT_THAT(engine.running, SizeIs(1));
  const Blob kept(std::vector<std::byte>(2));
  engine.finish(id(1), FinishReason::kStop, {65, 66}, kept);
  turn();
  ASSERT_THAT(answers(), SizeIs(1));
  const Completion answer = answers()[0];
  EXPECT_EQ(answer.request, 1U);
  EXPECT_EQ(answer.session, 71U);
  EXPECT_EQ(answer.kept, kept);
  EXPECT_EQ(answer.attempt, 2U);
  EXPECT_EQ(answer.end, FinishReason::kStop);
  EXPECT_THAT(answer.tokens, ElementsAre(65, 66));
  EXPECT_THAT(answer.spans, ElementsAre(VersionSpan{PolicyVersion(0), 0, 2}));
  const auto& options = decode.emissions("completion")[0].options;
  EXPECT_EQ(options.tenant, TenantSlot(1));
  EXPECT_EQ(options.origin, InstanceId(3));
  EXPECT_FALSE(options.cause.is_none());
  EXPECT_TRUE(prefill.idle());
  EXPECT_TRUE(decode.idle());
}

TEST_F(EngineStory, AnAbortDuringPrefillIsAnsweredOnce) {
  ask(1);
  abort(1);
  turn();
  turn();
  ASSERT_THAT(answers(), SizeIs(1));
  EXPECT_EQ(answers()[0].end, FinishReason::kCancelled);
  EXPECT_EQ(answers()[0].attempt, 2U);
  EXPECT_THAT(prefill.sent<Completion>("refused"), IsEmpty());
  EXPECT_TRUE(prefill.idle());
  EXPECT_TRUE(decode.idle());
}

TEST_F(EngineStory, AnAbortBetweenPrefillAndDecodeIsAnsweredOnce) {
  ask(1);
  engine.prefill(id(1));
  ASSERT_TRUE(prefill.run_work().ok());  // PrefillDone was sent
  abort(1);
  turn();
  turn();
  ASSERT_THAT(answers(), SizeIs(1));
  EXPECT_EQ(answers()[0].end, FinishReason::kCancelled);
  EXPECT_EQ(answers()[0].session, 71U);
  EXPECT_TRUE(decode.idle());
}

TEST_F(EngineStory, AHandoverAfterTheAnswerIsNotAnsweredAgain) {
  ask(1);
  engine.prefill(id(1));
  ASSERT_TRUE(prefill.run_work().ok());
  abort(1);
  ASSERT_TRUE(decode.run_work().ok());
  turn();
  EXPECT_THAT(answers(), SizeIs(1));
  EXPECT_TRUE(decode.idle());
}

TEST_F(EngineStory, AnAbortWhileDecodingIsAnsweredOnce) {
  ask(1);
  engine.prefill(id(1));
  turn();
  abort(1);
  turn();
  ASSERT_THAT(answers(), SizeIs(1));
  EXPECT_EQ(answers()[0].end, FinishReason::kCancelled);
  EXPECT_EQ(answers()[0].session, 71U);
}

TEST_F(EngineStory, AnAbortThatCrossesTheEndChangesNothing) {
  ask(1);
  engine.prefill(id(1));
  turn();
  engine.finish(id(1), FinishReason::kLength, {65});
  abort(1);
  turn();
  turn();
  ASSERT_THAT(answers(), SizeIs(1));
  EXPECT_EQ(answers()[0].end, FinishReason::kLength);
}

TEST_F(EngineStory, AnAbortMayOvertakeItsRequest) {
  abort(1);
  ask(1);
  EXPECT_THAT(engine.submitted, IsEmpty());
  const auto refused = prefill.sent<Completion>("refused");
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].end, FinishReason::kCancelled);
  turn();
  EXPECT_THAT(answers(), IsEmpty());
}

TEST_F(EngineStory, ASequenceThatTheEngineGivesUpDuringPrefillIsAnsweredOnce) {
  ask(1);
  engine.finish(id(1), FinishReason::kRefused);
  turn();
  ASSERT_THAT(answers(), SizeIs(1));
  EXPECT_EQ(answers()[0].request, 1U);
  EXPECT_EQ(answers()[0].end, FinishReason::kRefused);
  EXPECT_EQ(decode.emissions("completion")[0].options.tenant, TenantSlot(1));
  EXPECT_TRUE(prefill.idle());
}

TEST_F(EngineStory, AnUpdateIsAppliedByTheFirstActorAndAnsweredByBoth) {
  publish(0);
  ASSERT_TRUE(prefill.give("update", PolicyUpdate{PolicyVersion(0)}).ok());
  ASSERT_TRUE(decode.give("update", PolicyUpdate{PolicyVersion(0)}).ok());
  EXPECT_EQ(prefill.sent<PolicyApplied>("applied")[0].num_tensors, 3U);
  EXPECT_EQ(decode.sent<PolicyApplied>("applied")[0].num_tensors, 0U);
  EXPECT_EQ(prefill.sent<EngineLoad>("load").back().applied.of({}), PolicyVersion(0));
}

TEST_F(EngineStory, AnUpdateThatFailsKeepsTheOldVersionAndSaysWhy) {
  publish(0);
  engine.apply_fault = "tensor 'x' is missing";
  ASSERT_TRUE(prefill.give("update", PolicyUpdate{PolicyVersion(0)}).ok());
  EXPECT_THAT(prefill.sent<PolicyApplied>("applied")[0].fault, HasSubstr("tensor 'x'"));
  EXPECT_TRUE(prefill.sent<EngineLoad>("load").back().applied.empty());
}

TEST_F(EngineStory, EqualVersionsOfTwoTenantsAreBothAppliedAndTold) {
  for (const uint32_t slot : {0U, 1U}) {
    const TenantSlot tenant(slot);
    publish(3, tenant);
    ASSERT_TRUE(prefill.give("update", PolicyUpdate{PolicyVersion(3)}, {.tenant = tenant}).ok());
    ASSERT_TRUE(decode.give("update", PolicyUpdate{PolicyVersion(3)}, {.tenant = tenant}).ok());
    EXPECT_EQ(prefill.sent<PolicyApplied>("applied").back().num_tensors, 3U);
    EXPECT_EQ(decode.sent<PolicyApplied>("applied").back().num_tensors, 0U);
    EXPECT_EQ(decode.emissions("applied").back().options.tenant, tenant);
  }
  for (const auto& known : {known_after(prefill.sent<EngineLoad>("load")),
                            known_after(decode.sent<EngineLoad>("load"))})
    for (const uint32_t slot : {0U, 1U}) EXPECT_EQ(known.of({TenantSlot(slot)}), PolicyVersion(3));
}

struct LoadStory : EngineStory {
  LoadStory() { prefill.set_targets("load", {InstanceId(7)}); }
  void apply(int64_t version, TenantSlot tenant) {
    publish(version, tenant);
    ASSERT_TRUE(
        prefill.give("update", PolicyUpdate{PolicyVersion(version)}, {.tenant = tenant}).ok());
  }
  /// The keys of the newest load, by tenant.
  std::vector<uint32_t> keys_of_load() {
    std::vector<uint32_t> tenants;
    const EngineLoad load = prefill.sent<EngineLoad>("load").back();
    for (const auto& each : load.applied.list()) tenants.push_back(each.key.tenant.value);
    return tenants;
  }
  static constexpr TenantSlot kA{0}, kB{1};
};

TEST_F(LoadStory, ALoadHasOnlyTheVersionsThatChangedSinceTheOneThatArrived) {
  apply(0, kA);
  EXPECT_THAT(keys_of_load(), ElementsAre(0));
  apply(0, kB);
  EXPECT_THAT(keys_of_load(), ElementsAre(1));
  ask(1);
  ASSERT_TRUE(prefill.run_work().ok());
  EXPECT_THAT(keys_of_load(), IsEmpty()) << "only counts have changed";
  apply(1, kA);
  EXPECT_THAT(keys_of_load(), ElementsAre(0));
}

TEST_F(LoadStory, ALoadThatMayBeOverwrittenIsRepeatedByTheNext) {
  apply(0, kA);
  prefill.set_room("load", 1);  // it has not arrived
  apply(0, kB);
  EXPECT_THAT(keys_of_load(), ElementsAre(0, 1));
  apply(1, kB);
  EXPECT_THAT(keys_of_load(), ElementsAre(0, 1));
  EXPECT_EQ(prefill.sent<EngineLoad>("load").back().applied.of({kB}), PolicyVersion(1));
  prefill.set_room("load", INT64_MAX);
  apply(1, kA);
  EXPECT_THAT(keys_of_load(), ElementsAre(0));
}

TEST_F(LoadStory, TheFirstLoadOfARouterHasAllVersions) {
  apply(0, kA);
  apply(0, kB);
  ASSERT_TRUE(prefill.peer({PeerEvent::Kind::kUp, InstanceId(7)}).ok());
  EXPECT_THAT(keys_of_load(), ElementsAre(0, 1));
}

TEST_F(LoadStory, HasAsManyVersionsAsAnEngineMayHave) {
  ASSERT_EQ(kWeightsKeysMax, 8192U);
  ASSERT_TRUE(prefill.run_work().ok());
  for (uint32_t slot = 0; slot < kWeightsKeysMax; ++slot) {
    apply(0, TenantSlot(slot));
    ASSERT_THAT(keys_of_load(), ElementsAre(slot));
    prefill.forget_sent();
  }
  ASSERT_TRUE(prefill.peer({PeerEvent::Kind::kUp, InstanceId(7)}).ok());
  const auto whole = prefill.sent<EngineLoad>("load").back();
  EXPECT_EQ(whole.applied.list().size(), kWeightsKeysMax);
  const WeightsKey one_more{TenantSlot(static_cast<uint32_t>(kWeightsKeysMax))};
  WeightSnapshot snapshot;
  snapshot.version = PolicyVersion(0);
  EXPECT_EQ(weights->publish(with_key(snapshot, one_more)).error().code(), Code::kExhausted);
}

TEST_F(EngineStory, ARetiredVersionIsReplacedByTheNewest) {
  publish(9, TenantSlot(1));  // the version of another tenant does not count
  for (int64_t version = 0; version < 4; ++version) publish(version);
  ASSERT_TRUE(prefill.give("update", PolicyUpdate{PolicyVersion(0)}).ok());
  EXPECT_EQ(prefill.sent<PolicyApplied>("applied")[0].version, PolicyVersion(3));
  EXPECT_EQ(engine.versions.of({}), PolicyVersion(3));
}

TEST_F(EngineStory, TheFirstWorkCallReportsTheEngine) {
  ASSERT_TRUE(prefill.run_work().ok());
  ASSERT_THAT(prefill.sent<EngineLoad>("load"), SizeIs(1));
  EXPECT_TRUE(prefill.sent<EngineLoad>("load")[0].applied.empty());
  ASSERT_TRUE(prefill.run_work().ok());
  EXPECT_THAT(prefill.sent<EngineLoad>("load"), SizeIs(1));
}

TEST_F(EngineStory, BothLoadsReportCompletedAndFailedSequences) {
  for (uint64_t request = 1; request <= 5; ++request) {
    ask(request);
    engine.prefill(id(request));
  }
  turn();
  engine.finish(id(1), FinishReason::kStop, {65});
  engine.finish(id(2), FinishReason::kLength, {65});
  engine.finish(id(3), FinishReason::kFailed);
  engine.finish(id(4), FinishReason::kRefused);
  engine.finish(id(5), FinishReason::kCancelled);
  turn();
  for (const auto& load :
       {prefill.sent<EngineLoad>("load").back(), decode.sent<EngineLoad>("load").back()}) {
    EXPECT_EQ(load.num_finished, 5U);
    EXPECT_EQ(load.num_completed, 2U);
    EXPECT_EQ(load.num_failed, 1U);
  }
  ASSERT_THAT(answers(), SizeIs(5));
  EXPECT_EQ(answers()[2].end, FinishReason::kFailed);
  EXPECT_EQ(answers()[2].attempt, 2U);
}

TEST_F(EngineStory, TheLoadCountsWhatEndedHereOrWasRefused) {
  ask(1);
  ask(2);
  auto long_one = a_request(3);
  long_one.prompt_tokens.resize(101);
  EXPECT_FALSE(prefill.give("request", long_one, rollout).ok());
  engine.prefill(id(1));
  turn();
  EXPECT_EQ(prefill.sent<EngineLoad>("load").back().num_finished, 1U);
  engine.finish(id(1), FinishReason::kStop, {65});
  turn();
  EXPECT_EQ(prefill.sent<EngineLoad>("load").back().num_finished, 2U);
}

TEST_F(EngineStory, AnswersManyAFewPerTurn) {
  for (uint64_t i = 0; i < 100; ++i) ask(i);
  for (uint64_t i = 0; i < 100; ++i) engine.finish(id(i), FinishReason::kCancelled);
  EXPECT_TRUE(*decode.run_work());
  EXPECT_THAT(answers(), SizeIs(64));
  EXPECT_FALSE(*decode.run_work());
  EXPECT_THAT(answers(), SizeIs(100));
}

TEST_F(EngineStory, AnUpdateIsAnsweredWhenTheEngineHasPreparedIt) {
  publish(0);
  engine.preparations_needed = 2;
  ASSERT_TRUE(decode.give("update", PolicyUpdate{PolicyVersion(0)}).ok());
  ASSERT_TRUE(decode.advance(kPreparedRetry).ok());
  EXPECT_THAT(decode.sent<PolicyApplied>("applied"), IsEmpty());
  ASSERT_TRUE(decode.advance(kPreparedRetry).ok());
  EXPECT_THAT(decode.sent<PolicyApplied>("applied"), SizeIs(1));
  EXPECT_EQ(engine.num_preparations, 3);
  EXPECT_FALSE(decode.timer("weights").has_value());
}

TEST_F(EngineStory, AnEngineThatIsNeverPreparedAppliesAnUpdateAsItIs) {
  publish(0);
  engine.preparations_needed = kPreparationsMax + 1;
  ASSERT_TRUE(decode.give("update", PolicyUpdate{PolicyVersion(0)}).ok());
  for (int i = 1; i < kPreparationsMax; ++i) ASSERT_TRUE(decode.advance(kPreparedRetry).ok());
  EXPECT_THAT(decode.sent<PolicyApplied>("applied"), IsEmpty());
  ASSERT_TRUE(decode.advance(kPreparedRetry).ok());
  EXPECT_THAT(decode.sent<PolicyApplied>("applied"), SizeIs(1));
}

/// A channel whose versions arrive when the test says so.
class SlowChannel final : public WeightChannel {
 public:
  Status publish(std::shared_ptr<const WeightSnapshot> snapshot) override {
    newest_[snapshot->key] = std::move(snapshot);
    return ok();
  }
  Result<std::shared_ptr<const WeightSnapshot>> fetch(WeightsKey key,
                                                      PolicyVersion version) override {
    ++num_fetches;
    if (newest(key) == version) return newest_.at(key);
    if (newest(key) > version) return error(Code::kNotFound, "gone");
    return error(Code::kUnavailable, "not yet");
  }
  PolicyVersion newest(WeightsKey key) const override {
    const auto found = newest_.find(key);
    return found == newest_.end() ? PolicyVersion() : found->second->version;
  }
  int num_fetches = 0;

 private:
  std::map<WeightsKey, std::shared_ptr<const WeightSnapshot>> newest_;
};

struct SlowWeightsStory : EngineStory {
  SlowWeightsStory() { weights = slow; }
  void SetUp() override {
    prefill.use("weights", *slow);
    decode.use("weights", *slow);
  }
  std::shared_ptr<SlowChannel> slow = std::make_shared<SlowChannel>();
};

TEST_F(SlowWeightsStory, WeightsThatHaveNotArrivedAreFetchedAgainAndAnsweredOnce) {
  ASSERT_TRUE(decode.give("update", PolicyUpdate{PolicyVersion(3)}, rollout).ok());
  EXPECT_THAT(decode.sent<PolicyApplied>("applied"), IsEmpty());
  ASSERT_TRUE(decode.timer("weights").has_value());
  EXPECT_EQ(*decode.timer("weights"), decode.now() + kWeightsRetry);
  ASSERT_TRUE(decode.advance(kWeightsRetry).ok());
  EXPECT_EQ(slow->num_fetches, 2);
  EXPECT_THAT(decode.sent<PolicyApplied>("applied"), IsEmpty());
  publish(3, rollout.tenant);
  ASSERT_TRUE(decode.advance(kWeightsRetry).ok());
  const auto applied = decode.sent<PolicyApplied>("applied");
  ASSERT_THAT(applied, SizeIs(1));
  EXPECT_EQ(applied[0].version, PolicyVersion(3));
  EXPECT_EQ(applied[0].fault, "");
  EXPECT_EQ(decode.emissions("applied")[0].options.tenant, rollout.tenant);
  EXPECT_FALSE(decode.timer("weights").has_value());
  ASSERT_TRUE(decode.advance(Duration::seconds(1)).ok());
  EXPECT_EQ(slow->num_fetches, 3);
}

TEST_F(SlowWeightsStory, ANewerUpdateReplacesTheOneThatWaits) {
  ASSERT_TRUE(prefill.give("update", PolicyUpdate{PolicyVersion(3)}, rollout).ok());
  ASSERT_TRUE(prefill.give("update", PolicyUpdate{PolicyVersion(5)}, rollout).ok());
  publish(3, rollout.tenant);
  ASSERT_TRUE(prefill.advance(kWeightsRetry).ok());
  EXPECT_THAT(prefill.sent<PolicyApplied>("applied"), IsEmpty());
  publish(6, rollout.tenant);  // the fifth was skipped
  ASSERT_TRUE(prefill.advance(kWeightsRetry).ok());
  const auto applied = prefill.sent<PolicyApplied>("applied");
  ASSERT_THAT(applied, SizeIs(1));
  EXPECT_EQ(applied[0].version, PolicyVersion(6));
}

TEST_F(SlowWeightsStory, AnUpdateOfOneTenantReplacesNoneOfAnotherAndWaitsForNone) {
  const Given other{.tenant = TenantSlot(0)};
  ASSERT_TRUE(prefill.give("update", PolicyUpdate{PolicyVersion(3)}, rollout).ok());
  ASSERT_TRUE(prefill.give("update", PolicyUpdate{PolicyVersion(3)}, other).ok());
  publish(3, other.tenant);
  ASSERT_TRUE(prefill.advance(kWeightsRetry).ok());
  ASSERT_THAT(prefill.emissions("applied"), SizeIs(1));
  EXPECT_EQ(prefill.emissions("applied")[0].options.tenant, other.tenant);
  publish(3, rollout.tenant);
  ASSERT_TRUE(prefill.advance(kWeightsRetry).ok());
  ASSERT_THAT(prefill.emissions("applied"), SizeIs(2));
  EXPECT_EQ(prefill.emissions("applied")[1].options.tenant, rollout.tenant);
  EXPECT_FALSE(prefill.timer("weights").has_value());
  const auto applied = known_after(prefill.sent<EngineLoad>("load"));
  EXPECT_EQ(applied.of({other.tenant}), PolicyVersion(3));
  EXPECT_EQ(applied.of({rollout.tenant}), PolicyVersion(3));
}

TEST_F(SlowWeightsStory, OneHandlerAppliesOneTenantsWeightsHoweverManyHaveCome) {
  for (const uint32_t tenant : {0U, 1U})
    ASSERT_TRUE(
        decode.give("update", PolicyUpdate{PolicyVersion(2)}, {.tenant = TenantSlot(tenant)}).ok());
  for (const uint32_t tenant : {0U, 1U}) publish(2, TenantSlot(tenant));
  ASSERT_TRUE(decode.advance(kWeightsRetry).ok());
  EXPECT_THAT(decode.emissions("applied"), SizeIs(2)) << "the next handler comes at once";
}

TEST_F(SlowWeightsStory, ADrainWaitsForNoWeights) {
  for (NodeRunnerCore* node :
       {static_cast<NodeRunnerCore*>(&prefill), static_cast<NodeRunnerCore*>(&decode)}) {
    ASSERT_TRUE(node->give("update", Payload::of(PolicyUpdate{PolicyVersion(3)}), rollout).ok());
    ASSERT_TRUE(node->drain().ok());
    EXPECT_TRUE(node->idle());
    ASSERT_TRUE(node->advance(Duration::seconds(1)).ok());
    EXPECT_FALSE(node->timer("weights").has_value());
    EXPECT_THAT(node->emissions("applied"), IsEmpty());
  }
}

}  // namespace
}  // namespace primerl
