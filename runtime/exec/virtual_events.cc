// The event loop of VirtualExecutor: choosing, beginning and ending steps, the clock, the end of a
// run.
#include <algorithm>

#include "runtime/exec/running.h"
#include "runtime/exec/virtual_executor.h"

namespace primerl {

bool VirtualExecutor::advance() {
  if (outcome_) return false;
  if (++num_events_ > options_.events_max)
    broken(fmt::format("the run has not ended after {} events", options_.events_max));
  if (is_stop_requested_) finish_run(RunEnd::kInterrupted, ok());
  const bool all_finished = !options_.is_hosted && !finished_.empty() &&
                            std::find(finished_.begin(), finished_.end(), false) == finished_.end();
  if (!outcome_ && !is_replaying_ && std::exchange(is_set_aside_ordered_, false))
    for (GroupSlot& slot : slots_)
      for (const auto& [tenant, why] : set_aside_)
        if (slot.group) slot.group->set_aside(tenant, now_);
  const bool may_drain = !is_replaying_ && !drain_deadline_;
  if (!outcome_ && may_drain && (all_finished || is_drain_requested_)) begin_drain();
  if (outcome_) return false;
  if (look_for_drained()) return true;
  if (step_something()) return true;
  if (is_replaying_) {
    finish_run(RunEnd::kFailed, options_.step_source->stuck());
    return false;
  }
  look_for_end();
  if (outcome_) return false;
  return jump();
}

bool VirtualExecutor::is_at_end_of_record() const {
  for (uint32_t i = 0; i < slots_.size(); ++i)
    if (options_.step_source->step_source(GroupId(i)).next() != nullptr) return false;
  return true;
}

void VirtualExecutor::resume() {
  is_replaying_ = false;
  options_.step_source->resume();
  now_ = std::max(now_, options_.step_source->ended());
  for (GroupSlot& slot : slots_) slot.group->resume(now_);
  check_invariants();
}

/// False when the record cannot be followed, which ends the run.
bool VirtualExecutor::step_as_recorded(GroupSlot& slot) {
  slot.group->step(now_);
  if (auto fault = options_.step_source->fault(slot.group->id())) {
    group_failed(slot.group->id(), std::move(*fault));
    return false;
  }
  return true;
}

bool VirtualExecutor::step_something() {
  if (is_replaying_ && is_at_end_of_record()) resume();
  for (GroupSlot& slot : slots_) {
    if (!slot.group || is_replaying_) continue;
    const auto timer = slot.group->next_timer();
    if (timer && *timer <= now_) slot.group->wake(now_);
  }
  runnable_.clear();
  for (uint32_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].group && !slots_[i].is_busy && slots_[i].group->ready()) runnable_.push_back(i);
  const size_t num_groups = runnable_.size();
  for (uint32_t i = 0; i < queues_.size(); ++i)
    if (may_deliver(queues_[i])) runnable_.push_back(i);
  const size_t num_steps_and_arrivals = runnable_.size();
  for (uint32_t i = 0; i < slots_.size(); ++i)
    if (may_cut(slots_[i])) runnable_.push_back(i);
  if (runnable_.empty()) return false;
  const uint64_t chosen = choice_.below(runnable_.size());
  if (chosen < num_groups && is_replaying_) return step_as_recorded(slots_[runnable_[chosen]]);
  if (chosen < num_groups)
    begin(slots_[runnable_[chosen]]);
  else if (chosen < num_steps_and_arrivals)
    deliver(queues_[runnable_[chosen]]);
  else
    slots_[runnable_[chosen]].group->cut(ordered_cut_, now_);
  check_some_invariants();
  return true;
}

/// A group in a step cannot cut: a batch of a newer cut waits for the end of it.
bool VirtualExecutor::may_deliver(const BatchQueue& queue) const {
  if (queue.batches.empty()) return false;
  const GroupSlot& to = slots_[queue.to.index()];
  return !to.group || !to.is_busy || queue.batches.front().cut <= to.group->newest_cut();
}

