#include "runtime/exec/actor_group.h"

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
    case StepKind::kTenant:
      return "tenant";
  }
  return "unknown";
}

ActorGroup::Body::Body(GroupSetup setup)
    : common_(GroupCommon::make(std::move(setup))),
      links_(*common_),
      actors_(common_, links_),
      steps_(common_, links_, actors_),
      saver_(*common_, links_, actors_, steps_),
      slots_idle_(common_->tenants.num_slots()) {}

Status ActorGroup::Body::start(Time now, const GroupState* from) {
  CHECK(!is_started_, "a group was started twice");
  is_started_ = true;
  links_.set_now(now);
  RETURN_IF_ERROR(steps_.make_resources());
  if (from != nullptr) {
    RETURN_IF_ERROR(steps_.restore_slots(*from, now));
    RETURN_IF_ERROR(steps_.notify_of_joined());
    RETURN_IF_ERROR(steps_.restore_resources(*from));
  }
  RETURN_IF_ERROR(actors_.start(now));
  if (from != nullptr) RETURN_IF_ERROR(actors_.repeat_changes(now));
  const GroupSetup& setup = common_->setup;
  if (setup.observer != nullptr) setup.observer->on_start(setup.group, now);
  steps_.arm_work();
  after_change();
  return ok();
}

Status ActorGroup::Body::start_from(const GroupState& state,
                                    std::span<const SavedMessage> in_transit, Time now) {
  RETURN_IF_ERROR(start(now, &state));
  RETURN_IF_ERROR(restore(state, now));
  RETURN_IF_ERROR(saver_.receive(in_transit));
  links_.flush();
  update_gauge();
  return ok();
}

Status ActorGroup::Body::restore(const GroupState& state, Time now) {
  CHECK(is_started_ && steps_.num_steps() == 0 && links_.inbox().empty(),
        "a group is restored before its first step");
  links_.set_now(now);
  RETURN_IF_ERROR(saver_.check_fits(state));
  RETURN_IF_ERROR(actors_.restore_slots(state, now));
  RETURN_IF_ERROR(actors_.repeat_changes(now));
  RETURN_IF_ERROR(saver_.restore(state));
  links_.grant_at_once(!actors_.leaving().empty());
  links_.flush();
  update_gauge();
  return ok();
}

void ActorGroup::Body::resume(Time now) {
  const StepSource* source = common_->setup.step_source;
  CHECK(source != nullptr && source->next() == nullptr,
        "a group resumed that is not replaying, or not at the end of its record");
  links_.set_now(now);
  common_->setup.step_source = nullptr;
  links_.resume();
  steps_.resume();
  actors_.report_at_end_of_record();
  after_change();
}

Status ActorGroup::Body::accept(MessageBatch&& batch, Time now) {
  links_.set_now(now);
  const uint32_t peer = links_.peers().index_of(batch.from);
  if (peer == PeerBatches::kNone)
    return error(Code::kCorrupt, "'{}' got a batch of group {}, with which it shares no edge",
                 common_->planned().name, batch.from.value);
  saver_.follow_cut(peer, batch, now);
  Status accepted = links_.accept(peer, std::move(batch));
  after_change();
  return accepted;
}

void ActorGroup::Body::end_burst() {
  is_in_burst_ = false;
  links_.flush();
  update_gauge();
}

void ActorGroup::Body::destroy() {
  actors_.destroy();
  (void)steps_.release_resources();
}

void ActorGroup::Body::after_change() {
  if (common_->flow->take_got_capacity()) steps_.arm_work();
  if (is_in_burst_) return;
  links_.flush();
  update_gauge();
}

void ActorGroup::Body::update_gauge() {
  const Inbox& inbox = links_.inbox();
  waiting_.set(inbox.size());
  oldest_arrival_.set(static_cast<uint64_t>(inbox.oldest_arrival().to_nanoseconds()));
  is_ready_.set(steps_.ready() ? 1 : 0);
  bool idle = inbox.empty() && !common_->flow->has_outbox() && !steps_.is_running();
  if (idle && actors_.is_draining())
    idle = !steps_.is_work_armed() && actors_.are_idle() && !steps_.resources_have_work();
  is_idle_.set(idle ? 1 : 0);
  for (const TenantSlot slot : actors_.leaving())
    slots_idle_[slot.index()].set(is_idle(slot) ? 1 : 0);
}

bool ActorGroup::Body::is_idle(TenantSlot slot) const {
  return actors_.is_idle(slot) && !links_.holds_of(slot);
}

