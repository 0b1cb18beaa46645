// How Router chooses an engine, and the requests that it holds.
#include <algorithm>

#include "tests/actors/router_story.h"

namespace primerl {
namespace {

using testing::a_full_load;
using testing::a_load;
using testing::a_request;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::kDecodeA;
using testing::kDecodeB;
using testing::kPrefillA;
using testing::kPrefillB;
using testing::RouterStory;
using ::testing::SizeIs;

TEST_F(RouterStory, HoldsARequestUntilAnEngineHasItsVersion) {
  ask(a_request(1, 1, 1));
  ready(0);
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), IsEmpty());
  EXPECT_FALSE(router.idle());
  ASSERT_TRUE(router.give("load", a_load(kPrefillB, 1)).ok());
  EXPECT_THAT(router.targets_of("prefill"), ElementsAre(kPrefillB));
  const auto& options = router.emissions("prefill").front().options;
  EXPECT_EQ(options.tenant, TenantSlot(0));
  EXPECT_EQ(options.origin, InstanceId(3));
  EXPECT_TRUE(router.idle());
}

TEST_F(RouterStory, HoldsAsManyAsMayBeInFlightAndLetsTheRestWait) {
  auto one = testing::a_tenant(), other = testing::a_tenant();
  one.inflight_max = 40;
  other.inflight_max = 30;
  router.set_tenants({one, other});
  for (uint64_t i = 0; i < 69; ++i) ask(a_request(i, i));
  EXPECT_FALSE(router.is_paused("generate"));
  ask(a_request(69, 69));
  EXPECT_TRUE(router.is_paused("generate"));
  ask(a_request(70, 70));  // waits in its edge
  ready();
  while (!router.idle()) ASSERT_TRUE(router.advance(Duration::milliseconds(1)).ok());
  EXPECT_FALSE(router.is_paused("generate"));
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), SizeIs(71));
  EXPECT_THAT(router.sent<Completion>("refused"), IsEmpty());
}

/// In supervised training no rollout is in flight: the requests are those of a teacher.
TEST_F(RouterStory, ATeacherMayHaveMoreRequestsThanWaitHere) {
  auto tenant = testing::a_tenant();
  tenant.inflight_max = 0;
  router.set_tenants({tenant});
  for (uint64_t i = 0; i < 63; ++i) ask(a_request(i, i));
  EXPECT_FALSE(router.is_paused("generate"));
  ask(a_request(63, 63));
  EXPECT_TRUE(router.is_paused("generate")) << "64 wait here, whatever the teacher's requests_max";
  ask(a_request(64, 64));  // waits in its edge
  ready();
  while (!router.idle()) ASSERT_TRUE(router.advance(Duration::milliseconds(1)).ok());
  EXPECT_FALSE(router.is_paused("generate"));
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), SizeIs(65));
  EXPECT_THAT(router.sent<Completion>("refused"), IsEmpty());
}

TEST_F(RouterStory, AcceptsRequestsAgainWhenAWaitingOneHasLeft) {
  auto one = testing::a_tenant();
  one.inflight_max = 70;
  router.set_tenants({one});
  for (uint64_t i = 0; i < 70; ++i) ask(a_request(i, i));
  EXPECT_TRUE(router.is_paused("generate"));
  ASSERT_TRUE(router.give("load", a_full_load(kPrefillA, 0, 1)).ok());
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), SizeIs(1));
  EXPECT_FALSE(router.is_paused("generate"));
}

/// A restarted engine has lost its cache: the session goes to the engine with the least load.
TEST_F(RouterStory, ASessionDoesNotStickToAnEngineThatWasRestarted) {
  ready();
  ask(a_request(1, 1));
  const InstanceId home = router.targets_of("prefill").back();
  ask(a_request(2, 1));
  ASSERT_EQ(router.targets_of("prefill").back(), home) << "the session sticks to a living engine";
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kDown, home, 1}).ok());
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kUp, home, 2}).ok());
  ready();
  int ahead = 0;  // how many more requests `home` has than the other engine
  for (uint64_t i = 10; ahead < 1; ++i) {
    ASSERT_LT(i, 20U);
    ask(a_request(i, i));
    ahead += router.targets_of("prefill").back() == home ? 1 : -1;
  }
  ask(a_request(3, 1));
  EXPECT_NE(router.targets_of("prefill").back(), home);
}

