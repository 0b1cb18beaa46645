/// Transport: carries batches between two live incarnations of processes, exactly once and in order
/// per (from group, to group). The groups (runtime/exec) handle credit, sequences per edge, and
/// messages that return to their sender after a death. A transport handles only processes,
/// incarnations and frames.
///
///   group threads -- send() -->  [ I/O thread: connections ]  -- frames --> peer
///   receiver     <-- deliver --               |               <-- frames --
///
/// Three implementations use the same protocol (peer_connection.h): ZeroMQ over ipc and tcp
/// (zmq_transport.h), memory inside one process (memory_transport.h) and a seeded simulation with
/// faults (simulated_transport.h).
///
/// Order: make -> add_peer() for every process that shares an edge -> send() / deliver -> close().
/// Of two processes the one with the greater ProcessId connects: its PeerSpec has the other's
/// address. The other expects it (no address). Nothing is sent to a peer that was not added.
///
/// A broken connection is made again and missing frames are resent. It is only reported
/// (on_connection_down, on_connection_up), and send() stays usable meanwhile. The launcher of a
/// process declares its death through end_peer(). Only add_peer() with a greater incarnation admits
/// its next incarnation. Call it after the groups have handled peer_down, so that no batch for the
/// dead incarnation reaches the new one.
///
/// Streams are sent in addition to the batches, on the bulk lane. When capacity is free, the
/// transport asks their owner for one frame at a time (next_stream). So the amount in transit is
/// bounded, and Blobs are sent between the frames. Streams belong to no group and are in no ledger.
///
/// Ledger, per connection and in batches: sent == acknowledged + unacknowledged + abandoned.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/base/clock.h"
#include "runtime/wire/message_batch.h"
#include "runtime/wire/wire_message.h"

namespace primerl {

/// The address of a process: "ipc:///folder/p2.e1.frames", "tcp://127.0.0.1:40123", "memory://x".
/// Bulk has its own socket connection, so that a grant never waits for a Blob.
struct PeerAddress {
  std::string frames;
  std::string bulk;
  bool empty() const { return frames.empty(); }
  friend bool operator==(const PeerAddress&, const PeerAddress&) = default;
};

/// Longest run, process name, or other string of a greeting; in bytes.
inline constexpr size_t kGreetingWordBytesMax = 256;

/// The facts about a process in its greeting. Peers must have the same run, graph hash and types;
/// everything else is checked against the PeerSpec.
struct TransportIdentity {
  std::string run;
  uint64_t graph_hash = 0;                 // Plan::graph_hash
  std::shared_ptr<const WireTypes> types;  // its hash is compared
  ProcessId process;
  std::string name;          // PlanProcess::name
  uint32_t incarnation = 1;  // counted from 1 by the launcher
  /// A secret that peers must send in their greeting. This incarnation chooses it at random, and
  /// its peers get it with its address. A sender without it is refused as unknown. "" when no other
  /// process can connect.
  std::string pass{};
};

struct PeerSpec {
  ProcessId process;
  std::string name;
  uint32_t incarnation = 1;
  PeerAddress address;     // empty: the peer connects to this process
  std::string public_key;  // Z85: the peer must prove it on each socket connection; "": no key
  std::string pass{};      // its TransportIdentity::pass
  std::vector<TenantSlot> tenants;  // tenants that it may send for; empty: all. Shared traffic is
                                    // always allowed
  bool shares_memory = false;  // the peer is on this machine: large Blobs use a shared pool, not
                               // the bulk lane
};

/// Bounds and times of every connection of a transport.
struct ConnectionLimits {
  /// Data that may wait for acknowledgement, per peer. The groups' credits limit it much earlier. A
  /// send() beyond it is an error that ends the run, not flow control.
  uint64_t unacknowledged_bytes_max = uint64_t{4} << 30;
  uint64_t unacknowledged_batches_max = uint64_t{1} << 20;
  uint64_t batch_bytes_max = uint64_t{16} << 20;  // of one batch, without its bulk pieces
  uint64_t blob_bytes_max = uint64_t{1} << 30;
  /// Blobs and bodies of at least this size are sent on the bulk lane, in chunks.
  uint64_t bulk_bytes_min = uint64_t{64} << 10;
  uint64_t chunk_bytes = uint64_t{1} << 20;
  /// The maximum number of bytes of shared memory that the peer holds at a time; further Blobs are
  /// sent in chunks. Only the used part has memory.
  uint64_t pool_bytes_max = uint64_t{4} << 30;
  /// Waiting batches of one peer share a frame up to this size; 1 = one batch per frame.
  uint64_t frame_bytes = uint64_t{64} << 10;
  /// Frames that were sent and not yet acknowledged, per peer. Limits the data in sockets.
  uint32_t window_frames = 1024;
  uint32_t window_chunks = 64;
  uint32_t window_streams = 4;                         // frames of streams among those
  Duration hello_every = Duration::milliseconds(100);  // until the peer greets
  Duration probe_after = Duration::milliseconds(500);  // without acknowledgement: sends a probe,
                                                       // and resends
  Duration silent_after = Duration::seconds(2);        // without any arrival: the connection counts
                                                       // as broken
  Duration greet_timeout = Duration::seconds(10);      // from add_peer() to the first greeting
};

struct TransferCounts {
  uint64_t num_batches = 0;
  uint64_t num_messages = 0;
  uint64_t num_bytes = 0;  // encoded, Blobs included
  friend bool operator==(const TransferCounts&, const TransferCounts&) = default;
};

enum class ConnectionState {
  kConnecting,  // added, not greeted yet
  kUp,
  kBroken,  // was up; it is being reconnected
  kFailed,  // refused, or a protocol error: no more data
  kEnded,   // end_peer() or close()
};
std::string_view to_string(ConnectionState state);

struct ConnectionStatus {
  ProcessId peer;
  std::string name;
  uint32_t incarnation = 0;
  ConnectionState state = ConnectionState::kConnecting;
  TransferCounts sent;            // accepted by send()
  TransferCounts acknowledged;    // those that the peer's receiver has
  TransferCounts unacknowledged;  // queued, or in transit
  TransferCounts abandoned;       // unacknowledged when the connection ended or failed
  TransferCounts received;        // delivered in this process
  uint64_t num_blobs_shared = 0;  // Blobs sent through shared memory
  uint64_t num_bytes_shared = 0;
  uint64_t num_stream_bytes_sent = 0;  // each byte counted once
  uint64_t num_stream_bytes_received = 0;
  uint64_t num_frames_sent = 0;  // including resent frames
  uint64_t num_frames_resent = 0;
  uint64_t num_breaks = 0;
  std::array<uint64_t, kNumFrameRefusals> refused{};  // arrivals by FrameRefusal
  Duration round_trip;    // of the last greeting; known to the side that connects
  Duration clock_offset;  // the peer's clock minus this clock, at that time

