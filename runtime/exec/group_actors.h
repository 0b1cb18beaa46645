/// GroupActors: the actors of an actor group and what is kept when one of them is replaced: timers,
/// snapshots, restarts and drains. It applies the effects of a handler, restarts an actor that
/// failed, and knows which tenants finished or failed here.
///
///   handler ends -> apply_effects() -> timers, pauses, finished and failed tenants
///   handler fails -> supervise()    -> drop | restart from the newest snapshot | give up
///
/// It also queues the control inputs of its actors: drains and commands. GroupSteps decides when an
/// input is handled. Messages that a handler emitted belong to GroupLinks.
///
/// Owned by the ActorGroup. Threads: the group's thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/exec/group_links.h"
#include "runtime/exec/group_state.h"
#include "runtime/exec/running.h"

namespace primerl {

class GroupActors {
 public:
  /// `links` must stay valid while the actors exist.
  GroupActors(std::shared_ptr<GroupCommon> common, GroupLinks& links);

  /// Makes every actor and calls Actor::start(), in instance order. Once.
  Status start(Time now);
  void destroy() { slots_.clear(); }

  uint32_t size() const { return static_cast<uint32_t>(slots_.size()); }
  Running& running(uint32_t actor) const { return *slots_[actor].running; }
  /// Keeps the actor alive, also if it is replaced meanwhile.
  std::shared_ptr<Running> share(uint32_t actor) const { return slots_[actor].running; }

  // Effects ---------------------------------------------------------------------------------------

  /// Applies and clears what the handler asked for: timers, pauses, finished and failed tenants.
  void apply_effects(Running& running);
  /// Saves the actor's state for a restart, if its contract and node allow one.
  void save_snapshot(uint32_t actor);
  /// A handler failed: what the node's on_error says.
  void supervise(Running& running, const Error& error, Time now);
  /// Replaces the actor by a new one with the state of the newest snapshot. kInvalid when the
  /// contract allows no restart.
  Status replace(uint32_t actor, Time now);

  // Timers ----------------------------------------------------------------------------------------

  /// The earliest pending timer, or none.
  std::optional<Time> next_timer() const;
  /// Queues the timers that are due at `now`. False: none is due.
  bool wake(Time now);
  /// False: the timer was set again or cancelled since it expired.
  bool is_current(const Input& timer) const {
    return timer.generation == slots_[timer.actor].timer_generations[timer.port];
  }
  /// For a replaying group: the timer expired in the recorded run. False: it is not armed here.
  bool expire(uint32_t actor, uint32_t timer);

  // Drains and commands ---------------------------------------------------------------------------

  /// Queues a drain input for every actor, once.
  void begin_drain(Time now);
  bool is_draining() const { return is_draining_; }
  /// The same for the actors of one failed tenant.
  void set_aside(TenantSlot tenant, Time now);
  /// The same for the actors of a tenant that will leave.
  void drain_tenant(TenantSlot tenant, Time now);
  /// Slots that drain without a failure.
  const std::set<TenantSlot>& leaving() const { return leaving_; }
  /// Whether the slot's actors have nothing left to do.
  bool is_idle(TenantSlot tenant) const;
  bool has_drained(uint32_t actor) const { return slots_[actor].has_drained; }
  /// For a replaying group: the actor drained in the recorded run.
  void follow_drain(uint32_t actor);
  /// Queues the command for every actor that has an input of its type. Beyond kCommandsMax waiting
  /// commands it is answered kExhausted.
  void command(const ActorCommand& command, Time now);
  /// A waiting command became a step.
  void command_begins() { --num_commands_; }
  /// Whether every actor says that it is idle. An actor of a tenant that was set aside may wait for
  /// a message that was lost with the failure, so it counts as idle.
  bool are_idle() const;

  // A tenant joins, changes or leaves -------------------------------------------------------------

  /// Makes the actors of the slot, whose tenant has joined; shared actors know the tenant then.
  Status occupy(TenantSlot tenant, Time now);
  /// Actor::on_tenant() of the slot's actors, then of the shared ones, in instance order. An actor
  /// whose start() failed is left out. Returns the first error, after all were called.
  Status notify(TenantSlot tenant, TenantChange::Kind kind, uint64_t step, Time now);
  /// Tells all actors of the tenants' changes again, before a saved state is restored into them.
  Status repeat_changes(Time now);
  /// The run drains, and the tenant has started after that began.
  void drain_late(TenantSlot tenant, Time now);
  /// Puts place holders in the place of the slot's actors, and forgets all of the slot. The tenant
  /// has left already.
  void vacate(TenantSlot tenant, Time now);
  /// Actors see the tenants of GroupTenants from now on.
  void refresh_tenants();
  /// Whether a work call of the actor may have something to do. After each step of the actor.
  void set_may_work(uint32_t actor, bool may_work) { slots_[actor].may_work = may_work; }

  // A state is saved or restored ------------------------------------------------------------------

  /// Adds actors, timers, tenants and restarts.
  void save(GroupState& state) const;
  /// Makes the slots of the state those of the group: its actors too, but not what resources keep.
  /// Before restore_actors().
  Status restore_slots(const GroupState& state, Time now);
  /// Calls the executor for every tenant that finished or failed.
  Status restore_actors(const GroupState& state);
  void restore_tenants(const GroupState& state);
  /// The record that the group followed has ended: calls the executor for every tenant that has
  /// finished or failed and is still there. Nothing where it was called at once.
  void report_at_end_of_record();
  /// An input of another kind than a message, before the group's first step. A group that follows a
  /// record gets drains and expired timers from the record.
  Status put_back(const SavedInput& saved);
  /// Whether the number of a timer is valid for `actor`.
  bool has_timer(uint32_t actor, uint32_t timer) const {
    return actor < slots_.size() && timer < slots_[actor].timer_generations.size();
  }
  size_t num_timers(uint32_t actor) const { return slots_[actor].timer_generations.size(); }

  // From any thread -------------------------------------------------------------------------------
  const Counter& num_restarts() const { return num_restarts_; }

 private:
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
    bool may_work = false;               // it had an input, or more work, since its last work call
    SavedFields snapshot;                // of the state after its last step
    std::vector<ActorRestart> restarts;  // restarts within the window
  };

  const GroupSetup& setup() const { return common_->setup; }
  Status make_actor(uint32_t actor, Time now);
  void update_vacant();
  uint32_t tenancy_of(TenantSlot tenant) const;
  Status repeat_changes(uint32_t actor, Time now);
  void drain(uint32_t actor, Time now);
  /// While a group follows a record in which tenants come and go: one that finished may have left
  /// since, and the executor would take it for the later tenant of its slot.
  bool reports_later() const;
  void report_tenants();
  TenantSlot tenant_served(Running& running) const;
  void give_up(Running& running, TenantSlot tenant, Error why);
  void set_timer(uint32_t actor, const TimerChange& change, Time now);
  void cancel_timers(uint32_t actor);

  const std::shared_ptr<GroupCommon> common_;
  GroupLinks& links_;
  std::vector<ActorSlot> slots_;  // by index among the group's instances
  std::vector<PendingTimer> timers_;
  bool is_draining_ = false;
  std::set<TenantSlot> finished_;             // tenants that an actor here called finish() for
  std::map<TenantSlot, std::string> failed_;  // tenants that failed here, with the reason
  std::set<TenantSlot> set_aside_;
  std::set<TenantSlot> leaving_;
  size_t num_commands_ = 0;  // commands that wait
  Counter num_restarts_;
};

}  // namespace primerl
