/// GroupCell: one ActorGroup with its queue of arrivals, driven by a CAF actor.
///
/// Other groups push batches from their threads. One turn of the CAF actor accepts all arrived
/// batches, then makes a short burst of steps and ships what they emitted, one delivery per
/// destination. If work is left, the turn requests another turn, which is scheduled after newer
/// arrivals. A push wakes the actor only when no turn is scheduled, so a busy edge does not cost
/// one CAF message per batch.
///
/// A group whose handler runs apart (an own_thread actor without resources) can get stuck in the
/// handler. take_over() then gives the cell to a new CAF actor. If the old one ever returns, it
/// sees that it no longer owns the cell and does not touch the group.
///
/// Threads: push(), order(), take_over(), and what ActorGroup allows, from any thread; turn() on
/// the CAF actor's thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/exec/actor_group.h"
#include "runtime/exec/caf_actors.h"
#include "runtime/exec/counter.h"
#include "runtime/exec/replay_source.h"
#include "runtime/exec/run_clock.h"

namespace primerl {

/// A group whose process died or runs again.
struct PeerChange {
  GroupId peer;
  bool is_up = false;
  uint32_t incarnation = 0;
};

/// Callbacks of a cell to the executor. Called on the cell's thread, never under its lock.
class CellOwner {
 public:
  virtual ~CellOwner() = default;
  /// Moves out the vectors' contents, or swaps in other vectors whose memory is reused.
  virtual void deliver(MessageBatch&& batch) = 0;
  virtual void arm(GroupId group, Time at) = 0;
  virtual void tenant_finished(TenantSlot tenant, uint32_t tenancy) = 0;
  virtual void tenant_failed(TenantSlot tenant, uint32_t tenancy, std::string why) = 0;
  virtual void group_failed(GroupId group, Error error) = 0;
  /// The group skipped a part of a batch, because `from` may not send it.
  virtual void batch_refused(GroupId group, GroupId from, const Error& why) = 0;
  virtual void group_started(GroupId group, Status status) = 0;
  virtual void group_ended(GroupId group) = 0;
  /// A replaying group has reached the end of its record.
  virtual void group_caught_up(GroupId group) = 0;
  /// The group has nothing left to do while the run drains.
  virtual void group_idle() = 0;
  virtual bool is_stopping() const = 0;
  /// From now on the group uses the peer state in `change`.
  virtual void peer_changed(GroupId group, const PeerChange& change) = 0;
  virtual void command_answered(CommandAnswer answer) = 0;
  virtual void tenant_changed(GroupId group, const TenantChange& change, Status status) = 0;
};

class GroupCell final : public GroupExecutor {
 public:
  /// Bits of order(); applied in this order.
  enum Order : uint32_t {
    kStart = 1,      // make resources and actors, then call group_started()
    kGo = 2,         // all groups have started: accept inputs
    kAbandon = 4,    // abandon the stuck handler (after take_over)
    kResume = 8,     // all groups reached the end of their records: resume(), after group_caught_up
    kDrain = 16,     // drain; a group that follows its record drains after it resumed
    kQuit = 32,      // destroy the group on its thread, then call group_ended()
    kWake = 64,      // a timer has expired
    kCut = 128,      // join a cut (cut())
    kAside = 256,    // set tenants aside (set_aside()); waits like kDrain
    kCommand = 512,  // handle waiting commands (command()); waits like kDrain
    kAnswers = 1024,  // answers from outside have arrived
    kTenants = 2048,  // drains and changes of tenants (change_tenant()); waits like kDrain
  };

  /// `step_source` may be null; otherwise setup.step_source must be the group's own. Both, and
  /// `clock`, must stay valid while the cell exists.
  GroupCell(GroupSetup setup, bool has_own_thread, CellOwner* owner, const RunClock& clock,
            ReplaySource* step_source);

  ActorGroup& group() { return group_; }
  /// Before kStart: changes of tenants that the group makes when it has started.
  void begin_with(std::vector<TenantChange> changes) { begins_with_ = std::move(changes); }
  /// Registers a new CAF actor for this cell; returns its generation number, which it must give to
  /// turn().
  uint32_t adopt();
  void set_wake_up(CafActors::WakeUp wake_up);

