#include "actors/common/token_budget.h"

#include <gtest/gtest.h>

#include <limits>

namespace primerl {
namespace {

constexpr Time second(int64_t seconds) { return Time::from_nanoseconds(seconds * 1'000'000'000); }

TEST(TokenBudget, WithoutALimitNothingWaits) {
  TokenBudget budget;
  budget.charge(1'000'000, 0, second(5));
  EXPECT_EQ(budget.wait(0, second(5)), Duration());
  EXPECT_EQ(budget.wait(1, second(5)), Duration()) << "nothing was charged under a limit";
}

TEST(TokenBudget, HoldsItsRateInTheLongRun) {
  TokenBudget budget;
  int64_t num_tokens = 0;
  Time now = second(1000);
  const Time end = now + Duration::seconds(100);
  while (now < end) {
    ASSERT_EQ(budget.wait(50, now), Duration());
    budget.charge(120, 50, now);
    num_tokens += 120;
    now = now + std::max(budget.wait(50, now), Duration::milliseconds(1));
  }
  EXPECT_GE(num_tokens, 100 * 50);
  EXPECT_LE(num_tokens, 100 * 50 + 50 + 120) << "a burst, and the work that was in flight";
}

TEST(TokenBudget, ChangesItsRate) {
  TokenBudget budget;
  budget.charge(100, 10, second(100));
  EXPECT_EQ(budget.wait(10, second(100)), Duration::seconds(9));
  EXPECT_EQ(budget.wait(0, second(100)), Duration()) << "the limit was removed";
  EXPECT_EQ(budget.wait(10, second(109)), Duration());
}

TEST(TokenBudget, ItsNumbersDoNotOverflow) {
  TokenBudget budget;
  for (int i = 0; i < 100; ++i)
    budget.charge(std::numeric_limits<int64_t>::max(), 1, second(1'000'000));
  EXPECT_GT(budget.wait(1, second(1'000'000)), Duration::seconds(1 << 24));
}

}  // namespace
}  // namespace primerl
