/// Checks the addresses that a ZeroMQ transport listens on and connects to. Plain functions; any
/// thread.
#pragma once

#include "runtime/transport/zmq_transport.h"

namespace primerl {

/// Checks that the identity's strings fit into a greeting.
Status check_identity(const TransportIdentity& identity);

/// The addresses to bind for one entry of `options.listen`. An ipc folder is created, checked to be
/// private, and its path is short enough.
Result<PeerAddress> listen_address(const std::string& listen, const TransportIdentity& identity,
                                   const ZmqOptions& options);

/// Checks that an address beyond loopback has keys and a list of allowed keys.
Status check_reach(const std::string& address, bool has_keys, bool has_allowed);

/// Checks that this process may connect to the peer, or expect it.
Status check_zmq_peer(const PeerSpec& peer, const ZmqOptions& options);

}  // namespace primerl
