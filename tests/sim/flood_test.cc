// The cost for other tenants if one floods, or if its environment hangs, on the virtual clock:
// eight equal tenants, then with the fault. All want more than there is, so each gets the eighth
// that it is promised; a tenant's step time without the fault is the time "at its promised share".
// The costs are like those of the demo, so the results do not depend on the machine.
// PRIMERL_SIM_SHOW=1 prints the step times.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "graph/base/files.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/exec/virtual_executor.h"
#include "tests/sim/no_host.h"

namespace primerl::sim {
namespace {

constexpr size_t kTenants = 8, kFlooding = 0, kHanging = 1;
constexpr size_t kFloodSteps = 60;  // of each other tenant
/// If the flooding tenant generates no more than its share, its first batch is complete after 110.
constexpr size_t kFloodStepsLong = 150;
constexpr size_t kUnderWay = 10;  // steps until all tenants have begun

struct Troubles {
  bool floods = false;  // one tenant has ten times the rollouts in flight, batch size and answer
                        // length
  bool hangs = false;   // the environment of one tenant stops returning
};

/// The graph of examples/two_tenants with eight tenants.
CheckedGraph neighbours(const Troubles& troubles, size_t num_steps,
                        const std::vector<std::string>& sets) {
  const std::string example = std::string(PRIMERL_SOURCE_DIR) + "/examples/two_tenants/graph.toml";
  const std::string text = read_text_file(example, 1 << 20).value();
  const size_t begin = text.find("[tenant."), end = text.find("[model.");
  std::string tables;
  for (size_t i = 0; i < kTenants; ++i) {
    const int times = troubles.floods && i == kFlooding ? 10 : 1;
    tables += fmt::format(
        "[tenant.t{0}]\nenvironment = {{ name = \"reverse_text\" }}\n"
        "environment_timeout = \"2s\"\ngroup_size = 8\nbatch_size = {1}\ninflight = {2}\n"
        "sampling = {{ max_tokens = {1} }}\nmax_off_policy_steps = 2\nmax_steps = {3}\n"
        "filters = {{ zero_advantage = false }}\n[tenant.t{0}.adapter]\nrank = 8\n\n",
        i, 16 * times, 32 * times, num_steps);
  }
  const auto file = scratch_folder() / "neighbours.toml";
  std::ofstream(file) << text.substr(0, begin) << tables << text.substr(end);
  Overrides overrides;
  overrides.sets = {
      fmt::format("model.policy.path=\"{}/examples/reverse_text/base\"", PRIMERL_SOURCE_DIR),
      "resource.engine.backend=\"scripted\"", "resource.learner.backend=\"scripted\"",
      "node.rollout.max_inflight=1024", "resource.engine.kv_blocks=4096",
      // Every answer is as long as the tenant allows.
      "resource.engine.new_tokens_min=1000", "resource.engine.new_tokens_max=1000",
      "resource.engine.step_cost=\"300us\"", "resource.engine.decode_token_cost=\"25us\"",
      "resource.engine.prefill_token_cost=\"15us\"", "resource.learner.step_cost=\"1600us\"",
      "resource.learner.token_cost=\"50us\""};
  overrides.sets.insert(overrides.sets.end(), sets.begin(), sets.end());
  overrides.cores = 2;
  return load_graph(file.string(), overrides, full_catalog());
}

/// Keeps the step times of each tenant.
class TimingServices final : public NoHost {
 public:
  void publish_metrics(TenantSlot tenant, int64_t, const MetricValues& values) override {
    for (const auto& [name, value] : values)
      if (name == "time/step") times[tenant.index()].push_back(value);
  }

  std::map<size_t, std::vector<double>> times;  // by slot
};

/// After its first batches, the environment of one tenant does not return.
class HangingEnvironment final : public StepHooks {
 public:
  explicit HangingEnvironment(const Plan& plan) {
    for (uint32_t i = 0; i < plan.instances.size(); ++i)
      if (plan.instances[i].name == fmt::format("env.t{}", kHanging)) instance_ = InstanceId(i);
    CHECK(!instance_.is_none(), "the tenant has no environment");
  }
  int64_t num_hangs = 0;

  Injection before(const StepAbout& about) override {
    if (about.instance != instance_ || about.kind != StepKind::kMessage) return {};
    if (++num_seen_ < 200) return {};
    ++num_hangs;
    return {{}, Duration::seconds(1'000'000)};
  }

