// An edge across two processes over ipc, through Transport (not yet through hosts), each compared
// with a bare pair of ZeroMQ sockets with frames of the same size and the same credits, in the same
// run.
//
// Bound, per message of 64 B, one per frame of about 210 B: bare ZeroMQ takes 0.5 to 0.6 us on each
// side in its own thread (1.6-2.0 M/s). Transport adds encoding (about 0.15 us: envelope, msgpack),
// decoding (0.25 us: one allocation for the message, the batch's vector) and a hash of the frame
// (0.03 us), on other threads than ZeroMQ's. So 0.5 M/s on two cores shared by four threads.
// Batched, ZeroMQ's cost is divided by 64 messages: encoding and decoding bound it, 2 M/s. 1 MiB:
// the kernel copies twice at 5-10 GB/s, the frame is hashed on both sides at 8 GB/s: 0.2 + 0.25 ms
// of CPU on two cores, about 3 GB/s. A round trip is eight thread wake-ups.
//
// By shared memory 1 MiB is one memcpy at 5-10 GB/s and a frame of 100 B. Rollouts: 256 payloads of
// 12.6 MB are 3.2 GB, copied once and read once; the target is 1 GB/s, with no small message
// delayed by more than 1 ms. The sender's two threads and the reader share two cores here.
#include <benchmark/benchmark.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "bench/transport/bench_peer.h"
#include "runtime/wire/message_batch_codec.h"
#include "runtime/wire/peer_frame.h"

extern char** environ;

namespace primerl {
namespace {

using Clock = std::chrono::steady_clock;

MessageBatch batch_of(uint32_t from, uint32_t to) {
  MessageBatch batch;
  batch.from = GroupId(from);
  batch.to = GroupId(to);
  batch.incarnation = 1;
  return batch;
}

BatchedMessage message_of(Load load) {
  BatchedMessage message;
  message.link = LinkId(0);
  message.envelope.payload = Payload::of(std::move(load));
  return message;
}

Load load_of(size_t bytes) {
  Load load;
  if (bytes < 1024)
    load.bytes.resize(bytes);
  else
    load.blob = Blob(std::vector<std::byte>(bytes));
  return load;
}

/// Grants where a message requests it, as running totals; echoes messages that want an answer.
class PeerReceiver final : public TransportReceiver {
 public:
  void deliver(ProcessId from, MessageBatch&& batch) override {
    for (BatchedMessage& message : batch.messages) {
      const auto& load = message.envelope.payload.as<Load>();
      if (load.wants_answer) {
        MessageBatch answer = batch_of(0, 1);
        answer.messages.push_back(std::move(message));
        CHECK(transport->send(from, std::move(answer)).ok(), "no echo");
        continue;
      }
      const uint64_t count = ++num_received[from.value];
      // As a rollout's reader: reads every cache line once, in place.
      for (size_t at = 0; load.is_read && at < load.blob.size(); at += 64)
        sum += static_cast<uint64_t>(load.blob.bytes()[at]);
      if (!load.wants_grant) continue;
      MessageBatch grant = batch_of(0, 1);
      grant.grants.push_back({LinkId(0), count, 0, 1});
      CHECK(transport->send(from, std::move(grant)).ok(), "no grant");
    }
  }
  void on_connection_up(ProcessId, uint32_t) override {}
  void on_connection_down(ProcessId, uint32_t, const Error&) override { has_left = true; }
  void on_refused(const ConnectionRefusal&) override {}
  void on_connection_failed(ProcessId, uint32_t, const Error&) override { has_left = true; }

  Transport* transport = nullptr;
  std::atomic<bool> has_left{false};
  uint64_t num_received[4] = {};  // by process
  std::atomic<uint64_t> sum{0};   // so that the compiler keeps the reads
};

class BenchReceiver final : public TransportReceiver {
 public:
  void deliver(ProcessId, MessageBatch&& batch) override {
    const std::lock_guard lock(mutex_);
    for (const Grant& grant : batch.grants) granted_ = std::max(granted_, grant.num_messages);
    num_answers_ += batch.messages.size();
    changed_.notify_one();
  }
  void on_connection_up(ProcessId, uint32_t) override {
    const std::lock_guard lock(mutex_);
    is_up_ = true;
    changed_.notify_one();
  }
  void on_connection_down(ProcessId, uint32_t, const Error&) override {}
  void on_refused(const ConnectionRefusal&) override {}
  void on_connection_failed(ProcessId, uint32_t, const Error& why) override {
    CHECK(false, why.message());
  }

