/// StatusStore: what the control plane knows of its run just now, for whoever asks from outside:
/// /metrics, /status and `ps`. The session writes what it hears, the HTTP server's thread takes a
/// picture; neither waits for the other longer than a few pointers take to copy.
///
/// Thread-safe. Reads no clock: the caller says when.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/exec/executor.h"
#include "runtime/exec/wiring.h"
#include "runtime/monitor/metrics_log.h"
#include "runtime/wire/control_messages.h"

namespace primerl {

enum class ProcessState {
  kStarting,  // launched, has not reported yet
  kRunning,
  kRestarting,  // died; its next incarnation comes
  kEnded,
};
std::string_view to_string(ProcessState state);  // "starting", "running", "restarting", "ended"

/// One process of the plan, in its newest incarnation.
struct ProcessPicture {
  ProcessState state = ProcessState::kStarting;
  uint32_t incarnation = 0;
  uint32_t num_restarts = 0;  // since the command began
  int64_t pid = 0;
  std::shared_ptr<const Heartbeat> beat;  // the newest; null: none yet
  Time beat_at;
};

struct TenantPicture {
  std::shared_ptr<const StepFacts> newest;  // null: no step yet
  Time step_at;
};

struct RunSnapshot {
  std::string phase;  // "starting", "draining", ...; empty while it trains
  Time began;
  std::vector<ProcessPicture> processes;  // by ProcessId
  std::vector<TenantPicture> tenants;     // by slot
};

/// Constant facts of the run that are not in its plan.
struct RunFacts {
  std::string run_id;
  std::string version;  // of the program
  std::string folder;
};

/// The report over all processes, from what each said last.
StallReport stall_report_of(const Plan& plan, const Wiring& wiring, const RunSnapshot& picture);

class StatusStore {
 public:
  /// `before`: of the start before in the same command, whose counts go on; null: none.
  StatusStore(std::shared_ptr<const Plan> plan, Time now, const StatusStore* before = nullptr);

  // The session's side.
  void set_facts(RunFacts facts);
  void set_phase(const std::string& phase);
  void process_started(ProcessId process, uint32_t incarnation, int64_t pid);
  /// A heartbeat or the last word; other messages change nothing.
  void process_said(ProcessId process, const Payload& message, Time now);
  void process_gone(ProcessId process, bool comes_back);
  void step_taken(TenantSlot tenant, const StepFacts& facts, Time now);

  // Anyone's.
  RunSnapshot picture() const;
  RunFacts facts() const;
  const Plan& plan() const { return *plan_; }
  std::shared_ptr<const Wiring> wiring() const;
  /// Who waits for whom, over all processes.
  StallReport stall_report() const { return stall_report_of(*plan_, *wiring(), picture()); }

 private:
  const std::shared_ptr<const Plan> plan_;
  mutable std::mutex mutex_;  // guards what follows
  RunSnapshot picture_;
  RunFacts facts_;
  mutable std::shared_ptr<const Wiring> wiring_;  // made when first asked for
};

/// Nobody has got on for `still_for` in any process, and somebody waits.
bool is_still(const RunSnapshot& picture, Duration still_for);

/// Everything as Prometheus reads it, and as one JSON value for `ps` and for programs.
std::string metrics_text(const Plan& plan, const RunFacts& facts, const RunSnapshot& picture,
                         Time now);
Json status_json(const Plan& plan, const Wiring& wiring, const RunFacts& facts,
                 const RunSnapshot& picture, Time now);

}  // namespace primerl
