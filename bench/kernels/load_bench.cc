// Bound: an engine reads every byte of a folder once (read_pages: 1 MiB at a time into one buffer)
// and writes as many into new memory, which the system clears first (write_new_memory). Each thread
// does one after the other. Aim: 0.8 of the page cache's rate, without a second copy of the
// weights. An update (update_engine) reads and writes as many bytes. If it was prepared, only the
// exchange of the two sets stops the engine. Each part of preparing is 4 MiB: 1 to 2 ms at the rate
// of a copy.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "bench/kernels/shapes.h"
#include "graph/base/descriptor.h"
#include "kernels/common/memory.h"
#include "kernels/models/tensors.h"
#include "kernels/weights/safetensors.h"

namespace primerl::bench {
namespace {

constexpr Shape kLarge = {"2gb", 2048, 10, 6144, 16, 8, 128, 32000};

/// A model of 2 GB of zeros; F32, or BF16 of half the size.
std::filesystem::path make_large(DataType type) {
  const auto folder = make_config(kLarge, std::string(to_string(type)));
  const TensorTable table(read_model_config(folder).value());
  int64_t largest = 0;
  for (const auto& slice : table.slices()) largest = std::max(largest, slice.count);
  const Blob zeros(std::vector<std::byte>(static_cast<size_t>(largest) * size_in_bytes(type)));
  std::vector<WeightTensor> tensors;
  for (const auto& slice : table.slices()) {
    const auto size = static_cast<size_t>(slice.count) * size_in_bytes(type);
    tensors.push_back({slice.name, type, slice.shape,
                       Blob(std::make_shared<Blob>(zeros), zeros.bytes().first(size))});
  }
  CHECK(write_safetensors(folder / "model.safetensors", tensors).ok(), "cannot write");
  return folder;
}

double file_bytes(const std::filesystem::path& folder) {
  return static_cast<double>(std::filesystem::file_size(folder / "model.safetensors"));
}

void count_bytes(benchmark::State& state, double bytes) {
  state.counters["GB/s"] =
      benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void read_pages(benchmark::State& state, DataType type) {
  const auto folder = make_large(type);
  std::vector<char> buffer(size_t{1} << 20);
  for (auto _ : state) {
    const Descriptor file(::open((folder / "model.safetensors").c_str(), O_RDONLY | O_CLOEXEC));
    while (::read(file.get(), buffer.data(), buffer.size()) > 0) benchmark::ClobberMemory();
  }
  count_bytes(state, file_bytes(folder));
}

/// Writes as much new memory once: the system clears each page first.
void write_new_memory(benchmark::State& state, DataType type) {
  const auto size = static_cast<int64_t>(file_bytes(make_large(type)));
  for (auto _ : state) {
    const at::Tensor memory = zero_floats(size / static_cast<int64_t>(sizeof(float)));
    std::memset(memory.mutable_data_ptr(), 1, memory.nbytes());
    benchmark::ClobberMemory();
  }
  count_bytes(state, static_cast<double>(size));
}

void load_engine(benchmark::State& state, DataType type) {
  const auto folder = make_large(type);
  EngineOptions options;
  options.kv_blocks = 1;
  options.max_batched_tokens = 16;
  options.max_running = 16;
  options.threads = static_cast<int32_t>(state.range(0));
  for (auto _ : state) CHECK(make_torch_engine(options, folder).ok(), "not loaded");
  count_bytes(state, file_bytes(folder));
}

/// How long a new version stops an engine; if prepared, also the longest part of preparing it.
void update_engine(benchmark::State& state, bool is_prepared) {
  const auto folder = make_large(DataType::kF32);
  EngineOptions options;
  options.kv_blocks = 1;
  options.max_batched_tokens = 16;
  options.max_running = 16;
  options.threads = static_cast<int32_t>(state.range(0));
  auto engine = make_torch_engine(options, folder);
  CHECK(engine.ok(), engine.error().text());
  WeightSnapshot snapshot{{}, PolicyVersion(0), read_model_tensors(folder).value()};
  const auto seconds_of = [](const auto& body) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  double longest = 0;
  for (auto _ : state) {
    ++snapshot.version.value;
    const auto version = std::make_shared<const WeightSnapshot>(snapshot);
    for (bool is_ready = !is_prepared; !is_ready;)
      longest = std::max(longest, seconds_of([&] { is_ready = (*engine)->prepare(version); }));
    state.SetIterationTime(
        seconds_of([&] { CHECK((*engine)->apply(*version).ok(), "not applied"); }));
  }
  if (is_prepared) state.counters["longest part ms"] = longest * 1e3;
}

BENCHMARK_CAPTURE(update_engine, at_once, false)
    ->Arg(1)
    ->Arg(2)
    ->Iterations(5)
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
BENCHMARK_CAPTURE(update_engine, prepared, true)
    ->Arg(1)
    ->Arg(2)
    ->Iterations(5)
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
BENCHMARK_CAPTURE(read_pages, f32, DataType::kF32)->Unit(benchmark::kSecond)->UseRealTime();
BENCHMARK_CAPTURE(write_new_memory, f32, DataType::kF32)->Unit(benchmark::kSecond)->UseRealTime();
BENCHMARK_CAPTURE(load_engine, f32, DataType::kF32)
    ->Arg(1)
    ->Arg(2)
    ->Unit(benchmark::kSecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(load_engine, bf16, DataType::kBF16)
    ->Arg(1)
    ->Arg(2)
    ->Unit(benchmark::kSecond)
    ->UseRealTime();

}  // namespace
}  // namespace primerl::bench
