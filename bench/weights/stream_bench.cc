// Bound: a version of 100 MB is sent to each of two receivers by a separate socket: two copies into
// and out of the kernel, one into the receiver's memory, a hash and a CRC of every byte at each
// end. Two cores that copy cold memory at 5 GB/s share all of that: some 0.15 s for both receivers,
// 1.3 GB/s together, if nothing waits. Small frames have a separate connection. The I/O thread also
// copies chunks of 512 KiB and delays a small frame by at most two chunks, 0.5 ms, if no other
// program uses the processor.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "graph/base/random.h"
#include "runtime/transport/zmq_transport.h"
#include "runtime/worker/weight_streams.h"

namespace primerl {
namespace {

constexpr int64_t kTensors = 25;
constexpr int64_t kTensorFloats = 1'000'000;  // 4 MB each
constexpr size_t kBytes = kTensors * kTensorFloats * sizeof(float);
constexpr uint32_t kReceivers = 2;
constexpr uint32_t kStream = 3;

struct Ping {
  static constexpr std::string_view kName = "Ping";
  static constexpr uint32_t kVersion = 1;
  uint64_t number = 0;
  template <class F>
  static void fields(F& f) {
    f("number", &Ping::number);
  }
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::shared_ptr<const WeightSnapshot> weights(int64_t version) {
  static const std::vector<Blob> blobs = [] {
    std::vector<Blob> made;
    for (int64_t i = 0; i < kTensors; ++i) {
      std::vector<std::byte> bytes(kTensorFloats * sizeof(float));
      for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
        const uint64_t word = mix(static_cast<uint64_t>(i), at);
        std::memcpy(bytes.data() + at, &word, sizeof word);
      }
      made.emplace_back(std::move(bytes));
    }
    return made;
  }();
  auto snapshot = std::make_shared<WeightSnapshot>();
  snapshot->version = PolicyVersion(version);
  for (int64_t i = 0; i < kTensors; ++i)
    snapshot->tensors.push_back({fmt::format("layer.{:03}.weight", i),
                                 DataType::kF32,
                                 {kTensorFloats},
                                 blobs[static_cast<size_t>(i)]});
  return snapshot;
}

/// A process with its links and its end of the channel.
class End {
 public:
  /// `key_file`: the key pair of both ends for tcp; "" for ipc.
  End(uint32_t process, const std::string& listen, const std::string& key_file)
      : connections_([this] {
          ConnectionEvents events;
          events.all_live = [] {};
          events.tenant_finished = [](TenantSlot, uint32_t, const std::string&) {};
          events.failed = [](const Error& why) { fmt::print(stderr, "{}\n", why.text()); };
          events.changed = [](const std::string&) {};
          return events;
        }()) {
    TransportIdentity identity;
    identity.run = "bench";
    identity.types = std::make_shared<const WireTypes>(std::vector{&message_type<Ping>()});
    identity.process = ProcessId(process);
    identity.name = fmt::format("p{}", process);
    ZmqOptions options;
    if (!listen.empty()) options.listen = {listen};
    if (!key_file.empty()) {
      auto keys = read_key_file(key_file);
      CHECK(keys.ok(), "no keys");
      public_key_ = keys->public_key;
      options.keys = std::move(keys).value();
    }
    connections_.carry_streams(&streams_);
    auto opened = connections_.open([&](TransportReceiver& receiver) {
      return make_zmq_transport(identity, ConnectionLimits(), options, receiver);
    });
    CHECK(opened.ok(), "no links");
    addresses_ = std::move(opened).value();
    StreamChannelSetup setup;
    setup.resource = "weights";
    setup.has_news = [this] { connections_.streams_ready(); };
    channel_ = make_stream_channel(std::move(setup));
    std::vector<ProcessId> peers;
    for (uint32_t peer = 0; peer <= kReceivers; ++peer) peers.emplace_back(peer);
    streams_.add(kStream, std::move(peers), channel_);
  }
  ~End() { connections_.close(); }

  void connect(const std::vector<uint32_t>& peers, const PeerAddress& address) {
    std::vector<PeerSpec> specs;
    for (const uint32_t peer : peers) {
      PeerSpec spec;
      spec.process = ProcessId(peer);
      spec.name = fmt::format("p{}", peer);
      spec.address = address;
      spec.public_key = public_key_;
      specs.push_back(std::move(spec));
    }
    CHECK(connections_.connect(std::move(specs)).ok(), "no peers");
  }

  PeerConnections& connections() { return connections_; }
  StreamChannel& channel() { return *channel_; }
  const PeerAddress& address() const { return addresses_.front(); }

