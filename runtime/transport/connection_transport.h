/// ConnectionTransport: the common part of all transports: the table of connections, send(),
/// status, and the begin and end of a connection. A transport derives from it and moves frames
/// between the connections and its medium.
///
/// Threads: send() copies into an outbox and calls wake(), which asks for a turn of the I/O thread.
/// During a turn that thread holds mutex(). It is the only thread that calls arrive() and sends
/// frames. add_peer(), end_peer() and status() hold mutex() briefly. Callbacks are called while it
/// is held.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "runtime/transport/peer_connection.h"

namespace primerl {

class ConnectionTransport : public Transport {
 public:
  /// `receiver` must stay valid while the transport exists.
  ConnectionTransport(TransportIdentity identity, ConnectionLimits limits,
                      TransportReceiver& receiver);

  Status add_peer(PeerSpec peer) final;
  void end_peer(ProcessId peer, uint32_t incarnation) final;
  Status send(ProcessId to, MessageBatch&& batch) final;
  void streams_ready() final { wake(); }
  std::vector<ConnectionStatus> status() const final;
  std::array<uint64_t, kNumFrameRefusals> refused_unknown_peers() const final;

 protected:
  /// Asks for a turn soon. Any thread; cheap when a turn is already scheduled.
  virtual void wake() = 0;
  /// Whether this transport can reach the peer.
  virtual Status check_peer(const PeerSpec& peer) const = 0;
  virtual Time now() const = 0;

  const TransportIdentity& identity() const { return identity_; }
  const ConnectionLimits& limits() const { return limits_; }
  std::mutex& mutex() const { return mutex_; }

  // With mutex() held ---------------------------------------------------------------------------
  /// Handles a frame: its first part (the header and the bytes after it), and the second part, if
  /// any. `from` is the process to which the socket connection belongs.
  void arrive(Lane lane, ProcessId from, const FrameOrigin& origin, const ReceivedPart& first,
              const ReceivedPart& second);
  void refuse_unknown_peer(FrameRefusal refusal) {
    ++refused_unknown_peers_[static_cast<size_t>(refusal)];
  }
  PeerConnection* find(ProcessId process);
  void each_connection(const std::function<void(PeerConnection&)>& visit);
  /// Moves queued batches into connections and wakes connections whose timer expired. Returns the
  /// time of the next turn.
  Time begin_turn();
  /// Whether everything sent is acknowledged or abandoned.
  bool is_settled() const;
  /// kDeadline that names the peers of is_settled(), or ok.
  Status settled_or_deadline(Duration deadline) const;
  void leave_peers();
  void end_connections();

 private:
  struct Entry {
    std::shared_ptr<ConnectionOutbox> outbox;
    std::unique_ptr<PeerConnection> connection;
  };
  std::shared_ptr<ConnectionOutbox> outbox_of(ProcessId process) const;

  // Constant after construction.
  const TransportIdentity identity_;
  const ConnectionLimits limits_;
  const BatchEncoderLimits encoder_limits_;
  TransportReceiver& receiver_;
  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::map<ProcessId, Entry> connections_;
  std::array<uint64_t, kNumFrameRefusals> refused_unknown_peers_{};
  // Guarded by outboxes_mutex_; the outboxes of connections_ again, for send().
  mutable std::shared_mutex outboxes_mutex_;
  std::map<ProcessId, std::shared_ptr<ConnectionOutbox>> outboxes_;
};

/// The longest time that a condition variable can wait for.
inline constexpr Duration kWaitMax = Duration::seconds(24 * 3600);

/// Header and first part of a frame, as one buffer.
std::vector<std::byte> first_part(const OutFrame& frame);

}  // namespace primerl
