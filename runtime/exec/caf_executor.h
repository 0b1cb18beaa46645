/// CafExecutor: runs the hosts of one process on real threads and real time.
///
/// Every host group is one CAF actor: on the pool, or on a thread of its own when it has a compute
/// resource or an own_thread actor. Resources are made, used and destroyed on their host's thread;
/// those that hosts share (weight channel, tokenizer) on the thread that calls start(). An
/// own_thread handler without resources that shows no progress() for its tenant's
/// environment_timeout is abandoned, and its thread replaced, abandoned_max times in a run.
///
/// With a RunGuide every host follows its record first, as fast as the messages allow; when the
/// last one has come to the end, all go live, and the clock of the run goes on from the recorded
/// end.
///
/// The end, in this order: timers stop, every host is told to stop and destroyed on its own thread,
/// the ledger is taken, the actors are let go, the threads joined. A thread that does not come back
/// within drain_max is named in the outcome; what it may still touch is then kept until the process
/// ends, which it should do soon (has_lost_threads).
#pragma once

#include <memory>

#include "runtime/exec/executor.h"
#include "runtime/exec/host.h"
#include "runtime/exec/other_processes.h"
#include "runtime/exec/run_guide.h"

namespace primerl {

struct CafExecutorSetup {
  std::shared_ptr<const Plan> plan;
  ProcessId process{0};
  uint32_t epoch = 1;                    // incarnation of this process
  Surroundings* surroundings = nullptr;  // outlives the executor; called from every host's thread
  ResourceFactory factory;
  DeliveryObserver* observer = nullptr;  // outlives the executor; called from every host's thread
  RunGuide* guide = nullptr;             // of a run taken up again; outlives the executor
  std::function<void()> on_live;         // all hosts have followed it to its end; any thread
  /// Where other processes follow too: all hosts here are at the end, and wait for go_live(). Any
  /// thread. Null: they go live at once.
  std::function<void()> on_followed;
  OtherProcesses* others = nullptr;  // outlives the executor; null: the run is this process
  /// Incarnations (by ProcessId) of the others that differ from `epoch`, or may.
  std::vector<std::pair<uint32_t, uint32_t>> peer_epochs{};
};

class CafExecutor final : public Executor {
 public:
  explicit CafExecutor(CafExecutorSetup setup);
  /// Stops and waits if the run has not ended.
  ~CafExecutor() override;

  /// prepare() and go().
  Status start() override;
  /// Makes every host: resources, actors, start(). What arrives waits. Any failure undoes the rest.
  Status prepare();
  /// All processes are prepared: hosts take inputs.
  void go();
  /// After on_followed: hosts go on by themselves. Any thread, once.
  void go_live();
  /// Whether there is no record (any more) to follow.
  bool is_live() const;
  void request_drain() override;
  void request_stop() override;
  RunOutcome wait() override;
  RunStatus status() const override;

  // In a run of several processes, any thread:
  /// After prepare(): a parcel of a host of `from`, in order per sending host. What that process
  /// may not send is left out: the first of it, or ok.
  Status arrive(ProcessId from, Parcel&& parcel);
  /// A process died: its hosts' neighbours are told, nothing more leaves for it.
  void peer_down(ProcessId process, uint32_t epoch);
  /// It is back as `epoch`. `join` links up with it; what is sent meanwhile waits for that.
  Status peer_up(ProcessId process, uint32_t epoch, const std::function<Status()>& join);
  /// The drain of all processes is over, or the run is: ends it with `end`.
  void finish(RunEnd end);
  StallReport stall_report() const;

  /// What the hosts of this process do and hold; any thread.
  ProcessLoad load() const;
  /// What each host of this process does now; any thread.
  std::vector<HostView> views() const;
  /// After wait(): a handler has not returned. End the process without running destructors.
  bool has_lost_threads() const;

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace primerl
