// New weights from a learner's device to an engine's, without the host.
//
//   cuda_weights_bench 0.6b|8b FOLDER CARD
//
// The engine is on cuda:0 and decodes 64 sequences meanwhile; what publishes is on cuda:CARD, in
// this process (CARD 0 alone) and in another. Of the 0.6B shape of Qwen3 it is the learner; beside
// an engine the 8B's would not fit, there a buffer of its size is copied as the learner copies its
// own.
//
// Bounds: the learner's part and the stop of the engine are one copy within the device each, which
// reads and writes each byte: of 1.19 GB 0.56 ms at 4.27 TB/s (H200), 0.9 at 2.7 (H100); of 16.4 GB
// 7.7 and 12 ms. Between cards the bytes travel once, while steps go on: NVLink's 450 GB/s, of
// which a peer copy has been measured at 395, NCCL's broadcast at 369: 3.2 ms and 45 ms. Medians,
// [least, most].
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <vector>

#include "graph/base/random.h"
#include "kernels/models/tensors.h"
#include "kernels/torch/cuda/device_memory.h"
#include "kernels/torch/make.h"
#include "kernels/weights/channel.h"
#include "kernels/weights/device_weights.h"
#include "kernels/weights/memory_channel.h"
#include "kernels/weights/safetensors.h"

namespace primerl::bench {
namespace {

namespace fs = std::filesystem;
using Snapshot = std::shared_ptr<const WeightSnapshot>;
using Clock = std::chrono::steady_clock;

constexpr int kVersions = 12;
constexpr int32_t kRunning = 64;
constexpr int32_t kTokensOfRun = 400;  // of a sequence: more than there are steps
constexpr uint64_t kPartMax = uint64_t{2} << 30;

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

double seconds_of(const std::function<void()>& body) {
  const double begin = now();
  body();
  return now() - begin;
}

void must(cudaError_t code, const char* what) {
  CHECK(code == cudaSuccess, fmt::format("{}: {}", what, cudaGetErrorString(code)));
}

/// Of a quantity, in the order in which it was measured; the first is a warm-up.
class Spread {
 public:
  void add(double seconds) { all_.push_back(seconds); }
  std::string text() const {
    if (all_.size() < 2) return "none";
    std::vector<double> sorted(all_.begin() + 1, all_.end());
    std::ranges::sort(sorted);
    return fmt::format("{:.3f} ms [{:.3f}, {:.3f}], first {:.3f}", 1e3 * sorted[sorted.size() / 2],
                       1e3 * sorted.front(), 1e3 * sorted.back(), 1e3 * all_.front());
  }

 private:
  std::vector<double> all_;
};

/// Spreads by name, printed in the order of their names.
using Figures = std::map<std::string, Spread>;

void print(const std::string& title, const Figures& figures) {
  fmt::print("{}\n", title);
  for (const auto& [name, spread] : figures) fmt::print("  {:<36} {}\n", name, spread.text());
  std::fflush(stdout);
}

/// Makes versions of the weights on a card.
class Source {
 public:
  virtual ~Source() = default;
  virtual Snapshot next(int64_t version) = 0;
};

class LearnerSource final : public Source {
 public:
  LearnerSource(const fs::path& folder, int card) {
    LearnerOptions options;
    options.device = fmt::format("cuda:{}", card);
    options.numerics = "fast";
    auto made = make_torch_learner(options, folder);
    CHECK(made.ok(), made.error().text());
    learner_ = std::move(made).value();
  }
  Snapshot next(int64_t version) override {
    auto taken = learner_->snapshot(TenantSlot(0), PolicyVersion(version));
    CHECK(taken.ok(), taken.error().text());
    CHECK((*taken)->device != nullptr, "it went through the host: " + learner_->describe());
    return *taken;
  }

 private:
  std::unique_ptr<Learner> learner_;
};

class BufferSource final : public Source {
 public:
  BufferSource(const TensorTable& table, int card, size_t buffers_max)
      : memory_(make_card_memory(card)),
        num_bytes_(static_cast<uint64_t>(table.count()) * 2),
        pool_(memory_, num_bytes_, buffers_max) {
    must(cudaSetDevice(card), "device");
    weights_ = memory_->allocate(std::min(num_bytes_, kPartMax)).value();
    must(cudaMemset(weights_->data(), 0, weights_->num_bytes()), "weights");
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    for (const auto& slice : table.slices()) {
      tensors_.push_back({slice.name, DataType::kBF16, slice.shape, {}});
      offsets_.push_back(static_cast<uint64_t>(slice.offset) * 2);
    }
    must(cudaDeviceSynchronize(), "weights");
  }
  Snapshot next(int64_t version) override {
    auto buffer = pool_.take();
    CHECK(buffer != nullptr, "no free buffer");
    auto* to = static_cast<std::byte*>(buffer->data());
    for (uint64_t at = 0; at < num_bytes_; at += kPartMax)
      must(cudaMemcpyAsync(to + at, weights_->data(), std::min(kPartMax, num_bytes_ - at),
                           cudaMemcpyDefault, stream_),
           "copy");
    must(cudaStreamSynchronize(stream_), "copy");
    auto made = std::make_shared<WeightSnapshot>();
    made->version = PolicyVersion(version);
    made->tensors = tensors_;
    made->device = std::make_shared<const DeviceWeights>(std::move(buffer), offsets_);
    return made;
  }

