// How many sequences of an engine each tenant may have: recently used capacity is not lent.
#include "kernels/engine/tenant_claims.h"

#include <gtest/gtest.h>

#include "graph/base/random.h"
#include "tests/kernels/scheduler_steps.h"

namespace primerl {
namespace {

constexpr TenantSlot kOne(0), kOther(1);

TenantClaims places(const std::vector<double>& shares, int32_t total) {
  return TenantClaims(shares, total, TenantClaims::Waiting::kTakesItsTurn);
}

bool has_one_for(const TenantClaims& claims, TenantSlot tenant) {
  return claims.num_free() > 0 && claims.may_take(tenant, 1);
}

/// Admits as many sequences of `tenant` as allowed; returns their number.
int32_t flood(TenantClaims& claims, TenantSlot tenant, int32_t most = 1000) {
  int32_t count = 0;
  for (; count < most && has_one_for(claims, tenant); ++count) {
    claims.want(tenant, 1);
    claims.take(tenant, 1);
  }
  return count;
}

void end(TenantClaims& claims, TenantSlot tenant, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    claims.take(tenant, -1);
    claims.want(tenant, -1);
  }
}

/// For an engine of eight running slots after its first window.
TenantClaims claims_later(const std::vector<double>& shares) {
  TenantClaims claims = places(shares, 8);
  for (int32_t i = 0; i < TenantClaims::kWindow; ++i) claims.step();
  return claims;
}

TEST(TenantClaims, AShareThatIsSetMovesThePart) {
  TenantClaims claims = places({0.5, 0.5}, 8);
  EXPECT_EQ(flood(claims, kOne), 4) << "the other may come";
  claims.set_share(kOther, 0.25);
  EXPECT_EQ(flood(claims, kOne), 2);
  EXPECT_EQ(claims.num_beyond(kOne), 2);
  claims.set_share(kOne, 0.75);
  EXPECT_EQ(claims.num_beyond(kOne), 0);
  EXPECT_EQ(flood(claims, kOther), 2);
}

TEST(TenantClaims, NothingIsReservedForWhoHasLeftAndAllOfItsPartForWhoCome) {
  TenantClaims claims = claims_later({0.25, 0.75});
  ASSERT_EQ(flood(claims, kOther), 8);
  end(claims, kOther, 8);
  EXPECT_EQ(flood(claims, kOne), 2) << "the rest is reserved";
  end(claims, kOne, 2);
  claims.end(kOther);
  EXPECT_EQ(flood(claims, kOne), 8);
  end(claims, kOne, 8);
  claims.begin(kOther);
  EXPECT_EQ(flood(claims, kOne), 2);
  for (int32_t i = 0; i < TenantClaims::kWindow; ++i) claims.step();
  end(claims, kOne, 2);
  EXPECT_EQ(flood(claims, kOne), 2) << "until the end of the next window";
  for (int32_t i = 0; i < TenantClaims::kWindow; ++i) claims.step();
  EXPECT_EQ(flood(claims, kOne), 6);
}

TEST(TenantClaims, AtFirstEverybodyIsTakenToCome) {
  for (const int32_t num_steps : {0, TenantClaims::kWindow - 1, TenantClaims::kWindow}) {
    TenantClaims claims = places({0.25, 0.75}, 8);
    for (int32_t i = 0; i < num_steps; ++i) claims.step();
    EXPECT_EQ(flood(claims, kOne), num_steps < TenantClaims::kWindow ? 2 : 8) << num_steps;
  }
  TenantClaims few = places({0.99, 0.01}, 8);
  EXPECT_EQ(flood(few, kOther), 1) << "a share below one slot gets what is left";
}

TEST(TenantClaims, ATenantAloneGetsEverything) {
  TenantClaims nobody_else = places({}, 8), never_there = claims_later({0.5, 0.5});
  EXPECT_EQ(flood(nobody_else, kOne), 8);
  EXPECT_EQ(flood(never_there, kOne), 8);
  EXPECT_FALSE(has_one_for(never_there, kOther)) << "sequences in lent slots run to their end";
  end(never_there, kOne, 1);
  EXPECT_TRUE(has_one_for(never_there, kOther));
}

TEST(TenantClaims, RecentClaimsOfOthersAreNotLent) {
  TenantClaims claims = claims_later({0.5, 0.5});
  EXPECT_EQ(flood(claims, kOther, 3), 3);
  end(claims, kOther, 3);
  EXPECT_EQ(flood(claims, kOne), 5);
  EXPECT_EQ(flood(claims, kOther), 3) << "it returns and finds its slots";
}

TEST(TenantClaims, NoTenantClaimsMoreThanItsShare) {
  TenantClaims claims = claims_later({0.25, 0.75});
  EXPECT_EQ(flood(claims, kOne), 8);
  end(claims, kOne, 8);
  EXPECT_EQ(flood(claims, kOther), 6) << "a quarter of eight is reserved";
  EXPECT_EQ(flood(claims, kOne), 2);
}

TEST(TenantClaims, AClaimExpiresAfterTwoWindows) {
  for (const bool is_forgotten : {false, true}) {
    TenantClaims claims = places({0.5, 0.5}, 8);
    end(claims, kOther, flood(claims, kOther, 4));
    const int32_t num_steps = 2 * TenantClaims::kWindow - (is_forgotten ? 0 : 1);
    for (int32_t i = 0; i < num_steps; ++i) claims.step();
    EXPECT_EQ(flood(claims, kOne), is_forgotten ? 8 : 4);
  }
}

TEST(TenantClaims, TheQueueDecidesBetweenWaitingTenants) {
  TenantClaims claims = claims_later({0.5, 0.5});
  EXPECT_EQ(flood(claims, kOne), 8);
  for (int i = 0; i < 3; ++i) claims.want(kOther, 1);
  end(claims, kOne, 3);
  EXPECT_TRUE(has_one_for(claims, kOne));
  EXPECT_TRUE(has_one_for(claims, kOther));
  for (int i = 0; i < 3; ++i) claims.take(kOther, 1);
  end(claims, kOther, 2);
  EXPECT_FALSE(has_one_for(claims, kOne)) << "waiting sequences count too: two are reserved";
  EXPECT_EQ(flood(claims, kOther), 2);
}

/// With random changes: the bound holds, and a tenant below its claim is limited only by what was
/// lent before.
TEST(TenantClaims, HoldTheBoundAtEverySeed) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    RandomStream random(seed);
    const auto most = static_cast<int32_t>(1 + random.below(20));
    TenantClaims claims = places({0.5, 0.3, 0.2}, most);
    std::vector<int32_t> admitted(3);
    for (int i = 0; i < 5000; ++i) {
      const auto tenant = static_cast<uint32_t>(random.below(3));
      const int32_t all = admitted[0] + admitted[1] + admitted[2];
      if (random.below(3) == 0) {
        claims.step();
      } else if (random.below(2) == 0 && admitted[tenant] > 0) {
        end(claims, TenantSlot(tenant), 1);
        --admitted[tenant];
      } else if (has_one_for(claims, TenantSlot(tenant))) {
        ASSERT_LT(all, most) << "seed " << seed;
        admitted[tenant] += flood(claims, TenantSlot(tenant), 1);
      } else {
        ASSERT_GT(all, 0) << "no tenant may run, seed " << seed;
      }
    }
  }
}

