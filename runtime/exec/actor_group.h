/// ActorGroup: one actor group at run time: its actors, their inbox, credits, ledger and step
/// counter. The unit of scheduling: an executor owns ActorGroups and decides when each takes its
/// next step.
///
/// How an executor uses it (CafExecutor: one CAF actor per ActorGroup; VirtualExecutor: one loop):
///
///   ActorGroup group(setup);    // any thread
///   group.start(now);           // on the group's thread: resources, actors, Actor::start()
///   group.accept(batch);        // a batch of another group; in order per sending group
///   group.wake(now);            // at or after next_timer(); early, late or repeated is harmless
///   while (group.ready()) group.step(now);     // one input or one work turn each
///
/// All effects of a step leave through the GroupExecutor given in the setup, inside step(),
/// accept(), end_burst(), peer_down() or peer_up(): batches for other groups, tenants that
/// finished or failed, failures that end the run. Do not deliver a batch inside ship(): queue it.
///
/// A step can be split in three, so that a handler can run on another thread (an own_thread group
/// without resources) or for some virtual time:
///
///   if (group.begin_step(now)) { group.run_step(); group.complete_step(now); }
///
/// Between begin_step and complete_step the group takes accept(), wake(), begin_drain(),
/// peer_down() and peer_up() as usual, but no second begin_step. run_step() touches only the actor
/// (with its buffered emissions) and may run on any one thread. When it is stuck, call
/// abandon_step() instead of complete_step(): the actor is replaced, the message is refused, and
/// what the late run_step() still does has no effect (it must keep running on its own thread until
/// it returns; the Running it holds keeps the old actor alive).
///
/// Threads: methods are called by one thread at a time, except those under "From any thread". Order
/// of inputs: control (drain, peers), then by time of arrival: feedback, timers, forward inputs and
/// the work turn. A forward input waits while a forward output of its own actor is full; a work
/// turn waits while a forward output of any actor of the group is full (flow.h says why a full
/// output does not hold back the forward inputs of the whole group).
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

/// What an ActorGroup needs from the executor that runs it. Called on the thread that drives the
/// group.
class GroupExecutor {
 public:
  virtual ~GroupExecutor() = default;
  /// Carries a batch to batch.to. Never blocks, never loses a batch, keeps the order per pair of
  /// groups. Takes the vectors or their contents; the group reuses the memory that is left in them.
  virtual void ship(MessageBatch&& batch) = 0;
  /// services().finish(tenant): once per tenant and actor that calls it; repeated is harmless.
  virtual void tenant_finished(TenantSlot tenant) = 0;
  /// One of several tenants cannot go on: an actor of hers cannot, or a shared one said so of her
  /// (services().fail_tenant()) or failed on her behalf. She is to be set aside in every group, and
  /// the others go on. Once per group, and again when a group is restored.
  virtual void tenant_failed(TenantSlot tenant, std::string why) = 0;
  /// The run cannot go on: on_error = "stop", restarts used up, a resource failed.
  virtual void group_failed(GroupId group, Error error) = 0;
  /// An actor has handled a command, or could not take it. Not of a group that follows a record.
  virtual void command_answered(CommandAnswer answer) { (void)answer; }
};

enum class StepKind { kMessage, kTimer, kWork, kDrain, kPeer, kCommand };
inline constexpr size_t kNumStepKinds = 6;
std::string_view to_string(StepKind kind);

