#include "actors/broadcaster/broadcaster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr InstanceId kPrefill(10), kDecode(20);

struct BroadcasterStory : ::testing::Test {
  BroadcasterStory() { node.set_targets("update", {kPrefill, kDecode}); }
  void ready(int64_t version) {
    ASSERT_TRUE(node.give("weights", WeightsReady{PolicyVersion(version), false}, from).ok());
  }
  void applied(InstanceId engine, int64_t version, const std::string& fault = "") {
    ASSERT_TRUE(
        node.give("applied", PolicyApplied{PolicyVersion(version), engine, 1, fault}, from).ok());
  }
  std::vector<int64_t> live() {
    std::vector<int64_t> versions;
    for (const auto& one : node.sent<PolicyLive>("live")) versions.push_back(one.version.value);
    return versions;
  }
  std::vector<int64_t> updates() {
    std::vector<int64_t> versions;
    for (const auto& one : node.sent<PolicyUpdate>("update")) versions.push_back(one.version.value);
    return versions;
  }
  Given from;  // the tenant of the messages
  NodeRunner<Broadcaster> node{{.applied_max = Duration::seconds(60)}};
};

struct TwoTenants : BroadcasterStory {
  TwoTenants() { node.set_tenants({testing::a_tenant(), testing::a_tenant()}); }
  void of(uint32_t tenant) { from.tenant = TenantSlot(tenant); }
  /// The tenants of the messages of an output.
  std::vector<uint32_t> tenants(std::string_view output) {
    std::vector<uint32_t> slots;
    for (const auto& one : node.emissions(output)) slots.push_back(one.options.tenant.value);
    return slots;
  }
};

TEST_F(BroadcasterStory, NothingIsLiveBeforeEveryEngineHasIt) {
  ready(0);
  applied(kPrefill, 0);
  EXPECT_THAT(live(), IsEmpty());
  applied(kDecode, 0);
  EXPECT_THAT(live(), ElementsAre(0));
}

TEST_F(BroadcasterStory, KeepsOneUpdateInFlightAndTheNewestFollows) {
  ready(0);
  ready(1);
  ready(2);
  EXPECT_THAT(updates(), ElementsAre(0));
  applied(kPrefill, 0);
  applied(kDecode, 0);
  EXPECT_THAT(updates(), ElementsAre(0, 2));
  applied(kPrefill, 2);
  applied(kDecode, 2);
  EXPECT_THAT(live(), ElementsAre(0, 2));
  EXPECT_FALSE(node.timer("applied").has_value());
}

TEST_F(BroadcasterStory, AnOldVersionChangesNothing) {
  ready(3);
  applied(kPrefill, 3);
  applied(kDecode, 3);
  ready(2);
  EXPECT_THAT(updates(), ElementsAre(3));
}

TEST_F(BroadcasterStory, SetsAsideAnEngineThatDoesNotAnswerInTime) {
  ready(0);
  applied(kPrefill, 0);
  ASSERT_TRUE(node.advance(Duration::milliseconds(59999)).ok());
  EXPECT_THAT(live(), IsEmpty());
  ASSERT_TRUE(node.advance(Duration::milliseconds(1)).ok());
  EXPECT_THAT(live(), ElementsAre(0));
  EXPECT_EQ(node.counter("engines_set_aside"), 1);
  // It is not waited for until it has caught up.
  ready(1);
  applied(kPrefill, 1);
  EXPECT_THAT(live(), ElementsAre(0, 1));
  applied(kDecode, 0);
  ready(2);
  applied(kPrefill, 2);
  EXPECT_THAT(live(), ElementsAre(0, 1, 2));
  applied(kDecode, 2);
  ready(3);
  applied(kPrefill, 3);
  EXPECT_THAT(live(), ElementsAre(0, 1, 2));
  applied(kDecode, 3);
  EXPECT_THAT(live(), ElementsAre(0, 1, 2, 3));
}

