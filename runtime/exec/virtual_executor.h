/// VirtualExecutor: runs a whole plan on one thread with a virtual clock. A seeded choice picks the
/// next event among all possible ones: a step of a ready group, or the arrival of a batch. It uses
/// the same ActorGroups as CafExecutor. Equal plan, seed and step hooks give equal runs, bit for
/// bit.
///
/// Time: a step begins at the virtual now and lasts Resource::take_cost() plus what the hooks add.
/// Its effects leave when it ends, and the group is busy until then. When no event is possible now,
/// the clock jumps to the next end of a step or timer. A handler that runs apart for longer than
/// the limit (apart_handler_limit) is abandoned, like a stuck thread.
///
/// After every step it checks the bounds of all edges, the balance of the ledger and the number of
/// messages in transit; in a plan with many links, after every nth step and at the end. A
/// violation, or a failed CHECK, prints the seed and the command that repeats the run.
///
/// With a ReplaySource the groups first make their recorded steps, in an order that the seed
/// chooses. Hooks inject no faults then, and no time passes. Then the groups resume and the clock
/// continues from the end of the record.
///
/// All processes of the plan run here, so kill() and revive() can simulate the death of one. Not
/// thread-safe; request_drain() and request_stop() take effect at the next event.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/random.h"
#include "runtime/exec/actor_group.h"
#include "runtime/exec/drain.h"
#include "runtime/exec/executor.h"
#include "runtime/exec/pending_changes.h"
#include "runtime/exec/replay_source.h"

namespace primerl {

/// Faults and delays that the hooks inject into one delivery.
struct Injection {
  std::optional<Error> failure;  // the handler fails with this error, without running
  Duration takes;                // added to the cost of the resources
};

/// A step that is about to run.
struct StepAbout {
  InstanceId instance;  // none for a work call
  StepKind kind = StepKind::kMessage;
  const MessageType* type = nullptr;  // for a message
  TenantSlot tenant;                  // for a message: its tenant
  uint64_t delivery = 0;              // number of this step among the instance's steps of this
                                      // kind, from 1
};

/// Injects faults and observes every step. The default does nothing.
class StepHooks {
 public:
  virtual ~StepHooks() = default;
  virtual Injection before(const StepAbout& about) {
    (void)about;
    return {};
  }
  virtual void after(const StepRecord& record) { (void)record; }
};

struct VirtualOptions {
  uint64_t seed = 1;
  StepHooks* step_hooks = nullptr;
  DeliveryObserver* observer = nullptr;  // a recorder; must stay valid while the executor exists
  uint64_t events_max = 50'000'000;      // a run with more events is treated as endless: a broken
                                         // invariant
  ReplaySource* step_source = nullptr;   // for a resumed run; must stay valid while the executor
                                         // exists
  CutSink* cuts = nullptr;               // must stay valid while the executor exists; null: do not
                                         // call cut()
  TenantMaker make_tenant{};             // see GroupSetup
  TenantResources tenant_resources{};    // see GroupSetup
  ExecutorEvents events{};
  bool is_hosted = false;   // the run continues when all its tenants have finished, until
                            // request_drain(); without work it waits
  std::string repeat_with;  // the command that repeats this run, printed at failures
};

/// How long a handler may run apart from its group: the longest environment_timeout.
Duration apart_handler_limit(const Plan& plan);

class VirtualExecutor final : public Executor, private GroupExecutor, private DeliveryObserver {
 public:
  /// `factory` and `process_services` must stay valid while the executor exists.
  VirtualExecutor(std::shared_ptr<const Plan> plan, ResourceFactory factory,
                  ProcessServices& process_services, VirtualOptions options);
  ~VirtualExecutor() override;

  Status start() override;
  void request_drain() override { is_drain_requested_ = true; }
  void request_stop() override;
  /// Not while groups follow a record.
  Status change_tenant(const TenantChange& change) override;
  void drain_tenant(TenantSlot slot) override;
  /// Runs until the run has ended.
  RunOutcome wait() override;
  RunStatus status() const override;

  /// Executes one event: begin or end of a step, an arrival, or a jump of the clock. False: no
  /// event is possible any more, or the run has ended.
  bool advance();
  /// Executes events until `done` is true, at most `events_max`. Returns whether it became true.
  bool run_until(const std::function<bool()>& done, uint64_t events_max = 1'000'000);
  /// Executes events until no event is possible without moving the clock; timers stay set.
  void settle();

  Time now() const { return now_; }
  /// Hash over all steps: group, instance, kind, message.
  uint64_t trace_hash() const { return trace_hash_; }
  int64_t num_abandoned() const;
  ActorGroup& group(GroupId id);
  /// Groups still follow their record.
  bool is_replaying() const { return is_replaying_; }
  std::vector<EdgeLedger> ledger() const;
  StallReport stall_report() const;
  std::vector<std::pair<std::string, int64_t>> counters() const;

  /// The process dies now. Its groups and all they hold are lost, and so are batches in transit to
  /// them. The other processes are notified at once.
  void kill(ProcessId process);
  /// Starts the process again with the next incarnation.
  Status restart_process(ProcessId process);

