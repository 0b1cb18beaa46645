// Bound: 64 completions of 11 prompt and 9 answer tokens in groups of 8 with a common prompt feed 8
// * 11 + 64 * 8 = 600 rows through 1.0 M parameters (1m) at 2 flops each: 1.2 GFLOP. One core of 90
// GFLOP/s (fp32, AVX2) needs 13 ms, a decode step of 64 rows 1.4 ms. Alone, 64 different prompts
// make 1216 rows and 27 ms. The 5m shape has 4.8 times the parameters.
//
// serve/: a batch of different prompts of 16 tokens with 64 answer tokens, two threads, as
// transformers' generate and llama.cpp are measured (bench/peers/hf_generate.py). A decode step
// reads all matrices once: 19 MB (5m, in the L3 of most machines) or 200 MB (50m, at most 100 steps
// per second with memory of 20 GB/s). It takes 2 flops times batch times parameters: at batch 32
// and 50m 3.2 GFLOP, 22 ms at 150 GFLOP/s, so 1,470 tokens/s. The head of 50m has 8,192 columns.
//
// turns/: eight sessions of eight turns. The first prompt has 432 tokens, and each turn adds 16
// answer tokens and 32 of an observation, so that nine tenths of a turn's prompt are known. Two
// threads (bench/peers/hf_turns.py). With a cache 432 + 7 * 48 tokens per session are prefilled,
// without one 4,800: prefill alone is 6.25 times less, and the 128 decode steps stay.
#include <benchmark/benchmark.h>

#include <algorithm>

#include "bench/kernels/shapes.h"
#include "graph/base/random.h"

namespace primerl::bench {
namespace {

constexpr int kSequences = 64, kPromptTokens = 11, kAnswerTokens = 9;

std::unique_ptr<Engine> make_engine(const Shape& shape) {
  auto engine = make_torch_engine({}, make_folder(shape));
  CHECK(engine.ok(), engine.error().text());
  return std::move(engine).value();
}

void submit_all(Engine& engine, int group_size, int max_tokens) {
  for (int i = 0; i < kSequences; ++i) {
    SequenceRequest request;
    request.id = SequenceId(static_cast<uint64_t>(i));
    for (int t = 0; t < kPromptTokens; ++t)
      request.prompt_tokens.push_back(2 + (i / group_size * (t + 31) + t * 7) % 97);
    request.sampling.max_tokens = max_tokens;
    request.sampling.ignore_eos = true;
    request.seed = static_cast<uint64_t>(i);
    CHECK(engine.submit(std::move(request)).ok(), "refused");
  }
}

void take_over_all(Engine& engine) {
  for (const auto& event : engine.take_prefilled())
    CHECK(engine.take_over(event.id).ok(), "nothing to take over");
}

void generate(benchmark::State& state, const Shape& shape, int group_size) {
  auto engine = make_engine(shape);
  for (auto _ : state) {
    submit_all(*engine, group_size, kAnswerTokens);
    while (engine->has_work()) {
      CHECK(engine->step().ok(), "a step failed");
      take_over_all(*engine);
    }
    CHECK(engine->take_finished().size() == kSequences, "not all ended");
  }
  const double rows = kSequences / group_size * kPromptTokens + kSequences * (kAnswerTokens - 1);
  state.counters["tokens/s"] =
      benchmark::Counter(kSequences * kAnswerTokens, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * rows * static_cast<double>(matrix_parameters(shape)),
                         benchmark::Counter::kIsIterationInvariantRate);
}

void decode(benchmark::State& state, const Shape& shape) {
  auto engine = make_engine(shape);
  for (auto _ : state) {
    state.PauseTiming();
    if (engine->state().num_running < kSequences) {
      engine->take_finished();
      submit_all(*engine, 1, 100);
      CHECK(engine->step().ok(), "a step failed");
      take_over_all(*engine);
    }
    state.ResumeTiming();
    CHECK(engine->step().ok(), "a step failed");
  }
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * kSequences * static_cast<double>(matrix_parameters(shape)),
                         benchmark::Counter::kIsIterationInvariantRate);
}

void serve(benchmark::State& state, const Shape& shape, const char* numerics) {
  constexpr int kPrompt = 16, kAnswer = 64;
  const auto batch = static_cast<uint64_t>(state.range(0));
  EngineOptions options;
  options.threads = 2;
  options.numerics = numerics;
  options.prefix_cache = false;
  auto made = make_torch_engine(options, make_folder(shape));
  CHECK(made.ok(), made.error().text());
  Engine& engine = **made;
  uint64_t id = 0;
  for (auto _ : state) {
    for (uint64_t i = 0; i < batch; ++i) {
      SequenceRequest request;
      request.id = SequenceId(++id);
      for (uint64_t t = 0; t < kPrompt; ++t)
        request.prompt_tokens.push_back(static_cast<int32_t>(2 + (id * 31 + t * 7) % 97));
      request.sampling.max_tokens = kAnswer;
      request.sampling.ignore_eos = true;
      request.seed = id;
      CHECK(engine.submit(std::move(request)).ok(), "refused");
    }
    while (engine.has_work()) {
      CHECK(engine.step().ok(), "a step failed");
      take_over_all(engine);
    }
    CHECK(engine.take_finished().size() == batch, "not all ended");
  }
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(batch) * kAnswer,
                                                  benchmark::Counter::kIsIterationInvariantRate);
}

