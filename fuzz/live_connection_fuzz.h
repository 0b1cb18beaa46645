/// One input of the live connection fuzzer: a working connection, its honest peer, and an attacker
/// that sends frames of every kind in between, on its own socket connections or on the peer's.
/// tests/transport/live_connection_fuzz_test.cc runs it over the corpus and over mutations of it.
///
/// Frames on another socket connection without the pass change nothing: afterwards the connection
/// is up, and all honest batches have arrived, once and in order. Frames on the peer's own socket
/// connection, or with the pass, may end the connection, but have no other effect.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "fuzz/connection_fuzz.h"

namespace primerl {

class LiveConnection {
 public:
  LiveConnection()
      : outbox_(limits_),
        other_outbox_(limits_),
        connection_(own_, spec(1, {}), limits_, outbox_, receiver_, now_),
        other_(theirs_, spec(0, {"x", "x"}), limits_, other_outbox_, unused_, now_) {
    other_.wake(now_);
    exchange();
    CHECK(connection_.state() == ConnectionState::kUp, "the greeting failed");
  }

  /// Rows of sender, lane and check, kind, incarnation, sequence, acknowledged, content (1 byte
  /// each), size (u16) and content. Returns whether no hostile frame had the pass or used the
  /// peer's socket connection.
  bool play(std::span<const std::byte> script) {
    while (script.size() >= kRowBytes) {
      const auto at = [&](size_t i) { return static_cast<uint8_t>(script[i]); };
      const size_t size =
          std::min<size_t>(take_number<uint16_t>(script.data() + 7), script.size() - kRowBytes);
      const auto content = script.subspan(kRowBytes, size);
      if (at(0) % 4 == 0)
        say_honest();
      else
        say_hostile({at(0), at(1), at(2), at(3), at(4), at(5), at(6)}, content);
      script = script.subspan(kRowBytes + size);
    }
    say_honest();
    exchange();
    return is_clean_;
  }
  uint64_t num_honest() const { return num_honest_; }
  uint64_t num_delivered() const { return receiver_.num_messages; }
  ConnectionState state() const { return connection_.state(); }
  ConnectionStatus status() const {
    ConnectionStatus status;
    connection_.add_to(status);
    return status;
  }

 private:
  static constexpr size_t kRowBytes = 9;
  static constexpr const char* kHonest = "the peer's connection";

  static PeerSpec spec(uint32_t process, PeerAddress address) {
    PeerSpec peer;
    peer.process = ProcessId(process);
    peer.name = process == 0 ? "own" : "theirs";
    peer.pass = process == 0 ? "ours" : "its";
    peer.address = std::move(address);
    return peer;
  }
  static ReceivedPart part(const Blob& blob) { return {nullptr, 0, blob.bytes()}; }

  void exchange() {
    for (int i = 0; i < 4; ++i)
      for (const Lane lane : {Lane::kFrames, Lane::kBulk}) {
        OutFrame frame;
        while (other_.next(lane, now_, frame))
          connection_.receive(lane, {kHonest, 1},
                              {frame.header, part(frame.head), part(frame.data)}, now_);
        FrameOrigin back;
        back.is_own = true;
        while (connection_.next(lane, now_, frame))
          // Frames for another socket connection are lost.
          if (connection_.route_of(lane, frame) == kHonest)
            other_.receive(lane, back, {frame.header, part(frame.head), part(frame.data)}, now_);
      }
  }

  void say_honest() {
    MessageBatch batch;
    batch.from = GroupId(0);
    batch.to = GroupId(1);
    batch.incarnation = 1;
    BatchedMessage message;
    FuzzNote note;
    note.number = ++num_honest_;
    message.envelope.sequence = num_honest_;
    message.envelope.payload = Payload::of(std::move(note));
    batch.messages.push_back(std::move(message));
    BatchEncoder encoder;
    bool is_first = false;
    if (!encoder.encode(batch, *fuzz_types(), {}).ok() ||
        !other_outbox_.put(encoder, 1, is_first).ok())
      return;  // the connection has ended
    other_.take_outbox();
    exchange();
  }

  Blob greeting(bool has_pass, std::span<const std::byte> content) {
    PeerGreeting greeting;
    greeting.pass = has_pass ? "ours" : "guess";
    greeting.run = "fuzz";
    greeting.graph_hash = 1;
    greeting.types_hash = fuzz_types()->hash();
    greeting.name = "theirs";
    if (!content.empty() && (content[0] & std::byte{1}) != std::byte{})
      greeting.run = std::string(content.size(), 'r');
    if (!content.empty() && (content[0] & std::byte{2}) != std::byte{})
      greeting.received = content.size();
    if (!content.empty() && (content[0] & std::byte{4}) != std::byte{})
      greeting.name = std::string(content.size(), 'n');
    return Blob(encode_in_body(Payload::of(std::move(greeting)))->body);
  }

  void say_hostile(const std::array<uint8_t, 7>& row, std::span<const std::byte> content) {
    const auto [who, lane_byte, kind, incarnation, sequence, acknowledged, shape] = row;
    constexpr uint64_t kNumbers[] = {0, 1, 2, UINT64_MAX};
    const Lane lane = (lane_byte & 1) != 0 ? Lane::kBulk : Lane::kFrames;
    const bool is_greeting = shape % 3 != 0;
    const Blob payload = is_greeting ? greeting(shape % 3 == 1, content)
                                     : Blob(std::vector<std::byte>(content.begin(), content.end()));
    PeerFrameHeader header;
    header.kind = static_cast<PeerFrameKind>(1 + kind % 12);
    header.incarnation = static_cast<uint32_t>(kNumbers[incarnation % 4]);
    header.peer_incarnation = incarnation % 8 < 4 ? 1 : 0;
    header.process = ProcessId((lane_byte & 4) != 0 ? 7 : 1);
    header.sequence = sequence % 4 == 3 ? UINT64_MAX : num_honest_ + sequence % 4;
    header.acknowledged = kNumbers[acknowledged % 4];
    header.payload_bytes = payload.size();
    header.check = frame_check(header, frame_payload_hash(payload.bytes(), {}));
    if ((lane_byte & 2) != 0) header.check ^= 1;
    FrameOrigin origin = {"a stranger's", who};
    if (who % 4 == 2) origin = {kHonest, 1};
    if (who % 4 == 2 || (is_greeting && shape % 3 == 1)) is_clean_ = false;
    connection_.receive(lane, origin, {header, part(payload), {}}, now_);
  }

  const TransportIdentity own_ = {"fuzz", 1, fuzz_types(), ProcessId(0), "own", 1, "ours"};
  const TransportIdentity theirs_ = {"fuzz", 1, fuzz_types(), ProcessId(1), "theirs", 1, "its"};
  const ConnectionLimits limits_ = fuzz_limits();
  const Time now_ = Time::from_nanoseconds(1);
  FuzzReceiver receiver_, unused_;
  ConnectionOutbox outbox_, other_outbox_;
  PeerConnection connection_, other_;
  uint64_t num_honest_ = 0;
  bool is_clean_ = true;
};

/// Returns whether no hostile frame had the pass or used the peer's socket connection.
inline bool fuzz_live_connection(std::span<const std::byte> script) {
  LiveConnection live;
  const bool is_clean = live.play(script);
  CHECK(live.num_delivered() >= 1 || !is_clean, "nothing arrived");
  if (!is_clean) return false;
  CHECK(live.state() == ConnectionState::kUp, "a stranger ended the connection");
  CHECK(live.num_delivered() == live.num_honest(), "a stranger's frames changed what arrived");
  return true;
}

}  // namespace primerl
