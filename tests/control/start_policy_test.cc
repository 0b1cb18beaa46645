#include "runtime/control/start_policy.h"

#include <gtest/gtest.h>

namespace primerl {
namespace {

using What = StartPolicy::Next::What;

constexpr Duration kWindow = Duration::seconds(60);

Time at(int64_t seconds) { return Time::from_nanoseconds(seconds * 1'000'000'000); }

RunEnding failed() {
  RunEnding ending;
  ending.how = RunEnding::How::kFailed;
  ending.why = "a fault";
  return ending;
}
RunEnding lost_worker(bool was_following = false) {
  RunEnding ending = failed();
  ending.has_lost_worker = true;
  ending.was_following = was_following;
  return ending;
}
RunEnding left_record() {
  RunEnding ending = failed();
  ending.must_skip_record = true;
  ending.was_following = true;
  return ending;
}

TEST(StartPolicy, EndsWhereNoWorkerWasLost) {
  StartPolicy policy(5, kWindow);
  EXPECT_EQ(policy.after(RunEnding{}, 10, at(1)).what, What::kEnd);
  EXPECT_EQ(policy.after(failed(), 10, at(2)).what, What::kEnd);
  EXPECT_EQ(policy.num_restarts(), 0U);
}

TEST(StartPolicy, StartsAgainFromTheRecordAfterAPause) {
  StartPolicy policy(5, kWindow);
  const auto next = policy.after(lost_worker(), 10, at(1));
  EXPECT_EQ(next.what, What::kAgain);
  EXPECT_EQ(next.pause, Duration::milliseconds(50));
  EXPECT_FALSE(next.from_checkpoint);
  EXPECT_EQ(policy.num_restarts(), 1U);
}

TEST(StartPolicy, StartsAsOftenAsItsLimitAndNotOnceMore) {
  StartPolicy policy(2, kWindow);
  EXPECT_EQ(policy.after(lost_worker(), 10, at(1)).what, What::kAgain);
  EXPECT_EQ(policy.after(lost_worker(), 20, at(2)).what, What::kAgain);
  EXPECT_EQ(policy.after(lost_worker(), 30, at(3)).what, What::kExhausted);
  StartPolicy none(0, kWindow);
  EXPECT_EQ(none.after(lost_worker(), 10, at(1)).what, What::kExhausted);
}

TEST(StartPolicy, ForgetsOldRestartsOfARunThatMakesProgress) {
  StartPolicy policy(1, kWindow);
  EXPECT_EQ(policy.after(lost_worker(), 10, at(1)).what, What::kAgain);
  EXPECT_EQ(policy.after(lost_worker(), 11, at(61)).what, What::kAgain);
  EXPECT_EQ(policy.after(lost_worker(), 11, at(1000)).what, What::kExhausted)
      << "it dies of the same step, however slowly";
}

TEST(StartPolicy, LeavesARecordAloneThatCannotBeFollowed) {
  StartPolicy policy(0, kWindow);
  const auto next = policy.after(left_record(), 0, at(1));
  EXPECT_EQ(next.what, What::kAgain) << "whatever restarts are left: it is no death";
  EXPECT_EQ(next.pause, Duration());
  EXPECT_TRUE(next.from_checkpoint);
}

TEST(StartPolicy, LeavesARecordAloneThatWorkersDieOfTwiceInARow) {
  StartPolicy policy(10, kWindow);
  EXPECT_FALSE(policy.after(lost_worker(true), 10, at(1)).from_checkpoint);
  EXPECT_TRUE(policy.after(lost_worker(true), 10, at(2)).from_checkpoint);
  EXPECT_FALSE(policy.after(lost_worker(false), 10, at(3)).from_checkpoint);
  EXPECT_FALSE(policy.after(lost_worker(true), 10, at(4)).from_checkpoint) << "not in a row";
}

}  // namespace
}  // namespace primerl
