/// RunLauncher: starts the processes of one start of a run. It makes the folder of their sockets,
/// connects to the agents of other machines, and makes the command line of each worker.
///
///   open_sockets() -> connect_agents() -> launch(), for each incarnation of each process
///
/// Agents are connected before any worker starts, because they kill what is left of the last start.
///
/// Owned by the RunSession. Destroy it after every process that it started, because it owns their
/// sockets and agents. One thread, which must live as long as the workers (launch.h).
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/control/run_hosts.h"
#include "runtime/control/run_preparation.h"
#include "runtime/control/run_start.h"
#include "runtime/control/worker_starter.h"
#include "runtime/store/run_folder.h"
#include "runtime/store/socket_folder.h"
#include "runtime/transport/peer_keys.h"

namespace primerl {

class RunLauncher final : public WorkerStarter {
 public:
  /// References must stay valid while the launcher exists. `inbox` gets the messages of all
  /// workers.
  RunLauncher(const Plan& plan, const RunFolder& folder, const ResumeChoice& resume,
              const PeerKeyFiles& peer_keys, const RunStart& start,
              std::shared_ptr<ControlInbox> inbox);

  /// Makes the folder of sockets, if the run has several processes. Returns lines for a person: why
  /// it is not in the usual place, and which leftovers were removed.
  Result<std::vector<std::string>> open_sockets();
  /// `is_again`: the run is resumed after a death, so wait for an agent that does not answer yet.
  Status connect_agents(const MachineSetup& setup, bool is_again,
                        std::function<bool()> is_cancelled);
  /// Empty for a run of one process.
  std::string socket_folder() const;

  // WorkerStarter
  Result<std::unique_ptr<WorkerProcess>> launch(ProcessId process, uint32_t incarnation,
                                                bool follows_record) override;
  std::optional<Error> agent_fault() const override;
  std::optional<std::string> agent_leaving() const override;

  /// Everything that a worker is started with, except what depends on its machine: the program,
  /// sockets and keys.
  LaunchOptions options_of(ProcessId process, uint32_t incarnation, bool follows_record) const;

 private:
  std::vector<std::string> checkpoints_of(uint32_t incarnation) const;

  const Plan& plan_;
  const RunFolder& folder_;
  const ResumeChoice& resume_;
  const PeerKeyFiles& peer_keys_;
  const RunStart start_;
  const std::shared_ptr<ControlInbox> inbox_;
  std::unique_ptr<SocketFolder> sockets_;  // null for a run of one process
  std::unique_ptr<RunHosts> hosts_;        // null without other machines
};

}  // namespace primerl
