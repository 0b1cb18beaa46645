/// The internals of an ActorGroup (its manual is in actor_group.h). Files: actor_group.cc (start,
/// end, queries), group_step.cc (steps), group_links.cc (batches, peers, ledger), group_state.cc
/// (saving and restoring) and group_fits.cc (whether a saved state fits the plan).
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/outside.h"
#include "runtime/exec/actor_group.h"
#include "runtime/exec/flow.h"
#include "runtime/exec/group_state.h"
#include "runtime/exec/inbox.h"
#include "runtime/exec/process_cut.h"
#include "runtime/exec/running.h"

namespace primerl {

class ActorGroup::Body {
 public:
  static thread_local uint32_t here;  // GroupId of the step that this thread runs

  explicit Body(GroupSetup setup);
  ~Body() { destroy(); }

  // actor_group.cc
  Status start(Time now, const GroupState* from = nullptr);
  void destroy();
  void begin_drain(Time now);
  void set_aside(TenantSlot tenant, Time now);
  void drain_actor(uint32_t actor, Time now);
  void command(const ActorCommand& command, Time now);
  TenantSlot tenant_of(uint32_t actor) const {
    return setup().plan->instance(planned_.instances[actor]).tenant;
  }
  void resume(Time now);
  void choose_observed();
  bool may_run_apart() const;
  GroupCounts counts() const;
  GroupView view() const;
  void update_gauge();

  // group_state.cc
  GroupState state() const;
  void cut(uint64_t number, Time now);
  Status start_from(const GroupState& state, std::span<const SavedMessage> in_transit, Time now);
  Status restore(const GroupState& state, Time now);
  Status restore_resources(const GroupState& state);
  Status put_back(const SavedInput& saved);
  void send_again(OutLink& out, Envelope&& envelope);
  void settle_as_received(OutLink& out, std::span<const Envelope> unacknowledged,
                          std::span<const Envelope> outbox);
  Status check_fits(const GroupState& state) const;  // group_fits.cc
  Status restore_actors(const GroupState& state);
  Status restore_in_links(const GroupState& state);
  Status restore_out_links(const GroupState& state);
  Result<Input> restored_input(const SavedMessage& saved) const;

  // group_step.cc
  bool ready() const;
  bool may_work() const;
  bool begin_step(Time now);
  void run_step();
  void run_actors();
  void fail_step(Error error);
  void complete_step(Time now);
  Status abandon_step(Time now);
  void wake(Time now);

  // group_links.cc
  Status accept(MessageBatch&& batch, Time now);
  void peer_down(GroupId peer, uint32_t incarnation, Time now);
  void peer_up(GroupId peer, uint32_t incarnation, Time now);
  void add_to(std::span<EdgeLedger> ledger) const;
  void add_load(std::span<EdgeLoad> edges, std::vector<InstanceLoad>& instances, Time now) const;

  const GroupSetup& setup() const { return common_->setup; }

  struct PendingTimer {
    Time due;
    uint32_t actor = 0;
    uint32_t timer = 0;
    uint64_t generation = 0;
  };
  /// Data that is kept when an actor is replaced.
  struct ActorSlot {
    std::shared_ptr<Running> running;
    std::vector<uint64_t> timer_generations;
    bool keeps_snapshot = false;
    bool has_drained = false;            // its drain is queued or done
    SavedFields snapshot;                // taken after the last step that succeeded
    std::vector<ActorRestart> restarts;  // restarts within the window
  };
  struct OpenBatch {
    MessageBatch batch;
    std::vector<uint32_t> ungranted;  // in_index of links that have settled messages without a
                                      // grant
    bool is_due = false;              // must ship at the end of this step
    bool is_touched = false;          // is an element of touched_
    uint32_t peer_incarnation = 0;    // grants of older incarnations are ignored
  };

