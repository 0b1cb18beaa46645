/// One input of the connection fuzzer. Its hostile bytes are used as a frame's header, as a batch,
/// and as a row of frames from a greeted peer. tests/transport/connection_fuzz_test.cc runs it over
/// the corpus and over mutations of it.
///
/// A random frame almost never has a valid check. So the third use computes a valid header and
/// check for each payload, to test the code that runs after the check.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "graph/base/bytes.h"
#include "runtime/transport/peer_connection.h"
#include "runtime/wire/message_batch_codec.h"

namespace primerl {

struct FuzzNote {
  static constexpr std::string_view kName = "FuzzNote";
  static constexpr uint32_t kVersion = 1;
  uint64_t number = 0;
  std::vector<std::string> texts;
  Blob first, second;
  template <class F>
  static void fields(F& f) {
    f("number", &FuzzNote::number)("texts", &FuzzNote::texts)("first", &FuzzNote::first)(
        "second", &FuzzNote::second);
  }
};

inline std::shared_ptr<const WireTypes> fuzz_types() {
  static const auto types =
      std::make_shared<const WireTypes>(std::vector{&message_type<FuzzNote>()});
  return types;
}

/// Counts, and reads every received byte.
class FuzzReceiver final : public TransportReceiver {
 public:
  void deliver(ProcessId, MessageBatch&& batch) override {
    CHECK(is_up, "a batch before the connection was up");
    for (const BatchedMessage& message : batch.messages) {
      const auto& note = message.envelope.payload.as<FuzzNote>();
      CHECK(message.envelope.blob_bytes == note.first.size() + note.second.size(),
            "a message's Blobs are not what it is charged for");
      for (const Blob* blob : {&note.first, &note.second})
        for (const std::byte each : blob->bytes()) sum += static_cast<uint64_t>(each);
    }
    num_messages += batch.messages.size();
  }
  void on_connection_up(ProcessId, uint32_t) override { is_up = true; }
  void on_connection_down(ProcessId, uint32_t, const Error&) override {}
  void on_refused(const ConnectionRefusal&) override {}
  void on_connection_failed(ProcessId, uint32_t, const Error&) override {
    CHECK(!has_failed, "a connection failed twice");
    has_failed = true;
  }
  bool is_up = false;
  bool has_failed = false;
  uint64_t num_messages = 0;
  uint64_t sum = 0;
};

/// Small, so that inputs reach the limits.
inline ConnectionLimits fuzz_limits() {
  ConnectionLimits limits;
  limits.blob_bytes_max = 4096;
  limits.unacknowledged_bytes_max = 16384;
  return limits;
}

inline void fuzz_connection_header(std::span<const std::byte> bytes) {
  for (const Lane lane : {Lane::kFrames, Lane::kBulk}) {
    PeerFrameHeader header;
    if (decode_peer_frame_header(bytes, lane, 1 << 20, header) != FrameRefusal::kNone) continue;
    std::array<std::byte, kPeerFrameHeaderBytes> again;
    encode_peer_frame_header(header, again);
    CHECK(std::equal(again.begin(), again.end(), bytes.begin()), "a header did not round trip");
  }
}

inline void fuzz_batch(std::span<const std::byte> bytes) {
  BatchShape shape;
  if (decode_batch_shape(bytes, shape) != FrameRefusal::kNone) return;
  const BatchRules rules = {fuzz_types().get(), {}, 4096};
  std::vector<Blob> bulk(std::min<uint32_t>(shape.num_bulk, 8));
  for (Blob& piece : bulk) piece = Blob(std::vector<std::byte>(16));
  const auto decoded = decode_batch(shape, bytes, nullptr, 0, bulk, rules);
  if (decoded.refusal != FrameRefusal::kNone) return;
  CHECK(decoded.batch.messages.size() == shape.num_messages, "messages were lost");
  BatchEncoder encoder;
  CHECK(encoder.encode(decoded.batch, *fuzz_types(), {}).ok(), "a batch did not round trip");
}

/// A peer that greets and then sends `script`: rows of lane (u8), length (u16) and payload. Bit 1
/// of the lane makes a reference into shared memory of a piece, bit 2 a frame of a stream. Bit 7 of
/// the first row's lane creates that shared memory. Returns the number of delivered messages.
inline uint64_t fuzz_frames(std::span<const std::byte> script) {
  const TransportIdentity own = {"fuzz", 1, fuzz_types(), ProcessId(0), "own", 1};
  const TransportIdentity theirs = {"fuzz", 1, fuzz_types(), ProcessId(1), "theirs", 1};
  ConnectionLimits limits = fuzz_limits();
  limits.pool_bytes_max = 1 << 16;
  const bool shares = !script.empty() && (script[0] & std::byte{0x80}) != std::byte{};
  FuzzReceiver receiver, unused;
  ConnectionOutbox outbox(limits), other_outbox(limits);
  PeerSpec peer, back;
  peer.process = ProcessId(1);
  peer.name = "theirs";
  back.process = ProcessId(0);
  back.name = "own";
  back.address = {"x", "x"};
  peer.shares_memory = back.shares_memory = shares;
  const Time now = Time::from_nanoseconds(1);
  PeerConnection connection(own, peer, limits, outbox, receiver, now);
  PeerConnection other(theirs, back, limits, other_outbox, unused, now);
  other.wake(now);
  const auto receive = [&](Lane lane, const OutFrame& frame) {
    connection.receive(lane, {}, {frame.header, {nullptr, 0, frame.head.bytes()}, {}}, now);
  };
  OutFrame hello;
  for (const Lane lane : {Lane::kFrames, Lane::kBulk})
    while (other.next(lane, now, hello)) receive(lane, hello);
  CHECK(connection.state() == ConnectionState::kUp, "the greeting failed");

  std::array<uint64_t, kNumLanes> sequences = {0, 0};
  while (script.size() >= 3 && !receiver.has_failed) {
    const std::byte flags = script[0];
    const Lane lane = (flags & std::byte{1}) != std::byte{} ? Lane::kBulk : Lane::kFrames;
    const size_t size =
        std::min<size_t>(take_number<uint16_t>(script.data() + 1), script.size() - 3);
    const Blob payload(std::vector<std::byte>(script.begin() + 3, script.begin() + 3 + size));
    script = script.subspan(3 + size);
    OutFrame frame;
    frame.header.kind = lane == Lane::kBulk ? PeerFrameKind::kChunk : PeerFrameKind::kBatches;
    const bool is_reference = lane == Lane::kBulk && (flags & std::byte{2}) != std::byte{};
    if (is_reference) frame.header.kind = PeerFrameKind::kReference;
    const bool is_stream = lane == Lane::kBulk && (flags & std::byte{4}) != std::byte{};
    if (is_stream) frame.header.kind = PeerFrameKind::kStream;
    frame.header.incarnation = frame.header.peer_incarnation = 1;
    frame.header.process = ProcessId(1);
    frame.header.sequence = ++sequences[static_cast<size_t>(lane)];
    frame.header.payload_bytes = size;
    frame.header.check = frame_check(frame.header, frame_payload_hash(payload.bytes(), {}));
    frame.head = payload;
    receive(lane, frame);
    OutFrame answer;
    for (const Lane each : {Lane::kFrames, Lane::kBulk})
      while (connection.next(each, now, answer)) {
      }
  }
  ConnectionStatus status;
  connection.add_to(status);
  CHECK(status.received.num_messages == receiver.num_messages, "the ledger is off");
  return receiver.num_messages;
}

inline void fuzz_connection(std::span<const std::byte> bytes) {
  fuzz_connection_header(bytes);
  fuzz_batch(bytes);
  (void)fuzz_frames(bytes);
}

}  // namespace primerl
