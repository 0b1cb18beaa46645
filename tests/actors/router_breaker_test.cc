// Engines that fail their requests, in the router: work moves to other engines and never stops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/router/router.h"
#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr InstanceId kA(10), kB(11);
constexpr Duration kMoment = Duration::milliseconds(1);

struct RouterBreakerStory : ::testing::Test {
  explicit RouterBreakerStory(const std::string& policy = "sticky_least_loaded")
      : router({.policy = policy}) {
    router.set_targets("prefill", {kA, kB});
    router.set_targets("abort", {kA, kB});
    for (const InstanceId engine : {kA, kB}) {
      loads[engine].engine = engine;
      loads[engine].num_room = 1000;
      CHECK(loads[engine].applied.set({TenantSlot(0)}, PolicyVersion(0)), "too many keys");
    }
  }
  void ready() {
    for (const InstanceId engine : {kA, kB}) tell(engine);
  }
  void tell(InstanceId engine) { ASSERT_TRUE(router.give("load", loads[engine]).ok()); }
  /// The engine ends all its requests, `num_failed` of them as failed.
  void end_all(InstanceId engine, uint64_t num_failed) {
    EngineLoad& load = loads[engine];
    const uint64_t num_ended = num_owed[engine];
    load.num_received += num_ended;
    load.num_finished += num_ended;
    load.num_failed += num_failed;
    load.num_completed += num_ended - num_failed;
    num_owed[engine] = 0;
    tell(engine);
  }
  /// Opens the breaker of an engine by faults that other requests caused.
  void fail(InstanceId engine) {
    loads[engine].num_failed += CircuitBreaker::kFaultsToOpen;
    tell(engine);
  }
  void ask(uint64_t session, uint32_t attempt = 0) {
    GenerateRequest request;
    request.attempt = attempt;
    request.request = next_request_++;
    request.session = session;
    request.version = PolicyVersion(0);
    request.prompt_tokens = {1, 2, 3};
    EXPECT_TRUE(router.give("generate", request, rollout).ok());
  }
  /// The engines that got requests since the last call.
  std::vector<InstanceId> sent() {
    auto targets = router.targets_of("prefill");
    router.forget_sent();
    for (const InstanceId engine : targets) ++num_owed[engine];
    return targets;
  }
  std::vector<InstanceId> ask_many(uint64_t from, uint64_t to) {
    for (uint64_t session = from; session < to; ++session) ask(session);
    return sent();
  }
  void advance(Duration duration) { ASSERT_TRUE(router.advance(duration).ok()); }

  Given rollout{.tenant = TenantSlot(0), .sender = InstanceId(3), .origin = InstanceId(3)};
  std::map<InstanceId, EngineLoad> loads;
  std::map<InstanceId, uint64_t> num_owed;
  NodeRunner<Router> router;
  uint64_t next_request_ = 1;
};

TEST_F(RouterBreakerStory, WorkMovesFromAnEngineThatFailsAndComesBack) {
  ready();
  ask_many(0, 20);
  end_all(kA, 9);
  EXPECT_THAT(ask_many(100, 110), Contains(kA)) << "nine faults and a good end";
  fail(kA);
  EXPECT_EQ(router.counter("breakers_opened"), 1);
  ASSERT_THAT(router.log(), SizeIs(1));
  EXPECT_THAT(router.log()[0], AllOf(HasSubstr("warning"), HasSubstr("instance 10")));
  EXPECT_THAT(ask_many(200, 220), Each(kB));
  advance(CircuitBreaker::kOpenFor - kMoment);
  EXPECT_THAT(ask_many(300, 310), Each(kB));
  end_all(kA, 0);  // its earlier requests
  end_all(kB, 0);
  EXPECT_THAT(ask_many(400, 410), Each(kB));
  advance(kMoment);
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_THAT(ask_many(500 + i * 10, 510 + i * 10), Contains(kA).Times(1)) << "one at a time";
    EXPECT_THAT(ask_many(600 + i * 10, 610 + i * 10), Each(kB));
    EXPECT_EQ(router.counter("breakers_closed"), 0);
    end_all(kA, 0);
  }
  EXPECT_EQ(router.counter("breakers_closed"), 1);
  ASSERT_THAT(router.log(), SizeIs(2));
  EXPECT_THAT(router.log()[1], AllOf(HasSubstr("warning"), HasSubstr("in a row")));
  EXPECT_THAT(ask_many(700, 720), Contains(kA).Times(::testing::Gt(5)));
}

