/// The connections of one worker process, and the CPUs on which its threads may run.
#pragma once

#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/transport/peer_keys.h"
#include "runtime/wire/control_messages.h"
#include "runtime/worker/peer_connections.h"

namespace primerl {

/// What connections of this plan's processes may take. A peer that is frozen has `dead_after`
/// before it is killed: one that is started again in that time must not give up on it earlier.
ConnectionLimits connection_limits(const Plan& plan);

/// Opens the sockets of the process for the peers that connect to it: in `folder`, on free ports
/// where edges travel by tcp, or both. Fills `hello` with the addresses, the public key (of --keys,
/// or generated now if anything travels by tcp) and the pass.
Status open_connections(PeerConnections& connections, const Plan& plan, ProcessId process,
                        const std::string& folder, const PeerKeyFiles& key_files,
                        WorkerHello& hello);

/// This thread and all that it will start run on these CPUs; none: on all. An Error names those
/// that the machine does not have or does not allow.
Status pin_to_cpus(const std::vector<int32_t>& cpus);

}  // namespace primerl
