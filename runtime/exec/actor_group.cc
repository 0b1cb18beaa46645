#include "runtime/exec/actor_group.h"

#include <algorithm>

#include "runtime/exec/group_body.h"

namespace primerl {

std::string_view to_string(StepKind kind) {
  switch (kind) {
    case StepKind::kMessage:
      return "message";
    case StepKind::kTimer:
      return "timer";
    case StepKind::kWork:
      return "work";
    case StepKind::kDrain:
      return "drain";
    case StepKind::kPeer:
      return "peer";
    case StepKind::kCommand:
      return "command";
  }
  return "unknown";
}

thread_local uint32_t ActorGroup::Body::here = GroupId::kNone;

namespace {

std::shared_ptr<GroupCommon> make_common(GroupSetup setup) {
  auto common = std::make_shared<GroupCommon>();
  common->flow =
      std::make_shared<Flow>(*setup.plan, *setup.wiring, setup.group, setup.step_source != nullptr);
  common->counters = std::vector<InstanceCounters>(setup.plan->group(setup.group).instances.size());
  common->setup = std::move(setup);
  return common;
}

}  // namespace

ActorGroup::Body::Body(GroupSetup host_setup)
    : common_(make_common(std::move(host_setup))),
      planned_(setup().plan->group(setup().group)),
      wires_(setup().wiring->groups[setup().group.index()]),
      inbox_(*setup().plan, *setup().wiring, setup().group, setup().step_source != nullptr),
      slots_(planned_.instances.size()),
      batches_(wires_.peers.size()) {
  for (size_t i = 0; i < batches_.size(); ++i) {
    batches_[i].batch.from = setup().group;
    batches_[i].batch.to = wires_.peers[i];
    batches_[i].batch.incarnation = setup().incarnation;
  }
  for (const InLink& in : inbox_.links) in_peer_.push_back(peer_index(in.link->sender_group));
  for (const OutLink& out : common_->flow->links)
    out_peer_.push_back(peer_index(out.link->target_group));
  choose_observed();
  handling_.set(InstanceId::kNone);
}

void ActorGroup::Body::choose_observed() {
  observes_.clear();
  for (const OutLink& out : common_->flow->links)
    observes_.push_back(setup().observer != nullptr && setup().observer->wants_emissions(out.id));
}

uint32_t ActorGroup::Body::peer_index(GroupId group) const {
  const auto found = std::lower_bound(wires_.peers.begin(), wires_.peers.end(), group);
  if (found == wires_.peers.end() || *found != group) return Inbox::kNone;
  return static_cast<uint32_t>(found - wires_.peers.begin());
}

bool ActorGroup::Body::is_remote(uint32_t peer) const {
  return setup().plan->group(wires_.peers[peer]).process != planned_.process;
}

bool ActorGroup::Body::may_run_apart() const {
  return planned_.own_thread && planned_.instances.size() == 1 && planned_.resources.empty();
}

Status ActorGroup::Body::start(Time now, const GroupState* from) {
  CHECK(!is_started_, "a group was started twice");
  is_started_ = true;
  set_now(now);
  const Plan& plan = *setup().plan;
  for (int32_t resource : planned_.resources) {
    auto made = setup().factory(plan, resource);
    if (!made.ok())
      return Error(made.error()).while_doing(fmt::format("starting '{}'", planned_.name));
    if (auto* outside = dynamic_cast<Outside*>(made->get())) {
      outside->set_wake(setup().wake);
      outsides_.push_back(outside);
    }
    common_->owned.push_back(std::move(made).value());
  }
  if (from != nullptr) RETURN_IF_ERROR(restore_resources(*from));
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    ActorSlot& slot = slots_[i];
    slot.running = std::make_shared<Running>(common_, i);
    const Contract& contract = slot.running->contract();
    slot.timer_generations.assign(contract.timers.size(), 0);
    works_ = works_ || contract.works;
    const bool may_be_replaced =
        slot.running->node().on_error == OnError::kRestart || may_run_apart();
    slot.keeps_snapshot = contract.is_restartable && may_be_replaced;
    RETURN_IF_ERROR(slot.running->start(now));
    apply_effects(*slot.running);
    take_snapshot(slot);
  }
  if (setup().observer != nullptr) setup().observer->on_start(setup().group, now);
  arm_work();
  after_change();
  return ok();
}

void ActorGroup::Body::destroy() {
  slots_.clear();
  outsides_.clear();
  common_->owned.clear();
}

void ActorGroup::Body::begin_drain(Time now) {
  is_draining_ = true;
  for (uint32_t i = 0; i < slots_.size(); ++i) drain_actor(i, now);
  after_change();
}

void ActorGroup::Body::set_aside(TenantSlot tenant, Time now) {
  set_aside_.insert(tenant);
  for (uint32_t i = 0; i < slots_.size(); ++i)
    if (tenant_of(i) == tenant) drain_actor(i, now);
  after_change();
}

void ActorGroup::Body::drain_actor(uint32_t actor, Time now) {
  if (std::exchange(slots_[actor].has_drained, true)) return;
  Input input;
  input.kind = StepKind::kDrain;
  input.actor = actor;
  inbox_.push_control(std::move(input), now);
}

