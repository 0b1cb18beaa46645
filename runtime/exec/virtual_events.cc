// The event loop of VirtualExecutor: choosing, beginning and ending steps, time, the end of a run.
#include <algorithm>

#include "runtime/exec/running.h"
#include "runtime/exec/virtual_executor.h"

namespace primerl {

bool VirtualExecutor::advance() {
  if (outcome_) return false;
  if (++num_events_ > options_.events_max)
    broken(fmt::format("the run has not ended after {} events", options_.events_max));
  if (is_stop_requested_) finish_run(RunEnd::kInterrupted, ok());
  const bool all_finished =
      !finished_.empty() && std::find(finished_.begin(), finished_.end(), false) == finished_.end();
  const bool may_drain = !is_guided_ && !drain_deadline_;
  if (!outcome_ && may_drain && (all_finished || is_drain_requested_)) begin_drain();
  if (outcome_) return false;
  if (step_something()) return true;
  if (is_guided_) {
    finish_run(RunEnd::kFailed, options_.guide->stuck());
    return false;
  }
  look_for_end();
  if (outcome_) return false;
  return jump();
}

bool VirtualExecutor::is_at_end_of_record() const {
  for (uint32_t i = 0; i < guests_.size(); ++i)
    if (options_.guide->guide(HostId(i)).next() != nullptr) return false;
  return true;
}

void VirtualExecutor::go_live() {
  is_guided_ = false;
  options_.guide->go_live();
  now_ = std::max(now_, options_.guide->ended());
  for (Guest& guest : guests_) guest.host->go_live(now_);
  check_invariants();
}

/// False when the record cannot be followed, which ends the run.
bool VirtualExecutor::step_as_recorded(Guest& guest) {
  guest.host->step(now_);
  if (auto fault = options_.guide->fault(guest.host->id())) {
    host_failed(guest.host->id(), std::move(*fault));
    return false;
  }
  return true;
}

bool VirtualExecutor::step_something() {
  if (is_guided_ && is_at_end_of_record()) go_live();
  for (Guest& guest : guests_) {
    if (!guest.host || is_guided_) continue;
    const auto timer = guest.host->next_timer();
    if (timer && *timer <= now_) guest.host->wake(now_);
  }
  runnable_.clear();
  for (uint32_t i = 0; i < guests_.size(); ++i)
    if (guests_[i].host && !guests_[i].is_busy && guests_[i].host->ready()) runnable_.push_back(i);
  const size_t num_hosts = runnable_.size();
  for (uint32_t i = 0; i < ways_.size(); ++i)
    if (!ways_[i].parcels.empty()) runnable_.push_back(i);
  if (runnable_.empty()) return false;
  const uint64_t chosen = choice_.below(runnable_.size());
  if (chosen < num_hosts && is_guided_) return step_as_recorded(guests_[runnable_[chosen]]);
  if (chosen < num_hosts)
    begin(guests_[runnable_[chosen]]);
  else
    deliver(ways_[runnable_[chosen]]);
  check_invariants();
  return true;
}

StepAbout VirtualExecutor::about(const Guest& guest) {
  const HostView view = guest.host->view();
  const Input& input = guest.host->running()->input();
  StepAbout about;
  about.instance = view.handling;
  about.kind = input.kind;
  if (input.kind == StepKind::kMessage) about.type = input.envelope.payload.type;
  const uint32_t who =
      input.kind == StepKind::kWork ? UINT32_MAX - view.host.value - 1 : view.handling.value;
  about.delivery = ++num_deliveries_[{who, input.kind}];
  return about;
}

void VirtualExecutor::begin(Guest& guest) {
  Host& host = *guest.host;
  if (!host.begin_step(now_)) return;
  Injection injection;
  const StepAbout step = about(guest);
  if (options_.world != nullptr) injection = options_.world->before(step);
  if (injection.failure && step.kind != StepKind::kWork)
    host.fail_step(std::move(*injection.failure));
  else
    host.run_step();
  const Duration lasts = host.step_cost() + injection.takes;
  if (lasts == Duration()) {
    host.complete_step(now_);
    return;
  }
  guest.is_busy = true;
  guest.is_stuck = host.may_run_apart() && lasts > apart_limit_;
  guest.busy_until = now_ + (guest.is_stuck ? apart_limit_ : lasts);
  guest.stuck_until = now_ + lasts;
}

void VirtualExecutor::end(Guest& guest) {
  guest.is_busy = false;
  if (guest.is_stuck) return abandon(guest);
  guest.host->complete_step(now_);
  check_invariants();
}

void VirtualExecutor::abandon(Guest& guest) {
  guest.is_stuck = false;
  if (++num_abandoned_ > plan_->settings.abandoned_max) {
    return host_failed(guest.host->id(),
                       error(Code::kExhausted, "{} handlers are stuck, abandoned_max is {}",
                             num_abandoned_, plan_->settings.abandoned_max));
  }
  abandoned_.push_back(guest.host->running());
  late_at_.push_back(guest.stuck_until);
  if (auto status = guest.host->abandon_step(now_); !status.ok())
    return host_failed(guest.host->id(), status.error());
  check_invariants();
}

void VirtualExecutor::deliver(Way& way) {
  Parcel parcel = std::move(way.parcels.front());
  way.parcels.pop_front();
  const Guest& sender = guests_[way.from.index()];
  // What a dead sender shipped left the ledger with it, until it is received or refused.
  if (sender.host && parcel.epoch == sender.epoch) in_transit_ -= parcel.messages.size();
  const HostId to = way.to;
  if (guests_[to.index()].host == nullptr) {
    of_dead_.num_received += parcel.messages.size();
    return;
  }
  const Status status = guests_[to.index()].host->accept(std::move(parcel), now_);
  if (!status.ok()) broken(status.error().text());
}

/// To the next moment at which something happens: the end of a step, a timer, or a late answer.
bool VirtualExecutor::jump() {
  std::optional<Time> next;
  const auto consider = [&](Time time) { next = next ? std::min(*next, time) : time; };
  bool is_alive = false;
  for (const Guest& guest : guests_) {
    if (!guest.host) continue;
    if (guest.is_busy) consider(guest.busy_until);
    if (const auto timer = guest.host->next_timer()) consider(*timer);
  }
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
    ++num_late_;  // the handler returns at last; what it emitted dies with it
    late_at_.erase(late_at_.begin() + static_cast<std::ptrdiff_t>(i));
    abandoned_.erase(abandoned_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (Guest& guest : guests_) {
    if (outcome_) break;
    if (guest.host && guest.is_busy && guest.busy_until <= now_) end(guest);
  }
  return true;
}

void VirtualExecutor::begin_drain() {
  drain_deadline_ = now_ + plan_->settings.drain_max;
  for (Guest& guest : guests_)
    if (guest.host) guest.host->begin_drain(now_);
}

void VirtualExecutor::look_for_end() {
  if (drain_deadline_) {
    std::vector<HostCounts> counts;
    for (const Guest& guest : guests_)
      if (guest.host) counts.push_back(guest.host->counts());
    counts.push_back(of_dead_);
    counts.back().is_idle = true;
    if (drain_.is_over(counts) || drain_.is_over(counts))
      return finish_run(is_drain_requested_ ? RunEnd::kInterrupted : RunEnd::kFinished, ok());
  }
  for (const Guest& guest : guests_) {
    if (!guest.host) continue;
    if (guest.is_busy || guest.host->next_timer()) return;
  }
  now_ = now_ + (drain_deadline_ ? plan_->settings.drain_max : plan_->settings.stall_after);
  finish_run(RunEnd::kStalled, error(Code::kDeadline, "no step for {}",
                                     to_string(drain_deadline_ ? plan_->settings.drain_max
                                                               : plan_->settings.stall_after)));
  outcome_->stall = stall_report();
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
    if (!is_guided_ && edge.waiting_max > static_cast<uint64_t>(planned.bound))
      broken(fmt::format("edge '{}': {} messages waited, its bound is {}", planned.name,
                         edge.waiting_max, planned.bound));
    in_flight += edge.in_flight;
  }
  uint64_t held = in_transit_;
  for (const Guest& guest : guests_)
    if (guest.host) held += guest.host->num_held();
  if (held != in_flight)
    broken(fmt::format("{} messages are somewhere, the ledger says {}", held, in_flight));
}

}  // namespace primerl
