/// AgentClient: the control plane's connection to one agent. It asks the agent to prepare a run and
/// to start workers on its machine, and receives how the workers end.
///
///   open -> wait_for_greeting -> prepare -> launch ... -> destructor (LeaveRun)
///
/// The client's own I/O thread owns the connection and the channels. The methods are called from
/// one other thread. launch() returns a WorkerProcess like that of a local process; it must be
/// destroyed before the client. A client that loses its agent does not reconnect: every channel
/// ends, and fault() says why. It never declares a process dead. Only the agent can, when the next
/// start asks it.
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
  /// Kills the workers that it launched and that still run, and leaves the run.
  virtual ~AgentClient() = default;

  /// Waits until both sides have exchanged their greetings and agree. `is_patient`: keep trying
  /// while no agent answers. An Error names the agent and how the connection failed; kCancelled
  /// when `is_cancelled` returns true.
  virtual Status wait_for_greeting(Duration timeout, bool is_patient,
                                   const std::function<bool()>& is_cancelled) = 0;
  /// The number that must be in the run folder before prepare(), in the file challenge_file().
  virtual uint64_t challenge() const = 0;
  virtual Status prepare(PrepareRun order, Duration timeout,
                         const std::function<bool()>& is_cancelled) = 0;
  /// `options.program` is ignored: the agent starts the worker program of its machine.
  virtual Result<std::unique_ptr<WorkerProcess>> launch(const LaunchOptions& options,
                                                        std::shared_ptr<ControlInbox> inbox) = 0;
  /// Why the connection to the agent was lost; none while it is connected.
  virtual std::optional<Error> fault() const = 0;
  /// Why the agent asks the run to end; none if it does not ask.
  virtual std::optional<std::string> leaving() const = 0;
};

}  // namespace primerl
