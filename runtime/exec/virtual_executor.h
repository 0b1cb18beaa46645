/// VirtualExecutor: runs a whole plan on one thread with a virtual clock and a seeded choice among
/// everything that could happen next: a step of a ready group, or the arrival of a batch. The same
/// ActorGroups as CafExecutor's. Equal plan, seed and step hooks give equal runs, bit for bit.
///
/// Time: a step begins at the virtual now and lasts Resource::take_cost() plus what the hooks add;
/// its effects leave when it ends, and the group is busy until then. When nothing can happen now,
/// the clock jumps to the next end of a step or timer. A handler that runs apart and outlasts the
/// limit (apart_handler_limit) is abandoned, as a stuck thread would be.
///
/// After every step it checks the bounds of all edges, the balance of the ledger and the number of
/// messages in transit. A violation, or any CHECK that fails inside, prints the seed and the
/// command that repeats the run.
///
/// With a ReplaySource the groups first take their recorded steps, in an order the seed chooses,
/// without faults from the hooks and without time passing; then they resume and the clock goes on
/// from where the record ends.
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
#include "runtime/exec/replay_source.h"

namespace primerl {

/// What the hooks inject into one delivery.
struct Injection {
  std::optional<Error> failure;  // the handler fails with it, without running
  Duration takes;                // besides what resources cost
};

/// What a step will do, before it runs.
struct StepAbout {
  InstanceId instance;  // none for a work turn
  StepKind kind = StepKind::kMessage;
  const MessageType* type = nullptr;  // of a message
  TenantSlot tenant;                  // of a message: whose it is
  uint64_t delivery = 0;              // how many steps of this kind the instance had, from 1
};

/// Faults and a look at every step. The default does nothing.
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
  DeliveryObserver* observer = nullptr;  // a recorder; outlives the executor
  uint64_t events_max = 50'000'000;      // a run that takes more never ends: a broken invariant
  ReplaySource* step_source = nullptr;   // of a resumed run; outlives the executor
  CutSink* cuts = nullptr;               // outlives the executor; null: cut() is not called
  std::string repeat_with;               // the command that repeats this run, for failures
};

/// The longest time that a handler may run apart from its group: the longest environment_timeout.
Duration apart_handler_limit(const Plan& plan);

class VirtualExecutor final : public Executor, private GroupExecutor, private DeliveryObserver {
 public:
  /// `factory` and `host_services` outlive the executor.
  VirtualExecutor(std::shared_ptr<const Plan> plan, ResourceFactory factory,
                  HostServices& host_services, VirtualOptions options);
  ~VirtualExecutor() override;

  Status start() override;
  void request_drain() override { is_drain_requested_ = true; }
  void request_stop() override;
  /// Runs to the end.
  RunOutcome wait() override;
  RunStatus status() const override;

  /// One event: a step's beginning or end, an arrival, or a jump of the clock. False: nothing can
  /// happen any more, or the run has ended.
  bool advance();
  /// Events until `done`, at most `events_max`; whether it came true.
  bool run_until(const std::function<bool()>& done, uint64_t events_max = 1'000'000);
  /// Events until nothing can happen at the present time (timers stay where they are).
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

  /// The process dies now: its groups with all they hold, and batches in transit to them. The other
  /// processes are told at once.
  void kill(ProcessId process);
  /// It starts again with the next incarnation.
  Status revive(ProcessId process);

  /// Gives a command to every actor that it is meant for. Not while groups follow a record.
  void command(const ActorCommand& command);
  /// What actors made of commands, oldest first; taken once.
  std::vector<CommandAnswer> take_answers() { return std::exchange(answers_, {}); }

  /// Orders a cut: every group takes part at a moment of its own, which the seed chooses.
  void cut(uint64_t number) { ordered_cut_ = number; }

  /// Whether remake() can be called: the run has not ended, and the group is between two steps.
  bool may_remake(GroupId group) const;
  /// Puts a fresh group in its place, made of the bytes of its saved state. It keeps its resources.
  /// What follows is the same as without, unless `change` alters the saved state before it is read;
  /// `fresh` is the state of the group that reads it.
  using ChangeState = std::function<void(GroupState& saved, const GroupState& fresh)>;
  Status remake(GroupId group, const ChangeState& change = nullptr);

 private:
  struct GroupSlot {
    std::unique_ptr<ActorGroup> group;
    uint32_t incarnation = 0;
    bool is_busy = false;
    bool is_stuck = false;     // its handler will be abandoned at busy_until
    bool is_refusing = false;  // its tenant was set aside for such handlers: no more of them run
    Time busy_until;
    Time stuck_until;  // when the abandoned handler returns
  };
  struct BatchQueue {  // from one group to another, in order
    GroupId from, to;
    std::deque<MessageBatch> batches;
  };

  void ship(MessageBatch&& batch) override;
  void tenant_finished(TenantSlot tenant) override;
  void tenant_failed(TenantSlot tenant, std::string why) override;
  void group_failed(GroupId group, Error error) override;
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
  void check_invariants();
  [[noreturn]] void broken(const std::string& text);
  void finish_run(RunEnd end, Status status);
  void look_for_end();
  StepAbout about(const GroupSlot& slot);

  const std::shared_ptr<const Plan> plan_;
  const std::shared_ptr<const Wiring> wiring_;
  const ResourceFactory factory_;
  HostServices& host_services_;
  const VirtualOptions options_;
  const Duration apart_limit_;
  RandomStream choice_;
  std::vector<std::unique_ptr<Resource>> shared_owned_;
  std::vector<Resource*> shared_;
  std::vector<GroupSlot> slots_;  // index = GroupId
  std::vector<BatchQueue> queues_;
  std::map<std::pair<GroupId, GroupId>, size_t> queue_of_;
  std::vector<uint32_t> runnable_;  // candidates of the current choice: groups, then queues
  std::vector<bool> finished_;      // by tenant
  SetAside set_aside_;
  bool is_set_aside_ordered_ = false;  // and the groups were not told yet
  std::map<std::pair<uint32_t, StepKind>, uint64_t> num_deliveries_;
  std::vector<std::shared_ptr<Running>> abandoned_;
  std::vector<Time> late_at_;
  std::vector<CommandAnswer> answers_;
  DrainDetector drain_;
  GroupCounts of_dead_;  // keeps shipped = received when a group dies
  std::optional<Time> drain_deadline_;
  std::optional<RunOutcome> outcome_;
  Time now_;
  uint64_t num_events_ = 0;
  uint64_t trace_hash_ = 0;
  uint64_t in_transit_ = 0;                      // messages in batches in transit
  std::map<TenantSlot, int64_t> num_abandoned_;  // none: shared by all tenants
  bool is_replaying_ = false;
  bool is_remaking_ = false;
  uint64_t ordered_cut_ = 0;
  bool is_drain_requested_ = false;
  bool is_stop_requested_ = false;
};

}  // namespace primerl