TEST_F(RouterBreakerStory, AFaultOfTheTrialRequestOpensItAgain) {
  ready();
  fail(kA);
  advance(CircuitBreaker::kOpenFor);
  EXPECT_THAT(ask_many(0, 10), Contains(kA).Times(1));
  end_all(kA, 1);
  EXPECT_EQ(router.counter("breakers_opened"), 2);
  advance(CircuitBreaker::kOpenFor - kMoment);
  EXPECT_THAT(ask_many(10, 20), Each(kB));
  advance(kMoment);
  EXPECT_THAT(ask_many(20, 30), Contains(kA).Times(1));
}

TEST_F(RouterBreakerStory, WhereAllEnginesFailAllAreUsed) {
  ready();
  fail(kA);
  EXPECT_THAT(ask_many(0, 10), Each(kB));
  fail(kB);
  EXPECT_THAT(ask_many(10, 30), AllOf(Contains(kA), Contains(kB), SizeIs(20)));
  advance(CircuitBreaker::kOpenFor);
  EXPECT_THAT(ask_many(30, 50), AllOf(Contains(kA), Contains(kB), SizeIs(20)))
      << "half-open ones as well";
  // The engine that answers gets everything.
  end_all(kB, 0);
  EXPECT_EQ(router.counter("breakers_closed"), 1);
  EXPECT_THAT(ask_many(50, 70), Each(kB));
}

TEST_F(RouterBreakerStory, AnEngineThatFailsServesWhatNoOtherCanServe) {
  ready();
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kDown, kB, 1}).ok());
  fail(kA);
  EXPECT_THAT(ask_many(0, 10), AllOf(Each(kA), SizeIs(10))) << "the other is down";
  loads[kB].applied = {};
  tell(kB);
  EXPECT_THAT(ask_many(10, 20), AllOf(Each(kA), SizeIs(10))) << "the other has no weights";
  CHECK(loads[kB].applied.set({TenantSlot(0)}, PolicyVersion(0)), "too many keys");
  tell(kB);
  EXPECT_THAT(ask_many(20, 30), Each(kB));
}

TEST_F(RouterBreakerStory, ASessionLeavesTheEngineThatFailsItsTurns) {
  ready();
  for (uint64_t session = 0; session < 10; ++session) ask(session);
  const auto homes = sent();
  ASSERT_THAT(homes, Contains(kA));
  fail(kA);
  EXPECT_THAT(ask_many(0, 10), Each(kB));
}

TEST_F(RouterBreakerStory, ItsOpenRequestsStayAndAreAnsweredWhenItDies) {
  ready();
  EXPECT_THAT(ask_many(0, 10), Contains(kA).Times(5));
  fail(kA);
  EXPECT_THAT(router.sent<Completion>("refused"), IsEmpty());
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kDown, kA, 1}).ok());
  EXPECT_THAT(router.sent<Completion>("refused"), SizeIs(5));
}

TEST_F(RouterBreakerStory, ARestartedEngineBeginsWithAClosedBreaker) {
  ready();
  fail(kA);
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kDown, kA, 1}).ok());
  ASSERT_TRUE(router.peer({PeerEvent::Kind::kUp, kA, 2}).ok());
  loads[kA].num_failed = 0;
  tell(kA);
  EXPECT_THAT(ask_many(0, 10), Contains(kA).Times(5));
}

TEST_F(RouterBreakerStory, WaitingRequestsAreSentWhenABreakerHalfOpens) {
  ready();
  fail(kA);
  loads[kB].num_room = 0;  // works, but has no free space
  tell(kB);
  EXPECT_THAT(ask_many(0, 3), IsEmpty());
  advance(CircuitBreaker::kOpenFor - kMoment);
  EXPECT_THAT(sent(), IsEmpty());
  advance(kMoment);
  EXPECT_THAT(sent(), ElementsAre(kA));
  end_all(kA, 0);
  EXPECT_THAT(sent(), ElementsAre(kA)) << "the next";
  EXPECT_FALSE(router.idle());
}

TEST_F(RouterBreakerStory, ACancelledTrialIsFollowedByAnother) {
  ready();
  fail(kA);
  advance(CircuitBreaker::kOpenFor);
  EXPECT_THAT(ask_many(0, 10), Contains(kA).Times(1));
  // It ended neither as failed nor as requested.
  ++loads[kA].num_received;
  ++loads[kA].num_finished;
  tell(kA);
  EXPECT_THAT(ask_many(10, 20), Contains(kA).Times(1));
  EXPECT_EQ(router.counter("breakers_opened") + router.counter("breakers_closed"), 1);
}

