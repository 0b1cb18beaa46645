// Several weights keys of one tenant in an engine: what is applied, dropped and reported, and which
// key a request gets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/engine_story.h"

namespace primerl {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr WeightsKey kMovingKey{TenantSlot(1)};

WeightsKey tenant_snapshot(uint32_t n) { return snapshot_key(kMovingKey, n); }
AdapterVersion at(WeightsKey key, int64_t version) {
  return {key.is_snapshot() ? key.adapter : AdapterId(), PolicyVersion(version)};
}

struct EngineKeys : testing::EngineStory {
  EngineKeys() { prefill.set_targets("load", {InstanceId(7)}); }
  void publish(WeightsKey key, int64_t version) {
    auto made = std::make_shared<WeightSnapshot>();
    made->key = key;
    made->version = PolicyVersion(version);
    ASSERT_TRUE(weights->publish(made).ok());
  }
  void update(const PolicyUpdate& update) {
    ASSERT_TRUE(prefill.give("update", update, rollout).ok());
    ASSERT_TRUE(decode.give("update", update, rollout).ok());
  }
  void apply(WeightsKey key, int64_t version, std::vector<AdapterVersion> others = {}) {
    publish(key, version);
    const AdapterVersion name = at(key, version);
    update({.version = name.version, .adapter = name.adapter, .others = std::move(others)});
  }
  void drop(WeightsKey key, std::vector<AdapterVersion> others = {}) {
    update({.adapter = key.adapter, .is_dropped = true, .others = std::move(others)});
  }
  void ask(uint64_t request, WeightsKey key) {
    GenerateRequest made = testing::engine_request(request);
    made.adapter = at(key, 0).adapter;
    ASSERT_TRUE(prefill.give("request", made, rollout).ok());
  }
  EngineLoad newest_load() { return prefill.sent<EngineLoad>("load").back(); }
};

TEST_F(EngineKeys, ASnapshotKeepsItsVersionWhileTheMovingKeyGetsNewOnes) {
  apply(kMovingKey, 0);
  apply(tenant_snapshot(1), 0, {at(kMovingKey, 0)});
  for (const int64_t version : {1, 2}) apply(kMovingKey, version, {at(tenant_snapshot(1), 0)});
  EXPECT_EQ(engine.versions.of(tenant_snapshot(1)), PolicyVersion(0));
  EXPECT_EQ(engine.versions.of(kMovingKey), PolicyVersion(2));
  ask(1, kMovingKey);
  ask(2, tenant_snapshot(1));
  ASSERT_THAT(engine.submitted, SizeIs(2));
  EXPECT_EQ(engine.submitted[0].key(), kMovingKey);
  EXPECT_EQ(engine.submitted[1].key(), tenant_snapshot(1));
  for (const auto& applied : {prefill.sent<PolicyApplied>("applied").back(),
                              decode.sent<PolicyApplied>("applied").back()}) {
    EXPECT_EQ(applied.version, PolicyVersion(2));
    EXPECT_THAT(applied.others, ElementsAre(at(tenant_snapshot(1), 0)));
  }
}

/// The input keeps only the newest update of a tenant.
TEST_F(EngineKeys, AnUpdateBringsTheKeysOfThoseThatItReplaced) {
  publish(tenant_snapshot(1), 3);
  publish(tenant_snapshot(2), 4);
  apply(kMovingKey, 5, {at(tenant_snapshot(1), 3), at(tenant_snapshot(2), 4)});
  EXPECT_TRUE(engine.versions.of(tenant_snapshot(1)).is_none()) << "a handler applies one";
  for (NodeRunnerCore* node :
       {static_cast<NodeRunnerCore*>(&prefill), static_cast<NodeRunnerCore*>(&decode)})
    ASSERT_TRUE(node->advance(Duration::seconds(1)).ok());
  EXPECT_EQ(engine.versions.of(tenant_snapshot(1)), PolicyVersion(3));
  EXPECT_EQ(engine.versions.of(tenant_snapshot(2)), PolicyVersion(4));
  EXPECT_THAT(prefill.sent<PolicyApplied>("applied"), SizeIs(3));
  EXPECT_FALSE(prefill.timer("weights").has_value());
  apply(kMovingKey, 6, {at(tenant_snapshot(1), 3), at(tenant_snapshot(2), 4)});
  EXPECT_THAT(prefill.sent<PolicyApplied>("applied"), SizeIs(4)) << "what is there is not repeated";
}

TEST_F(EngineKeys, ADropEndsARunningSequenceAndLeavesThoseOfOtherKeys) {
  apply(kMovingKey, 0);
  apply(tenant_snapshot(1), 0, {at(kMovingKey, 0)});
  ask(1, kMovingKey);
  ask(2, tenant_snapshot(1));
  for (const uint64_t request : {1U, 2U}) engine.prefill(id(request));
  turn();
  drop(tenant_snapshot(1), {at(kMovingKey, 0)});
  turn();
  ASSERT_THAT(answers(), SizeIs(1));
  EXPECT_EQ(answers()[0].request, 2U);
  EXPECT_EQ(answers()[0].session, 72U) << "its sender knows it";
  EXPECT_EQ(answers()[0].end, FinishReason::kCancelled);
  EXPECT_THAT(engine.running, ElementsAre(id(1)));
  EXPECT_TRUE(weights->newest(tenant_snapshot(1)).is_none()) << "the channel forgot it";
  EXPECT_EQ(weights->newest(kMovingKey), PolicyVersion(0));
}

/// Decode does not know who asked for a prompt that is not complete.
TEST_F(EngineKeys, ADropWaitsUntilThePromptsOfTheKeyAreComplete) {
  apply(kMovingKey, 0);
  apply(tenant_snapshot(1), 0, {at(kMovingKey, 0)});
  ask(1, tenant_snapshot(1));
  ask(2, kMovingKey);
  drop(tenant_snapshot(1), {at(kMovingKey, 0)});
  turn();
  EXPECT_THAT(engine.dropped, IsEmpty());
  EXPECT_THAT(newest_load().gone, ElementsAre(tenant_snapshot(1))) << "no more requests for it";
  engine.prefill(id(1));
  turn();
  turn();
  EXPECT_THAT(engine.dropped, ElementsAre(tenant_snapshot(1)));
  ASSERT_THAT(answers(), SizeIs(1));
  EXPECT_EQ(answers()[0].end, FinishReason::kCancelled);
  EXPECT_EQ(answers()[0].session, 71U);
  EXPECT_EQ(decode.emissions("completion")[0].options.origin, rollout.origin);
  EXPECT_THAT(engine.waiting, ElementsAre(id(2))) << "the prompt of another key";
}

/// The prompt is complete, and Prefill has not read that yet.
TEST_F(EngineKeys, ADropInDecodeWaitsUntilPrefillHasHandedThePromptOver) {
  apply(tenant_snapshot(1), 0);
  ask(1, tenant_snapshot(1));
  const PolicyUpdate dropped{.adapter = tenant_snapshot(1).adapter, .is_dropped = true};
  ASSERT_TRUE(decode.give("update", dropped, rollout).ok());
  engine.prefill(id(1));
  ASSERT_TRUE(decode.run_work().ok());
  EXPECT_THAT(engine.dropped, IsEmpty());
  turn();
  turn();
  EXPECT_THAT(engine.dropped, ElementsAre(tenant_snapshot(1)));
  ASSERT_THAT(answers(), SizeIs(1));
  EXPECT_EQ(answers()[0].end, FinishReason::kCancelled);
  EXPECT_EQ(answers()[0].session, 71U);
  EXPECT_EQ(decode.emissions("completion")[0].options.origin, rollout.origin);
}

TEST_F(EngineKeys, ADropAfterTheCancelOfItsPromptWaitsForNothing) {
  apply(tenant_snapshot(1), 0);
  ask(1, tenant_snapshot(1));
  abort(1);
  drop(tenant_snapshot(1));
  EXPECT_THAT(engine.dropped, ElementsAre(tenant_snapshot(1)));
}

TEST_F(EngineKeys, ADropEndsASequenceOnItsWayFromPrefillToDecode) {
  apply(tenant_snapshot(1), 0);
  ask(1, tenant_snapshot(1));
  engine.prefill(id(1));
  ASSERT_TRUE(prefill.run_work().ok());
  drop(tenant_snapshot(1));
  ASSERT_TRUE(decode.run_work().ok());
  EXPECT_THAT(answers(), IsEmpty());
  turn();
  ASSERT_THAT(answers(), SizeIs(1));
  EXPECT_EQ(answers()[0].end, FinishReason::kCancelled);
}

TEST_F(EngineKeys, ARequestForADroppedSnapshotIsRefusedByItsName) {
  apply(tenant_snapshot(1), 0);
  engine.max_waiting = 0;
  ask(1, tenant_snapshot(1));
  EXPECT_TRUE(prefill.is_paused("request")) << "it waits for free space";
  drop(tenant_snapshot(1));
  ASSERT_TRUE(prefill.run_work().ok());
  GenerateRequest late = testing::engine_request(2);
  late.adapter = tenant_snapshot(1).adapter;
  EXPECT_FALSE(prefill.give("request", late, rollout).ok());
  const auto refused = prefill.sent<Completion>("refused");
  ASSERT_THAT(refused, SizeIs(2));
  for (const Completion& each : refused) {
    EXPECT_EQ(each.end, FinishReason::kRefused);
    EXPECT_THAT(each.detail, HasSubstr("snapshot 1 of tenant 1"));
  }
}

TEST_F(EngineKeys, ASnapshotThatAnUpdateDoesNotNameIsDropped) {
  apply(kMovingKey, 0);
  apply(tenant_snapshot(1), 0, {at(kMovingKey, 0)});
  apply(tenant_snapshot(2), 0, {at(kMovingKey, 0), at(tenant_snapshot(1), 0)});
  apply(kMovingKey, 1, {at(tenant_snapshot(2), 0)});  // the update with the drop was replaced
  EXPECT_THAT(engine.dropped, Contains(tenant_snapshot(1)));
  EXPECT_TRUE(engine.versions.of(tenant_snapshot(1)).is_none());
  EXPECT_EQ(engine.versions.of(tenant_snapshot(2)), PolicyVersion(0));
  EXPECT_EQ(engine.versions.of(kMovingKey), PolicyVersion(1)) << "moving keys are never dropped so";
}

TEST_F(EngineKeys, ADropOfASnapshotThatIsStillComingEndsTheWait) {
  engine.preparations_needed = 1000;
  apply(tenant_snapshot(1), 0);
  drop(tenant_snapshot(1));
  ASSERT_TRUE(decode.advance(Duration::seconds(2)).ok());
  EXPECT_THAT(decode.sent<PolicyApplied>("applied"), IsEmpty());
  EXPECT_TRUE(engine.versions.of(tenant_snapshot(1)).is_none());
}

/// The update that named the version was replaced by the drop.
TEST_F(EngineKeys, ADropIsAnsweredWithWhatIsAppliedAlready) {
  for (int64_t version = 0; version < 4; ++version) publish(kMovingKey, version);
  update({.version = PolicyVersion(0)});
  ASSERT_EQ(engine.versions.of(kMovingKey), PolicyVersion(3)) << "the newest for a retired one";
  apply(tenant_snapshot(1), 0, {at(kMovingKey, 0)});
  apply(tenant_snapshot(2), 0, {at(kMovingKey, 0), at(tenant_snapshot(1), 0)});
  prefill.forget_sent();
  drop(tenant_snapshot(1), {at(kMovingKey, 3), at(tenant_snapshot(2), 0)});
  const auto applied = prefill.sent<PolicyApplied>("applied");
  ASSERT_THAT(applied, SizeIs(1)) << "a handler sends one";
  EXPECT_TRUE(applied[0].adapter.is_none());
  EXPECT_EQ(applied[0].version, PolicyVersion(3));
  EXPECT_EQ(applied[0].num_tensors, 0U);
  EXPECT_TRUE(applied[0].fault.empty());
  EXPECT_THAT(applied[0].others, ElementsAre(at(tenant_snapshot(2), 0)));
  EXPECT_THAT(prefill.sent<EngineLoad>("load"), SizeIs(1));
}

TEST_F(EngineKeys, ADropIsAnsweredForASnapshotIfNoMovingKeyIsApplied) {
  apply(tenant_snapshot(1), 0);
  apply(tenant_snapshot(2), 0, {at(tenant_snapshot(1), 0)});
  apply(tenant_snapshot(3), 0, {at(tenant_snapshot(1), 0), at(tenant_snapshot(2), 0)});
  prefill.forget_sent();
  drop(tenant_snapshot(1), {at(tenant_snapshot(2), 0), at(tenant_snapshot(3), 0)});
  ASSERT_THAT(prefill.sent<PolicyApplied>("applied"), SizeIs(1));
  EXPECT_EQ(prefill.sent<PolicyApplied>("applied")[0].adapter, tenant_snapshot(2).adapter);
  EXPECT_THAT(prefill.sent<PolicyApplied>("applied")[0].others,
              ElementsAre(at(tenant_snapshot(3), 0)));
}

/// The update is one that replaced another, as above. It drops a snapshot too.
TEST_F(EngineKeys, AForgottenSnapshotIsAnsweredWithWhatIsAppliedAlready) {
  apply(kMovingKey, 5);
  apply(tenant_snapshot(1), 0, {at(kMovingKey, 5)});
  publish(tenant_snapshot(2), 0);
  weights->drop(tenant_snapshot(2));
  prefill.forget_sent();
  update({.version = PolicyVersion(0),
          .adapter = tenant_snapshot(2).adapter,
          .others = {at(kMovingKey, 5)}});
  const auto applied = prefill.sent<PolicyApplied>("applied");
  ASSERT_THAT(applied, SizeIs(1));
  EXPECT_TRUE(applied[0].adapter.is_none());
  EXPECT_EQ(applied[0].version, PolicyVersion(5));
  EXPECT_THAT(applied[0].others, IsEmpty());
  ASSERT_THAT(prefill.sent<EngineLoad>("load"), SizeIs(1)) << "a handler sends one";
  EXPECT_THAT(newest_load().gone, ElementsAre(tenant_snapshot(1)));
  EXPECT_FALSE(prefill.timer("weights").has_value());
}

/// An error would set the engine aside, or fail the tenant.
TEST_F(EngineKeys, AForgottenSnapshotAloneIsNotAnswered) {
  publish(tenant_snapshot(1), 0);
  weights->drop(tenant_snapshot(1));
  update({.version = PolicyVersion(0), .adapter = tenant_snapshot(1).adapter});
  ASSERT_TRUE(decode.advance(Duration::seconds(1)).ok());
  EXPECT_THAT(decode.sent<PolicyApplied>("applied"), IsEmpty());
  EXPECT_FALSE(decode.timer("weights").has_value());
}

TEST_F(EngineKeys, ALoadReportsADropUntilOneHasArrived) {
  apply(kMovingKey, 0);
  EXPECT_TRUE(newest_load().is_whole) << "the first one of a connection";
  apply(tenant_snapshot(1), 0, {at(kMovingKey, 0)});
  EXPECT_FALSE(newest_load().is_whole);
  prefill.set_room("load", 1);  // that load has not arrived
  drop(tenant_snapshot(1), {at(kMovingKey, 0)});
  EXPECT_TRUE(newest_load().applied.empty());
  EXPECT_THAT(newest_load().gone, ElementsAre(tenant_snapshot(1)));
  apply(kMovingKey, 1);
  EXPECT_THAT(newest_load().gone, ElementsAre(tenant_snapshot(1))) << "repeated";
  prefill.set_room("load", INT64_MAX);
  apply(kMovingKey, 2);
  EXPECT_THAT(newest_load().gone, IsEmpty());
  ASSERT_TRUE(prefill.peer({PeerEvent::Kind::kUp, InstanceId(7)}).ok());
  EXPECT_TRUE(newest_load().is_whole);
  EXPECT_TRUE(newest_load().applied.of(tenant_snapshot(1)).is_none());
  EXPECT_EQ(newest_load().applied.of(kMovingKey), PolicyVersion(2));
}

TEST_F(EngineKeys, MoreDropsThanALoadMayNameMakeItWhole) {
  apply(kMovingKey, 0);
  apply(tenant_snapshot(1), 0, {at(kMovingKey, 0)});
  prefill.set_room("load", 1);
  for (uint32_t n = 1; n <= kWeightsKeysMax; ++n) {
    const PolicyUpdate dropped{
        .adapter = tenant_snapshot(n).adapter, .is_dropped = true, .others = {at(kMovingKey, 0)}};
    ASSERT_TRUE(prefill.give("update", dropped, rollout).ok());
    if (n < kWeightsKeysMax) prefill.forget_sent();
  }
  EXPECT_THAT(newest_load().gone, SizeIs(kWeightsKeysMax));
  EXPECT_FALSE(newest_load().is_whole);
  drop(tenant_snapshot(kWeightsKeysMax + 1), {at(kMovingKey, 0)});
  EXPECT_THAT(newest_load().gone, IsEmpty());
  EXPECT_TRUE(newest_load().is_whole);
  EXPECT_EQ(newest_load().applied.of(kMovingKey), PolicyVersion(0));
}

TEST_F(EngineKeys, ASessionOfOneKeyKnowsNothingOfAnother) {
  apply(kMovingKey, 0);
  apply(tenant_snapshot(1), 0, {at(kMovingKey, 0)});
  GenerateRequest first = testing::engine_request(1);
  ASSERT_TRUE(prefill.give("request", first, rollout).ok());
  GenerateRequest later = testing::engine_request(2);
  later.session = first.session;
  later.known = TokenPrefix().extended(first.prompt_tokens);
  later.adapter = tenant_snapshot(1).adapter;
  ASSERT_TRUE(prefill.give("request", later, rollout).ok());
  ASSERT_THAT(prefill.sent<Completion>("refused"), SizeIs(1));
  EXPECT_EQ(prefill.sent<Completion>("refused")[0].end, FinishReason::kUnknownSession);
  later.adapter = AdapterId();
  later.request = 3;
  ASSERT_TRUE(prefill.give("request", later, rollout).ok());
  EXPECT_THAT(engine.submitted, SizeIs(2));
}

}  // namespace
}  // namespace primerl
