/// GroupCell: one ActorGroup with its arrival queue, driven by a CAF actor.
///
/// Other groups push batches from their threads; the actor's turns take all that has arrived, then
/// give the group a short burst of steps and ship what those emitted, one delivery per destination.
/// A turn that leaves work asks for another, scheduled behind what arrived meanwhile. A push wakes
/// the actor only when no turn is due, so a busy edge does not cost a CAF message per batch.
///
/// A group that may run apart (an own_thread actor without resources) can get stuck in a handler.
/// take_over() then gives the cell to a new actor; if the old one ever returns, it finds that the
/// cell is no longer its own and does not touch the group.
///
/// Threads: push(), order(), take_over(), and what ActorGroup allows, from any thread; turn() on
/// the CAF actor's thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
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

/// A group in a process that died, or that is back.
struct PeerChange {
  GroupId peer;
  bool is_up = false;
  uint32_t incarnation = 0;
};

/// Callbacks of a cell to the executor. Called on the cell's thread, never under its lock.
class CellOwner {
 public:
  virtual ~CellOwner() = default;
  /// Takes what is in the vectors and leaves others, whose memory is reused.
  virtual void deliver(MessageBatch&& batch) = 0;
  virtual void arm(GroupId group, Time at) = 0;
  virtual void tenant_finished(TenantSlot tenant) = 0;
  virtual void tenant_failed(TenantSlot tenant, std::string why) = 0;
  virtual void group_failed(GroupId group, Error error) = 0;
  /// The group left something out of a batch: `from` may not send it.
  virtual void batch_refused(GroupId group, GroupId from, const Error& why) = 0;
  virtual void group_started(GroupId group, Status status) = 0;
  virtual void group_ended(GroupId group) = 0;
  /// A replaying group has reached the end of its record.
  virtual void group_caught_up(GroupId group) = 0;
  /// The group found nothing left to do while the run drains.
  virtual void group_idle() = 0;
  virtual bool is_stopping() const = 0;
  /// The group takes `change` into account from now on.
  virtual void peer_changed(GroupId group, const PeerChange& change) = 0;
  virtual void command_answered(CommandAnswer answer) = 0;
};

class GroupCell final : public GroupExecutor {
 public:
  /// Bits of order(); taken in this order.
  enum Order : uint32_t {
    kStart = 1,      // make resources and actors, tell group_started()
    kGo = 2,         // all groups have started: take inputs
    kAbandon = 4,    // give up the handler that is stuck (after take_over)
    kResume = 8,     // all groups have followed their records: resume(), after group_caught_up
    kDrain = 16,     // of a group that follows its record: takes effect when it has resumed
    kQuit = 32,      // destroy the group on its thread, tell group_ended()
    kWake = 64,      // a timer is due
    kCut = 128,      // take part in a cut (cut())
    kAside = 256,    // tenants are set aside (set_aside()); waits like kDrain
    kCommand = 512,  // commands wait (command()); likewise
  };

  /// `step_source` may be null; with it, setup.step_source is the group's. Both, and `clock`,
  /// outlive the cell.
  GroupCell(GroupSetup setup, bool has_own_thread, CellOwner* owner, const RunClock& clock,
            ReplaySource* step_source);

  ActorGroup& group() { return group_; }
  /// Registers a new CAF actor for this cell; returns the generation that it passes to turn().
  uint32_t adopt();
  void set_wake_up(CafActors::WakeUp wake_up);

  void push(MessageBatch&& batch);
  /// In order, and before every batch pushed later.
  void push(const PeerChange& change);
  void order(uint32_t orders);
  /// kResume, with changes that the group is told before it takes a step by itself.
  void resume(std::span<const PeerChange> changes);
  /// Takes part in cut `number`, between two steps; not while it follows a record.
  void cut(uint64_t number);
  /// The group's actors of `tenant`, which failed, drain.
  void set_aside(TenantSlot tenant);
  /// Its handlers get stuck: messages that still come are refused without running one.
  void refuse();
  /// In order, and before every order given later. kExhausted when kCommandsMax wait.
  Status command(const ActorCommand& command);
  /// True when a handler was running and the cell is free for a new actor. Then: adopt,
  /// set_wake_up, order(kAbandon).
  bool take_over();
  TurnEnd turn(uint32_t generation);

  /// Abandoned handlers that have not returned yet.
  int64_t num_lost() const;
  /// Whether the group has begun to drain: counts read after this include what it has to drain.
  bool is_draining() const { return is_draining_; }
  /// Thread time that this cell's turns took.
  Duration busy() const { return Duration::nanoseconds(static_cast<int64_t>(busy_ns_.get())); }

 private:
  void order(uint32_t orders, std::span<const PeerChange> changes);
  // GroupExecutor, inside group_ calls.
  void ship(MessageBatch&& batch) override { owner_->deliver(std::move(batch)); }
  void tenant_finished(TenantSlot tenant) override { owner_->tenant_finished(tenant); }
  void tenant_failed(TenantSlot tenant, std::string why) override {
    owner_->tenant_failed(tenant, std::move(why));
  }
  void group_failed(GroupId group, Error error) override {
    owner_->group_failed(group, std::move(error));
  }
  void command_answered(CommandAnswer answer) override {
    owner_->command_answered(std::move(answer));
  }

  bool obey(uint32_t orders, uint64_t ordered_cut, Time now);
  void drain_set_aside(Time now);
  void take_commands(Time now);
  Status start(Time now);
  void accept(Time now);
  void take_changes(Time now);
  bool run_burst(uint32_t generation, Time now);
  void follow_record(Time now);
  bool run_apart(uint32_t generation, Time now);
  void rearm();

  CellOwner* const owner_;
  const RunClock& clock_;
  ReplaySource* const step_source_;  // null: nothing to follow
  ActorGroup group_;
  const bool runs_apart_;
  const bool has_own_thread_;

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::vector<MessageBatch>
      arrivals_;  // the first num_arrivals_ are valid; the others keep memory for later ones
  size_t num_arrivals_ = 0;
  std::vector<PeerChange> changes_;
  uint32_t orders_ = 0;
  uint64_t ordered_cut_ = 0;  // newest
  std::set<TenantSlot> set_aside_;
  std::vector<ActorCommand> commands_;  // at most kCommandsMax
  bool is_stuck_ = false;
  bool is_due_ = false;  // a turn is running or will come
  bool has_gone_ = false;
  uint32_t generation_ = 0;  // number of the CAF actor that owns the cell
  bool is_in_handler_ = false;
  int64_t num_lost_ = 0;
  bool was_taken_over_ = false;  // and the new actor has not seen it yet
  std::shared_ptr<const CafActors::WakeUp> wake_up_;

  // Touched by turns alone.
  std::vector<MessageBatch> taken_;
  size_t num_taken_ = 0;
  std::vector<PeerChange> taken_changes_;
  Time armed_;
  bool has_failed_ = false;
  bool has_followed_ = false;   // and the executor was told
  bool drain_waits_ = false;    // for the group to resume
  bool aside_waits_ = false;    // likewise, or for it to start
  bool commands_wait_ = false;  // likewise
  bool has_started_ = false;

  std::atomic<bool> is_draining_{false};
  Counter busy_ns_;
};

}  // namespace primerl
