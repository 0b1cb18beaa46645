// The engine on a CUDA device, through the Engine interface, with random bf16 weights.
//
//   cuda_engine_bench SHAPE FOLDER [PART [fp8]]
//
// SHAPE: 0.6b or 8b, of Qwen3, or moe: four layers of Qwen3-30B-A3B; FOLDER: the model is written
// there; PART: decode-1, decode-64, decode-256, adapters, prefill or weights, else all; fp8: GEMMs
// of layers use FP8.
//
// Bounds for one H200 (4.27 TB/s of copies, 0.8 PFLOP/s of bf16). A decode step of the 0.6B shape
// reads 1.19 GB of weights and 22 MB of keys and values per sequence at 192 tokens: 0.28 ms for one
// sequence, 0.61 ms for 64, 1.6 ms for 256. Prefill of 16k tokens: 14 TFLOP of GEMMs take 18 ms. 31
// TFLOP of causal attention take 93 ms at the 0.33 PFLOP/s of flash attention. Prepared new
// weights: 1.19 GB read and written, 0.56 ms. 16 adapters of rank 16 on all linears are 323 MB: a
// step of 64 reads them in 0.08 ms, in parallel to 112 GEMMs. A layer of the mixture is 1.25 GB,
// and 64 sequences read nearly all of it: 1.3 ms with the head; one sequence reads an 11th. For
// comparison hf_engine.py runs transformers on the same folder. Medians, [least, most].
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "bench/device/random_model.h"
#include "graph/base/random.h"
#include "kernels/devices/make.h"
#include "kernels/models/adapter.h"
#include "kernels/weights/safetensors.h"

namespace primerl::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Spread {
  double median, least, most;
};

Spread spread_of(std::vector<double> values) {
  std::ranges::sort(values);
  return {values[values.size() / 2], values.front(), values.back()};
}

void report(const std::string& what, double tokens, const std::vector<double>& seconds) {
  const Spread spread = spread_of(seconds);
  fmt::print("{:<34} {:>10.0f} tok/s   {:.3f} ms [{:.3f}, {:.3f}]\n", what, tokens / spread.median,
             1e3 * spread.median, 1e3 * spread.least, 1e3 * spread.most);
  std::fflush(stdout);
}

std::string products_of_layers = "dtype";

std::unique_ptr<Engine> make_on_cuda(const fs::path& folder, int32_t max_running,
                                     int32_t max_batched_tokens, int32_t kv_blocks,
                                     int32_t adapter_slots = 0) {
  EngineOptions options;
  options.device = "cuda:0";
  options.numerics = "fast";
  options.products = products_of_layers;
  options.max_running = max_running;
  options.max_batched_tokens = max_batched_tokens;
  options.max_prefill_tokens = 0;
  options.kv_blocks = kv_blocks;
  options.max_sequence_tokens = 20480;
  options.prefix_cache = false;
  options.adapter_slots = adapter_slots;
  options.max_adapter_rank = 16;
  auto engine = make_torch_engine(options, folder);
  CHECK(engine.ok(), engine.error().text());
  return std::move(engine).value();
}

uint64_t last_id = 0;

void submit(Engine& engine, int32_t num_prompt, int32_t max_tokens, uint32_t tenant = 0) {
  SequenceRequest request;
  request.tenant = TenantSlot(tenant);
  request.id = SequenceId(++last_id);
  for (int32_t i = 0; i < num_prompt; ++i)
    request.prompt_tokens.push_back(
        static_cast<int32_t>(mix(last_id, static_cast<uint64_t>(i)) % 151000));
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.seed = last_id;
  CHECK(engine.submit(std::move(request)).ok(), "refused");
}

void step(Engine& engine) {
  CHECK(engine.step().ok(), "a step failed");
  for (const auto& event : engine.take_prefilled())
    CHECK(engine.take_over(event.id).ok(), "nothing to take over");
}

void finish(Engine& engine, size_t count) {
  while (engine.has_work()) step(engine);
  const auto ends = engine.take_finished();
  CHECK(ends.size() == count, "not all ended");
  for (const auto& end : ends) CHECK(is_complete(end.reason), end.detail);
}

/// `batch` sequences of `num_tenants` tenants, from 128 tokens of prompt to 256: seconds of 96
/// steps.
std::vector<double> decode_round(Engine& engine, int32_t batch, int32_t num_tenants) {
  std::vector<double> seconds;
  for (int32_t i = 0; i < batch; ++i)
    submit(engine, 128, 128, static_cast<uint32_t>(i % num_tenants));
  while (engine.state().num_running < batch) step(engine);
  for (int i = 0; i < 100; ++i) {
    const double one = seconds_of([&] { step(engine); });
    if (i >= 4) seconds.push_back(one);
  }
  finish(engine, static_cast<size_t>(batch));
  return seconds;
}

