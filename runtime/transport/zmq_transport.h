/// A Transport over ZeroMQ: ipc on one host, tcp between hosts. docs/design/transport.md explains
/// the choice of its sockets.
///
///   groups -- send() --> outboxes ~eventfd~> [ I/O thread ] == ROUTER, DEALER == peers
///
/// One I/O thread owns every socket: two ROUTERs that peers connect to (frames, bulk), and two
/// DEALERs per peer that this process connects to. A connection without an answer is replaced by
/// one with another routing id. Otherwise an old one that the peer still considers alive could
/// block it.
///
/// Security: an ipc folder is made with mode 0700 and refused when other users could enter it. A
/// tcp address beyond loopback needs keys and a list of allowed keys; otherwise it is refused
/// before it listens. Then every connection is encrypted and authenticated (CURVE), and arriving
/// messages are checked against the process and the tenants of their key.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/transport/keys.h"
#include "runtime/transport/transport.h"

namespace primerl {

struct ZmqOptions {
  /// "ipc:///absolute/folder", "tcp://127.0.0.1", which chooses free ports, or both; empty:
  /// connects only. The first is address().
  std::vector<std::string> listen;
  std::optional<KeyPair> keys;
  std::vector<AllowedKey> allowed;
  /// The I/O thread polls this long before it sleeps. That saves a wake-up when messages answer
  /// each other, and costs this much CPU time after each burst.
  Duration spin = Duration::microseconds(20);
  /// A connection without an answer is replaced after this time.
  Duration reopen_after = Duration::seconds(3);
};

/// Listens before it returns. kInvalid: an address or folder that is refused; kIo: the error of the
/// system, e.g. a port in use. `receiver` must stay valid while the transport exists.
Result<std::unique_ptr<Transport>> make_zmq_transport(TransportIdentity identity,
                                                      ConnectionLimits limits, ZmqOptions options,
                                                      TransportReceiver& receiver);

/// Closes the sockets of all connections that this process made, with the frames in them, and opens
/// new ones. For tests of broken connections. CHECKs that the transport was made by
/// make_zmq_transport().
void break_connections(Transport& transport);

/// "127.0.0.1", "localhost", "[::1]" and the like in a "tcp://..." address.
bool is_loopback(std::string_view address);

}  // namespace primerl
