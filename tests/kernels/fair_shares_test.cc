// An engine or a learner shared by several tenants: tokens in the proportion of their shares.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "graph/base/fair_shares.h"
#include "graph/base/random.h"
#include "kernels/train/learner_turns.h"
#include "tests/kernels/scheduler_steps.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(FairShares, ServeWhoHasHadTheLeastForItsShare) {
  FairShares shares({0.75, 0.25});
  shares.enter(TenantSlot(0));
  shares.enter(TenantSlot(1));
  std::vector<int64_t> tokens(2);
  RandomStream random(3);
  for (int i = 0; i < 10'000; ++i) {
    const uint32_t next = shares.served(TenantSlot(0)) <= shares.served(TenantSlot(1)) ? 0 : 1;
    const auto num_tokens = static_cast<int64_t>(1 + random.below(100));
    shares.charge(TenantSlot(next), num_tokens);
    tokens[next] += num_tokens;
  }
  EXPECT_NEAR(static_cast<double>(tokens[0]) / static_cast<double>(tokens[1]), 3, 0.01);
}

TEST(FairShares, AShareThatIsSetCountsFromThenOn) {
  FairShares shares({0.75, 0.25});
  shares.enter(TenantSlot(0));
  shares.enter(TenantSlot(1));
  const auto serve = [&shares] {
    std::vector<int64_t> tokens(2);
    for (int i = 0; i < 10'000; ++i) {
      const uint32_t next = shares.served(TenantSlot(0)) <= shares.served(TenantSlot(1)) ? 0 : 1;
      shares.charge(TenantSlot(next), 10);
      tokens[next] += 10;
    }
    return static_cast<double>(tokens[0]) / static_cast<double>(tokens[1]);
  };
  EXPECT_NEAR(serve(), 3, 0.01);
  shares.set_share(TenantSlot(0), 0.25);
  EXPECT_NEAR(serve(), 1, 0.01) << "what it was served before stays paid";
}

TEST(FairShares, ALaterTenantOfASlotDoesNotPayForTheEarlierOne) {
  FairShares shares({0.5, 0.5});
  const TenantSlot stays(0), comes(1);
  shares.enter(stays);
  shares.enter(comes);
  shares.charge(comes, 1000);
  shares.leave(comes);
  shares.forget(comes);
  shares.forget(TenantSlot(7));
  EXPECT_EQ(shares.served(comes), 0);
  shares.enter(comes);
  EXPECT_EQ(shares.served(comes), shares.served(stays));
}

TEST(LearnerTurns, ForgetWhoHasLeftWithItsTokens) {
  LearnerTurns turns({0.5, 0.5}, 100);
  const TenantSlot comes(0), stays(1);
  uint64_t work_call = 0;
  const auto train = [&](TenantSlot tenant, int64_t num_tokens) {
    while (turns.ask(tenant, num_tokens, work_call++).empty()) ASSERT_LT(work_call, 100U);
  };
  train(stays, 100);
  train(comes, 1000);
  turns.forget(comes);
  turns.forget(TenantSlot(7));
  for (std::vector<TenantSlot> chosen; chosen.empty(); ++work_call) {
    ASSERT_LT(work_call, 100U);
    chosen = turns.ask(comes, 80, work_call);
    turns.ask(stays, 80, work_call);
    if (chosen.empty()) continue;
    EXPECT_THAT(chosen, ElementsAre(comes)) << "the earlier tenant's tokens are not its own";
  }
}

TEST(FairShares, WhoComesBackIsOwedNothing) {
  FairShares shares({0.5, 0.5});
  shares.enter(TenantSlot(0));
  shares.charge(TenantSlot(0), 1000);
  shares.enter(TenantSlot(1));
  EXPECT_EQ(shares.served(TenantSlot(1)), shares.served(TenantSlot(0)));
  shares.charge(TenantSlot(1), 10);
  shares.leave(TenantSlot(0));
  shares.charge(TenantSlot(1), 5000);
  shares.leave(TenantSlot(1));
  shares.enter(TenantSlot(0));
  EXPECT_EQ(shares.served(TenantSlot(0)), shares.served(TenantSlot(1)))
      << "equal to the tenant that was served most, though no other is present now";
}

