// Bound: a step of n running sequences lists n rows and their blocks, here 64 block numbers each,
// so 264 bytes per sequence: 26 us at 10 GB/s for 1,000. Aim: a plan in 100 us. A lookup hashes 113
// bytes per block (two blocks of SHA-256, about 0.15 us with the CPU's instructions): 0.4 ms for
// the 2,048 blocks of 32,768 tokens. Aim: 1 ms.
#include <benchmark/benchmark.h>

#include "kernels/engine/batch_scheduler.h"

namespace primerl::bench {
namespace {

SchedulerLimits limits_of(int32_t kv_blocks, int32_t max_running) {
  SchedulerLimits limits;
  limits.options.kv_blocks = kv_blocks;
  limits.options.max_running = max_running;
  limits.options.max_waiting = max_running;
  limits.options.max_batched_tokens = 65'536;
  limits.options.max_prefill_tokens = 0;
  limits.options.max_sequence_tokens = 65'536;
  limits.vocab_size = 1000;
  return limits;
}

SequenceRequest request_of(uint64_t id, int32_t num_prompt_tokens, int32_t max_tokens) {
  SequenceRequest request;
  request.id = SequenceId(id);
  request.salt = "main:1";
  for (int32_t i = 0; i < num_prompt_tokens; ++i)
    request.prompt_tokens.push_back(
        static_cast<int32_t>((id * 31 + static_cast<uint64_t>(i)) % 1000));
  request.sampling.max_tokens = max_tokens;
  return request;
}

void take_step(BatchScheduler& scheduler, StepPlan& plan) {
  for (const auto& sample : plan.samples) scheduler.accept(*sample.sequence, 7, -1);
  scheduler.finish_step();
}

/// Planning of a decode step of range(0) sequences of about 1,000 tokens, without the engine's
/// work.
void decide(benchmark::State& state) {
  const auto num_running = static_cast<int32_t>(state.range(0));
  BatchScheduler scheduler(limits_of(num_running * 256, num_running));
  StepPlan plan;
  for (int32_t i = 0; i < num_running; ++i)
    CHECK(scheduler.submit(request_of(static_cast<uint64_t>(i), 1000, 3000)).ok(), "refused");
  while (scheduler.state().num_held < num_running) {
    CHECK(scheduler.plan(plan), "stuck");
    take_step(scheduler, plan);
  }
  for (const auto& event : scheduler.take_prefilled())
    CHECK(scheduler.take_over(event.id).ok(), "lost");
  for (auto _ : state) {
    benchmark::DoNotOptimize(scheduler.plan(plan));
    state.PauseTiming();
    take_step(scheduler, plan);
    state.ResumeTiming();
  }
}

/// Admission of a prompt of 32,768 tokens whose blocks are all cached.
void look_up(benchmark::State& state) {
  BatchScheduler scheduler(limits_of(4200, 4));
  StepPlan plan;
  uint64_t id = 0;
  const auto run = [&](bool is_timed) {
    if (is_timed) state.PauseTiming();
    auto request = request_of(1, 32'768, 1);
    request.id = SequenceId(++id);
    if (is_timed) state.ResumeTiming();
    CHECK(scheduler.submit(std::move(request)).ok(), "refused");
    CHECK(scheduler.plan(plan), "stuck");
    if (is_timed) state.PauseTiming();
    take_step(scheduler, plan);
    for (const auto& event : scheduler.take_prefilled())
      CHECK(scheduler.take_over(event.id).ok(), "lost");
    scheduler.take_finished();
    if (is_timed) state.ResumeTiming();
  };
  run(false);
  for (auto _ : state) run(true);
  CHECK(plan.rows.num_rows() == 16, "not found");
}

BENCHMARK(decide)->Arg(100)->Arg(1000)->Unit(benchmark::kMicrosecond)->Iterations(1500);
BENCHMARK(look_up)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace primerl::bench
