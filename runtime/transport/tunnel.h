/// Tunnel: one end of a channel that carries a stream socket through a connection of frames.
///
///   socket -> take_bytes() -> ... TunnelBytes ... -> arrived() -> socket
///   take_grant() -> ... TunnelCredit ... -> granted()
///
/// The tunnel reads from the socket only what the peer has granted; what arrived and the socket
/// does not take yet is at most the window, which the peer must not exceed. Grants are running
/// totals, sent at half a window. Owns the socket. Not thread-safe: lives on the connection's
/// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "graph/base/result.h"
#include "graph/message_type.h"
#include "runtime/wire/agent_messages.h"

namespace primerl {

class Tunnel {
 public:
  /// Takes over `fd`, a connected stream socket, and makes it non-blocking.
  explicit Tunnel(int fd, uint64_t window_bytes = kTunnelWindowBytes);
  ~Tunnel();
  Tunnel(const Tunnel&) = delete;
  Tunnel& operator=(const Tunnel&) = delete;

  int fd() const { return fd_; }
  /// Whether the socket must be polled for it.
  bool wants_read() const { return !has_ended_ && sent_ < granted_; }
  bool wants_write() const { return num_written_ < arrived_.size(); }
  /// No more data will come from either side, and all that came was written.
  bool is_over() const { return has_ended_ && peer_has_ended_ && !wants_write(); }

  /// POLLIN (if the bytes could be sent on) and POLLOUT as wanted; 0: do not poll the socket, it
  /// might only report that the other side has hung up.
  short poll_events(bool has_room) const;

  /// One turn of channel `channel`: writes, grants, and sends up to `pieces_max` pieces and the end
  /// of the stream, while there is room.
  void carry(uint32_t channel, int pieces_max, const std::function<bool()>& has_room,
             const std::function<void(Payload)>& send);

  /// What the socket has and credit allows, at most one piece. Empty: nothing now, or the end of
  /// the stream, see has_ended().
  std::vector<uint8_t> take_bytes();
  bool has_ended() const { return has_ended_; }

  /// kCorrupt: more than was granted, after the end, or an empty piece.
  Status arrived(std::span<const uint8_t> bytes);
  /// kCorrupt: a total that decreases, or exceeds the window.
  Status granted(uint64_t total);
  /// The peer's end of the stream; the socket is shut down once everything has been written.
  Status peer_ended();
  /// Writes what the socket takes.
  void write_some();
  /// The total to grant next, when it is worth a message.
  std::optional<uint64_t> take_grant();

 private:
  void tell_end();

  const int fd_;
  const uint64_t window_bytes_;
  // From the socket to the peer.
  uint64_t sent_ = 0;
  uint64_t granted_;  // by the peer, in total
  bool has_ended_ = false;
  // From the peer to the socket.
  std::vector<uint8_t> arrived_;
  size_t num_written_ = 0;  // of arrived_
  uint64_t received_ = 0;   // in total
  uint64_t settled_ = 0;    // of those, written
  uint64_t given_;          // granted to the peer, in total
  bool peer_has_ended_ = false;
  bool discards_arrivals_ = false;  // the socket's other end is closed: what arrives is discarded
};

}  // namespace primerl
