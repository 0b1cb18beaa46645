// The ops of a mixture of experts, sums of columns and of squares, compared with plain references,
// for both instruction sets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "graph/base/random.h"
#include "kernels/ops/ops.h"

namespace primerl {
namespace {

using Floats = std::vector<float>;
using ::testing::ElementsAre;

Floats random_floats(int64_t count, uint64_t key, double scale = 1) {
  RandomStream random(key);
  Floats values(static_cast<size_t>(count));
  for (auto& value : values) value = static_cast<float>(scale * (2 * random.uniform() - 1));
  return values;
}

class ExpertOps : public ::testing::TestWithParam<bool> {
 protected:
  const CpuOps& ops_ = GetParam() ? baseline_cpu_ops() : cpu_ops();
};

struct Routed {
  Floats scores, weights;
  std::vector<int32_t> experts;
};

Routed route(const CpuOps& ops, const RouterShape& shape, const Floats& logits,
             const Floats& bias = {}) {
  const auto rows = static_cast<int64_t>(logits.size()) / shape.num_experts;
  Routed routed;
  routed.scores.resize(logits.size());
  routed.weights.resize(static_cast<size_t>(rows * shape.experts_per_token));
  routed.experts.resize(routed.weights.size());
  ops.route({rows, shape, bias.empty() ? nullptr : bias.data(), logits.data(), routed.scores.data(),
             routed.experts.data(), routed.weights.data()});
  return routed;
}

TEST_P(ExpertOps, RouteTakesTheGreatestScoresOfASoftmax) {
  for (const bool is_normalized : {false, true})
    for (const int32_t num_experts : {2, 8, 9, 61}) {
      RouterShape shape{.num_experts = num_experts, .experts_per_token = 2};
      shape.is_normalized = is_normalized;
      const int64_t rows = 5;
      const Floats logits = random_floats(rows * num_experts, 1, 3);
      const Routed routed = route(ops_, shape, logits);
      for (int64_t row = 0; row < rows; ++row) {
        const float* z = logits.data() + row * num_experts;
        double sum = 0;
        for (int32_t i = 0; i < num_experts; ++i) sum += std::exp(z[i]);
        std::vector<int32_t> order(static_cast<size_t>(num_experts));
        std::iota(order.begin(), order.end(), 0);
        std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return z[a] > z[b]; });
        const double chosen = std::exp(z[order[0]]) + std::exp(z[order[1]]);
        for (size_t i = 0; i < 2; ++i) {
          const size_t at = static_cast<size_t>(row) * 2 + i;
          EXPECT_EQ(routed.experts[at], order[i]);
          EXPECT_NEAR(routed.weights[at], std::exp(z[order[i]]) / (is_normalized ? chosen : sum),
                      1e-6);
        }
      }
    }
}

TEST_P(ExpertOps, ABiasChoosesAndDoesNotWeigh) {
  RouterShape shape{.num_experts = 4, .experts_per_token = 2, .is_sigmoid = true};
  shape.scale = 1.5F;
  const Floats logits = {0, 1, 2, 3};
  EXPECT_THAT(route(ops_, shape, logits).experts, ElementsAre(3, 2));
  const Routed routed = route(ops_, shape, logits, {2, 0, 0, 0});
  EXPECT_THAT(routed.experts, ElementsAre(0, 3));
  EXPECT_NEAR(routed.weights[0], 1.5 * 0.5, 1e-6);
  EXPECT_NEAR(routed.weights[1], 1.5 / (1 + std::exp(-3.0)), 1e-6);
}

TEST_P(ExpertOps, GroupsThatAreNotKeptLoseTheirExperts) {
  RouterShape shape{.num_experts = 6, .experts_per_token = 2, .is_sigmoid = true};
  shape.num_groups = 3;
  shape.groups_kept = 1;
  // The sum of the best two of the middle group is larger than those of the others.
  EXPECT_THAT(route(ops_, shape, {3, -3, 1, 2, -3, 2.5}).experts, ElementsAre(3, 2));
  // Choices below zero still belong to a group that is kept.
  const Floats bias = {-9, -9, -3, -3, -9, -9};
  EXPECT_THAT(route(ops_, shape, {0, 0, 0, 1, 0, 0}, bias).experts, ElementsAre(3, 2));
}

TEST_P(ExpertOps, EqualsGoToTheLowerExpertAndBrokenLogitsToSome) {
  const RouterShape shape{.num_experts = 8, .experts_per_token = 3};
  EXPECT_THAT(route(ops_, shape, Floats(8, 0)).experts, ElementsAre(0, 1, 2));
  Floats broken(8, std::nanf(""));
  auto experts = route(ops_, shape, broken).experts;
  std::sort(experts.begin(), experts.end());
  EXPECT_EQ(std::unique(experts.begin(), experts.end()), experts.end());
  EXPECT_GE(experts.front(), 0);
  EXPECT_LT(experts.back(), 8);
}

