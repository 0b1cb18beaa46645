// Bound: 10 M deliveries of 96 bytes are 960 MB in 120 segments. An indexed trace is opened from
// its indices, 4 bytes per step and 4 per message: 80 MB to map and to hash at 5-10 GB/s, so
// 0.01-0.02 s, and as much for the page tables. Indexing reads and checks everything: 960 MB at the
// 1-8 GB/s of CRC-32C and 100 ns per frame on each core, 1-2 s. A difference is found by digests of
// 1024 steps: 10 k comparisons, then 1024 steps decoded. Target: open and stat < 1 s, the first
// difference of a pair < 5 s. For a packed trace, indexing decompresses first, 1 GB at 1 GB/s per
// core: 0.5 s more; the rest reads one block per segment. A bisection over a field reads every
// message before the one it finds: 2.6 M of 10 M deliveries, 150 bytes checked, decoded and
// compared in 1 us: 2.6 s.
//
// PRIMERL_BENCH_STEPS sets the number of deliveries (default 10 M).
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>

#include "runtime/query/causes.h"
#include "runtime/query/diff.h"
#include "runtime/query/maintenance.h"
#include "runtime/query/stat.h"
#include "runtime/query/step_filter.h"
#include "runtime/query/step_text.h"
#include "runtime/replay/bisect.h"
#include "tests/trace/story.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

uint64_t num_rounds() {
  const char* given = std::getenv("PRIMERL_BENCH_STEPS");
  const uint64_t steps = given == nullptr ? 10'000'000 : std::strtoull(given, nullptr, 10);
  return steps * 2 / 7;  // 3.5 steps a round
}

