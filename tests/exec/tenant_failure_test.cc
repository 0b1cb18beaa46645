// Failures where several tenants share actors: a failure of one tenant ends only that tenant.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/exec/small_graph.h"

namespace primerl::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr TenantSlot kFirst(0), kSecond(1);

/// Sends 1, 2, ... alternately for two tenants: odd numbers for the first, even numbers for the
/// second.
std::function<Result<bool>(Puppet&)> counts_for_both(int64_t count) {
  return [count](Puppet& puppet) -> Result<bool> {
    if (puppet.count == count) {
      puppet.world().finish(kFirst);
      puppet.world().finish(kSecond);
      return false;
    }
    if (puppet.out.room() <= 0) return false;
    const int64_t value = ++puppet.count;
    puppet.out.send({.value = value, .bulk = {}}, for_tenant(value % 2 == 1 ? kFirst : kSecond));
    return true;
  };
}

/// source -> middle, where both tenants share the middle.
SmallGraph a_shared_line(NodeSetup middle, int64_t count = 8) {
  return a_line(std::move(middle), counts_for_both(count), 2);
}

/// A middle that fails on these numbers.
NodeSetup fails_at(std::set<int64_t> values, OnError on_error) {
  Strings strings;
  strings.on_in = [values = std::move(values)](Puppet&, const Number& number) -> Status {
    if (!values.contains(number.value)) return ok();
    return error(Code::kUnavailable, "no {} today", number.value);
  };
  return {.strings = std::move(strings), .on_error = on_error};
}

TEST(TenantFailure, AHandlerThatWouldStopTheRunSetsTheTenantOfItsMessageAside) {
  auto graph = a_shared_line(fails_at({4, 6}, OnError::kStop));
  SmallRun run(graph);
  const auto outcome = run->wait();
  ASSERT_EQ(outcome.end, RunEnd::kFailed);
  EXPECT_EQ(outcome.status.error().text(),
            "tenant 't1' was set aside: 'middle' (on_error = \"stop\"): no 4 today")
      << "the first reason counts";
  EXPECT_EQ(outcome.ledger[0].handled, 8U) << "the actor continues";
  EXPECT_EQ(outcome.ledger[0].failed, 2U);
}

TEST(TenantFailure, EachOfThemMayBeSetAside) {
  const Error why = failure_of(a_shared_line(fails_at({4, 5}, OnError::kStop)));
  EXPECT_THAT(why.text(), HasSubstr("tenant 't0' was set aside: "));
  EXPECT_THAT(why.text(), HasSubstr("tenant 't1' was set aside: "));
}

TEST(TenantFailure, WhereThereIsOneTenantTheRunStops) {
  EXPECT_EQ(failure_of(a_line(fails_at({4}, OnError::kStop), counts_to(6), 1)).message(),
            "node 'middle': 'middle' (on_error = \"stop\"): no 4 today");
}

TEST(TenantFailure, AStepWithoutAMessageBelongsToAllTenants) {
  Strings strings;
  strings.on_in = [](Puppet& puppet, const Number& number) {
    if (number.value == 4) puppet.world().set_timer("tick", Duration::seconds(1));
    return ok();
  };
  strings.on_tick = [](Puppet&) -> Status { return error(Code::kUnavailable, "no tick"); };
  // The source never finishes, so that the timer expires before the end.
  const auto graph =
      a_line({.strings = strings, .on_error = OnError::kStop}, counts_to(6, false), 2);
  EXPECT_EQ(failure_of(graph).message(), "node 'middle': 'middle' (on_error = \"stop\"): no tick");
}

TEST(TenantFailure, ALatestWinsValueBelongsToAllTenants) {
  auto middle = fails_at({4}, OnError::kStop);
  middle.contract = [](Contract& contract) {
    for (InputPort& port : contract.inputs) port.latest_wins = port.name == "in";
  };
  EXPECT_EQ(failure_of(a_shared_line(std::move(middle))).message(),
            "node 'middle': 'middle' (on_error = \"stop\"): no 4 today");
}

