// Weight channels over connections of processes: interruptions, late channels, deaths.
#include "runtime/worker/weight_streams.h"

#include <gtest/gtest.h>

#include <thread>

#include "runtime/transport/memory_transport.h"
#include "tests/base/patience.h"
#include "tests/conformance/channel_weights.h"

namespace primerl {
namespace {

constexpr uint32_t kStream = 7;
constexpr WeightsShape kLarge = {4000, "b.buffer"};  // 1 MB

struct Beat {
  static constexpr std::string_view kName = "Beat";
  static constexpr uint32_t kVersion = 1;
  uint64_t number = 0;
  template <class F>
  static void fields(F& f) {
    f("number", &Beat::number);
  }
};

/// A process: its connections over the memory transport, and its end of the channel if it has one.
class Process {
 public:
  Process(std::shared_ptr<MemoryNetwork> network, uint32_t number, uint32_t incarnation = 1)
      : connections_(quiet_events()) {
    TransportIdentity identity;
    identity.run = "run";
    identity.types = std::make_shared<const WireTypes>(std::vector{&message_type<Beat>()});
    identity.process = ProcessId(number);
    identity.name = fmt::format("p{}", number);
    identity.incarnation = incarnation;
    ConnectionLimits limits;
    limits.greet_timeout = limits.silent_after = kPatience;
    limits.hello_every = Duration::milliseconds(5);
    limits.probe_after = Duration::milliseconds(20);
    connections_.carry_streams(&streams_);
    auto opened = connections_.open([&](TransportReceiver& receiver) {
      return Result<std::unique_ptr<Transport>>(
          make_memory_transport(std::move(network), identity, limits, receiver));
    });
    EXPECT_TRUE(opened.ok());
  }
  ~Process() { connections_.close(); }

  static PeerSpec peer(uint32_t number, uint32_t incarnation, bool is_connected_to) {
    PeerSpec peer;
    peer.process = ProcessId(number);
    peer.name = fmt::format("p{}", number);
    peer.incarnation = incarnation;
    if (is_connected_to) peer.address = memory_address(ProcessId(number), incarnation);
    return peer;
  }
  void make_channel() {
    StreamChannelSetup setup;
    setup.resource = "weights";
    setup.chunk_bytes = 10'000;
    setup.has_news = [this] { connections_.streams_ready(); };
    channel_ = make_stream_channel(std::move(setup));
    streams_.add(kStream, {ProcessId(0), ProcessId(1), ProcessId(2)}, channel_);
    connections_.streams_ready();
  }
  PeerConnections& connections() { return connections_; }
  StreamChannel& channel() { return *channel_; }
  uint64_t stream_bytes_received() const {
    return connections_.status().front().num_stream_bytes_received;
  }

 private:
  static ConnectionEvents quiet_events() {
    ConnectionEvents events;
    events.all_live = [] {};
    events.tenant_finished = [](TenantSlot, uint32_t, const std::string&) {};
    events.failed = [](const Error& why) { ADD_FAILURE() << why.text(); };
    events.changed = [](const std::string&) {};
    return events;
  }

  WeightStreams streams_;
  PeerConnections connections_;
  std::shared_ptr<StreamChannel> channel_;
};

class WeightStreamsTest : public ::testing::Test {
 protected:
  WeightStreamsTest() : trainer_(network_, 0), engine_(std::in_place, network_, 1) {
    EXPECT_TRUE(trainer_.connections().connect({Process::peer(1, 1, false)}).ok());
    EXPECT_TRUE(engine_->connections().connect({Process::peer(0, 1, true)}).ok());
  }
  void publish(int64_t version) {
    const Status published = trainer_.channel().publish(channel_weights(version, kLarge));
    ASSERT_TRUE(published.ok()) << published.error().text();
  }
  static bool gets(Process& process, int64_t version) {
    if (!process.channel().wait_for({}, PolicyVersion(version), kPatience)) return false;
    const auto fetched = process.channel().fetch({}, PolicyVersion(version));
    return fetched.ok() && is_whole(**fetched, version, kLarge);
  }
  static uint64_t bytes_of_a_version() {
    uint64_t sum = 0;
    const auto weights = channel_weights(0, kLarge);  // must stay valid during the loop
    for (const auto& tensor : weights->tensors) sum += tensor.bytes.size();
    return sum;
  }

  const std::shared_ptr<MemoryNetwork> network_ = make_memory_network();
  Process trainer_;
  std::optional<Process> engine_;
};

TEST_F(WeightStreamsTest, CarryVersionsAsTheyArePublished) {
  trainer_.make_channel();
  engine_->make_channel();
  for (int64_t version = 1; version <= 5; ++version) {
    publish(version);
    EXPECT_TRUE(gets(*engine_, version)) << version;
  }
}

TEST_F(WeightStreamsTest, WhoeverMakesItsChannelFirstWaitsForTheOther) {
  engine_->make_channel();
  // Its request arrived before the channel existed.
  while (trainer_.stream_bytes_received() == 0) std::this_thread::yield();
  trainer_.make_channel();
  publish(1);
  EXPECT_TRUE(gets(*engine_, 1));
}

TEST_F(WeightStreamsTest, ABrokenConnectionContinuesWhereItStopped) {
  trainer_.make_channel();
  engine_->make_channel();
  publish(1);
  for (const uint64_t so_far : {uint64_t{1}, bytes_of_a_version() / 2}) {
    while (engine_->stream_bytes_received() < so_far) std::this_thread::yield();
    network_->cut(ProcessId(0), ProcessId(1));
    network_->reconnect(ProcessId(0), ProcessId(1));
  }
  ASSERT_TRUE(gets(*engine_, 1));
  // Headers are small, so no chunk was sent twice.
  EXPECT_LT(engine_->stream_bytes_received(), bytes_of_a_version() * 11 / 10);
}

TEST_F(WeightStreamsTest, AnEngineThatDiedGetsTheNewestWhenItIsBack) {
  trainer_.make_channel();
  engine_->make_channel();
  publish(1);
  ASSERT_TRUE(gets(*engine_, 1));
  network_->cut(ProcessId(0), ProcessId(1));  // so that it cannot send bye
  engine_.reset();
  network_->reconnect(ProcessId(0), ProcessId(1));
  trainer_.connections().end_peer(ProcessId(1), 1);
  for (int64_t version = 2; version <= 4; ++version) publish(version);
  engine_.emplace(network_, 1, 2);
  ASSERT_TRUE(engine_->connections().connect({Process::peer(0, 1, true)}).ok());
  ASSERT_TRUE(trainer_.connections().join(Process::peer(1, 2, false)).ok());
  engine_->make_channel();
  EXPECT_TRUE(gets(*engine_, 4));
  publish(5);
  EXPECT_TRUE(gets(*engine_, 5));
}

}  // namespace
}  // namespace primerl
