/// Tunnel: one end of a channel that carries a stream socket through a connection of frames.
///
///   socket -> take_bytes() -> ... TunnelBytes ... -> arrived() -> socket
///   take_grant() -> ... TunnelCredit ... -> granted()
///
/// The tunnel reads from the socket only as many bytes as the peer has granted. Bytes that arrived
/// and cannot be written to the socket yet are at most one window; the peer must not send more.
/// Grants are running totals, sent at half a window. Owns the socket. Not thread-safe: used by the
/// connection's thread.
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
  /// Takes ownership of `fd`, a connected stream socket, and makes it non-blocking.
  explicit Tunnel(int fd, uint64_t window_bytes = kTunnelWindowBytes);
  ~Tunnel();
  Tunnel(const Tunnel&) = delete;
  Tunnel& operator=(const Tunnel&) = delete;

  int fd() const { return fd_; }
  /// Whether the socket must be polled for reading, and for writing.
  bool wants_read() const { return !has_ended_ && sent_ < granted_; }
  bool wants_write() const { return num_written_ < arrived_.size(); }
  /// No more data will come from either side, and all arrived data was written.
  bool is_over() const { return has_ended_ && peer_has_ended_ && !wants_write(); }

  /// POLLIN (if bytes read could be sent) and POLLOUT as needed. 0: do not poll the socket, because
  /// it might only report that the other side has closed.
  short poll_events(bool has_room) const;

  /// One turn of channel `channel`: writes and grants. While there is free space, it also sends up
  /// to `pieces_max` pieces and the end of the stream.
  void carry(uint32_t channel, int pieces_max, const std::function<bool()>& has_room,
             const std::function<void(Payload)>& send);

  /// Reads what the socket has and credit allows, at most one piece. Empty: nothing now, or the end
  /// of the stream; see has_ended().
  std::vector<uint8_t> take_bytes();
  bool has_ended() const { return has_ended_; }

  /// kCorrupt: more bytes than granted, bytes after the end, or an empty piece.
  Status arrived(std::span<const uint8_t> bytes);
  /// kCorrupt: a total that decreases, or exceeds the window.
  Status granted(uint64_t total);
  /// The peer ended the stream; the socket is shut down after everything has been written.
  Status peer_ended();
  /// Writes as many bytes as the socket accepts.
  void write_some();
  /// The total to grant next; none while it is too small for a message.
  std::optional<uint64_t> take_grant();

 private:
  void tell_end();

  const int fd_;
  const uint64_t window_bytes_;
  // From the socket to the peer.
  uint64_t sent_ = 0;
  uint64_t granted_;  // by the peer, as a total
  bool has_ended_ = false;
  // From the peer to the socket.
  std::vector<uint8_t> arrived_;
  size_t num_written_ = 0;  // of arrived_
  uint64_t received_ = 0;   // as a total
  uint64_t settled_ = 0;    // received bytes that were written
  uint64_t given_;          // granted to the peer, as a total
  bool peer_has_ended_ = false;
  bool discards_arrivals_ = false;  // the socket's other end is closed: arriving bytes are
                                    // discarded
};

}  // namespace primerl