/// One finished delivery: the only source of metrics and of the recorder. Valid during the call.
struct StepRecord {
  GroupId group;
  InstanceId instance;  // none for a work turn, which is of the whole group
  StepKind kind = StepKind::kMessage;
  uint64_t step = 0;                  // of the group, dense from 1
  Time began;                         // services().now() of the handler
  Time ended;                         // when the executor saw it end
  const Envelope* message = nullptr;  // of kMessage
  LinkId link;                        // of kMessage
  uint32_t timer = 0;                 // of kTimer: index in the contract
  PeerEvent peer;                     // of kPeer
  uint32_t input = 0;                 // of kCommand: index in the contract
  const Payload* command = nullptr;   // of kCommand
  const Error* error = nullptr;       // the handler's, null when it succeeded
  bool has_given_up = false;          // it called fail_tenant() or stop_on_error()
  /// Emissions of this step (after an error: those of the refusal), on the links that the observer
  /// wants; num_emissions counts all.
  std::span<const BatchedMessage> emissions;
  uint32_t num_emissions = 0;
  /// Answers to the handlers that only the moment determines: those of room(), in order, and the
  /// number of the progress() call that first answered kStopRequested (0 = none).
  std::span<const int64_t> room_answers;
  uint64_t stopped_at_progress = 0;
  bool is_abandoned = false;
  bool is_injected = false;     // fail_step(): the handler did not run
  bool is_from_record = false;  // the message was sent in an earlier run (RecordedStep::stored)
};

class DeliveryObserver {
 public:
  virtual ~DeliveryObserver() = default;
  /// The group's actors have started; `now` was services().now() in their start().
  virtual void on_start(GroupId group, Time now) {
    (void)group;
    (void)now;
  }
  virtual void on_step(const StepRecord& record) = 0;
  /// Asked once per link: whether StepRecord::emissions includes what is sent on it.
  virtual bool wants_emissions(LinkId link) const {
    (void)link;
    return true;
  }
};

/// A recorded step, for a replaying group to repeat.
struct RecordedStep {
  StepKind kind = StepKind::kMessage;
  uint32_t actor = 0;  // index among the group's instances; of a work turn 0
  LinkId link;         // kMessage, with incarnation and sequence
  uint32_t incarnation = 0;
  uint64_t sequence = 0;
  uint32_t timer = 0;  // kTimer
  PeerEvent peer;      // kPeer
  uint32_t input = 0;  // kCommand: index in the contract
  Payload command;     // kCommand
  Time began;          // services().now()
  Duration lasted;     // the recorded handler time; an observer gets the same
  bool is_abandoned = false;
  std::optional<Error> injected;   // instead of running the handler
  std::optional<Envelope> stored;  // kMessage: its content, when nobody sends it in this run
  std::vector<int64_t> room_answers;
  uint64_t stopped_at_progress = 0;
};

/// Chooses a group's steps in place of the group: for replay, and for recovery after a crash. The
/// group takes exactly these steps in this order, each as soon as its message is here, even when an
/// output is full or an input is paused, at the recorded times. It keeps timers but fires none by
/// itself. Used on the group's thread.
class StepSource {
 public:
  virtual ~StepSource() = default;
  /// The next step, or the one that runs; null: no (further) one is known. Stays the same until the
  /// group's observer was told of it (on_step).
  virtual const RecordedStep* next() const = 0;
  /// The group cannot take the current step, or its result differs from the recording.
  virtual void diverged(std::string what) = 0;
  /// For a message to another process that is emitted again. `num_shipped`: messages that left on
  /// the link before it.
  virtual EmissionFate emission_fate(LinkId link, uint64_t sequence, uint64_t num_shipped) const {
    (void)link;
    (void)sequence;
    (void)num_shipped;
    return EmissionFate::kSend;
  }
  /// Of a link to another process where newer messages overwrite older ones: how many up to
  /// `sequence` the receiver has got by its cut and its record. None: its cut says more than that.
  virtual std::optional<uint64_t> num_received(LinkId link, uint64_t sequence) const {
    (void)link;
    (void)sequence;
    return std::nullopt;
  }
  /// Whether the content of a message that was received before a cut comes with the step that
  /// handles it.
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
  uint32_t incarnation = 1;               // incarnation of this process
  HostServices* host_services = nullptr;  // outlives the group
  GroupExecutor* executor = nullptr;      // outlives the group
  ResourceFactory factory;                // makes the resources the group owns, in start()
  /// Resources that no group owns (weight channel, tokenizer), by index of Plan::resources; null
  /// for those that a group owns. Outlive the group.
  std::vector<Resource*> shared_resources;
  DeliveryObserver* observer = nullptr;
  StepSource* step_source = nullptr;  // outlives the group; null: the group chooses its steps
  CutSink* cuts = nullptr;            // outlives the group; null: it takes part in none
};

