// A gateway beside rollouts on the virtual clock: every client that stays gets one reply, whatever
// the order of events, and the bounds of all edges hold.
//
// PRIMERL_SIM_SEEDS=20 is a shorter test.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/exec/virtual_executor.h"
#include "runtime/outside/scripted_clients.h"
#include "tests/cli/gateway_graph.h"
#include "tests/sim/no_host.h"

namespace primerl::sim {
namespace {

constexpr uint64_t kRequests = 60;

CheckedGraph graph(std::vector<std::string> sets = {}) {
  const auto file = scratch_folder() / "gateway.toml";
  std::ofstream(file) << gateway_graph();
  Overrides overrides;
  overrides.sets = std::move(sets);
  overrides.cores = 2;
  return load_graph(file.string(), overrides, full_catalog());
}

struct Ended {
  RunOutcome outcome;
  ScriptedClientsCounts counts;
  int64_t num_gone = 0, num_joined = 0, num_lost = 0;
};

Ended run(const CheckedGraph& checked, uint64_t seed) {
  Ended ended;
  auto plan = std::make_shared<Plan>(*checked.plan);
  plan->settings.seed = static_cast<int64_t>(seed);
  for (Tenant& tenant : plan->tenants) tenant.checkpoint_every = 0;
  const ResourceFactory others = resource_factory();
  const ResourceFactory factory = [&](const Plan& of,
                                      int32_t index) -> Result<std::shared_ptr<Resource>> {
    if (of.resources[static_cast<size_t>(index)].kind != Outside::kResourceKind)
      return others(of, index);
    ScriptedClientsOptions options;
    options.num_requests = kRequests;
    return std::shared_ptr<Resource>(make_scripted_clients(options, &ended.counts));
  };
  NoHost host;
  VirtualExecutor executor(plan, factory, host,
                           {.seed = seed, .events_max = 2'000'000, .repeat_with = {}});
  const Status started = executor.start();
  EXPECT_TRUE(started.ok()) << started.error().text();
  if (!started.ok()) return ended;
  ended.outcome = executor.wait();
  for (const auto& [name, count] : executor.counters()) {
    if (name.ends_with(".clients_gone")) ended.num_gone += count;
    if (name.ends_with(".requests_joined")) ended.num_joined += count;
    if (name.ends_with(".completions_unknown")) ended.num_lost += count;
  }
  return ended;
}

uint64_t num_seeds(uint64_t most) {
  const char* few = std::getenv("PRIMERL_SIM_SEEDS");
  return few == nullptr ? most : std::min<uint64_t>(most, std::strtoull(few, nullptr, 10));
}

TEST(GatewaySim, EveryClientThatStaysGetsOneReply) {
  const auto checked = graph({"node.gateway.max_inflight=3", "tenant.main.max_steps=12"});
  ASSERT_NE(checked.plan, nullptr) << checked.diagnostics.all().front().message;
  int64_t num_gone = 0, num_joined = 0;
  for (uint64_t seed = 1; seed <= num_seeds(50); ++seed) {
    SCOPED_TRACE(seed);
    const Ended ended = run(checked, seed);
    EXPECT_EQ(ended.outcome.end, RunEnd::kFinished)
        << (ended.outcome.status.ok() ? "" : ended.outcome.status.error().text());
    EXPECT_EQ(ended.counts.num_replies, kRequests - kRequests / 5) << "each fifth client leaves";
    EXPECT_EQ(ended.counts.num_done, ended.counts.num_replies);
    EXPECT_EQ(ended.num_lost, 0);
    num_gone += ended.num_gone;
    num_joined += ended.num_joined;
  }
  EXPECT_GT(num_gone, 0);
  EXPECT_GT(num_joined, 0);
}

}  // namespace
}  // namespace primerl::sim
