/// The links of one worker process, and where its threads may run.
#pragma once

#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/transport/peer_keys.h"
#include "runtime/wire/control_messages.h"
#include "runtime/worker/peer_connections.h"

namespace primerl {

/// Opens the sockets of the process that `hello` is of, for the peers that connect to it: in
/// `folder`, on free ports where their edges travel by tcp, or both. Its hello then says where
/// peers reach it, by which key (of --keys, or drawn now where something travels by tcp), and by
/// which pass.
Status open_connections(PeerConnections& links, const Plan& plan, ProcessId process,
                        const std::string& folder, const PeerKeyFiles& key_files,
                        WorkerHello& hello);

/// This thread and all that it will start run on these CPUs; none: on all. An Error names those the
/// machine does not have or does not give.
Status pin_to_cpus(const std::vector<int32_t>& cpus);

}  // namespace primerl
