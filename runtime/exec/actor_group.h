/// ActorGroup: one actor group at run time: its actors, their inbox, credits, ledger and step
/// counter. An actor group is the unit of scheduling. An executor owns ActorGroups and decides when
/// each makes its next step.
///
/// How an executor uses it (CafExecutor: one CAF actor per ActorGroup; VirtualExecutor: one loop):
///
///   ActorGroup group(setup);    // any thread
///   group.start(now);           // on the group's thread: resources, actors, Actor::start()
///   group.accept(batch);        // a batch of another group; in order per sending group
///   group.wake(now);            // at or after next_timer(); early, late or repeated is harmless
///   while (group.ready()) group.step(now);     // one input or one work call each
///
/// All effects of a step leave through the GroupExecutor given in the setup. Effects are batches
/// for other groups, tenants that finished or failed, and failures that end the run. They leave
/// inside step(), accept(), end_burst(), peer_down() or peer_up(). ship() must queue its batch: do
/// not deliver the batch inside ship().
///
/// A step can be split in three. Then a handler can run on another thread (an own_thread group
/// without resources), or for some virtual time:
///
///   if (group.begin_step(now)) { group.run_step(); group.complete_step(now); }
///
/// Between begin_step and complete_step, accept(), wake(), begin_drain(), peer_down() and peer_up()
/// are allowed; a second begin_step is not. run_step() touches only the actor (with its buffered
/// emissions) and may run on any one thread. If the handler is stuck, call abandon_step() instead
/// of complete_step(). Then the actor is replaced, the message is refused, and later effects of the
/// late run_step() are ignored. The late run_step() keeps its own thread until it returns; its
/// Running keeps the old actor alive.
///
/// Threads: methods are called by one thread at a time, except those under "From any thread". Order
/// of inputs: control (drain, peers) first. Then feedback, timers, forward inputs and the work
/// call, by time of arrival. A forward input waits while a forward output of its own actor is full.
/// A work call waits while a forward output of any actor of the group is full. flow.h says why a
/// full output does not block the forward inputs of the whole group.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/exec/executor.h"
#include "runtime/exec/group_state.h"
#include "runtime/exec/wiring.h"
#include "runtime/wire/message_batch.h"
#include "runtime/wire/process_report.h"