bool VirtualExecutor::may_cut(const GroupSlot& slot) const {
  return slot.group != nullptr && !slot.is_busy && !is_replaying_ && options_.cuts != nullptr &&
         slot.group->newest_cut() < ordered_cut_;
}

StepAbout VirtualExecutor::about(const GroupSlot& slot) {
  const GroupView view = slot.group->view();
  const Input& input = slot.group->running()->input();
  StepAbout about;
  about.instance = view.handling;
  about.kind = view.handling_kind;
  if (about.kind == StepKind::kTenant) {
    about.delivery = ++num_deliveries_[{UINT32_MAX - view.group.value - 1, about.kind}];
    return about;
  }
  if (input.kind == StepKind::kMessage) {
    about.type = input.envelope.payload.type;
    about.tenant = input.envelope.tenant;
  }
  const uint32_t who =
      input.kind == StepKind::kWork ? UINT32_MAX - view.group.value - 1 : view.handling.value;
  about.delivery = ++num_deliveries_[{who, input.kind}];
  return about;
}

void VirtualExecutor::begin(GroupSlot& slot) {
  ActorGroup& group = *slot.group;
  if (!group.begin_step(now_)) return;
  Injection injection;
  const StepAbout step = about(slot);
  if (options_.step_hooks != nullptr) injection = options_.step_hooks->before(step);
  if (slot.is_refusing && step.kind == StepKind::kMessage)
    injection = {.failure = error(Code::kCancelled, "its handlers are stuck"), .takes = {}};
  if (injection.failure && step.kind != StepKind::kWork && step.kind != StepKind::kTenant)
    group.fail_step(std::move(*injection.failure));
  else
    group.run_step();
  const Duration lasts = group.step_cost() + injection.takes;
  if (lasts == Duration()) {
    group.complete_step(now_);
    return;
  }
  slot.is_busy = true;
  slot.is_stuck = group.step_runs_apart() && lasts > apart_limit_;
  slot.busy_until = now_ + (slot.is_stuck ? apart_limit_ : lasts);
  slot.stuck_until = now_ + lasts;
}

void VirtualExecutor::end(GroupSlot& slot) {
  slot.is_busy = false;
  if (slot.is_stuck) return abandon(slot);
  slot.group->complete_step(now_);
  check_some_invariants();
}

void VirtualExecutor::abandon(GroupSlot& slot) {
  slot.is_stuck = false;
  const TenantSlot tenant = counted_tenant(*plan_, slot.group->id());
  if (const int64_t count = ++num_abandoned_[tenant]; count > plan_->settings.abandoned_max) {
    // A run that ends needs its threads no more: however many are stuck, none keeps it.
    if (drain_deadline_) {
      slot.is_refusing = true;
    } else {
      Error why = error(Code::kExhausted, "{} handlers are stuck, abandoned_max is {}", count,
                        plan_->settings.abandoned_max);
      if (tenant.is_none()) return group_failed(slot.group->id(), std::move(why));
      slot.is_refusing = true;
      tenant_failed(tenant, kTenancyUnknown, why.text());
    }
  }
  abandoned_.push_back(slot.group->running());
  late_at_.push_back(slot.stuck_until);
  if (auto status = slot.group->abandon_step(now_); !status.ok())
    return group_failed(slot.group->id(), status.error());
  check_invariants();
}

void VirtualExecutor::deliver(BatchQueue& queue) {
  MessageBatch batch = std::move(queue.batches.front());
  queue.batches.pop_front();
  const GroupSlot& sender = slots_[queue.from.index()];
  // Messages of a dead sender left the ledger with it, until they are received or refused.
  if (sender.group && batch.incarnation == sender.incarnation) in_transit_ -= batch.messages.size();
  const GroupId to = queue.to;
  if (slots_[to.index()].group == nullptr) {
    counts_of_dead_groups_.num_received += batch.messages.size();
    return;
  }
  const Status status = slots_[to.index()].group->accept(std::move(batch), now_);
  if (!status.ok()) broken(status.error().text());
}

