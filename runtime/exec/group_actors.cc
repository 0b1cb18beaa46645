#include "runtime/exec/group_actors.h"

#include <algorithm>
#include <utility>

#include "runtime/exec/executor.h"
#include "runtime/wire/msgpack_codec.h"

namespace primerl {

GroupActors::GroupActors(std::shared_ptr<GroupCommon> common, GroupLinks& links)
    : common_(std::move(common)), links_(links), slots_(common_->planned().instances.size()) {}

Status GroupActors::start(Time now) {
  for (uint32_t i = 0; i < slots_.size(); ++i) RETURN_IF_ERROR(make_actor(i, now));
  update_vacant();
  return ok();
}

Status GroupActors::make_actor(uint32_t actor, Time now) {
  ActorSlot& slot = slots_[actor];
  slot.running = std::make_shared<Running>(common_, actor);
  const Contract& contract = slot.running->contract();
  slot.timer_generations.resize(contract.timers.size(), 0);
  const bool may_be_replaced = slot.running->node().on_error == OnError::kRestart ||
                               (common_->planned().own_thread && slots_.size() == 1);
  slot.keeps_snapshot = contract.is_restartable && may_be_replaced && !slot.running->is_vacant();
  slot.may_work = contract.works && !slot.running->is_vacant();
  RETURN_IF_ERROR(slot.running->start(now));
  apply_effects(*slot.running);
  save_snapshot(actor);
  return ok();
}

void GroupActors::update_vacant() {
  common_->is_vacant.store(
      std::ranges::all_of(slots_, [](const ActorSlot& slot) { return slot.running->is_vacant(); }));
  common_->uses_resources.store(common_->do_actors_use_resources());
}

uint32_t GroupActors::tenancy_of(TenantSlot tenant) const {
  const TenantsBySlot& tenants = common_->tenants.by_slot();
  if (tenant.is_none() || tenant.index() >= tenants.size()) return kTenancyUnknown;
  const auto& present = tenants[tenant.index()];
  return present == nullptr ? kTenancyUnknown : present->tenancy;
}

void GroupActors::apply_effects(Running& running) {
  for (const auto& change : running.timers) set_timer(running.index(), change, running.now());
  running.timers.clear();
  for (const auto& change : running.pauses)
    links_.inbox().pause(running.index(), change.input, change.is_paused);
  running.pauses.clear();
  for (TenantSlot tenant : running.finished) {
    finished_.insert(tenant);
    if (!reports_later()) setup().executor->tenant_finished(tenant, tenancy_of(tenant));
  }
  running.finished.clear();
  for (auto& [tenant, why] : running.failures)
    give_up(running, tenant, std::move(why).while_doing(fmt::format("'{}'", running.self_name())));
  running.failures.clear();
}

void GroupActors::save_snapshot(uint32_t actor) {
  ActorSlot& slot = slots_[actor];
  if (slot.keeps_snapshot)
    slot.snapshot = save_actor(slot.running->contract(), slot.running->actor());
}

/// The tenant of a step. For an actor of one tenant it is that tenant; for a shared actor it is the
/// message's tenant. None for a latest_wins value (an engine's load), for a step without a message,
/// and in a run of one tenant.
TenantSlot GroupActors::tenant_served(Running& running) const {
  if (!common_->tenants.are_apart()) return {};
  const TenantSlot own = common_->tenant_of(running.index());
  const Input& input = running.input();
  if (!own.is_none() || input.kind != StepKind::kMessage) return own;
  if (running.contract().inputs[input.port].latest_wins) return {};
  return input.envelope.tenant;
}

void GroupActors::supervise(Running& running, const Error& error, Time now) {
  const PlanNode& node = running.node();
  const std::string_view name = running.self_name();
  const TenantSlot own = common_->tenant_of(running.index());
  const TenantSlot tenant = tenant_served(running);
  if (running.stops_on_error())
    return give_up(running, own,
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
    if (tenant.is_none() || !own.is_none()) return;
  } else {
    restarts.push_back({now, tenant});
  }
  num_restarts_.add(1);
  if (auto status = replace(running.index(), now); !status.ok())
    give_up(running, own, Error(status.error()).while_doing("its restart after an error failed"));
}

/// If several tenants share the run, a failure of one tenant does not affect the others.
void GroupActors::give_up(Running& running, TenantSlot tenant, Error why) {
  running.has_given_up = true;  // no restart may be left, although the actor did not give up itself
  if (tenant.is_none() || !common_->tenants.are_apart())
    return setup().executor->group_failed(setup().group, std::move(why));
  if (!failed_.emplace(tenant, why.text()).second) return;
  const std::string& name = common_->tenants.name_of(tenant);
  setup().process_services->log(
      LogLevel::kError, running.self_name(),
      fmt::format("tenant '{}' is set aside, the others continue: {}", name, why.text()));
  if (!reports_later())
    setup().executor->tenant_failed(tenant, tenancy_of(tenant), failed_.at(tenant));
}

bool GroupActors::reports_later() const {
  return setup().step_source != nullptr && check_slot(*setup().plan, TenantSlot(0)).ok();
}

void GroupActors::report_at_end_of_record() {
  if (check_slot(*setup().plan, TenantSlot(0)).ok()) report_tenants();
}

void GroupActors::report_tenants() {
  for (const TenantSlot tenant : finished_)
    setup().executor->tenant_finished(tenant, tenancy_of(tenant));
  for (const auto& [tenant, why] : failed_)
    setup().executor->tenant_failed(tenant, tenancy_of(tenant), why);
}

Status GroupActors::replace(uint32_t actor, Time now) {
  ActorSlot& slot = slots_[actor];
  const Contract& contract = slot.running->contract();
  if (!contract.is_restartable)
    return error(Code::kInvalid, "actor '{}' cannot be restarted: its contract does not say so",
                 contract.name);
  cancel_timers(actor);
  auto fresh = std::make_shared<Running>(common_, actor);
  for (uint32_t port = 0; port < contract.inputs.size(); ++port)
    links_.inbox().pause(actor, port, false);
  // Until the new actor is made the slot keeps the old one, so it always has an actor.
  RETURN_IF_ERROR(fresh->start(now));
  slot.running = fresh;
  RETURN_IF_ERROR(repeat_changes(actor, now));
  if (slot.keeps_snapshot) RETURN_IF_ERROR(restore_actor(contract, slot.snapshot, fresh->actor()));
  apply_effects(*fresh);
  return ok();
}

void GroupActors::set_timer(uint32_t actor, const TimerChange& change, Time now) {
  uint64_t& generation = slots_[actor].timer_generations[change.timer];
  ++generation;
  std::erase_if(timers_, [&](const PendingTimer& timer) {
    return timer.actor == actor && timer.timer == change.timer;
  });
  if (change.is_set) timers_.push_back({now + change.delay, actor, change.timer, generation});
}

void GroupActors::cancel_timers(uint32_t actor) {
  for (auto& generation : slots_[actor].timer_generations) ++generation;
  std::erase_if(timers_, [&](const PendingTimer& timer) { return timer.actor == actor; });
}

std::optional<Time> GroupActors::next_timer() const {
  std::optional<Time> next;
  for (const PendingTimer& timer : timers_)
    if (!next || timer.due < *next) next = timer.due;
  return next;
}

bool GroupActors::wake(Time now) {
  std::vector<PendingTimer> due;
  std::erase_if(timers_, [&](const PendingTimer& timer) {
    if (timer.due > now) return false;
    due.push_back(timer);
    return true;
  });
  std::stable_sort(due.begin(), due.end(),
                   [](const auto& a, const auto& b) { return a.due < b.due; });
  for (const PendingTimer& timer : due) {
    Input input;
    input.kind = StepKind::kTimer;
    input.actor = timer.actor;
    input.port = timer.timer;
    input.generation = timer.generation;
    links_.inbox().push_timer(std::move(input), now);
  }
  return !due.empty();
}

bool GroupActors::expire(uint32_t actor, uint32_t timer) {
  return std::erase_if(timers_, [&](const PendingTimer& pending) {
           return pending.actor == actor && pending.timer == timer;
         }) > 0;
}

void GroupActors::begin_drain(Time now) {
  is_draining_ = true;
  for (uint32_t i = 0; i < slots_.size(); ++i) drain(i, now);
}

void GroupActors::set_aside(TenantSlot tenant, Time now) {
  set_aside_.insert(tenant);
  for (uint32_t i = 0; i < slots_.size(); ++i)
    if (common_->tenant_of(i) == tenant) drain(i, now);
}

void GroupActors::drain_tenant(TenantSlot tenant, Time now) {
  leaving_.insert(tenant);
  for (uint32_t i = 0; i < slots_.size(); ++i)
    if (common_->tenant_of(i) == tenant) drain(i, now);
}

bool GroupActors::is_idle(TenantSlot tenant) const {
  // It could not join here, or has done nothing.
  if (common_->tenants.is_free(tenant) || !common_->tenants.has_started(tenant)) return true;
  const bool has_failed = set_aside_.contains(tenant);
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (common_->tenant_of(i) != tenant) continue;
    const ActorSlot& slot = slots_[i];
    if (slot.may_work || !(has_failed || slot.running->actor().idle())) return false;
  }
  return true;
}