/// The first steps capture graphs.
void decode(const fs::path& folder, int32_t batch) {
  auto engine = make_on_cuda(folder, std::max(batch, 8), 16384, 24 * batch + 64);
  std::vector<double> seconds;
  for (int round = 0; round < 3; ++round) {
    const auto of_round = decode_round(*engine, batch, 1);
    fmt::print("  round {}: {:.3f} ms, first ten {:.3f}, last ten {:.3f}\n", round,
               1e3 * spread_of(of_round).median,
               1e3 * spread_of({of_round.begin(), of_round.begin() + 10}).median,
               1e3 * spread_of({of_round.end() - 10, of_round.end()}).median);
    if (round > 0) seconds.insert(seconds.end(), of_round.begin(), of_round.end());
  }
  report(fmt::format("decode, batch {}", batch), batch, seconds);
}

/// An adapter of rank 16 on all linears; its scaling is 1.
WeightSnapshot random_adapter(const TensorTable& model, uint32_t tenant, int64_t version) {
  const AdapterTable table(model, {.rank = 16, .alpha = 16});
  WeightSnapshot snapshot{
      {TenantSlot(tenant)}, PolicyVersion(version), random_tensors(table.tensors())};
  for (auto& tensor : snapshot.tensors)
    if (tensor.name == kAdapterScaling) {
      const float one = 1;
      const auto bytes = std::as_bytes(std::span(&one, 1));
      tensor = {tensor.name, DataType::kF32, {1}, Blob({bytes.begin(), bytes.end()})};
    }
  return snapshot;
}

/// Alternates between an engine with adapters and one without; then applies new versions of one
/// adapter while all sequences decode.
void adapters(const fs::path& folder, const TensorTable& table, int32_t batch) {
  constexpr int32_t kAdapters = 16;
  const int32_t blocks = 24 * batch + 64;
  auto without = make_on_cuda(folder, batch, 16384, blocks);
  auto with = make_on_cuda(folder, batch, 16384, blocks, kAdapters);
  for (uint32_t tenant = 0; tenant < kAdapters; ++tenant)
    CHECK(with->apply(random_adapter(table, tenant, 0)).ok(), "refused");
  std::vector<double> plain, adapted;
  for (int round = 0; round < 4; ++round) {
    const auto one = decode_round(*without, batch, 1);
    const auto other = decode_round(*with, batch, kAdapters);
    if (round == 0) continue;
    plain.insert(plain.end(), one.begin(), one.end());
    adapted.insert(adapted.end(), other.begin(), other.end());
  }
  report(fmt::format("decode, batch {}, without", batch), batch, plain);
  report(fmt::format("decode, batch {}, {} adapters", batch, kAdapters), batch, adapted);
  fmt::print("  {:.3f} of without\n", spread_of(plain).median / spread_of(adapted).median);
  std::vector<double> stopped, preparing, steps;
  for (int32_t i = 0; i < batch; ++i)
    submit(*with, 128, 2000, static_cast<uint32_t>(i % kAdapters));
  while (with->state().num_running < batch) step(*with);
  for (int64_t version = 1; version < 8; ++version) {
    const auto next = std::make_shared<const WeightSnapshot>(random_adapter(table, 3, version));
    preparing.push_back(seconds_of([&] {
      while (!with->prepare(next)) steps.push_back(seconds_of([&] { step(*with); }));
    }));
    stopped.push_back(seconds_of([&] { CHECK(with->apply(*next).ok(), "refused"); }));
  }
  fmt::print("  a new version: stop {:.3f} ms, to prepare {:.3f} ms, a step meanwhile {:.3f} ms\n",
             1e3 * spread_of(stopped).median, 1e3 * spread_of(preparing).median,
             steps.empty() ? 0.0 : 1e3 * spread_of(steps).median);
}

/// Prompts of one length, each of another tenant: without adapters, and with.
void prefill(const fs::path& folder, int32_t count, int32_t num_prompt,
             const TensorTable* adapted = nullptr) {
  auto engine = make_on_cuda(folder, std::max(count, 8), 16384, 2 * 16384 / 16 + 64,
                             adapted == nullptr ? 0 : count);
  for (int32_t i = 0; adapted != nullptr && i < count; ++i)
    CHECK(engine->apply(random_adapter(*adapted, static_cast<uint32_t>(i), 0)).ok(), "refused");
  std::vector<double> seconds;
  for (int round = 0; round < 6; ++round) {
    for (int32_t i = 0; i < count; ++i)
      submit(*engine, num_prompt, 1, adapted == nullptr ? 0 : static_cast<uint32_t>(i));
    const double one = seconds_of([&] { finish(*engine, static_cast<size_t>(count)); });
    if (round > 0) seconds.push_back(one);
  }
  report(fmt::format("prefill, {} of {}{}", count, num_prompt,
                     adapted == nullptr ? "" : ", an adapter each"),
         double{1} * count * num_prompt, seconds);
}

