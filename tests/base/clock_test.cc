#include "graph/base/clock.h"

#include <gtest/gtest.h>

#include <cmath>

namespace primerl {
namespace {

TEST(ParseDuration, RefusesABareNumberAndNamesTheUnits) {
  const auto result = parse_duration("30");
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().text().find("ns, us, ms, s, m and h"), std::string::npos);
}

TEST(ParseDuration, RefusesWordsAndUnknownUnits) {
  for (const char* text : {"", "soon", "3 weeks", "1s2", "nan s", "inf s", "s", "300000h 1"})
    EXPECT_FALSE(parse_duration(text).ok()) << text;
}

TEST(ParseDuration, RefusesWhatDoesNotFit) {
  EXPECT_TRUE(parse_duration("2500000h").ok());
  EXPECT_FALSE(parse_duration("2600000h").ok());
}

TEST(ParseDuration, ReadsEveryUnit) {
  EXPECT_EQ(*parse_duration("7ns"), Duration::nanoseconds(7));
  EXPECT_EQ(*parse_duration("7us"), Duration::microseconds(7));
  EXPECT_EQ(*parse_duration("250ms"), Duration::milliseconds(250));
  EXPECT_EQ(*parse_duration("1.5 s"), Duration::milliseconds(1500));
  EXPECT_EQ(*parse_duration("5m"), Duration::seconds(300));
  EXPECT_EQ(*parse_duration("2h"), Duration::seconds(7200));
}

TEST(Duration, TakesTheNearestEndForSecondsBeyondIt) {
  EXPECT_EQ(Duration::from_seconds(1.5), Duration::milliseconds(1500));
  EXPECT_EQ(Duration::from_seconds(-1.5), Duration::milliseconds(-1500));
  for (const double beyond : {9.3e9, 1e300, HUGE_VAL}) {
    EXPECT_EQ(Duration::from_seconds(beyond), Duration::forever()) << beyond;
    EXPECT_EQ(Duration::from_seconds(-beyond).to_nanoseconds(), INT64_MIN) << beyond;
  }
  EXPECT_LT(Duration::from_seconds(9.2e9), Duration::forever());
  EXPECT_EQ(Duration::from_seconds(NAN), Duration());
}

TEST(DurationText, ReadsBackAsItself) {
  for (const int64_t n : {0, 1, 999, 1000, 250'000'000, 1'000'000'000}) {
    const auto duration = Duration::nanoseconds(n);
    EXPECT_EQ(*parse_duration(to_string(duration)), duration) << to_string(duration);
  }
}

}  // namespace
}  // namespace primerl
