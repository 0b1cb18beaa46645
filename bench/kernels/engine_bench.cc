// Bound: 64 completions of 11 prompt and 9 answer tokens in groups of 8 that share a prompt feed
// 8 * 11 + 64 * 8 = 600 rows through 1.0 M parameters (1m) at 2 flops each: 1.2 GFLOP. One core of
// 90 GFLOP/s (fp32, AVX2) needs 13 ms, a decode step of 64 rows 1.4 ms. Alone, 64 prompts of their
// own make 1216 rows and 27 ms. The 5m shape has 4.8 times the parameters.
#include <benchmark/benchmark.h>

#include "bench/kernels/shapes.h"

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

BENCHMARK_CAPTURE(generate, 1m_groups_of_8, kOneMillion, 8)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(generate, 1m_alone, kOneMillion, 1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(generate, 5m_groups_of_8, kFiveMillion, 8)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(decode, 1m, kOneMillion)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(decode, 5m, kFiveMillion)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace primerl::bench
