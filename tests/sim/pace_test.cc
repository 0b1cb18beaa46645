// How far ahead of the trainer groups open, if the limit is much larger than the pipeline needs:
// just enough to keep the trainer busy, G groups per version, without loss of speed. The needs
// follow from the scripted costs on the virtual clock, so they do not depend on the machine.
// PRIMERL_SIM_SHOW=1 prints the histograms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "graph/base/json.h"
#include "tests/sim/demo_run.h"

namespace primerl::sim {
namespace {

constexpr int64_t kSteps = 60;
constexpr int64_t kSettled = 30;  // steps until the pace has found its depth
constexpr int64_t kGroups = 8;    // of one batch

/// Results of a run after the depth has settled.
struct Flow {
  DemoResult result;
  std::map<int64_t, int64_t> opened;     // version -> groups
  std::map<int64_t, int64_t> staleness;  // of trained rollouts: staleness -> number
  double staleness_mean = 0;
  double took_ms = 0;  // the whole run

  int64_t staleness_max() const { return staleness.empty() ? 0 : staleness.rbegin()->first; }
  /// The number of rollouts that are staler.
  int64_t num_above(int64_t steps) const {
    int64_t count = 0;
    for (auto each = staleness.upper_bound(steps); each != staleness.end(); ++each)
      count += each->second;
    return count;
  }
  std::string words() const {
    std::string text = fmt::format("{:.0f} ms, staleness", took_ms);
    for (const auto& [steps, count] : staleness) text += fmt::format(" {}:{}", steps, count);
    text += "; opened";
    for (const auto& [version, count] : opened) text += fmt::format(" {}:{}", version, count);
    return text;
  }
};

/// The example's own sizes, an in-flight limit of eight batches, and costs chosen by the test.
Flow run(int64_t limit, std::vector<std::string> costs, uint64_t seed = 1) {
  DemoCase demo{.seed = seed, .max_off_policy_steps = limit};
  demo.group_size = 8;
  demo.batch_size = 8 * kGroups;
  demo.max_steps = kSteps;
  demo.sets = std::move(costs);
  demo.sets.push_back("node.rollout.max_inflight=512");
  demo.sets.push_back("resource.engine.max_running=512");
  demo.sets.push_back("resource.engine.max_waiting=1024");
  demo.sets.push_back("resource.engine.kv_blocks=65536");
  Flow flow;
  flow.result = run_demo(demo);
  EXPECT_THAT(flow.result.violations, ::testing::IsEmpty());
  std::map<uint64_t, int64_t> groups;
  int64_t count = 0;
  for (const auto& text : flow.result.rollouts) {
    const Json line = *parse_json(text, "rollouts.jsonl");
    const int64_t version = line.find("version")->as_int();
    groups[static_cast<uint64_t>(line.find("group")->as_int())] = version;
    if (line.find("step")->as_int() <= kSettled) continue;  // not trained, or too early
    const int64_t steps = line.find("staleness")->as_int();
    ++flow.staleness[steps];
    flow.staleness_mean += static_cast<double>(steps);
    ++count;
  }
  for (const auto& [group, version] : groups) ++flow.opened[version];
  flow.staleness_mean /= static_cast<double>(std::max<int64_t>(count, 1));
  flow.took_ms = flow.result.took.to_seconds() * 1000;
  if (std::getenv("PRIMERL_SIM_SHOW") != nullptr)
    std::printf("limit %ld: %s\n", static_cast<long>(limit), flow.words().c_str());
  return flow;
}

/// The run with the median staleness of five schedules: in some of them one batch more is in flight
/// for a while.
Flow middle(int64_t limit, const std::vector<std::string>& costs) {
  std::vector<Flow> flows;
  for (uint64_t seed = 1; seed <= 5; ++seed) flows.push_back(run(limit, costs, seed));
  std::sort(flows.begin(), flows.end(),
            [](const Flow& a, const Flow& b) { return a.staleness_mean < b.staleness_mean; });
  return flows[2];
}

/// A rollout takes a fraction of a training step.
const std::vector<std::string> kFastEngine = {};
/// At any load, a rollout takes about three training steps (32 to 48 engine steps of 5 ms, with
/// training steps of 65 ms), like long answers of a large model.
const std::vector<std::string> kSlowAnswers = {
    "resource.engine.step_cost=\"5ms\"",          "resource.engine.decode_token_cost=\"1us\"",
    "resource.engine.prefill_token_cost=\"1us\"", "resource.engine.new_tokens_min=32",
    "resource.engine.new_tokens_max=48",          "tenant.main.sampling={ max_tokens = 512 }"};
/// One answer in fifty is ten times as long.
std::vector<std::string> with_stragglers(std::vector<std::string> costs) {
  costs.push_back("resource.engine.tail_fraction=0.02");
  costs.push_back("resource.engine.tail_factor=10");
  return costs;
}

/// The number of versions under which clearly more or less than one batch opened.
int64_t num_uneven(const Flow& flow) {
  int64_t count = 0;
  for (int64_t version = kSettled; version < kSteps - 1; ++version) {
    const auto found = flow.opened.find(version);
    const int64_t opened = found == flow.opened.end() ? 0 : found->second;
    count += opened < kGroups / 2 || opened > 2 * kGroups;
  }
  return count;
}

// Needed depth: while one batch trains, the next is generated, so a group is one version old when
// it trains.
TEST(Pace, ATrainerThatIsTheBottleneckSeesOneVersionOfStalenessWhateverTheLimit) {
  const Flow one = run(1, kFastEngine), two = run(2, kFastEngine), eight = run(8, kFastEngine);
  EXPECT_LE(two.staleness_max(), 1) << two.words();
  EXPECT_LE(two.took_ms, one.took_ms * 1.01);
  EXPECT_LE(eight.staleness_mean, 1.0) << eight.words();
  EXPECT_LE(eight.staleness_max(), 1) << eight.words();
  EXPECT_LE(eight.took_ms, one.took_ms * 1.01);
  EXPECT_LE(num_uneven(eight), 3) << eight.words();
}

// Needed depth: three training steps of generation and the one that is being trained: four
// versions.
TEST(Pace, SlowAnswersGetAsDeepAPipeAsTheyTakeStepsAndNoDeeper) {
  const Flow two = middle(2, kSlowAnswers), eight = middle(8, kSlowAnswers);
  EXPECT_GE(eight.staleness_mean, 2.5) << eight.words();
  EXPECT_LE(eight.staleness_mean, 4.6) << eight.words();
  EXPECT_LE(eight.num_above(5), kSteps * kGroups * 8 / 100) << eight.words();
  EXPECT_LE(eight.staleness_max(), 6) << eight.words();
  EXPECT_LT(eight.took_ms, two.took_ms * 0.8) << "a limit below the need costs time";
  EXPECT_LE(num_uneven(eight), 3) << eight.words();
}

TEST(Pace, StragglersNeitherStopThePipeNorDeepenItForEver) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const Flow eight = run(8, with_stragglers(kFastEngine), seed);
    EXPECT_LE(eight.staleness_mean, 2.0) << eight.words();
    EXPECT_LE(eight.staleness_max(), 8);
  }
}

}  // namespace
}  // namespace primerl::sim
