// New weights of an engine: what is applied and answered, and which versions its loads report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/engine_story.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using EngineVersions = testing::EngineStory;

/// The versions that a router knows after these loads.
VersionsByKey known_after(const std::vector<EngineLoad>& loads) {
  VersionsByKey known;
  for (const EngineLoad& load : loads)
    for (const auto& [key, version] : load.applied.list())
      CHECK(known.raise(key, version), "too many keys");
  return known;
}

TEST_F(EngineVersions, EqualVersionsOfTwoTenantsAreBothAppliedAndTold) {
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

struct LoadStory : EngineVersions {
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
  prefill.set_tenants(std::vector<Tenant>(kWeightsKeysMax, testing::a_tenant()));
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

TEST_F(EngineVersions, AnUpdateIsAnsweredWhenTheEngineHasPreparedIt) {
  publish(0);
  engine.preparations_needed = 2;
  ASSERT_TRUE(decode.give("update", PolicyUpdate{PolicyVersion(0)}).ok());
  ASSERT_TRUE(decode.advance(prepared_retry(1)).ok());
  EXPECT_THAT(decode.sent<PolicyApplied>("applied"), IsEmpty());
  ASSERT_TRUE(decode.advance(prepared_retry(2)).ok());
  EXPECT_THAT(decode.sent<PolicyApplied>("applied"), SizeIs(1));
  EXPECT_EQ(engine.num_preparations, 3);
  EXPECT_FALSE(decode.timer("weights").has_value());
}

TEST_F(EngineVersions, AnEngineThatIsNeverPreparedAppliesAnUpdateAsItIs) {
  publish(0);
  engine.preparations_needed = kPreparationsMax + 1;
  ASSERT_TRUE(decode.give("update", PolicyUpdate{PolicyVersion(0)}).ok());
  Duration waited;
  for (int i = 1; i < kPreparationsMax; ++i) {
    waited = waited + prepared_retry(i);
    ASSERT_TRUE(decode.advance(prepared_retry(i)).ok());
    ASSERT_EQ(engine.num_preparations, i + 1);
  }
  EXPECT_THAT(decode.sent<PolicyApplied>("applied"), IsEmpty());
  ASSERT_TRUE(decode.advance(prepared_retry(kPreparationsMax)).ok());
  EXPECT_THAT(decode.sent<PolicyApplied>("applied"), SizeIs(1));
  EXPECT_GT(waited, Duration::seconds(50));
  EXPECT_LT(waited, Duration::seconds(60));
}

TEST_F(EngineVersions, ADrainEndsTheQuestionsToAnEngineThatIsNotPrepared) {
  publish(0);
  engine.preparations_needed = kPreparationsMax + 1;
  ASSERT_TRUE(decode.give("update", PolicyUpdate{PolicyVersion(0)}).ok());
  ASSERT_TRUE(decode.drain().ok());
  ASSERT_TRUE(decode.advance(Duration::seconds(60)).ok());
  EXPECT_EQ(engine.num_preparations, 1);
  EXPECT_FALSE(decode.timer("weights").has_value());
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

struct SlowWeightsStory : EngineVersions {
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
