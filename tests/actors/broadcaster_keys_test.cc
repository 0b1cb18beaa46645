// Several weights keys of one tenant in the broadcaster: its moving weights and its snapshots.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "actors/broadcaster/broadcaster.h"
#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr InstanceId kPrefillEngine(10), kDecodeEngine(20);
constexpr AdapterId kMoving{};

AdapterId snapshot_adapter(uint32_t n) { return snapshot_key({}, n).adapter; }
AdapterVersion at(AdapterId adapter, int64_t version) { return {adapter, PolicyVersion(version)}; }

struct SnapshotsLive : ::testing::Test {
  SnapshotsLive() { node.set_targets("update", {kPrefillEngine, kDecodeEngine}); }
  Status ready(AdapterId adapter, int64_t version) {
    return node.give("weights",
                     WeightsReady{.version = PolicyVersion(version), .adapter = adapter});
  }
  Status drop(AdapterId adapter) {
    return node.give("weights", WeightsReady{.adapter = adapter, .is_dropped = true});
  }
  void applied(InstanceId engine, AdapterId adapter, int64_t version,
               std::vector<AdapterVersion> others = {}) {
    PolicyApplied applied;
    applied.version = PolicyVersion(version);
    applied.engine = engine;
    applied.adapter = adapter;
    applied.others = std::move(others);
    ASSERT_TRUE(node.give("applied", applied).ok());
  }
  void make_live(AdapterId adapter, int64_t version) {
    ASSERT_TRUE(ready(adapter, version).ok());
    for (const InstanceId engine : {kPrefillEngine, kDecodeEngine})
      applied(engine, adapter, version);
  }
  std::vector<AdapterVersion> live() {
    std::vector<AdapterVersion> live;
    for (const auto& one : node.sent<PolicyLive>("live"))
      live.push_back({one.adapter, one.version});
    return live;
  }
  PolicyUpdate newest_update() { return node.sent<PolicyUpdate>("update").back(); }
  PolicyLive newest_live() { return node.sent<PolicyLive>("live").back(); }
  NodeRunner<Broadcaster> node{{.applied_max = Duration::seconds(60)}};
};

TEST_F(SnapshotsLive, EachKeyHasAnUpdateInFlight) {
  ASSERT_TRUE(ready(kMoving, 0).ok());
  ASSERT_TRUE(ready(snapshot_adapter(1), 0).ok());
  ASSERT_TRUE(ready(kMoving, 1).ok());
  EXPECT_THAT(node.sent<PolicyUpdate>("update"), SizeIs(2));
  for (const InstanceId engine : {kPrefillEngine, kDecodeEngine})
    applied(engine, snapshot_adapter(1), 0);
  EXPECT_THAT(live(), ElementsAre(at(snapshot_adapter(1), 0)));
  for (const InstanceId engine : {kPrefillEngine, kDecodeEngine}) applied(engine, kMoving, 0);
  EXPECT_THAT(live(), ElementsAre(at(snapshot_adapter(1), 0), at(kMoving, 0)));
  EXPECT_EQ(newest_update().version, PolicyVersion(1)) << "the newest of the moving key follows";
}

/// Inputs keep the newest message of a tenant only.
TEST_F(SnapshotsLive, AMessageHasAllKeysSoThatOneThatItReplacesIsNotMissed) {
  ASSERT_TRUE(ready(kMoving, 4).ok());
  ASSERT_TRUE(ready(snapshot_adapter(2), 3).ok());
  EXPECT_EQ(newest_update().adapter, snapshot_adapter(2));
  EXPECT_THAT(newest_update().others, ElementsAre(at(kMoving, 4)));
  // The answers for the moving key were replaced by those for the snapshot.
  for (const InstanceId engine : {kPrefillEngine, kDecodeEngine})
    applied(engine, snapshot_adapter(2), 3, {at(kMoving, 4)});
  EXPECT_THAT(node.sent<PolicyLive>("live"), SizeIs(1)) << "one message of a tenant in a handler";
  EXPECT_EQ(newest_live().adapter, snapshot_adapter(2));
  EXPECT_THAT(newest_live().others, ElementsAre(at(kMoving, 4)));
  EXPECT_FALSE(node.timer("applied").has_value());
}

TEST_F(SnapshotsLive, ATenantWithoutSnapshotsHasNoOtherKeys) {
  make_live(kMoving, 0);
  EXPECT_EQ(newest_live().adapter, kMoving);
  EXPECT_THAT(newest_live().others, IsEmpty());
  EXPECT_THAT(newest_update().others, IsEmpty());
}

TEST_F(SnapshotsLive, ADropGoesToTheEnginesAndIsForgotten) {
  make_live(kMoving, 0);
  make_live(snapshot_adapter(1), 0);
  make_live(snapshot_adapter(2), 0);
  ASSERT_TRUE(drop(snapshot_adapter(1)).ok());
  const PolicyUpdate update = newest_update();
  EXPECT_TRUE(update.is_dropped);
  EXPECT_TRUE(update.version.is_none());
  EXPECT_EQ(update.adapter, snapshot_adapter(1));
  EXPECT_THAT(update.others, ElementsAre(at(kMoving, 0), at(snapshot_adapter(2), 0)));
  node.forget_sent();
  ASSERT_TRUE(drop(snapshot_adapter(1)).ok()) << "a repeat changes nothing";
  EXPECT_THAT(node.sent<PolicyUpdate>("update"), IsEmpty());
  applied(kDecodeEngine, snapshot_adapter(1), 0);  // it was on its way
  EXPECT_THAT(live(), IsEmpty());
  make_live(kMoving, 1);
  EXPECT_THAT(newest_live().others, ElementsAre(at(snapshot_adapter(2), 0)));
}

