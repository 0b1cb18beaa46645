/// AgentRun: the processes of one run on this machine. It starts them, forwards their control
/// channels, and watches and reaps them for the control plane of another machine.
///
/// Workers are children of the thread that owns the object and die with that thread. Only this
/// object declares them dead: it sends WorkerExited after it has reaped them. Not thread-safe.
#pragma once

#include <poll.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/control/launch.h"
#include "runtime/transport/tunnel.h"
#include "runtime/wire/agent_messages.h"

namespace primerl {

/// Settings that are equal for all workers of the agent.
struct AgentSite {
  std::filesystem::path worker;        // primerl-worker
  std::filesystem::path sockets;       // the agent's own folder, mode 0700
  std::vector<std::string> key_words;  // --keys FILE --allow FILE, or none
};

class AgentRun {
 public:
  using Send = std::function<void(Payload)>;
  static constexpr size_t kWorkersMax = 1024;

  AgentRun(PrepareRun order, AgentSite site, Send send);
  /// Kills and reaps the remaining workers, and removes the run's sockets.
  ~AgentRun();
  AgentRun(const AgentRun&) = delete;
  AgentRun& operator=(const AgentRun&) = delete;

  const PrepareRun& order() const { return order_; }
  /// Workers that have not been reaped.
  size_t num_workers() const;

  /// Handles LaunchWorker, KillWorker and the messages of channels. An Error: the peer broke the
  /// protocol.
  Status handle(const Payload& message);
  /// Forwards the bytes that can be forwarded and reaps processes that have ended. `has_room`:
  /// whether more may be sent.
  void turn(const std::function<bool()>& has_room);
  /// Adds the descriptors that turn() waits for.
  void poll_for(std::vector<pollfd>& descriptors, bool has_room) const;

 private:
  struct Worker {
    std::string process;
    std::unique_ptr<ChildProcess> child;
    std::unique_ptr<Tunnel> tunnel;
    bool has_exited = false;
  };

  Status launch(const LaunchWorker& order);
  Result<Worker> start(const LaunchWorker& order) const;
  Result<Worker*> find(uint32_t channel);
  void reap(uint32_t channel, Worker& worker);

  const PrepareRun order_;
  const AgentSite site_;
  const Send send_;
  std::map<uint32_t, Worker> workers_;  // by channel; an entry stays until its channel has ended
  uint32_t newest_channel_ = 0;
};

}  // namespace primerl
