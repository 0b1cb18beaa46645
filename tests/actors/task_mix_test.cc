// Which environment of a tenant gives a task: shares that hold in every row of tasks.
#include "actors/common/task_mix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "actors/messages/rollout.h"
#include "graph/base/random.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The environments of the first `count` tasks.
std::vector<uint32_t> drawn(const TaskMix& mix, uint64_t count) {
  std::vector<uint32_t> environments;
  for (uint64_t ordinal = 0; ordinal < count; ++ordinal)
    environments.push_back(mix.at(ordinal).environment);
  return environments;
}

/// The largest difference between the tasks of an environment and its share, in all rows of tasks
/// within `count`.
double largest_difference(const std::vector<int64_t>& weights, uint64_t seed, uint64_t count) {
  const TaskMix mix(weights, seed);
  const auto all = static_cast<double>(std::accumulate(weights.begin(), weights.end(), int64_t{0}));
  double largest = 0;
  for (size_t environment = 0; environment < weights.size(); ++environment) {
    // A row's difference is that of its end less that of its beginning.
    double ahead = 0, lowest = 0, highest = 0;
    for (uint64_t ordinal = 0; ordinal < count; ++ordinal) {
      ahead += (mix.at(ordinal).environment == environment ? 1 : 0) -
               static_cast<double>(weights[environment]) / all;
      lowest = std::min(lowest, ahead);
      highest = std::max(highest, ahead);
    }
    largest = std::max(largest, highest - lowest);
  }
  return largest;
}

TEST(TaskMix, GivesEachEnvironmentItsShareInEveryRowOfTasks) {
  EXPECT_LT(largest_difference({1}, 7, 10), 1e-9);
  EXPECT_LT(largest_difference({1, 1}, 7, 100), 2);
  EXPECT_LT(largest_difference({3, 1}, 7, 100), 2);
  EXPECT_LT(largest_difference({1, 1000}, 7, 3003), 2);
  EXPECT_LT(largest_difference({70, 20, 7, 3}, 7, 500), 2);
  EXPECT_LT(largest_difference(std::vector<int64_t>(64, 1000), 7, 1000), 2);
  RandomStream random(11);
  for (int i = 0; i < 200; ++i) {
    std::vector<int64_t> weights(2 + random.below(8));
    for (int64_t& weight : weights) weight = 1 + static_cast<int64_t>(random.below(40));
    EXPECT_LT(largest_difference(weights, random.next(), 800), 2)
        << ::testing::PrintToString(weights);
  }
}

TEST(TaskMix, ACycleHasExactlyTheWeights) {
  const TaskMix mix({300, 100, 200}, 5);
  EXPECT_EQ(mix.cycle(), 6U) << "weights count without their common divisor";
  std::map<uint32_t, int> counts;
  for (const uint32_t environment : drawn(mix, 600)) ++counts[environment];
  EXPECT_EQ(counts[0], 300);
  EXPECT_EQ(counts[1], 100);
  EXPECT_EQ(counts[2], 200);
}

TEST(TaskMix, NumbersTheTasksOfEachEnvironmentWithoutGaps) {
  for (const uint64_t seed : {0ULL, 1ULL, 2ULL, 3ULL, 1000ULL}) {
    const TaskMix mix({3, 1, 2}, seed);
    std::map<uint32_t, uint64_t> next;
    for (uint64_t ordinal = 0; ordinal < 100; ++ordinal) {
      const auto task = mix.at(ordinal);
      EXPECT_EQ(task.number, next[task.environment]++) << seed << " " << ordinal;
    }
  }
}

TEST(TaskMix, FollowsFromItsSeed) {
  const TaskMix one({2, 3}, 1), same({2, 3}, 1), other({2, 3}, 2);
  EXPECT_EQ(drawn(one, 50), drawn(same, 50));
  EXPECT_NE(drawn(one, 50), drawn(other, 50));
  EXPECT_THAT(drawn(TaskMix(), 3), ElementsAre(0, 0, 0));
}

TEST(TaskMix, RowsOfAnEvaluationFollowEachOtherByEnvironment) {
  Tenant tenant;
  for (const int64_t rows : {2, 0, 3}) {
    auto own = std::make_shared<Tenant>();
    own->eval.rows = rows;
    tenant.mix.push_back(std::move(own));
  }
  tenant.eval.rows = 5;
  std::vector<std::pair<uint32_t, uint64_t>> rows;
  for (uint64_t row = 0; row < 5; ++row) {
    const auto found = evaluation_row_of(tenant, evaluation_ordinal(PolicyVersion(3), row, 5));
    rows.emplace_back(found.environment, found.row);
  }
  EXPECT_THAT(rows, ElementsAre(std::pair(0U, 0U), std::pair(0U, 1U), std::pair(2U, 0U),
                                std::pair(2U, 1U), std::pair(2U, 2U)));
}

/// "sums" and "words" with these weights; empty: one environment.
Tenant mix_of(const std::vector<std::pair<std::string, int64_t>>& environments) {
  Tenant tenant;
  tenant.name = "main";
  for (const auto& [label, weight] : environments) {
    auto own = std::make_shared<Tenant>();
    own->label = label;
    own->weight = weight;
    tenant.mix.push_back(std::move(own));
  }
  return tenant;
}

Json checkpoint_of(const Tenant& tenant) {
  Json manifest = Json::object();
  if (!tenant.mix.empty()) manifest.set(kMixOfCheckpoint, mix_json(tenant));
  return manifest;
}

TEST(TaskMix, ACheckpointOfTheSameTasksIsAccepted) {
  const Json manifest = checkpoint_of(mix_of({{"sums", 4}, {"words", 2}}));
  EXPECT_EQ(manifest.find(kMixOfCheckpoint)->dump(), R"([["sums",2],["words",1]])");
  EXPECT_TRUE(check_mix(mix_of({{"sums", 2}, {"words", 1}}), manifest).ok());
  EXPECT_TRUE(check_mix(mix_of({}), Json::object()).ok());
}

TEST(TaskMix, ACheckpointOfOtherTasksIsRefusedByName) {
  const Json manifest = checkpoint_of(mix_of({{"sums", 2}, {"words", 1}}));
  for (const auto& other :
       {mix_of({{"words", 1}, {"sums", 2}}), mix_of({{"sums", 2}, {"words", 2}}),
        mix_of({{"sums", 2}, {"word", 1}}), mix_of({{"sums", 2}}), mix_of({})})
    EXPECT_FALSE(check_mix(other, manifest).ok());
  const Status refused = check_mix(mix_of({{"words", 1}, {"sums", 2}}), manifest);
  EXPECT_THAT(refused.error().text(), HasSubstr("tenant 'main' was made with other environments"));
  EXPECT_THAT(refused.error().text(),
              HasSubstr(R"([["sums",2],["words",1]], the graph [["words",1])"));
  const Status one = check_mix(mix_of({{"sums", 2}}), Json::object());
  EXPECT_THAT(one.error().text(), HasSubstr("the checkpoint has one environment"));
}

}  // namespace
}  // namespace primerl