TEST_P(ExpertOps, RouteBackwardIsTheSlopeOfTheWeights) {
  for (const bool is_sigmoid : {false, true})
    for (const bool is_normalized : {false, true}) {
      RouterShape shape{.num_experts = 11, .experts_per_token = 3};
      shape.is_sigmoid = is_sigmoid;
      shape.is_normalized = is_normalized;
      shape.epsilon = 1e-3F;
      shape.scale = 2;
      Floats logits = random_floats(22, 5, 2);
      const Floats dweights = random_floats(6, 6);
      const Routed routed = route(ops_, shape, logits);
      Floats dlogits(22, NAN);
      ops_.route_backward(
          {2, shape, routed.scores.data(), routed.experts.data(), dweights.data(), dlogits.data()});
      for (size_t i = 0; i < logits.size(); ++i) {
        const auto value = [&](float by) {
          Floats moved = logits;
          moved[i] += by;
          const Routed again = route(ops_, shape, moved);
          EXPECT_EQ(again.experts, routed.experts);
          return std::inner_product(again.weights.begin(), again.weights.end(), dweights.begin(),
                                    0.0);
        };
        EXPECT_NEAR((value(1e-2F) - value(-1e-2F)) / 2e-2, dlogits[i], 2e-4);
      }
    }
}

TEST_P(ExpertOps, RowsGoToTheirPlacesAndBack) {
  const int64_t width = 13;
  const Floats x = random_floats(3 * width, 7), weights = random_floats(6, 8);
  const std::vector<int32_t> sources = {2, 0, 1, 0, 2, 1};
  Floats gathered(static_cast<size_t>(6 * width));
  ops_.gather_rows({6, width, x.data(), sources.data(), nullptr, gathered.data()});
  for (size_t i = 0; i < 6; ++i)
    for (size_t c = 0; c < 13; ++c)
      EXPECT_EQ(gathered[i * 13 + c], x[static_cast<size_t>(sources[i]) * 13 + c]);
  ops_.gather_rows({6, width, x.data(), sources.data(), weights.data(), gathered.data()});
  EXPECT_EQ(gathered[3 * 13 + 4], weights[3] * x[4]);
  const std::vector<int32_t> places = {1, 3, 2, 5, 0, 4};
  Floats sums(static_cast<size_t>(3 * width), 1), dots(6);
  ops_.combine_rows({3, width, 2, gathered.data(), places.data(), weights.data(), sums.data()});
  ops_.dot_rows({3, width, 2, x.data(), gathered.data(), places.data(), dots.data()});
  for (size_t row = 0; row < 3; ++row) {
    for (size_t c = 0; c < 13; ++c) {
      double sum = 1;
      for (size_t j = 0; j < 2; ++j)
        sum += static_cast<double>(weights[row * 2 + j]) *
               gathered[static_cast<size_t>(places[row * 2 + j]) * 13 + c];
      EXPECT_NEAR(sums[row * 13 + c], sum, 1e-6);
    }
    for (size_t j = 0; j < 2; ++j) {
      double dot = 0;
      for (size_t c = 0; c < 13; ++c)
        dot += static_cast<double>(x[row * 13 + c]) *
               gathered[static_cast<size_t>(places[row * 2 + j]) * 13 + c];
      EXPECT_NEAR(dots[row * 2 + j], dot, 1e-6);
    }
  }
}

TEST_P(ExpertOps, SumsOfColumnsAndOfSquares) {
  const Floats x = random_floats(7 * 21, 9);
  Floats sums(19, 1);
  ops_.column_sums({7, 19, x.data(), 21, sums.data()});
  for (size_t c = 0; c < 19; ++c) {
    double sum = 1;
    for (size_t r = 0; r < 7; ++r) sum += x[r * 21 + c];
    EXPECT_NEAR(sums[c], sum, 1e-6);
  }
  for (const int64_t count : {0, 1, 3, 4, 147}) {
    double squares = 0;
    for (int64_t i = 0; i < count; ++i) squares += std::pow(x[static_cast<size_t>(i)], 2);
    EXPECT_NEAR(ops_.sum_of_squares(x.data(), count), squares, 1e-9);
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, ExpertOps, ::testing::Bool(),
                         [](const auto& one) { return one.param ? "baseline" : "best"; });

}  // namespace
}  // namespace primerl
