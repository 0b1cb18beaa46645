// Many tenants in one world on the virtual clock: each makes its steps, and starting them takes no
// longer for each than for few. PRIMERL_SIM_TENANTS=4096 asks for so many.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "graph/base/files.h"
#include "graph/plan.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "tests/sim/no_host.h"

namespace primerl::sim {
namespace {

constexpr int64_t kStepsOfEach = 2;

int64_t num_sim_tenants() {
  const char* const wanted = std::getenv("PRIMERL_SIM_TENANTS");
  return wanted == nullptr ? 96 : std::strtoll(wanted, nullptr, 10);
}

CheckedGraph graph_of_many(int64_t num_tenants) {
  const std::string example = std::string(PRIMERL_SOURCE_DIR) + "/examples/two_tenants/graph.toml";
  const std::string text = read_text_file(example, 1 << 20).value();
  std::string tables;
  for (int64_t i = 0; i < num_tenants; ++i)
    tables += fmt::format(
        "[tenant.t{0}]\nenvironment = {{ name = \"reverse_text\" }}\ngroup_size = 2\n"
        "batch_size = 2\nmax_steps = {1}\nmax_off_policy_steps = 0\ninflight = 2\n"
        "filters = {{ zero_advantage = false }}\nsampling = {{ max_tokens = 2 }}\n"
        "[tenant.t{0}.adapter]\nrank = 2\n\n",
        i, kStepsOfEach);
  const auto file = scratch_folder() / "many.toml";
  std::ofstream(file) << text.substr(0, text.find("[tenant.")) << tables
                      << text.substr(text.find("[model."));
  Overrides overrides;
  overrides.sets = {
      fmt::format("model.policy.path=\"{}/examples/reverse_text/base\"", PRIMERL_SOURCE_DIR),
      "resource.engine.backend=\"scripted\"", "resource.learner.backend=\"scripted\"",
      fmt::format("node.rollout.max_inflight={}", 2 * num_tenants)};
  overrides.cores = 2;
  return load_graph(file.string(), overrides, full_catalog());
}

class HostOfMany final : public NoHost {
 public:
  void publish_metrics(TenantSlot tenant, int64_t step, const MetricValues&) override {
    EXPECT_EQ(step, ++steps[tenant]) << tenant.value;
  }
  std::map<TenantSlot, int64_t> steps;
};

TEST(ManyTenants, EachMakesItsStepsInOneWorld) {
  const int64_t num_tenants = num_sim_tenants();
  const CheckedGraph graph = graph_of_many(num_tenants);
  ASSERT_NE(graph.plan, nullptr) << graph.diagnostics.all().front().message;
  HostOfMany host;
  VirtualOptions options;
  options.seed = 5;
  VirtualExecutor executor(graph.plan, resource_factory(), host, options);
  ASSERT_TRUE(executor.start().ok());
  const RunOutcome outcome = executor.wait();
  EXPECT_EQ(outcome.end, RunEnd::kFinished)
      << (outcome.status.ok() ? outcome.stall.text() : outcome.status.error().text());
  EXPECT_EQ(std::ssize(host.steps), num_tenants);
  for (const auto& [tenant, steps] : host.steps) EXPECT_EQ(steps, kStepsOfEach) << tenant.value;
  for (const auto& edge : outcome.ledger) {
    EXPECT_TRUE(edge.balances());
    EXPECT_EQ(edge.in_flight, 0U);
  }
}

}  // namespace
}  // namespace primerl::sim
