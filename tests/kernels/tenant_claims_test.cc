// How many sequences of an engine each tenant may have: what others have had lately is not lent.
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

/// Admits as many of `tenant` as it may; how many.
int32_t flood(TenantClaims& claims, TenantSlot tenant, int32_t most = 1000) {
  int32_t count = 0;
  for (; count < most && claims.may_take(tenant, 1); ++count) {
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

/// Of an engine of eight places whose first window is over.
TenantClaims claims_later(const std::vector<double>& shares) {
  TenantClaims claims = places(shares, 8);
  for (int32_t i = 0; i < TenantClaims::kWindow; ++i) claims.step();
  return claims;
}

TEST(TenantClaims, AtFirstEverybodyIsTakenToCome) {
  for (const int32_t num_steps : {0, TenantClaims::kWindow - 1, TenantClaims::kWindow}) {
    TenantClaims claims = places({0.25, 0.75}, 8);
    for (int32_t i = 0; i < num_steps; ++i) claims.step();
    EXPECT_EQ(flood(claims, kOne), num_steps < TenantClaims::kWindow ? 2 : 8) << num_steps;
  }
  TenantClaims few = places({0.99, 0.01}, 8);
  EXPECT_EQ(flood(few, kOther), 1) << "whose share is less than a place has what is left";
}

TEST(TenantClaims, WhoIsAloneHasEverything) {
  TenantClaims nobody_else = places({}, 8), never_there = claims_later({0.5, 0.5});
  EXPECT_EQ(flood(nobody_else, kOne), 8);
  EXPECT_EQ(flood(never_there, kOne), 8);
  EXPECT_FALSE(never_there.may_take(kOther, 1)) << "what was lent runs to its end";
  end(never_there, kOne, 1);
  EXPECT_TRUE(never_there.may_take(kOther, 1));
}

TEST(TenantClaims, WhatAnotherHadLatelyIsNotLent) {
  TenantClaims claims = claims_later({0.5, 0.5});
  EXPECT_EQ(flood(claims, kOther, 3), 3);
  end(claims, kOther, 3);
  EXPECT_EQ(flood(claims, kOne), 5);
  EXPECT_EQ(flood(claims, kOther), 3) << "it comes back and finds its places";
}

TEST(TenantClaims, NobodyClaimsMoreThanItsShare) {
  TenantClaims claims = claims_later({0.25, 0.75});
  EXPECT_EQ(flood(claims, kOne), 8);
  end(claims, kOne, 8);
  EXPECT_EQ(flood(claims, kOther), 6) << "a quarter of eight is kept";
  EXPECT_EQ(flood(claims, kOne), 2);
}

TEST(TenantClaims, WhoStaysAwayIsForgottenAfterTwoWindows) {
  for (const bool is_forgotten : {false, true}) {
    TenantClaims claims = places({0.5, 0.5}, 8);
    end(claims, kOther, flood(claims, kOther, 4));
    const int32_t num_steps = 2 * TenantClaims::kWindow - (is_forgotten ? 0 : 1);
    for (int32_t i = 0; i < num_steps; ++i) claims.step();
    EXPECT_EQ(flood(claims, kOne), is_forgotten ? 8 : 4);
  }
}

TEST(TenantClaims, BetweenThoseWhoWaitTheQueueDecides) {
  TenantClaims claims = claims_later({0.5, 0.5});
  EXPECT_EQ(flood(claims, kOne), 8);
  for (int i = 0; i < 3; ++i) claims.want(kOther, 1);
  end(claims, kOne, 3);
  EXPECT_TRUE(claims.may_take(kOne, 1));
  EXPECT_TRUE(claims.may_take(kOther, 1));
  for (int i = 0; i < 3; ++i) claims.take(kOther, 1);
  end(claims, kOther, 2);
  EXPECT_FALSE(claims.may_take(kOne, 1)) << "what waited counts, too: two are kept";
  EXPECT_EQ(flood(claims, kOther), 2);
}

/// Whatever comes and goes: the bound holds, and who has less than its claim is held up by what was
/// lent alone.
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
      } else if (claims.may_take(TenantSlot(tenant), 1)) {
        ASSERT_LT(all, most) << "seed " << seed;
        admitted[tenant] += flood(claims, TenantSlot(tenant), 1);
      } else {
        ASSERT_GT(all, 0) << "nobody may run, seed " << seed;
      }
    }
  }
}

/// A tenant whose sequences end together, before it sends the next ones: a flood of another does
/// not run in their places meanwhile. Once it is back the two divide them by their shares.
TEST(EngineShares, AFloodDoesNotRunInWhatAnotherHasLetGo) {
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
  EXPECT_EQ(scheduler.state().num_running, 4) << "of eight: the others are claimed";
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
