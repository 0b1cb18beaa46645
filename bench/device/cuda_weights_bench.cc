// New weights from a learner's device to an engine's device, without the host.
//
//   cuda_weights_bench 0.6b|8b FOLDER DEVICE
//
// The engine is on cuda:0 and decodes 64 sequences meanwhile. The publisher is on cuda:DEVICE, in
// this process (only with DEVICE 0) and in another. With the 0.6B shape of Qwen3 it is the learner.
// The learner of the 8B shape would not fit beside an engine, so a buffer of its size is copied in
// the same way.
//
// "stop" is the time that an update adds between two tokens of a sequence: from the tokens before
// apply() to those of the first step after it, minus two earlier steps, since one was in progress
// when apply() was called. "lost" is the total: from the request for the version to that step,
// minus the steps made meanwhile. It includes the time of the learner's copy on a shared device.
//
// Bounds: the learner's part and the engine's stop are one copy each within the device, which reads
// and writes each byte. For 1.19 GB that is 0.56 ms at 4.27 TB/s (H200), 0.9 ms at 2.7 (H100); for
// 16.4 GB 7.7 and 12 ms. The copy alone is measured too. Between CUDA devices the bytes travel
// once, while steps continue. NVLink has 450 GB/s; a peer copy was measured at 395, NCCL's
// broadcast at 369: 3.2 ms and 45 ms. Medians, [least, most].
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <thread>
#include <vector>

#include "bench/device/timing.h"
#include "bench/device/weights_source.h"
#include "bench/device/wire_speed.h"
#include "graph/base/random.h"
#include "kernels/cuda/memory/device_memory.h"
#include "kernels/devices/make.h"
#include "kernels/models/tensors.h"
#include "kernels/weights/channel.h"
#include "kernels/weights/device_weights.h"
#include "kernels/weights/memory_channel.h"

namespace primerl::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kVersions = 15;
constexpr int kStepsBefore = 6;  // steps before an update, to know the time of one
constexpr int32_t kRunning = 64;
constexpr int32_t kTokensOfRun = 440;  // per sequence: more than the number of steps

/// Spreads by name, printed in alphabetical order.
using Figures = std::map<std::string, Spread>;

void print(const std::string& title, const Figures& figures) {
  fmt::print("{}\n", title);
  for (const auto& [name, spread] : figures) fmt::print("  {:<40} {}\n", name, spread.text());
  std::fflush(stdout);
}

/// Decodes 64 sequences until it is stopped.
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
    is_full_ = true;
    for (int i = 0; i < 8; ++i) step();
  }
  double step() {
    CHECK(engine_->state().num_running == kRunning || !is_full_, "a sequence has ended");
    return seconds_of([&] {
      CHECK(engine_->step().ok(), "a step failed");
      for (const auto& event : engine_->take_prefilled())
        CHECK(engine_->take_over(event.id).ok(), "nothing to take over");
    });
  }
  Engine& engine() { return *engine_; }

 private:
  std::unique_ptr<Engine> engine_;
  bool is_full_ = false;  // whether all sequences decode
};

/// A version that is being made while steps continue.
class Coming {
 public:
  virtual ~Coming() = default;
  virtual bool is_published() = 0;
};

/// Null: the device memory is still being opened.
Snapshot fetch(WeightChannel& channel, int64_t version, Spread& took) {
  const double begin = now();
  auto fetched = channel.fetch({}, PolicyVersion(version));
  if (!fetched.ok() && fetched.error().code() == Code::kUnavailable) return nullptr;
  took.add(now() - begin);
  CHECK(fetched.ok(), fetched.error().text());
  CHECK((*fetched)->device != nullptr, "it came as bytes");
  return std::move(fetched).value();
}

