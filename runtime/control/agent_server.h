/// AgentServer: the agent of one machine. It serves the control plane of one run at a time.
///
///   greeting -> greeting with a challenge -> PrepareRun -> RunPrepared -> ... -> LeaveRun
///
/// The control plane must first prove that it can write the run folder: the agent looks there for
/// the challenge. Until it has found the challenge, an order changes nothing, and answers say
/// nothing about a run that is already served. Everything runs on the thread that calls serve().
/// That thread is the parent of all workers, so they die with it. It never waits for a disk: a
/// RunCheck does that. A run ends at LeaveRun, when its control plane is silent for dead_after,
/// when the connection breaks, or when the same run starts anew. The agent then kills and reaps the
/// run's processes before it answers any other message.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "runtime/control/agent_run.h"
#include "runtime/control/peer_outbox.h"
#include "runtime/control/run_check.h"
#include "runtime/transport/zmq_frames.h"

namespace primerl {

struct AgentSettings {
  std::string listen;  // "tcp://host:port"
  FrameKeys keys;
  AgentSite site;  // `worker` is looked up for each run
  AgentGreeting greeting;
  bool once = false;  // end after the first run
  /// find_worker and check_run are called on a separate thread, possibly for several runs at the
  /// same time.
  std::function<Result<std::filesystem::path>()> find_worker;
  /// Whether this machine can take part in the run. An Error refuses the run.
  std::function<Status(const PrepareRun&)> check_run;
  /// Called after the processes of a run have ended.
  std::function<void()> clean_up;
  std::function<void(const std::string&)> say;
  /// Number of signals so far: the first asks the run to drain, the second kills it.
  std::function<int()> num_signals;
};

class AgentServer {
 public:
  static constexpr size_t kClientsMax = 16;  // beyond it, the oldest client without a run is
                                             // dropped

  static Result<std::unique_ptr<AgentServer>> open(AgentSettings settings);
  ~AgentServer();
  /// The address where it listens, with the port.
  const std::string& address() const { return listener_->address(); }
  /// Serves until a signal or, with `once`, the end of the first run.
  void serve();
  uint64_t num_refused() const { return num_refused_ + listener_->num_refused(); }

 private:
  /// A connection whose greeting was accepted.
  struct Client {
    uint64_t challenge = 0;
    uint64_t number = 0;             // increases
    int num_tries = 0;               // turns of the loop since its outbox was empty
    bool needs_run_dropped = false;  // must receive that its run is over; answers with LeaveRun
    PeerOutbox outbox;
    std::unique_ptr<RunCheck> check;  // of the PrepareRun that it sent; null: none is pending
  };

  void turn();
  void receive_frames();
  void greet(const std::string& from, std::span<const std::byte> frame);
  void obey(const std::string& from, Client& client, const Payload& message);
  void prepare(const std::string& from, Client& client, const PrepareRun& order);
  void end_checks(Time now);
  void answer(const std::string& to, Client& client, RunPrepared prepared, const Status& taken);
  Status take(const std::string& from, const PrepareRun& order, const std::filesystem::path& worker,
              RunPrepared& prepared);
  void tell(const std::string& to, Client& client, Payload message);
  void watch_session(Time now);
  void apply_signals();
  void end_run(std::string why);
  void flush();
  bool is_done() const;

  explicit AgentServer(AgentSettings settings) : settings_(std::move(settings)) {}

  const AgentSettings settings_;
  std::unique_ptr<FrameListener> listener_;
  std::map<std::string, Client> clients_;  // by connection
  uint64_t num_greeted_ = 0;
  const RunCheck::Looks looks_ = std::make_shared<std::atomic<int>>(0);
  std::string session_;                // the connection whose run is served; "": no run
  std::unique_ptr<AgentRun> run_;      // null without a run
  std::optional<std::string> broken_;  // why the session cannot continue
  uint64_t num_refused_ = 0;
  int num_signals_applied_ = 0;
  bool has_served_ = false;
  Time leave_by_;  // the agent ends then even if a client has not answered
};

}  // namespace primerl