  // Between the parts.
  void complete_actor(Running& running, Time now);
  void complete_failed(Running& running, Time now);
  void answer_command(Running& running);
  void apply_effects(Running& running);
  void release(Running& running, Time now);
  void route(Running& running, PendingEmission& emission, Time now);
  void emit_on(OutLink& out, Envelope&& envelope, Time now);
  void ship(OutLink& out, Envelope&& envelope);
  void grant(OutLink& out, uint64_t num_messages, uint64_t num_bytes);
  Status accept_grant(GroupId from, const Grant& given);
  Status accept_message(GroupId from, BatchedMessage&& message, Time now);
  void settle(const Input& input);
  void grant_when_due(uint32_t in_index);
  void flush();
  void touch(uint32_t peer);
  void mark_due(uint32_t peer);
  uint32_t peer_index(GroupId group) const;
  bool is_remote(uint32_t peer) const;
  void supervise(Running& running, const Error& error, Time now);
  TenantSlot tenant_served(Running& running) const;
  void give_up(Running& running, TenantSlot tenant, Error why);
  Status replace(uint32_t actor, bool restore, Time now);
  void take_snapshot(ActorSlot& slot);
  void set_timer(uint32_t actor, const TimerChange& change, Time now);
  void cancel_timers(uint32_t actor);
  void arm_work();
  void check_bound(InLink& in);
  void record(Running& running, bool is_abandoned, Time ended);
  bool replayed_ready() const;
  bool replayed_step();
  void begin_work(Time now);
  void begin_input(Input&& input, Time now);
  void mark_running(Time now);
  void set_now(Time now) {
    now_ = now;
    common_->flow->set_now(now);
  }
  Input replayed_input(const RecordedStep& step);
  void after_change();
  void follow_peer(uint32_t actor, const PeerEvent& event);
  void set_peer_incarnation(GroupId peer, uint32_t incarnation);
  void tell_peer_event(GroupId peer, PeerEvent::Kind kind, uint32_t incarnation, Time now);

  const std::shared_ptr<GroupCommon> common_;
  const PlanGroup& planned_;
  const GroupWiring& wires_;
  Inbox inbox_;
  std::vector<ActorSlot> slots_;
  std::vector<OpenBatch> batches_;  // parallel to wires_.peers
  std::vector<uint32_t> touched_;   // peers whose batch is not empty
  std::vector<uint32_t> in_peer_;   // peer of each incoming link, or none
  std::vector<uint32_t> out_peer_;  // peer of each outgoing link
  std::vector<PendingTimer> timers_;
  /// For a replaying group: the last event of a connected process that each actor was notified of.
  std::map<std::pair<uint32_t, InstanceId>, PeerEvent::Kind> told_;
  std::vector<bool> observes_;            // by out_index: the observer wants the link's emissions
  std::vector<BatchedMessage> recorded_;  // emissions of this step, on links that the observer
                                          // wants
  uint32_t num_step_emissions_ = 0;
  std::vector<int64_t> room_answers_;  // of all actors of a work call
  Time now_;                           // time of the current step or batch

  uint64_t cut_ = 0;                      // number of the newest cut that the group joined
  std::vector<const Outside*> outsides_;  // of the group's resources
  bool works_ = false;                    // some actor implements work()
  bool work_armed_ = false;
  uint64_t work_arrival_ = 0;
  bool is_started_ = false;
  bool is_in_burst_ = false;  // batches and gauges are updated at its end
  bool is_draining_ = false;
  std::set<TenantSlot> finished_;             // tenants that an actor here called finish() for
  std::map<TenantSlot, std::string> failed_;  // tenants that failed here, with the reason
  std::set<TenantSlot> set_aside_;
  size_t num_commands_ = 0;  // commands that wait

  // The current step.
  enum class Step { kNone, kInput, kWork } step_ = Step::kNone;
  uint32_t current_ = 0;  // index of the actor whose step it is
  bool is_injected_ = false;
  Status resource_status_;

  // Read by any thread.
  Counter num_steps_, num_shipped_, num_received_, num_restarts_, num_abandoned_;
  Counter waiting_, oldest_arrival_, running_since_;
  Counter handling_, handling_type_, handling_kind_, handling_link_, handling_sequence_;
  Counter is_idle_, is_running_, is_ready_;
};

}  // namespace primerl
