/// The graph of the demo with a scripted engine and learner, and its run in this process: what the
/// benches of environments measure. Plain functions.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/exec/caf_executor.h"

namespace primerl::sim {

inline constexpr int64_t kDemoBatch = 256;  // rollouts of one step, all of them in flight

/// `sets` are values of `--set`, for example the environment and max_steps. `catalog` must stay
/// valid while the plan exists.
inline std::shared_ptr<Plan> scripted_demo(const std::vector<std::string>& sets,
                                           const Catalog& catalog) {
  Overrides overrides;
  overrides.cores = 2;
  overrides.sets = {
      fmt::format("model.policy.path=\"{}/examples/reverse_text/base\"", PRIMERL_SOURCE_DIR),
      "resource.engine.backend=\"scripted\"",
      "resource.learner.backend=\"scripted\"",
      "resource.engine.max_running=256",
      "resource.engine.kv_blocks=65536",
      fmt::format("tenant.main.batch_size={}", kDemoBatch),
      fmt::format("node.rollout.max_inflight={}", kDemoBatch),
      "tenant.main.max_off_policy_steps=0",
      "tenant.main.checkpoint_every=0",
      "tenant.main.environment_timeout=\"600s\"",
      "tenant.main.rollout_timeout=\"900s\"",
      "graph.drain_max=\"700s\""};
  overrides.sets.insert(overrides.sets.end(), sets.begin(), sets.end());
  const auto checked = load_graph(
      std::string(PRIMERL_SOURCE_DIR) + "/examples/reverse_text/graph.toml", overrides, catalog);
  CHECK(checked.plan != nullptr, render(checked.diagnostics, checked.sources));
  return std::make_shared<Plan>(*checked.plan);
}

/// From the start of the executor to the end of the run, which must succeed.
inline void run_to_end(const std::shared_ptr<Plan>& plan, ProcessServices& host) {
  CafExecutorSetup setup;
  setup.plan = plan;
  setup.process_services = &host;
  setup.factory = resource_factory();
  CafExecutor executor(std::move(setup));
  CHECK(executor.start().ok(), "the run did not start");
  const RunOutcome outcome = executor.wait();
  CHECK(outcome.status.ok(), outcome.status.error().text());
}

}  // namespace primerl::sim
