/// StatusStore: the current state of a run as the control plane knows it, for /metrics, /status and
/// `ps`. The session writes what the workers report, and the HTTP server's thread takes a snapshot.
/// Neither blocks the other for longer than it takes to copy a few pointers.
///
/// Thread-safe. Reads no clock: the caller passes the time.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/plan.h"
#include "runtime/exec/executor.h"
#include "runtime/exec/wiring.h"
#include "runtime/monitor/metrics_log.h"
#include "runtime/wire/control_messages.h"

namespace primerl {

inline constexpr double kNanosecond = 1e-9;  // in seconds
/// Seconds from `then` to `now`, at least 0.
inline double age(Time now, Time then) { return std::max(0.0, (now - then).to_seconds()); }

enum class ProcessState {
  kStarting,  // launched, has not reported yet
  kRunning,
  kRestarting,  // died; its next incarnation will be started
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

/// The tenant's share of the tokens that engines and learners computed for all tenants, 0 to 1,
/// over the last kServedWindow. None if no tokens were computed.
struct ServedParts {
  std::optional<double> engine, learner;
  double tokens_per_second = 0;  // that engines computed for the tenant
};
inline constexpr Duration kServedWindow = Duration::seconds(60);

struct TenantPicture {
  std::string name;                         // in files and labels; "": the slot is free
  std::string state;                        // of a served run: "starting", "training", ...; else ""
  int64_t max_steps = 0;                    // 0: a client trains it, without an end
  double share = 0;                         // promised
  std::shared_ptr<const StepFacts> newest;  // null: no step yet
  Time step_at;
  std::string why_set_aside;  // why it failed; empty: it did not
  ServedParts served;
  std::vector<AlarmChange> alarms;  // that are raised
};

/// Tokens computed for each tenant since the command began.
struct ServedTokens {
  Time at;
  std::vector<double> engine, learner;  // by slot
};

/// A tenant of a run that is served.
struct ServedTenant {
  TenantSlot slot;    // none: it has ended or failed
  std::string name;   // in files and labels (tenancy_name())
  std::string state;  // "admitted", "starting", ...
  std::string why;    // why it failed
  int64_t max_steps = 0;
  double share = 0;
};
/// Most tenants that have left a served run and are still shown.
inline constexpr size_t kLeftTenantsMax = 32;

/// A person's `pause` of engines.
struct HoldPicture {
  std::string owner;
  TenantSlot tenant;  // tenant of the engines; none: all engines
  Time until;         // its lease ends
};

struct RunSnapshot {
  std::string phase;  // "starting", "draining", ...; empty while it trains
  Time began;
  std::vector<ProcessPicture> processes;  // by ProcessId
  std::vector<TenantPicture> tenants;     // by slot
  std::vector<TenantPicture> left;        // of a served run: tenants that ended or failed, by name
  std::vector<HoldPicture> holds;         // pauses that this start was asked for and that are still
                                          // valid
};

/// Constant facts of the run that are not in its plan.
struct RunFacts {
  std::string run_id;
  std::string version;  // of the program
  std::string folder;
};

/// The stall report over all processes, from the newest heartbeat of each.
StallReport stall_report_of(const Plan& plan, const Wiring& wiring, const RunSnapshot& picture);

class StatusStore {
 public:
  /// `before`: the store of the last start in the same command, whose counts continue; null: none.
  StatusStore(std::shared_ptr<const Plan> plan, Time now, const StatusStore* before = nullptr);

  // For the session.
  void set_facts(RunFacts facts);
  void set_phase(const std::string& phase);
  void set_holds(std::vector<HoldPicture> holds);
  void process_started(ProcessId process, uint32_t incarnation, int64_t pid);
  /// A Heartbeat or RunEnded; other messages are ignored.
  void process_said(ProcessId process, const Payload& message, Time now);
  void process_gone(ProcessId process, bool comes_back);
  void step_taken(TenantSlot tenant, const StepFacts& facts, Time now);
  void set_alarms(TenantSlot tenant, std::vector<AlarmChange> raised);
  void set_aside(const SetAside& tenants);
  /// The tenants of a run that is served, by name. The steps and shares of a slot begin anew with
  /// its next tenant. Of those that have left, the first kLeftTenantsMax are shown.
  void serve(const std::vector<ServedTenant>& tenants);

  // Called by any thread.
  RunSnapshot picture() const;
  /// One tenant of picture(), also one that has left; none: unknown.
  std::optional<TenantPicture> tenant(std::string_view name) const;
  RunFacts facts() const;
  /// The sum of what all actors have counted under `name` in this start.
  int64_t count_of(std::string_view name) const;
  const Plan& plan() const { return *plan_; }
  std::shared_ptr<const Wiring> wiring() const;
  /// Which groups wait for which, over all processes.
  StallReport stall_report() const { return stall_report_of(*plan_, *wiring(), picture()); }

 private:
  void count_engines(const ProcessPicture& before, const Heartbeat& beat);
  void sample_served(Time now);
  void forget_served(size_t slot);
  ServedParts served_parts(size_t slot) const;

  const std::shared_ptr<const Plan> plan_;
  mutable std::mutex mutex_;  // guards the members below
  RunSnapshot picture_;
  RunFacts facts_;
  ServedTokens served_;
  std::deque<ServedTokens>
      // samples of served_, kSampleEvery apart, the oldest kServedWindow ago
      samples_;
  mutable std::shared_ptr<const Wiring> wiring_;  // made at the first request
};

/// Whether no process made progress for `idle_for` while an input waits.
bool is_stalled_for(const RunSnapshot& picture, Duration idle_for);

/// The whole state as Prometheus text, and as one JSON value for `ps` and other programs.
std::string metrics_text(const Plan& plan, const RunFacts& facts, const RunSnapshot& picture,
                         Time now);
Json status_json(const Plan& plan, const Wiring& wiring, const RunFacts& facts,
                 const RunSnapshot& picture, Time now);

}  // namespace primerl
