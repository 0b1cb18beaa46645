// Tenants that join and leave a graph with four slots while another one trains (hosted_world.h).
//
// PRIMERL_SEED runs one seed; PRIMERL_SIM_SEEDS=20 is a shorter test. PRIMERL_HOSTED_JOINS=10000 is
// the number of guests of the long world.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "tests/sim/hosted_world.h"

namespace primerl::sim {
namespace {

/// The first hundred at most, unless PRIMERL_SIM_SEEDS says otherwise.
std::pair<uint64_t, uint64_t> seeds(uint64_t most) {
  const char* one = std::getenv("PRIMERL_SEED");
  if (one != nullptr) return {std::strtoull(one, nullptr, 10), std::strtoull(one, nullptr, 10)};
  const char* few = std::getenv("PRIMERL_SIM_SEEDS");
  return {1, std::min<uint64_t>(most, few == nullptr ? 100 : std::strtoull(few, nullptr, 10))};
}

struct Totals {
  int64_t num_started = 0, num_faults = 0, num_guest_rollouts = 0, num_remade = 0, num_set = 0;
};

/// Runs the seeds: the tenant that stays has what it has alone, and nothing is left of the others.
Totals expect_guests_change_nothing(Guests guests, uint64_t most) {
  Totals totals;
  const CheckedGraph graph = hosted_graph();
  EXPECT_NE(graph.plan, nullptr);
  if (graph.plan == nullptr) return totals;
  const auto [first, last] = seeds(most);
  for (uint64_t seed = first; seed <= last && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("PRIMERL_SEED={}", seed));
    const HostedResult alone = run_hosted(graph, {.seed = seed, .guests = Guests::kNone});
    const HostedResult beside = run_hosted(graph, {.seed = seed, .guests = guests});
    EXPECT_THAT(beside.faults, ::testing::IsEmpty());
    EXPECT_EQ(beside.outcome.end, RunEnd::kInterrupted)
        << (beside.outcome.status.ok() ? beside.outcome.stall.text()
                                       : beside.outcome.status.error().text());
    for (const auto& edge : beside.outcome.ledger) {
      EXPECT_TRUE(edge.balances());
      EXPECT_EQ(edge.in_flight, 0U);
    }
    EXPECT_FALSE(alone.stayer.metrics.empty());
    EXPECT_EQ(beside.stayer, alone.stayer);
    totals.num_started += beside.num_started;
    totals.num_faults += beside.num_faults;
    totals.num_guest_rollouts += beside.num_trained - std::ssize(beside.stayer.rollouts);
    totals.num_remade += beside.num_remade;
    totals.num_set += beside.num_set;
  }
  return totals;
}

TEST(Hosted, GuestsChangeNothingForTheOneWhoStays) {
  const Totals totals = expect_guests_change_nothing(Guests::kPlain, 200);
  EXPECT_GT(totals.num_started, 0);
  EXPECT_GT(totals.num_guest_rollouts, 0);
  EXPECT_GT(totals.num_set, 0);
}

/// A limit changes when rollouts are made, and no number of them.
TEST(Hosted, ALimitOfTokensASecondMakesARunLongerAndChangesNoBit) {
  const HostedCase one = {.seed = 1, .guests = Guests::kNone};
  const HostedResult free = run_hosted(hosted_graph(), one);
  const CheckedGraph graph = hosted_graph(12, {"graph.tenant_limits.tokens_per_second=20"});
  const HostedResult limited = run_hosted(graph, one), again = run_hosted(graph, one);
  EXPECT_EQ(limited.stayer, free.stayer);
  EXPECT_EQ(limited.lasted, again.lasted) << "it waits by the run's own clock";
  // Each of the 12 steps has at least two rollouts with a prompt and a token.
  EXPECT_GT(limited.lasted, Duration::seconds(2));
  EXPECT_LT(free.lasted * 2, limited.lasted);
}

TEST(Hosted, NorDoTheirFaults) {
  const Totals totals = expect_guests_change_nothing(Guests::kFaulty, 200);
  EXPECT_GT(totals.num_started, 0);
  EXPECT_GT(totals.num_faults, 0);
}

/// Groups are made anew from their saved state at random moments.
TEST(Hosted, SavedGroupsHaveTheirGuests) {
  const Totals totals = expect_guests_change_nothing(Guests::kRemakes, 20);
  EXPECT_GT(totals.num_started, 0);
  EXPECT_GT(totals.num_remade, 0);
}

/// Joins in one world: PRIMERL_HOSTED_JOINS, or so many.
int64_t num_joins() {
  const char* const wanted = std::getenv("PRIMERL_HOSTED_JOINS");
  return wanted == nullptr ? 60 : std::strtoll(wanted, nullptr, 10);
}

/// Guests may fail, pause and be removed; groups are made anew meanwhile. A rest of one may stay
/// for each slot, but not for each guest.
TEST(Hosted, NothingIsLeftOfManyGuests) {
  constexpr uint64_t kRestsMax = 16;
  // A guest with a lost message drains until its deadline.
  const CheckedGraph graph = hosted_graph(1'000'000'000, {"graph.drain_max=\"2s\""});
  ASSERT_NE(graph.plan, nullptr);
  const int64_t joins = num_joins();
  const HostedResult beside =
      run_hosted(graph, {.seed = 7, .guests = Guests::kAll, .joins_max = joins});
  EXPECT_THAT(beside.faults, ::testing::IsEmpty());
  EXPECT_EQ(beside.num_left, joins);
  EXPECT_GT(beside.num_faults, 0);
  EXPECT_GT(beside.num_remade, 0);
  EXPECT_GT(beside.num_pauses, 0);
  EXPECT_GT(beside.num_trained, std::ssize(beside.stayer.rollouts)) << "guests train too";
  const size_t steps = beside.stayer.metrics.size();
  const HostedResult alone =
      run_hosted(graph, {.seed = 7, .guests = Guests::kNone, .steps_max = steps});
  const size_t common = std::min(steps, alone.stayer.metrics.size());
  ASSERT_GT(common, 0U);
  for (size_t i = 0; i < common; ++i)
    ASSERT_EQ(beside.stayer.metrics[i], alone.stayer.metrics[i]) << "step " << i + 1;
  for (const auto& [what, count] : beside.census) {
    const auto without = alone.census.find(what);
    EXPECT_LE(count, (without == alone.census.end() ? 0 : without->second) + kRestsMax)
        << what << " after " << joins << " guests";
  }
}

}  // namespace
}  // namespace primerl::sim
