// Attacks on the ports of a transport while its processes communicate; the attacks must have no
// effect.
#include <gmock/gmock.h>

#include <chrono>

#include "runtime/transport/zmq_transport.h"
#include "tests/conformance/transport_stage.h"
#include "tests/store/scratch_folder.h"
#include "tests/transport/hostile_frames.h"

namespace primerl {
namespace {

/// Processes 1 and 2 connect to process 0, which is attacked.
class ZmqAttack : public ::testing::Test {
 protected:
  void open(const std::string& listen, bool has_keys, bool has_list = false) {
    for (uint32_t i = 0; i < 3; ++i) {
      ZmqOptions options;
      if (i == 0) options.listen = {listen};
      if (has_keys) options.keys = keys_[i];
      for (uint32_t k = 0; has_list && k < 3; ++k)
        options.allowed.push_back({keys_[k].public_key, ProcessId(k), {}});
      TransportIdentity identity = identity_of(i, 1);
      identity.pass = pass_of(i);
      ConnectionLimits limits;
      limits.silent_after = limits.greet_timeout = kPatience;
      auto made = make_zmq_transport(identity, limits, options, got_[i]);
      ASSERT_TRUE(made.ok()) << made.error().text();
      transports_[i] = std::move(made).value();
    }
    for (uint32_t i = 1; i < 3; ++i) {
      ASSERT_TRUE(transports_[0]->add_peer(spec(i, has_keys)).ok());
      PeerSpec victim = spec(0, has_keys);
      victim.address = transports_[0]->address();
      ASSERT_TRUE(transports_[i]->add_peer(victim).ok());
    }
    wait_until([&] { return got_[0].num_ups() == 2; });
  }
  PeerSpec spec(uint32_t process, bool has_keys) const {
    PeerSpec peer;
    peer.process = ProcessId(process);
    peer.name = fmt::format("side{}", process);
    peer.pass = pass_of(process);
    if (has_keys) peer.public_key = keys_[process].public_key;
    return peer;
  }
  const PeerAddress& victim() const { return transports_[0]->address(); }
  /// The facts known about process 1's connection to process 0, except the pass.
  static KnownLink known() {
    KnownLink known;
    known.greeting.run = "a run";
    known.greeting.graph_hash = 7;
    known.greeting.types_hash = note_types()->hash();
    known.greeting.name = "side1";
    known.process = ProcessId(1);
    return known;
  }
  void wait_until(const std::function<bool()>& done) {
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::nanoseconds(kPatience.to_nanoseconds());
    while (!done()) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      got_[0].wait_for_change();
    }
  }
  /// Both peers and process 0 exchange notes; `attack` is called in between.
  void speak(const std::function<void()>& attack) {
    constexpr uint64_t kNotes = 100;
    for (uint64_t number = 1; number <= kNotes; ++number) {
      if (number % 10 == 1) attack();
      for (uint32_t i = 1; i < 3; ++i) {
        const size_t bytes = number % 25 == 0 ? 100'000 : 10;
        ASSERT_TRUE(transports_[0]->send(ProcessId(i), note_batch(0, i, number, bytes)).ok());
        ASSERT_TRUE(transports_[i]->send(ProcessId(0), note_batch(i, 0, number, bytes)).ok());
      }
    }
    wait_until([&] {
      return got_[0].num_messages() == 2 * kNotes && got_[1].num_messages() == kNotes &&
             got_[2].num_messages() == kNotes;
    });
    for (uint32_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(got_[i].is_whole());
      EXPECT_EQ(got_[i].num_failed() + got_[i].num_downs() + got_[i].refusals().size(), 0u) << i;
    }
    for (const ConnectionStatus& status : transports_[0]->status())
      EXPECT_EQ(status.state, ConnectionState::kUp);
  }
  /// Refusals of process 0, on its connections and on unknown ones.
  uint64_t num_refused(FrameRefusal refusal) const {
    uint64_t sum = transports_[0]->refused_unknown_peers()[static_cast<size_t>(refusal)];
    for (const ConnectionStatus& status : transports_[0]->status())
      sum += status.num_refused(refusal);
    return sum;
  }