void ActorGroup::Body::command(const ActorCommand& command, Time now) {
  CHECK(setup().step_source == nullptr, "a group that follows a record was given a command");
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    const InstanceId instance = planned_.instances[i];
    const auto port = input_for(*setup().plan, instance, *command.message.type, command.tenant);
    if (!port) continue;
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
    inbox_.push_control(std::move(input), now);
  }
  after_change();
}

void ActorGroup::Body::resume(Time now) {
  CHECK(setup().step_source != nullptr && setup().step_source->next() == nullptr,
        "a group resumed that is not replaying, or not at the end of its record");
  set_now(now);
  common_->setup.step_source = nullptr;
  common_->flow->resume();
  choose_observed();
  std::vector<uint64_t> settled;
  for (const InLink& in : inbox_.links) settled.push_back(in.settled_messages);
  inbox_.resume(now);
  for (uint32_t i = 0; i < inbox_.links.size(); ++i) {
    const InLink& in = inbox_.links[i];
    const bool is_unsaid = in_peer_[i] != Inbox::kNone && in.settled_messages > in.granted_messages;
    if (in.settled_messages == settled[i] && !is_unsaid) continue;
    grant_when_due(i);
    if (is_unsaid) mark_due(in_peer_[i]);
  }
  // If a receiver's record ended before its sender's record, more messages wait than the bound
  // normally allows.
  for (InLink& in : inbox_.links) {
    const auto bound = static_cast<uint64_t>(in.link->bound);
    in.excess = in.num_waiting.get() - std::min(in.num_waiting.get(), bound);
  }
  work_armed_ = false;
  arm_work();
  after_change();
}

GroupCounts ActorGroup::Body::counts() const {
  return {num_steps_.get(), num_shipped_.get(), num_received_.get(), is_idle_.get() != 0};
}

void ActorGroup::Body::update_gauge() {
  waiting_.set(inbox_.size());
  oldest_arrival_.set(static_cast<uint64_t>(inbox_.oldest_arrival().to_nanoseconds()));
  is_ready_.set(ready() ? 1 : 0);
  bool idle = inbox_.empty() && !common_->flow->has_outbox() && step_ == Step::kNone;
  if (idle && is_draining_) {
    idle = !work_armed_;
    // An actor of a tenant that was set aside may wait for a message that was lost with the
    // failure, so it counts as idle.
    for (uint32_t i = 0; i < slots_.size(); ++i)
      idle = idle && (slots_[i].running->actor().idle() || set_aside_.contains(tenant_of(i)));
    for (const auto& resource : common_->owned) idle = idle && !resource->has_work();
  }
  is_idle_.set(idle ? 1 : 0);
}

GroupView ActorGroup::Body::view() const {
  GroupView view;
  view.group = setup().group;
  view.num_steps = num_steps_.get();
  view.num_waiting = waiting_.get();
  view.oldest_arrival = Time::from_nanoseconds(static_cast<int64_t>(oldest_arrival_.get()));
  view.is_running = is_running_.get() != 0;
  view.running_since = Time::from_nanoseconds(static_cast<int64_t>(running_since_.get()));
  if (view.is_running) {
    view.handling = InstanceId(static_cast<uint32_t>(handling_.get()));
    view.handling_type = reinterpret_cast<const MessageType*>(handling_type_.get());
    view.handling_kind = static_cast<StepKind>(handling_kind_.get());
    view.handling_link = static_cast<uint32_t>(handling_link_.get());
    view.handling_sequence = handling_sequence_.get();
  }
  view.num_progress = common_->num_progress.load(std::memory_order_relaxed);
  view.is_idle = is_idle_.get() != 0;
  view.is_ready = is_ready_.get() != 0;
  for (const OutLink& out : common_->flow->links)
    if (!out.link->is_feedback && out.unsettled() >= static_cast<uint64_t>(out.link->capacity))
      view.full.push_back(out.id);
  for (const InLink& in : inbox_.links)
    if (in.is_paused.get() != 0 && in.num_waiting.get() > 0) view.paused.push_back(in.id);
  return view;
}

ActorGroup::ActorGroup(GroupSetup setup) : body_(std::make_unique<Body>(std::move(setup))) {}
ActorGroup::~ActorGroup() = default;

