/// DealerSockets: sockets to servers, as ServerLink uses them. ZeroMQ (zmq_client.h), or a
/// fake.
///
/// A socket sends only while its connection has completed its handshake, so nothing waits for a
/// server that is not up yet. Lives on one thread; no call blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

class DealerSockets {
 public:
  enum class Event : uint8_t { kConnected, kDisconnected };

  virtual ~DealerSockets() = default;
  /// The number of a new socket, which connects to the address, and again whenever it breaks. A
  /// message beyond `frame_bytes_max` breaks the connection.
  virtual Result<uint64_t> open(const std::string& address, int64_t frame_bytes_max) = 0;
  /// Drops what was not sent or read.
  virtual void close(uint64_t socket) = 0;
  /// False: there is no connection now; nothing was sent.
  virtual bool send(uint64_t socket, const std::vector<std::string>& frames) = 0;
  /// The next message; none: not now.
  virtual std::optional<std::vector<std::string>> receive(uint64_t socket) = 0;
  /// The next change of the connection; none: nothing new.
  virtual std::optional<Event> next_event(uint64_t socket) = 0;
};

}  // namespace primerl
