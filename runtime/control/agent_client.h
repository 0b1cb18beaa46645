/// AgentClient: the control plane's connection to one agent: connects to it, asks it to prepare a
/// run and to start workers on its machine, and receives how they end.
///
///   open -> wait_until_greeted -> prepare -> launch ... -> destructor (LeaveRun)
///
/// One I/O thread of its own owns the connection and the channels; the methods are called from one
/// other thread. launch() returns a WorkerProcess like that of a local process; the client outlives
/// it. A client that has lost its agent does not reconnect: every channel ends, and fault() says
/// why. It never declares a process dead: only the agent can, when the next start asks it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/control/launch.h"
#include "runtime/transport/zmq_frames.h"
#include "runtime/wire/agent_frames.h"

namespace primerl {

struct AgentAddress {
  std::string name;     // of the host, in the hosts file
  std::string address;  // "10.0.0.5:7300"
  FrameKeys keys;
};

class AgentClient {
 public:
  /// Begins to connect. kInvalid: the address needs keys.
  static Result<std::unique_ptr<AgentClient>> open(const AgentAddress& address,
                                                   const AgentGreeting& own, Duration dead_after);
  /// Kills what it has launched and still lives, and leaves the run.
  virtual ~AgentClient() = default;

  /// Waits until both sides have greeted and agree. `is_patient`: keep trying while no agent
  /// answers. An Error names the agent and says what happened to the connection; kCancelled when
  /// `is_cancelled` says so.
  virtual Status wait_until_greeted(Duration timeout, bool is_patient,
                                    const std::function<bool()>& is_cancelled) = 0;
  /// What to write into the run folder before prepare(): challenge_file().
  virtual uint64_t challenge() const = 0;
  virtual Status prepare(PrepareRun order, Duration timeout,
                         const std::function<bool()>& is_cancelled) = 0;
  /// `options.program` is ignored: the agent starts the worker program of its machine.
  virtual Result<std::unique_ptr<WorkerProcess>> launch(const LaunchOptions& options,
                                                        std::shared_ptr<ControlInbox> inbox) = 0;
  /// Why the agent is lost; nothing while it is connected.
  virtual std::optional<Error> fault() const = 0;
  /// Why the agent wants the run to end; nothing while it does not.
  virtual std::optional<std::string> leaving() const = 0;
};

}  // namespace primerl