 private:
  const std::shared_ptr<DeviceMemory> memory_;
  const uint64_t num_bytes_;
  DeviceBufferPool pool_;
  std::shared_ptr<DeviceBuffer> weights_;  // copied again and again: all of them would not fit
  cudaStream_t stream_ = nullptr;
  std::vector<WeightTensor> tensors_;
  std::vector<uint64_t> offsets_;
};

std::unique_ptr<Source> make_source(const std::string& shape, const fs::path& folder, int card,
                                    size_t buffers_max) {
  if (shape == "0.6b") return std::make_unique<LearnerSource>(folder, card);
  const TensorTable table(read_model_config(folder).value());
  return std::make_unique<BufferSource>(table, card, buffers_max);
}

/// All views of the same small numbers: what is computed with them does not count here.
std::vector<WeightTensor> any_tensors(const TensorTable& table) {
  int64_t most = 0;
  for (const auto& slice : table.slices()) most = std::max(most, slice.count);
  std::vector<std::byte> bytes(static_cast<size_t>(most) * 2);
  for (size_t i = 0; i < bytes.size(); i += 2) {
    bytes[i] = static_cast<std::byte>(mix(1, i));
    bytes[i + 1] = i % 4 == 0 ? std::byte{0x3c} : std::byte{0xbc};
  }
  const auto all = std::make_shared<const Blob>(std::move(bytes));
  std::vector<WeightTensor> tensors;
  for (const auto& slice : table.slices())
    tensors.push_back({slice.name, DataType::kBF16, slice.shape,
                       Blob(all, all->bytes().first(static_cast<size_t>(slice.count) * 2))});
  return tensors;
}

void write_shape(const std::string& shape, const fs::path& folder) {
  const bool is_small = shape == "0.6b";
  std::ofstream(folder / "config.json") << fmt::format(
      R"({{"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","vocab_size":151936,)"
      R"("hidden_size":{},"intermediate_size":{},"num_hidden_layers":{},)"
      R"("num_attention_heads":{},"num_key_value_heads":8,"head_dim":128,)"
      R"("max_position_embeddings":40960,"tie_word_embeddings":{},"rms_norm_eps":1e-6,)"
      R"("rope_theta":1000000,"hidden_act":"silu","attention_bias":false,)"
      R"("initializer_range":0.02,"eos_token_id":151645,"dtype":"bfloat16"}})",
      is_small ? 1024 : 4096, is_small ? 3072 : 12288, is_small ? 28 : 36, is_small ? 16 : 32,
      is_small ? "true" : "false");
  const TensorTable table(read_model_config(folder).value());
  const fs::path file = folder / "model.safetensors";
  if (!fs::exists(file)) CHECK(write_safetensors(file, any_tensors(table)).ok(), "no disk");
}

/// Decodes 64 sequences for as long as it is asked to.
class Decoding {
 public:
  explicit Decoding(const fs::path& folder) {
    EngineOptions options;
    options.device = "cuda:0";
    options.numerics = "fast";
    options.dtype = "bfloat16";
    options.max_running = kRunning;
    options.max_batched_tokens = 8192;
    options.max_prefill_tokens = 8192;
    options.kv_blocks = kRunning * 36;
    options.max_sequence_tokens = 4096;
    options.prefix_cache = false;
    auto made = make_torch_engine(options, folder);
    CHECK(made.ok(), made.error().text());
    engine_ = std::move(made).value();
    for (int32_t i = 0; i < kRunning; ++i) {
      SequenceRequest request;
      request.id = SequenceId(static_cast<uint64_t>(i) + 1);
      for (uint64_t at = 0; at < 128; ++at)
        request.prompt_tokens.push_back(
            static_cast<int32_t>(mix(static_cast<uint64_t>(i), at) % 151000));
      request.sampling = {.max_tokens = kTokensOfRun, .ignore_eos = true};
      CHECK(engine_->submit(std::move(request)).ok(), "refused");
    }
    while (engine_->state().num_running < kRunning) step();
    for (int i = 0; i < 8; ++i) step();
  }
  double step() {
    return seconds_of([&] {
      CHECK(engine_->step().ok(), "a step failed");
      for (const auto& event : engine_->take_prefilled())
        CHECK(engine_->take_over(event.id).ok(), "nothing to take over");
    });
  }
  Engine& engine() { return *engine_; }

