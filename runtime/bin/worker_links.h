/// The links of one worker process, and where its threads may run.
#pragma once

#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/transport/process_links.h"

namespace primerl {

/// Opens the sockets of a process: in `folder`, or on free loopback ports where an edge of the run
/// travels by tcp. The address is what peers connect to.
Result<LinkAddress> open_links(ProcessLinks& links, const Plan& plan, ProcessId process,
                               uint32_t epoch, const std::string& folder);

/// This thread and all that it will start run on these CPUs; none: on all. An Error names those the
/// machine does not have or does not give.
Status pin_to_cpus(const std::vector<int32_t>& cpus);

}  // namespace primerl