void GroupActors::drain(uint32_t actor, Time now) {
  if (!common_->tenants.has_started(common_->tenant_of(actor))) return;
  if (std::exchange(slots_[actor].has_drained, true)) return;
  Input input;
  input.kind = StepKind::kDrain;
  input.actor = actor;
  links_.inbox().push_control(std::move(input), now);
}

void GroupActors::follow_drain(uint32_t actor) {
  slots_[actor].has_drained = true;
  // With several tenants, the drain of one tenant's actor may concern that tenant only.
  is_draining_ =
      is_draining_ || !common_->tenants.are_apart() || common_->tenant_of(actor).is_none();
}

void GroupActors::command(const ActorCommand& command, Time now) {
  CHECK(setup().step_source == nullptr, "a group that follows a record was given a command");
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    const InstanceId instance = common_->planned().instances[i];
    const auto port = input_for(*setup().plan, instance, *command.message.type, command.tenant);
    if (!port || slots_[i].running->is_vacant()) continue;
    if (num_commands_ >= kCommandsMax) {
      setup().executor->command_answered(
          {command.number, instance,
           error(Code::kExhausted, "{} commands wait for it already", num_commands_)});
      continue;
    }
    ++num_commands_;
    Input input;
    input.kind = StepKind::kCommand;
    input.actor = i;
    input.port = *port;
    input.number = command.number;
    input.envelope.payload = command.message;
    links_.inbox().push_control(std::move(input), now);
  }
}

