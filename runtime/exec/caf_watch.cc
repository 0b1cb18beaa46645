// The watchdog of a run, on the timer thread: detects stuck handlers, stalls and the end of a
// drain.
#include <algorithm>

#include "graph/tenant.h"
#include "runtime/exec/caf_core.h"
#include "runtime/exec/handler_watch.h"
#include "runtime/exec/stall.h"

namespace primerl {
namespace {

constexpr Duration kStuckAfter = Duration::seconds(10);  // time without a step of the record

}  // namespace

void CafExecutor::Core::watch() {
  const Time now = clock_.now();
  Phase phase;
  bool is_live;
  {
    const std::lock_guard lock(mutex_);
    phase = phase_;
    is_live = is_live_;
  }
  if (now < last_change_) last_change_ = now;  // the clock was set to the end of the record
  if (phase != Phase::kRunning && phase != Phase::kDraining) {
    last_change_ = now;
    return;
  }
  if (!is_live) return watch_record(now);
  watch_saves(now);
  watch_slots(now);
  watch_handlers(now, phase == Phase::kDraining);
  watch_stall(now);
  if (phase == Phase::kDraining) watch_drain(now);
}

/// A long write has no steps. Its bound is the trainer's save_max.
void CafExecutor::Core::watch_saves(Time now) {
  if (setup_.bytes_saved == nullptr) return;
  const uint64_t bytes = setup_.bytes_saved->load();
  if (bytes == last_bytes_saved_) return;
  last_bytes_saved_ = bytes;
  last_saved_ = now;
}

/// A handler that runs apart may last as long as its tenant's environment_timeout.
Duration CafExecutor::Core::handler_limit(const ActorGroup& group) const {
  const Plan& plan = *setup_.plan;
  const auto slot = plan.instance(plan.group(group.id()).instances.front()).tenant;
  if (!slot.is_none()) return plan.in_slot(slot).environment_timeout;
  Duration limit;
  for (const auto& tenant : plan.tenants) limit = std::max(limit, tenant.environment_timeout);
  return plan.tenants.empty() ? Duration::forever() : limit;
}

void CafExecutor::Core::watch_handlers(Time now, bool is_draining) {
  for (auto* cell : here_) {
    const auto view = cell->group().view();
    const bool is_apart = cell->group().may_run_apart();
    if (const auto alarm = handler_watch_.check(view, now, is_apart))
      setup_.process_services->log(LogLevel::kWarning, alarm->name, alarm->text);
    // A work call has no message that could be refused; the stall report names it.
    if (!is_apart || !view.is_running || view.handling.is_none()) continue;
    if (now - handler_watch_.last_activity(view.group) > handler_limit(cell->group()))
      abandon(*cell, view, now, is_draining);
  }
}

void CafExecutor::Core::abandon(GroupCell& cell, const GroupView& view, Time now,
                                bool is_draining) {
  const Plan& plan = *setup_.plan;
  // Stuck threads are counted per tenant, so one tenant's limit does not reduce another's.
  const TenantSlot tenant = counted_tenant(plan, cell.group().id());
  int64_t& num_abandoned = num_abandoned_[tenant];
  if (num_abandoned >= plan.settings.abandoned_max) {
    const Error why =
        error(Code::kExhausted,
              "'{}' has been in one handler for {}, and {} stuck handler{} given up before",
              cell.group().name(), rounded_text(now - view.running_since), num_abandoned,
              num_abandoned == 1 ? " was" : "s were")
            .note("[graph] abandoned_max is the most that may be given up");
    // While the run drains it does not end for stuck threads, however many there are.
    if (tenant.is_none() && !is_draining) return end(RunEnd::kFailed, why);
    cell.refuse();
    if (!is_draining) {
      cell.set_aside(tenant);
      tenant_failed(tenant, kTenancyUnknown, why.text());
    }
  }
  if (!cell.take_over()) return;
  ++num_abandoned;
  spawn(cells_[cell.group().id().index()]);
  cell.order(GroupCell::kAbandon);
}

/// The result that the record needs can only come from this call, so the call cannot be abandoned.
Error CafExecutor::Core::stuck_in_record(const GroupView& view, Duration lasts) const {
  return error(Code::kDeadline, "'{}' follows its record and has been in {} for {}",
               setup_.plan->instance(view.handling).name,
               handling_text(*setup_.plan, *wiring_, view), rounded_text(lasts))
      .note(
          "in the recorded run this call returned; resume the run when what it waits for is back");
}

/// A group that follows a record waits only for messages. If no group sends the message, it would
/// wait forever.
void CafExecutor::Core::watch_record(Time now) {
  uint64_t steps = 0;
  bool is_running = false;
  for (auto* cell : here_) {
    const auto view = cell->group().view();
    steps += view.num_steps;
    is_running = is_running || view.is_running;
    // The step's own time is the recorded time, so its real duration is measured here.
    FollowedStep& seen = followed_[view.group];
    const bool is_same = view.is_running && !view.handling.is_none() &&
                         seen.num_steps == view.num_steps && seen.num_progress == view.num_progress;
    if (!is_same) seen = {view.num_steps, view.num_progress, now};
    if (is_same && cell->group().may_run_apart() && now - seen.since > handler_limit(cell->group()))
      return end(RunEnd::kFailed, stuck_in_record(view, now - seen.since));
  }
  const bool has_changed = is_running || steps != last_steps_ || last_change_ == Time();
  if (has_changed) {
    last_steps_ = steps;
    last_change_ = now;
  }
  // Messages from other processes may take any time, so only all processes together can detect a
  // stall.
  if (setup_.others != nullptr) return note_idle_since(true);
  if (has_changed || now - last_change_ < kStuckAfter) return;
  end(RunEnd::kFailed, setup_.step_source->stuck());
}

void CafExecutor::Core::watch_stall(Time now) {
  uint64_t steps = 0;
  Time activity;  // the latest start of a handler, or the latest progress() call
  bool is_waiting = false;
  for (auto* cell : here_) {
    const auto view = cell->group().view();
    steps += view.num_steps;
    if (view.is_running) activity = std::max(activity, handler_watch_.last_activity(view.group));
    if (view.is_running || view.num_waiting > 0) is_waiting = true;
  }
  const bool has_changed =
      steps != last_steps_ || activity != last_activity_ || last_change_ == Time();
  if (has_changed) {
    last_steps_ = steps;
    last_activity_ = activity;
    last_change_ = now;
  }
  note_idle_since(is_waiting);
  if (has_changed || setup_.others != nullptr) return;
  if (setup_.is_hosted && !is_waiting) return;  // it waits for tenants
  // If only a timer is pending, the run is idle, not stalled.
  if ((timers_->has_alarm() && !is_waiting) ||
      now - last_change_ < setup_.plan->settings.stall_after)
    return;
  auto report = make_stall_report(*setup_.plan, *wiring_, views(), now);
  auto status = error(Code::kDeadline, "no step and no sign of life for {}",
                      to_string(setup_.plan->settings.stall_after));
  end(RunEnd::kStalled, std::move(status).note(report.text()), std::move(report));
}

void CafExecutor::Core::watch_drain(Time now) {
  Time since;
  RunEnd drained_end;
  {
    const std::lock_guard lock(mutex_);
    since = draining_since_;
    drained_end = drained_end_;
  }
  std::vector<GroupCounts> counts(here_.size());
  // It counts twice, because a message may be in transit during the first count.
  for (int i = 0; i < 2; ++i) {
    bool all_drain = true;
    for (size_t k = 0; k < here_.size(); ++k) {
      // In this order, so that the counts of a draining group are newer than the begin of its
      // drain.
      all_drain = all_drain && here_[k]->is_draining();
      counts[k] = here_[k]->group().counts();
    }
    if (setup_.others == nullptr && drain_.is_over(counts) && all_drain)
      return end(drained_end, ok());
  }
  const auto limit = setup_.plan->settings.drain_max;
  if (now - std::max(since, last_saved_) < limit) return;
  // The other processes may be busy. If messages to them were lost, the control plane finds out.
  if (setup_.others != nullptr && status().is_idle) return;
  auto report = make_stall_report(*setup_.plan, *wiring_, views(), now);
  auto status = error(Code::kDeadline, "the run has not drained within {}", to_string(limit));
  end(RunEnd::kStalled, std::move(status).note(report.text()), std::move(report));
}

}  // namespace primerl
