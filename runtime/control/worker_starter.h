/// WorkerStarter: what a RunMonitor needs to start the workers of a run, and what it must know of
/// the agents that start some of them. RunLauncher starts processes; tests start none.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "runtime/control/launch.h"

namespace primerl {

class WorkerStarter {
 public:
  virtual ~WorkerStarter() = default;
  /// Starts one incarnation of a process of the plan. `follows_record`: it first repeats its
  /// record.
  virtual Result<std::unique_ptr<WorkerProcess>> launch(ProcessId process, uint32_t incarnation,
                                                        bool follows_record) = 0;
  /// Why the connection to an agent was lost; none while all are connected.
  virtual std::optional<Error> agent_fault() const = 0;
  /// Why an agent asks the run to end; none while no agent does.
  virtual std::optional<std::string> agent_leaving() const = 0;
};

}  // namespace primerl