namespace primerl {

class ActorGroup;
class CutSink;  // process_cut.h

/// Callbacks of an ActorGroup to the executor that runs it. Called on the thread that drives the
/// group.
class GroupExecutor {
 public:
  virtual ~GroupExecutor() = default;
  /// Sends a batch to batch.to. Never blocks, never loses a batch, keeps the order per pair of
  /// groups. It may move out the vectors or their contents; the group reuses the memory that is
  /// left in them.
  virtual void ship(MessageBatch&& batch) = 0;
  /// services().finish(tenant) was called: once per tenant and actor that calls it; repeated is
  /// harmless. `tenancy`: the use of the slot, or kTenancyUnknown. A group that follows a record
  /// may report a tenant that has left since.
  virtual void tenant_finished(TenantSlot tenant, uint32_t tenancy) = 0;
  /// One of several tenants cannot continue. Its own actor failed, or a shared actor called
  /// services().fail_tenant(), or a shared actor failed while it handled the tenant's message. The
  /// executor must set the tenant aside in every group; the other tenants continue. Called once per
  /// group, and again when a group is restored.
  virtual void tenant_failed(TenantSlot tenant, uint32_t tenancy, std::string why) = 0;
  /// The run cannot continue: on_error = "stop", no restarts left, or a resource failed.
  virtual void group_failed(GroupId group, Error error) = 0;
  /// The group made the step of a tenant's change, in the order in which they were given. Error:
  /// the tenant could not join here, and its slot is free again; or an actor could not follow the
  /// change. Not called for a group that follows a record.
  virtual void tenant_changed(GroupId group, const TenantChange& change, Status status) {
    (void)group;
    (void)change;
    (void)status;
  }
  /// An actor handled a command, or could not accept it. Not called for a group that follows a
  /// record.
  virtual void command_answered(CommandAnswer answer) { (void)answer; }
};

enum class StepKind { kMessage, kTimer, kWork, kDrain, kPeer, kCommand, kTenant };
inline constexpr size_t kNumStepKinds = 7;
std::string_view to_string(StepKind kind);

/// One finished delivery: the only source for metrics and for the recorder. Valid during the call.
struct StepRecord {
  GroupId group;
  InstanceId instance;  // none for a work call and for kTenant, which belong to the whole group
  StepKind kind = StepKind::kMessage;
  uint64_t step = 0;                            // number of the group's step, from 1 without gaps
  Time began;                                   // services().now() of the handler
  Time ended;                                   // when the executor saw it end
  const Envelope* message = nullptr;            // for kMessage
  LinkId link;                                  // for kMessage
  uint32_t timer = 0;                           // for kTimer: index in the contract
  PeerEvent peer;                               // for kPeer
  uint32_t input = 0;                           // for kCommand: index in the contract
  const Payload* command = nullptr;             // for kCommand
  const TenantChange* tenant_change = nullptr;  // for kTenant
  const Error* error = nullptr;                 // of the handler; null when it succeeded
  bool has_given_up = false;  // the handler called fail_tenant() or stop_on_error()
  /// Messages that this step emitted (after an error: those that refuse() emitted), on the links
  /// that the observer wants. num_emissions counts all of them.
  std::span<const BatchedMessage> emissions;
  uint32_t num_emissions = 0;
  /// Answers to the handlers that depend on the moment of the call, so a replay must repeat them:
  /// the answers of room(), in order, and the number of the first progress() call that answered
  /// kStopRequested (0: none).
  std::span<const int64_t> room_answers;
  uint64_t stopped_at_progress = 0;
  bool is_abandoned = false;
  bool is_injected = false;     // fail_step(): the handler did not run
  bool is_from_record = false;  // the message was sent in an earlier run (RecordedStep::stored)
  /// In a resumed run: notes of the group's engines that answered first in this step.
  std::span<const std::vector<std::byte>> engine_resumes;
};

class DeliveryObserver {
 public:
  virtual ~DeliveryObserver() = default;
  /// The group's actors have started; `now` is what services().now() answered in their start().
  virtual void on_start(GroupId group, Time now) {
    (void)group;
    (void)now;
  }
  virtual void on_step(const StepRecord& record) = 0;
  /// Whether StepRecord::emissions must include messages sent on this link. Asked once per link.
  virtual bool wants_emissions(LinkId link) const {
    (void)link;
    return true;
  }
};

/// A recorded step, which a replaying group repeats.
struct RecordedStep {
  StepKind kind = StepKind::kMessage;
  uint32_t actor = 0;  // index among the group's instances; 0 for a work call and for kTenant
  LinkId link;         // for kMessage, with incarnation and sequence
  uint32_t incarnation = 0;
  uint64_t sequence = 0;
  uint32_t timer = 0;                           // for kTimer
  PeerEvent peer;                               // for kPeer
  uint32_t input = 0;                           // for kCommand: index in the contract
  Payload command;                              // for kCommand
  std::optional<TenantChange> tenant_change{};  // for kTenant
  Time began;                                   // what services().now() answered
  Duration lasted;  // the recorded handler time; an observer gets the same value
  bool is_abandoned = false;
  std::optional<Error> injected;   // instead of running the handler
  std::optional<Envelope> stored;  // for kMessage: its content, if no process sends it in this run
  std::vector<int64_t> room_answers;
  uint64_t stopped_at_progress = 0;
};

/// Chooses a group's steps instead of the group itself, for replay and for recovery after a crash.
/// The group makes exactly these steps in this order, at the recorded times. It makes each step as
/// soon as the message has arrived, even when an output is full or an input is paused. The group
/// keeps its timers but does not fire them. Used on the group's thread.
class StepSource {
 public:
  virtual ~StepSource() = default;
  /// The next step, or the step that runs now; null: no further step is known. Does not change
  /// until the group's observer got the step (on_step).
  virtual const RecordedStep* next() const = 0;
  /// The group cannot make the current step, or the step's result differs from the record.
  virtual void diverged(std::string what) = 0;
  /// For a message to another process that is emitted again: what to do with it. `num_shipped`:
  /// messages sent on the link before it.
  virtual EmissionFate emission_fate(LinkId link, uint64_t sequence, uint64_t num_shipped) const {
    (void)link;
    (void)sequence;
    (void)num_shipped;
    return EmissionFate::kSend;
  }
  /// For a latest_wins link to another process: how many of the messages up to `sequence` the
  /// receiver received, by its cut and its record. None: the cut already includes more messages.
  virtual std::optional<uint64_t> num_received(LinkId link, uint64_t sequence) const {
    (void)link;
    (void)sequence;
    return std::nullopt;
  }
  /// Whether a step of the record has the content of a message that was received before a cut.
  virtual bool has_input(LinkId link, uint32_t incarnation, uint64_t sequence) const {
    (void)link;
    (void)incarnation;
    (void)sequence;
    return false;
  }
};

struct GroupSetup {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const Wiring> wiring;
  GroupId group;
  uint32_t incarnation = 1;                     // incarnation of this process
  ProcessServices* process_services = nullptr;  // must stay valid while the group exists
  GroupExecutor* executor = nullptr;            // must stay valid while the group exists
  ResourceFactory factory;                      // makes the group's own resources, in start()
  /// Called on any thread when an Outside of the group has answers; then the executor must call
  /// answers_arrived(). Empty: the executor looks at ready() after each step.
  std::function<void()> wake;
  /// Resources that groups share (weight channel, tokenizer), by index of Plan::resources; null for
  /// a resource that one group owns. They must stay valid while the group exists.
  std::vector<Resource*> shared_resources;
  /// Makes the tenant of a kJoin. Called on the group's thread. Empty: it is read from the table of
  /// the change, with the plan's catalog (tenant_of_join()).
  TenantMaker make_tenant{};
  /// Called for each resource of the group at kJoin, before the actors of the slot are made, and at
  /// kLeave, after they are destroyed. Empty: resources keep nothing by tenant.
  TenantResources tenant_resources{};
  DeliveryObserver* observer = nullptr;
  StepSource* step_source = nullptr;  // must stay valid while the group exists; null: the group
                                      // chooses its steps
  CutSink* cuts = nullptr;            // must stay valid while the group exists; null: the group
                                      // joins no cut
};

/// The maximum number of steps between begin_burst() and end_burst().
inline constexpr int kBurstSteps = 64;

/// Message counts of one group, used to find the end of a drain (drain.h). Counts never decrease.
struct GroupCounts {
  uint64_t num_steps = 0;
  uint64_t num_shipped = 0;   // messages handed to ship()
  uint64_t num_received = 0;  // messages given to accept(), including refused ones
  bool is_idle = false;       // no input waits, the outbox is empty, there is no work, no actor
                              // waits for an answer
};

/// What one group has of a slot while the slot drains. The slot has drained in a process when two
/// counts in a row find every group idle, the same numbers, and shipped = received in the sum.
struct SlotCounts {
  uint64_t num_shipped = 0;   // messages of the slot to groups of this process, this one too
  uint64_t num_received = 0;  // messages of the slot from groups of this process
  bool is_idle = false;  // the drain was handled, the slot's actors are idle, no message of the
                         // slot waits here, and other processes have acknowledged all
};

/// A snapshot of one group for the stall report and the virtual executor's checks.
struct GroupView {
  GroupId group;
  uint64_t num_steps = 0;
  uint64_t num_waiting = 0;  // inputs in the inbox
  Time oldest_arrival;       // arrival of the oldest input in the inbox, if any
  InstanceId handling;       // whose handler runs now; none if no handler runs, and in a work call
  const MessageType* handling_type = nullptr;
  StepKind handling_kind = StepKind::kWork;  // kind of the step that runs
  uint32_t handling_link = 0;                // kMessage: LinkId; kTimer: index in the contract
  uint64_t handling_sequence = 0;            // for kMessage
  bool is_running = false;                   // between begin_step and complete_step
  Time running_since;                        // when the handler began
  uint64_t num_progress = 0;  // number of progress() calls; a handler that calls progress() is not
                              // stuck
  Duration busy;              // thread time of the finished turns of its cell; 0: not measured
  bool is_idle = false;
  bool is_ready = false;
  std::vector<LinkId> full;    // outgoing forward links at capacity
  std::vector<LinkId> paused;  // incoming links with waiting messages whose input is paused
};

/// The handler that runs between begin_step() and complete_step(); keeps an abandoned actor alive.
class Running;

class ActorGroup {
 public:
  explicit ActorGroup(GroupSetup setup);
  ~ActorGroup();
  ActorGroup(const ActorGroup&) = delete;
  ActorGroup& operator=(const ActorGroup&) = delete;

