// Bound: an environment that sleeps for 0.2 s, one call per rollout, takes as long as one call if
// no call waits for another. Each instance has its own thread; making 257 of them, with their
// stacks and inboxes, should take some 10 ms. Target: 256 rollouts of an environment that sleeps 1
// s take at most 1.5 s, so everything besides the sleep takes at most 0.5 s.
#include <benchmark/benchmark.h>

#include <chrono>
#include <thread>

#include "actors/env/env.h"
#include "bench/exec/scripted_demo.h"
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
  const auto plan = scripted_demo(
      {"tenant.main.group_size=8", "tenant.main.max_steps=1",
       fmt::format("node.env.replicas={}", state.range(0))},
      catalog);
  for (auto _ : state) {
    NoHost host;
    run_to_end(plan, host);
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
