#include "kernels/train/step_measures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

TEST(StepMeasures, TokensAreCountedByRatioPositionAndDistance) {
  MeasureSums sums;
  sums.add(0, 0, 1.0, 0.1);
  sums.add(16, 1, 1.02, 0.3);
  sums.add(17, 3, 9, 0.5);
  sums.add(100'000, -1, 1.0, 0.7);  // its version is not known
  StepMeasures measures;
  sums.write(measures);
  MetricValues values;
  add_measures(measures, values);
  EXPECT_THAT(
      values,
      ElementsAre(
          Pair("ratio/all/le/0.99", 0), Pair("ratio/all/le/1.01", 2), Pair("ratio/all/le/1.05", 1),
          Pair("ratio/all/le/1.1", 0), Pair("ratio/all/le/1.25", 0), Pair("ratio/all/le/1.5", 0),
          Pair("ratio/all/le/2", 0), Pair("ratio/all/le/4", 0), Pair("ratio/all/le/8", 0),
          Pair("ratio/all/le/inf", 1), Pair("mismatch_kl/position/le_16", testing::DoubleEq(0.2)),
          Pair("mismatch_kl/position/le_64", 0.5), Pair("mismatch_kl/position/le_inf", 0.7),
          Pair("mismatch_kl/distance/le_0", 0.1), Pair("mismatch_kl/distance/le_1", 0.3),
          Pair("mismatch_kl/distance/le_4", 0.5)));
}

TEST(StepMeasures, WhatWasNotMeasuredIsNoMetric) {
  MetricValues values;
  add_measures({}, values);
  EXPECT_THAT(values, IsEmpty());
}

TEST(StepMeasures, NormsAreNamedByTheirGroup) {
  StepMeasures measures;
  measures.grad_norms = {0.5, 0, 0, 0, 0, 2};
  MetricValues values;
  add_measures(measures, values);
  EXPECT_THAT(values, ElementsAre(Pair("optim/grad_norm/embeddings", 0.5),
                                  Pair("optim/grad_norm/adapters", 2)));
}

}  // namespace
}  // namespace primerl