TEST_F(BroadcasterStory, WithoutAnyEngineNothingIsLive) {
  ready(0);
  ASSERT_TRUE(node.advance(Duration::seconds(61)).ok());
  EXPECT_THAT(live(), IsEmpty());
  applied(kDecode, 0);
  EXPECT_THAT(live(), ElementsAre(0));
}

TEST_F(BroadcasterStory, AnEngineThatCannotApplyIsSetAsideAndItsErrorIsLogged) {
  ready(0);
  applied(kPrefill, 0, "tensor 'x' is missing");
  applied(kDecode, 0);
  EXPECT_THAT(live(), ElementsAre(0));
  EXPECT_THAT(node.log().front(), HasSubstr("tensor 'x' is missing"));
}

TEST_F(BroadcasterStory, AVersionThatNoEngineCanApplyEndsTheTenant) {
  ready(0);
  applied(kPrefill, 0, "tensor 'x' is missing");
  EXPECT_EQ(node.failure_of(TenantSlot(0)), nullptr);
  applied(kDecode, 0, "tensor 'x' has another shape");
  ASSERT_NE(node.failure_of(TenantSlot(0)), nullptr);
  EXPECT_THAT(node.failure_of(TenantSlot(0))->text(),
              AllOf(HasSubstr("no engine could apply version 0"),
                    HasSubstr("tensor 'x' has another shape")));
}

TEST_F(BroadcasterStory, AnEngineThatIsOnlySlowMayYetApplyWhatOthersCannot) {
  ready(0);
  applied(kPrefill, 0, "tensor 'x' is missing");
  ASSERT_TRUE(node.advance(Duration::seconds(61)).ok());
  EXPECT_THAT(live(), IsEmpty());
  applied(kDecode, 0);
  EXPECT_THAT(live(), ElementsAre(0));
}

TEST_F(BroadcasterStory, ADeadEngineIsNotWaitedFor) {
  ready(0);
  applied(kPrefill, 0);
  ASSERT_TRUE(node.peer({PeerEvent::Kind::kDown, kDecode, 1}).ok());
  EXPECT_THAT(live(), ElementsAre(0));
}

TEST_F(BroadcasterStory, ANewEngineGetsTheLiveVersion) {
  ready(0);
  applied(kPrefill, 0);
  applied(kDecode, 0);
  node.set_targets("update", {kPrefill, kDecode, InstanceId(30)});
  ASSERT_TRUE(node.peer({PeerEvent::Kind::kUp, InstanceId(30), 2}).ok());
  EXPECT_THAT(updates(), ElementsAre(0, 0));
  applied(InstanceId(30), 0);
  ready(1);
  applied(kPrefill, 1);
  applied(kDecode, 1);
  EXPECT_THAT(live(), ElementsAre(0));
  applied(InstanceId(30), 1);
  EXPECT_THAT(live(), ElementsAre(0, 1));
}

TEST_F(TwoTenants, EqualVersionsGoLiveEachWhenItsOwnWasApplied) {
  ready(3);
  of(1);
  ready(3);
  EXPECT_THAT(updates(), ElementsAre(3, 3)) << "one update in flight for each";
  EXPECT_THAT(tenants("update"), ElementsAre(0, 1));
  applied(kPrefill, 3);
  applied(kDecode, 3);
  EXPECT_THAT(tenants("live"), ElementsAre(1));
  of(0);
  applied(kPrefill, 3);
  EXPECT_THAT(live(), ElementsAre(3));
  applied(kDecode, 3);
  EXPECT_THAT(live(), ElementsAre(3, 3));
  EXPECT_THAT(tenants("live"), ElementsAre(1, 0));
  EXPECT_FALSE(node.timer("applied").has_value());
}

