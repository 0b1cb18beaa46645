// The actors of a group by themselves: timers, restarts, tenants, drains, commands, saved state.
#include "runtime/exec/group_actors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/exec/group_stage.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

Time at(int64_t seconds) { return Time() + Duration::seconds(seconds); }

/// Two actors of one group; the second has one instance per tenant if there are several.
struct Two {
  explicit Two(NodeSetup first = {}, NodeSetup second = {}, int num_tenants = 1)
      : graph(num_tenants) {
    first.group = second.group = "both";
    second.per_tenant = num_tenants > 1;
    graph.node("first", std::move(first)).node("second", std::move(second));
    stage = std::make_unique<GroupStage>(graph, "both");
    EXPECT_TRUE(stage->actors.start(Time()).ok());
  }
  GroupStage* operator->() const { return stage.get(); }
  GroupActors& actors() const { return stage->actors; }
  /// Applies at once the effects that a handler of `actor` asks for.
  void apply(uint32_t actor, const std::function<void(Puppet&)>& ask) {
    ask(stage->puppet(actor));
    actors().apply_effects(actors().running(actor));
  }
  /// A handler of `actor` fails at `now`.
  void fail(uint32_t actor, Time now) {
    actors().supervise(actors().running(actor), error(Code::kUnavailable, "no luck"), now);
  }
  SmallGraph graph;
  std::unique_ptr<GroupStage> stage;
};

NodeSetup restartable(int32_t restarts_max = 2) {
  NodeSetup setup;
  setup.contract = [](Contract& contract) { contract.is_restartable = true; };
  setup.on_error = OnError::kRestart;
  setup.restarts_max = restarts_max;
  return setup;
}

TEST(GroupActors, ATimerIsDueAtItsTimeAndNotBefore) {
  Two two;
  two.apply(0, [](Puppet& puppet) { puppet.world().set_timer("tick", Duration::seconds(3)); });
  two.apply(1, [](Puppet& puppet) { puppet.world().set_timer("tock", Duration::seconds(2)); });
  EXPECT_EQ(two.actors().next_timer(), at(2));
  EXPECT_FALSE(two.actors().wake(Time::from_nanoseconds(at(2).to_nanoseconds() - 1)));
  EXPECT_TRUE(two.actors().wake(at(2)));
  EXPECT_EQ(two.actors().next_timer(), at(3));
  EXPECT_FALSE(two.actors().wake(at(2)));
  EXPECT_EQ(two->links.inbox().size(), 1U);
}

TEST(GroupActors, AnExpiredTimerThatWasSetAgainIsNotCurrent) {
  Two two;
  const auto set = [](Puppet& puppet) { puppet.world().set_timer("tick", Duration::seconds(1)); };
  two.apply(0, set);
  ASSERT_TRUE(two.actors().wake(at(1)));
  const Input expired = two->links.inbox().take(Inbox::kPrompt);
  EXPECT_TRUE(two.actors().is_current(expired));
  two.apply(0, set);
  EXPECT_FALSE(two.actors().is_current(expired));
}

TEST(GroupActors, ARecordedTimerExpiresOnlyIfItIsArmed) {
  Two two;
  two.apply(0, [](Puppet& puppet) { puppet.world().set_timer("tock", Duration::seconds(9)); });
  EXPECT_FALSE(two.actors().expire(0, 0));
  EXPECT_TRUE(two.actors().expire(0, 1));
  EXPECT_FALSE(two.actors().expire(0, 1));
}

TEST(GroupActors, ARestartKeepsTheSnapshotAndCancelsTimers) {
  Two two(restartable());
  two->puppet().count = 5;
  two.actors().save_snapshot(0);
  two->puppet().count = 6;
  two.apply(0, [](Puppet& puppet) { puppet.world().set_timer("tick", Duration::seconds(3)); });
  const auto before = two.actors().share(0);
  two.fail(0, at(1));
  EXPECT_NE(&two.actors().running(0), before.get());
  EXPECT_EQ(two->puppet().count, 5);
  EXPECT_FALSE(two.actors().next_timer().has_value());
  EXPECT_EQ(two.actors().num_restarts().get(), 1U);
}

TEST(GroupActors, RestartsEndAtTheirBoundWithinTheWindow) {
  Two two(restartable(2));
  two.fail(0, at(0));
  two.fail(0, at(59));
  EXPECT_THAT(two->failures, IsEmpty());
  two.fail(0, at(60));  // the first restart no longer counts
  EXPECT_THAT(two->failures, IsEmpty());
  two.fail(0, at(61));
  ASSERT_THAT(two->failures, SizeIs(1));
  EXPECT_THAT(two->failures[0], HasSubstr("'first' failed again after 2 restarts within 1m"));
}