/// A tenant with one piece of work at a time comes and goes: its past service is not forgotten when
/// it returns.
TEST(FairShares, LeavingAndReturningDoesNotResetService) {
  FairShares shares({0.5, 0.5});
  std::vector<int64_t> tokens(2);
  shares.enter(TenantSlot(0));
  for (int i = 0; i < 10'000; ++i) {
    shares.enter(TenantSlot(1));
    const uint32_t next = shares.served(TenantSlot(1)) <= shares.served(TenantSlot(0)) ? 1 : 0;
    shares.charge(TenantSlot(next), 200);
    tokens[next] += 200;
    shares.leave(TenantSlot(1));
  }
  EXPECT_NEAR(static_cast<double>(tokens[1]) / static_cast<double>(tokens[0]), 1, 0.01);
}

/// Simulates trainers: all ask in every work call, in varying order, until they train. `has_batch`
/// says when a trainer has a batch. Records tokens and passes of each.
struct TrainedInTurns {
  std::vector<int64_t> tokens;
  int64_t num_passes = 0;
  int64_t num_shared = 0;  // with several tenants
};
template <class HasBatch>
TrainedInTurns train_in_turns(const std::vector<double>& shares,
                              const std::vector<int64_t>& batches, int64_t tokens_max,
                              uint64_t num_turns, const HasBatch& has_batch) {
  LearnerTurns turns(shares, tokens_max);
  TrainedInTurns trained;
  trained.tokens.resize(shares.size());
  RandomStream random(11);
  for (uint64_t turn = 1; turn <= num_turns; ++turn) {
    std::set<TenantSlot> told;
    bool has_passed = false;
    const uint64_t first = random.below(shares.size());
    for (size_t i = 0; i < shares.size(); ++i) {
      const TenantSlot tenant(static_cast<uint32_t>((first + i) % shares.size()));
      if (told.erase(tenant) > 0) continue;
      if (!has_batch(tenant.index(), turn)) {
        turns.leave(tenant);
        continue;
      }
      const auto pass = turns.ask(tenant, batches[tenant.index()], turn);
      if (pass.empty()) continue;
      EXPECT_FALSE(has_passed) << "a work call has one pass";
      has_passed = true;
      ++trained.num_passes;
      trained.num_shared += pass.size() > 1 ? 1 : 0;
      int64_t num_tokens = 0;
      for (const TenantSlot each : pass) {
        num_tokens += batches[each.index()];
        trained.tokens[each.index()] += batches[each.index()];
        EXPECT_TRUE(each == tenant || told.insert(each).second);
      }
      EXPECT_TRUE(pass.size() == 1 || num_tokens <= tokens_max);
    }
    EXPECT_TRUE(told.empty())
        << "a tenant that trained has already asked in this work call, or did not ask";
  }
  return trained;
}
bool always(size_t, uint64_t) { return true; }