/// A policy that gives each session one engine.
struct HashedBreakerStory : RouterBreakerStory {
  HashedBreakerStory() : RouterBreakerStory("consistent_hash") {}
  std::vector<uint64_t> sessions_of(InstanceId engine) {
    std::vector<uint64_t> sessions;
    for (uint64_t session = 0; session < 40; ++session) {
      ask(session);
      if (sent().front() == engine) sessions.push_back(session);
    }
    return sessions;
  }
};

TEST_F(HashedBreakerStory, ItsSessionsAndWaitingRequestsGoElsewhere) {
  ready();
  const auto of_a = sessions_of(kA);
  ASSERT_THAT(of_a, SizeIs(::testing::Gt(5U)));
  loads[kA].num_room = 0;
  tell(kA);
  for (const uint64_t session : of_a) ask(session);
  EXPECT_THAT(sent(), IsEmpty()) << "they wait for their engine";
  fail(kA);
  for (int i = 0; i < 100; ++i) advance(kMoment);
  EXPECT_THAT(sent(), AllOf(Each(kB), SizeIs(of_a.size())));
  for (const uint64_t session : of_a) ask(session);
  EXPECT_THAT(sent(), AllOf(Each(kB), SizeIs(of_a.size())));
}

TEST_F(HashedBreakerStory, HalfOpenItGetsOneOfItsSessionsAndTheOthersDoNotWait) {
  ready();
  const auto of_a = sessions_of(kA);
  fail(kA);
  end_all(kA, 0);
  advance(CircuitBreaker::kOpenFor);
  for (uint64_t i = 0; i < 3; ++i) {
    for (const uint64_t session : of_a) ask(session);
    EXPECT_THAT(sent(), AllOf(SizeIs(of_a.size()), Contains(kA).Times(1)));
    end_all(kA, 0);
  }
  EXPECT_EQ(router.counter("breakers_closed"), 1);
  EXPECT_EQ(sessions_of(kA), of_a) << "as before";
}

TEST_F(HashedBreakerStory, WaitingRequestsOfAHalfOpenEngineGoElsewhere) {
  ready();
  const auto of_a = sessions_of(kA);
  for (const InstanceId engine : {kA, kB}) loads[engine].num_room = 0;
  fail(kA);
  tell(kB);
  for (const uint64_t session : of_a) ask(session);
  EXPECT_THAT(sent(), IsEmpty());
  end_all(kA, 0);
  advance(CircuitBreaker::kOpenFor);
  for (const InstanceId engine : {kA, kB}) loads[engine].num_room = 1000;
  ready();
  for (int i = 0; i < 100; ++i) advance(kMoment);
  EXPECT_THAT(sent(), AllOf(SizeIs(of_a.size()), Contains(kA).Times(1)));
}

TEST_F(HashedBreakerStory, WhereAllEnginesFailSessionsKeepTheirs) {
  ready();
  const auto of_a = sessions_of(kA);
  fail(kA);
  fail(kB);
  EXPECT_EQ(sessions_of(kA), of_a);
  advance(CircuitBreaker::kOpenFor);
  EXPECT_EQ(sessions_of(kA), of_a);
}

TEST_F(RouterBreakerStory, ALaterAttemptAvoidsTheEngineOfTheOneBefore) {
  ready();
  ask(1);
  const auto first = sent();
  ASSERT_THAT(first, SizeIs(1));
  const InstanceId other = first[0] == kA ? kB : kA;
  ask(1);
  EXPECT_EQ(sent(), first) << "the same attempt stays where its session is";
  ask(1, 1);
  EXPECT_THAT(sent(), ElementsAre(other)) << "although the first has the session's tokens";
  ask(1, 1);
  EXPECT_THAT(sent(), ElementsAre(other));
  ask(1, 2);
  EXPECT_EQ(sent(), first);
}

TEST_F(RouterBreakerStory, ALaterAttemptGoesToTheSameEngineWhereThereIsNoOther) {
  tell(kA);
  ask(1);
  ask(1, 1);
  ask(1, 2);
  EXPECT_THAT(sent(), ElementsAre(kA, kA, kA));
}

}  // namespace
}  // namespace primerl