  /// Makes owned resources and actors, wires them, calls Actor::start() in instance order.
  Status start(Time now);
  /// Like start(), but continues from `state`, the group's part of a cut of this plan. A StepSource
  /// follows the record from there. `in_transit`: messages of the cut that were sent to this group
  /// and not yet received.
  Status start_from(const GroupState& state, std::span<const SavedMessage> in_transit, Time now);

  /// Accepts a batch: applies its grants and puts its messages into the inbox. Duplicates and
  /// messages of old incarnations are counted. Invalid parts are skipped and the first such error
  /// is returned: a gap in sequence numbers, an unknown link or tenant, a grant for messages that
  /// were not sent. May ship messages from an outbox that got credit. The caller keeps the vectors;
  /// their contents may be moved out.
  Status accept(MessageBatch&& batch, Time now);

  /// The earliest pending timer, or none.
  std::optional<Time> next_timer() const;
  /// Moves timers that are due at `now` into the inbox.
  void wake(Time now);  // not for a replaying group
  /// An Outside of the group has answers: schedules a work call. Not for a replaying group.
  void answers_arrived();

  /// Whether step() would do something now.
  bool ready() const;
  /// False: no input was eligible. A replaying group uses the recorded time instead of `now`, and
  /// runs every handler on the calling thread.
  bool step(Time now);
  /// Between the two calls, batches fill up instead of leaving with every step. counts() and view()
  /// may be out of date, but never report a busy group as idle. Do not use them around a step that
  /// may last long.
  void begin_burst();
  void end_burst();

