// Requests in the Chrome export: each once, its phases without gaps, however it ended.
#include "runtime/query/request_spans.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/messages/generation.h"
#include "actors/messages/rollout.h"
#include "runtime/query/chrome_trace.h"
#include "runtime/query/step_text.h"
#include "tests/query/conversation.h"
#include "tests/query/request_tracks.h"
#include "tests/trace/segment_files.h"

namespace primerl {
namespace {

using namespace conversation;  // NOLINT: the conversation's own vocabulary
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

GenerateRequest request_of(uint64_t number, uint64_t session = 7, uint32_t attempt = 0) {
  GenerateRequest request;
  request.request = number;
  request.session = session;
  request.attempt = attempt;
  request.known.num_tokens = 30;
  request.prompt_tokens = {1, 2, 3};
  return request;
}

PrefillDone done_of(const GenerateRequest& request) {
  PrefillDone done;
  done.request = request.request;
  done.session = request.session;
  done.attempt = request.attempt;
  done.num_prompt_tokens = 33;
  done.num_cached_tokens = 32;
  return done;
}

Completion completion_of(const GenerateRequest& request, FinishReason end = FinishReason::kStop) {
  Completion completion;
  completion.request = request.request;
  completion.session = request.session;
  completion.attempt = request.attempt;
  completion.end = end;
  if (end != FinishReason::kStop) return completion;
  completion.tokens = {5, 6, 7, 8};
  completion.logprobs = {-1, -1, -1, -1};
  completion.spans = {{PolicyVersion(3), 0, 1}, {PolicyVersion(4), 1, 4}};
  return completion;
}

/// Requests that reach the end, or stop where a test stops them. `at` is when the rollout sends
/// them.
class RequestTimeline : public ::testing::Test {
 protected:
  /// As far as the engine: the router's message is in transit.
  Sent route(const GenerateRequest& request, int64_t at) {
    const Sent asked = run.send(kGenerate, request);
    run.turn(kRollout, at, 10);
    return routed(request, asked, at);
  }
  Sent routed(const GenerateRequest& request, const Sent& asked, int64_t at) {
    const Sent sent = run.send(kToPrefill, request);
    run.take(asked, at + 50, 5);
    return sent;
  }
  Sent prefill(const GenerateRequest& request, const Sent& sent, int64_t at) {
    const StepRef taken = run.take(sent, at + 100);
    const Sent done = run.send(kDone, done_of(request), taken);
    run.turn(kPrefill, at + 800, 100);
    return done;
  }
  Sent decode(const GenerateRequest& request, const Sent& done, int64_t at) {
    const StepRef taken = run.take(done, at + 940);
    const Sent completion = run.send(kCompletion, completion_of(request), taken);
    run.turn(kDecode, at + 1800, 100);
    return completion;
  }
  Sent complete(const GenerateRequest& request, int64_t at) {
    return decode(request, prefill(request, route(request, at), at), at);
  }
  /// The rollout accepts the completion; the result is its message to the environment.
  Sent act(const Sent& completion, int64_t at) {
    const Sent action = run.send(kAction, Action());
    run.take(completion, at, 10);
    return action;
  }

  RequestTracks tracks(double from_us = -1, double to_us = -1) {
    run.write(folder.path());
    const auto trace = story::open_trace(folder.path());
    if (trace == nullptr) return {};
    ChromeOptions options;
    const auto time = [&](double at) {
      return Time::from_nanoseconds(static_cast<int64_t>(at * 1000));
    };
    if (from_us >= 0) options.from = time(from_us);
    if (to_us >= 0) options.to = time(to_us);
    return tracks_of(*trace, options);
  }