  uint64_t num_refused(FrameRefusal refusal) const { return refused[static_cast<size_t>(refusal)]; }
};

/// Two processes that do not belong to one run; reported on both sides.
struct ConnectionRefusal {
  ProcessId peer;         // as it names itself; none when unknown
  std::string peer_name;  // as it names itself; "" when unknown
  std::string field;  // "run", "graph hash", "message types", "version", "incarnation", "process"
  std::string ours;
  std::string theirs;
  bool by_peer = false;         // the peer refused this process
  bool ends_connection = true;  // false: an older incarnation was refused, which ends nothing
  /// "'training' (process 1) was refused: graph hash: ours 1f…, theirs 2e…"
  std::string text() const;
};

/// A frame of a stream. The body is shared, not copied, when it is sent; in a received frame both
/// views are valid only during the call. At most ConnectionLimits::batch_bytes_max together.
struct StreamFrame {
  uint32_t stream = 0;
  Blob head;
  Blob body;
  uint64_t num_bytes() const { return head.size() + body.size(); }
};

/// Receives what arrives. All calls come from the transport's I/O thread, one at a time. They must
/// return quickly, never block, and may call send() but no other method of the transport.
class TransportReceiver {
 public:
  virtual ~TransportReceiver() = default;
  /// Grants may be delivered before messages that wait for bulk pieces: then as a batch with grants
  /// only.
  virtual void deliver(ProcessId from, MessageBatch&& batch) = 0;
  virtual void on_connection_up(ProcessId peer, uint32_t incarnation) = 0;
  virtual void on_connection_down(ProcessId peer, uint32_t incarnation, const Error& why) = 0;
  virtual void on_refused(const ConnectionRefusal& refusal) = 0;
  /// The connection carries no more data: it was refused, had no greeting within greet_timeout, or
  /// the peer broke the protocol. Data that the peer had not acknowledged is abandoned.
  virtual void on_connection_failed(ProcessId peer, uint32_t incarnation, const Error& why) = 0;
  /// The bulk lane has free capacity: fill in the next frame of any stream for the peer. False: no
  /// frame now. It is called again after streams_ready(), or when something has arrived from the
  /// peer.
  virtual bool next_stream(ProcessId peer, uint32_t incarnation, StreamFrame& frame) {
    (void)peer;
    (void)incarnation;
    (void)frame;
    return false;
  }
  /// In the order of the peer's next_stream() calls, each frame once.
  virtual void receive_stream(ProcessId from, uint32_t incarnation, const StreamFrame& frame) {
    (void)from;
    (void)incarnation;
    (void)frame;
  }
};

class Transport {
 public:
  /// Calls close(Duration()) if it was not closed.
  virtual ~Transport() = default;

  /// The address at which peers connect to this process; known from the start.
  virtual const PeerAddress& address() const = 0;
  /// All addresses, when it listens on several.
  virtual std::vector<PeerAddress> addresses() const { return {address()}; }

  /// Begins a connection. kInvalid: the address is not for this kind of transport, or it needs a
  /// key. kExists: the incarnation is not greater than the one that was added before. A greater
  /// incarnation ends the older connection like end_peer(). Any thread except the I/O thread.
  virtual Status add_peer(PeerSpec peer) = 0;
  /// The process is dead. Abandons data that it has not acknowledged; later arrivals of
  /// `incarnation` and older ones are refused. After this returns, nothing from it is delivered.
  /// Any thread except the I/O thread.
  virtual void end_peer(ProcessId peer, uint32_t incarnation) = 0;

  /// Queues a batch for a live connection and returns; order is kept per calling group. kExhausted:
  /// a limit of ConnectionLimits was exceeded. kUnavailable: the connection failed or ended.
  /// kNotFound: no such peer. After an error nothing was queued. Any thread.
  virtual Status send(ProcessId to, MessageBatch&& batch) = 0;

  /// next_stream() may return a frame now. Any thread, but not from within next_stream().
  virtual void streams_ready() = 0;

  /// One entry per peer, by ProcessId. Any thread except the I/O thread.
  virtual std::vector<ConnectionStatus> status() const = 0;

  /// Counts by FrameRefusal: frames of processes that were not added, and keys that were not
  /// allowed. Any thread except the I/O thread.
  virtual std::array<uint64_t, kNumFrameRefusals> refused_unknown_peers() const { return {}; }

  /// Sends all queued data and waits for its acknowledgement, at most `deadline`. Then it ends
  /// every connection and joins the I/O thread. kDeadline names the peers that did not acknowledge.
  /// Idempotent.
  virtual Status close(Duration deadline) = 0;
};

}  // namespace primerl
