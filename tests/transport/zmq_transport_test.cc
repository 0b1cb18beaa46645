/// Faults that only ZeroMQ can have: late connections, unknown senders, leaked descriptors.
#include "runtime/transport/zmq_transport.h"

#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>

#include "graph/base/random.h"
#include "runtime/transport/zmq_socket.h"
#include "tests/conformance/transport_stage.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

bool wait_until(const std::function<bool()>& done) {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(kPatience.to_nanoseconds());
  const CollectingReceiver waiting;
  while (!done()) {
    if (std::chrono::steady_clock::now() > until) return false;
    waiting.wait_for_change();
  }
  return true;
}

ConnectionLimits patient() {
  ConnectionLimits limits;
  limits.silent_after = limits.greet_timeout = kPatience;
  return limits;
}

std::unique_ptr<Transport> make(size_t side, ZmqOptions options, TransportReceiver& receiver) {
  auto made = make_zmq_transport(identity_of(side, 1), patient(), std::move(options), receiver);
  EXPECT_TRUE(made.ok()) << made.error().text();
  return made.ok() ? std::move(made).value() : nullptr;
}

PeerSpec peer_of(size_t side, PeerAddress address = {}) {
  PeerSpec peer;
  peer.process = ProcessId(static_cast<uint32_t>(side));
  peer.name = fmt::format("side{}", side);
  peer.address = std::move(address);
  return peer;
}

TEST(ZmqTransport, FindsAListenerThatComesLater) {
  ScratchFolder folder;
  const std::string base = "ipc://" + folder.path().string();
  CollectingReceiver got0, got1;
  ZmqOptions options;
  options.reopen_after = Duration::milliseconds(5);  // several times before the listener exists
  const auto first = make(1, options, got1);
  ASSERT_TRUE(first->add_peer(peer_of(0, {base + "/p0.e1.frames", base + "/p0.e1.bulk"})).ok());
  ASSERT_TRUE(first->send(ProcessId(0), note_batch(0, 1, 1)).ok());
  EXPECT_EQ(first->status()[0].state, ConnectionState::kConnecting);
  ZmqOptions listening;
  listening.listen = {base};
  const auto second = make(0, listening, got0);
  ASSERT_TRUE(second->add_peer(peer_of(1)).ok());
  EXPECT_TRUE(wait_until([&] { return got0.num_messages() == 1; }));
}

TEST(ZmqTransport, JoinsProcessesByIPv6) {
  CollectingReceiver got0, got1;
  ZmqOptions listening, connecting;
  listening.listen = {"tcp://[::1]"};
  listening.keys = make_key_pair();
  connecting.keys = make_key_pair();
  const auto second = make(0, listening, got0);
  ASSERT_NE(second, nullptr);
  EXPECT_TRUE(second->address().frames.starts_with("tcp://[::1]:")) << second->address().frames;
  const auto first = make(1, connecting, got1);
  PeerSpec to = peer_of(0, second->address()), from = peer_of(1);
  to.public_key = listening.keys->public_key;
  from.public_key = connecting.keys->public_key;
  ASSERT_TRUE(second->add_peer(from).ok());
  ASSERT_TRUE(first->add_peer(to).ok());
  ASSERT_TRUE(first->send(ProcessId(0), note_batch(0, 1, 1)).ok());
  EXPECT_TRUE(wait_until([&] { return got0.num_messages() == 1; }));
}

TEST(ZmqTransport, ByTcpLetsInWhoIsExpectedLaterWithoutMakingItsConnectionAnew) {
  CollectingReceiver got0, got1;
  ZmqOptions listening, connecting;
  listening.listen = {"tcp://127.0.0.1"};
  listening.keys = make_key_pair();
  connecting.keys = make_key_pair();
  connecting.reopen_after = kPatience;  // ZeroMQ itself tries again
  const auto second = make(0, listening, got0);
  const auto first = make(1, connecting, got1);
  PeerSpec to = peer_of(0, second->address()), from = peer_of(1);
  to.public_key = listening.keys->public_key;
  from.public_key = connecting.keys->public_key;
  ASSERT_TRUE(first->add_peer(to).ok());
  ASSERT_TRUE(first->send(ProcessId(0), note_batch(0, 1, 1)).ok());
  const auto turned_away = [&] {
    return second->refused_unknown_peers()[static_cast<size_t>(FrameRefusal::kUnknownPeer)];
  };
  ASSERT_TRUE(wait_until([&] { return turned_away() == 2; }));
  ASSERT_TRUE(second->add_peer(from).ok());
  EXPECT_TRUE(wait_until([&] { return got0.num_messages() == 1; }));
  EXPECT_EQ(turned_away(), 2u) << "its first connections waited, one a lane";
}