  void push(MessageBatch&& batch);
  /// Applied in order, before every batch that is pushed later.
  void push(const PeerChange& change);
  void order(uint32_t orders);
  /// kResume; the group applies `changes` before the first step that it chooses itself.
  void resume(std::span<const PeerChange> changes);
  /// Joins cut `number` between two steps; not while the group follows a record.
  void cut(uint64_t number);
  /// Drains the actors of `tenant`, which failed.
  void set_aside(TenantSlot tenant);
  /// Applied in order, with drain_tenant(). After the group resumed, if it follows a record.
  void change_tenant(const TenantChange& change);
  void drain_tenant(TenantSlot tenant);
  /// Counts of a slot whose drain was ordered; idle only after the group began that drain.
  SlotCounts slot_counts(TenantSlot tenant) const;
  /// Its handlers get stuck: from now on messages are refused without running a handler.
  void refuse();
  /// Applied in order, before every order that is given later. kExhausted when kCommandsMax
  /// commands wait.
  Status command(const ActorCommand& command);
  /// True: a handler was running, and the cell is free for a new CAF actor. Then call adopt,
  /// set_wake_up, order(kAbandon).
  bool take_over();
  TurnEnd turn(uint32_t generation);

  /// Number of abandoned handlers that have not returned yet.
  int64_t num_lost() const;
  /// Whether the group has begun to drain. Counts that are read afterwards include its drain
  /// inputs.
  bool is_draining() const { return is_draining_; }
  /// Thread time used by this cell's turns.
  Duration busy() const { return Duration::nanoseconds(static_cast<int64_t>(busy_ns_.get())); }

 private:
  /// A change, or the drain of a slot.
  struct TenantWork {
    std::optional<TenantChange> change;
    TenantSlot drain;
  };
  void order(uint32_t orders, std::span<const PeerChange> changes);
  // GroupExecutor; called by group_.
  void ship(MessageBatch&& batch) override { owner_->deliver(std::move(batch)); }
  void tenant_finished(TenantSlot tenant, uint32_t tenancy) override {
    owner_->tenant_finished(tenant, tenancy);
  }
  void tenant_failed(TenantSlot tenant, uint32_t tenancy, std::string why) override {
    owner_->tenant_failed(tenant, tenancy, std::move(why));
  }
  void group_failed(GroupId group, Error error) override {
    owner_->group_failed(group, std::move(error));
  }
  void tenant_changed(GroupId group, const TenantChange& change, Status status) override {
    owner_->tenant_changed(group, change, std::move(status));
  }
  void command_answered(CommandAnswer answer) override {
    owner_->command_answered(std::move(answer));
  }

  bool obey(uint32_t orders, uint64_t ordered_cut, Time now);
  void drain_set_aside(Time now);
  void take_commands(Time now);
  void take_tenants(Time now);
  Status start(Time now);
  void accept(Time now);
  void take_changes(Time now);
  bool run_burst(uint32_t generation, Time now);
  void follow_record(Time now);
  bool run_apart(uint32_t generation, Time now);
  void rearm();

  CellOwner* const owner_;
  const RunClock& clock_;
  ReplaySource* const step_source_;  // null: there is no record to follow
  ActorGroup group_;
  const bool has_own_thread_;
  std::vector<TenantChange> begins_with_;

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::vector<MessageBatch>
      // the first num_arrivals_ are valid; the others keep memory for later ones
      arrivals_;
  size_t num_arrivals_ = 0;
  std::vector<PeerChange> changes_;
  uint32_t orders_ = 0;
  uint64_t ordered_cut_ = 0;             // newest
  std::set<TenantSlot> set_aside_;       // not yet given to the group
  std::vector<ActorCommand> commands_;   // at most kCommandsMax
  std::vector<TenantWork> tenants_;      // in the order in which they were given
  std::multiset<TenantSlot> undrained_;  // slots of the drains in tenants_
  bool is_stuck_ = false;
  bool is_due_ = false;  // a turn runs or is scheduled
  bool has_gone_ = false;
  uint32_t generation_ = 0;  // number of the CAF actor that owns the cell
  bool is_in_handler_ = false;
  int64_t num_lost_ = 0;
  bool was_taken_over_ = false;  // and the new actor has not noticed it yet
  std::shared_ptr<const CafActors::WakeUp> wake_up_;

  // Used by turns only.
  std::vector<MessageBatch> taken_;
  size_t num_taken_ = 0;
  std::vector<PeerChange> taken_changes_;
  Time armed_;
  bool has_failed_ = false;
  bool has_followed_ = false;   // and the executor was notified
  bool drain_waits_ = false;    // until the group resumes
  bool aside_waits_ = false;    // until the group resumes or starts
  bool commands_wait_ = false;  // until the group resumes
  bool tenants_wait_ = false;   // until the group resumes or starts
  bool has_started_ = false;

  std::atomic<bool> is_draining_{false};
  Counter busy_ns_;
};

}  // namespace primerl
