// Bound: a delivery frame is 96 bytes. Its CRC is 11 dependent crc32 instructions of 3 cycles (11
// ns at 3 GHz), the reservation one locked addition (6 ns), the copy 1.5 cache lines of memory that
// the background thread has touched but that left the cache (10 ns): about 30 ns of the 55 ns that
// recording a delivery may cost in all. Thread CPU time, rollover included; the background thread
// (faulting pages, sealing, packing) is not counted.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "graph/base/crc32c.h"
#include "runtime/trace/record/segment_writer.h"

namespace primerl {
namespace {

// One run's folder, shared by the threads of a benchmark.
struct Bench {
  std::filesystem::path folder;
  std::unique_ptr<SegmentWriter> writer;
};
Bench bench;

void open_writer(TraceLevel level, bool packs) {
  std::string name = (std::filesystem::temp_directory_path() / "primerl_bench_XXXXXX").string();
  bench.folder = ::mkdtemp(name.data());
  SegmentWriterOptions options;
  options.folder = bench.folder;
  options.catalog = std::string(20'000, ' ');
  options.level = level;
  options.packs = packs;
  options.trace_bytes_max = uint64_t{64} << 20;
  auto writer = SegmentWriter::open(options);
  CHECK(writer.ok(), writer.error().text());
  bench.writer = *std::move(writer);
}

void close_writer() {
  const Status closed = bench.writer->close();
  CHECK(closed.ok(), closed.error().text());
  bench.writer.reset();
  std::filesystem::remove_all(bench.folder);
}

double thread_cpu_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

void append_deliveries(benchmark::State& state) {
  DeliveryFrame frame{};
  frame.header.kind = static_cast<uint8_t>(TraceFrameKind::kDelivery);
  frame.header.group = static_cast<uint32_t>(state.thread_index());
  const double begin = thread_cpu_ns();
  for (auto _ : state) {
    ++frame.step;
    if (!bench.writer->append(std::as_writable_bytes(std::span(&frame, 1))))
      state.SkipWithError("the trace failed");
  }
  state.counters["cpu_ns_per_append"] =
      benchmark::Counter((thread_cpu_ns() - begin) / static_cast<double>(state.iterations()),
                         benchmark::Counter::kAvgThreads);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(sizeof(frame)));
}

void Append(benchmark::State& state) {
  if (state.thread_index() == 0) open_writer(TraceLevel::kProcess, state.range(0) != 0);
  append_deliveries(state);
  if (state.thread_index() == 0) close_writer();
}
BENCHMARK(Append)
    ->ArgName("packs")
    ->Arg(0)
    ->Arg(1)
    ->Iterations(2'000'000)
    ->Threads(1)
    ->Threads(2)
    ->Repetitions(5)
    ->ReportAggregatesOnly();

void AppendRing(benchmark::State& state) {
  if (state.thread_index() == 0) open_writer(TraceLevel::kRing, false);
  append_deliveries(state);
  if (state.thread_index() == 0) close_writer();
}
BENCHMARK(AppendRing)->Iterations(2'000'000)->Repetitions(5)->ReportAggregatesOnly();

// A segment that is never full: the cost of one append alone.
void AppendWarm(benchmark::State& state) {
  open_writer(TraceLevel::kRing, false);
  DeliveryFrame frame{};
  frame.header.kind = static_cast<uint8_t>(TraceFrameKind::kDelivery);
  double cpu_ns = 0;
  for (auto _ : state) {
    const double begin = thread_cpu_ns();
    for (int i = 0; i < 10'000; ++i) {
      ++frame.step;
      benchmark::DoNotOptimize(bench.writer->append(std::as_writable_bytes(std::span(&frame, 1))));
    }
    cpu_ns += thread_cpu_ns() - begin;
  }
  state.counters["cpu_ns_per_append"] = cpu_ns / 1e4 / static_cast<double>(state.iterations());
  close_writer();
}
BENCHMARK(AppendWarm)->Iterations(8)->Repetitions(15)->ReportAggregatesOnly();

void Crc32c(benchmark::State& state) {
  const std::string bytes(static_cast<size_t>(state.range(0)), 'x');
  uint32_t crc = 0;
  for (auto _ : state) benchmark::DoNotOptimize(crc = crc32c(bytes, crc));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(Crc32c)->Arg(88)->Arg(4096)->Arg(1 << 20);

}  // namespace
}  // namespace primerl

BENCHMARK_MAIN();