TEST_F(RouterStory, SendsAnEngineNoMoreThanItsFreeSpace) {
  ASSERT_TRUE(router.give("load", a_full_load(kPrefillA, 0, 2)).ok());
  for (uint64_t i = 0; i < 5; ++i) ask(a_request(i, i));
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), SizeIs(2));
  // One has arrived and one was sent; the queue has space for one, which the sent one needs.
  ASSERT_TRUE(router.give("load", a_full_load(kPrefillA, 1, 1)).ok());
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), SizeIs(2));
  ASSERT_TRUE(router.give("load", a_full_load(kPrefillA, 2, 1)).ok());
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), SizeIs(3));
  ASSERT_TRUE(router.give("load", a_full_load(kPrefillB, 0, 5)).ok());
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), SizeIs(5));
  EXPECT_THAT(router.sent<Completion>("refused"), IsEmpty());
}

TEST_F(RouterStory, ARequestThatCannotBePlacedBlocksNoOther) {
  router.set_tenants({testing::a_tenant(), testing::a_tenant()});
  ready(0);
  ask(a_request(1, 1, 5));
  ask(a_request(2, 2, 0));
  rollout.tenant = TenantSlot(1);
  ask(a_request(3, 3, 0));
  std::vector<uint64_t> sent;
  for (const auto& each : router.sent<GenerateRequest>("prefill")) sent.push_back(each.request);
  EXPECT_THAT(sent, ElementsAre(2, 3));
  EXPECT_FALSE(router.idle());
}

TEST_F(RouterStory, TenantsGoInTurnAndEachInItsOwnOrder) {
  router.set_tenants({testing::a_tenant(), testing::a_tenant()});
  for (uint64_t i = 0; i < 30; ++i) ask(a_request(i, i));
  rollout.tenant = TenantSlot(1);
  for (uint64_t i = 100; i < 103; ++i) ask(a_request(i, i));
  ASSERT_TRUE(router.give("load", a_full_load(kPrefillA, 0, 7)).ok());
  std::vector<uint64_t> sent;
  for (const auto& each : router.sent<GenerateRequest>("prefill")) sent.push_back(each.request);
  EXPECT_THAT(sent, ElementsAre(0, 100, 1, 101, 2, 102, 3));
}

TEST_F(RouterStory, ASessionKeepsItsOrderWhileItWaits) {
  ready(0);
  ask(a_request(1, 1, 5));
  ask(a_request(2, 1, 0));
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), IsEmpty());
  ASSERT_TRUE(router.give("load", a_load(kPrefillA, 5)).ok());
  const auto sent = router.sent<GenerateRequest>("prefill");
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].request, 1U);
}

struct HashedRouterStory : RouterStory {
  HashedRouterStory() : RouterStory({.policy = "consistent_hash"}) {}
  /// The engine that a request of the session is sent to now; there must be one.
  InstanceId engine_of(uint64_t session) {
    router.forget_sent();
    ask(a_request(next_request_++, session));
    const auto targets = router.targets_of("prefill");
    EXPECT_THAT(targets, SizeIs(1)) << session;
    return targets.empty() ? InstanceId() : targets[0];
  }
  uint64_t next_request_ = 1000;
};

