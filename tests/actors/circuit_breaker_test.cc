#include "actors/router/circuit_breaker.h"

#include <gtest/gtest.h>

#include <vector>

#include "graph/base/random.h"
#include "runtime/wire/msgpack_codec.h"

namespace primerl {
namespace {

using State = CircuitBreaker::State;
using Change = CircuitBreaker::Change;

constexpr Duration kMoment = Duration::nanoseconds(1);

/// A breaker, the totals that its engine has reported, and the time.
struct Story {
  Change fault(uint64_t count = 1) { return breaker.take(num_good, num_faults += count, now); }
  Change good(uint64_t count = 1) { return breaker.take(num_good += count, num_faults, now); }
  Change both() { return breaker.take(++num_good, ++num_faults, now); }
  State state() const { return breaker.state(now); }

  CircuitBreaker breaker;
  uint64_t num_good = 0, num_faults = 0;
  Time now = Time() + Duration::seconds(1000);
};

/// Saves the breaker to the bytes of a cut and reads it again.
CircuitBreaker saved_and_read(const CircuitBreaker& breaker) {
  MsgpackWriter writer;
  wire::write(writer, breaker);
  const auto body = writer.take_body();
  MsgpackReader reader(body, {});
  CircuitBreaker read;
  wire::read(reader, read);
  EXPECT_TRUE(reader.finish().ok());
  return read;
}

Story opened() {
  Story story;
  EXPECT_EQ(story.fault(CircuitBreaker::kFaultsToOpen), Change::kOpened);
  return story;
}
Story half_open() {
  Story story = opened();
  story.now = story.now + CircuitBreaker::kOpenFor;
  EXPECT_EQ(story.state(), State::kHalfOpen);
  return story;
}

TEST(CircuitBreaker, OpensAtTenFaultsAndNotAtNine) {
  Story story;
  for (int i = 0; i < 9; ++i) EXPECT_EQ(story.fault(), Change::kNone);
  EXPECT_EQ(story.state(), State::kClosed);
  EXPECT_EQ(story.fault(), Change::kOpened);
  EXPECT_EQ(story.state(), State::kOpen);
}

TEST(CircuitBreaker, OneLoadMayTellAllFaults) {
  Story story;
  EXPECT_EQ(story.fault(9), Change::kNone);
  EXPECT_EQ(story.fault(1000), Change::kOpened);
  EXPECT_EQ(Story().fault(10), Change::kOpened);
}

TEST(CircuitBreaker, AGoodEndResetsTheCountOfFaults) {
  Story story;
  story.fault(9);
  EXPECT_EQ(story.good(), Change::kNone);
  EXPECT_EQ(story.fault(9), Change::kNone);
  EXPECT_EQ(story.both(), Change::kNone) << "the good one may have been the last";
  EXPECT_EQ(story.fault(9), Change::kNone);
  EXPECT_EQ(story.fault(), Change::kOpened);
}

TEST(CircuitBreaker, AFaultCountsForLessThanTwoMinutes) {
  for (const bool is_within : {true, false}) {
    Story story;
    story.fault();
    story.now = story.now + (CircuitBreaker::kWindow - (is_within ? kMoment : Duration()));
    EXPECT_EQ(story.fault(9), is_within ? Change::kOpened : Change::kNone);
    EXPECT_EQ(story.fault(), is_within ? Change::kNone : Change::kOpened);
  }
}

TEST(CircuitBreaker, HalfOpensAfterAMinuteAndNoSooner) {
  Story story = opened();
  EXPECT_EQ(story.breaker.half_opens_at(), story.now + CircuitBreaker::kOpenFor);
  story.now = story.now + (CircuitBreaker::kOpenFor - kMoment);
  EXPECT_EQ(story.state(), State::kOpen);
  story.now = story.now + kMoment;
  EXPECT_EQ(story.state(), State::kHalfOpen);
}

TEST(CircuitBreaker, EndsOfRequestsWhileItIsOpenChangeNothing) {
  Story story = opened();
  EXPECT_EQ(story.good(100), Change::kNone);
  EXPECT_EQ(story.fault(100), Change::kNone);
  EXPECT_EQ(story.state(), State::kOpen);
  story.now = story.now + CircuitBreaker::kOpenFor;
  EXPECT_EQ(story.good(2), Change::kNone) << "those from before do not count";
  EXPECT_EQ(story.good(), Change::kClosed);
}

TEST(CircuitBreaker, ClosesAtThreeGoodEndsAndNotAtTwo) {
  Story story = half_open();
  EXPECT_EQ(story.good(), Change::kNone);
  EXPECT_EQ(story.good(), Change::kNone);
  EXPECT_EQ(story.state(), State::kHalfOpen);
  EXPECT_EQ(story.good(), Change::kClosed);
  EXPECT_EQ(story.state(), State::kClosed);
  EXPECT_EQ(story.fault(9), Change::kNone) << "it counts from none";
  EXPECT_EQ(story.fault(), Change::kOpened);
}

TEST(CircuitBreaker, AFaultWhileHalfOpenOpensItForAnotherMinute) {
  for (const bool has_good_beside : {false, true}) {
    Story story = half_open();
    story.good(2);
    EXPECT_EQ(has_good_beside ? story.both() : story.fault(), Change::kOpened);
    EXPECT_EQ(story.state(), State::kOpen);
    story.now = story.now + CircuitBreaker::kOpenFor;
    EXPECT_EQ(story.good(2), Change::kNone) << "in a row";
    EXPECT_EQ(story.good(), Change::kClosed);
  }
}

TEST(CircuitBreaker, ALoadWithoutEndsChangesNothing) {
  for (Story story : {Story(), opened(), half_open()}) {
    const State before = story.state();
    for (int i = 0; i < 100; ++i) EXPECT_EQ(story.good(0), Change::kNone);
    EXPECT_EQ(story.state(), before);
  }
}

TEST(CircuitBreaker, TotalsOfANewEngineBeginAtZero) {
  Story story;
  story.good(500);
  story.fault(5);
  story.num_good = story.num_faults = 0;
  EXPECT_EQ(story.fault(4), Change::kNone);
  EXPECT_EQ(story.fault(), Change::kOpened) << "five and five";
}

/// The same rules, computed from a list of all events.
class Model {
 public:
  Change take(uint64_t good, uint64_t faults, Time now) {
    const State before = state(now);
    if (before == State::kClosed) {
      if (good > 0) since_ = faults_.size();
      for (uint64_t i = 0; good == 0 && i < faults; ++i) faults_.push_back(now);
      uint64_t count = 0;
      for (size_t i = since_; i < faults_.size(); ++i)
        count += now - faults_[i] < Duration::seconds(120) ? 1U : 0U;
      return count >= 10 ? open(now) : Change::kNone;
    }
    if (before == State::kOpen) return Change::kNone;
    if (faults > 0) return open(now);
    if ((in_a_row_ += good) < 3) return Change::kNone;
    is_closed_ = true;
    since_ = faults_.size();
    return Change::kClosed;
  }
  State state(Time now) const {
    if (is_closed_) return State::kClosed;
    return now - opened_ < Duration::seconds(60) ? State::kOpen : State::kHalfOpen;
  }