/// The most steps between begin_burst() and end_burst().
inline constexpr int kBurstSteps = 64;

/// Message counts of one group, for finding the end of a drain (drain.h). Each only grows.
struct GroupCounts {
  uint64_t num_steps = 0;
  uint64_t num_shipped = 0;   // messages handed to ship()
  uint64_t num_received = 0;  // messages taken by accept(), refused ones included
  bool is_idle = false;       // no input waits, no outbox, no work, no actor waits for an answer
};

/// A snapshot of one group for the stall report and the virtual executor's checks.
struct GroupView {
  GroupId group;
  uint64_t num_steps = 0;
  uint64_t num_waiting = 0;  // inputs in the inbox
  Time oldest_arrival;       // of those, if any
  InstanceId handling;       // in a handler now; none if not, or in a work turn
  const MessageType* handling_type = nullptr;
  StepKind handling_kind = StepKind::kWork;  // of the step that runs
  uint32_t handling_link = 0;                // kMessage: LinkId; kTimer: index in the contract
  uint64_t handling_sequence = 0;            // kMessage
  bool is_running = false;                   // between begin_step and complete_step
  Time running_since;                        // when the handler began
  uint64_t num_progress = 0;  // progress() calls so far: a handler that calls it is not stuck
  Duration busy;              // thread time of the turns that have ended; 0: not measured
  bool is_idle = false;
  bool is_ready = false;
  std::vector<LinkId> full;    // outgoing forward links at capacity
  std::vector<LinkId> paused;  // arriving links whose input is paused while messages wait
};

/// The handler between begin_step() and complete_step(); keeps an abandoned actor alive.
class Running;

class ActorGroup {
 public:
  explicit ActorGroup(GroupSetup setup);
  ~ActorGroup();
  ActorGroup(const ActorGroup&) = delete;
  ActorGroup& operator=(const ActorGroup&) = delete;

  /// Makes owned resources and actors, wires them, calls Actor::start() in instance order.
  Status start(Time now);
  /// The same, then goes on as the group was whose state this is: of a cut of this plan, from where
  /// a StepSource follows the record. `in_transit`: messages of the cut that are on their way here.
  Status start_from(const GroupState& state, std::span<const SavedMessage> in_transit, Time now);

  /// Takes a batch: its grants, its messages into the inbox. Duplicates and old incarnations are
  /// counted; what its sender may not send (a gap, an unknown link or tenant, a grant for messages
  /// that were not sent) is left out, and the first such error returned. May ship (an outbox that
  /// got room). The vectors stay with the caller; their contents may be moved out.
  Status accept(MessageBatch&& batch, Time now);

  /// The earliest pending timer, or none.
  std::optional<Time> next_timer() const;
  /// Moves timers that are due at `now` into the inbox.
  void wake(Time now);  // not of a replaying group

  /// Whether step() would do something now.
  bool ready() const;
  /// False: nothing was eligible. A replaying group uses the recorded time, not `now`, and never
  /// runs a step apart.
  bool step(Time now);
  /// Between the two, batches fill up instead of leaving with every step, and counts() and view()
  /// lag behind, but never call a group idle that is not. Do not use them around a step that may
  /// take long.
  void begin_burst();
  void end_burst();

