#include "runtime/control/run_hosts.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "graph/base/files.h"
#include "runtime/program/version.h"
#include "runtime/wire/timeouts.h"

namespace primerl {
namespace {

constexpr Duration kConnectMax = Duration::seconds(10);
// The agent may have to reap an older start first.
constexpr Duration kPrepareMax = Duration::seconds(20);

/// The agent's challenge as a file of this user in the run folder; the destructor removes it.
class ChallengeFile {
 public:
  explicit ChallengeFile(std::filesystem::path file) : file_(std::move(file)) {}
  ChallengeFile(const ChallengeFile&) = delete;
  ChallengeFile& operator=(const ChallengeFile&) = delete;
  ~ChallengeFile() { ::unlink(file_.c_str()); }

  Status write(const std::string& text) const {
    const int fd = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return io_error("making", file_, errno);
    // Synced, so that a shared file system shows it to the other machines.
    const bool is_written =
        ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
        ::fsync(fd) == 0;
    const int fault = errno;
    ::close(fd);
    return is_written ? ok() : Status(io_error("writing", file_, fault));
  }

 private:
  const std::filesystem::path file_;
};

bool has_tcp(const Plan& plan) {
  return std::any_of(plan.edges.begin(), plan.edges.end(),
                     [](const PlanEdge& edge) { return edge.transport == EdgeTransport::kTcp; });
}

}  // namespace

Result<std::unique_ptr<RunHosts>> RunHosts::connect(const MachineSetup& setup, const Start& start) {
  auto hosts = std::make_unique<RunHosts>();
  const Plan& plan = *start.plan;
  const AgentGreeting own = own_greeting(start.types_hash, kProgramVersion);
  for (const HostEntry& host : setup.hosts) {
    AgentAddress address{host.name, host.agent, {}};
    address.keys.own = host.key.empty() ? std::nullopt : setup.keys;
    address.keys.listener_key = host.key;
    ASSIGN_OR_RETURN(hosts->agents_[host.name],
                     AgentClient::open(address, own, plan.settings.dead_after));
  }
  const Duration patience = agent_back_max(plan.settings.dead_after);
  for (const auto& [name, agent] : hosts->agents_)
    RETURN_IF_ERROR(agent->wait_for_greeting(start.is_again ? patience : kConnectMax,
                                             start.is_again, start.is_cancelled));
  RETURN_IF_ERROR(hosts->prepare(setup, start));
  return hosts;
}

Status RunHosts::prepare(const MachineSetup& setup, const Start& start) {
  for (const HostEntry& host : setup.hosts) {
    AgentClient& agent = *agents_.at(host.name);
    const ChallengeFile file(start.folder / challenge_file(agent.challenge()));
    RETURN_IF_ERROR(file.write(challenge_text(agent.challenge())));
    PrepareRun order;
    order.run_id = start.run_id;
    order.graph = start.plan->settings.name;
    order.graph_hash = start.plan->graph_hash;
    order.incarnation = start.incarnation;
    order.host = host.name;
    order.run_folder = start.folder.string();
    order.socket_folder = start.socket_folder;
    // Set only if needed: a worker refuses an address that no peer would connect to.
    if (has_tcp(*start.plan) && is_reachable_from_outside(host.listen)) order.listen = host.listen;
    order.dead_after_ms = start.plan->settings.dead_after.to_milliseconds();
    RETURN_IF_ERROR(agent.prepare(std::move(order), kPrepareMax, start.is_cancelled));
  }
  return ok();
}

Result<std::unique_ptr<WorkerProcess>> RunHosts::launch(const std::string& host,
                                                        const LaunchOptions& options,
                                                        std::shared_ptr<ControlInbox> inbox) {
  return agents_.at(host)->launch(options, std::move(inbox));
}

std::optional<Error> RunHosts::fault() const {
  for (const auto& [name, agent] : agents_)
    if (auto fault = agent->fault()) return fault;
  return std::nullopt;
}

std::optional<std::string> RunHosts::leaving() const {
  for (const auto& [name, agent] : agents_)
    if (const auto why = agent->leaving()) return fmt::format("host '{}': {}", name, *why);
  return std::nullopt;
}

Status check_host_setup(const MachineSetup& setup, const Plan& plan, const std::string& listen) {
  for (const HostEntry& host : setup.hosts)
    if (!host.key.empty() && !setup.keys)
      return error(Code::kInvalid, "host '{}' has a key, this run has none", host.name)
          .note("give both files: --keys FILE --allow FILE");
  const bool is_far =
      std::any_of(setup.hosts.begin(), setup.hosts.end(),
                  [](const HostEntry& host) { return is_reachable_from_outside(host.listen); });
  const bool is_here = std::any_of(plan.processes.begin(), plan.processes.end(),
                                   [](const PlanProcess& one) { return one.machine.empty(); });
  if (is_far && is_here && (listen.empty() || !is_reachable_from_outside(listen)))
    return error(Code::kInvalid,
                 "processes of this machine would listen on 127.0.0.1, where other hosts cannot "
                 "reach them")
        .note("give this machine's address: --listen ADDRESS");
  if (setup.keys)
    for (const PlanProcess& process : plan.processes)
      if (process.name.substr(0, process.name.find('#')) == kControlName)
        return error(Code::kInvalid, "a place cannot be called '{}' in a run with agents",
                     kControlName)
            .note("allow-lists of agents give that name to the control plane");
  return ok();
}

}  // namespace primerl