/// Two equal traces in one folder, except for one message near the end; removed at the end.
class Pair {
 public:
  Pair() {
    std::string name = (fs::temp_directory_path() / "primerl-bench-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
    write(a(), 0);
    write(b(), num_rounds() * 9 / 10);
    write(packed(), 0, true);
  }
  ~Pair() {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  fs::path a() const { return root_ / "a"; }
  fs::path b() const { return root_ / "b"; }
  fs::path packed() const { return root_ / "packed"; }

 private:
  static void write(const fs::path& folder, uint64_t changed_step, bool packs = false) {
    SegmentWriterOptions options;
    options.folder = folder / "trace";
    options.run_id = 7;
    options.packs = false;
    TraceCatalog catalog = story::story_catalog();
    for (auto& link : catalog.links) link.record = "header";
    options.catalog = catalog.to_json().dump();
    auto writer = SegmentWriter::open(options);
    CHECK(writer.ok(), "the benchmark's trace cannot be written");
    story::StoryOptions told;
    told.num_rounds = num_rounds();
    story::tell(told, [&](story::StoryFrame& frame) {
      if (frame.kind() == TraceFrameKind::kPayload) return;
      if (frame.kind() == TraceFrameKind::kDelivery && changed_step > 0 &&
          frame.header().group == story::kTrainer && frame.delivery().step == changed_step)
        frame.delivery().payload_check ^= 1;
      CHECK((*writer)->append(frame.head, frame.tail), "the benchmark's trace has a gap");
    });
    CHECK((*writer)->close().ok(), "the benchmark's trace did not close");
    if (packs) CHECK(pack_trace(folder).ok(), "the benchmark's trace was not packed");
  }
  fs::path root_;
};

/// One trace with the contents of its messages.
class Stored {
 public:
  Stored() {
    std::string name = (fs::temp_directory_path() / "primerl-bench-XXXXXX").string();
    folder = ::mkdtemp(name.data());
    SegmentWriterOptions options;
    options.folder = folder / "trace";
    options.run_id = 7;
    options.packs = false;
    options.catalog = story::story_catalog().to_json().dump();
    auto writer = SegmentWriter::open(options);
    CHECK(writer.ok(), "the benchmark's trace cannot be written");
    story::StoryOptions told;
    told.num_rounds = num_rounds();
    story::tell(told, [&](story::StoryFrame& frame) {
      CHECK((*writer)->append(frame.head, frame.tail), "the benchmark's trace has a gap");
    });
    CHECK((*writer)->close().ok(), "the benchmark's trace did not close");
  }
  ~Stored() {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
  fs::path folder;
};

const Pair& the_pair() {
  static const Pair pair;
  return pair;
}

std::shared_ptr<const Trace> opened(const fs::path& folder) {
  auto trace = Trace::open(folder);
  CHECK(trace.ok(), trace.error().text());
  return *trace;
}

void OpenWithoutIndex(benchmark::State& state) {
  for (auto _ : state) {
    state.PauseTiming();
    for (const auto& entry : fs::directory_iterator(the_pair().a() / "trace"))
      if (entry.path().extension() == ".index") fs::remove(entry.path());
    state.ResumeTiming();
    const auto trace = opened(the_pair().a());
    state.counters["steps"] = static_cast<double>(trace->num_steps());
    state.counters["bytes"] = static_cast<double>(trace->summary().file_bytes);
  }
}
BENCHMARK(OpenWithoutIndex)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(1);

void Open(benchmark::State& state) {
  (void)opened(the_pair().a());
  for (auto _ : state) benchmark::DoNotOptimize(opened(the_pair().a())->num_steps());
}
BENCHMARK(Open)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(5);

void OpenAndStat(benchmark::State& state) {
  (void)opened(the_pair().a());
  for (auto _ : state) benchmark::DoNotOptimize(stat_trace(*opened(the_pair().a())).edges.size());
}
BENCHMARK(OpenAndStat)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(5);

void OpenBothAndDiff(benchmark::State& state) {
  (void)opened(the_pair().a());
  (void)opened(the_pair().b());
  for (auto _ : state) {
    const auto a = opened(the_pair().a());
    const TraceDiff diff = diff_traces(*a, *opened(the_pair().b()));
    CHECK(!diff.is_equal(), "the planted difference was not found");
    state.counters["compared"] = static_cast<double>(diff.num_steps);
  }
}
BENCHMARK(OpenBothAndDiff)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(3);

void OpenPackedWithoutIndex(benchmark::State& state) {
  for (const auto& entry : fs::directory_iterator(the_pair().packed() / "trace"))
    if (entry.path().extension() == ".index") fs::remove(entry.path());
  for (auto _ : state) {
    const auto trace = opened(the_pair().packed());
    state.counters["steps"] = static_cast<double>(trace->num_steps());
    state.counters["bytes"] = static_cast<double>(trace->summary().file_bytes);
  }
}
BENCHMARK(OpenPackedWithoutIndex)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(1);

void OpenPackedAndStat(benchmark::State& state) {
  (void)opened(the_pair().packed());
  for (auto _ : state)
    benchmark::DoNotOptimize(stat_trace(*opened(the_pair().packed())).edges.size());
}
BENCHMARK(OpenPackedAndStat)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(5);

void OpenAndDiffPackedAgainstRaw(benchmark::State& state) {
  (void)opened(the_pair().packed());
  (void)opened(the_pair().b());
  for (auto _ : state) {
    const auto packed = opened(the_pair().packed());
    CHECK(!diff_traces(*packed, *opened(the_pair().b())).is_equal(), "the planted one is missed");
  }
}
BENCHMARK(OpenAndDiffPackedAgainstRaw)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(3);

/// A field that nine tenths of the messages do not have yet.
void BisectAField(benchmark::State& state) {
  const Stored stored;
  (void)opened(stored.folder);
  Predicate predicate;
  predicate.node = "env";
  predicate.path = "task.ordinal";
  predicate.comparison = ">=";
  predicate.number = static_cast<double>(num_rounds()) * 0.9;
  for (auto _ : state) {
    const auto result = bisect(stored.folder.string(), predicate);
    CHECK(result.ok(), result.error().text());
    CHECK(result->found.has_value(), "the bisection found nothing");
    state.counters["messages"] = static_cast<double>(result->num_looked_at);
  }
}
BENCHMARK(BisectAField)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(1);

/// As if numbers differ between the two: nothing can be skipped.
void VisitEveryStep(benchmark::State& state) {
  const auto trace = opened(the_pair().a());
  const auto filter = StepFilter::make(*trace, {.types = {"Live"}});
  for (auto _ : state) benchmark::DoNotOptimize(find_steps(*trace, *filter, 1).num_more);
}
BENCHMARK(VisitEveryStep)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(1);

void WhyOfOneStep(benchmark::State& state) {
  const auto trace = opened(the_pair().a());
  const auto step = trace->step(GroupId(story::kTrainer), num_rounds());
  for (auto _ : state) benchmark::DoNotOptimize(why(*trace, *step, 100).entries.size());
}
BENCHMARK(WhyOfOneStep)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace primerl

BENCHMARK_MAIN();
