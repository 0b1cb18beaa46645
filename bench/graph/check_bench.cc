// Reading, checking and resolving a graph file, from text to plan.
//
// Bound: a graph of 1,000 nodes and 3,000 edges is about 125 KB of text; toml++ reads some 20-40
// MB/s with one allocation per value (5 ms), names are hashed once per edge end, and the canonical
// text is written once (2 ms). The target is 50 ms on one core. The demo is 85 lines, so 10 ms is
// generous, and process start dominates.
#include <benchmark/benchmark.h>

#include "graph/plan.h"
#include "tests/graph/large_graph.h"
#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

void load(benchmark::State& state, const std::string& text) {
  const Folder folder;
  Overrides overrides;
  overrides.cores = 2;
  for (auto _ : state) {
    auto graph = load_graph_text(text, "graph.toml", folder.path(), overrides, test_catalog());
    if (graph.plan == nullptr) return state.SkipWithError("the graph has errors");
    benchmark::DoNotOptimize(graph);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}

void CheckDemo(benchmark::State& state) { load(state, demo_text()); }
BENCHMARK(CheckDemo)->Unit(benchmark::kMillisecond);

void CheckLargeGraph(benchmark::State& state) {
  load(state, large_graph(static_cast<int>(state.range(0)), 3));
}
BENCHMARK(CheckLargeGraph)->Arg(100)->Arg(1000)->Arg(4000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace primerl::testing

BENCHMARK_MAIN();
