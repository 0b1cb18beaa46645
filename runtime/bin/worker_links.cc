#include "runtime/bin/worker_links.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "actors/messages/catalog.h"
#include "runtime/transport/zmq_transport.h"

namespace primerl {

Result<LinkAddress> open_links(ProcessLinks& links, const Plan& plan, ProcessId process,
                               uint32_t epoch, const std::string& folder) {
  TransportIdentity identity;
  identity.run = std::filesystem::path(folder).filename().string();
  identity.graph_hash = plan.graph_hash;
  identity.types = std::make_shared<const WireTypes>(message_catalog());
  identity.process = process;
  identity.name = plan.process(process).name;
  identity.epoch = epoch;
  const bool is_tcp = std::any_of(plan.edges.begin(), plan.edges.end(), [](const PlanEdge& edge) {
    return edge.transport == EdgeTransport::kTcp;
  });
  ZmqOptions options;
  options.listen = is_tcp ? "tcp://127.0.0.1" : "ipc://" + folder;
  return links.open([&](TransportReceiver& receiver) {
    return make_zmq_transport(std::move(identity), LinkLimits(), std::move(options), receiver);
  });
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
