/// Executor: runs the groups of one process of a Plan. Two exist: CafExecutor (real threads and
/// time) and VirtualExecutor (one thread, seeded choice, virtual clock). Both drive the same
/// ActorGroup class (actor_group.h), so an actor cannot tell them apart.
///
/// Order: make -> start() -> [request_drain() | request_stop()] -> wait() -> destroy. All methods
/// but make/start/destroy may be called from any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/base/services.h"
#include "graph/message_type.h"
#include "graph/plan.h"
#include "runtime/wire/process_report.h"

namespace primerl {

/// Makes the resource at `index` of plan.resources. Called on the thread of the group that owns it
/// (a weight channel or tokenizer, which groups share, on the starting thread).
using ResourceFactory =
    std::function<Result<std::unique_ptr<Resource>>(const Plan& plan, int32_t index)>;

/// What the process around the executor provides. Thread-safe. Never blocks on a slow observer.
class HostServices {
 public:
  virtual ~HostServices() = default;
  virtual RunFiles& files() = 0;  // called from one group at a time per file
  virtual void publish_metrics(TenantSlot tenant, int64_t step, const MetricValues& values) = 0;
  virtual void log(LogLevel level, std::string_view instance, std::string_view text) = 0;
  virtual const ResumePoint* resume_point(TenantSlot tenant) const = 0;
};

/// One node that cannot go on, for the stall report.
struct StalledGroup {
  std::string process;  // "" when the run has only one process
  std::string name;
  uint64_t num_waiting = 0;  // inputs in its inbox
  std::string full_edges;    // outgoing forward edges that are full
  std::string paused_edges;  // arriving edges whose input its actor has paused
  Duration oldest;           // age of the oldest waiting input
  std::string handling;      // instance and message type in a handler now, empty if none
};

struct StallReport {
  std::vector<StalledGroup> groups;
  std::vector<std::string> wait_cycle;  // group names, first waits for second, ...; empty when none
  std::string text() const;             // the table a person reads
};

/// A snapshot for the status line and heartbeats.
struct RunStatus {
  uint64_t num_steps = 0;  // group steps so far: rises while the run makes progress
  bool is_draining = false;
  bool is_idle = false;           // draining, and no group here has anything left to do
  Duration still_for;             // since the last step or progress() call here
  bool is_waiting = false;        // an input waits here, or a handler runs
  bool has_alarm = false;         // a timer is set here
  std::vector<EdgeLedger> edges;  // index = EdgeId
};

enum class RunEnd { kFinished, kInterrupted, kFailed, kStalled };

struct RunOutcome {
  RunEnd end = RunEnd::kFinished;
  Status status;                   // why, when kFailed or kStalled
  std::vector<EdgeLedger> ledger;  // index = EdgeId; balances at a clean end
  StallReport stall;               // filled when kStalled
};

/// A message from outside of the graph, which a person sends: every actor that it is meant for gets
/// it at the first input of its type. Small, without Blobs. It is a step like any other, so it is
/// recorded, and a replay repeats it.
struct ActorCommand {
  uint64_t number = 0;  // of whoever sends it, for the answers
  TenantSlot tenant;    // none: for all actors with such an input; else for those of her alone
  Payload message;
};

/// What one actor made of a command.
struct CommandAnswer {
  uint64_t number = 0;
  InstanceId instance;
  Status status;
};

/// Commands that may wait for one actor group: in its inbox, and as many on their way there.
inline constexpr size_t kCommandsMax = 64;

/// The index of the input at which `instance` takes the command; none: it is not meant for it.
std::optional<uint32_t> input_for(const Plan& plan, InstanceId instance, const MessageType& type,
                                  TenantSlot tenant);

/// Whose limit of stuck handlers a group of a handler that runs apart counts for: none where only
/// one tenant shares the run, or all share the group.
TenantSlot counted_tenant(const Plan& plan, GroupId group);

/// Tenants that failed while others share the run, and why.
using SetAside = std::map<TenantSlot, std::string>;
/// The error of a run that ended well for the other tenants. `tenants` is not empty.
Error why_set_aside(const Plan& plan, const SetAside& tenants);

class Executor {
 public:
  virtual ~Executor() = default;
  /// Creates every group: resources, actors, start(). If one fails, the others are undone and its
  /// Error is returned.
  virtual Status start() = 0;
  /// Drains the run: sources stop, what is in flight ends, drain_max is the limit. Idempotent.
  virtual void request_drain() = 0;
  /// Stops the run now: handlers are told through progress(); no more messages are handed over.
  virtual void request_stop() = 0;
  /// Returns when the run has ended: all tenants finished and drained, or stopped, failed, stalled.
  virtual RunOutcome wait() = 0;
  virtual RunStatus status() const = 0;
};

}  // namespace primerl
