#include <algorithm>

#include "actors/router/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr InstanceId kPrefillA(10), kPrefillB(11), kDecodeA(20), kDecodeB(21);

GenerateRequest a_request(uint64_t request, uint64_t session = 1, int64_t version = 0) {
  GenerateRequest made;
  made.request = request;
  made.session = session;
  made.version = PolicyVersion(version);
  made.prompt_tokens = {1, 2, 3};
  return made;
}

EngineLoad a_load(InstanceId engine, int64_t applied, uint64_t num_finished = 0) {
  EngineLoad load;
  load.engine = engine;
  load.applied = PolicyVersion(applied);
  load.num_finished = num_finished;
  return load;
}

struct RouterStory : ::testing::Test {
  explicit RouterStory(RouterOptions options = {}) : router(std::move(options)) {
    router.set_targets("prefill", {kPrefillA, kPrefillB});
    router.set_targets("abort", {kPrefillA, kPrefillB, kDecodeA, kDecodeB});
  }
  void ready(int64_t version = 0) {
    ASSERT_TRUE(router.give("load", a_load(kPrefillA, version)).ok());
    ASSERT_TRUE(router.give("load", a_load(kPrefillB, version)).ok());
  }
  void ask(GenerateRequest request) {
    EXPECT_TRUE(router.give("generate", std::move(request), rollout).ok());
  }
  Given rollout{.tenant = TenantSlot(0), .sender = InstanceId(3), .origin = InstanceId(3)};
  NodeRunner<Router> router;
};

struct SmallRouterStory : RouterStory {
  SmallRouterStory() : RouterStory({.policy = "round_robin", .held_max = 2, .sessions_max = 2}) {}
};

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

TEST_F(SmallRouterStory, HoldsAsManyAsItMayAndRefusesTheNext) {
  ask(a_request(1));
  ask(a_request(2, 2));
  EXPECT_THAT(router.sent<Completion>("refused"), IsEmpty());
  EXPECT_FALSE(router.give("generate", a_request(3, 3), rollout).ok());
  const auto refused = router.sent<Completion>("refused");
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].request, 3U);
  EXPECT_EQ(refused[0].end, CompletionEnd::kRefused);
  EXPECT_THAT(refused[0].detail, HasSubstr("held_max"));
  EXPECT_EQ(router.emissions("refused")[0].options.origin, InstanceId(3));
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
  // A has ended all of its three: the next two go there.
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

TEST_F(RouterStory, ACancelOfAHeldRequestIsAnsweredHere) {
  ask(a_request(1));
  ASSERT_TRUE(router.give("cancel", Cancel{{1}}, rollout).ok());
  const auto refused = router.sent<Completion>("refused");
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].end, CompletionEnd::kCancelled);
  ready();
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), IsEmpty());
}

TEST_F(RouterStory, ACancelMayOvertakeItsRequest) {
  ready();
  ASSERT_TRUE(router.give("cancel", Cancel{{1}}, rollout).ok());
  ask(a_request(1));
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), IsEmpty());
  ASSERT_THAT(router.sent<Completion>("refused"), SizeIs(1));
  EXPECT_EQ(router.sent<Completion>("refused")[0].end, CompletionEnd::kCancelled);
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

TEST_F(RouterStory, AnEngineThatDiedHasLostWhatItHad) {
  ready();
  for (uint64_t i = 0; i < 4; ++i) ask(a_request(i, i));
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kDown, kPrefillA, 1}).ok());
  const auto lost = router.sent<Completion>("refused");
  ASSERT_THAT(lost, SizeIs(2));
  for (const auto& completion : lost) EXPECT_EQ(completion.end, CompletionEnd::kEngineLost);
  router.forget_sent();
  for (uint64_t i = 10; i < 14; ++i) ask(a_request(i, i));
  EXPECT_THAT(router.targets_of("prefill"), ::testing::Each(kPrefillB));
}

TEST_F(RouterStory, AnEngineThatDiedAfterItsLastAnswerHasLostNothing) {
  ready();
  ask(a_request(1));
  const InstanceId engine = router.targets_of("prefill").front();
  ASSERT_TRUE(router.give("load", a_load(engine, 0, 1)).ok());
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kDown, engine, 1}).ok());
  EXPECT_THAT(router.sent<Completion>("refused"), IsEmpty());
}

TEST_F(RouterStory, LosesManyAFewAtATime) {
  ready();
  for (uint64_t i = 0; i < 300; ++i) ask(a_request(i, i));
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kDown, kPrefillA, 1}).ok());
  EXPECT_THAT(router.sent<Completion>("refused"), SizeIs(kCancelRequestsMax));
  EXPECT_FALSE(router.idle());
  ASSERT_TRUE(router.advance(Duration::milliseconds(1)).ok());
  EXPECT_THAT(router.sent<Completion>("refused"), SizeIs(150));
  EXPECT_TRUE(router.idle());
}

/// What may wait at the asker is bounded by what it has open, but an engine's loads may say late
/// what it has ended: it lost fewer than were open by them.
TEST_F(RouterStory, AnswersWhatAnEngineLostAsFastAsTheAskerTakesIt) {
  ready();
  for (uint64_t i = 0; i < 20; ++i) ask(a_request(i, i));
  router.set_room("refused", 4);
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kDown, kPrefillA, 1}).ok());
  EXPECT_THAT(router.sent<Completion>("refused"), SizeIs(4));
  router.set_room("refused", 0);
  ASSERT_TRUE(router.advance(Duration::milliseconds(5)).ok());
  EXPECT_THAT(router.sent<Completion>("refused"), SizeIs(4));
  EXPECT_FALSE(router.idle());
  router.set_room("refused", 100);
  ASSERT_TRUE(router.advance(Duration::milliseconds(1)).ok());
  EXPECT_THAT(router.sent<Completion>("refused"), SizeIs(10));
  EXPECT_TRUE(router.idle());
}

TEST_F(RouterStory, ReleasesManyHeldRequestsAFewAtATimeAndInOrder) {
  for (uint64_t i = 0; i < 50; ++i) ask(a_request(i, i));
  ASSERT_TRUE(router.give("load", a_load(kPrefillA, 0)).ok());
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), SizeIs(16));
  ASSERT_TRUE(router.advance(Duration::milliseconds(1)).ok());
  const auto sent = router.sent<GenerateRequest>("prefill");
  ASSERT_THAT(sent, SizeIs(50));
  for (uint64_t i = 0; i < 50; ++i) EXPECT_EQ(sent[i].request, i);
}

TEST_F(SmallRouterStory, ForgetsTheOldestSession) {
  ready();
  for (uint64_t i = 0; i < 3; ++i) ask(a_request(i, i));
  ASSERT_TRUE(router.give("cancel", Cancel{{0, 1, 2}}, rollout).ok());
  std::vector<uint64_t> aborted;
  for (const auto& abort : router.sent<Abort>("abort")) aborted.push_back(abort.request);
  EXPECT_THAT(aborted, ElementsAre(1, 1, 2, 2));
}

}  // namespace
}  // namespace primerl
