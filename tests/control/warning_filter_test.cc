#include "runtime/control/warning_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(WarningFilter, ShowsAWarningOnceAndCountsItsRepetitions) {
  WarningFilter filter;
  EXPECT_TRUE(filter.shows("warning: env: task 7 failed: no such file"));
  EXPECT_FALSE(filter.shows("warning: env: task 8 failed: no such file"));
  EXPECT_FALSE(filter.shows("warning: env: task 123 failed: no such file"));
  EXPECT_TRUE(filter.shows("warning: env: task 9 failed: no permission"));
  EXPECT_THAT(filter.hidden(),
              ElementsAre("2 more like this: warning: env: task 7 failed: no such file"));
}

TEST(WarningFilter, KnowsAnotherNodeByTheNumberInItsName) {
  WarningFilter filter;
  EXPECT_TRUE(filter.shows("warning: decode#0: step 4 failed"));
  EXPECT_TRUE(filter.shows("warning: decode#1: step 4 failed"));
  EXPECT_TRUE(filter.shows("warning: env.t1: step 4 failed"));
  EXPECT_TRUE(filter.shows("warning: env.t2: step 4 failed"));
}

TEST(WarningFilter, HidesNothingThatIsSaidOnce) {
  WarningFilter filter;
  EXPECT_TRUE(filter.shows("a"));
  EXPECT_TRUE(filter.shows("b"));
  EXPECT_THAT(filter.hidden(), IsEmpty());
}

TEST(WarningFilter, ShowsAsManyKindsAsItsLimitAndCountsOneMore) {
  WarningFilter filter;
  for (size_t i = 0; i < WarningFilter::kShownMax; ++i)
    EXPECT_TRUE(filter.shows(std::string(i + 1, 'x')));
  EXPECT_FALSE(filter.shows("one more"));
  EXPECT_THAT(filter.hidden(), ElementsAre("1 other warning"));
  EXPECT_FALSE(filter.shows("two more"));
  EXPECT_THAT(filter.hidden(), ElementsAre("2 other warnings"));
}

TEST(WarningFilter, NamesALongWarningByItsBeginning) {
  WarningFilter filter;
  const std::string line = std::string(99, 'x') + "\xC3\xA4" + "end";
  EXPECT_TRUE(filter.shows(line));
  EXPECT_FALSE(filter.shows(line));
  EXPECT_THAT(filter.hidden(), ElementsAre("1 more like this: " + std::string(99, 'x') + "..."));
}

}  // namespace
}  // namespace primerl