/// Applies new versions of `tensors` while 64 sequences decode; every other version is prepared.
/// Measures how long apply() stops the engine, how long preparing takes, and how much it slows the
/// steps.
void apply_weights(Engine& engine, std::vector<WeightTensor> tensors, const std::string& type) {
  WeightSnapshot snapshot{{}, engine.state().versions.of({}), std::move(tensors)};
  double bytes = 0;
  for (const auto& tensor : snapshot.tensors) bytes += static_cast<double>(tensor.bytes.size());
  std::vector<double> stopped, stopped_prepared, preparing, steps;
  for (int round = 0; round < 10; ++round) {
    snapshot.version = PolicyVersion(snapshot.version.is_none() ? 0 : snapshot.version.value + 1);
    const auto version = std::make_shared<const WeightSnapshot>(snapshot);
    const bool is_prepared = round % 2 == 1;
    if (is_prepared) {
      for (int32_t i = 0; i < 64; ++i) submit(engine, 128, 20000);
      while (engine.state().num_running < 64) step(engine);
      for (int i = 0; i < 8; ++i) step(engine);
      preparing.push_back(seconds_of([&] {
        while (!engine.prepare(version)) steps.push_back(seconds_of([&] { step(engine); }));
      }));
    }
    (is_prepared ? stopped_prepared : stopped).push_back(seconds_of([&] {
      CHECK(engine.apply(*version).ok(), "refused");
    }));
    step(engine);
    for (uint64_t id = last_id; is_prepared && id > last_id - 64; --id)
      engine.abort(SequenceId(id));
    while (engine.has_work()) step(engine);
    static_cast<void>(engine.take_finished());
  }
  const auto print = [](const std::string& what, const std::vector<double>& values) {
    const Spread spread = spread_of(values);
    fmt::print("  {:<32} {:.3f} ms [{:.3f}, {:.3f}]\n", what, 1e3 * spread.median,
               1e3 * spread.least, 1e3 * spread.most);
  };
  fmt::print("new weights from {}, {:.2f} GB; {}\n", type, 1e-9 * bytes, engine.describe());
  print("stop, not prepared", stopped);
  print("stop, prepared", stopped_prepared);
  print("to prepare, 64 decode", preparing);
  if (!steps.empty()) print("a step meanwhile", steps);
  std::fflush(stdout);
}

/// In fp32, as a learner publishes them, and in the engine's type.
void new_weights(const fs::path& folder, const TensorTable& table, bool is_small) {
  auto engine = make_on_cuda(folder, 64, 16384, 64 * 128);
  auto tensors = read_model_tensors(folder).value();
  if (is_small) {
    std::vector<float> flat(static_cast<size_t>(table.count()));
    CHECK(fill_parameters(table, tensors, flat.data()).ok(), "not the model's");
    apply_weights(*engine, copy_parameters(table, flat.data()), "fp32");
  }
  apply_weights(*engine, std::move(tensors), "bf16");
}

int run(const std::string& name, const fs::path& folder, const std::string& part) {
  const ModelConfig config = write_random_model(name, folder);
  const TensorTable table(config);
  fmt::print("Qwen3 {} shape, {:.3f} G parameters, bf16, cuda:0\n", name,
             1e-9 * static_cast<double>(table.num_parameters()));
  for (const int32_t batch : {1, 64, 256})
    if (part.empty() || part == fmt::format("decode-{}", batch)) decode(folder, batch);
  if ((part.empty() && !config.moe.has_value()) || part == "adapters") {
    adapters(folder, table, 64);
    prefill(folder, 16, 1024);
    prefill(folder, 16, 1024, &table);
  }
  if (part.empty() || part == "prefill") {
    prefill(folder, 1, 16384);
    prefill(folder, 16, 1024);
  }
  if (part.empty() || part == "weights") new_weights(folder, table, name == "0.6b");
  return 0;
}

}  // namespace
}  // namespace primerl::bench

int main(int argc, char** argv) {
  const std::string shape = argc >= 3 && argc <= 5 ? argv[1] : "";
  const bool has_shape = shape == "0.6b" || shape == "8b" || shape == "moe";
  if (!has_shape || (argc == 5 && std::string(argv[4]) != "fp8")) {
    fmt::print(stderr, "usage: cuda_engine_bench 0.6b|8b|moe FOLDER [PART [fp8]]\n");
    return 2;
  }
  if (argc == 5) primerl::bench::products_of_layers = argv[4];
  return primerl::bench::run(shape, argv[2], argc >= 4 ? argv[3] : "");
}
