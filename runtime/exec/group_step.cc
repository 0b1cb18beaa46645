// The steps of a group: choosing, running, completing and abandoning them; restarts of its actors.
#include <algorithm>

#include "runtime/exec/group_body.h"

namespace primerl {

bool ActorGroup::Body::ready() const {
  if (step_ != Step::kNone) return false;
  if (setup().step_source != nullptr) return replayed_ready();
  if (may_work()) return true;
  return inbox_.pick(common_->flow->num_full()) != Inbox::kNone;
}

/// Answers from outside are taken also while a forward output is full: their actor looks for free
/// space before it sends there.
bool ActorGroup::Body::may_work() const {
  if (!work_armed_) return false;
  if (common_->flow->is_open()) return true;
  return std::any_of(outsides_.begin(), outsides_.end(),
                     [](const Outside* outside) { return outside->has_work(); });
}

void ActorGroup::Body::arm_work() {
  if (work_armed_) return;
  bool has_work = works_;
  for (const auto& resource : common_->owned) has_work = has_work || resource->has_work();
  if (!has_work) return;
  work_armed_ = true;
  work_arrival_ = inbox_.next_arrival();
}

bool ActorGroup::Body::replayed_ready() const {
  const RecordedStep* next = setup().step_source->next();
  if (next == nullptr) return false;
  if (next->kind != StepKind::kMessage || next->stored) return true;
  const WiredLink& link = setup().wiring->links[next->link.index()];
  return inbox_.holds(link.in_index, next->incarnation, next->sequence);
}

Input ActorGroup::Body::replayed_input(const RecordedStep& step) {
  if (step.kind == StepKind::kMessage) {
    const uint32_t in_index = setup().wiring->links[step.link.index()].in_index;
    if (step.stored) return inbox_.take_stored(in_index, Envelope(*step.stored));
    return inbox_.take_message(in_index, step.incarnation, step.sequence);
  }
  if (step.kind == StepKind::kPeer) follow_peer(step.actor, step.peer);
  Input input;
  input.kind = step.kind;
  input.actor = step.actor;
  input.peer = step.peer;
  if (step.kind == StepKind::kCommand) {
    input.port = step.input;
    input.envelope.payload = step.command;
  }
  if (step.kind == StepKind::kDrain) {
    slots_[step.actor].has_drained = true;
    // With several tenants, the drain of one tenant's actor may concern that tenant only.
    is_draining_ =
        is_draining_ || setup().plan->tenants.size() < 2 || tenant_of(step.actor).is_none();
  }
  if (step.kind != StepKind::kTimer) return input;
  input.port = step.timer;
  const auto num_armed = std::erase_if(timers_, [&](const PendingTimer& timer) {
    return timer.actor == step.actor && timer.timer == step.timer;
  });
  if (num_armed == 0) {
    const Contract& contract = slots_[step.actor].running->contract();
    setup().step_source->diverged(
        fmt::format("timer '{}' of '{}' expired in the recorded run, but is not armed here",
                    contract.timers[step.timer].name, slots_[step.actor].running->self_name()));
  }
  return input;
}

bool ActorGroup::Body::replayed_step() {
  const RecordedStep* next = setup().step_source->next();
  if (next == nullptr || !begin_step(next->began)) return false;
  // Copied first, because the step_source advances when it is notified of the step.
  const Time began = next->began;
  const Time ended = began + next->lasted;
  if (next->is_abandoned) {
    if (const Status status = abandon_step(began); !status.ok())
      setup().executor->group_failed(setup().group, status.error());
  } else {
    if (next->injected)
      fail_step(*next->injected);
    else
      run_step();
    complete_step(ended);
  }
  return true;
}

bool ActorGroup::Body::begin_step(Time now) {
  CHECK(step_ == Step::kNone, "a step began before the last one was completed");
  set_now(now);
  num_step_emissions_ = 0;
  is_injected_ = false;
  if (setup().step_source != nullptr) {
    if (!replayed_ready()) return false;
    const RecordedStep& next = *setup().step_source->next();
    num_steps_.add(1);
    common_->num_replayed_answers = 0;
    if (next.kind == StepKind::kWork) {
      begin_work(now);
    } else {
      begin_input(replayed_input(next), now);
    }
    mark_running(now);
    return true;
  }
  while (true) {
    const Flow& flow = *common_->flow;
    const bool is_work_due = may_work();
    const uint32_t lane =
        inbox_.pick(flow.num_full(), is_work_due ? work_arrival_ : Inbox::kNoWork);
    if (lane == Inbox::kNone && !is_work_due) {
      after_change();
      return false;
    }
    num_steps_.add(1);
    if (lane == Inbox::kNone) {
      begin_work(now);
      break;
    }
    Input&& input = inbox_.take(lane);
    if (input.kind == StepKind::kTimer &&
        input.generation != slots_[input.actor].timer_generations[input.port]) {
      // The timer was set again or cancelled since it expired.
      num_steps_.set(num_steps_.get() - 1);
      continue;
    }
    if (input.kind == StepKind::kCommand) --num_commands_;
    begin_input(std::move(input), now);
    break;
  }
  mark_running(now);
  return true;
}

void ActorGroup::Body::begin_work(Time now) {
  step_ = Step::kWork;
  current_ = 0;
  work_armed_ = false;
  handling_.set(InstanceId::kNone);
  handling_type_.set(0);
  handling_kind_.set(static_cast<uint64_t>(StepKind::kWork));
  for (auto& slot : slots_) slot.running->prepare_work(num_steps_.get(), now, slot.has_drained);
}

void ActorGroup::Body::begin_input(Input&& input, Time now) {
  step_ = Step::kInput;
  current_ = input.actor;
  handling_.set(planned_.instances[current_].value);
  handling_type_.set(reinterpret_cast<uint64_t>(input.envelope.payload.type));
  handling_kind_.set(static_cast<uint64_t>(input.kind));
  const bool is_message = input.kind == StepKind::kMessage;
  handling_link_.set(is_message ? inbox_.links[input.in_index].id.value : input.port);
  handling_sequence_.set(input.envelope.sequence);
  slots_[current_].running->prepare(std::move(input), num_steps_.get(), now);
}

void ActorGroup::Body::mark_running(Time now) {
  running_since_.set(static_cast<uint64_t>(now.to_nanoseconds()));
  is_running_.set(1);
}

void ActorGroup::Body::run_step() {
  CHECK(step_ != Step::kNone, "run_step() without begin_step()");
  here = setup().group.value;
  run_actors();
  here = GroupId::kNone;
}

void ActorGroup::Body::run_actors() {
  if (step_ == Step::kInput) {
    slots_[current_].running->run();
    return;
  }
  resource_status_ = ok();
  for (const auto& resource : common_->owned) {
    if (!resource->has_work()) continue;
    try {
      resource_status_ = resource->step();
    } catch (const std::exception& exception) {
      resource_status_ =
          error(Code::kInternal, "an exception left a resource: {}", exception.what());
    }
    if (!resource_status_.ok()) return;
  }
  uint64_t num_progress_calls = 0;
  for (auto& slot : slots_) {
    slot.running->num_progress_calls = num_progress_calls;
    slot.running->run();
    num_progress_calls = slot.running->num_progress_calls;
  }
}

void ActorGroup::Body::fail_step(Error error) {
  CHECK(step_ == Step::kInput, "only an input can be failed");
  is_injected_ = true;
  slots_[current_].running->fail(std::move(error));
}

void ActorGroup::Body::complete_step(Time now) {
  CHECK(step_ != Step::kNone, "complete_step() without begin_step()");
  set_now(now);
  recorded_.clear();
  const Step step = std::exchange(step_, Step::kNone);
  if (step == Step::kInput) {
    Running& running = *slots_[current_].running;
    // Only an actor that failed may be replaced before this step ends.
    const auto kept = running.status().ok() ? nullptr : slots_[current_].running;
    complete_actor(running, now);
    arm_work();
    if (common_->setup.observer != nullptr) record(running, false, now);
    if (running.input().kind == StepKind::kCommand) answer_command(running);
    running.input().envelope.payload = {};
  } else {
    bool more = false;
    for (size_t i = 0; i < slots_.size(); ++i) {
      Running& running = *slots_[i].running;
      const auto kept = running.status().ok() ? nullptr : slots_[i].running;
      complete_actor(running, now);
      more = more || running.wants_more_work();
    }
    for (const auto& resource : common_->owned) more = more || resource->has_work();
    if (more) arm_work();
    if (!resource_status_.ok())
      setup().executor->group_failed(
          setup().group,
          Error(resource_status_.error())
              .while_doing(fmt::format("stepping the resources of '{}'", planned_.name)));
    // A fault of the outside does not repeat: a resumed run must ask again, so it is not recorded.
    const bool is_outside_fault = !resource_status_.ok() && !outsides_.empty();
    if (common_->setup.observer != nullptr && !is_outside_fault)
      record(*slots_.front().running, false, now);
  }
  is_running_.set(0);
  after_change();
}

void ActorGroup::Body::complete_actor(Running& running, Time now) {
  Input& input = running.input();
  if (input.kind == StepKind::kMessage) settle(input);
  if (!running.status().ok()) return complete_failed(running, now);
  apply_effects(running);
  release(running, now);
  take_snapshot(slots_[running.index()]);
}

void ActorGroup::Body::complete_failed(Running& running, Time now) {
  const Input& input = running.input();
  const Error error = running.status().error();
  running.emissions.clear();
  if (input.kind == StepKind::kMessage) {
    inbox_.links[input.in_index].num_failed.add(1);
    running.refuse(error);
  }
  // A rejected command is not a fault of the actor; the sender of the command gets the error.
  const bool is_fault = input.kind != StepKind::kCommand;
  running.log(is_fault ? LogLevel::kWarning : LogLevel::kInfo,
              fmt::format("{} failed: {}", to_string(input.kind), error.text()));
  if (is_fault) running.count("errors", 1);
  apply_effects(running);
  release(running, now);
  if (is_fault) supervise(running, error, running.now());
}

/// If the group follows a record, the command's sender got the answer in the recorded run.
void ActorGroup::Body::answer_command(Running& running) {
  if (setup().step_source != nullptr) return;
  setup().executor->command_answered({running.input().number, running.self(), running.status()});
}

/// The tenant of a step. For an actor of one tenant it is that tenant; for a shared actor it is the
/// message's tenant. None for a latest_wins value (an engine's load), for a step without a message,
/// and in a run of one tenant.
TenantSlot ActorGroup::Body::tenant_served(Running& running) const {
  if (setup().plan->tenants.size() < 2) return {};
  const TenantSlot own = tenant_of(running.index());
  const Input& input = running.input();
  if (!own.is_none() || input.kind != StepKind::kMessage) return own;
  if (running.contract().inputs[input.port].latest_wins) return {};
  return input.envelope.tenant;
}

void ActorGroup::Body::supervise(Running& running, const Error& error, Time now) {
  const PlanNode& node = running.node();
  const std::string_view name = running.self_name();
  const TenantSlot tenant = tenant_served(running);
  if (running.stops_on_error())
    return give_up(running, tenant_of(running.index()),
                   Error(error).while_doing(fmt::format("'{}' (it cannot continue)", name)));
  if (node.on_error == OnError::kStop)
    return give_up(running, tenant,
                   Error(error).while_doing(fmt::format("'{}' (on_error = \"stop\")", name)));
  if (node.on_error == OnError::kDrop) return;
  auto& restarts = slots_[running.index()].restarts;
  std::erase_if(restarts, [&](const ActorRestart& restart) {
    return now - restart.at >= node.restart_window;
  });
  const auto num_restarts = std::ranges::count(restarts, tenant, &ActorRestart::tenant);
  if (std::cmp_greater_equal(num_restarts, node.restarts_max)) {
    give_up(
        running, tenant,
        Error(error).while_doing(fmt::format("'{}' failed again after {} restarts within {}", name,
                                             num_restarts, to_string(node.restart_window))));
    // A shared actor continues for the other tenants.
    if (tenant.is_none() || !tenant_of(running.index()).is_none()) return;
  } else {
    restarts.push_back({now, tenant});
  }
  num_restarts_.add(1);
  if (auto status = replace(running.index(), true, now); !status.ok())
    give_up(running, tenant_of(running.index()),
            Error(status.error()).while_doing("its restart after an error failed"));
}

/// If several tenants share the run, a failure of one tenant does not affect the others.
void ActorGroup::Body::give_up(Running& running, TenantSlot tenant, Error why) {
  running.has_given_up = true;  // no restart may be left, although the actor did not give up itself
  if (tenant.is_none() || setup().plan->tenants.size() < 2)
    return setup().executor->group_failed(setup().group, std::move(why));
  if (!failed_.emplace(tenant, why.text()).second) return;
  const std::string& name = setup().plan->tenants[tenant.index()].name;
  setup().process_services->log(
      LogLevel::kError, running.self_name(),
      fmt::format("tenant '{}' is set aside, the others continue: {}", name, why.text()));
  setup().executor->tenant_failed(tenant, failed_.at(tenant));
}

Status ActorGroup::Body::replace(uint32_t actor, bool restore, Time now) {
  ActorSlot& slot = slots_[actor];
  const Contract& contract = slot.running->contract();
  if (!contract.is_restartable)
    return error(Code::kInvalid, "actor '{}' cannot be restarted: its contract does not say so",
                 contract.name);
  cancel_timers(actor);
  auto fresh = std::make_shared<Running>(common_, actor);
  for (uint32_t port = 0; port < contract.inputs.size(); ++port) inbox_.pause(actor, port, false);
  // Until the new actor is made the slot keeps the old one, so it always has an actor.
  RETURN_IF_ERROR(fresh->start(now));
  slot.running = fresh;
  if (restore && slot.keeps_snapshot)
    RETURN_IF_ERROR(restore_actor(contract, slot.snapshot, fresh->actor()));
  apply_effects(*fresh);
  return ok();
}

void ActorGroup::Body::take_snapshot(ActorSlot& slot) {
  if (slot.keeps_snapshot)
    slot.snapshot = save_actor(slot.running->contract(), slot.running->actor());
}

Status ActorGroup::Body::abandon_step(Time now) {
  CHECK(step_ != Step::kNone && may_run_apart(), "only a handler that runs apart is abandoned");
  step_ = Step::kNone;
  set_now(now);
  recorded_.clear();
  const auto stuck = slots_[current_].running;
  // The text has no measured time, because it goes into answers that a replay must reproduce.
  const Error late = error(Code::kDeadline, "the handler did not return before its deadline");
  stuck->abandon();
  num_abandoned_.add(1);
  Input input = stuck->input();
  if (input.kind == StepKind::kMessage) {
    settle(input);
    inbox_.links[input.in_index].num_failed.add(1);
  }
  RETURN_IF_ERROR(replace(current_, true, now));
  auto& fresh = *slots_[current_].running;
  fresh.log(LogLevel::kWarning, fmt::format("gave up a handler that was stuck for {:.3f} s",
                                            (now - stuck->now()).to_seconds()));
  fresh.prepare(std::move(input), num_steps_.get(), now);
  fresh.fail(late);
  if (fresh.input().kind == StepKind::kMessage) fresh.refuse(late);
  apply_effects(fresh);
  release(fresh, now);
  arm_work();
  if (common_->setup.observer != nullptr) record(fresh, true, now);
  if (fresh.input().kind == StepKind::kCommand) answer_command(fresh);
  is_running_.set(0);
  after_change();
  return ok();
}

void ActorGroup::Body::apply_effects(Running& running) {
  for (const auto& change : running.timers) set_timer(running.index(), change, running.now());
  running.timers.clear();
  for (const auto& change : running.pauses)
    inbox_.pause(running.index(), change.input, change.is_paused);
  running.pauses.clear();
  for (TenantSlot tenant : running.finished) {
    finished_.insert(tenant);
    setup().executor->tenant_finished(tenant);
  }
  running.finished.clear();
  for (auto& [tenant, why] : running.failures)
    give_up(running, tenant, std::move(why).while_doing(fmt::format("'{}'", running.self_name())));
  running.failures.clear();
}

void ActorGroup::Body::set_timer(uint32_t actor, const TimerChange& change, Time now) {
  ++slots_[actor].timer_generations[change.timer];
  std::erase_if(timers_, [&](const PendingTimer& timer) {
    return timer.actor == actor && timer.timer == change.timer;
  });
  if (!change.is_set) return;
  timers_.push_back(
      {now + change.delay, actor, change.timer, slots_[actor].timer_generations[change.timer]});
}

void ActorGroup::Body::cancel_timers(uint32_t actor) {
  for (auto& generation : slots_[actor].timer_generations) ++generation;
  std::erase_if(timers_, [&](const PendingTimer& timer) { return timer.actor == actor; });
}

void ActorGroup::Body::wake(Time now) {
  std::vector<PendingTimer> due;
  std::erase_if(timers_, [&](const PendingTimer& timer) {
    if (timer.due > now) return false;
    due.push_back(timer);
    return true;
  });
  if (due.empty()) return;
  std::stable_sort(due.begin(), due.end(),
                   [](const auto& a, const auto& b) { return a.due < b.due; });
  for (const PendingTimer& timer : due) {
    Input input;
    input.kind = StepKind::kTimer;
    input.actor = timer.actor;
    input.port = timer.timer;
    input.generation = timer.generation;
    inbox_.push_timer(std::move(input), now);
  }
  after_change();
}

void ActorGroup::Body::record(Running& running, bool is_abandoned, Time ended) {
  const Input& input = running.input();
  StepRecord record;
  record.group = setup().group;
  record.kind = input.kind;
  if (record.kind != StepKind::kWork) record.instance = running.self();
  record.step = num_steps_.get();
  record.began = running.now();
  record.ended = ended;
  if (record.kind == StepKind::kMessage) {
    record.message = &input.envelope;
    record.link = inbox_.links[input.in_index].id;
  }
  record.timer = input.port;
  record.peer = input.peer;
  if (record.kind == StepKind::kCommand) {
    record.input = input.port;
    record.command = &input.envelope.payload;
  }
  if (!running.status().ok()) record.error = &running.status().error();
  record.has_given_up = running.has_given_up;
  record.emissions = recorded_;
  record.num_emissions = num_step_emissions_;
  record.room_answers = running.room_answers;
  record.stopped_at_progress = running.stopped_at_progress;
  if (record.kind == StepKind::kWork && slots_.size() > 1) {
    room_answers_.clear();
    for (const ActorSlot& slot : slots_) {
      room_answers_.insert(room_answers_.end(), slot.running->room_answers.begin(),
                           slot.running->room_answers.end());
      if (record.stopped_at_progress == 0)
        record.stopped_at_progress = slot.running->stopped_at_progress;
      record.has_given_up = record.has_given_up || slot.running->has_given_up;
    }
    record.room_answers = room_answers_;
  }
  record.is_abandoned = is_abandoned;
  record.is_injected = is_injected_;
  record.is_from_record = input.is_stored;
  setup().observer->on_step(record);
}

void ActorGroup::Body::after_change() {
  if (common_->flow->take_got_capacity()) arm_work();
  if (is_in_burst_) return;
  flush();
  update_gauge();
}

}  // namespace primerl
