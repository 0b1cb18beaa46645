// Every interleaving of a small tenant: groups finish in any order, as trained or lost, and
// versions and the trainer's answers arrive late. The run must always make progress, and no stale
// group may train.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>
#include <tuple>
#include <vector>

#include "actors/rollout/gate.h"

namespace primerl {
namespace {

struct Model {
  GateLimits limits;
  int64_t steps = 3;       // batches until the end
  int64_t losses_max = 2;  // most groups that end without training
};

struct State {
  GateCounts counts;            // as the rollout knows them
  int64_t depth = 0;            // decided by the pace
  int64_t live = 0;             // version that the rollout opens under
  int64_t made = 0;             // version that the trainer made
  int64_t known = 0;            // made, as the rollout knows it
  int64_t losses = 0;           // lost groups so far
  int64_t lost_told = 0;        // ends of lost groups that the rollout has not received yet
  std::vector<int64_t> flight;  // versions, sorted
  std::vector<int64_t> pool;    // versions, sorted

  auto tied() const {
    return std::tie(counts.opened, counts.delivered, counts.lost, depth, live, made, known, losses,
                    lost_told, flight, pool);
  }
  friend bool operator<(const State& a, const State& b) { return a.tied() < b.tied(); }
};

bool fits(int64_t made, int64_t version, const Model& model) {
  return can_train(PolicyVersion(made), PolicyVersion(version), model.limits.max_off_policy_steps);
}

/// Drops the groups that the rollout drops once it knows `known`.
void drop_stale(State& state, const Model& model) {
  const auto stale = [&](int64_t version) { return !fits(state.known, version, model); };
  const auto count = std::count_if(state.flight.begin(), state.flight.end(), stale);
  std::erase_if(state.flight, stale);
  state.counts.delivered += count;
  state.counts.lost += count;
}

void insert_sorted(std::vector<int64_t>& versions, int64_t version) {
  versions.insert(std::upper_bound(versions.begin(), versions.end(), version), version);
}

/// For every depth within the limits of the pace, some next state must exist.
void add_with_any_depth(State state, const Model& model, std::vector<State>& next) {
  for (state.depth = model.limits.depth_min(); state.depth <= model.limits.depth_max();
       ++state.depth)
    next.push_back(state);
}

std::vector<State> successors(const State& state, const Model& model) {
  std::vector<State> next;
  GateCounts counts = state.counts;
  counts.inflight = static_cast<int64_t>(state.flight.size()) * model.limits.group_size;
  if (ask_gate(model.limits, counts, state.depth, PolicyVersion(state.live)) == GateAnswer::kOpen) {
    State after = state;
    ++after.counts.opened;
    // The hard limit, for any pace.
    EXPECT_LE(after.counts.opened - after.counts.lost,
              (state.live + 1 + model.limits.max_off_policy_steps) * model.limits.groups_per_batch);
    insert_sorted(after.flight, state.live);
    next.push_back(after);
  }
  for (size_t i = 0; i < state.flight.size(); ++i) {
    if (i > 0 && state.flight[i] == state.flight[i - 1]) continue;
    State after = state;
    const int64_t version = state.flight[i];
    after.flight.erase(after.flight.begin() + static_cast<std::ptrdiff_t>(i));
    ++after.counts.delivered;
    if (state.losses < model.losses_max) {  // filtered or failed
      State bad = after;
      ++bad.losses;
      ++bad.lost_told;
      next.push_back(bad);
    }
    if (fits(state.made, version, model))
      insert_sorted(after.pool, version);
    else
      ++after.lost_told;
    next.push_back(after);
  }
  const auto groups = static_cast<size_t>(model.limits.groups_per_batch);
  if (state.made < model.steps && state.pool.size() >= groups) {
    State after = state;
    for (size_t i = 0; i < groups; ++i) {
      EXPECT_LE(staleness(PolicyVersion(state.made + 1), PolicyVersion(after.pool.front())),
                model.limits.max_off_policy_steps);
      after.pool.erase(after.pool.begin());
    }
    ++after.made;
    const auto stale = [&](int64_t version) { return !fits(after.made, version, model); };
    after.lost_told += std::count_if(after.pool.begin(), after.pool.end(), stale);
    std::erase_if(after.pool, stale);
    next.push_back(after);
  }
  if (state.lost_told > 0) {
    State after = state;
    --after.lost_told;
    ++after.counts.lost;
    next.push_back(after);
  }
  if (state.known < state.made) {  // the ends of the trained groups arrive
    State after = state;
    after.known = state.made;
    drop_stale(after, model);
    add_with_any_depth(after, model, next);
  }
  if (state.live < state.made) {  // PolicyLive of the newest version arrives
    State after = state;
    after.live = state.made;
    after.known = std::max(after.known, after.live);
    drop_stale(after, model);
    add_with_any_depth(after, model, next);
  }
  return next;
}

/// The number of states; fails on a state without successors before the end.
size_t explore(const Model& model) {
  State first;
  first.depth = model.limits.depth_min();
  std::set<State> seen{first};
  std::deque<State> open{first};
  while (!open.empty()) {
    const State state = open.front();
    open.pop_front();
    const auto next = successors(state, model);
    if (next.empty() && state.made < model.steps) {
      ADD_FAILURE() << "stands still at version " << state.made << ", live " << state.live
                    << ", opened " << state.counts.opened << ", delivered "
                    << state.counts.delivered << ", lost " << state.counts.lost << ", pool "
                    << state.pool.size();
      return seen.size();
    }
    for (const State& after : next)
      if (seen.insert(after).second) open.push_back(after);
  }
  return seen.size();
}

struct GateModel : ::testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

TEST_P(GateModel, AlwaysMakesProgress) {
  const auto [max_off_policy, groups, inflight_groups] = GetParam();
  Model model;
  model.limits = {groups, max_off_policy, 4, inflight_groups * 4};
  EXPECT_GT(explore(model), 20U);
}

INSTANTIATE_TEST_SUITE_P(SmallTenants, GateModel,
                         ::testing::Combine(::testing::Values(0, 1, 2, 3), ::testing::Values(1, 2),
                                            ::testing::Values(1, 2, 4)));

TEST(GateModelControl, LosingTheEndsOfLostGroupsBlocks) {
  // The negative control: without GroupEnded, a lost group is never replaced.
  Model model;
  model.limits = {2, 0, 4, 16};
  State state;
  state.depth = model.limits.depth_min();
  state.losses = model.losses_max;
  for (int i = 0; i < 2; ++i) {
    const auto opened = successors(state, model);
    ASSERT_FALSE(opened.empty());
    state = opened.front();
  }
  state.flight.clear();
  state.counts.delivered = 2;  // both were filtered, and the rollout does not know
  EXPECT_TRUE(successors(state, model).empty());
}

}  // namespace
}  // namespace primerl
