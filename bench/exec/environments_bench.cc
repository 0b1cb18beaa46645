// Bound: an environment that sleeps for 0.2 s, one call per rollout, takes as long as one call if
// no call waits for another. Each instance has its own thread; making 257 of them, with their
// stacks and inboxes, should take some 10 ms. Target: 256 rollouts of an environment that sleeps 1
// s take at most 1.5 s, so everything besides the sleep takes at most 0.5 s.
#include <benchmark/benchmark.h>

#include <chrono>
#include <thread>

#include "actors/env/env.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/exec/caf_executor.h"
#include "tests/sim/no_host.h"

namespace primerl::sim {
namespace {

class Sleeper final : public Environment {
 public:
  explicit Sleeper(std::chrono::milliseconds sleep) : sleep_(sleep) {}
  Result<EnvironmentTask> task(uint64_t ordinal, RandomStream) override {
    return EnvironmentTask{fmt::format("{}", static_cast<char>('a' + ordinal % 26)), ""};
  }
  Result<EnvironmentStep> step(const EnvironmentTask& task,
                               const std::vector<std::string>& actions) override {
    std::this_thread::sleep_for(sleep_);
    const uint64_t draw = stable_hash(actions.back(), stable_hash(task.prompt));
    return EnvironmentStep{"", static_cast<double>(draw % 1000) / 1000, true};
  }

 private:
  const std::chrono::milliseconds sleep_;
};

/// One step of 256 rollouts of the demo's graph with a scripted engine and learner, from the start
/// of the executor to the end of its run. Arguments: replicas of the env node, milliseconds that
/// the environment sleeps.
void one_batch(benchmark::State& state) {
  const std::chrono::milliseconds sleep(state.range(1));
  Catalog catalog = full_catalog();
  for (Contract& contract : catalog.actors)
    if (contract.name == "env")
      contract.make = [sleep](const void* options) -> std::unique_ptr<Actor> {
        return std::make_unique<Env>(*static_cast<const EnvOptions*>(options),
                                     std::make_unique<Sleeper>(sleep));
      };
  Overrides overrides;
  overrides.cores = 2;
  overrides.sets = {
      fmt::format("model.policy.path=\"{}/examples/reverse_text/base\"", PRIMERL_SOURCE_DIR),
      "resource.engine.backend=\"scripted\"",
      "resource.learner.backend=\"scripted\"",
      "resource.engine.max_running=256",
      "resource.engine.kv_blocks=65536",
      "tenant.main.group_size=8",
      "tenant.main.batch_size=256",
      "tenant.main.max_steps=1",
      "tenant.main.max_off_policy_steps=0",
      "tenant.main.checkpoint_every=0",
      "tenant.main.environment_timeout=\"600s\"",
      "tenant.main.rollout_timeout=\"900s\"",
      "graph.drain_max=\"700s\"",
      "node.rollout.max_inflight=256",
      fmt::format("node.env.replicas={}", state.range(0))};
  const auto checked = load_graph(
      std::string(PRIMERL_SOURCE_DIR) + "/examples/reverse_text/graph.toml", overrides, catalog);
  CHECK(checked.plan != nullptr, render(checked.diagnostics, checked.sources));
  for (auto _ : state) {
    NoHost host;
    CafExecutorSetup setup;
    setup.plan = std::make_shared<Plan>(*checked.plan);
    setup.process_services = &host;
    setup.factory = resource_factory();
    CafExecutor executor(std::move(setup));
    CHECK(executor.start().ok(), "the run did not start");
    const RunOutcome outcome = executor.wait();
    CHECK(outcome.status.ok(), outcome.status.error().text());
  }
}
BENCHMARK(one_batch)
    ->ArgNames({"replicas", "sleep_ms"})
    ->Args({257, 0})
    ->Args({257, 200})
    ->Args({257, 1000})
    ->Args({33, 200})
    ->Args({1, 10})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->Iterations(1)
    ->Repetitions(3);

}  // namespace
}  // namespace primerl::sim

BENCHMARK_MAIN();
