/// Two or more transports in one process, over queues of frames: the whole protocol of
/// peer_connection.h without sockets. For tests, and for processes of a plan that share one
/// operating system process.
///
///   auto network = make_memory_network();
///   auto transport = make_memory_transport(network, identity, limits, receiver);
///   transport->add_peer({..., .address = memory_address(ProcessId(0), 1)});
///
/// Each transport has one I/O thread. The network can be cut: frames in transit and frames sent
/// meanwhile are lost.
#pragma once

#include <memory>

#include "runtime/transport/transport.h"

namespace primerl {

class MemoryNetwork {
 public:
  virtual ~MemoryNetwork() = default;
  /// Drops all frames between the two, in both directions, until heal(). Any thread.
  virtual void cut(ProcessId one, ProcessId other) = 0;
  virtual void reconnect(ProcessId one, ProcessId other) = 0;
};

std::shared_ptr<MemoryNetwork> make_memory_network();

/// "memory://2.1": process and incarnation.
PeerAddress memory_address(ProcessId process, uint32_t incarnation);

/// `receiver` must stay valid while the transport exists. One transport per process and incarnation
/// on a network.
std::unique_ptr<Transport> make_memory_transport(std::shared_ptr<MemoryNetwork> network,
                                                 TransportIdentity identity,
                                                 ConnectionLimits limits,
                                                 TransportReceiver& receiver);

}  // namespace primerl