TEST(TenantFailure, ASharedActorThatFailsEndsTheRunWhateverTheTenantOfTheMessage) {
  Strings strings;
  strings.on_in = [](Puppet& puppet, const Number& number) -> Status {
    if (number.value != 4) return ok();
    puppet.world().stop_on_error();
    return error(Code::kUnavailable, "no 4 today");
  };
  EXPECT_EQ(failure_of(a_shared_line({.strings = strings, .on_error = OnError::kDrop})).message(),
            "node 'middle': 'middle' (it cannot continue): no 4 today");
}

/// Fails the second tenant at 3 and again at 5, in handlers that succeed.
NodeSetup names_the_second() {
  Strings strings;
  strings.on_in = [](Puppet& puppet, const Number& number) {
    if (number.value == 3 || number.value == 5)
      puppet.world().fail_tenant(kSecond,
                                 error(Code::kInvalid, "said at {}", number.value).note("a note"));
    return ok();
  };
  return {.strings = strings, .on_error = OnError::kDrop};
}

TEST(TenantFailure, AnActorFailsATenantAndContinues) {
  auto graph = a_shared_line(names_the_second());
  SmallRun run(graph);
  const auto outcome = run->wait();
  ASSERT_EQ(outcome.end, RunEnd::kFailed);
  EXPECT_EQ(outcome.status.error().text(),
            "tenant 't1' was set aside: 'middle': said at 3\n   a note");
  EXPECT_EQ(outcome.ledger[0].handled, 8U);
  EXPECT_EQ(outcome.ledger[0].failed, 0U);
  EXPECT_THAT(run.process_services.lines,
              Contains(HasSubstr("tenant 't1' is set aside, the others continue: 'middle': said")));
}

TEST(TenantFailure, TheFailureOfTheOnlyTenantEndsTheRun) {
  Strings strings;
  strings.on_in = [](Puppet& puppet, const Number&) {
    puppet.world().fail_tenant(kFirst, error(Code::kInvalid, "not this one"));
    return ok();
  };
  EXPECT_EQ(failure_of(a_line({.strings = strings}, counts_to(6), 1)).message(),
            "node 'middle': 'middle': not this one");
}

/// Only the tenant's own actors drain; the shared actor is not drained before the end.
TEST(TenantFailure, OnlyTheActorsOfTheFailedTenantDrain) {
  std::vector<std::string> drained;
  Strings own;
  own.on_drain = [&drained](Puppet& puppet) {
    drained.emplace_back(puppet.world().self_name());
    return ok();
  };
  SmallGraph graph(2);
  graph.node("source", {.strings = {.on_work = counts_for_both(8)}, .contract = make_source})
      .node("middle", names_the_second())
      .node("own", {.strings = own, .per_tenant = true})
      .edge("source.out", "middle.in");
  SmallRun run(graph);
  ASSERT_TRUE(run->run_until([&drained] { return !drained.empty(); }, 10'000));
  EXPECT_THAT(drained, ElementsAre("own.t1"));
  EXPECT_EQ(run->wait().end, RunEnd::kFailed);
  EXPECT_THAT(drained, ElementsAre("own.t1", "own.t0"));
}

TEST(TenantFailure, RestartsOfASharedActorAreCountedByTenant) {
  const auto run_with = [](std::set<int64_t> values, std::vector<int64_t>& counters) {
    auto middle = fails_at(std::move(values), OnError::kRestart);
    middle.restarts_max = 2;
    middle.contract = [](Contract& contract) { contract.is_restartable = true; };
    auto graph = a_shared_line(std::move(middle), 10);
    SmallRun run(graph);
    auto outcome = run->wait();
    EXPECT_EQ(outcome.ledger[0].handled, 10U);
    for (const auto& [name, value] : run->counters())
      if (name == "middle.restarts") counters.push_back(value);
    return outcome;
  };
  std::vector<int64_t> restarts;
  EXPECT_EQ(run_with({1, 2, 3, 4}, restarts).end, RunEnd::kFinished) << "two of each";
  const auto outcome = run_with({1, 2, 3, 4, 6, 8}, restarts);
  ASSERT_EQ(outcome.end, RunEnd::kFailed);
  EXPECT_EQ(outcome.status.error().text(),
            "tenant 't1' was set aside: 'middle' failed again after 2 restarts within 1m: no 6 "
            "today");
  EXPECT_THAT(restarts, ElementsAre(4, 6))
      << "it continues for the other tenant, restarted each time";
}

}  // namespace
}  // namespace primerl::testing