 private:
  WeightStreams streams_;
  PeerConnections connections_;
  std::string public_key_;
  std::vector<PeerAddress> addresses_;
  std::shared_ptr<StreamChannel> channel_;
};

MessageBatch ping(uint32_t from, uint32_t to, uint64_t number) {
  MessageBatch batch;
  batch.from = GroupId(from);
  batch.to = GroupId(to);
  batch.incarnation = 1;
  BatchedMessage message;
  message.envelope.sequence = number;
  message.envelope.incarnation = 1;
  message.envelope.payload = Payload::of(Ping{number});
  batch.messages.push_back(std::move(message));
  return batch;
}

/// Reports each version that it has to its parent, and answers pings.
int receive(uint32_t process, const PeerAddress& parent, const std::string& key_file) {
  End end(process, "", key_file);
  end.connections().receive([&](ProcessId, MessageBatch&& batch) {
    const uint64_t number = batch.messages.front().envelope.payload.as<Ping>().number;
    (void)end.connections().send(ProcessId(0), ping(process, 0, number));
    return ok();
  });
  end.connect({0}, parent);
  for (int64_t version = 1;; ++version) {
    if (!end.channel().wait_for({}, PolicyVersion(version), Duration::seconds(60))) return 1;
    version = end.channel().newest({}).value;
    if (!end.channel().fetch({}, PolicyVersion(version)).ok()) return 1;
    if (::write(STDOUT_FILENO, &version, sizeof version) != sizeof version) return 1;
  }
}

class Child {
 public:
  Child(uint32_t process, const PeerAddress& parent, const std::string& key_file) {
    int from[2];
    CHECK(::pipe2(from, O_CLOEXEC) == 0, "no pipe");
    const std::string number = std::to_string(process);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(from[1], STDOUT_FILENO);
      ::execl("/proc/self/exe", "link_weights_bench", "--receive", number.c_str(),
              parent.frames.c_str(), parent.bulk.c_str(), key_file.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(from[1]);
    output_ = from[0];
  }
  ~Child() {
    ::close(output_);
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void wait_for(int64_t version) const {
    for (int64_t has = 0; has < version;)
      CHECK(::read(output_, &has, sizeof has) == sizeof has, "a receiver is gone");
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "link-bench-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Sends one ping after the other and records the round-trip times.
class Pings {
 public:
  explicit Pings(End& end) : end_(end) {
    end_.connections().receive([this](ProcessId, MessageBatch&& batch) {
      answered_.store(batch.messages.front().envelope.payload.as<Ping>().number);
      answered_.notify_all();
      return ok();
    });
  }
  double once() {
    const double begin = now();
    const uint64_t number = ++number_;
    CHECK(end_.connections().send(ProcessId(1), ping(0, 1, number)).ok(), "a ping was not taken");
    for (uint64_t seen = answered_.load(); seen < number; seen = answered_.load())
      answered_.wait(seen);
    return now() - begin;
  }

 private:
  End& end_;
  uint64_t number_ = 0;
  std::atomic<uint64_t> answered_{0};
};

/// From publish() until the last of two receivers has the verified version; with `with_pings`,
/// small messages are exchanged meanwhile.
void two_receivers(benchmark::State& state, const char* kind, bool with_pings) {
  const Folder folder;
  const bool is_ipc = std::string(kind) == "ipc";
  const std::string key_file = is_ipc ? "" : folder.path() + "/keys";
  CHECK(is_ipc || write_key_file(key_file, make_key_pair()).ok(), "no keys");
  End end(0, is_ipc ? "ipc://" + folder.path() + "/sockets" : "tcp://127.0.0.1", key_file);
  Pings pings(end);
  end.connect({1, 2}, {});
  const std::array<Child, kReceivers> children{Child(1, end.address(), key_file),
                                               Child(2, end.address(), key_file)};
  int64_t version = 0;
  std::vector<double> publish, quiet, busy;
  const auto once = [&] {
    const auto snapshot = weights(++version);
    const double begin = now();
    CHECK(end.channel().publish(snapshot).ok(), "the version was not published");
    publish.push_back(now() - begin);
    while (with_pings && now() < begin + 0.05) busy.push_back(pings.once());
    for (const Child& child : children) child.wait_for(version);
    return now() - begin;
  };
  for (int i = 0; i < 3; ++i) once();
  publish.clear();
  busy.clear();
  for (int i = 0; with_pings && i < 2000; ++i) quiet.push_back(pings.once());
  for (auto _ : state) state.SetIterationTime(once());
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kReceivers * kBytes));
  state.counters["publish_ms"] = percentile(publish, 0.5) * 1e3;
  if (!with_pings) return;
  state.counters["ping_quiet_p50_us"] = percentile(quiet, 0.5) * 1e6;
  state.counters["ping_quiet_p99_us"] = percentile(quiet, 0.99) * 1e6;
  state.counters["ping_busy_p50_us"] = percentile(busy, 0.5) * 1e6;
  state.counters["ping_busy_p99_us"] = percentile(busy, 0.99) * 1e6;
}

}  // namespace
}  // namespace primerl

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "--receive")
    return primerl::receive(static_cast<uint32_t>(std::atoi(argv[2])), {argv[3], argv[4]}, argv[5]);
  benchmark::Initialize(&argc, argv);
  for (const char* kind : {"ipc", "tcp"})
    for (const bool with_pings : {false, true})
      benchmark::RegisterBenchmark(
          fmt::format("two_receivers/link_{}{}", kind, with_pings ? "_and_pings" : "").c_str(),
          [=](benchmark::State& state) { primerl::two_receivers(state, kind, with_pings); })
          ->UseManualTime()
          ->Iterations(20)
          ->Unit(benchmark::kMillisecond);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
