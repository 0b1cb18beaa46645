// Bound: the cost of recording a delivery for its group. The append is 20 to 30 ns
// (trace_append_bench); added to that are filling 96 bytes (3 ns), a virtual call, and the payload
// check: one multiplication per field, about 10 ns for a message of one number. The aim is 55 ns in
// all, without payload. With payload the message is written as msgpack, checked a second time and
// copied: 0.3 to 1 us for a few hundred bytes. Thread CPU time; the executor has already read the
// clock.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "runtime/trace/record/recorder.h"

namespace primerl {
namespace {

struct Ping {
  static constexpr std::string_view kName = "Ping";
  static constexpr uint32_t kVersion = 1;
  int64_t number = 0;
  template <class F>
  static void fields(F& f) {
    f("number", &Ping::number);
  }
};

struct Text {
  static constexpr std::string_view kName = "Text";
  static constexpr uint32_t kVersion = 1;
  std::string text = std::string(40, 'x');
  std::vector<int32_t> tokens = std::vector<int32_t>(40, 7);
  std::vector<float> logprobs = std::vector<float>(40, -0.5F);
  int64_t number = 0;
  template <class F>
  static void fields(F& f) {
    f("text", &Text::text)("tokens", &Text::tokens)("logprobs", &Text::logprobs)("number",
                                                                                 &Text::number);
  }
};

TraceCatalog catalog_with(const std::string& record) {
  TraceCatalog catalog;
  catalog.groups.push_back({.name = "a", .instances = {0}});
  catalog.instances.push_back({.name = "a", .node = "a", .actor = "a", .timers = {}});
  TraceCatalog::TraceLink link;
  link.edge = "a.out -> a.in";
  link.record = record;
  catalog.links.push_back(link);
  return catalog;
}

double thread_cpu_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

/// Steps that handle `message` and, with payloads, emit an equal one.
void record_steps(benchmark::State& state, const std::string& policy, Payload payload) {
  std::string name = (std::filesystem::temp_directory_path() / "primerl_bench_XXXXXX").string();
  const std::filesystem::path folder = ::mkdtemp(name.data());
  const TraceCatalog catalog = catalog_with(policy);
  SegmentWriterOptions options;
  options.folder = folder;
  options.catalog = catalog.to_json().dump();
  options.packs = false;
  options.trace_bytes_max = uint64_t{64} << 20;
  auto writer = SegmentWriter::open(options);
  CHECK(writer.ok(), writer.error().text());
  Recorder recorder(catalog, **writer);
  BatchedMessage message;
  message.link = LinkId(0);
  message.envelope.payload = std::move(payload);
  StepRecord record;
  record.group = GroupId(0);
  record.instance = InstanceId(0);
  record.message = &message.envelope;
  record.link = LinkId(0);
  if (policy == "payload") record.emissions = {&message, 1};
  const double begin = thread_cpu_ns();
  for (auto _ : state) {
    ++record.step;
    ++message.envelope.sequence;
    recorder.on_step(record);
  }
  state.counters["cpu_ns_per_step"] =
      (thread_cpu_ns() - begin) / static_cast<double>(state.iterations());
  const Status closed = (*writer)->close();
  CHECK(closed.ok(), closed.error().text());
  std::filesystem::remove_all(folder);
}

void Delivery(benchmark::State& state) { record_steps(state, "header", Payload::of(Ping{})); }
BENCHMARK(Delivery)->Iterations(1'000'000)->Repetitions(9)->ReportAggregatesOnly();

void DeliveryNotChecked(benchmark::State& state) {
  record_steps(state, "none", Payload::of(Ping{}));
}
BENCHMARK(DeliveryNotChecked)->Iterations(1'000'000)->Repetitions(9)->ReportAggregatesOnly();

void DeliveryOfText(benchmark::State& state) { record_steps(state, "header", Payload::of(Text{})); }
BENCHMARK(DeliveryOfText)->Iterations(500'000)->Repetitions(5)->ReportAggregatesOnly();

void DeliveryWithStoredText(benchmark::State& state) {
  record_steps(state, "payload", Payload::of(Text{}));
}
BENCHMARK(DeliveryWithStoredText)->Iterations(200'000)->Repetitions(5)->ReportAggregatesOnly();

}  // namespace
}  // namespace primerl

BENCHMARK_MAIN();