void turns(benchmark::State& state, const Shape& shape, const char* numerics) {
  constexpr uint64_t kSessions = 8, kTurns = 8;
  constexpr size_t kPrompt = 432, kObservation = 32;
  EngineOptions options;
  options.threads = 2;
  options.numerics = numerics;
  options.prefix_cache = state.range(0) != 0;
  auto made = make_torch_engine(options, make_folder(shape));
  CHECK(made.ok(), made.error().text());
  Engine& engine = **made;
  uint64_t id = 0, round = 0;
  for (auto _ : state) {
    ++round;
    std::vector<std::vector<int32_t>> histories(kSessions);
    for (uint64_t turn = 0; turn < kTurns; ++turn) {
      const uint64_t first = id + 1;
      for (uint64_t i = 0; i < kSessions; ++i) {
        auto& history = histories[i];
        const size_t size = turn == 0 ? kPrompt : history.size() + kObservation;
        while (history.size() < size)
          history.push_back(static_cast<int32_t>(2 + mix(mix(round, i), history.size()) % 97));
        SequenceRequest request;
        request.id = SequenceId(++id);
        request.prompt_tokens = history;
        request.sampling.max_tokens = 16;
        request.sampling.ignore_eos = true;
        request.seed = id;
        request.salt = "turns";
        CHECK(engine.submit(std::move(request)).ok(), "refused");
      }
      while (engine.has_work()) {
        CHECK(engine.step().ok(), "a step failed");
        take_over_all(engine);
      }
      for (const auto& end : engine.take_finished()) {
        auto& history = histories[end.id.value - first];
        history.insert(history.end(), end.tokens.begin(), end.tokens.end());
      }
    }
  }
  const EngineState end = engine.state();
  state.counters["hits"] = static_cast<double>(end.num_prefix_hits) /
                           static_cast<double>(std::max<uint64_t>(end.num_prefix_queries, 1));
}

BENCHMARK_CAPTURE(generate, 1m_groups_of_8, kOneMillion, 8)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(generate, 1m_alone, kOneMillion, 1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(generate, 5m_groups_of_8, kFiveMillion, 8)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(decode, 1m, kOneMillion)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(decode, 5m, kFiveMillion)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(serve, 5m_fast, kFiveMillion, "fast")
    ->Arg(1)
    ->Arg(8)
    ->Arg(32)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(serve, 5m_invariant, kFiveMillion, "invariant")
    ->Arg(1)
    ->Arg(8)
    ->Arg(32)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(serve, 50m_fast, kFiftyMillion, "fast")
    ->Arg(1)
    ->Arg(8)
    ->Arg(32)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(serve, 50m_invariant, kFiftyMillion, "invariant")
    ->Arg(1)
    ->Arg(8)
    ->Arg(32)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(turns, 5m_fast, kFiveMillion, "fast")
    ->ArgName("cache")
    ->Arg(1)
    ->Arg(0)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(turns, 50m_fast, kFiftyMillion, "fast")
    ->ArgName("cache")
    ->Arg(1)
    ->Arg(0)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(turns, 50m_invariant, kFiftyMillion, "invariant")
    ->ArgName("cache")
    ->Arg(1)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace primerl::bench