TEST(LearnerTurns, AreKeptInTokensWhateverTheBatchesAre) {
  for (const int64_t tokens_max : {1, 400, 4096}) {
    const auto trained =
        train_in_turns({0.6, 0.3, 0.1}, {64, 1024, 300}, tokens_max, 100'000, always);
    const auto& tokens = trained.tokens;
    const auto all = static_cast<double>(tokens[0] + tokens[1] + tokens[2]);
    EXPECT_NEAR(static_cast<double>(tokens[0]) / all, 0.6, 0.01) << tokens_max;
    EXPECT_NEAR(static_cast<double>(tokens[1]) / all, 0.3, 0.01) << tokens_max;
    EXPECT_NEAR(static_cast<double>(tokens[2]) / all, 0.1, 0.01) << tokens_max;
    EXPECT_EQ(trained.num_shared > 0, tokens_max > 1) << tokens_max;
  }
}

TEST(LearnerTurns, OfEqualTenantsAreSharedByAllThatFit) {
  const std::vector<double> shares(8, 0.125);
  const std::vector<int64_t> batches(8, 100);
  const auto all = train_in_turns(shares, batches, 800, 1000, always);
  EXPECT_GE(all.tokens[0] + all.tokens[7], 2 * 100 * 490) << "all train in every second work call";
  EXPECT_EQ(all.num_shared, all.num_passes);
  // One token less, and one of the eight must wait for the next pass.
  const auto fewer = train_in_turns(shares, batches, 799, 1000, always);
  const int64_t num_tokens = std::accumulate(fewer.tokens.begin(), fewer.tokens.end(), int64_t{0});
  EXPECT_EQ(num_tokens, fewer.num_passes * 700);
}

/// A tenant that never has a batch, or leaves the queue, delays no other.
TEST(LearnerTurns, OfATenantWithoutABatchGoToTheOthers) {
  const auto alone = train_in_turns({0.5, 0.5}, {10, 10}, 100, 1000,
                                    [](size_t tenant, uint64_t) { return tenant == 1; });
  EXPECT_EQ(alone.tokens[0], 0);
  EXPECT_EQ(alone.num_shared, 0);
  EXPECT_GE(alone.tokens[1], 10 * 1000 / 3);
  const auto left =
      train_in_turns({0.99, 0.01}, {10, 10}, 100, 1000,
                     [](size_t tenant, uint64_t turn) { return tenant == 1 || turn < 4; });
  EXPECT_GE(left.tokens[1], 10 * 990 / 3);
}

/// A tenant that generates for long and then has a large step starts it while the queue is empty.
/// It must not catch up on what the other trained meanwhile.
TEST(LearnerTurns, AreNotSavedUpByWhoWasAway) {
  constexpr uint64_t kBack = 300;
  const auto trained_until = [](uint64_t num_turns) {
    return train_in_turns({0.5, 0.5}, {100, 100}, 100, num_turns,
                          [](size_t tenant, uint64_t turn) {
                            return tenant == 0 ? turn < kBack || turn >= kBack + 4
                                               : turn >= kBack + 2;
                          })
        .tokens;
  };
  const auto before = trained_until(kBack + 2), after = trained_until(kBack + 100);
  EXPECT_GT(before[0], 100 * 100);
  EXPECT_EQ(before[1], 0);
  EXPECT_NEAR(static_cast<double>(after[0] - before[0]), static_cast<double>(after[1]), 300);
}

/// All ask in `turn` and in the next one, in order; returns the tenants that train then.
std::vector<TenantSlot> second_turn(LearnerTurns& turns, uint64_t turn,
                                    const std::vector<int64_t>& batches) {
  std::vector<TenantSlot> pass;
  for (const uint64_t each : {turn, turn + 1})
    for (uint32_t tenant = 0; tenant < batches.size(); ++tenant)
      if (pass.empty()) pass = turns.ask(TenantSlot(tenant), batches[tenant], each);
  return pass;
}

TEST(LearnerTurns, TakeNobodyAlongWhoIsFurtherAheadThanAPass) {
  for (const int64_t ahead : {100, 101}) {
    LearnerTurns turns({0.5, 0.5}, 100);
    // Each trains alone, since the first batch of two leaves no free space in the pass.
    EXPECT_THAT(second_turn(turns, 1, {1000, 1}), ElementsAre(TenantSlot(0)));
    EXPECT_THAT(second_turn(turns, 3, {1, 1000 - ahead}), ElementsAre(TenantSlot(1)));
    const auto pass = second_turn(turns, 5, {1, 1});
    EXPECT_EQ(pass.size(), ahead == 100 ? 2U : 1U) << ahead;
    EXPECT_EQ(pass[0], TenantSlot(1));
  }
}

TEST(LearnerTurns, TakeOnlyThoseWhoAskedTheTurnBeforeAndDidNotLeave) {
  const std::vector<double> shares(4, 0.25);
  LearnerTurns turns(shares, 100);
  for (const uint32_t tenant : {0U, 1U, 3U})
    EXPECT_THAT(turns.ask(TenantSlot(tenant), 1, 1), IsEmpty());
  turns.leave(TenantSlot(3));
  EXPECT_THAT(turns.ask(TenantSlot(2), 1, 2), IsEmpty())
      << "it asked in this work call for the first time";
  EXPECT_THAT(turns.ask(TenantSlot(1), 1, 2), ElementsAre(TenantSlot(0), TenantSlot(1)));
  EXPECT_THAT(turns.ask(TenantSlot(3), 1, 2), IsEmpty());
  EXPECT_THAT(turns.ask(TenantSlot(3), 1, 3), IsEmpty()) << "no pass in the work call after a pass";
  EXPECT_THAT(turns.ask(TenantSlot(3), 1, 4), ElementsAre(TenantSlot(3)))
      << "the third tenant did not ask in turn 3";
}

/// Tenants that always have sequences waiting, of different lengths.
std::vector<double> tokens_served(const std::vector<double>& shares,
                                  const std::vector<int32_t>& lengths, int32_t max_running) {
  EngineOptions options;
  options.kv_blocks = 400;
  options.block_size = 4;
  options.max_running = max_running;
  options.max_waiting = 1000;
  options.shares = shares;
  BatchScheduler scheduler = make_scheduler(options);
  std::vector<double> tokens(shares.size());
  std::vector<int> num_waiting(shares.size());
  uint64_t next = 0;
  for (int i = 0; i < 3000; ++i) {
    for (uint32_t tenant = 0; tenant < shares.size(); ++tenant)
      while (num_waiting[tenant] < 20) {
        auto request = make_request(next * shares.size() + tenant, 5, lengths[tenant]);
        request.tenant = TenantSlot(tenant);
        EXPECT_TRUE(scheduler.submit(std::move(request)).ok());
        ++num_waiting[tenant];
        ++next;
      }
    take_step(scheduler);
    take_over_all(scheduler);
    for (const auto& event : scheduler.take_finished()) {
      const auto tenant = event.id.value % shares.size();
      --num_waiting[tenant];
      tokens[tenant] += 5 + static_cast<double>(event.tokens.size());
    }
  }
  const double all = std::accumulate(tokens.begin(), tokens.end(), 0.0);
  for (double& each : tokens) each /= all;
  return tokens;
}

TEST(EngineShares, AreKeptInTokensWhateverTheLengthsAre) {
  const std::vector<double> shares = {0.6, 0.3, 0.1};
  const auto served = tokens_served(shares, {10, 40, 80}, 12);
  for (size_t i = 0; i < shares.size(); ++i) EXPECT_NEAR(served[i], shares[i], 0.03) << i;
}

TEST(EngineShares, OfEqualTenantsAreEqual) {
  const auto served = tokens_served({0.25, 0.25, 0.25, 0.25}, {10, 20, 40, 80}, 8);
  for (const double each : served) EXPECT_NEAR(each, 0.25, 0.03);
}

/// A tenant that floods the queue does not delay a later sequence of another.
TEST(EngineShares, AFloodDoesNotDelayAnotherTenant) {
  EngineOptions options;
  options.max_running = 4;
  options.max_waiting = 1000;
  options.shares = {0.5, 0.5};
  BatchScheduler scheduler = make_scheduler(options);
  for (uint64_t i = 0; i < 500; ++i) ASSERT_TRUE(scheduler.submit(make_request(i, 5, 20)).ok());
  for (int i = 0; i < 3; ++i) {
    take_step(scheduler);
    take_over_all(scheduler);
  }
  auto other = make_request(1000, 5, 3);
  other.tenant = TenantSlot(1);
  ASSERT_TRUE(scheduler.submit(std::move(other)).ok());
  uint64_t first = 0;
  for (int i = 0; i < 40 && first != 1000; ++i) {
    take_step(scheduler);
    take_over_all(scheduler);
    for (const auto& event : scheduler.take_finished()) first = std::max(first, event.id.value);
  }
  EXPECT_EQ(first, 1000U) << "it was next as soon as a running slot was free";
}

/// A tenant that is alone gets everything; priorities come before shares.
TEST(EngineShares, LendIdleCapacityAndComeAfterPriorities) {
  EngineOptions options;
  options.max_running = 1;
  options.shares = {0.01, 0.99};
  BatchScheduler scheduler = make_scheduler(options);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(scheduler.submit(make_request(i, 5, 5)).ok());
  EXPECT_EQ(run_to_end(scheduler).size(), 3U);
  auto late = make_request(10, 5, 5);
  late.tenant = TenantSlot(1);
  late.priority = 1;
  ASSERT_TRUE(scheduler.submit(std::move(late)).ok());
  for (uint64_t i = 20; i < 23; ++i) ASSERT_TRUE(scheduler.submit(make_request(i, 5, 5)).ok());
  const auto ended = run_to_end(scheduler);
  ASSERT_EQ(ended.size(), 4U);
  EXPECT_EQ(ended.back().id.value, 10U);
  expect_all_free(scheduler);
}

}  // namespace
}  // namespace primerl
