/// What a ZeroMQ transport may listen on and connect to. Plain functions; any thread.
#pragma once

#include "runtime/transport/zmq_transport.h"

namespace primerl {

/// Whether it fits into a greeting.
Status check_identity(const TransportIdentity& identity);

/// What to bind for one entry of `options.listen`, made safe: an ipc folder is there, ours alone,
/// and short enough.
Result<PeerAddress> listen_address(const std::string& listen, const TransportIdentity& identity,
                                   const ZmqOptions& options);

/// Whether something may listen on, or connect to, this address beyond loopback: only with keys and
/// a list of those allowed.
Status check_reach(const std::string& address, bool has_keys, bool has_allowed);

/// Whether this process may connect to, or expect, the peer.
Status check_zmq_peer(const PeerSpec& peer, const ZmqOptions& options);

}  // namespace primerl