TEST(ZmqTransport, IgnoresFramesOfUnknownSenders) {
  ScratchFolder folder;
  CollectingReceiver got0, got1;
  ZmqOptions listening;
  listening.listen = {"ipc://" + folder.path().string()};
  const auto second = make(0, listening, got0);
  ASSERT_TRUE(second->add_peer(peer_of(1)).ok());
  // One with a foreign routing id, and one that claims to be process 1; neither sends a greeting.
  zmq::context_t context;
  std::vector<zmq::socket_t> strangers;
  for (const std::string& id :
       {std::string("nobody"),
        std::string("P\1\0\0\0\1\0\0\0\xff\0\0\0", 13) + std::string(32, 'x')}) {
    ZmqSocketSettings settings;
    settings.routing_id = id;
    auto socket = open_socket(context, ZmqKind::kDealer, settings);
    ASSERT_TRUE(socket.ok()) << socket.error().text();
    ASSERT_TRUE(connect_socket(*socket, second->address().frames).ok());
    strangers.push_back(std::move(socket).value());
  }
  RandomStream random(1);
  for (int i = 0; i < 200; ++i)
    for (zmq::socket_t& stranger : strangers) {
      std::array<zmq::message_t, 4> parts;
      const size_t count = 1 + random.below(parts.size());
      for (size_t part = 0; part < count; ++part) {
        parts[part] = zmq::message_t(random.below(200));
        for (std::byte& each : bytes_of(parts[part])) each = static_cast<std::byte>(random.next());
      }
      ASSERT_TRUE(wait_until([&] { return send_parts(stranger, std::span(parts).first(count)); }));
    }
  const auto first = make(1, {}, got1);
  ASSERT_TRUE(first->add_peer(peer_of(0, second->address())).ok());
  for (uint64_t number = 1; number <= 50; ++number)
    ASSERT_TRUE(first->send(ProcessId(0), note_batch(0, 1, number)).ok());
  ASSERT_TRUE(wait_until([&] { return got0.num_messages() == 50; }));
  uint64_t num_refused = 0;
  const ConnectionStatus status = second->status()[0];
  for (const uint64_t count : status.refused) num_refused += count;
  EXPECT_GT(num_refused, 0u);  // of the one with a valid routing id
  EXPECT_EQ(got0.num_failed(), 0u);
  EXPECT_GT(second->refused_unknown_peers()[static_cast<size_t>(FrameRefusal::kUnknownPeer)], 0u);
}

TEST(ZmqTransport, ListensInTwoWaysAtOnce) {
  ScratchFolder folder;
  CollectingReceiver got0, got1, got2;
  ZmqOptions listening;
  listening.listen = {"ipc://" + folder.path().string(), "tcp://127.0.0.1"};
  listening.keys = make_key_pair();
  const auto middle = make(0, listening, got0);
  const auto addresses = middle->addresses();
  ASSERT_EQ(addresses.size(), 2u);
  EXPECT_EQ(addresses[0], middle->address());
  EXPECT_TRUE(addresses[0].bulk.starts_with("ipc://"));
  EXPECT_TRUE(addresses[1].frames.starts_with("tcp://127.0.0.1:"));
  CollectingReceiver* const got[] = {&got1, &got2};
  std::unique_ptr<Transport> peers[2];
  for (uint32_t i = 0; i < 2; ++i) {
    PeerSpec peer = peer_of(1);
    peer.process = ProcessId(i + 1);
    peer.name = fmt::format("side{}", i + 1);
    PeerSpec back = peer_of(0, addresses[i]);
    ZmqOptions options;
    if (i == 1) {
      // The keys are generated for the run: only tcp uses them.
      options.keys = make_key_pair();
      peer.public_key = options.keys->public_key;
      back.public_key = listening.keys->public_key;
    }
    peers[i] = make(i + 1, options, *got[i]);
    ASSERT_TRUE(middle->add_peer(peer).ok());
    ASSERT_TRUE(peers[i]->add_peer(back).ok());
    ASSERT_TRUE(peers[i]->send(ProcessId(0), note_batch(i, 1, 1, 100'000)).ok());
    ASSERT_TRUE(middle->send(peer.process, note_batch(0, 1, 1)).ok());
  }
  EXPECT_TRUE(wait_until([&] {
    return got0.num_messages() == 2 && got1.num_messages() == 1 && got2.num_messages() == 1;
  }));
}

TEST(ZmqTransport, GivesEveryDescriptorBack) {
  const auto count = [] {
    const auto all = std::filesystem::directory_iterator("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  ScratchFolder folder;
  const auto before = count();
  for (int i = 0; i < 5; ++i) {
    CollectingReceiver got0, got1;
    ZmqOptions listening;
    listening.listen = {"ipc://" + folder.path().string()};
    const auto second = make(0, listening, got0);
    const auto first = make(1, {}, got1);
    ASSERT_TRUE(second->add_peer(peer_of(1)).ok());
    ASSERT_TRUE(first->add_peer(peer_of(0, second->address())).ok());
    ASSERT_TRUE(first->send(ProcessId(0), note_batch(0, 1, 1, 100'000)).ok());
    EXPECT_TRUE(first->close(kPatience).ok());
    EXPECT_EQ(got0.num_messages(), 1u);
    EXPECT_TRUE(second->close(kPatience).ok());
  }
  EXPECT_EQ(count(), before);
  // No socket files are left either.
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace primerl
