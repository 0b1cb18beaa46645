// Requests of engines that died, and bounds on the work of one step of Router.

#include "tests/actors/router_story.h"

namespace primerl {
namespace {

using testing::a_load;
using testing::a_request;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::kPrefillA;
using testing::kPrefillB;
using testing::RouterStory;
using ::testing::SizeIs;
using testing::SmallRouterStory;

TEST_F(RouterStory, AnEngineThatDiedHasLostItsRequests) {
  ready();
  for (uint64_t i = 0; i < 4; ++i) ask(a_request(i, i));
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kDown, kPrefillA, 1}).ok());
  const auto lost = router.sent<Completion>("refused");
  ASSERT_THAT(lost, SizeIs(2));
  for (const auto& completion : lost) EXPECT_EQ(completion.end, FinishReason::kEngineLost);
  router.forget_sent();
  for (uint64_t i = 10; i < 14; ++i) ask(a_request(i, i));
  EXPECT_THAT(router.targets_of("prefill"), ::testing::Each(kPrefillB));
}

TEST_F(RouterStory, AnEngineThatDiedHasNotLostAnsweredRequests) {
  ready();
  for (uint64_t i = 0; i < 6; ++i) ask(a_request(i, i));
  // All except the last were answered; a later request of the tenant reports that.
  auto last = a_request(6, 6);
  last.answered = {0, 1, 2, 3, 4, 77};
  ask(last);
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kDown, kPrefillA, 1}).ok());
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kDown, kPrefillB, 1}).ok());
  std::vector<uint64_t> lost;
  for (const auto& each : router.sent<Completion>("refused")) lost.push_back(each.request);
  EXPECT_THAT(lost, ::testing::UnorderedElementsAre(5, 6));
  for (const auto& request : router.sent<GenerateRequest>("prefill"))
    EXPECT_THAT(request.answered, IsEmpty()) << "the engines need not know";
}

TEST_F(RouterStory, ALaterTurnOfAnOldSessionGoesToAnotherEngine) {
  ready();
  ask(a_request(1, 1));
  const InstanceId first = router.targets_of("prefill").front();
  auto second = a_request(2, 2);
  second.answered = {1};
  ask(second);
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kDown, first, 1}).ok());
  router.forget_sent();
  ask(a_request(3, 1));
  EXPECT_THAT(router.targets_of("prefill"),
              ElementsAre(first == kPrefillA ? kPrefillB : kPrefillA));
  EXPECT_THAT(router.sent<Completion>("refused"), IsEmpty());
}

/// The load of an engine may arrive although its answer is lost, for example after a kill.
TEST_F(RouterStory, OnlyTheSenderKnowsWhetherAnAnswerHasArrived) {
  ready();
  ask(a_request(1));
  const InstanceId engine = router.targets_of("prefill").front();
  ASSERT_TRUE(router.give("load", a_load(engine, 0, 1)).ok());
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kDown, engine, 1}).ok());
  const auto refused = router.sent<Completion>("refused");
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].end, FinishReason::kEngineLost);
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

/// The sender's open requests bound the answers that may wait for it. An engine's loads may report
/// ended requests late, so it has lost fewer requests than they suggest.
TEST_F(RouterStory, AnswersLostRequestsAsFastAsTheSenderReceivesThem) {
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

/// 2 sessions are remembered here, and every request that an engine owes an answer.
TEST_F(SmallRouterStory, ADeadEngineLosesMoreRequestsThanSessionsAreRemembered) {
  ready();
  for (uint64_t i = 0; i < 8; ++i) ask(a_request(i, i));
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kDown, kPrefillA, 1}).ok());
  EXPECT_THAT(router.sent<Completion>("refused"), SizeIs(4));
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kDown, kPrefillB, 1}).ok());
  EXPECT_THAT(router.sent<Completion>("refused"), SizeIs(8));
}

/// 64 may be in flight here, so 128 are known: of an asker that reports no answers, the newest.
TEST_F(SmallRouterStory, KnowsTwiceAsManyRequestsAsMayBeInFlight) {
  ready();
  const auto has_abort_of = [&](uint64_t request) {
    router.forget_sent();
    EXPECT_TRUE(router.give("cancel", Cancel{{request}}, rollout).ok());
    return !router.sent<Abort>("abort").empty();
  };
  for (uint64_t i = 0; i < 128; ++i) ask(a_request(i, i));
  EXPECT_TRUE(has_abort_of(0));
  ask(a_request(128, 128));
  EXPECT_FALSE(has_abort_of(0));
  EXPECT_TRUE(has_abort_of(1));
}

}  // namespace
}  // namespace primerl
