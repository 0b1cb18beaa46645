// Bound: 64 samples of 11 prompt and 9 answer tokens are 64 * 20 tokens; forward and backward take
// 6 flops per parameter and token: 7.7 GFLOP at 1.0 M parameters (1m), 85 ms on one core of 90
// GFLOP/s. The learner computes each of the 8 prompts once, and last tokens are not inputs: 8 * 11
// + 64 * 8 = 600 rows, 3.6 GFLOP, 40 ms. Alone: 64 different prompts, 1216 rows, 81 ms. The 5m
// shape: 4.8 times. The 50m shapes train 16 documents of 256 tokens, all with a loss: 4,096 rows of
// 50 M parameters are 1.2 TFLOP, 7 s on two such cores. Peer: bench/peers/transformers_step.py.
//
// tenants: 16 adapters of rank 8 with a group of 8 samples each, in separate steps and in one
// shared pass, compared with one adapter with all 128 samples: the same 16 * 75 rows. Bound of both
// ratios: 1 for the pass, plus 16 optimizers instead of one: 15 * 97 k more parameters, whose
// gradient, weight and moments are cleared, read and written, 40 bytes each. That is 58 MB, 6 ms at
// 10 GB/s compared with 70 ms, so 1.08.
//
// packed: the packed weights that engine and learner share, compared with separate row-major ones.
// A pass on row-major weights packs each weight twice, one on packed weights once. So the ratio's
// bound is 1 minus the packing time's share: a third with few rows, nearly nothing with many.
//
// dropout: one adapter with dropout 0.1 compared with one without. For 8 inputs of an A, random
// numbers take about 12 instructions and applying them 6, 4 and 2 cycles. Both happen twice, and
// the gradient needs one more application: 14 cycles. The base's two GEMMs with 128 outputs take
// 128 cycles of two fused vectors each: 1.11, at the 1m shape, and less for wider outputs.
#include <benchmark/benchmark.h>

#include <ctime>

#include <algorithm>

#include "bench/kernels/shapes.h"
#include "kernels/cpu/learner/learner.h"
#include "kernels/weights/safetensors.h"