TEST_F(HashedRouterStory, ASessionWaitsForItsEngineAndDoesNotBlockOthers) {
  ready();
  std::map<uint64_t, InstanceId> homes;
  for (uint64_t session = 0; session < 40; ++session) homes[session] = engine_of(session);
  // A has no free space any more, B has.
  ASSERT_TRUE(router.give("load", a_full_load(kPrefillA, 1000, 0)).ok());
  router.forget_sent();
  for (uint64_t session = 0; session < 40; ++session) ask(a_request(session, session));
  for (const auto& request : router.sent<GenerateRequest>("prefill"))
    EXPECT_EQ(homes[request.session], kPrefillB);
  EXPECT_THAT(router.targets_of("prefill"), ::testing::Each(kPrefillB));
  EXPECT_FALSE(router.idle());
  ASSERT_TRUE(router.give("load", a_full_load(kPrefillA, 1000, 1000)).ok());
  while (!router.idle()) ASSERT_TRUE(router.advance(Duration::milliseconds(1)).ok());
  const auto sent = router.sent<GenerateRequest>("prefill");
  const auto targets = router.targets_of("prefill");
  ASSERT_THAT(sent, SizeIs(40));
  for (size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(targets[i], homes[sent[i].session]);
}

TEST_F(HashedRouterStory, OnlyTheSessionsOfALostEngineMoveAndTheyComeBackWithIt) {
  ready();
  std::map<uint64_t, InstanceId> homes;
  for (uint64_t session = 0; session < 40; ++session) homes[session] = engine_of(session);
  // Requests that wait for A when it dies are sent to B.
  ASSERT_TRUE(router.give("load", a_full_load(kPrefillA, 1000, 0)).ok());
  router.forget_sent();
  for (uint64_t session = 0; session < 40; ++session) ask(a_request(session, session));
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kDown, kPrefillA, 1}).ok());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(router.advance(Duration::milliseconds(1)).ok());
  EXPECT_THAT(router.targets_of("prefill"), ::testing::Each(kPrefillB));
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), SizeIs(40));
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kUp, kPrefillA, 2}).ok());
  for (uint64_t session = 0; session < 40; ++session) EXPECT_EQ(engine_of(session), kPrefillB);
  ASSERT_TRUE(router.give("load", a_load(kPrefillA, 0)).ok());
  for (uint64_t session = 0; session < 40; ++session) EXPECT_EQ(engine_of(session), homes[session]);
}

/// Broadcaster sets aside an engine that does not apply a version in time: requests must not wait
/// for it for ever.
TEST_F(HashedRouterStory, ASessionLeavesAnEngineThatStaysBehind) {
  ready(0);
  std::vector<uint64_t> of_a;
  for (uint64_t session = 0; session < 40; ++session)
    if (engine_of(session) == kPrefillA) of_a.push_back(session);
  ASSERT_FALSE(of_a.empty());
  ASSERT_TRUE(router.give("load", a_load(kPrefillB, 1)).ok());
  router.forget_sent();
  for (const uint64_t session : of_a) ask(a_request(session, session, 1));
  ASSERT_TRUE(router.advance(Duration::seconds(10) - Duration::milliseconds(1)).ok());
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), IsEmpty());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(router.advance(Duration::milliseconds(1)).ok());
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), SizeIs(of_a.size()));
  EXPECT_THAT(router.targets_of("prefill"), ::testing::Each(kPrefillB));
  // It is used again when it has applied the version.
  ASSERT_TRUE(router.give("load", a_load(kPrefillA, 1)).ok());
  EXPECT_EQ(engine_of(of_a[0]), kPrefillA);
}

struct CacheAwareStory : RouterStory {
  explicit CacheAwareStory(int64_t prefix_blocks_max = 1000)
      : RouterStory({.policy = "cache_aware", .prefix_blocks_max = prefix_blocks_max}) {}
  /// A prompt of two blocks and a few more tokens.
  static GenerateRequest of_prompt(uint64_t request, int32_t first_token) {
    auto made = a_request(request, request);
    made.prompt_tokens.clear();
    for (int32_t i = 0; i < 70; ++i) made.prompt_tokens.push_back(first_token + i);
    made.salt = "main:0";
    return made;
  }
  InstanceId engine_of(GenerateRequest request) {
    router.forget_sent();
    ask(std::move(request));
    const auto targets = router.targets_of("prefill");
    EXPECT_THAT(targets, SizeIs(1));
    return targets.empty() ? InstanceId() : targets[0];
  }
};