  bool begin_step(Time now);
  void run_step();
  /// Completes the step as if the handler had returned `error`, without running the handler. For
  /// injected faults and for replayed ones.
  void fail_step(Error error);
  /// Sum of Resource::take_cost() of the owned resources. Call between run_step() and
  /// complete_step().
  Duration step_cost();
  void complete_step(Time now);
  /// Abandons the actor whose handler is stuck and replaces it by a fresh or restored actor. The
  /// message is refused with kDeadline. Returns an Error when the contract says that the actor is
  /// not restartable; then end the run.
  Status abandon_step(Time now);
  /// The thread of run_step() must hold this pointer, which keeps alive what the handler touches:
  /// run(*group.running()).
  std::shared_ptr<Running> running() const;
  /// Runs the handler. False: the step was abandoned meanwhile, so its result is ignored.
  static bool run(Running& running);
  /// Whether a handler may run on another thread: own_thread, one actor, no resources.
  bool may_run_apart() const;
  /// The same for the step between begin_step() and complete_step(). A change of a tenant does not
  /// run apart, and no work call that steps a resource.
  bool step_runs_apart() const;
  /// A StepSource still chooses the steps: use step() alone.
  bool is_replaying() const;

  /// Stops sources and queues a drain input (control) for every actor. Idempotent.
  void begin_drain(Time now);
  /// Queues the command as a control input for every addressed actor of the group. If kCommandsMax
  /// commands wait already for an actor, it answers kExhausted. Not for a replaying group.
  void command(const ActorCommand& command, Time now);
  /// Drains the actors of a failed tenant and no others; repeated is harmless. Not for a replaying
  /// group.
  void set_aside(TenantSlot tenant, Time now);
  /// Drains the actors of a tenant that will leave, like set_aside() but without a failure: they
  /// are idle when they say so. A control input in order with change_tenant(): its step is a kPause
  /// of the tenant. Then slot_counts() tells when the slot has drained; repeated is harmless. Only
  /// for a group that concerns(tenant). Not for a replaying group.
  void drain_tenant(TenantSlot tenant, Time now);
  /// Queues the change as one control input of the group. A change of another tenancy than the
  /// slot's, and one that was made already, is a step that changes nothing. Only for a group that
  /// concerns(change.slot). Not for a replaying group.
  void change_tenant(const TenantChange& change, Time now);
  /// Ends the replay: the step_source has no further step. Inbox, timers, pauses and credit keep
  /// the state that the recorded steps left. From now on the group chooses its own steps. `now` is
  /// not earlier than any recorded time.
  void resume(Time now);
  /// The process of `peer` died. Messages that it had not acknowledged are returned, and its
  /// targets leave every output. Later arrivals of incarnations <= `incarnation` are refused.
  /// Actors that are connected to it get on_peer(kDown).
  void peer_down(GroupId peer, uint32_t incarnation, Time now);
  /// `peer` runs again as `incarnation`: its links restart at sequence 1 with full credit.
  void peer_up(GroupId peer, uint32_t incarnation, Time now);