TenantClaims blocks(const std::vector<double>& shares, int32_t total) {
  return TenantClaims(shares, total, TenantClaims::Waiting::kKeepsItsClaim);
}

void take(TenantClaims& claims, TenantSlot tenant, int32_t count) {
  claims.want(tenant, count);
  claims.take(tenant, count);
}

TEST(TenantClaims, AllowManyAtOnceUpToThePartPlusWhatIsNotReserved) {
  TenantClaims claims = blocks({0.25, 0.25, 0.5}, 40);
  take(claims, kOne, 4);
  EXPECT_TRUE(claims.may_take(kOne, 6)) << "to its part";
  EXPECT_FALSE(claims.may_take(kOne, 7)) << "one past";
  EXPECT_EQ(claims.num_beyond(kOne), -6);
  for (int32_t i = 0; i < 2 * TenantClaims::kWindow; ++i) claims.step();
  take(claims, kOther, 10);
  EXPECT_TRUE(claims.may_take(kOne, 26)) << "no tenant claims the free ones";
  EXPECT_FALSE(claims.may_take(kOne, 27));
  take(claims, kOther, -7);
  EXPECT_TRUE(claims.may_take(kOne, 26));
  EXPECT_FALSE(claims.may_take(kOne, 27)) << "seven more are free, but reserved";
  take(claims, kOne, 26);
  EXPECT_EQ(claims.num_beyond(kOne), 20);
  EXPECT_EQ(claims.num_beyond(kOther), -7);
}

TEST(TenantClaims, ATenantThatUsesNothingMayReserveAnyAmount) {
  TenantClaims claims = blocks({0.1, 0.9}, 20);
  EXPECT_TRUE(claims.may_take(kOne, 20)) << "ten times its part";
  take(claims, kOne, 2);
  EXPECT_FALSE(claims.may_take(kOne, 1));
}