/// Applies `version` from `channel` as Decode does: steps continue while it is published and
/// prepared.
void take(Decoding& decoding, WeightChannel& channel, int64_t version,
          const std::function<std::unique_ptr<Coming>()>& ask, Figures& figures) {
  std::vector<double> usual;
  for (int i = 0; i < kStepsBefore; ++i) usual.push_back(decoding.step());
  for (const double one : usual) figures["engine: a step without"].add(one);
  const double step = median(usual), begin = now();
  double longest = 0, tokens_at = begin;
  int num_steps = 0;
  const auto go_on = [&] {
    longest = std::max(longest, decoding.step());
    tokens_at = now();
    ++num_steps;
  };
  const auto coming = ask();
  do go_on();
  while (!coming->is_published());
  const double published = now();
  Snapshot snapshot;
  while ((snapshot = fetch(channel, version, figures["engine: fetch"])) == nullptr) go_on();
  const double fetched = now();
  figures["all: from published to fetched"].add(fetched - published);
  while (!decoding.engine().prepare(snapshot)) go_on();
  figures["engine: to prepare, steps continue"].add(now() - fetched);
  figures["engine: longest step meanwhile"].add(longest);
  figures["engine: apply, with the step under way"].add(
      seconds_of([&] { CHECK(decoding.engine().apply(*snapshot).ok(), "refused"); }));
  figures["all: from published to applied"].add(now() - published);
  figures["engine: to let go"].add(seconds_of([&] { snapshot = nullptr; }));
  const double stopped_at = tokens_at;
  go_on();
  figures["engine: stop"].add(now() - stopped_at - 2 * step);
  figures["all: lost"].add(now() - begin - (num_steps + 1) * step);
}

/// The same without steps: measures only the transfer.
void take_idle(Decoding& decoding, WeightChannel& channel, int64_t version,
               const std::function<std::unique_ptr<Coming>()>& ask, Figures& figures) {
  const auto coming = ask();
  while (!coming->is_published()) std::this_thread::yield();
  Snapshot snapshot;
  figures["idle engine: fetch and prepare"].add(seconds_of([&] {
    snapshot = fetch(channel, version, figures["idle engine: fetch"]);
    CHECK(snapshot != nullptr, "its memory is not open");
    while (!decoding.engine().prepare(snapshot))
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }));
  CHECK(decoding.engine().apply(*snapshot).ok(), "refused");
  decoding.step();  // after the copy from the second set
}

