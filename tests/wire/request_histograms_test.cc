#include "runtime/wire/request_histograms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace primerl {
namespace {

TEST(RequestHistograms, HaveRisingBoundsAndANameEach) {
  std::set<std::string_view> names;
  for (const RequestHistogramKind& kind : request_histogram_kinds()) {
    EXPECT_TRUE(names.insert(kind.metric).second) << kind.metric;
    EXPECT_TRUE(std::ranges::is_sorted(kind.bounds)) << kind.metric;
    EXPECT_EQ(std::ranges::adjacent_find(kind.bounds), kind.bounds.end()) << kind.metric;
  }
}

TEST(RequestHistograms, AValueOfABoundIsBelowIt) {
  RequestHistogram histogram;
  for (const double value : {0.0005, 0.001, 0.0011, 2560.0, 2561.0})
    histogram.add(RequestValue::kTimeToFirstToken, value);
  ASSERT_EQ(histogram.counts.size(), 23U);
  EXPECT_EQ(histogram.counts[0], 2U);
  EXPECT_EQ(histogram.counts[1], 1U);
  EXPECT_EQ(histogram.counts[21], 1U);
  EXPECT_EQ(histogram.counts[22], 1U);
  EXPECT_DOUBLE_EQ(histogram.sum, 0.0005 + 0.001 + 0.0011 + 2560 + 2561);
}

}  // namespace
}  // namespace primerl