 private:
  Change open(Time now) {
    is_closed_ = false;
    opened_ = now;
    in_a_row_ = 0;
    return Change::kOpened;
  }
  std::vector<Time> faults_;
  size_t since_ = 0;
  bool is_closed_ = true;
  Time opened_;
  uint64_t in_a_row_ = 0;
};

TEST(CircuitBreaker, AgreesWithItsModelAlsoWhenSavedAtAnyMoment) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream draw(seed);
    Story story;
    Model model;
    int num_changes = 0;
    for (int i = 0; i < 400; ++i) {
      story.now = story.now + Duration::seconds(
                                  static_cast<int64_t>(draw.below(draw.below(10) == 0 ? 130 : 8)));
      const uint64_t good = draw.below(8) == 0 ? 1 + draw.below(3) : 0;
      const uint64_t faults = draw.below(2) == 0 ? draw.below(4) : 0;
      story.num_good += good;
      story.num_faults += faults;
      const Change change = story.breaker.take(story.num_good, story.num_faults, story.now);
      ASSERT_EQ(change, model.take(good, faults, story.now));
      ASSERT_EQ(story.state(), model.state(story.now));
      num_changes += change != Change::kNone ? 1 : 0;
      if (draw.below(20) > 0) continue;
      story.breaker = saved_and_read(story.breaker);
    }
    EXPECT_GT(num_changes, 0);
  }
}

}  // namespace
}  // namespace primerl
