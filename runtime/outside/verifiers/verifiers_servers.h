/// The Outside that asks verifiers servers over ZeroMQ: two sockets for each server, one I/O
/// thread, and the processes of the servers that it starts (docs/design/verifiers.md).
///
/// It serves the pools of kind kVerifiers. A `task` call goes to the pool's process of
/// verifiers_server.py, a `run` call to a server. A run whose server dies or falls silent is
/// answered kLost at once, and so is one with an attempt above 0: its salt was used before.
/// forget() cancels the run of a session, which is then answered kFailed.
///
/// Threads: those of Outside.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "graph/outside.h"

namespace primerl {

struct VerifiersServersSetup {
  OutsideSpec spec;                           // all pools: OutsideCall::pool counts in it
  std::function<void(std::string_view)> log;  // receives lines for a person; may be null
};

std::shared_ptr<Outside> make_verifiers_servers(VerifiersServersSetup setup);

}  // namespace primerl