bool GroupActors::are_idle() const {
  for (uint32_t i = 0; i < slots_.size(); ++i)
    if (!slots_[i].running->actor().idle() && common_->tenants.has_started(common_->tenant_of(i)) &&
        !set_aside_.contains(common_->tenant_of(i)))
      return false;
  return true;
}

void GroupActors::save(GroupState& state) const {
  state.num_restarts = num_restarts_.get();
  state.is_draining = is_draining_;
  state.finished = finished_;
  state.failed = failed_;
  state.set_aside = set_aside_;
  state.leaving = leaving_;
  common_->tenants.save(state);
  for (const ActorSlot& slot : slots_) {
    const Running& running = *slot.running;
    SavedActor& saved = state.actors.emplace_back();
    if (!running.is_vacant()) saved.state = save_actor(running.contract(), running.actor());
    const auto counters = common_->counters[state.actors.size() - 1].values();
    saved.counters.insert(counters.begin(), counters.end());
    saved.timer_generations = slot.timer_generations;
    saved.restarts = slot.restarts;
    saved.has_drained = slot.has_drained;
    saved.stops_on_error = running.stops_on_error();
    saved.is_draining = running.is_draining();
  }
  for (const PendingTimer& timer : timers_)
    state.timers.push_back({timer.due, timer.actor, timer.timer, timer.generation});
}

Status GroupActors::restore_actors(const GroupState& state) {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    ActorSlot& slot = slots_[i];
    Running& running = *slot.running;
    const SavedActor& saved = state.actors[i];
    if (!running.is_vacant())
      RETURN_IF_ERROR(restore_actor(running.contract(), saved.state, running.actor()));
    common_->counters[i].restore(saved.counters);
    running.go_on(saved.stops_on_error, saved.is_draining);
    slot.timer_generations = saved.timer_generations;
    slot.restarts = saved.restarts;
    slot.has_drained = saved.has_drained;
    save_snapshot(i);
  }
  num_restarts_.set(state.num_restarts);
  timers_.clear();
  for (const SavedTimer& saved : state.timers)
    timers_.push_back({saved.due, saved.actor, saved.timer, saved.generation});
  return ok();
}

void GroupActors::restore_tenants(const GroupState& state) {
  is_draining_ = state.is_draining;
  finished_ = state.finished;
  failed_ = state.failed;
  set_aside_ = state.set_aside;
  leaving_ = state.leaving;
  if (!reports_later()) report_tenants();
}

Status GroupActors::put_back(const SavedInput& saved) {
  const auto kind = static_cast<StepKind>(saved.kind);
  Input input;
  input.kind = kind;
  input.actor = saved.actor;
  input.port = saved.timer;
  input.generation = saved.generation;
  if (kind == StepKind::kCommand) {
    input.number = saved.generation;
    const InputPort& port = common_->contract_of(saved.actor).inputs[saved.timer];
    const SavedFields& payload = saved.message->payload;
    ASSIGN_OR_RETURN(input.envelope.payload,
                     decode_message(*port.type, payload.body.bytes(), payload.blobs));
  }
  input.drains = kind == StepKind::kTenant && saved.generation != 0;
  if (saved.tenant_change)
    input.tenant_change = std::make_shared<const TenantChange>(*saved.tenant_change);
  input.peer = {saved.peer_is_up ? PeerEvent::Kind::kUp : PeerEvent::Kind::kDown, saved.peer,
                saved.peer_incarnation};
  input.arrival = saved.arrival;
  input.arrived = saved.arrived;
  if (setup().step_source == nullptr) {
    num_commands_ += kind == StepKind::kCommand ? 1 : 0;
    links_.inbox().put_back(std::move(input));
  } else if (kind == StepKind::kTimer) {
    timers_.push_back({saved.arrived, saved.actor, saved.timer, saved.generation});
  } else if (kind == StepKind::kDrain) {
    slots_[saved.actor].has_drained = false;
  }
  return ok();
}

}  // namespace primerl