void in_one_process(const std::string& shape, const fs::path& folder) {
  Decoding decoding(folder);
  const auto source = make_source(shape, folder, 0, 2);
  const auto channel = make_memory_channel(1);
  Figures figures;
  class Made final : public Coming {
   public:
    Made(Source& source, WeightChannel& channel, int64_t version, Figures& figures)
        : figures_(figures), took_(std::async(std::launch::async, [&source, &channel, version] {
            const double begin = now();
            const Snapshot snapshot = source.next(version);
            const double took = now() - begin;
            CHECK(channel.publish(snapshot).ok(), "not published");
            return took;
          })) {}
    bool is_published() override {
      if (took_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
      figures_["learner: snapshot"].add(took_.get());
      return true;
    }

   private:
    Figures& figures_;
    std::future<double> took_;
  };
  for (int64_t version = 0; version < kVersions; ++version)
    take(
        decoding, *channel, version,
        [&] { return std::make_unique<Made>(*source, *channel, version, figures); }, figures);
  print(fmt::format("one process, cuda:0; {}", decoding.engine().describe()), figures);
}

ChannelSetup setup_of(const fs::path& folder, int device_index) {
  ChannelSetup setup;
  setup.run_folder = folder;
  setup.run_id = "bench";
  setup.resource = "weights";
  setup.versions_max = 1;
  setup.devices = make_cuda_memory(device_index);
  setup.log = [](std::string_view line) { fmt::print(stderr, "{}\n", line); };
  return setup;
}

/// Publishes a version for each line of input; prints the time of each part.
int publish(const std::string& shape, const fs::path& folder, int device_index) {
  const auto source = make_source(shape, folder, device_index, 2);
  const auto channel = make_shm_channel(setup_of(folder, device_index)).value();
  int64_t version = 0;
  // tells the parent that it is ready
  if (::write(STDOUT_FILENO, &version, sizeof version) != sizeof version) return 1;
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

/// The process of the publisher.
class Publisher {
 public:
  Publisher(const std::string& shape, const fs::path& folder, int device_index) {
    int to[2], from[2];
    CHECK(::pipe(to) == 0 && ::pipe(from) == 0, "no pipes");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(to[0], STDIN_FILENO);
      ::dup2(from[1], STDOUT_FILENO);
      for (const int one : {to[0], to[1], from[0], from[1]}) ::close(one);
      const std::string number = std::to_string(device_index);
      ::execl("/proc/self/exe", "cuda_weights_bench", "--publish", shape.c_str(), folder.c_str(),
              number.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    in_ = to[1];
    out_ = from[0];
    int64_t ready = 0;
    CHECK(::read(out_, &ready, sizeof ready) == sizeof ready, "it does not start");
  }
  ~Publisher() {
    ::close(in_);
    ::waitpid(pid_, nullptr, 0);
    ::close(out_);
  }
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  /// Requests a version.
  std::unique_ptr<Coming> publish(int64_t version, Figures& figures) const {
    CHECK(::write(in_, &version, sizeof version) == sizeof version, "it is gone");
    return std::make_unique<Asked>(out_, figures);
  }

 private:
  class Asked final : public Coming {
   public:
    Asked(int answers, Figures& figures) : answers_(answers), figures_(figures) {}
    bool is_published() override {
      pollfd answer{answers_, POLLIN, 0};
      if (::poll(&answer, 1, 0) == 0) return false;
      double took[2] = {};
      CHECK(::read(answers_, took, sizeof took) == sizeof took, "it has failed");
      figures_["learner: snapshot"].add(took[0]);
      figures_["learner: publish"].add(took[1]);
      return true;
    }

   private:
    const int answers_;
    Figures& figures_;
  };

  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
};

/// Fetches the first version, as an engine does before its first step: this opens the learner's
/// buffers.
void open_all(WeightChannel& channel, const Publisher& publisher, Figures& figures) {
  const auto coming = publisher.publish(0, figures);
  while (!coming->is_published()) std::this_thread::yield();
  Spread none;
  const double seconds = seconds_of([&] {
    while (fetch(channel, 0, none) == nullptr) std::this_thread::yield();
  });
  fmt::print("to open all buffers, before the engine's first step: {:.3f} ms\n", 1e3 * seconds);
}

/// The newest version whose memory is open.
Snapshot last_of(WeightChannel& channel) {
  Spread took;
  Snapshot last = fetch(channel, channel.newest({}).value, took);
  CHECK(last != nullptr, "its memory is not open");
  return last;
}

/// Seconds until an engine on another CUDA device has a version; 0: it is on the same device.
double between_processes(const std::string& shape, const fs::path& folder, int device_index) {
  const Publisher publisher(shape, folder, device_index);  // started before this process uses the
                                                           // device
  const auto channel = make_shm_channel(setup_of(folder, 0)).value();
  Figures figures;
  open_all(*channel, publisher, figures);
  Decoding decoding(folder);
  const int num_idle = device_index == 0 ? 0 : kVersions;
  for (int64_t version = 1; version <= kVersions + num_idle; ++version)
    (version <= kVersions ? take : take_idle)(
        decoding, *channel, version, [&] { return publisher.publish(version, figures); }, figures);
  print(fmt::format("two processes, cuda:{} to cuda:0; {}", device_index,
                    decoding.engine().describe()),
        figures);
  if (device_index != 0) copy_from(last_of(*channel)->device->buffer());
  return device_index == 0 ? 0 : figures["idle engine: fetch and prepare"].middle();
}

int run(const std::string& shape, const fs::path& folder, int device_index) {
  fs::create_directories(folder);
  write_shape(shape, folder);
  const TensorTable table(read_model_config(folder).value());
  const auto num_bytes = static_cast<uint64_t>(table.count()) * 2;
  fmt::print("Qwen3 {} shape, {:.2f} GB of bf16\n", shape, 1e-9 * static_cast<double>(num_bytes));
  // The learner's memory is freed before the rest is measured.
  const double seconds = between_processes(shape, folder, device_index);
  if (device_index == 0) in_one_process(shape, folder);
  copy_alone(num_bytes);
  if (device_index != 0) compare(num_bytes, seconds);
  return 0;
}

}  // namespace
}  // namespace primerl::bench

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 4 && words[0] == "--publish")
    return primerl::bench::publish(words[1], words[2], std::stoi(words[3]));
  if (words.size() != 3 || (words[0] != "0.6b" && words[0] != "8b")) {
    fmt::print(stderr, "usage: cuda_weights_bench 0.6b|8b FOLDER DEVICE\n");
    return 2;
  }
  return primerl::bench::run(words[0], words[1], std::stoi(words[2]));
}
