#include "runtime/worker/worker_connections.h"

#include <sched.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "runtime/transport/zmq_transport.h"
#include "runtime/wire/timeouts.h"

namespace primerl {

namespace {

/// Whether any connection of the process uses this transport.
bool uses(EdgeTransport transport, const Plan& plan, ProcessId process) {
  for (uint32_t other = 0; other < plan.processes.size(); ++other)
    if (transport_between(plan, process, ProcessId(other)) == transport) return true;
  return false;
}

/// Whether a peer connects to this process by this transport. Of two processes the later one
/// connects to the earlier.
bool accepts_connections_over(EdgeTransport transport, const Plan& plan, ProcessId process) {
  for (uint32_t other = process.value + 1; other < plan.processes.size(); ++other)
    if (transport_between(plan, process, ProcessId(other)) == transport) return true;
  return false;
}

}  // namespace

ConnectionLimits connection_limits(const Plan& plan) {
  ConnectionLimits limits;
  limits.greet_timeout = greet_max(plan.settings.dead_after);
  return limits;
}

Status open_connections(PeerConnections& connections, const Plan& plan, ProcessId process,
                        const std::string& folder, const PeerKeyFiles& key_files,
                        WorkerHello& hello) {
  TransportIdentity identity;
  identity.run = std::filesystem::path(folder).filename().string();
  identity.graph_hash = plan.graph_hash;
  identity.types = std::make_shared<const WireTypes>(plan.catalog->messages);
  identity.process = process;
  identity.name = plan.process(process).name;
  identity.incarnation = hello.incarnation;
  identity.pass = hello.pass = draw_word();
  ZmqOptions options;
  if (accepts_connections_over(EdgeTransport::kIpc, plan, process))
    options.listen.push_back("ipc://" + folder);
  if (accepts_connections_over(EdgeTransport::kTcp, plan, process))
    options.listen.push_back(key_files.tcp_address());
  ASSIGN_OR_RETURN(auto keys, read_peer_keys(key_files, plan, plan.process(process).machine));
  if (keys) {
    hello.public_key = keys->own.public_key;
    connections.admit(keys->allowed);
    options.keys = std::move(keys->own);
    options.allowed = std::move(keys->allowed);
  } else if (uses(EdgeTransport::kTcp, plan, process)) {
    // A key pair for this incarnation, kept only in memory. Peers get the public key through their
    // control channels, and accept no other.
    options.keys = make_key_pair();
    hello.public_key = options.keys->public_key;
  }
  ASSIGN_OR_RETURN(const auto addresses, connections.open([&](TransportReceiver& receiver) {
    return make_zmq_transport(std::move(identity), connection_limits(plan), std::move(options),
                              receiver);
  }));
  for (const PeerAddress& each : addresses) hello.addresses.push_back({each.frames, each.bulk});
  return ok();
}

Status pin_to_cpus(const std::vector<int32_t>& cpus) {
  if (cpus.empty()) return ok();
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ::sched_getaffinity(0, sizeof allowed, &allowed);
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const int32_t cpu : cpus) {
    if (cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &allowed)) {
      std::vector<int> have;
      for (int i = 0; i < CPU_SETSIZE; ++i)
        if (CPU_ISSET(i, &allowed)) have.push_back(i);
      return error(Code::kInvalid, "this process may not run on CPU {}", cpu)
          .note(fmt::format("it may use: {}", fmt::join(have, " ")))
          .note("'cpus' of its [place] says which it shall");
    }
    CPU_SET(cpu, &wanted);
  }
  if (::sched_setaffinity(0, sizeof wanted, &wanted) != 0)
    return error(Code::kIo, "choosing the CPUs of a process: {}", std::strerror(errno));
  return ok();
}

}  // namespace primerl