void ActorGroup::Body::begin_burst() {
  is_in_burst_ = true;
  is_idle_.set(0);
  for (const TenantSlot slot : actors_.leaving()) slots_idle_[slot.index()].set(0);
}

void ActorGroup::Body::drain_tenant(TenantSlot slot, Time now) {
  CHECK(common_->setup.step_source == nullptr, "a group that follows a record was told to drain");
  // The control plane counts again and again until no step was made between two counts.
  if (actors_.leaving().contains(slot)) return after_change();
  slots_idle_[slot.index()].set(0);
  Input input;
  input.kind = StepKind::kTenant;
  input.tenant_change = std::make_shared<const TenantChange>(
      TenantChange{TenantChange::Kind::kPause, slot, 0, {}, {}});
  input.drains = true;
  links_.inbox().push_control(std::move(input), now);
  after_change();
}

void ActorGroup::Body::change_tenant(const TenantChange& change, Time now) {
  CHECK(common_->setup.step_source == nullptr,
        "a group that follows a record was given a tenant's change");
  Input input;
  input.kind = StepKind::kTenant;
  input.tenant_change = std::make_shared<const TenantChange>(change);
  links_.inbox().push_control(std::move(input), now);
  after_change();
}

SlotCounts ActorGroup::Body::slot_counts(TenantSlot slot) const {
  return {links_.num_shipped(slot), links_.num_received(slot),
          slots_idle_[slot.index()].get() != 0};
}

GroupView ActorGroup::Body::view() const {
  GroupView view;
  view.group = common_->setup.group;
  view.num_waiting = waiting_.get();
  view.oldest_arrival = Time::from_nanoseconds(static_cast<int64_t>(oldest_arrival_.get()));
  view.num_progress = common_->num_progress.load(std::memory_order_relaxed);
  view.is_idle = is_idle_.get() != 0;
  view.is_ready = is_ready_.get() != 0;
  steps_.describe(view);
  links_.describe(view);
  return view;
}

ActorGroup::ActorGroup(GroupSetup setup) : body_(std::make_unique<Body>(std::move(setup))) {}
ActorGroup::~ActorGroup() = default;

Status ActorGroup::start(Time now) { return body_->start(now, nullptr); }
Status ActorGroup::start_from(const GroupState& state, std::span<const SavedMessage> in_transit,
                              Time now) {
  return body_->start_from(state, in_transit, now);
}
Status ActorGroup::accept(MessageBatch&& batch, Time now) {
  return body_->accept(std::move(batch), now);
}
std::optional<Time> ActorGroup::next_timer() const { return body_->actors_.next_timer(); }
void ActorGroup::wake(Time now) {
  if (body_->actors_.wake(now)) body_->after_change();
}
void ActorGroup::answers_arrived() {
  body_->steps_.arm_work();
  body_->after_change();
}
bool ActorGroup::ready() const { return body_->steps_.ready(); }
bool ActorGroup::step(Time now) {
  if (is_replaying()) {
    const bool has_stepped = body_->steps_.replay_step();
    if (has_stepped) body_->after_change();
    return has_stepped;
  }
  if (!begin_step(now)) return false;
  run_step();
  complete_step(now);
  return true;
}
void ActorGroup::begin_burst() { body_->begin_burst(); }
void ActorGroup::end_burst() { body_->end_burst(); }
bool ActorGroup::begin_step(Time now) {
  if (body_->steps_.begin(now)) return true;
  if (!is_replaying()) body_->after_change();
  return false;
}
void ActorGroup::run_step() { body_->steps_.run(); }
void ActorGroup::fail_step(Error error) { body_->steps_.fail(std::move(error)); }
Duration ActorGroup::step_cost() { return body_->steps_.cost(); }
void ActorGroup::complete_step(Time now) {
  body_->steps_.complete(now);
  body_->after_change();
}
Status ActorGroup::abandon_step(Time now) {
  RETURN_IF_ERROR(body_->steps_.abandon(now));
  body_->after_change();
  return ok();
}
std::shared_ptr<Running> ActorGroup::running() const {
  return body_->actors_.share(body_->steps_.current());
}
bool ActorGroup::run(Running& running) {
  running.run();
  return !running.is_abandoned();
}
bool ActorGroup::is_replaying() const { return body_->common_->setup.step_source != nullptr; }
bool ActorGroup::may_run_apart() const { return body_->common_->may_run_apart(); }
bool ActorGroup::step_runs_apart() const {
  return may_run_apart() && !body_->steps_.stays_here();
}
void ActorGroup::begin_drain(Time now) {
  body_->actors_.begin_drain(now);
  body_->after_change();
}
void ActorGroup::command(const ActorCommand& command, Time now) {
  body_->actors_.command(command, now);
  body_->after_change();
}
void ActorGroup::set_aside(TenantSlot tenant, Time now) {
  body_->actors_.set_aside(tenant, now);
  body_->after_change();
}
void ActorGroup::drain_tenant(TenantSlot tenant, Time now) { body_->drain_tenant(tenant, now); }
void ActorGroup::change_tenant(const TenantChange& change, Time now) {
  body_->change_tenant(change, now);
}
void ActorGroup::resume(Time now) { body_->resume(now); }
void ActorGroup::peer_down(GroupId peer, uint32_t incarnation, Time now) {
  body_->links_.set_now(now);
  body_->links_.peer_down(peer, incarnation);
  body_->after_change();
}
void ActorGroup::peer_up(GroupId peer, uint32_t incarnation, Time now) {
  body_->links_.set_now(now);
  body_->links_.peer_up(peer, incarnation);
  body_->after_change();
}
std::vector<std::shared_ptr<Resource>> ActorGroup::take_resources() {
  return body_->steps_.release_resources();
}
void ActorGroup::destroy() { body_->destroy(); }

