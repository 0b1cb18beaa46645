#include "kernels/train/schedule.h"

#include <gtest/gtest.h>

namespace primerl {
namespace {

TEST(Schedule, RefusesWhatItCannotFollow) {
  EXPECT_FALSE(validate({.kind = "step"}, 1, 10).ok());
  EXPECT_FALSE(validate({.kind = "linear", .decay_steps = 5}, 1, 0).ok());
  EXPECT_FALSE(validate({.kind = "constant", .warmup_steps = -1}, 1, 0).ok());
  EXPECT_FALSE(validate({.kind = "cosine", .min_lr = 2}, 1, 10).ok());
  EXPECT_TRUE(validate({.kind = "linear", .warmup_steps = 5, .decay_steps = 5}, 1, 10).ok());
  EXPECT_FALSE(validate({.kind = "linear", .warmup_steps = 5, .decay_steps = 6}, 1, 10).ok());
  EXPECT_FALSE(validate({}, -1, 10).ok());
}

TEST(Schedule, ConstantIsConstant) {
  for (const int64_t step : {1, 2, 1000}) EXPECT_EQ(learning_rate({}, 0.5, 0, step), 0.5);
}

TEST(Schedule, WarmUpRisesFromAboveZeroToTheRate) {
  const ScheduleOptions schedule{.kind = "constant", .warmup_steps = 3};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1, 0, 1), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1, 0, 3), 0.75);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1, 0, 4), 1);
}

TEST(Schedule, LinearIsFlatAndThenFallsOverTheLastSteps) {
  const ScheduleOptions schedule{.kind = "linear", .warmup_steps = 0, .decay_steps = 4};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1, 10, 6), 1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1, 10, 7), 1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1, 10, 8), 0.75);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1, 10, 10), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1, 10, 11), 0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1, 10, 99), 0);
}

TEST(Schedule, WsdIsFlatAndThenFallsFastAtFirst) {
  const ScheduleOptions schedule{.kind = "wsd", .warmup_steps = 2, .decay_steps = 4, .min_lr = 0.2};
  EXPECT_TRUE(validate(schedule, 1, 6).ok());
  EXPECT_FALSE(validate(schedule, 1, 5).ok()) << "the warm-up and the decay overlap";
  EXPECT_FALSE(validate({.kind = "wsd"}, 1, 10).ok()) << "no decay_steps";
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1, 10, 2), 2.0 / 3);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1, 10, 7), 1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1, 10, 8), 0.6) << "1 - sqrt(1 / 4) of the way";
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1, 10, 11), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1, 10, 99), 0.2);
}

TEST(Schedule, CosineIsHalfWayInTheMiddleAndEndsAtTheMinimum) {
  const ScheduleOptions schedule{.kind = "cosine", .min_lr = 0.2};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1, 10, 1), 1);
  EXPECT_NEAR(learning_rate(schedule, 1, 10, 6), 0.6, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 1, 10, 11), 0.2, 1e-12);
}

}  // namespace
}  // namespace primerl
