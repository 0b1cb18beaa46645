/// PeerConnection: this process's end of the protocol with one incarnation of one peer. All
/// transports use it; none has its own protocol.
///
/// Two lanes, frames and bulk, each with its own socket connection. The connecting side sends hello
/// on each until it gets a welcome. Both sides compare run, graph hash, types, names and
/// incarnations. Then numbered frames are sent and acknowledged cumulatively. A gap is answered
/// with a position, from which the sender resends. A silent peer is probed, and its answer is a
/// position too. So each frame is accepted once and in order, even if a socket connection loses,
/// repeats or reorders frames.
///
/// No threads, no clocks, no sockets. The I/O thread of a transport (or a simulation) calls it with
/// the time, sends the frames of next(), and passes in frames that arrived. Calls the receiver.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "runtime/transport/bulk_assembly.h"
#include "runtime/transport/connection_lane.h"
#include "runtime/transport/connection_memory.h"
#include "runtime/transport/connection_outbox.h"
#include "runtime/transport/transport.h"

namespace primerl {

/// Payloads up to this many bytes are copied after the header; larger ones are sent as a second
/// part, shared.
inline constexpr size_t kHeadBytesMax = size_t{8} << 10;

/// A frame to send: the first part has the header and the bytes after it; then the second part.
struct OutFrame {
  PeerFrameHeader header;
  Blob head;
  Blob data;
};

/// A frame that arrived: the bytes after the header in the first part, and the second part.
struct InFrame {
  PeerFrameHeader header;
  ReceivedPart head;
  ReceivedPart data;
};

/// The socket connection on which a frame arrived, as its transport identifies it.
struct FrameOrigin {
  std::string_view route{};  // its name, unique
  uint64_t order = 0;        // of two socket connections of one process, the one with the greater
                             // number is newer
  bool is_own = false;       // this end made it
  bool is_proven = false;    // the peer's key was proved on it
};

class PeerConnection {
 public:
  /// `identity`, `limits`, `outbox` and `receiver` must stay valid while the connection exists.
  PeerConnection(const TransportIdentity& identity, PeerSpec peer, const ConnectionLimits& limits,
                 ConnectionOutbox& outbox, TransportReceiver& receiver, Time now);

  const PeerSpec& peer() const { return peer_; }
  bool connects() const { return !peer_.address.empty(); }
  ConnectionState state() const { return state_; }
  bool is_over() const {
    return state_ == ConnectionState::kFailed || state_ == ConnectionState::kEnded;
  }

  /// Moves the outbox's contents into frames.
  void take_outbox();

  /// The next frame to send on this lane, most urgent first; false: no frame now.
  bool next(Lane lane, Time now, OutFrame& frame);
  /// The transport could not send it: next() returns it again.
  void retry(Lane lane, const OutFrame& frame);

  /// Handles a frame whose header was decoded. From a socket connection without a valid greeting,
  /// only a greeting is accepted. Then the lane is bound to that socket connection. Frames of any
  /// other socket connection are refused and counted, whatever they contain. A newer socket
  /// connection of the peer replaces it with a greeting. So only the bound one can make the
  /// connection fail.
  void receive(Lane lane, const FrameOrigin& origin, InFrame frame, Time now);
  /// Whether frames of this socket connection are known to come from the peer.
  bool is_bound(Lane lane, const FrameOrigin& origin) const {
    return connects()
               ? origin.is_own
               : channel(lane).is_greeted && !origin.is_own && channel(lane).route == origin.route;
  }
  /// The socket connection on which a frame of next() is sent, if the peer made it.
  const std::string& route_of(Lane lane, const OutFrame& frame) const {
    return frame.header.kind == PeerFrameKind::kRefusal ? refusal_route_ : channel(lane).route;
  }
  /// This end made new socket connections: they begin with hello.
  void connect_again(Time now);
  /// Data that is no valid frame arrived on the peer's socket connection.
  void refuse(FrameRefusal refusal) { ++refused_[static_cast<size_t>(refusal)]; }
  /// The peer speaks another version of these frames.
  void refuse_version(uint8_t theirs);

  /// The time at which wake() must be called next.
  Time next_timer() const { return next_timer_; }
  void wake(Time now);

  /// Sends bye on both lanes after everything else was sent.
  void leave();
  /// The peer sent bye: it sends no more acknowledgements.
  bool has_left() const { return has_left_; }
  void fail(const Error& why);
  /// Ends without a report: the peer was declared dead, or the transport is closing.
  void end(std::string_view why);

  /// The last arrival on the lane that has been silent longest.
  Time last_heard() const { return std::min(channels_[0].last_heard, channels_[1].last_heard); }

  /// Adds all counters, except those of the outbox.
  void add_to(ConnectionStatus& status) const;