TEST_F(CacheAwareStory, OtherSessionsFollowAPromptToItsEngine) {
  ready();
  const InstanceId first = engine_of(of_prompt(1, 100));
  const InstanceId other = engine_of(of_prompt(2, 5000));
  EXPECT_NE(first, other) << "the less loaded one";
  for (uint64_t i = 10; i < 15; ++i) EXPECT_EQ(engine_of(of_prompt(i, 100)), first);
  for (uint64_t i = 20; i < 25; ++i) EXPECT_EQ(engine_of(of_prompt(i, 5000)), other);
}

TEST_F(CacheAwareStory, AnotherSaltOrTenantSharesNothing) {
  router.set_tenants({testing::a_tenant(), testing::a_tenant()});
  ready();
  const InstanceId first = engine_of(of_prompt(1, 100));
  auto later = of_prompt(2, 100);
  later.salt = "main:1";
  EXPECT_NE(engine_of(later), first);
  EXPECT_EQ(engine_of(of_prompt(3, 100)), first);
  rollout.tenant = TenantSlot(1);
  EXPECT_NE(engine_of(of_prompt(4, 100)), first);
}

TEST_F(CacheAwareStory, ARestartedEngineHasNoPrefixes) {
  ASSERT_TRUE(router.give("load", a_load(kPrefillA, 0)).ok());
  EXPECT_EQ(engine_of(of_prompt(1, 100)), kPrefillA);
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kDown, kPrefillA, 1}).ok());
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kUp, kPrefillA, 2}).ok());
  ASSERT_TRUE(router.give("load", a_load(kPrefillA, 0)).ok());
  EXPECT_EQ(engine_of(of_prompt(2, 5000)), kPrefillA);
  ASSERT_TRUE(router.give("load", a_load(kPrefillB, 0)).ok());
  EXPECT_EQ(engine_of(of_prompt(3, 100)), kPrefillB) << "A had it before it died";
}

struct ForgetfulStory : CacheAwareStory {
  ForgetfulStory() : CacheAwareStory(2) {}
};

TEST_F(ForgetfulStory, RemembersNoMoreBlocksThanItsLimit) {
  ASSERT_TRUE(router.give("load", a_load(kPrefillA, 0)).ok());
  engine_of(of_prompt(1, 100));
  engine_of(of_prompt(2, 5000));  // fills the space for two blocks
  ASSERT_TRUE(router.give("load", a_load(kPrefillB, 0)).ok());
  EXPECT_EQ(engine_of(of_prompt(3, 5000)), kPrefillA);
  EXPECT_EQ(engine_of(of_prompt(4, 100)), kPrefillB) << "forgotten, and B has less to do";
}

TEST_F(RouterStory, KeepsASessionOnOneEngine) {
  ready();
  for (uint64_t i = 0; i < 10; ++i) ask(a_request(i, 1));
  const auto targets = router.targets_of("prefill");
  ASSERT_THAT(targets, SizeIs(10));
  EXPECT_THAT(targets, ::testing::Each(targets.front()));
}

TEST_F(RouterStory, GuardsCountWhatWasSentAndNotFinished) {
  ready();
  for (uint64_t i = 0; i < 6; ++i) ask(a_request(i, i));
  const auto targets = router.targets_of("prefill");
  EXPECT_EQ(std::count(targets.begin(), targets.end(), kPrefillA), 3);
  router.forget_sent();
  // A has ended all its three requests: it gets the next two.
  ASSERT_TRUE(router.give("load", a_load(kPrefillA, 0, 3)).ok());
  ask(a_request(10, 10));
  ask(a_request(11, 11));
  EXPECT_THAT(router.targets_of("prefill"), ElementsAre(kPrefillA, kPrefillA));
}