Status ActorGroup::start(Time now) { return body_->start(now); }
Status ActorGroup::accept(MessageBatch&& batch, Time now) {
  return body_->accept(std::move(batch), now);
}
std::optional<Time> ActorGroup::next_timer() const {
  std::optional<Time> next;
  for (const auto& timer : body_->timers_)
    if (!next || timer.due < *next) next = timer.due;
  return next;
}
void ActorGroup::wake(Time now) { body_->wake(now); }
void ActorGroup::answers_arrived() {
  body_->arm_work();
  body_->after_change();
}
bool ActorGroup::ready() const { return body_->ready(); }
bool ActorGroup::step(Time now) {
  if (is_replaying()) return body_->replayed_step();
  if (!body_->begin_step(now)) return false;
  body_->run_step();
  body_->complete_step(now);
  return true;
}
void ActorGroup::begin_burst() {
  body_->is_in_burst_ = true;
  body_->is_idle_.set(0);
}
void ActorGroup::end_burst() {
  body_->is_in_burst_ = false;
  body_->flush();
  body_->update_gauge();
}
bool ActorGroup::begin_step(Time now) { return body_->begin_step(now); }
void ActorGroup::run_step() { body_->run_step(); }
void ActorGroup::fail_step(Error error) { body_->fail_step(std::move(error)); }
Duration ActorGroup::step_cost() {
  Duration cost;
  for (const auto& resource : body_->common_->owned) cost += resource->take_cost();
  return cost;
}
void ActorGroup::complete_step(Time now) { body_->complete_step(now); }
Status ActorGroup::abandon_step(Time now) { return body_->abandon_step(now); }
std::shared_ptr<Running> ActorGroup::running() const {
  return body_->slots_[body_->current_].running;
}
bool ActorGroup::run(Running& running) {
  running.run();
  return !running.is_abandoned();
}
bool ActorGroup::is_replaying() const { return body_->setup().step_source != nullptr; }
bool ActorGroup::may_run_apart() const { return body_->may_run_apart(); }
void ActorGroup::begin_drain(Time now) { body_->begin_drain(now); }
void ActorGroup::command(const ActorCommand& command, Time now) { body_->command(command, now); }
void ActorGroup::set_aside(TenantSlot tenant, Time now) { body_->set_aside(tenant, now); }
void ActorGroup::resume(Time now) { body_->resume(now); }
void ActorGroup::peer_down(GroupId peer, uint32_t incarnation, Time now) {
  body_->peer_down(peer, incarnation, now);
}
void ActorGroup::peer_up(GroupId peer, uint32_t incarnation, Time now) {
  body_->peer_up(peer, incarnation, now);
}
std::vector<std::shared_ptr<Resource>> ActorGroup::take_resources() {
  body_->outsides_.clear();
  return std::exchange(body_->common_->owned, {});
}
void ActorGroup::destroy() { body_->destroy(); }

std::vector<std::pair<std::string, int64_t>> ActorGroup::counters() const {
  std::vector<std::pair<std::string, int64_t>> all;
  const auto& instances = body_->planned_.instances;
  for (size_t i = 0; i < instances.size(); ++i)
    for (const auto& [name, value] : body_->common_->counters[i].values())
      all.emplace_back(fmt::format("{}.{}", body_->setup().plan->instance(instances[i]).name, name),
                       value);
  for (const auto& in : body_->inbox_.links) {
    const auto& edge = body_->setup().plan->edge(in.link->edge).name;
    const uint64_t refused = in.num_refused_duplicates.get() + in.num_refused_incarnations.get();
    if (refused > 0)
      all.emplace_back(fmt::format("{}.refused", edge), static_cast<int64_t>(refused));
  }
  const auto add = [&](std::string_view name, const Counter& counter) {
    if (counter.get() > 0)
      all.emplace_back(fmt::format("{}.{}", this->name(), name),
                       static_cast<int64_t>(counter.get()));
  };
  add("restarts", body_->num_restarts_);
  add("abandoned", body_->num_abandoned_);
  return all;
}

GroupId ActorGroup::running_here() { return GroupId(Body::here); }

Status ActorGroup::start_from(const GroupState& state, std::span<const SavedMessage> in_transit,
                              Time now) {
  return body_->start_from(state, in_transit, now);
}
void ActorGroup::cut(uint64_t number, Time now) { body_->cut(number, now); }
uint64_t ActorGroup::newest_cut() const { return body_->cut_; }
GroupState ActorGroup::state() const { return body_->state(); }
Status ActorGroup::restore(const GroupState& state, Time now) { return body_->restore(state, now); }

void ActorGroup::request_stop() { body_->common_->stop_requested.store(true); }
GroupId ActorGroup::id() const { return body_->setup().group; }
const std::string& ActorGroup::name() const { return body_->planned_.name; }
GroupCounts ActorGroup::counts() const { return body_->counts(); }
GroupView ActorGroup::view() const { return body_->view(); }
void ActorGroup::add_to(std::span<EdgeLedger> ledger) const { body_->add_to(ledger); }
void ActorGroup::add_load(std::span<EdgeLoad> edges, std::vector<InstanceLoad>& instances,
                          Time now) const {
  body_->add_load(edges, instances, now);
}
uint64_t ActorGroup::num_waiting_in(uint32_t in_index) const {
  return body_->inbox_.links[in_index].num_waiting.get();
}
uint64_t ActorGroup::num_held() const {
  uint64_t held = 0;
  for (const auto& in : body_->inbox_.links) held += in.num_waiting.get() + in.num_in_hand.get();
  for (const auto& out : body_->common_->flow->links) held += out.outbox.size();
  return held;
}
uint64_t ActorGroup::num_waiting_out(uint32_t out_index) const {
  return body_->common_->flow->links[out_index].outbox.size();
}

}  // namespace primerl
