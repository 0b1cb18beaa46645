#include "runtime/exec/caf_group.h"

#include <algorithm>

#include "runtime/exec/caf_timers.h"
#include "runtime/exec/running.h"

namespace primerl {
namespace {

constexpr int kStepsPerReading = 8;
// Maximum for the steps that share one clock reading.
constexpr Duration kQuick = Duration::microseconds(5);
// A burst ends after kBurstSteps or this time, whichever comes first. It is long enough to amortize
// the cost of a turn, and short enough that an arrival does not wait.
constexpr Duration kBurstTime = Duration::microseconds(20);

}  // namespace

GroupCell::GroupCell(GroupSetup setup, bool has_own_thread, CellOwner* owner, const RunClock& clock,
                     ReplaySource* step_source)
    : owner_(owner),
      clock_(clock),
      step_source_(step_source),
      group_([this, &setup] {
        setup.executor = this;
        return std::move(setup);
      }()),
      has_own_thread_(has_own_thread),
      armed_(kNever) {}

uint32_t GroupCell::adopt() {
  const std::lock_guard lock(mutex_);
  return generation_;
}

void GroupCell::set_wake_up(CafActors::WakeUp wake_up) {
  auto shared = wake_up ? std::make_shared<const CafActors::WakeUp>(std::move(wake_up)) : nullptr;
  // The old one is destroyed after the lock is released, because its actor may end with it.
  const std::lock_guard lock(mutex_);
  std::swap(wake_up_, shared);
  is_due_ = false;
}

void GroupCell::push(MessageBatch&& batch) {
  std::shared_ptr<const CafActors::WakeUp> wake_up;
  {
    const std::lock_guard lock(mutex_);
    if (num_arrivals_ == arrivals_.size()) arrivals_.emplace_back();
    MessageBatch& arrival = arrivals_[num_arrivals_++];
    arrival.from = batch.from;
    arrival.to = batch.to;
    arrival.incarnation = batch.incarnation;
    arrival.cut = batch.cut;
    arrival.messages.swap(batch.messages);
    arrival.grants.swap(batch.grants);
    if (is_due_ || !has_gone_) return;
    is_due_ = true;
    wake_up = wake_up_;
  }
  if (wake_up != nullptr) (*wake_up)();
}

void GroupCell::push(const PeerChange& change) {
  std::shared_ptr<const CafActors::WakeUp> wake_up;
  {
    const std::lock_guard lock(mutex_);
    changes_.push_back(change);
    if (is_due_ || !has_gone_) return;
    is_due_ = true;
    wake_up = wake_up_;
  }
  if (wake_up != nullptr) (*wake_up)();
}

void GroupCell::order(uint32_t orders) { order(orders, {}); }

/// Orders and changes are added under one lock. Otherwise a turn in between would let the group
/// send to a peer that it was not notified of.
void GroupCell::resume(std::span<const PeerChange> changes) { order(kResume, changes); }

void GroupCell::order(uint32_t orders, std::span<const PeerChange> changes) {
  std::shared_ptr<const CafActors::WakeUp> wake_up;
  {
    const std::lock_guard lock(mutex_);
    orders_ |= orders;
    changes_.insert(changes_.end(), changes.begin(), changes.end());
    if (is_due_) return;
    is_due_ = true;
    wake_up = wake_up_;
  }
  if (wake_up != nullptr) (*wake_up)();
}

void GroupCell::cut(uint64_t number) {
  {
    const std::lock_guard lock(mutex_);
    ordered_cut_ = std::max(ordered_cut_, number);
  }
  order(kCut);
}

void GroupCell::set_aside(TenantSlot tenant) {
  {
    const std::lock_guard lock(mutex_);
    set_aside_.insert(tenant);
  }
  order(kAside);
}

void GroupCell::change_tenant(const TenantChange& change) {
  {
    const std::lock_guard lock(mutex_);
    tenants_.push_back({change, {}});
  }
  order(kTenants);
}

void GroupCell::drain_tenant(TenantSlot tenant) {
  {
    const std::lock_guard lock(mutex_);
    if (undrained_.contains(tenant) && !tenants_.back().change) return;
    tenants_.push_back({std::nullopt, tenant});
    undrained_.insert(tenant);
  }
  order(kTenants);
}

SlotCounts GroupCell::slot_counts(TenantSlot tenant) const {
  bool is_waiting = false;
  {
    const std::lock_guard lock(mutex_);
    is_waiting = undrained_.contains(tenant);
  }
  SlotCounts counts = group_.slot_counts(tenant);
  counts.is_idle = counts.is_idle && !is_waiting;
  return counts;
}

void GroupCell::refuse() {
  const std::lock_guard lock(mutex_);
  is_stuck_ = true;
}

Status GroupCell::command(const ActorCommand& command) {
  {
    const std::lock_guard lock(mutex_);
    if (commands_.size() >= kCommandsMax)
      return error(Code::kExhausted, "{} commands wait for it already", commands_.size());
    commands_.push_back(command);
  }
  order(kCommand);
  return ok();
}

bool GroupCell::take_over() {
  const std::lock_guard lock(mutex_);
  if (!is_in_handler_) return false;
  ++generation_;
  ++num_lost_;
  is_in_handler_ = false;
  was_taken_over_ = true;
  return true;
}

int64_t GroupCell::num_lost() const {
  const std::lock_guard lock(mutex_);
  return num_lost_;
}

TurnEnd GroupCell::turn(uint32_t generation) {
  uint32_t orders = 0;
  uint64_t ordered_cut = 0;
  bool may_step = false;
  {
    const std::lock_guard lock(mutex_);
    if (generation != generation_) return TurnEnd::kQuit;
    orders = std::exchange(orders_, 0);
    ordered_cut = ordered_cut_;
    has_gone_ = has_gone_ || (orders & kGo) != 0;
    may_step = has_gone_;
    if (may_step) {
      std::swap(taken_, arrivals_);
      std::swap(taken_changes_, changes_);
      num_taken_ = std::exchange(num_arrivals_, 0);
    }
  }
  const Time now = clock_.now();
  if (orders != 0 && !obey(orders, ordered_cut, now)) return TurnEnd::kQuit;
  if (may_step && !owner_->is_stopping() && !has_failed_) {
    // No burst on an own thread: a step there may be long, and the outputs of earlier steps would
    // wait until it ends.
    take_changes(now);
    if (!has_own_thread_) group_.begin_burst();
    accept(now);
    if (group_.is_replaying()) {
      follow_record(now);
    } else {
      if (const auto at = group_.next_timer(); at && *at <= now) group_.wake(now);
      if (!run_burst(generation, now)) return TurnEnd::kQuit;
    }
    if (!has_own_thread_) group_.end_burst();
    if (!group_.is_replaying()) rearm();
    // The clock may have been set back to the end of a record.
    busy_ns_.add(
        static_cast<uint64_t>(std::max<int64_t>((clock_.now() - now).to_nanoseconds(), 0)));
  }
  bool is_idle = false;
  {
    const std::lock_guard lock(mutex_);
    may_step = has_gone_ && !has_failed_ && !owner_->is_stopping();
    if (orders_ != 0 || (may_step && (num_arrivals_ > 0 || !changes_.empty() || group_.ready())))
      return TurnEnd::kMore;
    is_due_ = false;
    is_idle = may_step;
  }
  if (is_idle && is_draining_) owner_->group_idle();
  return TurnEnd::kIdle;
}

/// Applied before the batches of the same turn, so that a dead peer's last batches count as an old
/// incarnation's.
void GroupCell::take_changes(Time now) {
  for (const PeerChange& change : taken_changes_) {
    if (change.is_up) {
      group_.peer_up(change.peer, change.incarnation, now);
    } else {
      group_.peer_down(change.peer, change.incarnation, now);
    }
    owner_->peer_changed(group_.id(), change);
  }
  taken_changes_.clear();
}

Status GroupCell::start(Time now) {
  if (step_source_ == nullptr) {
    RETURN_IF_ERROR(group_.start(now));
    for (const TenantChange& change : begins_with_) {
      if (!group_.concerns(change.slot)) continue;
      group_.change_tenant(change, now);
      (void)group_.step(now);  // control inputs come first
    }
    return ok();
  }
  const Time began = step_source_->started(group_.id());
  const GroupState* state = step_source_->state_of(group_.id());
  if (state == nullptr) return group_.start(began);
  return group_.start_from(*state, step_source_->in_transit_to(group_.id()), began);
}

bool GroupCell::obey(uint32_t orders, uint64_t ordered_cut, Time now) {
  if ((orders & kStart) != 0) {
    auto status = start(now);
    has_failed_ = !status.ok();
    has_started_ = true;
    owner_->group_started(group_.id(), std::move(status));
  }
  if ((orders & kQuit) != 0) {
    // Later effects of an abandoned handler must be ignored.
    if (was_taken_over_) group_.running()->abandon();
    group_.destroy();
    owner_->group_ended(group_.id());
    return false;
  }
  if ((orders & kAbandon) != 0) {
    was_taken_over_ = false;
    if (auto status = group_.abandon_step(now); !status.ok()) {
      has_failed_ = true;
      owner_->group_failed(group_.id(), status.error());
    }
  }
  if ((orders & kResume) != 0 && !has_failed_) group_.resume(now);
  if ((orders & kCut) != 0 && !has_failed_ && !group_.is_replaying()) group_.cut(ordered_cut, now);
  aside_waits_ = aside_waits_ || (orders & kAside) != 0;
  if (aside_waits_ && has_started_ && !has_failed_ && !group_.is_replaying()) drain_set_aside(now);
  commands_wait_ = commands_wait_ || (orders & kCommand) != 0;
  if (commands_wait_ && has_started_ && !has_failed_ && !group_.is_replaying()) take_commands(now);
  tenants_wait_ = tenants_wait_ || (orders & kTenants) != 0;
  if (tenants_wait_ && has_started_ && !has_failed_ && !group_.is_replaying()) take_tenants(now);
  drain_waits_ = drain_waits_ || (orders & kDrain) != 0;
  if (drain_waits_ && !has_failed_ && !group_.is_replaying()) {
    drain_waits_ = false;
    group_.begin_drain(now);
    // Set last: a reader that sees it relies on the group's counts to include the drain inputs.
    is_draining_ = true;
  }
  if ((orders & kWake) != 0) armed_ = kNever;
  if ((orders & kAnswers) != 0 && has_started_ && !has_failed_ && !group_.is_replaying())
    group_.answers_arrived();
  return true;
}

void GroupCell::drain_set_aside(Time now) {
  aside_waits_ = false;
  std::set<TenantSlot> tenants;
  {
    const std::lock_guard lock(mutex_);
    // Once each: another tenant may have the slot when the next order comes.
    tenants.swap(set_aside_);
  }
  for (const TenantSlot tenant : tenants) group_.set_aside(tenant, now);
}

void GroupCell::take_tenants(Time now) {
  tenants_wait_ = false;
  std::vector<TenantWork> works;
  {
    const std::lock_guard lock(mutex_);
    works.swap(tenants_);
  }
  for (const TenantWork& each : works) {
    if (each.change)
      group_.change_tenant(*each.change, now);
    else
      group_.drain_tenant(each.drain, now);
    const std::lock_guard lock(mutex_);
    if (!each.change) undrained_.erase(undrained_.find(each.drain));
    // Another tenant of the slot has its own count of stuck handlers.
    if (each.change && each.change->kind == TenantChange::Kind::kJoin) is_stuck_ = false;
  }
}

void GroupCell::take_commands(Time now) {
  commands_wait_ = false;
  std::vector<ActorCommand> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (const ActorCommand& each : commands) group_.command(each, now);
}

void GroupCell::accept(Time now) {
  for (size_t i = 0; i < num_taken_; ++i) {
    MessageBatch& batch = taken_[i];
    auto status = has_failed_ ? ok() : group_.accept(std::move(batch), now);
    batch.messages.clear();
    batch.grants.clear();
    if (!status.ok()) owner_->batch_refused(group_.id(), batch.from, status.error());
  }
  num_taken_ = 0;
}

bool GroupCell::run_burst(uint32_t generation, Time now) {
  const Time until = now + kBurstTime;
  for (int i = 0; i < kBurstSteps && now < until; ++i) {
    if (owner_->is_stopping() || has_failed_) break;
    if (group_.may_run_apart()) {
      if (!group_.ready()) break;
      if (!run_apart(generation, now)) return false;
    } else if (has_own_thread_) {
      // These steps are long, so the clock is read again at their end, for the record.
      if (!group_.begin_step(now)) break;
      group_.run_step();
      group_.complete_step(clock_.now());
    } else if (!group_.step(now)) {
      break;
    }
    // Quick handlers share one clock reading for a few steps; handlers with resources are not
    // quick.
    if (!has_own_thread_ && i % kStepsPerReading != 0) continue;
    if (!group_.ready()) break;
    const Time last = std::exchange(now, clock_.now());
    if (now - last > kQuick) break;
  }
  return true;
}

void GroupCell::follow_record(Time now) {
  for (int i = 0; i < kBurstSteps; ++i) {
    if (owner_->is_stopping() || has_failed_ || !group_.step(now)) break;
    if (auto fault = step_source_->fault(group_.id())) {
      has_failed_ = true;
      return owner_->group_failed(group_.id(), std::move(*fault));
    }
  }
  if (has_failed_ || has_followed_ || step_source_->step_source(group_.id()).next() != nullptr)
    return;
  if (auto fault = step_source_->fault(group_.id())) {  // of the first step
    has_failed_ = true;
    return owner_->group_failed(group_.id(), std::move(*fault));
  }
  has_followed_ = true;
  owner_->group_caught_up(group_.id());
}

bool GroupCell::run_apart(uint32_t generation, Time now) {
  if (!group_.begin_step(now)) return true;
  if (!group_.step_runs_apart()) {
    group_.run_step();
    group_.complete_step(clock_.now());
    return true;
  }
  // Keeps the actor alive while this thread runs it, even if the group is destroyed.
  const auto running = group_.running();
  bool is_refused = false;
  {
    const std::lock_guard lock(mutex_);
    is_refused = is_stuck_ && running->input().kind == StepKind::kMessage;
    is_in_handler_ = !is_refused;
  }
  if (is_refused) {
    group_.fail_step(error(Code::kCancelled, "its handlers are stuck"));
    group_.complete_step(clock_.now());
    return true;
  }
  ActorGroup::run(*running);
  {
    const std::lock_guard lock(mutex_);
    if (generation != generation_) {
      --num_lost_;
      return false;
    }
    is_in_handler_ = false;
  }
  group_.complete_step(clock_.now());
  return true;
}

void GroupCell::rearm() {
  const auto next = group_.next_timer();
  if (!next || *next >= armed_) return;
  armed_ = *next;
  owner_->arm(group_.id(), armed_);
}

}  // namespace primerl