  /// Gives a command to every addressed actor. Not while groups follow a record.
  void command(const ActorCommand& command);
  /// The actors' answers to commands, oldest first; each is returned once.
  std::vector<CommandAnswer> take_answers() { return std::exchange(answers_, {}); }

  /// Orders a cut: every group joins at its own moment, which the seed chooses.
  void cut(uint64_t number) { ordered_cut_ = number; }

  /// Whether remake() may be called: the run has not ended, and the group is between two steps.
  bool may_remake(GroupId group) const;
  /// Replaces the group by a fresh one that is restored from the bytes of its saved state. The
  /// resources are kept. The run continues as without remake(), unless `change` alters the saved
  /// state before it is restored. `fresh` is the state of the fresh group.
  using ChangeState = std::function<void(GroupState& saved, const GroupState& fresh)>;
  Status remake(GroupId group, const ChangeState& change = nullptr);

 private:
  struct GroupSlot {
    std::unique_ptr<ActorGroup> group;
    uint32_t incarnation = 0;
    bool is_busy = false;
    bool is_stuck = false;     // its handler will be abandoned at busy_until
    bool is_refusing = false;  // its tenant was set aside because handlers got stuck: further
                               // messages are refused unhandled
    Time busy_until;
    Time stuck_until;  // when the abandoned handler returns
  };
  struct BatchQueue {  // batches from one group to another, in order
    GroupId from, to;
    std::deque<MessageBatch> batches;
  };

  void ship(MessageBatch&& batch) override;
  void tenant_finished(TenantSlot tenant, uint32_t tenancy) override;
  void tenant_failed(TenantSlot tenant, uint32_t tenancy, std::string why) override;
  void group_failed(GroupId group, Error error) override;
  void tenant_changed(GroupId group, const TenantChange& change, Status status) override;
  void command_answered(CommandAnswer answer) override { answers_.push_back(std::move(answer)); }
  void on_start(GroupId group, Time now) override;
  void on_step(const StepRecord& record) override;

  Status start_group(GroupId id);
  GroupSetup setup_of(GroupId id);
  bool step_something();
  bool may_deliver(const BatchQueue& queue) const;
  bool may_cut(const GroupSlot& slot) const;
  bool step_as_recorded(GroupSlot& slot);
  bool is_at_end_of_record() const;
  void resume();
  bool jump();
  void begin(GroupSlot& slot);
  void end(GroupSlot& slot);
  void abandon(GroupSlot& slot);
  void deliver(BatchQueue& queue);
  void begin_drain();
  /// True: a slot has drained, and that was reported.
  bool look_for_drained();
  void remember(const TenantChange& change);
  void repeat_changes(ProcessId process);
  void check_some_invariants();
  void check_invariants();
  [[noreturn]] void broken(const std::string& text);
  void finish_run(RunEnd end, Status status);
  void look_for_end();
  StepAbout about(const GroupSlot& slot);

  const std::shared_ptr<const Plan> plan_;
  const std::shared_ptr<const Wiring> wiring_;
  const ResourceFactory factory_;
  ProcessServices& process_services_;
  const VirtualOptions options_;
  const Duration apart_limit_;
  RandomStream choice_;
  std::vector<std::shared_ptr<Resource>> shared_owned_;
  std::vector<Resource*> shared_;
  std::vector<GroupSlot> slots_;  // index = GroupId
  std::vector<BatchQueue> queues_;
  std::map<std::pair<GroupId, GroupId>, size_t> queue_of_;
  std::vector<uint32_t> runnable_;  // ready groups, then deliverable queues: candidates of the
                                    // current choice
  std::vector<bool> finished_;      // by tenant
  SetAside set_aside_;
  bool is_set_aside_ordered_ = false;  // and the groups were not notified yet
  std::map<std::pair<uint32_t, StepKind>, uint64_t> num_deliveries_;
  std::vector<std::shared_ptr<Running>> abandoned_;
  std::vector<Time> late_at_;
  std::vector<CommandAnswer> answers_;
  PendingChanges changes_;
  std::map<TenantSlot, SlotDrain> slot_drains_;
  /// The changes that made each slot what it is, for a process that starts again.
  std::map<TenantSlot, std::vector<TenantChange>> history_;
  DrainDetector drain_;
  GroupCounts counts_of_dead_groups_;  // counts of dead groups: they keep shipped = received
  std::optional<Time> drain_deadline_;
  std::optional<RunOutcome> outcome_;
  Time now_;
  uint64_t num_events_ = 0;
  uint64_t trace_hash_ = 0;
  uint64_t in_transit_ = 0;                      // messages in batches in transit
  std::map<TenantSlot, int64_t> num_abandoned_;  // key none: shared by all tenants
  bool is_replaying_ = false;
  bool is_remaking_ = false;
  uint64_t ordered_cut_ = 0;
  bool is_drain_requested_ = false;
  bool is_stop_requested_ = false;
};

}  // namespace primerl