TEST_F(RouterStory, ACancelReachesBothHalvesOfTheEngineThatHasTheRequest) {
  ready();
  ask(a_request(1));
  const bool is_a = router.targets_of("prefill").front() == kPrefillA;
  ASSERT_TRUE(router.give("cancel", Cancel{{1}}, rollout).ok());
  EXPECT_THAT(router.targets_of("abort"),
              ElementsAre(is_a ? kPrefillA : kPrefillB, is_a ? kDecodeA : kDecodeB));
  EXPECT_THAT(router.sent<Completion>("refused"), IsEmpty());
}

// An abort goes to the users of the engine, wherever they are in the list of targets.
TEST_F(RouterStory, ACancelReachesEveryDecodeOfTheEngineAndNoOther) {
  const InstanceId second(22);
  router.set_targets("abort", {kDecodeB, second, kPrefillB, kDecodeA, kPrefillA});
  router.set_sharing({kPrefillA, second});
  ready();
  for (const uint64_t request : {1U, 2U}) ask(a_request(request, request));
  const auto engines = router.targets_of("prefill");
  for (const uint64_t request : {1U, 2U}) {
    router.forget_sent("abort");
    ASSERT_TRUE(router.give("cancel", Cancel{{request}}, rollout).ok());
    if (engines[request - 1] == kPrefillA)
      EXPECT_THAT(router.targets_of("abort"), ElementsAre(second, kDecodeA, kPrefillA));
    else
      EXPECT_THAT(router.targets_of("abort"), ElementsAre(kDecodeB, kPrefillB));
  }
  EXPECT_NE(engines[0], engines[1]) << "both engines are tried";
}

TEST_F(RouterStory, ACancelOfAHeldRequestIsAnsweredHere) {
  ask(a_request(1));
  ASSERT_TRUE(router.give("cancel", Cancel{{1}}, rollout).ok());
  const auto refused = router.sent<Completion>("refused");
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].end, FinishReason::kCancelled);
  ready();
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), IsEmpty());
}

TEST_F(RouterStory, ACancelMayOvertakeItsRequest) {
  ready();
  ASSERT_TRUE(router.give("cancel", Cancel{{1}}, rollout).ok());
  ask(a_request(1));
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), IsEmpty());
  ASSERT_THAT(router.sent<Completion>("refused"), SizeIs(1));
  EXPECT_EQ(router.sent<Completion>("refused")[0].end, FinishReason::kCancelled);
}

TEST_F(RouterStory, ARequestThatNamesItsEngineGoesThereOrWaitsForIt) {
  ready();
  for (uint64_t request = 1; request <= 4; ++request) {
    auto pinned = a_request(request, 7);
    pinned.engine = request % 2 == 0 ? 1 : 0;
    ask(std::move(pinned));
  }
  EXPECT_THAT(router.targets_of("prefill"), ElementsAre(kPrefillA, kPrefillB, kPrefillA, kPrefillB))
      << "whatever engine the session used before";
  router.forget_sent("prefill");
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kDown, kPrefillA, 1}).ok());
  router.set_targets("prefill", {kPrefillB});
  auto waits = a_request(5, 8);
  waits.engine = 0;
  ask(std::move(waits));
  auto beside = a_request(6, 9);
  beside.engine = 1;
  ask(std::move(beside));
  EXPECT_THAT(router.targets_of("prefill"), ElementsAre(kPrefillB))
      << "an engine that is down keeps its number, and only its own requests wait";
  router.set_targets("prefill", {kPrefillA, kPrefillB});
  ASSERT_TRUE(router.give("load", a_load(kPrefillA, 0)).ok());
  EXPECT_THAT(router.targets_of("prefill"), ElementsAre(kPrefillB, kPrefillA));
}

TEST_F(RouterStory, AnEngineBeyondTheLastOneIsRefused) {
  ready();
  auto last = a_request(1);
  last.engine = 1;
  ask(std::move(last));
  EXPECT_THAT(router.sent<Completion>("refused"), IsEmpty());
  auto beyond = a_request(2);
  beyond.engine = 2;
  ask(std::move(beyond));
  const auto refused = router.sent<Completion>("refused");
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].end, FinishReason::kRefused);
  EXPECT_EQ(refused[0].detail, "it asks for engine 2, and there are 2, numbered from 0");
}

