// Publishing an adapter from a learner to an engine on the same device: rank 16 on all linears of
// the Qwen3-0.6B shape, 10.1 M numbers.
//
//   cuda_publish_bench FOLDER       FOLDER: gets the model; its weights are random
//
// The engine decodes 64 sequences with the adapter, on its own thread, as an instance does. After
// each step of the learner (16 rows of 1,024 tokens) the learner's thread makes the snapshot. From
// the end of the update to the answer of the engine:
//   snapshot   Learner::snapshot(): the trainer waits for it
//   engine     prepare() between steps until it is there, then apply(), and the step in progress
//   all        both
// Bound: 20 MB of bf16 travel to the host and back at about 50 GB/s each way, and the host copies
// them once into pinned memory at about 10 GB/s: 0.4 + 2 + 0.4 ms. Medians, [least, most].
#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "bench/device/random_model.h"
#include "bench/device/timing.h"
#include "graph/base/random.h"
#include "kernels/devices/make.h"

namespace primerl::bench {
namespace {

namespace fs = std::filesystem;

constexpr TenantSlot kTenant(0);
constexpr int32_t kRunning = 64, kTokens = 2000;
constexpr int kVersions = 15;

std::unique_ptr<Learner> make_learner(const fs::path& folder) {
  LearnerOptions options;
  options.device = "cuda:0";
  options.numerics = "fast";
  options.dtype = "bfloat16";
  options.micro_batch_tokens = options.adapter_batch_tokens = 16384;
  const std::vector<AdapterTraining> adapters = {{kTenant, {.rank = 16}, {}, {}}};
  auto made = make_torch_adapter_learner(options, adapters, folder);
  CHECK(made.ok(), made.error().text());
  return std::move(made).value();
}

std::unique_ptr<Engine> make_engine(const fs::path& folder) {
  EngineOptions options;
  options.device = "cuda:0";
  options.numerics = "fast";
  options.dtype = "bfloat16";
  options.max_running = kRunning;
  options.max_batched_tokens = options.max_prefill_tokens = 8192;
  options.kv_blocks = kRunning * 140;
  options.max_sequence_tokens = 4096;
  options.adapter_slots = options.adapters_max = 1;
  options.max_adapter_rank = 16;
  auto made = make_torch_engine(options, folder);
  CHECK(made.ok(), made.error().text());
  return std::move(made).value();
}

void step(Engine& engine) {
  CHECK(engine.step().ok(), "a step failed");
  for (const auto& event : engine.take_prefilled())
    CHECK(engine.take_over(event.id).ok(), "nothing to take over");
  CHECK(engine.take_finished().empty(), "a sequence has ended");
}

void start_sequences(Engine& engine) {
  for (int32_t i = 0; i < kRunning; ++i) {
    SequenceRequest request;
    request.id = SequenceId(static_cast<uint64_t>(i) + 1);
    request.tenant = kTenant;
    for (uint64_t at = 0; at < 128; ++at)
      request.prompt_tokens.push_back(
          static_cast<int32_t>(mix(static_cast<uint64_t>(i), at) % 151000));
    request.sampling = {.max_tokens = kTokens, .ignore_eos = true};
    CHECK(engine.submit(std::move(request)).ok(), "refused");
  }
  while (engine.state().num_running < kRunning) step(engine);
  for (int i = 0; i < 8; ++i) step(engine);
}

TrainBatch batch_of() {
  TrainBatch batch;
  batch.tenant = kTenant;
  batch.loss = LossKind::kCrossEntropy;
  for (uint64_t i = 0; i < 16; ++i) {
    TrainSample& sample = batch.samples.emplace_back();
    for (uint64_t t = 0; t <= 1024; ++t)
      sample.tokens.push_back(static_cast<int32_t>(mix(i + 100, t) % 151000));
    sample.loss_mask.assign(sample.tokens.size(), 1);
    sample.loss_mask.front() = 0;
  }
  return batch;
}

std::shared_ptr<const WeightSnapshot> snapshot_of(Learner& learner, int64_t version) {
  auto made = learner.snapshot(kTenant, PolicyVersion(version));
  CHECK(made.ok(), made.error().text());
  return std::move(made).value();
}

int run(const fs::path& folder) {
  write_random_model("0.6b", folder);
  const auto learner = make_learner(folder);
  const auto engine = make_engine(folder);
  const WeightsKey key{kTenant};
  CHECK(engine->apply(*with_key(*snapshot_of(*learner, 1), key)).ok(), "refused");
  start_sequences(*engine);
  const TrainBatch batch = batch_of();
  Spread steps, snapshots, engines, all, alone;
  for (int64_t version = 2; version < 2 + kVersions + Spread::kWarmUps; ++version) {
    steps.add(seconds_of([&] { CHECK(learner->step(batch, [] { return false; }).ok(), "step"); }));
    alone.add(seconds_of([&] { step(*engine); }));
    const double begin = now();
    const auto made = with_key(*snapshot_of(*learner, version), key);
    const double there = now();
    while (!engine->prepare(made)) step(*engine);
    CHECK(engine->apply(*made).ok(), "refused");
    const double end = now();
    snapshots.add(there - begin);
    engines.add(end - there);
    all.add(end - begin);
    step(*engine);
  }
  fmt::print("step of the learner   {}\nstep of the engine    {}\n", steps.text(), alone.text());
  fmt::print("snapshot              {}\nengine                {}\nall                   {}\n",
             snapshots.text(), engines.text(), all.text());
  fmt::print("share of the trainer's time: {:.2f} %\n",
             100 * snapshots.middle() / (snapshots.middle() + steps.middle()));
  return 0;
}

}  // namespace
}  // namespace primerl::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: cuda_publish_bench FOLDER\n");
    return 2;
  }
  return primerl::bench::run(argv[1]);
}
