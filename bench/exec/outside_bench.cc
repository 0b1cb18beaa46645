// Bound: 256 rollouts of an environment that sleeps for 1 s in one worker process take 1 s, plus
// the start of Python (about 0.06 s, of which asyncio is a half) and 512 calls of some 50 us.
// Target: at most 1.1 s. A reward that a worker gives costs two lines of JSON in each direction, a
// share of the system calls that carry many of them, and the function itself: some 100
// core-microseconds more than the same reward in C++.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "graph/base/real_clock.h"
#include "bench/exec/scripted_demo.h"
#include "tests/sim/no_host.h"

namespace primerl::sim {
namespace {

/// Writes a Python file, and returns its name.
std::string python_file(const std::string& text) {
  const auto file = std::filesystem::temp_directory_path() /
                    fmt::format("outside_bench_{}_{:x}.py", ::getpid(), stable_hash(text));
  std::ofstream(file) << text;
  return file.string();
}

std::string sleeper(int64_t milliseconds) {
  return python_file(
      fmt::format("import asyncio\n"
                  "class Environment:\n"
                  "    def __init__(self, ordinal, seed):\n"
                  "        self.ordinal = ordinal\n"
                  "    async def task(self):\n"
                  "        return 'abcdefghijklmnop'[self.ordinal % 16]\n"
                  "    async def step(self, action):\n"
                  "        await asyncio.sleep({} / 1000)\n"
                  "        return {{'reward': len(action) % 7}}\n",
                  milliseconds));
}

std::shared_ptr<Plan> demo(std::vector<std::string> sets) {
  sets.emplace_back("tenant.main.filters.zero_advantage=false");
  return scripted_demo(sets, full_catalog());
}

struct StepTimes final : NoHost {
  void publish_metrics(TenantSlot, int64_t, const MetricValues& values) override {
    for (const auto& [name, value] : values)
      if (name == "time/step") last_step = value;
  }
  double last_step = 0;
};

/// Runs the graph; the seconds of its last step.
double run(const std::shared_ptr<Plan>& plan) {
  StepTimes host;
  run_to_end(plan, host);
  return host.last_step;
}

/// One step of 256 rollouts, from the start of the executor and of the worker to the end of both.
/// `step_s` ends with the training step.
void one_batch(benchmark::State& state) {
  const auto plan =
      demo({fmt::format("tenant.main.environment={{name=\"python\",file=\"{}\",num_workers={},"
                        "python=\"{}\"}}",
                        sleeper(state.range(1)), state.range(0), PRIMERL_PYTHON),
            "tenant.main.max_steps=1"});
  for (auto _ : state) state.counters["step_s"] = run(plan);
}
BENCHMARK(one_batch)
    ->ArgNames({"workers", "sleep_ms"})
    ->Args({1, 0})
    ->Args({1, 1000})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->Iterations(1)
    ->Repetitions(7);

double cpu_seconds(int who) {
  rusage usage{};
  ::getrusage(who, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Cpu {
  double own = 0;      // of this process
  double workers = 0;  // of the workers, which have ended
};

Cpu cpu_of_run(const std::string& reward, int64_t steps) {
  const auto plan =
      demo({"tenant.main.environment={name=\"reverse_text\"}", "tenant.main.reward=" + reward,
            fmt::format("tenant.main.max_steps={}", steps)});
  const Cpu before{cpu_seconds(RUSAGE_SELF), cpu_seconds(RUSAGE_CHILDREN)};
  run(plan);
  return {cpu_seconds(RUSAGE_SELF) - before.own, cpu_seconds(RUSAGE_CHILDREN) - before.workers};
}

/// CPU time of one call, of both sides, from runs of many steps and of one: what a start costs is
/// left out.
Cpu cpu_of_call(const std::string& reward, int64_t steps) {
  const Cpu more = cpu_of_run(reward, steps), one = cpu_of_run(reward, 1);
  const double calls = static_cast<double>((steps - 1) * kDemoBatch);
  return {(more.own - one.own) / calls, (more.workers - one.workers) / calls};
}

/// A reward in Python beside the same in C++, 256 rollouts in flight: core-microseconds that a
/// sample costs more.
void python_reward(benchmark::State& state) {
  constexpr int64_t kSteps = 21;
  const std::string file =
      python_file(fmt::format("{}def reward(completion, answer):\n"
                              "    return 1.0 if completion == answer else 0.0\n",
                              state.range(0) != 0 ? "async " : ""));
  for (auto _ : state) {
    const Cpu here = cpu_of_call("{name=\"exact\"}", kSteps);
    const Cpu python = cpu_of_call(fmt::format("{{name=\"python\",file=\"{}\"}}", file), kSteps);
    state.counters["run_us"] = (python.own - here.own) * 1e6;
    state.counters["worker_us"] = python.workers * 1e6;
    state.counters["call_us"] = (python.own - here.own + python.workers) * 1e6;
    state.counters["exact_sample_us"] = here.own * 1e6;
  }
}
BENCHMARK(python_reward)
    ->ArgNames({"async"})
    ->Args({0})
    ->Args({1})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->Iterations(1)
    ->Repetitions(5);

}  // namespace
}  // namespace primerl::sim

BENCHMARK_MAIN();
