/// Two ends of a connection without a transport, for tests that pass its frames by hand.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/transport/peer_connection.h"
#include "tests/conformance/transport_stage.h"

namespace primerl {

/// Two ends of a connection; the test passes every frame between them.
class PeerConnectionTest : public ::testing::Test {
 protected:
  struct End {
    End(size_t side, const ConnectionLimits& limits, bool shares_memory = false,
        std::string pass = "", uint32_t peer_incarnation = 1)
        : identity(identity_of(side, 1)),
          outbox(limits),
          connection((identity.pass = std::move(pass), identity),
                     peer(side, shares_memory, peer_incarnation), limits, outbox, receiver,
                     Time::from_nanoseconds(1)) {}
    static PeerSpec peer(size_t side, bool shares_memory, uint32_t incarnation) {
      PeerSpec peer;
      peer.incarnation = incarnation;
      peer.shares_memory = shares_memory;
      peer.process = ProcessId(static_cast<uint32_t>(1 - side));
      peer.name = fmt::format("side{}", 1 - side);
      if (side == 1) peer.address = {"x", "x"};
      return peer;
    }
    TransportIdentity identity;
    ConnectionOutbox outbox;
    CollectingReceiver receiver;
    PeerConnection connection;
  };

  void open(ConnectionLimits limits = {}) {
    limits_ = limits;
    for (size_t side = 0; side < 2; ++side)
      ends_[side] = std::make_unique<End>(side, limits_, shares_memory_);
    at(1).wake(now_);
    for (int i = 0; i < 2; ++i)
      for (size_t side = 0; side < 2; ++side)
        for (const Lane lane : kLanes) pass_all(side, lane);
    ASSERT_EQ(at(0).state(), ConnectionState::kUp);
    ASSERT_EQ(at(1).state(), ConnectionState::kUp);
  }
  PeerConnection& at(size_t side) { return ends_[side]->connection; }
  CollectingReceiver& got(size_t side) { return ends_[side]->receiver; }

  void send(size_t side, const MessageBatch& batch) {
    BatchEncoder encoder;
    const BatchEncoderLimits limits = {limits_.bulk_bytes_min, limits_.batch_bytes_max,
                                       limits_.blob_bytes_max};
    ASSERT_TRUE(encoder.encode(batch, *note_types(), limits).ok());
    bool is_first = false;
    ASSERT_TRUE(ends_[side]->outbox.put(encoder, batch.messages.size(), is_first).ok());
    at(side).take_outbox();
  }
  /// The frames that `side` sends on the lane now.
  std::vector<OutFrame> frames(size_t side, Lane lane) {
    std::vector<OutFrame> all;
    OutFrame frame;
    while (at(side).next(lane, now_, frame)) all.push_back(frame);
    return all;
  }
  void arrive(size_t side, Lane lane, const OutFrame& frame) {
    FrameOrigin origin;
    origin.is_own = at(side).connects();
    arrive(side, lane, frame, origin);
  }
  void arrive(size_t side, Lane lane, const OutFrame& frame, const FrameOrigin& origin) {
    at(side).receive(
        lane, origin,
        {frame.header, {nullptr, 0, frame.head.bytes()}, {nullptr, 0, frame.data.bytes()}}, now_);
  }
  void pass_all(size_t from, Lane lane) {
    for (const OutFrame& frame : frames(from, lane)) arrive(1 - from, lane, frame);
  }
  ConnectionStatus status(size_t side) {
    ConnectionStatus status;
    at(side).add_to(status);
    ends_[side]->outbox.add_to(status);
    return status;
  }
  /// Each end has a pool, unless a test says otherwise.
  bool shares_memory_ = false;
  static OutFrame numbered(PeerFrameKind kind, uint64_t sequence, std::vector<std::byte> payload) {
    OutFrame frame;
    frame.header.kind = kind;
    frame.header.incarnation = frame.header.peer_incarnation = 1;
    frame.header.process = ProcessId(1);
    frame.header.sequence = sequence;
    frame.head = Blob(std::move(payload));
    frame.header.payload_bytes = frame.head.size();
    frame.header.check = frame_check(frame.header, frame_payload_hash(frame.head.bytes(), {}));
    return frame;
  }

  ConnectionLimits limits_;
  Time now_ = Time::from_nanoseconds(1);
  std::unique_ptr<End> ends_[2];
};

}  // namespace primerl