 private:
  InstanceId instance_;
  int64_t num_seen_ = 0;
};

/// Step times in seconds of the tenants without a fault, while all have work.
struct StepTimes {
  double mean = 0, p99 = 0;
};

StepTimes times_of_others(const Troubles& troubles, uint64_t seed,
                          const std::vector<std::string>& sets = {},
                          size_t num_steps = kFloodSteps) {
  const CheckedGraph graph = neighbours(troubles, num_steps, sets);
  if (graph.plan == nullptr) {
    for (const auto& found : graph.diagnostics.all()) ADD_FAILURE() << found.message;
    return {};
  }
  auto plan = std::make_shared<Plan>(*graph.plan);
  plan->settings.seed = static_cast<int64_t>(seed);
  TimingServices services;
  HangingEnvironment hanging(*plan);
  VirtualExecutor executor(plan, resource_factory(), services,
                           {.seed = seed,
                            .step_hooks = troubles.hangs ? &hanging : nullptr,
                            .events_max = 20'000'000,
                            .repeat_with = {}});
  EXPECT_TRUE(executor.start().ok());
  std::vector<size_t> others;
  for (size_t i = 0; i < kTenants; ++i)
    if (i != kFlooding && i != kHanging) others.push_back(i);
  const auto have_steps = [&](size_t i) { return services.times[i].size() >= num_steps; };
  while (!std::ranges::all_of(others, have_steps) && executor.advance()) {
  }
  EXPECT_EQ(hanging.num_hangs > 0, troubles.hangs);
  std::vector<double> times;
  for (const size_t i : others)
    for (size_t step = kUnderWay; step < services.times[i].size(); ++step)
      times.push_back(services.times[i][step]);
  EXPECT_EQ(times.size(), others.size() * (num_steps - kUnderWay));
  std::ranges::sort(times);
  const StepTimes found = {
      std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size()),
      times[times.size() * 99 / 100]};
  if (std::getenv("PRIMERL_SIM_SHOW") != nullptr)
    std::printf("flood %d, hang %d, seed %ld: mean %.3f s, 99th of 100 %.3f s\n", troubles.floods,
                troubles.hangs, static_cast<long>(seed), found.mean, found.p99);
  return found;
}

constexpr uint64_t kFloodSeeds = 3;
constexpr double kRatioMax = 1.2;

// The learner is the bottleneck, as in the demo.
TEST(Flood, LengthensNoStepOfOtherTenantsByMoreThanAFifth) {
  for (uint64_t seed = 1; seed <= kFloodSeeds; ++seed) {
    const StepTimes alike = times_of_others({}, seed);
    const StepTimes flood = times_of_others({.floods = true}, seed);
    EXPECT_LE(flood.p99, kRatioMax * alike.p99) << "seed " << seed;
    EXPECT_LE(flood.mean, kRatioMax * alike.mean) << "seed " << seed;
  }
}

// The other steps wait for a pass of the flooding tenant: if it may fill a pass, each of its passes
// delays all others.
TEST(Flood, WouldDelayOtherTenantsWithWholePasses) {
  const StepTimes alike = times_of_others({}, 1);
  const StepTimes flood =
      times_of_others({.floods = true}, 1, {"resource.learner.adapter_batch_tokens=4096"});
  EXPECT_GE(flood.p99, 1.5 * alike.p99);
}

const std::vector<std::string> kSlowEngine = {"resource.engine.decode_token_cost=\"100us\""};

// The engine is the bottleneck: each tenant has its share of it, from the first step on.
TEST(Flood, TakesNoMoreOfAFullEngineThanItsShare) {
  for (uint64_t seed = 1; seed <= kFloodSeeds; ++seed) {
    const StepTimes alike = times_of_others({}, seed, kSlowEngine);
    const StepTimes flood = times_of_others({.floods = true}, seed, kSlowEngine);
    EXPECT_LE(flood.mean, kRatioMax * alike.mean) << "seed " << seed;
    EXPECT_LE(flood.p99, kRatioMax * alike.p99) << "seed " << seed;
  }
}

// It trains nothing for a long time, and then has 25 micro-batches at once.
TEST(Flood, DoesNotCatchUpWhenItsBatchIsComplete) {
  const StepTimes alike = times_of_others({}, 1, kSlowEngine, kFloodStepsLong);
  const StepTimes flood = times_of_others({.floods = true}, 1, kSlowEngine, kFloodStepsLong);
  EXPECT_LE(flood.mean, kRatioMax * alike.mean);
  EXPECT_LE(flood.p99, kRatioMax * alike.p99);
}

// The flood takes no more than its share of KV blocks, if there are too few for all sequences.
TEST(Flood, TakesNoMoreBlocksThanItsShare) {
  for (const int32_t num_blocks : {512, 384, 256}) {
    std::vector<std::string> sets = kSlowEngine;
    sets.push_back(fmt::format("resource.engine.kv_blocks={}", num_blocks));
    const StepTimes alike = times_of_others({}, 1, sets, kFloodStepsLong);
    const StepTimes flood = times_of_others({.floods = true}, 1, sets, kFloodStepsLong);
    EXPECT_LE(flood.mean, kRatioMax * alike.mean) << num_blocks << " blocks";
    EXPECT_LE(flood.p99, kRatioMax * alike.p99) << num_blocks << " blocks";
  }
}

TEST(Hang, DoesNotAffectTheOtherTenants) {
  for (uint64_t seed = 1; seed <= kFloodSeeds; ++seed) {
    const StepTimes alike = times_of_others({}, seed);
    const StepTimes hang = times_of_others({.hangs = true}, seed);
    EXPECT_LE(hang.p99, 1.01 * alike.p99) << "seed " << seed;
    const StepTimes both = times_of_others({.floods = true, .hangs = true}, seed);
    EXPECT_LE(both.p99, kRatioMax * alike.p99) << "seed " << seed;
  }
}

}  // namespace
}  // namespace primerl::sim