namespace primerl::bench {
namespace {

constexpr int kSamples = 64, kPromptTokens = 11, kTokens = 20;

TrainBatch make_batch(int group_size, int num_samples = kSamples, uint32_t tenant = 0) {
  TrainBatch batch;
  batch.tenant = TenantSlot(tenant);
  for (int i = 0; i < num_samples; ++i) {
    TrainSample sample;
    for (int t = 0; t < kTokens; ++t) {
      const bool sampled = t >= kPromptTokens;
      const int word = sampled ? i * 13 : i / group_size * (t + 31);
      sample.tokens.push_back(2 + (word + t * 7) % 97);
      sample.loss_mask.push_back(sampled ? 1 : 0);
      sample.logprobs.push_back(sampled ? -4.0F : 0.0F);
      sample.advantages.push_back(sampled ? static_cast<float>(i % 8) / 8 - 0.4F : 0.0F);
    }
    batch.samples.push_back(std::move(sample));
  }
  return batch;
}

void train_step(benchmark::State& state, const Shape& shape, int group_size) {
  auto learner = make_learner(make_folder(shape));
  const TrainBatch batch = make_batch(group_size);
  for (auto _ : state) {
    const auto report = learner->step(batch, [] { return false; });
    CHECK(report.ok() && !report->skipped, "the step failed");
  }
  state.counters["samples/s"] =
      benchmark::Counter(kSamples, benchmark::Counter::kIsIterationInvariantRate);
  const double rows =
      kSamples / group_size * kPromptTokens + kSamples * (kTokens - kPromptTokens - 1);
  state.counters["GFLOP/s"] =
      benchmark::Counter(6e-9 * rows * static_cast<double>(matrix_parameters(shape)),
                         benchmark::Counter::kIsIterationInvariantRate);
}

/// 16 documents of 256 tokens on both cores; named by numerics.
void long_step(benchmark::State& state, const Shape& shape, const char* numerics) {
  LearnerOptions options;
  options.threads = 2;
  options.numerics = numerics;
  auto learner = make_learner(make_folder(shape), options);
  TrainBatch batch;
  batch.loss = LossKind::kCrossEntropy;
  for (int i = 0; i < 16; ++i) {
    TrainSample& sample = batch.samples.emplace_back();
    for (int t = 0; t < 256; ++t)
      sample.tokens.push_back((i * 7919 + t * 104729) % shape.vocab_size);
    sample.loss_mask.assign(256, 1);
  }
  // The first step allocates the activations; it is not counted, nor is the peer's.
  CHECK(learner->step(batch, nullptr).ok(), "the first step failed");
  for (auto _ : state) {
    const auto report = learner->step(batch, [] { return false; });
    CHECK(report.ok() && !report->skipped, "the step failed");
  }
  const double rows = 16 * 255;
  state.counters["tokens/s"] =
      benchmark::Counter(rows, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GFLOP/s"] =
      benchmark::Counter(6e-9 * rows * static_cast<double>(matrix_parameters(shape)),
                         benchmark::Counter::kIsIterationInvariantRate);
}

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

/// Ratios to one tenant with all samples, from alternating pairs; CPU time of one thread.
void tenants(benchmark::State& state, const Shape& shape) {
  constexpr uint32_t kTenants = 16;
  std::vector<AdapterTraining> adapters;
  for (uint32_t i = 0; i < kTenants; ++i)
    adapters.push_back({.tenant = TenantSlot(i), .adapter = {.rank = 8}, .rules = {}, .start = {}});
  LearnerOptions options;
  options.threads = 1;
  auto learner = make_torch_adapter_learner(options, adapters, make_folder(shape)).value();
  const auto never = [] { return false; };
  const TrainBatch all = make_batch(8, 8 * kTenants);
  const TrainBatch one_token = make_batch(1, 1);
  std::vector<TrainBatch> own;
  std::vector<const TrainBatch*> pass;
  for (uint32_t i = 0; i < kTenants; ++i) own.push_back(make_batch(8, 8, i));
  for (const auto& batch : own) pass.push_back(&batch);
  const auto timed = [](const auto& body) {
    const double began = thread_seconds();
    body();
    return thread_seconds() - began;
  };
  const auto step = [&](const TrainBatch& batch) {
    CHECK(learner->step(batch, never).ok(), "the step failed");
  };
  std::vector<double> alone, shared, base, least;
  for (auto _ : state) {
    const double one = timed([&] { step(all); });
    base.push_back(one);
    alone.push_back(timed([&] {
                      for (const auto& batch : own) step(batch);
                    }) /
                    one);
    shared.push_back(timed([&] {
                       for (const auto& report : learner->step_together(pass, never))
                         CHECK(report.ok() && !report->skipped, "the step failed");
                     }) /
                     one);
    least.push_back(timed([&] { step(one_token); }));
  }
  state.counters["one_ms"] = 1e3 * median(base);
  state.counters["alone_ratio"] = median(alone);
  state.counters["shared_ratio"] = median(shared);
  state.counters["smallest_step_ms"] = 1e3 * median(least);
}

/// Ratio of a step with dropout to one without, from alternating pairs; CPU time of one thread.
void dropout(benchmark::State& state, const Shape& shape) {
  std::vector<AdapterTraining> adapters;
  for (uint32_t i = 0; i < 2; ++i)
    adapters.push_back({.tenant = TenantSlot(i),
                        .adapter = {.rank = 8, .dropout = i == 0 ? 0 : 0.1},
                        .rules = {},
                        .start = {}});
  LearnerOptions options;
  options.threads = 1;
  auto learner = make_torch_adapter_learner(options, adapters, make_folder(shape)).value();
  std::vector<double> ratio, without;
  for (auto _ : state) {
    std::vector<double> seconds;
    for (uint32_t i = 0; i < 2; ++i) {
      const TrainBatch batch = make_batch(8, 128, i);
      const double began = thread_seconds();
      CHECK(learner->step(batch, nullptr).ok(), "the step failed");
      seconds.push_back(thread_seconds() - began);
    }
    without.push_back(seconds[0]);
    ratio.push_back(seconds[1] / seconds[0]);
  }
  state.counters["without_ms"] = 1e3 * median(without);
  state.counters["ratio"] = median(ratio);
}

/// Ratio of a step on the packed weights that engine and learner share to one on row-major weights,
/// from alternating pairs; CPU time of one thread. `num_samples` in groups of 8.
void packed(benchmark::State& state, const Shape& shape, int num_samples) {
  const auto folder = make_folder(shape);
  const ModelConfig config = read_model_config(folder).value();
  const auto rows =
      std::make_shared<FrozenWeights>(config, Numerics::kInvariant, DecoderWeights::Use::kLearner);
  CHECK(rows->weights().load(read_model_tensors(folder).value()).ok(), "not loaded");
  const std::vector<AdapterTraining> adapters = {
      {.tenant = TenantSlot(0), .adapter = {.rank = 8}, .rules = {}, .start = {}}};
  LearnerOptions options;
  options.threads = 1;
  auto shared = make_torch_adapter_learner(options, adapters, folder).value();
  CpuLearner own(options, read_model_folder(folder).value(), folder, rows, adapters);
  const TrainBatch batch = make_batch(8, num_samples);
  const auto seconds = [&](Learner& learner) {
    const double began = thread_seconds();
    CHECK(learner.step(batch, nullptr).ok(), "the step failed");
    return thread_seconds() - began;
  };
  std::vector<double> ratio, on_rows;
  for (auto _ : state) {
    on_rows.push_back(seconds(own));
    ratio.push_back(seconds(*shared) / on_rows.back());
  }
  state.counters["rows_ms"] = 1e3 * median(on_rows);
  state.counters["ratio"] = median(ratio);
}

void take_snapshot(benchmark::State& state, const Shape& shape) {
  auto learner = make_learner(make_folder(shape));
  auto engine = make_torch_engine({}, make_folder(shape)).value();
  int64_t version = 0;
  for (auto _ : state) {
    const auto snapshot = learner->snapshot(TenantSlot(0), PolicyVersion(++version)).value();
    CHECK(engine->apply(*snapshot).ok(), "not applied");
  }
}

BENCHMARK_CAPTURE(train_step, 1m_groups_of_8, kOneMillion, 8)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(train_step, 1m_alone, kOneMillion, 1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(train_step, 5m_groups_of_8, kFiveMillion, 8)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(long_step, 50m_invariant, kFiftyMillion, "invariant")->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(long_step, 50m_fast, kFiftyMillion, "fast")->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(long_step, mixture_invariant, kMixture, "invariant")->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(long_step, mixture_fast, kMixture, "fast")->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(tenants, 1m, kOneMillion)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(tenants, 5m, kFiveMillion)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(packed, 1m_small, kOneMillion, 8)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(packed, 1m, kOneMillion, 128)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(packed, 5m_small, kFiveMillion, 8)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(packed, 5m, kFiveMillion, 128)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(dropout, 1m, kOneMillion)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(dropout, 5m, kFiveMillion)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(take_snapshot, 1m, kOneMillion)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace primerl::bench