TEST(TenantClaims, AWaitingTenantKeepsItsClaimUnlessTheQueueDecides) {
  for (const bool is_queue : {true, false}) {
    TenantClaims claims = is_queue ? claims_later({0.5, 0.5}) : blocks({0.5, 0.5}, 8);
    for (int32_t i = 0; i < TenantClaims::kWindow; ++i) claims.step();
    take(claims, kOne, 4);
    claims.want(kOther, 3);
    EXPECT_EQ(claims.may_take(kOne, 1), true) << "one is left";
    EXPECT_EQ(claims.may_take(kOne, 2), is_queue);
  }
}

TEST(TenantClaims, AloneOneIsNeverBeyondItsPart) {
  TenantClaims claims = blocks({1}, 8);
  take(claims, kOne, 8);
  EXPECT_EQ(claims.num_beyond(kOne), 0);
  EXPECT_TRUE(claims.may_take(kOne, 1)) << "the pool decides whether a block is free";
}

/// With random changes: a tenant within its part is admitted, and no other gets what is reserved
/// for a recent tenant.
TEST(TenantClaims, ReserveRecentClaimsAtEverySeed) {
  const std::vector<double> shares = {0.5, 0.3, 0.2};
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomStream random(seed);
    const auto total = static_cast<int32_t>(3 + random.below(60));
    TenantClaims claims = blocks(shares, total);
    const auto part = [&](size_t i) { return static_cast<int32_t>(shares[i] * total); };
    std::vector<int32_t> taken(3);
    std::vector<std::vector<int32_t>> peaks(3);  // of each window
    const auto is_kept = [&](size_t i) {
      const std::vector<int32_t>& mine = peaks[i];
      const int32_t before = mine.size() == 1 ? part(i) : mine[mine.size() - 2];
      return std::max(std::min(part(i), std::max(mine.back(), before)) - taken[i], 0);
    };
    const auto change = [&](size_t i, int32_t count) {
      take(claims, TenantSlot(static_cast<uint32_t>(i)), count);
      taken[i] += count;
      peaks[i].back() = std::max(peaks[i].back(), taken[i]);
    };
    for (int32_t step = 0; step < 4 * TenantClaims::kWindow; ++step) {
      if (step % TenantClaims::kWindow == 0)
        for (size_t i = 0; i < 3; ++i) peaks[i].push_back(taken[i]);
      const size_t i = random.below(3);
      const TenantSlot tenant(static_cast<uint32_t>(i));
      const auto count = static_cast<int32_t>(1 + random.below(4));
      const int32_t kept = is_kept((i + 1) % 3) + is_kept((i + 2) % 3);
      const bool may = claims.may_take(tenant, count);
      ASSERT_EQ(may,
                taken[i] == 0 || taken[i] + count <= part(i) || count + kept <= claims.num_free())
          << "step " << step;
      if (may && count <= claims.num_free()) change(i, count);
      // Each is absent at times.
      if (random.below(8) == 0) change(i, -taken[i]);
      ASSERT_EQ(claims.num_beyond(tenant), taken[i] - part(i));
      claims.step();
    }
  }
}

/// A tenant's sequences end together, before it sends the next ones: a flood of another tenant does
/// not use their slots meanwhile. When it returns, the two divide the slots by their shares.
TEST(EngineShares, AFloodDoesNotUseTheSlotsThatAnotherReleased) {
  EngineOptions options;
  options.max_running = 8;
  options.max_waiting = 1000;
  options.shares = {0.5, 0.5};
  BatchScheduler scheduler = make_scheduler(options);
  uint64_t next = 0;
  const auto send = [&](TenantSlot tenant, int count, int32_t max_tokens) {
    for (int i = 0; i < count; ++i) {
      auto request = make_request(next++, 5, max_tokens);
      request.tenant = tenant;
      ASSERT_TRUE(scheduler.submit(std::move(request)).ok());
    }
  };
  send(kOther, 4, 3);
  send(kOne, 100, 60);
  for (int i = 0; i < 10; ++i) {
    take_step(scheduler);
    take_over_all(scheduler);
  }
  EXPECT_EQ(scheduler.take_finished().size(), 4U);
  EXPECT_EQ(scheduler.state().num_running, 4) << "of eight: the others are reserved";
  send(kOther, 4, 3);
  take_step(scheduler);
  take_over_all(scheduler);
  take_step(scheduler);
  take_over_all(scheduler);
  take_step(scheduler);
  EXPECT_EQ(scheduler.take_finished().size(), 2U) << "none waited for one of 60 tokens to end";
}

}  // namespace
}  // namespace primerl