  const ScratchFolder folder_;
  const KeyPair keys_[3] = {make_key_pair(), make_key_pair(), make_key_pair()};
  CollectingReceiver got_[3];
  std::unique_ptr<Transport> transports_[3];
};

TEST_F(ZmqAttack, UnknownSendersWithoutAPassAtASocketFile) {
  open("ipc://" + folder_.path().string() + "/sockets", false);
  Attacker attacker;
  for (const std::string& address : {victim().frames, victim().bulk})
    for (const uint32_t attempt : {0u, 1u, UINT32_MAX})
      attacker.connect(address, hostile_route(ProcessId(1), 1, attempt));
  attacker.connect(victim().frames, "nobody");
  attacker.connect(victim().frames, hostile_route(ProcessId(9), 1, 1));
  const auto frames = hostile_frames(known());
  size_t num_sent = 0;
  wait_until([&] { return (num_sent += attacker.send(frames)) > 0; });
  speak([&] { num_sent += attacker.send(frames); });
  EXPECT_GT(num_sent, frames.size());
  for (const FrameRefusal each :
       {FrameRefusal::kUnknownPeer, FrameRefusal::kNotGreeted, FrameRefusal::kCheck,
        FrameRefusal::kIncarnation, FrameRefusal::kVersion, FrameRefusal::kMagic})
    EXPECT_GT(num_refused(each), 0u) << to_string(each);
}

TEST_F(ZmqAttack, UnknownSendersWithoutAKeyAtALoopbackPort) {
  open("tcp://127.0.0.1", true);
  const auto frames = hostile_frames(known());
  Attacker plain, curve;
  RawConnections raw;
  for (const std::string& address : {victim().frames, victim().bulk}) {
    plain.connect(address, hostile_route(ProcessId(1), 1, 9));
    curve.connect(address, hostile_route(ProcessId(1), 1, 9), make_key_pair(), keys_[0].public_key);
  }
  size_t num_sent = 0;
  speak([&] {
    num_sent += plain.send(frames) + curve.send(frames);
    for (const std::string& address : {victim().frames, victim().bulk})
      raw.attack(port_of(address));
  });
  EXPECT_EQ(num_sent, 0u) << "no connection was accepted";
  wait_until([&] { return num_refused(FrameRefusal::kUnknownPeer) > 0; });
  EXPECT_EQ(num_refused(FrameRefusal::kCheck), 0u);
}

class ZmqPoser : public ZmqAttack {
 protected:
  void pose(bool has_list) {
    open("tcp://127.0.0.1", true, has_list);
    // Its key is allowed, but for process 2.
    Attacker attacker;
    for (const std::string& address : {victim().frames, victim().bulk})
      attacker.connect(address, hostile_route(ProcessId(1), 1, UINT32_MAX), keys_[2],
                       keys_[0].public_key);
    KnownLink all = known();
    all.greeting.pass = pass_of(0);  // process 2 knows this pass
    const auto frames = hostile_frames(all);
    size_t num_sent = 0;
    wait_until([&] { return (num_sent += attacker.send(frames)) > 0; });
    speak([&] { num_sent += attacker.send(frames); });
    wait_until([&] { return num_refused(FrameRefusal::kUnknownPeer) > 0; });
    EXPECT_EQ(num_refused(FrameRefusal::kCheck), 0u) << "refused before they are read";
  }
};

TEST_F(ZmqPoser, AProcessOfTheRunDoesNotSpeakAsAnother) { pose(false); }

TEST_F(ZmqPoser, NorDoesOneOfAListOfKeys) { pose(true); }

TEST_F(ZmqAttack, ASecondConnectionOfThePeersOwnKey) {
  open("tcp://127.0.0.1", true);
  Attacker attacker;
  for (const std::string& address : {victim().frames, victim().bulk})
    attacker.connect(address, hostile_route(ProcessId(1), 1, UINT32_MAX), keys_[1],
                     keys_[0].public_key);
  const auto frames = hostile_frames(known());
  size_t num_sent = 0;
  speak([&] { num_sent += attacker.send(frames); });
  wait_until([&] { return (num_sent += attacker.send(frames)) > frames.size(); });
  wait_until([&] { return num_refused(FrameRefusal::kCheck) > 0; });
  EXPECT_EQ(transports_[0]->status()[0].state, ConnectionState::kUp);
}

}  // namespace
}  // namespace primerl