TEST_F(SnapshotsLive, ADropEndsAnUpdateInFlight) {
  ASSERT_TRUE(ready(snapshot_adapter(1), 0).ok());
  applied(kPrefillEngine, snapshot_adapter(1), 0);
  ASSERT_TRUE(drop(snapshot_adapter(1)).ok());
  EXPECT_FALSE(node.timer("applied").has_value());
  applied(kDecodeEngine, snapshot_adapter(1), 0);
  EXPECT_THAT(live(), IsEmpty());
}

TEST_F(SnapshotsLive, MovingWeightsCannotBeDropped) {
  make_live(kMoving, 0);
  const Status dropped = drop(kMoving);
  ASSERT_FALSE(dropped.ok());
  EXPECT_THAT(dropped.error().text(), HasSubstr("the moving weights of tenant 'main'"));
}

TEST_F(SnapshotsLive, ANewEngineGetsOneMessageWithAllKeys) {
  make_live(kMoving, 5);
  make_live(snapshot_adapter(1), 2);
  node.forget_sent();
  node.set_targets("update", {kPrefillEngine, kDecodeEngine, InstanceId(30)});
  ASSERT_TRUE(node.peer({PeerEvent::Kind::kUp, InstanceId(30), 2}).ok());
  ASSERT_THAT(node.sent<PolicyUpdate>("update"), SizeIs(1));
  EXPECT_EQ(newest_update().version, PolicyVersion(5));
  EXPECT_THAT(newest_update().others, ElementsAre(at(snapshot_adapter(1), 2)));
  // One answer is enough for it to count again, for both keys.
  applied(InstanceId(30), snapshot_adapter(1), 2, {at(kMoving, 5)});
  ASSERT_TRUE(ready(kMoving, 6).ok());
  for (const InstanceId engine : {kPrefillEngine, kDecodeEngine}) applied(engine, kMoving, 6);
  EXPECT_THAT(live(), IsEmpty());
  applied(InstanceId(30), kMoving, 6);
  EXPECT_THAT(live(), ElementsAre(at(kMoving, 6)));
}

TEST_F(SnapshotsLive, ASilentEngineIsSetAsideForEveryKeyInOneMessage) {
  ASSERT_TRUE(ready(kMoving, 0).ok());
  ASSERT_TRUE(ready(snapshot_adapter(1), 0).ok());
  applied(kPrefillEngine, kMoving, 0);
  applied(kPrefillEngine, snapshot_adapter(1), 0);
  ASSERT_TRUE(node.advance(Duration::seconds(60)).ok());
  ASSERT_THAT(node.sent<PolicyLive>("live"), SizeIs(1));
  EXPECT_THAT(newest_live().others, ElementsAre(at(snapshot_adapter(1), 0)));
}

/// A few keys stand for the kWeightsKeysMax of a graph.
TEST(SnapshotsOfAllTenants, AreAsManyAsAnEngineMayHaveAndNoMore) {
  constexpr uint32_t kTenants = 4, kEach = 3;
  const auto made_for = [](size_t keys_max) {
    return std::make_unique<Broadcaster>(BroadcasterOptions(), keys_max);
  };
  NodeRunner<Broadcaster> node({}, made_for(size_t{kTenants} * kEach));
  node.set_targets("update", {kPrefillEngine, kDecodeEngine});
  node.set_tenants(std::vector<Tenant>(kTenants, testing::a_tenant()));
  const auto ready_of = [&](uint32_t tenant, AdapterId adapter) {
    return node.give("weights", WeightsReady{.version = PolicyVersion(0), .adapter = adapter},
                     {.tenant = TenantSlot(tenant)});
  };
  for (uint32_t tenant = 0; tenant < kTenants; ++tenant)
    for (uint32_t n = 0; n < kEach; ++n)
      ASSERT_TRUE(ready_of(tenant, n == 0 ? kMoving : snapshot_adapter(n)).ok());
  EXPECT_THAT(node.sent<PolicyUpdate>("update").back().others, SizeIs(kEach - 1))
      << "the other keys of the tenant";
  const Status one_more = ready_of(0, snapshot_adapter(kEach));
  ASSERT_FALSE(one_more.ok());
  EXPECT_EQ(one_more.error().code(), Code::kExhausted);
  EXPECT_THAT(one_more.error().text(), HasSubstr("snapshot 3 of tenant 'main'"));
  EXPECT_THAT(one_more.error().text(), HasSubstr("there are 12 weights keys already"));
  EXPECT_TRUE(ready_of(0, kMoving).ok()) << "a key that is there";
  ASSERT_TRUE(node.give("weights", WeightsReady{.adapter = snapshot_adapter(2), .is_dropped = true},
                        {.tenant = TenantSlot(0)})
                  .ok());
  EXPECT_TRUE(ready_of(0, snapshot_adapter(kEach)).ok());
  EXPECT_FALSE(ready_of(1, snapshot_adapter(kEach)).ok());
}

}  // namespace
}  // namespace primerl
