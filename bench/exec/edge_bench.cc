// Bound: a bare pair of CAF actors with hand-written credits moves a message in 150-250 ns (one
// allocation, one mailbox push, one dispatch). An edge here also allocates once (60 ns with the
// release), moves a 100-byte envelope three times (30 ns), updates inbox, credit and ledger (60 ns)
// and runs the step itself (50 ns, including an eighth of a clock reading). Two mailbox pushes
// serve a whole window. Target: >= 0.6 of the bare pair at one emission per step, >= 1.0 at 32;
// request/reply <= 1.5 times bare CAF's; a 64 MiB Blob to 100 actors <= 100 us without a copy.
#include <benchmark/benchmark.h>

#include <chrono>
#include <ctime>

#include "bench/exec/bare_caf.h"
#include "runtime/exec/caf_executor.h"
#include "tests/conformance/executor_actors.h"

namespace primerl {
namespace {

constexpr int64_t kMessages = 400'000;
constexpr int64_t kRequests = 100'000;
constexpr int64_t kBroadcasts = 300;
constexpr int64_t kReceivers = 100;

std::unique_ptr<CafExecutor> make_executor(std::shared_ptr<const Plan> plan,
                                           ProcessServices& process_services) {
  CafExecutorSetup setup;
  setup.plan = std::move(plan);
  setup.process_services = &process_services;
  setup.factory = conformance_factory();
  return std::make_unique<CafExecutor>(std::move(setup));
}

/// Runs a graph to its end and returns the seconds from start() until it has drained.
double run_seconds(const std::shared_ptr<const Plan>& plan) {
  TestHostServices process_services;
  auto executor = make_executor(plan, process_services);
  CHECK(executor->start().ok(), "the benchmark's graph did not start");
  const auto begin = std::chrono::steady_clock::now();
  const auto outcome = executor->wait();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  CHECK(outcome.end == RunEnd::kFinished, "the benchmark's graph did not finish");
  return seconds.count();
}

/// CPU time per item, which a busy machine disturbs less than wall time.
class CpuMeter {
 public:
  explicit CpuMeter(benchmark::State& state) : state_(state), begin_(now()) {}
  void report(int64_t items_per_iteration) const {
    state_.SetItemsProcessed(state_.iterations() * items_per_iteration);
    state_.counters["cpu_ns_per_item"] =
        (now() - begin_) / static_cast<double>(state_.iterations() * items_per_iteration);
  }

 private:
  static double now() {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
  }
  benchmark::State& state_;
  const double begin_;
};

std::string settings(int64_t pool_threads) {
  return fmt::format("pool_threads = {}", pool_threads);
}

void edge(benchmark::State& state) {
  const auto plan = conformance_plan(fmt::format(R"(
[node.source]
actor = "source"
count = {0}
per_turn = {1}
[node.sink]
actor = "sink"
count = {0}
[edges]
forward = [{{ path = "source.out -> sink.in", capacity = 64 }}]
)",
                                                 kMessages, state.range(0)),
                                     settings(state.range(1)));
  const CpuMeter meter(state);
  for (auto iteration : state) {
    (void)iteration;
    state.SetIterationTime(run_seconds(plan));
  }
  meter.report(kMessages);
}

void bare_pair(benchmark::State& state) {
  const CpuMeter meter(state);
  for (auto iteration : state) {
    (void)iteration;
    state.SetIterationTime(bare_pair_seconds(kMessages, 64, state.range(0)));
  }
  meter.report(kMessages);
}

void request(benchmark::State& state) {
  const auto plan = conformance_plan(fmt::format(R"(
[node.asker]
actor = "asker"
count = {}
[node.answerer]
actor = "answerer"
[edges]
forward = ["asker.question -> answerer.question"]
feedback = ["answerer.reply -> asker.reply"]
)",
                                                 kRequests),
                                     settings(state.range(0)));
  const CpuMeter meter(state);
  for (auto iteration : state) {
    (void)iteration;
    state.SetIterationTime(run_seconds(plan));
  }
  meter.report(kRequests);
}

void bare_request(benchmark::State& state) {
  const CpuMeter meter(state);
  for (auto iteration : state) {
    (void)iteration;
    state.SetIterationTime(bare_request_seconds(kRequests, state.range(0)));
  }
  meter.report(kRequests);
}

void blob_broadcast(benchmark::State& state) {
  const auto plan = conformance_plan(fmt::format(R"(
[node.blob_source]
actor = "blob_source"
count = {0}
num_bytes = {2}
num_receivers = 0
[node.blob_sink]
actor = "blob_sink"
replicas = {1}
[edges]
forward = ["blob_source.out -> blob_sink.in"]
)",
                                                 kBroadcasts, kReceivers, int64_t{64} << 20),
                                     settings(state.range(0)));
  const CpuMeter meter(state);
  for (auto iteration : state) {
    (void)iteration;
    state.SetIterationTime(run_seconds(plan) / kBroadcasts);
  }
  meter.report(kBroadcasts);
}

void bare_broadcast(benchmark::State& state) {
  const CpuMeter meter(state);
  for (auto iteration : state) {
    (void)iteration;
    state.SetIterationTime(
        bare_broadcast_seconds(kBroadcasts, kReceivers, int64_t{64} << 20, state.range(0)) /
        kBroadcasts);
  }
  meter.report(kBroadcasts);
}

BENCHMARK(bare_pair)->ArgName("threads")->Arg(1)->Arg(2)->UseManualTime();
BENCHMARK(edge)->ArgNames({"per_step", "threads"})->ArgsProduct({{1, 32}, {1, 2}})->UseManualTime();
BENCHMARK(bare_request)->ArgName("threads")->Arg(1)->Arg(2)->UseManualTime();
BENCHMARK(request)->ArgName("threads")->Arg(1)->Arg(2)->UseManualTime();
BENCHMARK(bare_broadcast)
    ->ArgName("threads")
    ->Arg(1)
    ->Iterations(5)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(blob_broadcast)
    ->ArgName("threads")
    ->Arg(1)
    ->Iterations(5)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace primerl

BENCHMARK_MAIN();
