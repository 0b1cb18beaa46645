// Bound: a step of Router or Rollout handles one message and sends about one. Reading the step from
// the trace is one look-up of 96 bytes (one or two cache misses: 100 ns). The message comes from
// its sender (a pointer) or is decoded from 300 bytes (300 ns) and checked (140 ns, one
// multiplication per 8 bytes and a call per field). Handling it costs the same as in the run
// (200-400 ns per step of an empty actor, about as much for the actor's maps). Its output is looked
// up twice (100 ns each: its delivery, and the step there) and checked (140 ns). So 1.1 us to 1.6
// us, 600-900 k messages/s. Target: 500 k.
//
// A run of the scripted graph on the virtual clock, 64 rollouts per step; PRIMERL_BENCH_STEPS sets
// the number of training steps (default 300). `alone`: the trace has the contents of every message.
// `with senders`: it has what a run records by default, so the groups whose messages are not
// recorded are run again too.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/exec/virtual_executor.h"
#include "runtime/replay/replay_session.h"
#include "runtime/trace/record/recorder.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

class Recorded {
 public:
  explicit Recorded(bool keeps_all) {
    std::string name = (fs::temp_directory_path() / "primerl-bench-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    const char* steps = std::getenv("PRIMERL_BENCH_STEPS");
    Overrides overrides;
    overrides.cores = 2;
    overrides.sets = {std::string("tenant.main.max_steps=") + (steps == nullptr ? "300" : steps),
                      "tenant.main.batch_size=64", "tenant.main.group_size=8",
                      "tenant.main.checkpoint_every=0", "node.rollout.max_inflight=128"};
    const auto checked =
        load_graph(PRIMERL_SOURCE_DIR "/tests/cli/graphs/scripted.toml", overrides, full_catalog());
    CHECK(checked.plan != nullptr, "the benchmark's graph is not valid");
    auto changed = std::make_shared<Plan>(*checked.plan);
    if (keeps_all)
      for (PlanEdge& edge : changed->edges) edge.record = RecordPolicy::kPayload;
    plan = changed;
    record();
    auto opened = Trace::open(folder_);
    CHECK(opened.ok(), opened.error().text());
    trace = *opened;
  }
  ~Recorded() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  GroupId host_of(std::string_view node) const {
    for (const auto& instance : plan->instances)
      if (plan->node(instance.node).name == node) return instance.group;
    CHECK(false, "no such node");
    return {};
  }

  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const Trace> trace;

 private:
  void record() {
    TraceCatalog catalog = make_trace_catalog(*plan, *make_wiring(*plan));
    catalog.is_virtual = true;
    SegmentWriterOptions options;
    options.folder = folder_ / "trace";
    options.run_id = 7;
    options.catalog = catalog.to_json().dump();
    options.packs = false;
    auto writer = SegmentWriter::open(options);
    CHECK(writer.ok(), writer.error().text());
    Recorder recorder(catalog, **writer);
    ReplayHostServices process_services("", {});
    CHECK(process_services.open().ok(), "no folder for checkpoints");
    VirtualExecutor executor(plan, recording_factory(resource_factory(), recorder),
                             process_services,
                             {.seed = 7,
                              .observer = &recorder,
                              .events_max = 100'000'000,
                              .repeat_with = "trace_replay_bench"});
    const Status started = executor.start();
    CHECK(started.ok(), started.error().text());
    const RunOutcome outcome = executor.wait();
    CHECK((*writer)->close().ok(), "the benchmark's trace did not close");
  }
  fs::path folder_;
};

const Recorded& recorded(bool keeps_all) {
  static const Recorded all(true), some(false);
  return keeps_all ? all : some;
}

void redrive(benchmark::State& state, std::string_view node, bool keeps_all) {
  const Recorded& run = recorded(keeps_all);
  uint64_t num_steps = 0, num_real = 0;
  for (auto _ : state) {
    ReplayHostServices process_services("", {});
    CHECK(process_services.open().ok(), "no folder for checkpoints");
    ReplaySetup setup;
    setup.plan = run.plan;
    setup.trace = run.trace;
    use_resources(setup, resource_factory(), ReplayDepth::kControl);
    setup.process_services = &process_services;
    setup.options.is_real.assign(run.plan->groups.size(), false);
    setup.options.is_real[run.host_of(node).index()] = true;
    const std::vector<bool> is_absent(run.plan->groups.size(), false);
    close_over(*run.plan, *run.trace, false, is_absent, setup.options.is_real);
    num_real = static_cast<uint64_t>(
        std::count(setup.options.is_real.begin(), setup.options.is_real.end(), true));
    const auto replay = Replay::make(std::move(setup));
    CHECK(replay.ok(), "the replay cannot be made");
    const auto report = (*replay)->run();
    CHECK(report.ok() && report->is_identical(), "the replay diverged");
    num_steps += report->total_steps();
  }
  state.SetItemsProcessed(static_cast<int64_t>(num_steps));
  state.counters["steps"] =
      static_cast<double>(num_steps) / static_cast<double>(state.iterations());
  state.counters["groups"] = static_cast<double>(num_real);
}

void RouterAlone(benchmark::State& state) { redrive(state, "router", true); }
BENCHMARK(RouterAlone)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();
void RouterWithSenders(benchmark::State& state) { redrive(state, "router", false); }
BENCHMARK(RouterWithSenders)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();
void RolloutAlone(benchmark::State& state) { redrive(state, "rollout", true); }
BENCHMARK(RolloutAlone)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();
void RolloutWithSenders(benchmark::State& state) { redrive(state, "rollout", false); }
BENCHMARK(RolloutWithSenders)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();

}  // namespace
}  // namespace primerl

BENCHMARK_MAIN();