std::vector<std::pair<std::string, int64_t>> ActorGroup::counters() const {
  std::vector<std::pair<std::string, int64_t>> all;
  const Plan& plan = *body_->common_->setup.plan;
  const auto& instances = body_->common_->planned().instances;
  for (size_t i = 0; i < instances.size(); ++i)
    for (const auto& [name, value] : body_->common_->counters[i].values())
      all.emplace_back(fmt::format("{}.{}", plan.instance(instances[i]).name, name), value);
  for (const auto& in : body_->links_.inbox().links) {
    const uint64_t refused = in.num_refused_duplicates.get() + in.num_refused_incarnations.get();
    if (refused > 0)
      all.emplace_back(fmt::format("{}.refused", plan.edge(in.link->edge).name),
                       static_cast<int64_t>(refused));
  }
  const auto add = [&](std::string_view name, const Counter& counter) {
    if (counter.get() > 0)
      all.emplace_back(fmt::format("{}.{}", this->name(), name),
                       static_cast<int64_t>(counter.get()));
  };
  add("restarts", body_->actors_.num_restarts());
  add("abandoned", body_->steps_.num_abandoned());
  return all;
}

GroupId ActorGroup::running_here() { return GroupSteps::running_here(); }

void ActorGroup::cut(uint64_t number, Time now) { body_->saver_.cut(number, now); }
uint64_t ActorGroup::newest_cut() const { return body_->saver_.newest_cut(); }
GroupState ActorGroup::state() const { return body_->saver_.state(); }
Status ActorGroup::restore(const GroupState& state, Time now) { return body_->restore(state, now); }

void ActorGroup::request_stop() { body_->common_->stop_requested.store(true); }
GroupId ActorGroup::id() const { return body_->common_->setup.group; }
const std::string& ActorGroup::name() const { return body_->common_->planned().name; }
GroupCounts ActorGroup::counts() const {
  return {body_->steps_.num_steps(), body_->links_.num_shipped(), body_->links_.num_received(),
          body_->is_idle_.get() != 0};
}
bool ActorGroup::concerns(TenantSlot slot) const {
  if (body_->common_->has_shared_actors()) return true;
  for (uint32_t i = 0; i < body_->common_->planned().instances.size(); ++i)
    if (body_->common_->tenant_of(i) == slot) return true;
  return false;
}
SlotCounts ActorGroup::slot_counts(TenantSlot slot) const { return body_->slot_counts(slot); }
GroupView ActorGroup::view() const { return body_->view(); }
void ActorGroup::add_to(std::span<EdgeLedger> ledger) const { body_->links_.add_to(ledger); }
void ActorGroup::add_load(std::span<EdgeLoad> edges, std::vector<InstanceLoad>& instances,
                          Time now) const {
  body_->links_.add_load(edges, instances, now);
}
uint64_t ActorGroup::num_waiting_in(uint32_t in_index) const {
  return body_->links_.inbox().links[in_index].num_waiting.get();
}
uint64_t ActorGroup::num_waiting_out(uint32_t out_index) const {
  return body_->common_->flow->links[out_index].outbox.size();
}
uint64_t ActorGroup::num_held() const { return body_->links_.num_held(); }

}  // namespace primerl