TEST_F(TwoTenants, TheNewestFollowsForEachByItself) {
  ready(0);
  of(1);
  ready(0);
  ready(4);
  of(0);
  ready(1);
  ready(2);
  for (const InstanceId engine : {kPrefill, kDecode}) applied(engine, 0);
  EXPECT_THAT(updates(), ElementsAre(0, 0, 2));
  of(1);
  for (const InstanceId engine : {kPrefill, kDecode}) applied(engine, 0);
  EXPECT_THAT(updates(), ElementsAre(0, 0, 2, 4));
  EXPECT_THAT(tenants("update"), ElementsAre(0, 1, 0, 1));
}

TEST_F(TwoTenants, EachUpdateHasATimeOfItsOwn) {
  ready(0);
  applied(kPrefill, 0);
  ASSERT_TRUE(node.advance(Duration::seconds(30)).ok());
  of(1);
  ready(0);
  applied(kPrefill, 0);
  ASSERT_TRUE(node.advance(Duration::milliseconds(29999)).ok());
  EXPECT_THAT(live(), IsEmpty());
  ASSERT_TRUE(node.advance(Duration::milliseconds(1)).ok());
  EXPECT_THAT(tenants("live"), ElementsAre(0));
  ASSERT_TRUE(node.advance(Duration::milliseconds(29999)).ok());
  EXPECT_THAT(tenants("live"), ElementsAre(0));
  ASSERT_TRUE(node.advance(Duration::milliseconds(1)).ok());
  EXPECT_THAT(tenants("live"), ElementsAre(0, 1));
}

TEST_F(TwoTenants, ANewEngineGetsTheLiveVersionOfEachTenant) {
  for (const uint32_t tenant : {0U, 1U}) {
    of(tenant);
    ready(5 + tenant);
    for (const InstanceId engine : {kPrefill, kDecode}) applied(engine, 5 + tenant);
  }
  node.forget_sent();
  node.set_targets("update", {kPrefill, kDecode, InstanceId(30)});
  ASSERT_TRUE(node.peer({PeerEvent::Kind::kUp, InstanceId(30), 2}).ok());
  EXPECT_THAT(updates(), ElementsAre(5, 6));
  EXPECT_THAT(tenants("update"), ElementsAre(0, 1));
}

TEST_F(TwoTenants, AVersionThatEveryEngineRefusesEndsOneTenantAndTheOtherContinues) {
  for (const uint32_t tenant : {0U, 1U}) {
    of(tenant);
    ready(0);
    for (const InstanceId engine : {kPrefill, kDecode}) applied(engine, 0);
    ready(1);
  }
  node.forget_sent();
  of(1);
  for (const InstanceId engine : {kPrefill, kDecode}) applied(engine, 1, "too large");
  EXPECT_NE(node.failure_of(TenantSlot(1)), nullptr);
  EXPECT_EQ(node.failure_of(TenantSlot(0)), nullptr);
  // Later messages for this tenant are ignored, also when an engine comes back.
  ready(2);
  applied(kPrefill, 1);
  ASSERT_TRUE(node.peer({PeerEvent::Kind::kDown, kDecode, 1}).ok());
  ASSERT_TRUE(node.peer({PeerEvent::Kind::kUp, kDecode, 2}).ok());
  ASSERT_TRUE(node.advance(Duration::seconds(61)).ok());
  of(0);
  for (const InstanceId engine : {kPrefill, kDecode}) applied(engine, 1);
  ready(2);
  for (const InstanceId engine : {kPrefill, kDecode}) applied(engine, 2);
  EXPECT_THAT(tenants("update"), Each(0U));
  EXPECT_THAT(tenants("live"), ElementsAre(0, 0));
}

TEST_F(TwoTenants, NoTenantWaitsForADeadEngine) {
  for (const uint32_t tenant : {0U, 1U}) {
    of(tenant);
    ready(0);
    applied(kPrefill, 0);
  }
  EXPECT_THAT(live(), IsEmpty());
  ASSERT_TRUE(node.peer({PeerEvent::Kind::kDown, kDecode, 1}).ok());
  EXPECT_THAT(tenants("live"), ElementsAre(0, 1));
}

}  // namespace
}  // namespace primerl