  void wait_up() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_up_; });
  }
  void wait_granted(uint64_t least) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return granted_ >= least; });
  }
  void wait_answers(uint64_t least) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_answers_ >= least; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_up_ = false;
  uint64_t granted_ = 0;
  uint64_t num_answers_ = 0;
};

/// One link to the other process.
struct Line {
  BenchReceiver receiver;
  std::unique_ptr<Transport> transport;
  uint64_t num_sent = 0;
  uint64_t num_asked = 0;
};

/// This process's ends of all pairs, and the peer process.
struct Bench {
  std::string folder;
  Line line;                                // all bytes over the link
  Line shared;                              // large Blobs over shared memory
  Line tcp;                                 // all bytes over the link, encrypted
  std::unique_ptr<BareConnection> bare[3];  // by BareWay
};
Bench* bench = nullptr;

constexpr BareWay kBareWays[] = {BareWay::kIpc, BareWay::kTcp, BareWay::kCurve};

PeerAddress peer_address(const std::string& folder) {
  return {"ipc://" + folder + "/p0.e1.frames", "ipc://" + folder + "/p0.e1.bulk"};
}

PeerSpec peer_of(uint32_t process, PeerAddress address) {
  PeerSpec peer;
  peer.process = ProcessId(process);
  peer.name = fmt::format("process{}", process);
  peer.address = std::move(address);
  return peer;
}

/// Sends batches of `per_batch` messages, like a step's emissions.
void send_messages(Line& line, uint64_t count, uint64_t per_batch, Load load,
                   const Window& window) {
  for (uint64_t i = 0; i < count; i += per_batch) {
    MessageBatch batch = batch_of(1, 0);
    batch.messages.reserve(per_batch);
    for (uint64_t each = 0; each < per_batch; ++each) {
      load.number = ++line.num_sent;
      load.wants_grant = (i + each + 1) % window.grant_every == 0;
      batch.messages.push_back(message_of(load));
    }
    if (line.num_sent > window.messages)
      line.receiver.wait_granted(line.num_sent - window.messages);
    CHECK(line.transport->send(ProcessId(0), std::move(batch)).ok(), "a send failed");
  }
  line.receiver.wait_granted(line.num_sent);
}

void report(benchmark::State& state, uint64_t count, size_t bytes) {
  const auto total = static_cast<int64_t>(state.iterations() * count);
  state.SetItemsProcessed(total);
  state.SetBytesProcessed(total * static_cast<int64_t>(bytes));
  state.counters["messages_per_iteration"] = static_cast<double>(count);
}

Window window_of(size_t bytes) {
  return bytes >= (size_t{1} << 20) ? Window{8, 32} : Window{512, 4096};
}

