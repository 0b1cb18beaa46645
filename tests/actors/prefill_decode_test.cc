#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/engine_story.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using EngineStory = testing::EngineStory;
using testing::engine_request;

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
  auto request = engine_request(1);
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
  auto next = engine_request(2);
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
  auto request = engine_request(1);
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
  auto next = engine_request(2);
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
  auto long_one = engine_request(3);
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

}  // namespace
}  // namespace primerl
