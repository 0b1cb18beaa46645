// Bound: a cut copies the state of a group between two of its steps, on its thread. A core copies 1
// MB of state in 0.1 ms at 10 GB/s; with allocations it is typically three times that. Target: at
// most 2 ms of any group's thread for the demo, all cuts at most 1 % of the wall time; for larger
// states, 1 GB/s.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "runtime/wire/msgpack_codec.h"
#include "tests/sim/demo_run.h"

namespace primerl::sim {
namespace {

/// CPU time of this thread, so that other programs on the core do not count.
double now_us() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

/// Collects the parts of all groups, and the time to make each.
class Parts final : public CutSink {
 public:
  void add_part(uint64_t, GroupState&& state) override {
    has_part = true;
    group = state.group;
    MsgpackWriter writer;  // in a run this is on another thread
    const double begin = now_us();
    wire::write(writer, state);
    write_us = now_us() - begin;
    num_bytes = writer.take_body().size();
    for (const Blob& blob : writer.take_blobs()) num_bytes += blob.size();
  }
  void add_in_transit(uint64_t, SavedMessage&&) override {}

  bool has_part = false;
  GroupId group;
  double write_us = 0;
  size_t num_bytes = 0;
};

/// The demo's graph, with a cut every 2,000 events. One event is one group's part. The largest is
/// the router's, which keeps the last 100,000 sessions: 2,900 after 60 steps, 28,000 after 600.
void cuts_of_the_demo(benchmark::State& state) {
  const DemoCase demo{.seed = 1,
                      .group_size = 8,
                      .batch_size = 64,
                      .max_steps = state.range(0),
                      .sets = {"node.rollout.max_inflight=512"}};
  std::vector<double> part_us;
  size_t largest = 0;
  for (auto _ : state) {
    Parts parts;
    uint64_t num_events = 0, number = 0;
    double last_us = now_us();
    DemoHooks hooks;
    hooks.cuts = &parts;
    hooks.is_judged = false;
    hooks.after_event = [&](VirtualExecutor& executor) -> Status {
      const double now = now_us();
      if (std::exchange(parts.has_part, false)) {
        part_us.push_back(now - last_us - parts.write_us);
        largest = std::max(largest, parts.num_bytes);
      }
      if (++num_events % 2000 == 0) executor.cut(++number);
      last_us = now_us();
      return ok();
    };
    const auto result = run_demo(demo, hooks);
    CHECK(result.outcome.status.ok(), "the demo failed");
  }
  std::ranges::sort(part_us);
  CHECK(!part_us.empty(), "no cut was made");
  state.counters["parts"] = static_cast<double>(part_us.size());
  state.counters["median_us"] = part_us[part_us.size() / 2];
  state.counters["p99_us"] = part_us[part_us.size() * 99 / 100];
  state.counters["most_us"] = part_us.back();
  state.counters["largest_part_bytes"] = static_cast<double>(largest);
}
BENCHMARK(cuts_of_the_demo)->ArgName("steps")->Arg(60)->Arg(600)->Iterations(1);

}  // namespace
}  // namespace primerl::sim

BENCHMARK_MAIN();