TEST_F(RouterStory, RefusesACancelOfTooMany) {
  EXPECT_TRUE(router.give("cancel", Cancel{std::vector<uint64_t>(kCancelRequestsMax)}).ok());
  EXPECT_FALSE(router.give("cancel", Cancel{std::vector<uint64_t>(kCancelRequestsMax + 1)}).ok());
}

TEST_F(RouterStory, TenantsOfEqualNumbersDoNotMix) {
  router.set_tenants({testing::a_tenant(), testing::a_tenant()});
  ready();
  ask(a_request(1));
  ASSERT_TRUE(router.give("cancel", Cancel{{1}}, {.tenant = TenantSlot(1)}).ok());
  EXPECT_THAT(router.sent<Abort>("abort"), IsEmpty());
}

/// The load of an engine that has applied this version of one tenant.
EngineLoad a_load_of(InstanceId engine, TenantSlot tenant, int64_t applied) {
  EngineLoad load = a_load(engine, -1);
  CHECK(load.applied.set({tenant}, PolicyVersion(applied)), "too many keys");
  return load;
}

TEST_F(RouterStory, AnEngineHasAVersionOnlyOfTheTenantsWhoseWeightsItApplied) {
  router.set_tenants({testing::a_tenant(), testing::a_tenant()});
  ASSERT_TRUE(router.give("load", a_load_of(kPrefillA, TenantSlot(0), 3)).ok());
  ASSERT_TRUE(router.give("load", a_load_of(kPrefillB, TenantSlot(1), 3)).ok());
  for (uint64_t i = 0; i < 4; ++i) ask(a_request(i, i, 3));
  EXPECT_THAT(router.targets_of("prefill"), ::testing::Each(kPrefillA));
  router.forget_sent();
  rollout.tenant = TenantSlot(1);
  for (uint64_t i = 0; i < 4; ++i) ask(a_request(i, i, 3));
  EXPECT_THAT(router.targets_of("prefill"), AllOf(SizeIs(4), ::testing::Each(kPrefillB)));
  router.forget_sent();
  ask(a_request(9, 9, 4));
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), IsEmpty());
  ASSERT_TRUE(router.give("load", a_load_of(kPrefillA, TenantSlot(0), 4)).ok());
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), IsEmpty()) << "the version of another";
  ASSERT_TRUE(router.give("load", a_load_of(kPrefillA, TenantSlot(1), 4)).ok());
  EXPECT_THAT(router.targets_of("prefill"), ElementsAre(kPrefillA));
}

TEST_F(HashedRouterStory, AnEngineThatStaysBehindForOneTenantKeepsTheSessionsOfAnother) {
  router.set_tenants({testing::a_tenant(), testing::a_tenant()});
  ready(0);
  std::vector<uint64_t> of_a;
  for (uint64_t session = 0; session < 40; ++session)
    if (engine_of(session) == kPrefillA) of_a.push_back(session);
  rollout.tenant = TenantSlot(1);
  std::map<uint64_t, InstanceId> homes;
  for (uint64_t session = 0; session < 40; ++session) homes[session] = engine_of(session);
  rollout.tenant = TenantSlot(0);
  ASSERT_TRUE(router.give("load", a_load_of(kPrefillB, TenantSlot(0), 1)).ok());
  for (const uint64_t session : of_a) ask(a_request(session, session, 1));
  ASSERT_TRUE(router.advance(Duration::seconds(10)).ok());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(router.advance(Duration::milliseconds(1)).ok());
  EXPECT_TRUE(router.idle()) << "they went to the other engine";
  rollout.tenant = TenantSlot(1);
  for (uint64_t session = 0; session < 40; ++session) EXPECT_EQ(engine_of(session), homes[session]);
}

}  // namespace
}  // namespace primerl
