/// RunHosts: the agents of the machines that one start of a run uses. It connects to them, prepares
/// them and asks them to start workers.
///
/// Every start connects again. The agents then kill and reap what is left of the last start, so
/// processes of two starts never run at the same time. Destroyed after every worker that it
/// launched. Only the session's thread uses it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/control/agent_client.h"
#include "runtime/control/hosts_file.h"

namespace primerl {

/// The name that an agent's allow-list gives to the control plane.
inline constexpr const char* kControlName = "control";

/// Settings of one command, equal for all its starts.
struct MachineSetup {
  std::vector<HostEntry> hosts;  // those that the graph uses
  std::optional<KeyPair> keys;   // of this machine
};

class RunHosts {
 public:
  struct Start {
    const Plan* plan = nullptr;
    std::string run_id;
    uint32_t incarnation = 1;
    std::filesystem::path folder;
    std::string socket_folder;  // name of the folder of sockets
    bool is_again = false;      // the run is resumed: wait for an agent that does not answer yet
    uint64_t types_hash = 0;
    std::function<bool()> is_cancelled;
  };

  /// Connects to all agents, or returns the first error with the name of its host.
  static Result<std::unique_ptr<RunHosts>> connect(const MachineSetup& setup, const Start& start);

  Result<std::unique_ptr<WorkerProcess>> launch(const std::string& host,
                                                const LaunchOptions& options,
                                                std::shared_ptr<ControlInbox> inbox);
  /// Why the connection to an agent was lost; none while all are connected.
  std::optional<Error> fault() const;
  /// Why an agent asks the run to end.
  std::optional<std::string> leaving() const;

 private:
  Status prepare(const MachineSetup& setup, const Start& start);

  std::map<std::string, std::unique_ptr<AgentClient>> agents_;  // by host
};

/// Checks that the hosts file and the flags of the run agree, before anything is started.
Status check_host_setup(const MachineSetup& setup, const Plan& plan, const std::string& listen);

}  // namespace primerl
