/// Executor: runs the groups of one process of a Plan. There are two: CafExecutor (real threads and
/// time) and VirtualExecutor (one thread, seeded choice, virtual clock). Both drive the same
/// ActorGroup class (actor_group.h), so an actor cannot see the difference.
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
#include "graph/tenant_change.h"
#include "runtime/wire/process_report.h"

namespace primerl {

/// Makes the resource at `index` of plan.resources. Called on the thread of the group that owns it.
/// A shared resource (weight channel, tokenizer) is made on the thread that calls start().
using ResourceFactory =
    std::function<Result<std::shared_ptr<Resource>>(const Plan& plan, int32_t index)>;

/// Makes the tenant that joins a slot (TenantChange::kJoin). Called on any thread.
using TenantMaker =
    std::function<Result<std::shared_ptr<const Tenant>>(const Plan& plan, const TenantChange&)>;

/// Tells the resource at `index` of plan.resources that a tenant joins or leaves. Called on the
/// thread of a group that uses the resource; for a shared one, by the groups of the slot.
using TenantResources = std::function<Status(const Plan& plan, int32_t index, Resource& resource,
                                             const Tenant& tenant, TenantChange::Kind kind)>;

/// Reports of an executor about tenants that come and go. Called on any thread, and not under a
/// lock of the executor. An empty function hears nothing.
struct ExecutorEvents {
  /// All groups here that are concerned have made the change. Error: one of them could not.
  std::function<void(const TenantChange& change, const Status& status)> tenant_changed{};
  /// After drain_tenant(): every instance of the slot here is idle, and no message of the slot is
  /// on its way between groups here. Once per drain_tenant().
  std::function<void(TenantSlot slot)> tenant_drained{};
  /// In a hosted run: the tenant has made its last step. `tenancy`: the use of the slot, or
  /// kTenancyUnknown.
  std::function<void(TenantSlot slot, uint32_t tenancy)> tenant_finished{};
  /// In a hosted run: the tenant failed, for the reason `why`, and its actors drain. Once or more.
  std::function<void(TenantSlot slot, const std::string& why)> tenant_failed{};
};

/// The maximum number of changes of tenants that wait for the groups of one process.
inline constexpr size_t kTenantChangesMax = 256;

/// Services of the process around the executor. Thread-safe. Must never block on a slow observer.
class ProcessServices {
 public:
  virtual ~ProcessServices() = default;
  virtual RunFiles& files() = 0;  // one file is used by one group at a time
  virtual void publish_metrics(TenantSlot tenant, int64_t step, const MetricValues& values) = 0;
  virtual void log(LogLevel level, std::string_view instance, std::string_view text) = 0;
  virtual const ResumePoint* resume_point(TenantSlot tenant) const = 0;
  /// The checkpoint from which a tenant that joins resumes; null: it begins anew. Valid as long as
  /// this object.
  virtual const ResumePoint* joined_point(const Tenant& tenant) const {
    (void)tenant;
    return nullptr;
  }
};

/// One node that is blocked, for the stall report.
struct StalledGroup {
  std::string process;  // "" when the run has only one process
  std::string name;
  uint64_t num_waiting = 0;  // inputs in its inbox
  std::string full_edges;    // outgoing forward edges that are full
  std::string paused_edges;  // incoming edges whose input the actor has paused
  Duration oldest;           // age of the oldest waiting input
  std::string handling;      // instance and message type of the running handler; empty if none runs
};

struct StallReport {
  std::vector<StalledGroup> groups;
  std::vector<std::string> wait_cycle;  // names of groups: the first waits for the second, and so
                                        // on; empty without a cycle
  std::string text() const;             // the table for the console
};

/// A snapshot for the status line and heartbeats.
struct RunStatus {
  uint64_t num_steps = 0;  // group steps so far; it rises while the run makes progress
  bool is_draining = false;
  bool is_idle = false;           // the run drains and no group here has anything left to do
  Duration idle_for;              // since the last step or progress() call here
  bool is_waiting = false;        // an input waits here, or a handler runs
  bool has_alarm = false;         // a timer is set here
  std::vector<EdgeLedger> edges;  // index = EdgeId
};

enum class RunEnd { kFinished, kInterrupted, kFailed, kStalled };

struct RunOutcome {
  RunEnd end = RunEnd::kFinished;
  Status status;                   // the reason, for kFailed and kStalled
  std::vector<EdgeLedger> ledger;  // index = EdgeId; balances at a clean end
  StallReport stall;               // for kStalled
};

/// A message from a person to actors of a run. Every addressed actor gets it at its first input of
/// that type. It must be small and have no Blobs. Handling it is a step, so it is recorded and a
/// replay repeats it.
struct ActorCommand {
  uint64_t number = 0;  // chosen by the sender; answers repeat it
  TenantSlot tenant;    // none: all actors with such an input; else only the actors of this tenant
  Payload message;
};

/// The answer of one actor to a command.
struct CommandAnswer {
  uint64_t number = 0;
  InstanceId instance;
  Status status;
};

/// The maximum number of commands that wait in one actor group's inbox. As many more may be on
/// their way to the inbox.
inline constexpr size_t kCommandsMax = 64;

/// The index of the input at which `instance` accepts the command; none: the command does not
/// address it. An instance of a free slot has one too, but gets no command and answers none.
std::optional<uint32_t> input_for(const Plan& plan, InstanceId instance, const MessageType& type,
                                  TenantSlot tenant);

/// kInvalid: the plan has no such slot, or its tenants never change because it has no limits.
Status check_slot(const Plan& plan, TenantSlot slot);

/// The tenant whose limit (abandoned_max) counts stuck handlers of this group. None if the run has
/// one tenant, or if all tenants share the group.
TenantSlot counted_tenant(const Plan& plan, GroupId group);

/// Tenants that failed in a run with several tenants, each with the reason.
using SetAside = std::map<TenantSlot, std::string>;
/// The error of a run that ended well for all tenants but these. `tenants` is not empty.
Error why_set_aside(const Plan& plan, const SetAside& tenants);

class Executor {
 public:
  virtual ~Executor() = default;
  /// Creates every group: resources, actors, start(). If one fails, the others are destroyed and
  /// its Error is returned.
  virtual Status start() = 0;
  /// Drains the run: sources stop, and work in flight completes within drain_max. Idempotent.
  virtual void request_drain() = 0;
  /// Stops the run now: running handlers see it through progress(), and no more messages are
  /// handled.
  virtual void request_stop() = 0;
  /// Gives the change to every group here that has instances of the slot or shared actors. Each
  /// makes it at one position of its steps; then ExecutorEvents::tenant_changed() reports it. A
  /// group that follows a record makes it after it resumed. kInvalid: the plan has no such slot, or
  /// no limits. kExhausted: kTenantChangesMax changes wait. After start().
  virtual Status change_tenant(const TenantChange& change) = 0;
  /// Drains the actors of a tenant that will leave; the others continue. After drain_max actors
  /// that still wait count as idle. Reported by ExecutorEvents::tenant_drained(). Repeated orders
  /// are one until it was reported.
  virtual void drain_tenant(TenantSlot slot) = 0;
  /// Returns when the run has ended: all tenants finished and drained, or the run was stopped,
  /// failed or stalled.
  virtual RunOutcome wait() = 0;
  virtual RunStatus status() const = 0;
};

}  // namespace primerl
