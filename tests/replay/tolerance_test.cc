// The tolerance of a comparison, at the bound and one past it.
#include "runtime/replay/tolerance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace primerl {
namespace {

using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Numbers, MayDifferByTheirToleranceAndNoMore) {
  double largest = 0;
  EXPECT_EQ(first_large_difference({-1.0F, -2.0F}, {-1.125F, -2.0F}, 0.125, largest), "");
  EXPECT_EQ(largest, 0.125);
  EXPECT_THAT(first_large_difference({-1.0F}, {std::nextafter(-1.125F, -2.0F)}, 0.125, largest),
              HasSubstr("number 0: recorded -1, now -1.125"));
  EXPECT_EQ(first_large_difference({-1.0F, -2.0F}, {-1.0F}, 0.125, largest),
            "recorded 2 numbers, now 1");
}

TEST(Numbers, NanAndInfinityAreOnlyEqualToThemselves) {
  const float none = std::numeric_limits<float>::quiet_NaN();
  double largest = 0;
  EXPECT_EQ(first_large_difference({-kInfinity, none}, {-kInfinity, none}, 0, largest), "");
  EXPECT_NE(first_large_difference({-1}, {none}, 1, largest), "");
  EXPECT_NE(first_large_difference({none}, {-1}, 1, largest), "");
  EXPECT_NE(first_large_difference({-kInfinity}, {-1}, 1, largest), "");
  EXPECT_EQ(largest, 0);
}

/// One engine and one learner, in processes on these devices.
Plan plan_on(const std::string& engine_device, const std::string& learner_device) {
  Plan plan;
  for (uint32_t i = 0; i < 2; ++i) {
    PlanProcess process;
    process.device = i == 0 ? engine_device : learner_device;
    process.groups = {GroupId(i)};
    plan.processes.push_back(std::move(process));
    PlanGroup group;
    group.process = ProcessId(i);
    group.resources = {static_cast<int32_t>(i)};
    plan.groups.push_back(std::move(group));
    plan.resources.emplace_back().kind = i == 0 ? "engine" : "learner";
  }
  return plan;
}

TEST(Tolerance, IsNoneOnTheCpuAndThatOfADeviceWhereverOneComputes) {
  EXPECT_TRUE(tolerance_of(plan_on("cpu", "cpu")).is_exact());
  for (const auto& plan : {plan_on("cuda:0", "cpu"), plan_on("cpu", "cuda:1")})
    EXPECT_EQ(tolerance_of(plan).logprob, kDeviceTolerance.logprob);
}

TEST(ToleranceCounts, SayHowNearTheyCame) {
  ToleranceCounts near;
  EXPECT_EQ(near.text(kDeviceTolerance), "");
  near.add_logprobs(40, 0.0625);
  near.add_logprobs(60, 0.015625);
  near.add_report(0.5);
  EXPECT_EQ(near.text(kDeviceTolerance),
            "of 100 log-probabilities none is further than 0.0625 from the recorded one, of 1 "
            "training steps no number is further than 50 % of what is allowed (computed on a "
            "device: log-probabilities within 0.125, numbers of a training step within 0.02 and 5 "
            "%; tokens and messages to the bit)");
}

TrainReport a_report() {
  TrainReport report;
  report.loss = 0.5;
  report.entropy_mean = 2;
  report.grad_norm = 4;
  report.mismatch_kl_max = 1;
  report.num_tokens = 100;
  return report;
}

TEST(Reports, AreEqualToTheBitWhereNothingElseIsSaid) {
  TrainReport now = a_report();
  double largest = 0;
  EXPECT_EQ(difference(a_report(), now, {}, largest), "");
  now.grad_norm = std::nextafter(now.grad_norm, 5);
  EXPECT_THAT(difference(a_report(), now, {}, largest), HasSubstr("grad_norm: recorded 4, now 4."));
}

TEST(Reports, MayDifferByTheirToleranceAndNoMore) {
  const ReplayTolerance tolerance{.logprob = 1, .report_absolute = 0.25, .report_relative = 0.0625};
  TrainReport now = a_report();
  double largest = 0;
  now.grad_norm = 4.5;  // 0.25 and a sixteenth of 4
  now.mismatch_kl_max = 10;
  EXPECT_EQ(difference(a_report(), now, tolerance, largest), "");
  EXPECT_DOUBLE_EQ(largest, 1);
  now.grad_norm = std::nextafter(4.5, 5);
  EXPECT_THAT(difference(a_report(), now, tolerance, largest), HasSubstr("grad_norm"));
  now = a_report();
  now.num_tokens = 101;
  EXPECT_THAT(difference(a_report(), now, tolerance, largest), HasSubstr("tokens: recorded 100"));
  now = a_report();
  now.skipped = true;
  EXPECT_NE(difference(a_report(), now, tolerance, largest), "");
}

}  // namespace
}  // namespace primerl
