#include "runtime/exec/caf_timers.h"

#include <gtest/gtest.h>

#include <future>

namespace primerl {
namespace {

constexpr Duration kNoTick = Duration::seconds(3600);

TEST(CafTimers, RingsInOrderOfTime) {
  std::vector<uint32_t> rung;
  std::promise<void> done;
  const RunClock clock;
  CafTimers timers(
      clock, 3, kNoTick,
      [&](GroupId group) {
        rung.push_back(group.value);
        if (rung.size() == 3) done.set_value();
      },
      [] {});
  const Time now = clock.now();
  timers.arm(GroupId(0), now + Duration::milliseconds(15));
  timers.arm(GroupId(1), now + Duration::milliseconds(5));
  timers.arm(GroupId(2), now + Duration::milliseconds(10));
  EXPECT_TRUE(timers.has_alarm());
  done.get_future().wait();
  EXPECT_EQ(rung, (std::vector<uint32_t>{1, 2, 0}));
  EXPECT_FALSE(timers.has_alarm());
}

TEST(CafTimers, RingsOnceAtTheReplacedTime) {
  std::atomic<int> num_rung{0};
  std::promise<void> done;
  Time at;
  const RunClock clock;
  CafTimers timers(
      clock, 2, kNoTick,
      [&](GroupId group) {
        if (group == GroupId(1)) return done.set_value();
        ++num_rung;
        EXPECT_GE(clock.now(), at);
      },
      [] {});
  const Time now = clock.now();
  at = now + Duration::milliseconds(10);
  timers.arm(GroupId(0), now + Duration::seconds(3600));
  timers.arm(GroupId(0), at);
  timers.arm(GroupId(1), now + Duration::milliseconds(20));
  done.get_future().wait();
  timers.stop();
  EXPECT_EQ(num_rung, 1);
}

TEST(CafTimers, LooksSoonWhenNoticed) {
  std::promise<void> looked;
  const RunClock clock;
  CafTimers timers(
      clock, 1, kNoTick, [](GroupId) {}, [&] { looked.set_value(); });
  timers.notice();
  looked.get_future().wait();
}

TEST(CafTimers, LooksAtTheEarliestTimeThatWasAskedFor) {
  std::promise<Time> looked;
  const RunClock clock;
  const Time begin = clock.now();
  CafTimers timers(
      clock, 1, kNoTick, [](GroupId) {}, [&] { looked.set_value(clock.now()); });
  timers.look_by(begin + Duration::seconds(3600));
  timers.look_by(begin + Duration::milliseconds(5));
  timers.look_by(begin + Duration::seconds(1800));
  EXPECT_GE(looked.get_future().get(), begin + Duration::milliseconds(5));
}

TEST(CafTimers, RingsByAClockThatWasSetBack) {
  RunClock clock;
  clock.continue_from(Time::from_nanoseconds(0));
  std::promise<Time> rung;
  CafTimers timers(
      clock, 1, kNoTick, [&](GroupId) { rung.set_value(clock.now()); }, [] {});
  timers.arm(GroupId(0), Time::from_nanoseconds(0) + Duration::milliseconds(5));
  EXPECT_GE(rung.get_future().get(), Time::from_nanoseconds(0) + Duration::milliseconds(5));
}

TEST(CafTimers, IsSilentAfterStop) {
  const RunClock clock;
  CafTimers timers(
      clock, 1, kNoTick, [](GroupId) { FAIL() << "rang after stop()"; },
      [] { FAIL() << "looked after stop()"; });
  timers.stop();
  timers.stop();
  timers.arm(GroupId(0), clock.now());
  timers.notice();
}

}  // namespace
}  // namespace primerl