 private:
  struct Channel {
    explicit Channel(uint32_t window) : lane(window) {}
    ConnectionLane lane;
    bool is_greeted = false;  // the peer's greeting was accepted
    std::string route;        // socket connection on which it arrived, if the peer made it
    uint64_t order = 0;       // its FrameOrigin::order
    bool owes_hello = false;
    bool owes_welcome = false;
    bool owes_probe = false;
    bool owes_position = false;
    bool owes_ack = false;
    bool owes_bye = false;
    bool has_gap = false;         // a position was sent for it
    int64_t hello_at_ns = 0;      // of the hello that the welcome repeats
    uint32_t num_bad_checks = 0;  // in a row
    Time next_hello;
    Time last_heard;
    Time last_progress;  // an acknowledgement, or a time when nothing was unacknowledged
    Time last_probe;
  };
  /// One numbered frame of batches: acknowledged when both lanes have reached it.
  struct Receipt {
    uint64_t frame = 0;
    uint64_t bulk = 0;
    TransferCounts counts;
  };
  /// A batch that waits for its bulk pieces, or for an older batch that does.
  struct Waiting {
    BatchShape shape;
    ReceivedPart bytes;
  };
  using GroupPair = std::pair<GroupId, GroupId>;

  Channel& channel(Lane lane) { return channels_[static_cast<size_t>(lane)]; }
  const Channel& channel(Lane lane) const { return channels_[static_cast<size_t>(lane)]; }

  // peer_connection.cc: sending
  void push_bulk(const BulkPiece& piece);
  void push_reference(const ShmBlobRef& ref);
  void pull_stream();
  bool next_unnumbered(Lane lane, Channel& from, Time now, OutFrame& frame);
  Blob greeting(const Channel& from, Time now) const;
  PeerFrameHeader header(PeerFrameKind kind, const Channel& from) const;
  void release();
  void settle_receipts();

  // peer_connection_receive.cc
  bool check_incarnations(Lane lane, const FrameOrigin& origin, const InFrame& frame);
  void receive_greeting(Lane lane, const FrameOrigin& origin, const InFrame& frame, Time now);
  bool has_greeted() const;
  void receive_refusal(const InFrame& frame);
  void receive_numbered(Lane lane, const InFrame& frame, Time now);
  void receive_batches(const InFrame& frame);
  void receive_chunk(const InFrame& frame);
  void receive_reference(const InFrame& frame);
  void receive_reads(const InFrame& frame);
  void receive_stream(const InFrame& frame);
  void deliver(const BatchShape& shape, const ReceivedPart& bytes, bool with_grants);
  void deliver_waiting();
  void deliver_grants(const BatchShape& shape, const ReceivedPart& bytes);
  void refuse_peer(ConnectionRefusal refusal);
  void set_refusal(RefusedGreeting refusal);
  void owe_refusal(Lane lane, std::string_view route);
  void acknowledge(Lane lane, uint64_t sequence, Time now);
  void note_alive(Lane lane, Time now);
  void go_up();
  void fail_frame(FrameRefusal refusal, std::string_view what);

  // Constant after construction.
  const TransportIdentity& identity_;
  const PeerSpec peer_;
  const ConnectionLimits& limits_;
  ConnectionOutbox& outbox_;
  TransportReceiver& receiver_;

  ConnectionState state_ = ConnectionState::kConnecting;
  ConnectionMemory memory_;
  bool owes_reads_ = false;
  bool has_left_ = false;  // the peer sent bye
  std::array<Channel, kNumLanes> channels_;
  Time greet_until_;
  Time next_timer_;
  std::optional<RefusedGreeting> refusal_;  // sent again for every hello
  bool owes_refusal_ = false;
  std::string refusal_route_;  // the socket connection on which it is sent
  bool has_told_of_outdated_ = false;
  uint32_t num_other_versions_ = 0;
  // Sending.
  std::deque<Receipt> receipts_;
  uint64_t next_object_ = 0;
  uint64_t num_chunks_ = 0;        // number of the last chunk
  std::deque<uint64_t> streamed_;  // numbers of unacknowledged stream frames
  bool is_leaving_ = false;
  uint64_t num_stream_bytes_sent_ = 0, num_stream_bytes_received_ = 0;
  // Receiving.
  BulkAssembly bulk_;
  uint64_t next_bulk_ = 0;  // number of the next batch's first bulk piece
  std::map<GroupPair, std::deque<Waiting>> waiting_;
  uint64_t waiting_bytes_ = 0;  // total size of the batches in waiting_
  std::vector<Blob> pieces_;    // of the current batch
  TransferCounts received_;
  std::array<uint64_t, kNumFrameRefusals> refused_{};
  uint64_t num_breaks_ = 0;
  Duration round_trip_;
  Duration clock_offset_;
};

}  // namespace primerl
