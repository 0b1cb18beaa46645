/// Compares the gradients of a learner's adapter with finite differences.
#pragma once

#include <cmath>

#include <gtest/gtest.h>

#include "tests/cpu/tiny_adapters.h"

namespace primerl::testing {

/// Expects that the gradients of the step that was made last, of `batch`, are the derivatives of
/// its loss. Gradients whose square is below `square_least` are too small for a finite difference.
inline void expect_derivatives(CpuLearner& learner, TenantSlot tenant, const TrainBatch& batch,
                               double square_least) {
  const auto start = learner.snapshot(tenant, PolicyVersion(0)).value()->tensors;
  for (const auto& gradient : learner.gradients(tenant)) {
    const auto derivative = values(gradient);
    double square = 0;
    for (const float g : derivative) square += static_cast<double>(g) * g;
    if (square < square_least) continue;
    const double h = 2e-3 / std::sqrt(square);
    const auto loss_at = [&](double step) {
      EXPECT_TRUE(learner.fill_adapter(tenant, moved(start, gradient.name, step, derivative)).ok());
      return learner.step(batch, never)->loss;
    };
    const double difference = (loss_at(h) - loss_at(-h)) / (2 * h) / square;
    EXPECT_NEAR(difference, 1, 0.02) << gradient.name;
  }
  ASSERT_TRUE(learner.fill_adapter(tenant, start).ok());
}

}  // namespace primerl::testing
