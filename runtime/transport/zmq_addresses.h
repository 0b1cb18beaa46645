/// What a ZeroMQ transport may listen on and connect to. Plain functions; any thread.
#pragma once

#include "runtime/transport/zmq_transport.h"

namespace primerl {

/// Whether its strings fit into a greeting.
Status check_identity(const TransportIdentity& identity);

/// The addresses to bind for one entry of `options.listen`, made safe: an ipc folder exists, is
/// private, and its path is short enough.
Result<PeerAddress> listen_address(const std::string& listen, const TransportIdentity& identity,
                                   const ZmqOptions& options);

/// An address beyond loopback may be listened on, or connected to, only with keys and a list of
/// allowed keys.
Status check_reach(const std::string& address, bool has_keys, bool has_allowed);

/// Whether this process may connect to, or expect, the peer.
Status check_zmq_peer(const PeerSpec& peer, const ZmqOptions& options);

}  // namespace primerl