  bool begin_step(Time now);
  void run_step();
  /// Completes the step as if the handler had returned `error` without running: for injected
  /// faults, and for replayed ones.
  void fail_step(Error error);
  /// Resource::take_cost() of the owned resources, between run_step() and complete_step().
  Duration step_cost();
  void complete_step(Time now);
  /// Abandons the actor in the handler and replaces it by a fresh or restored one; the message is
  /// refused with kDeadline. Returns an Error when the actor's contract is not restartable: end the
  /// run.
  Status abandon_step(Time now);
  /// Give this to the thread of run_step() to keep alive what it touches: run(*group.running()).
  std::shared_ptr<Running> running() const;
  /// False: the step was abandoned meanwhile, nobody waits for its end.
  static bool run(Running& running);
  /// Whether a handler may run apart from the group: own_thread, one actor, no resources.
  bool may_run_apart() const;
  /// A StepSource still chooses: use step() alone.
  bool is_replaying() const;

  /// Stops sources and queues Actor::drain() of every actor as control inputs. Idempotent.
  void begin_drain(Time now);
  /// Queues the command for every actor here that it is meant for, as a control input; one for
  /// which kCommandsMax wait already answers kExhausted. Not of a replaying group.
  void command(const ActorCommand& command, Time now);
  /// Drains the actors of a tenant that failed, and no others; repeated is harmless. Not of a
  /// replaying group.
  void set_aside(TenantSlot tenant, Time now);
  /// Ends the replay: the step_source has no further step. Arrived messages, timers, pauses and
  /// credit are as the recorded steps left them, and the group chooses its own steps from there.
  /// `now` is not before any recorded time.
  void resume(Time now);
  /// `peer`'s process died: messages that it had not acknowledged are returned, its targets leave
  /// every output, later arrivals of incarnations <= `incarnation` are refused, neighbours get
  /// on_peer(kDown).
  void peer_down(GroupId peer, uint32_t incarnation, Time now);
  /// `peer` is back as `incarnation`: its links begin again at sequence 1 with full credit.
  void peer_up(GroupId peer, uint32_t incarnation, Time now);

  /// The resources that it owns, for a group that takes its place; it does nothing more.
  std::vector<std::unique_ptr<Resource>> take_resources();
  /// Ends resources and actors, on the group's thread. The destructor does it too.
  void destroy();

  /// Counters of services().count(), summed over the group's actors, by "instance.name".
  std::vector<std::pair<std::string, int64_t>> counters() const;

  /// Takes part in cut `number`, between two steps and outside of a burst; nothing when it has
  /// already.
  void cut(uint64_t number, Time now);
  uint64_t newest_cut() const;
  /// All that the group is, between two steps and outside of a burst.
  GroupState state() const;
  /// Makes a group that has just started what another one was, of the same plan. Nothing leaves it.
  /// After an error it is no good any more.
  Status restore(const GroupState& state, Time now);

  /// The group whose step the calling thread runs; none outside of steps. A resource that groups
  /// share (a weight channel) learns from it which group calls.
  static GroupId running_here();

  // From any thread ------------------------------------------------------------------------------

  /// progress() answers kStopRequested from now on.
  void request_stop();
  GroupId id() const;
  const std::string& name() const;
  GroupCounts counts() const;
  /// Approximate while the group runs on another thread; exact otherwise.
  GroupView view() const;
  /// Adds this group's side of every edge: what its senders sent and its receivers handled.
  void add_to(std::span<EdgeLedger> ledger) const;
  /// Adds its side of the load of every edge, and one entry per instance. `now`: of its clock.
  void add_load(std::span<EdgeLoad> edges, std::vector<InstanceLoad>& instances, Time now) const;
  /// Exact only between steps: messages of an arriving (in_index) link that wait in the inbox, and
  /// of a leaving (out_index) link that wait in the outbox.
  uint64_t num_waiting_in(uint32_t in_index) const;
  uint64_t num_waiting_out(uint32_t out_index) const;
  /// Messages in the inbox, in the handler and in outboxes; timers and control do not count.
  uint64_t num_held() const;

 private:
  class Body;
  std::unique_ptr<Body> body_;
};

}  // namespace primerl
