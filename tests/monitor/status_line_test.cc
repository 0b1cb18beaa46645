#include "runtime/monitor/status_line.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>

namespace primerl {
namespace {

/// The output of a StatusLine, read from the other end of a pipe.
class Screen {
 public:
  Screen() { EXPECT_EQ(::pipe(ends_), 0); }
  ~Screen() {
    ::close(ends_[0]);
    if (ends_[1] >= 0) ::close(ends_[1]);
  }
  int fd() const { return ends_[1]; }
  std::string text() {
    ::close(ends_[1]);
    ends_[1] = -1;
    std::string all;
    char block[512];
    for (ssize_t got; (got = ::read(ends_[0], block, sizeof block)) > 0;)
      all.append(block, static_cast<size_t>(got));
    return all;
  }

 private:
  int ends_[2] = {-1, -1};
};

Time at_ms(int64_t ms) { return Time::from_nanoseconds(ms * 1'000'000); }

StatusFacts facts_of(int64_t step) {
  StatusFacts facts;
  facts.step = step;
  facts.max_steps = 200;
  facts.has_metrics = step > 0;
  facts.score = 0.6129;
  facts.off_policy_mean = 0.4;
  facts.off_policy_max = 1;
  facts.tokens_per_second = 8123;
  facts.seconds_per_step = 0.2;
  return facts;
}

TEST(StatusLine, SaysStepRewardStalenessTokensAndEta) {
  EXPECT_EQ(status_text(facts_of(12)),
            "step 12/200  reward 0.613  stale 0.4 (max 1)  8.1k tok/s  ETA 38s");
}

TEST(StatusLine, SupervisedTrainingHasALossAndNoStaleness) {
  StatusFacts facts = facts_of(12);
  facts.score_name = "loss";
  facts.has_staleness = false;
  EXPECT_EQ(status_text(facts), "step 12/200  loss 0.613  8.1k tok/s  ETA 38s");
}

TEST(StatusLine, NamesTheRaisedAlarms) {
  StatusFacts facts = facts_of(12);
  facts.alarms = "mismatch_kl, effective_size";
  EXPECT_EQ(status_text(facts),
            "step 12/200  reward 0.613  stale 0.4 (max 1)  8.1k tok/s  "
            "alarm mismatch_kl, effective_size  ETA 38s");
}

TEST(StatusLine, BeforeTheFirstStepOnlyThePhaseIsKnown) {
  StatusFacts facts = facts_of(0);
  facts.phase = "starting";
  EXPECT_EQ(status_text(facts), "starting  step 0/200");
}

TEST(StatusLine, ATerminalLineIsRewrittenAtMostFiveTimesASecond) {
  Screen screen;
  {
    StatusLine line(screen.fd(), {.is_tty = true, .columns = 20});
    line.update(at_ms(0), facts_of(1));
    line.update(at_ms(199), facts_of(2));
    line.update(at_ms(200), facts_of(3));
  }
  EXPECT_EQ(screen.text(), "\r\x1b[Kstep 1/200  reward \r\x1b[Kstep 3/200  reward \r\x1b[K");
}

TEST(StatusLine, ElsewhereAPlainLineComesEveryTenSeconds) {
  Screen screen;
  {
    StatusLine line(screen.fd(), {});
    line.update(at_ms(0), facts_of(0));
    line.update(at_ms(9'999), facts_of(2));
    line.say("draining");
    line.update(at_ms(10'000), facts_of(0));
  }
  EXPECT_EQ(screen.text(), "step 0/200\ndraining\nstep 0/200\n");
}

TEST(StatusLine, ANewPhaseIsShownAtOnce) {
  Screen screen;
  {
    StatusLine line(screen.fd(), {});
    StatusFacts facts = facts_of(0);
    facts.phase = "starting";
    line.update(at_ms(0), facts);
    line.update(at_ms(1), facts);
    line.update(at_ms(2), facts_of(0));
  }
  EXPECT_EQ(screen.text(), "starting  step 0/200\nstep 0/200\n");
}

TEST(StatusLine, TalkOfAModelCannotMoveTheCursor) {
  Screen screen;
  {
    StatusLine line(screen.fd(), {});
    line.say("env: '\x1b[2J\xFF' is no answer");
  }
  EXPECT_EQ(screen.text(), "env: '\\u001B[2J\\xFF' is no answer\n");
}

/// The run must not wait for a reader of stderr that does not read.
TEST(StatusLine, AFullPipeDropsLinesAndCountsThem) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
  const std::string block(4096, '-');
  size_t num_filled = 0;
  for (ssize_t put; (put = ::write(ends[1], block.data(), block.size())) > 0;)
    num_filled += static_cast<size_t>(put);
  ASSERT_EQ(::fcntl(ends[1], F_SETFL, 0), 0) << "as the stderr of a program: it blocks";
  StatusLine line(ends[1], {});
  line.say("the first");
  for (int i = 0; i < 1000; ++i) line.say("a later one");
  EXPECT_EQ(line.num_dropped(), 1001);
  std::string read(num_filled, ' ');
  for (size_t got = 0; got < num_filled;)
    got += static_cast<size_t>(::read(ends[0], read.data() + got, num_filled - got));
  line.say("the last");
  EXPECT_EQ(line.num_dropped(), 0);
  ::close(ends[1]);
  std::string left(4096, ' ');
  left.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(ends[0], left.data(), left.size()))));
  EXPECT_EQ(left, "\n1001 lines are missing here: they were not read in time\nthe last\n");
  ::close(ends[0]);
}

TEST(StatusLine, TalkAppearsAboveTheRewrittenLine) {
  Screen screen;
  {
    StatusLine line(screen.fd(), {.is_tty = true, .columns = 80});
    line.update(at_ms(0), facts_of(0));
    line.say("note");
  }
  EXPECT_EQ(screen.text(), "\r\x1b[Kstep 0/200\r\x1b[Knote\nstep 0/200\r\x1b[K");
}

TEST(StatusLine, ShortNumbersAndDurations) {
  EXPECT_EQ(short_count(0), "0");
  EXPECT_EQ(short_count(999), "999");
  EXPECT_EQ(short_count(1000), "1.0k");
  EXPECT_EQ(short_count(123456), "123k");
  EXPECT_EQ(short_count(2.44e6), "2.4M");
  EXPECT_EQ(short_count(-1), "-");
  EXPECT_EQ(short_duration(59.4), "59s");
  EXPECT_EQ(short_duration(60), "1m00s");
  EXPECT_EQ(short_duration(3600 + 5 * 60), "1h05m");
}

}  // namespace
}  // namespace primerl