  /// Moves out the owned resources, for a group that replaces this one. This group does nothing
  /// more.
  std::vector<std::shared_ptr<Resource>> take_resources();
  /// Destroys resources and actors, on the group's thread. The destructor does it too.
  void destroy();

  /// Counters of services().count(), by "instance.name".
  std::vector<std::pair<std::string, int64_t>> counters() const;

  /// Joins cut `number`, between two steps and outside of a burst. Does nothing if it already
  /// joined.
  void cut(uint64_t number, Time now);
  uint64_t newest_cut() const;
  /// The complete state of the group, between two steps and outside of a burst.
  GroupState state() const;
  /// Gives this group, which has just started, the state of another group of the same plan. It
  /// sends nothing. After an error the group must not be used any more.
  Status restore(const GroupState& state, Time now);

  /// The group whose step the calling thread runs, or for which it makes the tenants of a saved
  /// state; else none. A shared resource (a weight channel) uses it to find the calling group.
  static GroupId running_here();

  // From any thread ------------------------------------------------------------------------------

  /// From now on progress() answers kStopRequested.
  void request_stop();
  GroupId id() const;
  const std::string& name() const;
  GroupCounts counts() const;
  /// Whether the group has instances of the slot, or actors that all tenants share.
  bool concerns(TenantSlot slot) const;
  SlotCounts slot_counts(TenantSlot slot) const;
  /// Approximate while the group runs on another thread; exact otherwise.
  GroupView view() const;
  /// Adds this group's side of every edge: messages sent by its senders and handled by its
  /// receivers.
  void add_to(std::span<EdgeLedger> ledger) const;
  /// Adds this group's side of the load of every edge, and one entry per instance. `now`: time of
  /// the group's clock.
  void add_load(std::span<EdgeLoad> edges, std::vector<InstanceLoad>& instances, Time now) const;
  /// Messages of an incoming link (in_index) in the inbox, and of an outgoing link (out_index) in
  /// the outbox. Exact only between steps.
  uint64_t num_waiting_in(uint32_t in_index) const;
  uint64_t num_waiting_out(uint32_t out_index) const;
  /// Number of messages in the inbox, in the handler and in outboxes, without timers and control
  /// inputs.
  uint64_t num_held() const;

 private:
  class Body;
  std::unique_ptr<Body> body_;
};

}  // namespace primerl
