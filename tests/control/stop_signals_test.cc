#include "runtime/control/stop_signals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

constexpr int64_t kStart = 1'000'000'000'000;

int64_t after(Duration time) { return kStart + time.to_nanoseconds(); }

TEST(StopRequests, EveryCtrlCAsksForMore) {
  StopRequests requests;
  EXPECT_EQ(requests.count(), 0);
  EXPECT_EQ(requests.first(), 0);
  for (int i = 1; i <= 3; ++i) {
    requests.take(SIGINT, kStart);
    EXPECT_EQ(requests.count(), i);
  }
  EXPECT_EQ(requests.first(), SIGINT);
}

TEST(StopRequests, SeveralOfABatchSystemWithinTheGraceAreOne) {
  StopRequests requests;
  requests.take(SIGTERM, kStart);
  requests.take(SIGTERM, after(Duration::milliseconds(10)));
  requests.take(SIGHUP, after(Duration::seconds(1)));
  requests.take(SIGTERM, after(kTermGrace) - 1);
  EXPECT_EQ(requests.count(), 1);
  EXPECT_EQ(requests.first(), SIGTERM);
}

TEST(StopRequests, OneAfterTheGraceAsksForMoreAndBeginsAnother) {
  StopRequests requests;
  requests.take(SIGTERM, kStart);
  requests.take(SIGTERM, after(kTermGrace));
  EXPECT_EQ(requests.count(), 2);
  requests.take(SIGTERM, after(kTermGrace + Duration::milliseconds(10)));
  EXPECT_EQ(requests.count(), 2);
  requests.take(SIGTERM, after(kTermGrace + kTermGrace));
  EXPECT_EQ(requests.count(), 3);
}

TEST(StopRequests, CtrlCAfterATermStopsAndATermAfterCtrlCAsksForNothingMore) {
  StopRequests requests;
  requests.take(SIGTERM, kStart);
  requests.take(SIGINT, kStart + 1);
  EXPECT_EQ(requests.count(), 2);
  requests.clear();
  requests.take(SIGINT, kStart);
  requests.take(SIGTERM, kStart + 1);
  EXPECT_EQ(requests.count(), 1);
  requests.take(SIGTERM, kStart + 1 + kTermGrace.to_nanoseconds());
  EXPECT_EQ(requests.count(), 2);
}

TEST(SignalCounter, TakesSignalsOfThisProcessWhileItLives) {
  const SignalCounter counter;
  EXPECT_EQ(SignalCounter::count(), 0);
  ::raise(SIGTERM);
  ::raise(SIGTERM);
  ::raise(SIGHUP);
  EXPECT_EQ(SignalCounter::count(), 1);
  ::raise(SIGINT);
  EXPECT_EQ(SignalCounter::count(), 2);
  EXPECT_EQ(SignalCounter::first(), SIGTERM);
}

}  // namespace
}  // namespace primerl