  TestFolder folder;
  Conversation run;
};

TEST_F(RequestTimeline, ShowsTheConsecutivePhasesOfARequest) {
  const GenerateRequest first = request_of(0);
  const Sent action = act(complete(first, 0), 1930);
  const Sent observation = run.send(kObservation, Observation());
  run.take(action, 2000, 400);
  const GenerateRequest second = request_of(1);
  const Sent asked = run.send(kGenerate, second);
  run.take(observation, 2500, 10);
  const Sent completion = decode(second, prefill(second, routed(second, asked, 2600), 2600), 2600);
  run.take(completion, 4600);
  const RequestTracks shown = tracks();
  EXPECT_THAT(shown.faults, IsEmpty());
  EXPECT_EQ(shown.text(), R"(request router:1
  request 10..1930
    router 10..55
    prefill 55..900
    decode 900..1900
    answer 1900..1930
request router:2
  request 2510..4600
    router 2510..2655
    prefill 2655..3500
    decode 3500..4500
    answer 4500..4600
rollout main/7
  rollout 10..4600
    turn 10..1930
    environment 1940..2500
    turn 2510..4600
)");
  EXPECT_EQ(shown.facts("request", "router:1", "request"),
            R"({"tenant":"main","request":0,"session":7,"attempt":0,"prompt_tokens":33,)"
            R"("cached_tokens":32,"new_tokens":4,"end":"stop","versions":[3,4]})");
  EXPECT_EQ(shown.facts("request", "router:1", "prefill"),
            R"({"instance":"prefill","step":"prefill:1","queue_us":45.0})");
  EXPECT_EQ(shown.facts("rollout", "main/7", "turn"),
            R"({"turn":1,"request":1,"new_tokens":4,"end":"stop"})")
      << "of the last turn";
}

TEST_F(RequestTimeline, ShowsHowARequestEnded) {
  static constexpr FinishReason kEnds[] = {FinishReason::kLength,         FinishReason::kCancelled,
                                           FinishReason::kRefused,        FinishReason::kEngineLost,
                                           FinishReason::kUnknownSession, FinishReason::kFailed};
  uint64_t number = 0;
  for (const FinishReason end : kEnds) {
    const GenerateRequest request = request_of(number, 100 + number);
    const Sent sent = route(request, static_cast<int64_t>(number) * 1000);
    const Sent refused = run.send(kPrefillRefused, completion_of(request, end));
    run.take(sent, static_cast<int64_t>(number) * 1000 + 100, 10);
    run.take(refused, static_cast<int64_t>(number) * 1000 + 200);
    ++number;
  }
  const RequestTracks shown = tracks();
  EXPECT_THAT(shown.faults, IsEmpty());
  for (uint64_t i = 0; i < number; ++i)
    EXPECT_THAT(shown.facts("request", fmt::format("router:{}", i + 1), "request"),
                HasSubstr(fmt::format(R"("end":"{}")", to_string(kEnds[i]))));
  EXPECT_THAT(shown.text(), HasSubstr("  request 10..200\n    router 10..55\n"
                                      "    prefill 55..110\n    answer 110..200\n"));
}

TEST_F(RequestTimeline, ARefusalOfTheRouterEndsARequestThoughItsContentWasNotStored) {
  const Sent asked = run.send(kGenerate, request_of(0));
  run.turn(kRollout, 0, 10);
  const StepRef held = run.take(asked, 50);
  const Sent refused =
      run.send(kRouterRefused, completion_of(request_of(0), FinishReason::kEngineLost), held);
  run.turn(kRouter, 500, 20);
  run.take(refused, 600);
  const RequestTracks shown = tracks();
  EXPECT_THAT(shown.faults, IsEmpty());
  EXPECT_EQ(shown.text(), R"(request router:1
  request 10..600
    router 10..520
    answer 520..600
)");
  EXPECT_EQ(shown.facts("request", "router:1", "request"),
            R"({"tenant":"main","end":"not stored"})");
}

// The engine ends a prompt by itself, so its completion answers an abort, or no message about this
// request.
TEST_F(RequestTimeline, ARequestThatEndedInItsEngineIsKnownByItsNumber) {
  const GenerateRequest first = request_of(0, 7), second = request_of(1, 8);
  const Sent first_sent = route(first, 0);
  const Sent second_sent = route(second, 20);
  run.take(second_sent, 150);
  const Sent abort = run.send(kAbort, Abort{.request = 1});
  run.turn(kRouter, 200);
  const StepRef aborted = run.take(abort, 250);
  const Sent cancelled =
      run.send(kCompletion, completion_of(second, FinishReason::kCancelled), aborted);
  run.turn(kDecode, 300, 10);
  run.take(cancelled, 400);
  // Only now is one of the numbers known.
  run.take(decode(first, prefill(first, first_sent, 0), 0), 1930);
  const RequestTracks shown = tracks();
  EXPECT_THAT(shown.faults, IsEmpty());
  EXPECT_THAT(shown.text(), HasSubstr(R"(request router:2
  request 30..400
    router 30..75
    prefill 75..310
    answer 310..400
)"));
  EXPECT_THAT(shown.facts("request", "router:2", "request"),
              HasSubstr(R"("request":1,"session":8,"attempt":0)"));
  EXPECT_THAT(shown.facts("request", "router:2", "request"), HasSubstr(R"("end":"cancelled")"));
}

TEST_F(RequestTimeline, ACompletionThatNamesAnotherRequestsPrefillDoesNotEndThatOne) {
  const GenerateRequest first = request_of(0, 7), second = request_of(1, 8);
  const Sent first_done = prefill(first, route(first, 0), 0);
  const Sent second_sent = route(second, 910);
  const StepRef first_taken = run.take(first_done, 940);
  run.take(second_sent, 1000);
  const Sent failed = run.send(kCompletion, completion_of(second, FinishReason::kFailed),
                               first_taken);  // the last step of decode
  run.turn(kDecode, 1100, 10);
  run.take(failed, 1200);
  const Sent completion = run.send(kCompletion, completion_of(first), first_taken);
  run.turn(kDecode, 1800, 100);
  run.take(completion, 1930);
  const RequestTracks shown = tracks();
  EXPECT_THAT(shown.faults, IsEmpty());
  EXPECT_THAT(shown.facts("request", "router:1", "request"), HasSubstr(R"("end":"stop")"));
  EXPECT_THAT(shown.facts("request", "router:2", "request"), HasSubstr(R"("end":"failed")"));
}

// A restarted process counts its steps from 1 again, and the record keeps only the later ones.
TEST_F(RequestTimeline, CausesInAReplacedRecordAreNotTakenForWhatStandsThereNow) {
  const GenerateRequest lost = request_of(0, 7), gone = request_of(1, 8), kept = request_of(2, 9);
  for (const auto& request : {lost, gone}) {
    const Sent asked = run.send(kGenerate, request);
    run.turn(kRollout, 0, 10);
    run.take(asked, 50, 5);
  }
  const Sent kept_sent = route(kept, 100);
  const StepRef prefilled = run.take(kept_sent, 200);
  const Sent lost_answer = run.send(kCompletion, completion_of(lost), {InstanceId(kDecode), 900});
  run.turn(kDecode, 300, 10);
  const Sent gone_answer =
      run.send(kPrefillRefused, completion_of(gone, FinishReason::kFailed), prefilled);
  const Sent done = run.send(kDone, done_of(kept), prefilled);
  run.turn(kPrefill, 500, 10);
  const Sent kept_answer = decode(kept, done, 0);
  run.take(lost_answer, 2000);
  run.take(gone_answer, 2010);
  run.take(kept_answer, 2020);
  const RequestTracks shown = tracks();
  EXPECT_THAT(shown.faults, IsEmpty());
  EXPECT_THAT(shown.text(), HasSubstr(R"(request router:1
  request 10..2000
    router to decode 10..310
    answer 310..2000
request router:2
  request 10..2010
    router to prefill 10..510
    answer 510..2010
request router:3
  request 110..2020
    router 110..155
    prefill 155..510
)"));
  EXPECT_THAT(shown.facts("request", "router:1", "request"), HasSubstr(R"("session":7)"));
  EXPECT_THAT(shown.facts("request", "router:2", "request"), HasSubstr(R"("session":8)"));
  EXPECT_THAT(shown.facts("request", "router:3", "request"), HasSubstr(R"("session":9)"));
}

TEST_F(RequestTimeline, UnfinishedRequestsEndWithTheRecordAndSaySo) {
  act(complete(request_of(0, 7), 0), 1930);
  const Sent acting = act(complete(request_of(1, 8), 2000), 3930);
  run.take(acting, 4000);  // never observed
  prefill(request_of(2, 9), route(request_of(2, 9), 5000), 5000);
  route(request_of(3, 10), 6000);
  run.turn(kDecode, 7000);
  run.take(run.send(kGenerate, request_of(4, 11)), 8000);
  const RequestTracks shown = tracks();
  EXPECT_THAT(shown.faults, IsEmpty());
  EXPECT_EQ(shown.num_of("request", "request"), 5);
  EXPECT_THAT(shown.text(), HasSubstr(R"(request router:3
  request 5010..8000
    router 5010..5055
    prefill 5055..8000
)"));
  EXPECT_THAT(shown.facts("request", "router:3", "request"),
              HasSubstr(R"("end":"not in the record")"));
  EXPECT_THAT(shown.facts("request", "router:5", "request"),
              HasSubstr(R"("begin":"not in the record")"));
  EXPECT_EQ(shown.facts("rollout", "main/8", "environment"), R"({"end":"not in the record"})");
  EXPECT_THAT(shown.text(), HasSubstr("    environment 3940..8000\n"));
  EXPECT_THAT(shown.text(), Not(HasSubstr("rollout main/7\n  rollout 10..8000")))
      << "whether its action arrived is not known";
}

TEST_F(RequestTimeline, ATurnThatIsAskedAgainEndsTheLostOne) {
  run.store(kGenerate, true);  // as between two processes
  route(request_of(0, 7, 0), 0);
  run.take(complete(request_of(1, 7, 1), 1000), 2930);
  const RequestTracks shown = tracks();
  EXPECT_THAT(shown.faults, IsEmpty());
  EXPECT_THAT(shown.facts("request", "router:1", "request"), HasSubstr(R"("end":"asked again")"));
  EXPECT_THAT(shown.text(), HasSubstr("request router:1\n  request 10..1010\n"));
  EXPECT_THAT(shown.facts("request", "router:1", "request"), HasSubstr(R"("prompt_tokens":33)"));
}

TEST_F(RequestTimeline, ARequestThatIsAnsweredTwiceEndsOnce) {
  const GenerateRequest request = request_of(0);
  const Sent asked = run.send(kGenerate, request);
  run.turn(kRollout, 0, 10);
  const Sent sent = run.send(kToPrefill, request);
  const StepRef routed_at = run.take(asked, 50, 5);
  run.take(decode(request, prefill(request, sent, 0), 0), 1930);
  const Sent again =
      run.send(kRouterRefused, completion_of(request, FinishReason::kEngineLost), routed_at);
  run.turn(kRouter, 2000, 20);
  run.take(again, 2100);
  const RequestTracks shown = tracks();
  EXPECT_THAT(shown.faults, IsEmpty());
  EXPECT_EQ(shown.num_of("request", "request"), 1);
  EXPECT_THAT(shown.facts("request", "router:1", "request"), HasSubstr(R"("end":"stop")"));
}

TEST_F(RequestTimeline, OfARangeHasTheRequestsThatRunInIt) {
  run.take(complete(request_of(0, 7), 0), 1930);       // before the range
  const Sent early = complete(request_of(1, 8), 100);  // begins before, ends within
  run.take(early, 3000);
  const Sent late = complete(request_of(2, 9), 2500);  // begins within, ends after
  run.take(late, 9000);
  run.take(complete(request_of(3, 10), 8000), 9930);  // after the range
  const RequestTracks shown = tracks(2000, 5000);
  EXPECT_THAT(shown.faults, IsEmpty());
  EXPECT_EQ(shown.num_of("request", "request"), 2);
  EXPECT_THAT(shown.text(), HasSubstr("request router:2\n  request 110..3000\n"));
  EXPECT_THAT(shown.facts("request", "router:3", "request"),
              HasSubstr(R"("end":"not in the range")"));
}

TEST_F(RequestTimeline, AnotherMachinesClockNeverTurnsASpanAround) {
  for (const int64_t ahead_us : {-5000, 5000}) {
    SCOPED_TRACE(ahead_us);
    run = Conversation();
    run.catalog.processes = {"main", "engine"};
    run.catalog.groups[kPrefill].process = run.catalog.groups[kDecode].process = 1;
    const GenerateRequest request = request_of(0);
    const Sent sent = route(request, 10'000);
    const Sent done = prefill(request, sent, 10'000 + ahead_us);
    const Sent completion = decode(request, done, 10'000 + ahead_us);
    run.take(completion, 12'000);
    const TestFolder other;
    run.write(other.path());
    const auto trace = story::open_trace(other.path());
    ASSERT_NE(trace, nullptr);
    const RequestTracks shown = tracks_of(*trace, {});
    EXPECT_THAT(shown.faults, IsEmpty());
    EXPECT_EQ(shown.num_of("request", "request"), 1);
    EXPECT_THAT(shown.text(), HasSubstr("  request 10010..12000\n"));
    EXPECT_THAT(shown.facts("request", "router:1", "request"), HasSubstr(R"("end":"stop")"));
  }
}

TEST_F(RequestTimeline, MemoryIsBounded) {
  std::vector<Sent> sent;
  for (uint64_t i = 0; i < 5; ++i)
    sent.push_back(complete(request_of(i, 50 + i), static_cast<int64_t>(i)));
  for (uint64_t i = 0; i < 5; ++i) run.take(sent[i], 5000 + static_cast<int64_t>(i));
  run.write(folder.path());
  const auto trace = story::open_trace(folder.path());
  ASSERT_NE(trace, nullptr);
  const auto shown_with = [&](size_t requests_max, size_t rollouts_max) {
    std::string events;
    const Time forever = Time::from_nanoseconds(INT64_MAX);
    RequestSpans spans(
        *trace, {Time::from_nanoseconds(INT64_MIN), forever, requests_max, rollouts_max},
        [&](const std::string& event) { events += (events.empty() ? "" : ",") + event; });
    trace->visit(Time::from_nanoseconds(INT64_MIN), forever, [&](const TraceStep& step) {
      spans.see(step);
      return true;
    });
    spans.finish();
    return tracks_in("[" + events + "]");
  };
  const auto num_cut = [](const RequestTracks& shown) {
    int count = 0;
    for (uint64_t i = 1; i <= 5; ++i)
      count += shown.facts("request", fmt::format("router:{}", i), "request")
                   .find("not in the record") != std::string::npos;
    return count;
  };
  const RequestTracks enough = shown_with(5, 5);
  EXPECT_THAT(enough.faults, IsEmpty());
  EXPECT_EQ(num_cut(enough), 0);
  const RequestTracks few = shown_with(4, 5);
  EXPECT_THAT(few.faults, IsEmpty());
  EXPECT_EQ(few.num_of("request", "request"), 5);
  EXPECT_EQ(num_cut(few), 1) << "the oldest made room";
  const RequestTracks one_rollout = shown_with(5, 1);
  EXPECT_THAT(one_rollout.faults, IsEmpty());
  EXPECT_EQ(one_rollout.num_of("rollout", "rollout"), 5);
}

}  // namespace
}  // namespace primerl
