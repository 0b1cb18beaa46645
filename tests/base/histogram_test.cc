#include "graph/base/histogram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace primerl {
namespace {

using testing::ElementsAre;
using testing::Pair;

constexpr std::array kBounds = {0.0, 0.5, 1e6};

TEST(Histogram, ABoundBelongsToItsBucket) {
  EXPECT_EQ(bucket_of(kBounds, -1.0), 0U);
  EXPECT_EQ(bucket_of(kBounds, 0.0), 0U);
  EXPECT_EQ(bucket_of(kBounds, std::nextafter(0.0, 1.0)), 1U);
  EXPECT_EQ(bucket_of(kBounds, 0.5), 1U);
  EXPECT_EQ(bucket_of(kBounds, 1e6), 2U);
  EXPECT_EQ(bucket_of(kBounds, 1e6 + 1), 3U);
  EXPECT_EQ(bucket_of(kBounds, HUGE_VAL), 3U);
  EXPECT_EQ(bucket_of(kBounds, std::numeric_limits<double>::quiet_NaN()), 0U);
}

TEST(Histogram, MetricsHaveTheBucketsWithValuesAndTheEdgeBelow) {
  MetricValues values;
  add_histogram("x", kBounds, BucketCounts<3>{0, 0, 0, 0}, values);
  EXPECT_TRUE(values.empty());
  add_histogram("x", kBounds, BucketCounts<3>{0, 0, 2, 1}, values);
  EXPECT_THAT(values, ElementsAre(Pair("x/le/0.5", 0), Pair("x/le/1e+06", 2), Pair("x/le/inf", 1)));
  values.clear();
  add_histogram("x", kBounds, BucketCounts<3>{1, 0, 0, 0}, values);
  EXPECT_THAT(values, ElementsAre(Pair("x/le/0", 1)));
}

TEST(Histogram, ANameSaysItsBucket) {
  const auto bucket = bucket_of_metric("a/b/le/1e+06");
  ASSERT_TRUE(bucket);
  EXPECT_EQ(bucket->histogram, "a/b");
  EXPECT_EQ(bucket->bound, 1e6);
  EXPECT_EQ(bucket_of_metric("x/le/inf")->bound, HUGE_VAL);
  EXPECT_FALSE(bucket_of_metric("x/le/a"));
  EXPECT_FALSE(bucket_of_metric("x/le/"));
  EXPECT_FALSE(bucket_of_metric("reward/all/mean"));
}

TEST(Histogram, TheBoundsOfAllMetricsRise) {
  const auto rises = [](const auto& bounds) {
    for (size_t i = 1; i < bounds.size(); ++i)
      if (bounds[i] <= bounds[i - 1]) return false;
    return true;
  };
  EXPECT_TRUE(rises(kRatioBounds));
  EXPECT_TRUE(rises(kStalenessBounds));
  EXPECT_TRUE(rises(kLengthBounds));
  EXPECT_TRUE(rises(kRewardBounds));
  EXPECT_TRUE(rises(kPositionBounds));
  EXPECT_TRUE(rises(kDistanceBounds));
}

}  // namespace
}  // namespace primerl