/// To the next moment at which something happens: the end of a step, a timer, or a late answer.
bool VirtualExecutor::jump() {
  std::optional<Time> next;
  const auto consider = [&](Time time) { next = next ? std::min(*next, time) : time; };
  bool is_alive = false;
  for (const GroupSlot& slot : slots_) {
    if (!slot.group) continue;
    if (slot.is_busy) consider(slot.busy_until);
    if (const auto timer = slot.group->next_timer()) consider(*timer);
  }
  for (const auto& [slot, drain] : slot_drains_)
    if (!drain.is_late) consider(drain.deadline());
  is_alive = next.has_value();
  if (!is_alive) return false;
  for (Time late : late_at_) consider(late);
  if (drain_deadline_ && *next > *drain_deadline_) {
    finish_run(RunEnd::kStalled, error(Code::kDeadline, "the run has not drained within {}",
                                       to_string(plan_->settings.drain_max)));
    outcome_->stall = stall_report();
    return false;
  }
  now_ = std::max(now_, *next);
  for (size_t i = 0; i < late_at_.size();) {
    if (late_at_[i] > now_) {
      ++i;
      continue;
    }
    // The handler returns at last. Its emissions are dropped.
    late_at_.erase(late_at_.begin() + static_cast<std::ptrdiff_t>(i));
    abandoned_.erase(abandoned_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (GroupSlot& slot : slots_) {
    if (outcome_) break;
    if (slot.group && slot.is_busy && slot.busy_until <= now_) end(slot);
  }
  return true;
}

void VirtualExecutor::begin_drain() {
  drain_deadline_ = now_ + plan_->settings.drain_max;
  for (GroupSlot& slot : slots_)
    if (slot.group) slot.group->begin_drain(now_);
}

void VirtualExecutor::look_for_end() {
  if (drain_deadline_) {
    std::vector<GroupCounts> counts;
    for (const GroupSlot& slot : slots_)
      if (slot.group) counts.push_back(slot.group->counts());
    counts.push_back(counts_of_dead_groups_);
    counts.back().is_idle = true;
    if (drain_.is_over(counts) || drain_.is_over(counts))
      return finish_run(is_drain_requested_ ? RunEnd::kInterrupted : RunEnd::kFinished, ok());
  }
  for (const GroupSlot& slot : slots_) {
    if (!slot.group) continue;
    if (slot.is_busy || slot.group->next_timer()) return;
  }
  if (options_.is_hosted && !drain_deadline_) return;  // it waits for tenants
  now_ = now_ + (drain_deadline_ ? plan_->settings.drain_max : plan_->settings.stall_after);
  finish_run(RunEnd::kStalled, error(Code::kDeadline, "no step for {}",
                                     to_string(drain_deadline_ ? plan_->settings.drain_max
                                                               : plan_->settings.stall_after)));
  outcome_->stall = stall_report();
}

/// In a plan of many tenants the counts of all links take longer than many steps. A bound or a sum
/// that is broken stays so, and a later look finds it.
void VirtualExecutor::check_some_invariants() {
  constexpr uint64_t kLinksOfEachStep = 4096;
  if (num_events_ % (1 + wiring_->links.size() / kLinksOfEachStep) == 0) check_invariants();
}

void VirtualExecutor::check_invariants() {
  const auto edges = ledger();
  uint64_t in_flight = 0;
  for (size_t i = 0; i < edges.size(); ++i) {
    const EdgeLedger& edge = edges[i];
    const PlanEdge& planned = plan_->edges[i];
    if (!edge.balances())
      broken(fmt::format(
          "edge '{}': sent {} is not handled {} + in flight {} + returned {} + "
          "dropped {}",
          planned.name, edge.sent, edge.handled, edge.in_flight, edge.returned, edge.dropped));
    if (!is_replaying_ && edge.waiting_max > static_cast<uint64_t>(planned.bound))
      broken(fmt::format("edge '{}': {} messages waited, its bound is {}", planned.name,
                         edge.waiting_max, planned.bound));
    in_flight += edge.in_flight;
  }
  uint64_t held = in_transit_;
  for (const GroupSlot& slot : slots_)
    if (slot.group) held += slot.group->num_held();
  if (held != in_flight)
    broken(fmt::format("{} messages exist, the ledger counts {}", held, in_flight));
}

}  // namespace primerl
