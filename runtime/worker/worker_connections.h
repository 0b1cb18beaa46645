/// The connections of one worker process, and the CPUs on which its threads may run.
#pragma once

#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/transport/peer_keys.h"
#include "runtime/wire/control_messages.h"
#include "runtime/worker/peer_connections.h"

namespace primerl {

/// Limits for the connections of this plan's processes. A frozen peer is killed after `dead_after`;
/// a peer that is restarted within that time must not be given up earlier.
ConnectionLimits connection_limits(const Plan& plan);

/// Opens the sockets of the process for the peers that connect to it: in `folder`, or on free ports
/// if edges use tcp, or both. Fills `hello` with the addresses, the public key (of --keys, or
/// generated now if any edge uses tcp) and the secret `pass`.
Status open_connections(PeerConnections& connections, const Plan& plan, ProcessId process,
                        const std::string& folder, const PeerKeyFiles& key_files,
                        WorkerHello& hello);

/// Restricts this thread, and all threads that it will start, to these CPUs; none: all CPUs. An
/// Error names CPUs that the machine does not have or does not allow.
Status pin_to_cpus(const std::vector<int32_t>& cpus);

}  // namespace primerl