TEST(GroupActors, AnActorThatMayNotBeRestartedEndsTheRun) {
  NodeSetup setup;
  setup.on_error = OnError::kRestart;
  Two two(setup);
  two.fail(0, at(0));
  ASSERT_THAT(two->failures, SizeIs(1));
  EXPECT_THAT(two->failures[0], HasSubstr("its restart after an error failed"));
  EXPECT_THAT(two->failures[0], HasSubstr("its contract does not say so"));
}

TEST(GroupActors, DropAndStopDoWhatTheySay) {
  NodeSetup stops;
  stops.on_error = OnError::kStop;
  Two two({}, stops);
  two.fail(0, at(0));
  EXPECT_THAT(two->failures, IsEmpty());
  two.fail(1, at(0));
  EXPECT_THAT(two->failures, ElementsAre(HasSubstr("'second' (on_error = \"stop\"): no luck")));
}

TEST(GroupActors, AFailedTenantIsReportedOnceAndTheOthersContinue) {
  NodeSetup stops;
  stops.on_error = OnError::kStop;
  Two two({}, stops, 2);
  two.fail(2, at(0));  // the second tenant's instance
  two.fail(2, at(1));
  EXPECT_THAT(two->failures, IsEmpty());
  EXPECT_THAT(two->failed_tenants, ElementsAre(Pair(TenantSlot(1), HasSubstr("no luck"))));
  EXPECT_THAT(two->services.lines, ElementsAre(HasSubstr("tenant 't1' is set aside")));
}

TEST(GroupActors, EachActorDrainsOnceAndATenantsActorsAlone) {
  Two two({}, {}, 2);
  two.actors().set_aside(TenantSlot(1), at(0));
  EXPECT_EQ(two->links.inbox().size(), 1U);
  EXPECT_FALSE(two.actors().is_draining());
  two.actors().begin_drain(at(1));
  two.actors().begin_drain(at(2));
  EXPECT_EQ(two->links.inbox().size(), 3U);
  EXPECT_TRUE(two.actors().is_draining());
}

TEST(GroupActors, ABusyActorOfATenantThatWasSetAsideCountsAsIdle) {
  Strings busy;
  busy.is_idle = [](const Puppet&) { return false; };
  NodeSetup second;
  second.strings = busy;
  Two two({}, second, 2);
  EXPECT_FALSE(two.actors().are_idle());
  two.actors().set_aside(TenantSlot(0), at(0));
  EXPECT_FALSE(two.actors().are_idle());
  two.actors().set_aside(TenantSlot(1), at(0));
  EXPECT_TRUE(two.actors().are_idle());
}

TEST(GroupActors, ACommandBeyondTheBoundIsRefused) {
  SmallGraph graph;
  graph.node("one");
  GroupStage stage(graph, "one");
  ASSERT_TRUE(stage.actors.start(Time()).ok());
  const auto give = [&](uint64_t number) {
    stage.actors.command({number, {}, Payload::of(Number{1, {}})}, at(0));
  };
  for (uint64_t i = 1; i <= kCommandsMax; ++i) give(i);
  EXPECT_THAT(stage.answers, IsEmpty());
  give(kCommandsMax + 1);
  ASSERT_THAT(stage.answers, SizeIs(1));
  EXPECT_EQ(stage.answers[0].number, kCommandsMax + 1);
  EXPECT_EQ(stage.answers[0].status.error().code(), Code::kExhausted);
  stage.actors.command_begins();
  give(kCommandsMax + 2);
  EXPECT_THAT(stage.answers, SizeIs(1));
}

TEST(GroupActors, ARestoredActorHasItsTimersAndTenants) {
  Two two(restartable());
  two->puppet().count = 7;
  two.apply(0, [](Puppet& puppet) {
    puppet.world().set_timer("tick", Duration::seconds(3));
    puppet.world().finish(TenantSlot(0));
  });
  GroupState state;
  two.actors().save(state);
  Two other(restartable());
  ASSERT_TRUE(other.actors().restore_actors(state).ok());
  EXPECT_EQ(other->puppet().count, 7);
  EXPECT_EQ(other.actors().next_timer(), at(3));
  EXPECT_THAT(other->finished, IsEmpty());
  other.actors().restore_tenants(state);
  EXPECT_THAT(other->finished, ElementsAre(TenantSlot(0)));
}

}  // namespace
}  // namespace primerl::testing
