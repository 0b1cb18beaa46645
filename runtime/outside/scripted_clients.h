/// The scripted form of an HTTP listener, for rehearsals and simulations: no socket, and clients
/// whose requests follow from their number.
///
/// Each client asks for a few tokens; every fourth repeats the request before it, and every
/// `leaves_every`-th leaves before its reply. Threads: its group's.
#pragma once

#include <memory>

#include "graph/outside.h"
#include "runtime/outside/scripted_runs.h"

namespace primerl {

struct ScriptedClientsOptions {
  uint64_t num_requests = 16;  // of the whole run
  uint64_t leaves_every = 5;   // 0: none
};

/// The replies that the clients have got, for tests.
struct ScriptedClientsCounts {
  uint64_t num_replies = 0;
  uint64_t num_done = 0;  // replies with status 200
};

/// `counts` may be null; otherwise it must stay valid. The requests of runs come after those of the
/// clients; `runs` may be null.
std::shared_ptr<Outside> make_scripted_clients(const ScriptedClientsOptions& options,
                                               ScriptedClientsCounts* counts = nullptr,
                                               std::shared_ptr<ScriptedRequests> runs = nullptr);

}  // namespace primerl
