#include "runtime/control/restart_budget.h"

#include <gtest/gtest.h>

namespace primerl {
namespace {

Time at(int64_t seconds) { return Time::from_nanoseconds(seconds * 1'000'000'000); }

TEST(RestartBudget, GivesAsManyAsItsLimitAndNotOneMore) {
  RestartBudget budget(2, Duration::seconds(60));
  EXPECT_TRUE(budget.take(at(0)));
  EXPECT_TRUE(budget.take(at(1)));
  EXPECT_FALSE(budget.take(at(2)));
  EXPECT_EQ(budget.num_taken(), 2U);
  EXPECT_FALSE(RestartBudget(0, Duration::seconds(60)).take(at(0)));
}

TEST(RestartBudget, ForgetsWhatIsAsOldAsItsWindow) {
  RestartBudget budget(1, Duration::seconds(60));
  EXPECT_TRUE(budget.take(at(0)));
  budget.forget_old(at(59));
  EXPECT_FALSE(budget.take(at(59)));
  budget.forget_old(at(60));
  EXPECT_TRUE(budget.take(at(60)));
}

TEST(RestartBudget, WaitsTwiceAsLongEachTime) {
  RestartBudget budget(65'536, Duration::seconds(60));  // the maximum that restarts_max allows
  for (const int64_t pause_ms : {50, 100, 200, 400, 800, 1600, 3200, 6400, 6400, 6400})
    EXPECT_EQ(budget.take(at(0)), Duration::milliseconds(pause_ms));
}

}  // namespace
}  // namespace primerl
