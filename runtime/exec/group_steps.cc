#include "runtime/exec/group_steps.h"

#include <algorithm>
#include <utility>

#include "graph/base/late_answers.h"

namespace primerl {
namespace {

thread_local uint32_t step_here = GroupId::kNone;  // group of the step that this thread runs

bool any_actor_works(const GroupCommon& common) {
  for (uint32_t i = 0; i < common.planned().instances.size(); ++i)
    if (common.contract_of(i).works) return true;
  return false;
}

}  // namespace

GroupSteps::GroupSteps(std::shared_ptr<GroupCommon> common, GroupLinks& links, GroupActors& actors)
    : common_(std::move(common)),
      planned_(common_->planned()),
      links_(links),
      actors_(actors),
      works_(any_actor_works(*common_)) {
  handling_.set(InstanceId::kNone);
}

GroupId GroupSteps::running_here() { return GroupId(step_here); }
GroupId GroupSteps::enter(GroupId group) { return GroupId(std::exchange(step_here, group.value)); }

Status GroupSteps::make_resources() {
  for (int32_t resource : planned_.resources) {
    auto made = setup().factory(*setup().plan, resource);
    if (!made.ok())
      return Error(made.error()).while_doing(fmt::format("starting '{}'", planned_.name));
    if (auto* outside = dynamic_cast<Outside*>(made->get())) {
      outside->set_wake(setup().wake);
      outsides_.push_back(outside);
    } else if (auto* late = dynamic_cast<LateAnswers*>(made->get())) {
      late->set_wake(setup().wake);
    }
    common_->owned.push_back(std::move(made).value());
  }
  return ok();
}

Status GroupSteps::restore_resources(const GroupState& state) {
  const std::string& name = planned_.name;
  auto& owned = common_->owned;
  if (state.resources.size() != owned.size())
    return error(Code::kCorrupt, "the saved state of '{}' has {} resources, it owns {}", name,
                 state.resources.size(), owned.size());
  for (size_t i = 0; i < owned.size(); ++i)
    if (const Status restored = owned[i]->restore_state(state.resources[i]); !restored.ok())
      return Error(restored.error()).while_doing(fmt::format("restoring a resource of '{}'", name));
  return ok();
}

std::vector<std::shared_ptr<Resource>> GroupSteps::release_resources() {
  outsides_.clear();
  return std::exchange(common_->owned, {});
}

bool GroupSteps::resources_have_work() const {
  return std::ranges::any_of(common_->owned, [](const auto& each) { return each->has_work(); });
}

Duration GroupSteps::cost() {
  Duration cost;
  for (const auto& resource : common_->owned) cost += resource->take_cost();
  return cost;
}

bool GroupSteps::ready() const {
  if (step_ != Step::kNone) return false;
  if (setup().step_source != nullptr) return replayed_ready();
  if (may_work()) return true;
  return links_.inbox().pick(common_->flow->num_full()) != Inbox::kNone;
}

/// Answers from outside are taken also while a forward output is full: their actor looks for free
/// space before it sends there.
bool GroupSteps::may_work() const {
  if (!work_armed_) return false;
  if (common_->flow->is_open()) return true;
  return std::any_of(outsides_.begin(), outsides_.end(),
                     [](const Outside* outside) { return outside->has_work(); });
}

void GroupSteps::arm_work() {
  if (work_armed_ || !(works_ || resources_have_work())) return;
  work_armed_ = true;
  work_arrival_ = links_.inbox().next_arrival();
}

void GroupSteps::resume() {
  work_armed_ = false;
  arm_work();
}

bool GroupSteps::replayed_ready() const {
  const RecordedStep* next = setup().step_source->next();
  if (next == nullptr) return false;
  if (next->kind != StepKind::kMessage || next->stored) return true;
  const WiredLink& link = setup().wiring->links[next->link.index()];
  return links_.inbox().holds(link.in_index, next->incarnation, next->sequence);
}

Input GroupSteps::replayed_input(const RecordedStep& step) {
  if (step.kind == StepKind::kMessage) {
    Inbox& inbox = links_.inbox();
    const uint32_t in_index = setup().wiring->links[step.link.index()].in_index;
    if (step.stored) return inbox.take_stored(in_index, Envelope(*step.stored));
    return inbox.take_message(in_index, step.incarnation, step.sequence);
  }
  if (step.kind == StepKind::kPeer) links_.follow_peer(step.actor, step.peer);
  if (step.kind == StepKind::kDrain) actors_.follow_drain(step.actor);
  Input input;
  input.kind = step.kind;
  input.actor = step.actor;
  if (step.tenant_change)
    input.tenant_change = std::make_shared<const TenantChange>(*step.tenant_change);
  input.peer = step.peer;
  if (step.kind == StepKind::kCommand) {
    input.port = step.input;
    input.envelope.payload = step.command;
  }
  if (step.kind != StepKind::kTimer) return input;
  input.port = step.timer;
  if (!actors_.expire(step.actor, step.timer)) {
    const Running& running = actors_.running(step.actor);
    setup().step_source->diverged(
        fmt::format("timer '{}' of '{}' expired in the recorded run, but is not armed here",
                    running.contract().timers[step.timer].name, running.self_name()));
  }
  return input;
}

bool GroupSteps::replay_step() {
  const RecordedStep* next = setup().step_source->next();
  if (next == nullptr || !begin(next->began)) return false;
  // Copied first, because the step_source advances when it is notified of the step.
  const Time began = next->began;
  const Time ended = began + next->lasted;
  if (next->is_abandoned) {
    if (const Status status = abandon(began); !status.ok())
      setup().executor->group_failed(setup().group, status.error());
  } else {
    if (next->injected)
      fail(*next->injected);
    else
      run();
    complete(ended);
  }
  return true;
}

bool GroupSteps::begin(Time now) {
  CHECK(step_ == Step::kNone, "a step began before the last one was completed");
  links_.set_now(now);
  is_injected_ = false;
  if (setup().step_source != nullptr) {
    if (!replayed_ready()) return false;
    begin_replayed(now);
  } else if (!begin_chosen(now)) {
    return false;
  }
  mark_running(now);
  return true;
}

void GroupSteps::begin_replayed(Time now) {
  const RecordedStep& next = *setup().step_source->next();
  num_steps_.add(1);
  common_->num_replayed_answers = 0;
  if (next.kind == StepKind::kWork) {
    begin_work(now);
  } else {
    begin_input(replayed_input(next), now);
  }
}

bool GroupSteps::begin_chosen(Time now) {
  Inbox& inbox = links_.inbox();
  while (true) {
    const bool is_work_due = may_work();
    const uint32_t lane =
        inbox.pick(common_->flow->num_full(), is_work_due ? work_arrival_ : Inbox::kNoWork);
    if (lane == Inbox::kNone && !is_work_due) return false;
    if (lane == Inbox::kNone) {
      num_steps_.add(1);
      begin_work(now);
      return true;
    }
    Input&& input = inbox.take(lane);
    if (input.kind == StepKind::kTimer && !actors_.is_current(input)) continue;
    num_steps_.add(1);
    if (input.kind == StepKind::kCommand) actors_.command_begins();
    begin_input(std::move(input), now);
    return true;
  }
}

void GroupSteps::begin_work(Time now) {
  step_ = Step::kWork;
  current_ = 0;
  work_armed_ = false;
  handling_.set(InstanceId::kNone);
  handling_type_.set(0);
  handling_kind_.set(static_cast<uint64_t>(StepKind::kWork));
  for (uint32_t i = 0; i < actors_.size(); ++i)
    actors_.running(i).prepare_work(num_steps_.get(), now, actors_.has_drained(i));
}

void GroupSteps::begin_input(Input&& input, Time now) {
  if (input.kind == StepKind::kTenant) return begin_tenant(std::move(input), now);
  step_ = Step::kInput;
  current_ = input.actor;
  handling_.set(planned_.instances[current_].value);
  handling_type_.set(reinterpret_cast<uint64_t>(input.envelope.payload.type));
  handling_kind_.set(static_cast<uint64_t>(input.kind));
  const bool is_message = input.kind == StepKind::kMessage;
  handling_link_.set(is_message ? links_.inbox().links[input.in_index].id.value : input.port);
  handling_sequence_.set(input.envelope.sequence);
  actors_.running(current_).prepare(std::move(input), num_steps_.get(), now);
}

void GroupSteps::mark_running(Time now) {
  running_since_.set(static_cast<uint64_t>(now.to_nanoseconds()));
  is_running_.set(1);
}

void GroupSteps::run() {
  CHECK(step_ != Step::kNone, "run_step() without begin_step()");
  step_here = setup().group.value;
  run_actors();
  step_here = GroupId::kNone;
}

void GroupSteps::run_actors() {
  if (step_ == Step::kInput) return actors_.running(current_).run();
  if (step_ == Step::kTenant) return run_tenant();
  step_resources();
  if (!resource_status_.ok()) return;
  uint64_t num_progress_calls = 0;
  for (uint32_t i = 0; i < actors_.size(); ++i) {
    Running& running = actors_.running(i);
    running.num_progress_calls = num_progress_calls;
    running.run();
    num_progress_calls = running.num_progress_calls;
  }
}

void GroupSteps::step_resources() {
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
}

void GroupSteps::fail(Error error) {
  CHECK(step_ == Step::kInput, "only an input can be failed");
  is_injected_ = true;
  actors_.running(current_).fail(std::move(error));
}

void GroupSteps::complete(Time now) {
  CHECK(step_ != Step::kNone, "complete_step() without begin_step()");
  links_.set_now(now);
  links_.forget_emissions();
  const Step step = std::exchange(step_, Step::kNone);
  if (step == Step::kInput) {
    Running& running = actors_.running(current_);
    // Only an actor that failed may be replaced before this step ends.
    const auto kept = running.status().ok() ? nullptr : actors_.share(current_);
    complete_actor(running);
    actors_.set_may_work(current_, actors_.running(current_).contract().works);
    arm_work();
    if (setup().observer != nullptr) record(running, false, now);
    if (running.input().kind == StepKind::kCommand) answer_command(running);
    running.input().envelope.payload = {};
  } else if (step == Step::kTenant) {
    complete_tenant(now);
  } else {
    complete_work(now);
  }
  is_running_.set(0);
}

void GroupSteps::complete_work(Time now) {
  bool more = false;
  for (uint32_t i = 0; i < actors_.size(); ++i) {
    Running& running = actors_.running(i);
    const auto kept = running.status().ok() ? nullptr : actors_.share(i);
    complete_actor(running);
    actors_.set_may_work(i, running.wants_more_work());
    more = more || running.wants_more_work();
  }
  if (more || resources_have_work()) arm_work();
  if (!resource_status_.ok())
    setup().executor->group_failed(
        setup().group,
        Error(resource_status_.error())
            .while_doing(fmt::format("stepping the resources of '{}'", planned_.name)));
  // A fault of the outside does not repeat: a resumed run must ask again, so it is not recorded.
  const bool is_outside_fault = !resource_status_.ok() && !outsides_.empty();
  if (setup().observer != nullptr && !is_outside_fault) record(actors_.running(0), false, now);
}

void GroupSteps::complete_actor(Running& running) {
  const Input& input = running.input();
  if (input.kind == StepKind::kMessage) links_.acknowledge(input);
  if (!running.status().ok()) return complete_failed(running);
  actors_.apply_effects(running);
  links_.release(running);
  actors_.save_snapshot(running.index());
}

void GroupSteps::complete_failed(Running& running) {
  const Input& input = running.input();
  const Error error = running.status().error();
  running.emissions.clear();
  if (input.kind == StepKind::kMessage) {
    links_.count_failed(input);
    running.refuse(error);
  }
  // A rejected command is not a fault of the actor; the sender of the command gets the error.
  const bool is_fault = input.kind != StepKind::kCommand && !running.is_for_free_slot();
  running.log(is_fault ? LogLevel::kWarning : LogLevel::kInfo,
              fmt::format("{} failed: {}", to_string(input.kind), error.text()));
  if (is_fault) running.count("errors", 1);
  actors_.apply_effects(running);
  links_.release(running);
  if (is_fault) actors_.supervise(running, error, running.now());
  // An actor that was not replaced keeps what the failed step changed. An actor made anew from a
  // GroupState has that as its snapshot too.
  actors_.save_snapshot(running.index());
}

/// If the group follows a record, the command's sender got the answer in the recorded run.
void GroupSteps::answer_command(Running& running) {
  if (setup().step_source != nullptr) return;
  setup().executor->command_answered({running.input().number, running.self(), running.status()});
}

Status GroupSteps::abandon(Time now) {
  CHECK(step_ != Step::kNone && common_->may_run_apart(),
        "only a handler that runs apart is abandoned");
  step_ = Step::kNone;
  links_.set_now(now);
  links_.forget_emissions();
  const auto stuck = actors_.share(current_);
  // The text has no measured time, because it goes into answers that a replay must reproduce.
  const Error late = error(Code::kDeadline, "the handler did not return before its deadline");
  stuck->abandon();
  num_abandoned_.add(1);
  Input input = stuck->input();
  if (input.kind == StepKind::kMessage) {
    links_.acknowledge(input);
    links_.count_failed(input);
  }
  RETURN_IF_ERROR(actors_.replace(current_, now));
  Running& fresh = actors_.running(current_);
  fresh.log(LogLevel::kWarning, fmt::format("gave up a handler that was stuck for {:.3f} s",
                                            (now - stuck->now()).to_seconds()));
  fresh.prepare(std::move(input), num_steps_.get(), now);
  fresh.fail(late);
  if (fresh.input().kind == StepKind::kMessage) fresh.refuse(late);
  actors_.apply_effects(fresh);
  links_.release(fresh);
  arm_work();
  if (setup().observer != nullptr) record(fresh, true, now);
  if (fresh.input().kind == StepKind::kCommand) answer_command(fresh);
  is_running_.set(0);
  return ok();
}

void GroupSteps::record(Running& running, bool is_abandoned, Time ended) {
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
    record.link = links_.inbox().links[input.in_index].id;
  }
  record.timer = input.port;
  record.peer = input.peer;
  if (record.kind == StepKind::kCommand) {
    record.input = input.port;
    record.command = &input.envelope.payload;
  }
  if (!running.status().ok()) record.error = &running.status().error();
  record.has_given_up = running.has_given_up;
  record.emissions = links_.observed();
  record.num_emissions = links_.num_emissions();
  record.room_answers = running.room_answers;
  record.stopped_at_progress = running.stopped_at_progress;
  if (record.kind == StepKind::kWork && actors_.size() > 1) {
    room_answers_.clear();
    for (uint32_t i = 0; i < actors_.size(); ++i) {
      const Running& each = actors_.running(i);
      room_answers_.insert(room_answers_.end(), each.room_answers.begin(), each.room_answers.end());
      if (record.stopped_at_progress == 0) record.stopped_at_progress = each.stopped_at_progress;
      record.has_given_up = record.has_given_up || each.has_given_up;
    }
    record.room_answers = room_answers_;
  }
  record.is_abandoned = is_abandoned;
  record.is_injected = is_injected_;
  record.is_from_record = input.is_stored;
  setup().observer->on_step(record);
}

void GroupSteps::save(GroupState& state) const {
  state.num_steps = num_steps_.get();
  state.num_abandoned = num_abandoned_.get();
  state.work_armed = work_armed_;
  state.work_arrival = work_arrival_;
  for (const auto& resource : common_->owned) state.resources.push_back(resource->save_state());
}

void GroupSteps::restore(const GroupState& state) {
  num_steps_.set(state.num_steps);
  num_abandoned_.set(state.num_abandoned);
  work_armed_ = state.work_armed;
  work_arrival_ = state.work_arrival;
}

void GroupSteps::describe(GroupView& view) const {
  view.num_steps = num_steps_.get();
  view.is_running = is_running_.get() != 0;
  view.running_since = Time::from_nanoseconds(static_cast<int64_t>(running_since_.get()));
  if (!view.is_running) return;
  view.handling = InstanceId(static_cast<uint32_t>(handling_.get()));
  view.handling_type = reinterpret_cast<const MessageType*>(handling_type_.get());
  view.handling_kind = static_cast<StepKind>(handling_kind_.get());
  view.handling_link = static_cast<uint32_t>(handling_link_.get());
  view.handling_sequence = handling_sequence_.get();
}

}  // namespace primerl