uint64_t count_of(size_t bytes) { return bytes >= (size_t{1} << 20) ? 256 : 50'176; }

void BM_Edge(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const auto per_batch = static_cast<uint64_t>(state.range(1));
  const uint64_t count = count_of(bytes) * (per_batch > 1 ? 4 : 1);
  Line* const lines[] = {&bench->line, &bench->shared, &bench->tcp};
  Line& line = *lines[state.range(2)];
  for (auto _ : state) send_messages(line, count, per_batch, load_of(bytes), window_of(bytes));
  report(state, count, bytes);
}

constexpr uint64_t kRollouts = 256;
constexpr size_t kRolloutBytes = size_t{32 * 1024} * 48 * 8;  // routed experts [32k, 48, 8] uint8
constexpr Window kRolloutWindow = {4, 16};

/// All payloads of a batch, read by the peer: 3.2 GB.
void BM_Rollouts(benchmark::State& state) {
  Line& line = state.range(0) != 0 ? bench->shared : bench->line;
  Load load = load_of(kRolloutBytes);
  load.is_read = true;
  for (auto _ : state) send_messages(line, kRollouts, 1, load, kRolloutWindow);
  report(state, kRollouts, kRolloutBytes);
}

/// Bytes of the frame for a batch of that many messages.
size_t frame_bytes(size_t bytes, uint64_t per_batch) {
  BatchEncoder encoder;
  MessageBatch batch = batch_of(1, 0);
  for (uint64_t i = 0; i < per_batch; ++i) batch.messages.push_back(message_of(load_of(bytes)));
  CHECK(encoder.encode(batch, *bench_identity(1).types, {}).ok(), "a batch that cannot be");
  return kPeerFrameHeaderBytes + encoder.bytes().size();
}

void BM_Bare(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const auto per_batch = static_cast<uint64_t>(state.range(1));
  const bool is_bulk = bytes >= (size_t{1} << 16);
  const size_t frame = frame_bytes(bytes, per_batch);
  const uint64_t count = count_of(bytes) * (per_batch > 1 ? 4 : 1) / per_batch;
  Window window = window_of(bytes);
  window.messages /= per_batch;
  window.grant_every /= per_batch;
  for (auto _ : state) {
    // A Blob sent as bulk needs two frames: one that names it, and its bytes.
    BareConnection& bare = *bench->bare[state.range(2)];
    if (is_bulk)
      bare.send(count, kPeerFrameHeaderBytes + kChunkHeaderBytes + frame, bytes, window);
    else
      bare.send(count, frame, 0, window);
  }
  report(state, count * per_batch, bytes);
}

void ask(Line& line) {
  Load load = load_of(64);
  load.wants_answer = true;
  MessageBatch batch = batch_of(1, 0);
  batch.messages.push_back(message_of(std::move(load)));
  CHECK(line.transport->send(ProcessId(0), std::move(batch)).ok(), "a send failed");
  line.receiver.wait_answers(++line.num_asked);
}

template <class Once>
void round_trips(benchmark::State& state, Once once) {
  std::vector<double> times_us;
  for (auto _ : state) {
    const auto begin = Clock::now();
    once();
    times_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  std::sort(times_us.begin(), times_us.end());
  const auto at = [&](double share) {
    return times_us[static_cast<size_t>(share * static_cast<double>(times_us.size() - 1))];
  };
  state.counters["p50_us"] = at(0.5);
  state.counters["p99_us"] = at(0.99);
  state.counters["max_us"] = times_us.back();
}

void BM_RoundTrip(benchmark::State& state) {
  Line& line = state.range(0) != 0 ? bench->tcp : bench->line;
  round_trips(state, [&line] { ask(line); });
}

/// How long a small message waits while payloads use the same link.
void BM_RoundTripBesideRollouts(benchmark::State& state) {
  Line& line = state.range(0) != 0 ? bench->shared : bench->line;
  std::atomic<bool> is_over{false};
  std::thread sender([&] {
    const Load load = load_of(kRolloutBytes);
    while (!is_over) send_messages(line, kRolloutWindow.messages, 1, load, kRolloutWindow);
  });
  round_trips(state, [&line] { ask(line); });
  is_over = true;
  sender.join();
}

void BM_RoundTripBare(benchmark::State& state) {
  const size_t bytes = frame_bytes(64, 1);
  BareConnection& bare = *bench->bare[state.range(0)];
  round_trips(state, [&] { bare.round_trip(bytes); });
}

#define PRIMERL_PAIR(bytes, per_batch)                                                     \
  BENCHMARK(BM_Edge)->Args({bytes, per_batch, 0})->UseRealTime()->MeasureProcessCPUTime(); \
  BENCHMARK(BM_Bare)->Args({bytes, per_batch, 0})->UseRealTime()->MeasureProcessCPUTime(); \
  BENCHMARK(BM_Edge)->Args({bytes, per_batch, 2})->UseRealTime()->MeasureProcessCPUTime(); \
  BENCHMARK(BM_Bare)->Args({bytes, per_batch, 1})->UseRealTime()->MeasureProcessCPUTime(); \
  BENCHMARK(BM_Bare)->Args({bytes, per_batch, 2})->UseRealTime()->MeasureProcessCPUTime()
PRIMERL_PAIR(64, 1);
PRIMERL_PAIR(64, 64);
PRIMERL_PAIR(4096, 1);
PRIMERL_PAIR(1 << 20, 1);
BENCHMARK(BM_Edge)->Args({1 << 20, 1, 1})->UseRealTime()->MeasureProcessCPUTime();
BENCHMARK(BM_Rollouts)->Arg(0)->Arg(1)->UseRealTime()->MeasureProcessCPUTime();
BENCHMARK(BM_RoundTripBesideRollouts)->Arg(0)->Arg(1)->UseRealTime()->MeasureProcessCPUTime();
BENCHMARK(BM_RoundTrip)->Arg(0)->Arg(1)->UseRealTime()->MeasureProcessCPUTime();
BENCHMARK(BM_RoundTripBare)->DenseRange(0, 2)->UseRealTime()->MeasureProcessCPUTime();

pid_t spawn_peer(const std::string& program, const std::string& folder) {
  std::string flag = "--peer";
  std::string place = folder;
  std::string name = program;
  char* arguments[] = {name.data(), flag.data(), place.data(), nullptr};
  pid_t pid = 0;
  CHECK(::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments, environ) == 0,
        "no second process");
  return pid;
}

ConnectionLimits bench_limits() {
  ConnectionLimits limits;
  limits.frame_bytes = 1;  // waiting batches do not share a frame
  return limits;
}

KeyPair keys_of(const std::string& folder) {
  auto keys = read_key_file(key_file(folder));
  CHECK(keys.ok(), "no keys");
  return std::move(keys).value();
}

/// Over ipc; process 3 over tcp.
void open_line(Line& line, uint32_t process, const std::string& folder) {
  ZmqOptions options;
  if (process == 3) options.keys = keys_of(folder);
  auto transport =
      make_zmq_transport(bench_identity(process), bench_limits(), options, line.receiver);
  CHECK(transport.ok(), "no transport");
  line.transport = std::move(transport).value();
  PeerSpec peer = peer_of(0, peer_address(folder));
  if (process == 3) {
    peer.address = {wait_for_word(folder + "/frames"), wait_for_word(folder + "/bulk")};
    peer.public_key = options.keys->public_key;
  }
  peer.shares_memory = process == 2;
  CHECK(line.transport->add_peer(std::move(peer)).ok(), "no peer");
  line.receiver.wait_up();
}

int run(int count, char** arguments) {
  std::string folder = std::filesystem::temp_directory_path() / "primerl-bench-XXXXXX";
  CHECK(::mkdtemp(folder.data()) != nullptr, "no folder");
  CHECK(write_key_file(key_file(folder), make_key_pair()).ok(), "no keys");
  const pid_t pid = spawn_peer(arguments[0], folder);
  {
    Bench made;
    bench = &made;
    made.folder = folder;
    open_line(made.line, 1, folder);
    open_line(made.shared, 2, folder);
    open_line(made.tcp, 3, folder);
    for (const BareWay way : kBareWays)
      made.bare[static_cast<size_t>(way)] = std::make_unique<BareConnection>(folder, way);
    benchmark::Initialize(&count, arguments);
    benchmark::RunSpecifiedBenchmarks();
    for (Line* line : {&made.line, &made.shared, &made.tcp})
      CHECK(line->transport->close(Duration::seconds(10)).ok(), "not everything arrived");
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  std::filesystem::remove_all(folder);
  return status == 0 ? 0 : 1;
}

}  // namespace

int run_peer(const std::string& folder) {
  PeerReceiver receiver;
  ZmqOptions options;
  options.listen = {"ipc://" + folder, "tcp://127.0.0.1"};
  options.keys = keys_of(folder);
  auto transport = make_zmq_transport(bench_identity(0), {}, options, receiver);
  CHECK(transport.ok(), transport.ok() ? "" : transport.error().text());
  receiver.transport = transport->get();
  for (const uint32_t process : {1U, 2U, 3U}) {
    PeerSpec peer = peer_of(process, {});
    peer.shares_memory = process == 2;
    if (process == 3) peer.public_key = options.keys->public_key;
    CHECK((*transport)->add_peer(std::move(peer)).ok(), "no peer");
  }
  const PeerAddress tcp = (*transport)->addresses()[1];
  leave_word(folder + "/frames", tcp.frames);
  leave_word(folder + "/bulk", tcp.bulk);
  std::vector<std::thread> bare;
  for (const BareWay way : kBareWays)
    bare.emplace_back([&folder, way] { run_bare_peer(folder, way); });
  for (std::thread& each : bare) each.join();  // each ends with the first process
  return (*transport)->close(Duration::seconds(10)).ok() || receiver.has_left ? 0 : 1;
}

}  // namespace primerl

int main(int count, char** arguments) {
  if (count == 3 && std::string_view(arguments[1]) == "--peer")
    return primerl::run_peer(arguments[2]);
  return primerl::run(count, arguments);
}
