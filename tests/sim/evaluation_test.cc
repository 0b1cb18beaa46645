// The demo's graph with evaluations, under schedules and faults: training keeps every rule that it
// has without them, and each evaluation ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <set>

#include "actors/messages/rollout.h"
#include "graph/base/json.h"
#include "tests/sim/demo_run.h"

namespace primerl::sim {
namespace {

using ::testing::IsEmpty;

constexpr uint64_t kSeedsTried = 12;
constexpr int kRows = 3, kSamples = 4;

DemoCase a_case(uint64_t seed, Fault fault, const std::string& more = "") {
  DemoCase demo;
  demo.seed = seed;
  demo.fault = fault;
  demo.sets = {fmt::format("tenant.main.eval={{ interval = 2, rows = {}, samples = {}{} }}", kRows,
                           kSamples, more)};
  return demo;
}

std::string shown(const DemoResult& result) {
  std::string text;
  for (const auto& violation : result.violations) text += violation + "\n";
  return text;
}

/// Ordinals of the evaluations' rows, and how many rollouts of them ended.
std::map<uint64_t, int> rows_of(const DemoResult& result) {
  std::map<uint64_t, int> rows;
  for (const std::string& text : result.rollouts) {
    const Json line = parse_json(text, "rollouts.jsonl").value();
    const auto group = static_cast<uint64_t>(line.find("group")->as_int());
    EXPECT_EQ(is_evaluation(group), line.find("evaluation") != nullptr) << text;
    const std::string end = line.find("end")->as_string();
    EXPECT_EQ(end == "evaluated" || (end == "failed" && is_evaluation(group)), is_evaluation(group))
        << text;
    if (is_evaluation(group)) ++rows[group];
  }
  return rows;
}

class EvaluationUnder : public ::testing::TestWithParam<Fault> {};

TEST_P(EvaluationUnder, TrainingKeepsItsRulesAndEveryRowEndsWhole) {
  for (uint64_t seed = 1; seed <= kSeedsTried; ++seed) {
    const DemoResult result = run_demo(a_case(seed, GetParam()));
    ASSERT_THAT(result.violations, IsEmpty()) << seed << ": " << shown(result);
    const auto rows = rows_of(result);
    // Version 0 and the last one, 4, are always measured; 2 too unless the engines skipped it.
    std::set<uint64_t> versions;
    for (const auto& [ordinal, count] : rows) {
      EXPECT_EQ(count, kSamples) << ordinal;
      versions.insert((ordinal - kEvaluationOrdinals) / kRows);
    }
    EXPECT_EQ(rows.size(), versions.size() * kRows);
    EXPECT_TRUE(versions.contains(0) && versions.contains(4)) << seed;
    EXPECT_LE(versions.size(), 4U);
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, EvaluationUnder, ::testing::ValuesIn(kFaults),
                         [](const auto& each) {
                           std::string name;
                           for (const char c : to_string(each.param))
                             if (std::isalnum(static_cast<unsigned char>(c))) name += c;
                           return name;
                         });

TEST(Evaluation, ARunIsTheSameEachTime) {
  const DemoResult once = run_demo(a_case(5, Fault::kStragglers));
  const DemoResult again = run_demo(a_case(5, Fault::kStragglers));
  EXPECT_EQ(once.trace_hash, again.trace_hash);
  EXPECT_EQ(once.rollouts, again.rollouts);
}

TEST(Evaluation, WithoutStartAndEndOnlyTheMultiplesAreMeasured) {
  const DemoResult result = run_demo(a_case(3, Fault::kNone, ", at_start = false, at_end = false"));
  ASSERT_THAT(result.violations, IsEmpty()) << shown(result);
  for (const std::string& text : result.rollouts) {
    const Json line = parse_json(text, "rollouts.jsonl").value();
    if (line.find("evaluation") == nullptr) continue;
    EXPECT_GE(line.find("version")->as_int(), 2) << text;
  }
}

TEST(Evaluation, WithOnlyAsMuchInFlightAsARowTheRunEnds) {
  DemoCase demo = a_case(2, Fault::kNone);
  demo.sets.push_back("node.rollout.max_inflight=4");
  const DemoResult result = run_demo(demo);
  EXPECT_THAT(result.violations, IsEmpty()) << shown(result);
  EXPECT_EQ(result.num_of("trained"), kMaxSteps * kBatchSize);
}

}  // namespace
}  // namespace primerl::sim
