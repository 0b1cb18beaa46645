// Bound: a row of 151,936 logits is 0.6 MB, so one pass from the L2 cache at 10 GB/s takes 60 us.
// The softmax takes two passes (its exponentials 8 lanes at a time, 1 ns per lane group), and its
// weights are written once. Greedy needs 2 passes (0.1 ms), plain sampling 4 (0.25 ms: the masses,
// the sampled token), truncation 6 (0.4 ms: the maximum of each block, the candidates) plus the
// kept tokens. Top log-probabilities take one more pass (0.1 ms). Penalties change one logit for
// each token of the history: 3 ns each, while the row and the list come from the L2 cache.
//
// "zipf": weights fall as rank^-1.2, as in a trained model, in shuffled order. "flat": normal
// logits of deviation 0.5, as with random weights; top_p 0.9 keeps four fifths of them.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "graph/base/random.h"
#include "kernels/common/sampler.h"
#include "kernels/engine/logits_processor.h"

namespace primerl::bench {
namespace {

constexpr size_t kVocab = 151936;

std::vector<float> zipf_row() {
  RandomStream random(7);
  std::vector<float> row(kVocab);
  for (size_t i = 0; i < kVocab; ++i)
    row[i] = static_cast<float>(-1.2 * std::log(static_cast<double>(i + 1)));
  for (size_t i = kVocab; i-- > 1;) std::swap(row[i], row[random.below(i + 1)]);
  return row;
}

std::vector<float> flat_row() {
  RandomStream random(7);
  std::vector<float> row(kVocab);
  for (float& value : row) {
    double sum = -6;
    for (int k = 0; k < 12; ++k) sum += random.uniform();
    value = static_cast<float>(0.5 * sum);
  }
  return row;
}

void sample(benchmark::State& state, const std::vector<float>& row, const SamplingParams& params) {
  Sampler sampler;
  std::vector<TokenLogprob> top;
  int32_t index = 0;
  for (auto _ : state) {
    top.clear();
    benchmark::DoNotOptimize(sampler.sample(row, params, 17, index++, nullptr, &top));
  }
}

/// Penalties of a sequence whose prompt has the given number of different tokens.
void penalise(benchmark::State& state) {
  std::vector<int32_t> prompt(static_cast<size_t>(state.range(0)));
  std::iota(prompt.begin(), prompt.end(), 0);
  const auto processor = LogitsProcessor::make(
      {.repetition_penalty = 1.1, .frequency_penalty = 0.5}, prompt, {}, kVocab);
  const auto original = flat_row();
  auto row = original;
  for (auto _ : state) {
    // Each row is processed once: repeated penalties would shrink its logits to denormal numbers,
    // which are slow.
    std::copy_n(original.begin(), prompt.size(), row.begin());
    (*processor)->apply(row);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(penalise)->Name("penalties")->Arg(1000)->Arg(32000)->Unit(benchmark::kMillisecond);

const int kRegistered = [] {
  const std::pair<const char*, SamplingParams> kinds[] = {
      {"greedy", {.temperature = 0}},
      {"plain", {}},
      {"top_k_50", {.top_k = 50}},
      {"top_p_0.9", {.top_p = 0.9}},
      {"min_p_0.1", {.min_p = 0.1}},
      {"top_k_50_top_p_0.9", {.top_k = 50, .top_p = 0.9}},
      {"top_p_0.9_min_p_0.1", {.top_p = 0.9, .min_p = 0.1}},
      {"top_k_50_top_p_0.9_min_p_0.1", {.top_k = 50, .top_p = 0.9, .min_p = 0.1}},
      {"top_k_50000", {.top_k = 50000}},
      {"top_logprobs_20", {.num_top_logprobs = 20}}};
  const std::pair<const char*, std::vector<float>> rows[] = {{"zipf", zipf_row()},
                                                             {"flat", flat_row()}};
  for (const auto& [row_name, row] : rows)
    for (const auto& [name, params] : kinds)
      benchmark::RegisterBenchmark(
          (std::string("sampler/") + row_name + "/" + name).c_str(),
          [row, params](benchmark::State& state) { sample(state, row, params); })
          ->Unit(benchmark::kMillisecond);
  return 0;
}();

}  // namespace
}  // namespace primerl::bench