 private:
  std::unique_ptr<Engine> engine_;
};

/// Takes `version` from `channel` as Decode does: steps go on while it is prepared.
void take(Decoding& decoding, WeightChannel& channel, int64_t version, double published,
          Figures& figures) {
  Snapshot snapshot;
  figures["engine: fetch"].add(seconds_of([&] {
    auto fetched = channel.fetch({}, PolicyVersion(version));
    CHECK(fetched.ok(), fetched.error().text());
    CHECK((*fetched)->device != nullptr, "it came as bytes");
    snapshot = std::move(fetched).value();
  }));
  const double begin = now();
  double longest = 0;
  while (!decoding.engine().prepare(snapshot)) longest = std::max(longest, decoding.step());
  figures["engine: to prepare, steps go on"].add(now() - begin);
  if (longest > 0) figures["engine: longest step meanwhile"].add(longest);
  figures["engine: stop, apply"].add(
      seconds_of([&] { CHECK(decoding.engine().apply(*snapshot).ok(), "refused"); }));
  figures["all: from the end of a step to applied"].add(now() - published);
  figures["engine: stop, to let go"].add(seconds_of([&] { snapshot = nullptr; }));
  figures["engine: the next step"].add(decoding.step());
  for (int i = 0; i < 4; ++i) figures["engine: a step without"].add(decoding.step());
}

void in_one_process(const std::string& shape, const fs::path& folder) {
  Decoding decoding(folder);
  const auto source = make_source(shape, folder, 0, 2);
  const auto channel = make_memory_channel(1);
  Figures figures;
  for (int64_t version = 0; version < kVersions; ++version) {
    const double begin = now();
    const Snapshot snapshot = source->next(version);
    figures["learner: snapshot"].add(now() - begin);
    CHECK(channel->publish(snapshot).ok(), "not published");
    take(decoding, *channel, version, begin, figures);
  }
  print(fmt::format("one process, cuda:0; {}", decoding.engine().describe()), figures);
}

ChannelSetup setup_of(const fs::path& folder, int card) {
  ChannelSetup setup;
  setup.run_folder = folder;
  setup.run_id = "bench";
  setup.resource = "weights";
  setup.versions_max = 1;
  setup.devices = make_card_memory(card);
  setup.log = [](std::string_view line) { fmt::print(stderr, "{}\n", line); };
  return setup;
}

/// A version for each line of input; says what its parts took.
int publish(const std::string& shape, const fs::path& folder, int card) {
  const auto source = make_source(shape, folder, card, 2);
  const auto channel = make_shm_channel(setup_of(folder, card)).value();
  int64_t version = 0;
  while (::read(STDIN_FILENO, &version, sizeof version) == sizeof version) {
    double took[2] = {now(), 0};
    const Snapshot snapshot = source->next(version);
    took[0] = now() - took[0];
    took[1] = seconds_of([&] {
      const Status published = channel->publish(snapshot);
      CHECK(published.ok(), published.error().text());
    });
    if (::write(STDOUT_FILENO, took, sizeof took) != sizeof took) return 1;
  }
  return 0;
}

/// The other process.
class Publisher {
 public:
  Publisher(const std::string& shape, const fs::path& folder, int card) {
    int to[2], from[2];
    CHECK(::pipe(to) == 0 && ::pipe(from) == 0, "no pipes");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(to[0], STDIN_FILENO);
      ::dup2(from[1], STDOUT_FILENO);
      for (const int one : {to[0], to[1], from[0], from[1]}) ::close(one);
      const std::string number = std::to_string(card);
      ::execl("/proc/self/exe", "cuda_weights_bench", "--publish", shape.c_str(), folder.c_str(),
              number.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    in_ = to[1];
    out_ = from[0];
  }
  ~Publisher() {
    ::close(in_);
    ::waitpid(pid_, nullptr, 0);
    ::close(out_);
  }
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  void publish(int64_t version, Figures& figures) const {
    double took[2] = {};
    CHECK(::write(in_, &version, sizeof version) == sizeof version, "it is gone");
    CHECK(::read(out_, took, sizeof took) == sizeof took, "it has failed");
    figures["learner: snapshot"].add(took[0]);
    figures["learner: publish"].add(took[1]);
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
};

void between_processes(const std::string& shape, const fs::path& folder, int card) {
  const Publisher publisher(shape, folder, card);  // before this process knows the device
  Decoding decoding(folder);
  const auto channel = make_shm_channel(setup_of(folder, 0)).value();
  Figures figures;
  for (int64_t version = 0; version < kVersions; ++version) {
    const double begin = now();
    publisher.publish(version, figures);
    take(decoding, *channel, version, begin, figures);
  }
  print(fmt::format("two processes, cuda:{} to cuda:0; {}", card, decoding.engine().describe()),
        figures);
}

std::string rate(double bytes, const std::function<void()>& body) {
  std::vector<double> seconds;
  for (int i = 0; i < 9; ++i) {
    const double one = seconds_of(body);
    if (i > 1) seconds.push_back(one);
  }
  std::ranges::sort(seconds);
  return fmt::format("{:.0f} GB/s [{:.0f}, {:.0f}]", 1e-9 * bytes / seconds[seconds.size() / 2],
                     1e-9 * bytes / seconds.back(), 1e-9 * bytes / seconds.front());
}

/// NCCL is what libtorch has loaded, where it has one; its types are plain.
void broadcast(const std::vector<void*>& buffers, uint64_t num_bytes,
               const std::vector<cudaStream_t>& streams) {
  using Comm = void*;
  const auto find = [](const char* name) { return ::dlsym(RTLD_DEFAULT, name); };
  const auto init = reinterpret_cast<int (*)(Comm*, int, const int*)>(find("ncclCommInitAll"));
  const auto send =
      reinterpret_cast<int (*)(const void*, void*, size_t, int, int, Comm, cudaStream_t)>(
          find("ncclBroadcast"));
  const auto begin = reinterpret_cast<int (*)()>(find("ncclGroupStart"));
  const auto end = reinterpret_cast<int (*)()>(find("ncclGroupEnd"));
  if (init == nullptr || send == nullptr || begin == nullptr || end == nullptr) {
    fmt::print("  no NCCL in this libtorch\n");
    return;
  }
  Comm comms[2] = {};
  const int cards[2] = {0, 1};
  CHECK(init(comms, 2, cards) == 0, "NCCL does not start");
  constexpr int kBytesOfNccl = 1;  // ncclUint8
  fmt::print(
      "  {:<36} {}\n", fmt::format("ncclBroadcast, {:.2f} GB", 1e-9 * double(num_bytes)),
      rate(static_cast<double>(num_bytes), [&] {
        CHECK(begin() == 0, "NCCL");
        for (size_t i = 0; i < 2; ++i)
          CHECK(send(buffers[1], buffers[i], num_bytes, kBytesOfNccl, 1, comms[i], streams[i]) == 0,
                "NCCL");
        CHECK(end() == 0, "NCCL");
        for (const auto& stream : streams) must(cudaStreamSynchronize(stream), "NCCL");
      }));
}

/// What the hardware gives from cuda:1 to cuda:0.
void raw(uint64_t num_bytes) {
  std::vector<std::shared_ptr<DeviceBuffer>> buffers;
  std::vector<cudaStream_t> streams(2);
  for (int card = 0; card < 2; ++card) {
    must(cudaSetDevice(card), "device");
    buffers.push_back(make_card_memory(card)->allocate(num_bytes).value());
    must(cudaStreamCreateWithFlags(&streams[static_cast<size_t>(card)], cudaStreamNonBlocking),
         "stream");
  }
  const Status reached = buffers[1]->reach_from(0);
  CHECK(reached.ok(), reached.error().text());
  must(cudaSetDevice(0), "device");
  fmt::print("  {:<36} {}\n", fmt::format("peer copy, {:.2f} GB", 1e-9 * double(num_bytes)),
             rate(static_cast<double>(num_bytes), [&] {
               must(cudaMemcpyAsync(buffers[0]->data(), buffers[1]->data(), num_bytes,
                                    cudaMemcpyDefault, streams[0]),
                    "copy");
               must(cudaStreamSynchronize(streams[0]), "copy");
             }));
  broadcast({buffers[0]->data(), buffers[1]->data()}, num_bytes, streams);
}

int run(const std::string& shape, const fs::path& folder, int card) {
  fs::create_directories(folder);
  write_shape(shape, folder);
  const TensorTable table(read_model_config(folder).value());
  const auto num_bytes = static_cast<uint64_t>(table.count()) * 2;
  fmt::print("Qwen3 {} shape, {:.2f} GB of bf16\n", shape, 1e-9 * static_cast<double>(num_bytes));
  between_processes(shape, folder, card);
  if (card == 0) {
    in_one_process(shape, folder);
  } else {
    raw(num_bytes);
    raw(uint64_t{1} << 30);
  }
  return 0;
}

}  // namespace
}  // namespace primerl::bench

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 4 && words[0] == "--publish")
    return primerl::bench::publish(words[1], words[2], std::stoi(words[3]));
  if (words.size() != 3 || (words[0] != "0.6b" && words[0] != "8b")) {
    fmt::print(stderr, "usage: cuda_weights_bench 0.6b|8b FOLDER CARD\n");
    return 2;
  }
  return primerl::bench::run(words[0], words[1], std::stoi(words[2]));
}
