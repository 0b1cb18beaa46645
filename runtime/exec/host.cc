#include "runtime/exec/host.h"

#include <algorithm>

#include "runtime/exec/host_body.h"

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
  }
  return "unknown";
}

thread_local uint32_t Host::Body::here = HostId::kNone;

namespace {

std::shared_ptr<HostCommon> make_common(HostSetup setup) {
  auto common = std::make_shared<HostCommon>();
  common->flow =
      std::make_shared<Flow>(*setup.plan, *setup.wiring, setup.host, setup.guide != nullptr);
  common->setup = std::move(setup);
  return common;
}

}  // namespace

Host::Body::Body(HostSetup host_setup)
    : common_(make_common(std::move(host_setup))),
      planned_(setup().plan->host(setup().host)),
      wires_(setup().wiring->hosts[setup().host.index()]),
      inbox_(*setup().plan, *setup().wiring, setup().host, setup().guide != nullptr),
      seats_(planned_.instances.size()),
      parcels_(wires_.peers.size()) {
  for (size_t i = 0; i < parcels_.size(); ++i) {
    parcels_[i].parcel.from = setup().host;
    parcels_[i].parcel.to = wires_.peers[i];
    parcels_[i].parcel.epoch = setup().epoch;
  }
  for (const InLink& in : inbox_.links) in_peer_.push_back(peer_index(in.link->sender_host));
  for (const OutLink& out : common_->flow->links)
    out_peer_.push_back(peer_index(out.link->target_host));
  choose_observed();
  handling_.set(InstanceId::kNone);
}

void Host::Body::choose_observed() {
  observes_.clear();
  for (const OutLink& out : common_->flow->links)
    observes_.push_back(setup().observer != nullptr && setup().observer->wants_emissions(out.id));
}

uint32_t Host::Body::peer_index(HostId host) const {
  const auto found = std::lower_bound(wires_.peers.begin(), wires_.peers.end(), host);
  if (found == wires_.peers.end() || *found != host) return Inbox::kNone;
  return static_cast<uint32_t>(found - wires_.peers.begin());
}

bool Host::Body::may_run_apart() const {
  return planned_.own_thread && planned_.instances.size() == 1 && planned_.resources.empty();
}

Status Host::Body::start(Time now) {
  CHECK(!is_started_, "a host was started twice");
  is_started_ = true;
  set_now(now);
  const Plan& plan = *setup().plan;
  for (int32_t resource : planned_.resources) {
    ASSIGN_OR_RETURN(auto made, setup().factory(plan, resource));
    common_->owned.push_back(std::move(made));
  }
  for (uint32_t i = 0; i < seats_.size(); ++i) {
    Seat& seat = seats_[i];
    seat.running = std::make_shared<Running>(common_, i);
    const Contract& contract = seat.running->contract();
    seat.timer_generations.assign(contract.timers.size(), 0);
    works_ = works_ || contract.works;
    const bool may_be_replaced =
        seat.running->node().on_error == OnError::kRestart || may_run_apart();
    seat.keeps_snapshot = contract.is_restartable && may_be_replaced;
    RETURN_IF_ERROR(seat.running->start(now));
    apply_effects(*seat.running, now);
    take_snapshot(seat);
  }
  if (setup().observer != nullptr) setup().observer->on_start(setup().host, now);
  arm_work();
  after_change();
  return ok();
}

void Host::Body::destroy() {
  seats_.clear();
  common_->owned.clear();
}

void Host::Body::begin_drain(Time now) {
  is_draining_ = true;
  for (uint32_t i = 0; i < seats_.size(); ++i) {
    if (std::exchange(seats_[i].has_drained, true)) continue;
    Input input;
    input.kind = StepKind::kDrain;
    input.actor = i;
    inbox_.push_control(std::move(input), now);
  }
  after_change();
}

void Host::Body::go_live(Time now) {
  CHECK(setup().guide != nullptr && setup().guide->next() == nullptr,
        "a host went live that is not guided, or not at the end of its record");
  set_now(now);
  common_->setup.guide = nullptr;
  common_->flow->go_live();
  choose_observed();
  std::vector<uint64_t> settled;
  for (const InLink& in : inbox_.links) settled.push_back(in.settled_messages);
  inbox_.go_live(now);
  for (uint32_t i = 0; i < inbox_.links.size(); ++i) {
    const InLink& in = inbox_.links[i];
    const bool is_unsaid = in.link->is_remote && in.settled_messages > in.granted_messages;
    if (in.settled_messages == settled[i] && !is_unsaid) continue;
    grant_when_due(i);
    if (is_unsaid) mark_due(in_peer_[i]);
  }
  for (InLink& in : inbox_.links) check_bound(in);
  work_armed_ = false;
  arm_work();
  after_change();
}

HostCounts Host::Body::counts() const {
  return {num_steps_.get(), num_shipped_.get(), num_received_.get(), is_idle_.get() != 0};
}

void Host::Body::update_gauge() {
  waiting_.set(inbox_.size());
  oldest_arrival_.set(static_cast<uint64_t>(inbox_.oldest_arrival().to_nanoseconds()));
  is_ready_.set(ready() ? 1 : 0);
  bool idle = inbox_.empty() && !common_->flow->has_outbox() && step_ == Step::kNone;
  if (idle && is_draining_) {
    idle = !work_armed_;
    for (const Seat& seat : seats_) idle = idle && seat.running->actor().idle();
    for (const auto& resource : common_->owned) idle = idle && !resource->has_work();
  }
  is_idle_.set(idle ? 1 : 0);
}

HostView Host::Body::view() const {
  HostView view;
  view.host = setup().host;
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

Host::Host(HostSetup setup) : body_(std::make_unique<Body>(std::move(setup))) {}
Host::~Host() = default;

Status Host::start(Time now) { return body_->start(now); }
Status Host::accept(Parcel&& parcel, Time now) { return body_->accept(std::move(parcel), now); }
std::optional<Time> Host::next_timer() const {
  std::optional<Time> next;
  for (const auto& timer : body_->timers_)
    if (!next || timer.due < *next) next = timer.due;
  return next;
}
void Host::wake(Time now) { body_->wake(now); }
bool Host::ready() const { return body_->ready(); }
StepEnd Host::step(Time now) {
  if (is_guided()) return body_->guided_step();
  if (!body_->begin_step(now)) return {};
  body_->run_step();
  return body_->complete_step(now);
}
void Host::begin_burst() {
  body_->is_in_burst_ = true;
  body_->is_idle_.set(0);
}
void Host::end_burst() {
  body_->is_in_burst_ = false;
  body_->flush();
  body_->update_gauge();
}
bool Host::begin_step(Time now) { return body_->begin_step(now); }
void Host::run_step() { body_->run_step(); }
void Host::fail_step(Error error) { body_->fail_step(std::move(error)); }
Duration Host::step_cost() {
  Duration cost;
  for (const auto& resource : body_->common_->owned) cost += resource->take_cost();
  return cost;
}
StepEnd Host::complete_step(Time now) { return body_->complete_step(now); }
Status Host::abandon_step(Time now) { return body_->abandon_step(now); }
std::shared_ptr<Running> Host::running() const { return body_->seats_[body_->current_].running; }
bool Host::run(Running& running) {
  running.run();
  return !running.is_abandoned();
}
bool Host::is_guided() const { return body_->setup().guide != nullptr; }
bool Host::may_run_apart() const { return body_->may_run_apart(); }
void Host::begin_drain(Time now) { body_->begin_drain(now); }
void Host::go_live(Time now) { body_->go_live(now); }
void Host::peer_down(HostId peer, uint32_t epoch, Time now) { body_->peer_down(peer, epoch, now); }
void Host::peer_up(HostId peer, uint32_t epoch, Time now) { body_->peer_up(peer, epoch, now); }
void Host::destroy() { body_->destroy(); }

std::vector<std::pair<std::string, int64_t>> Host::counters() const {
  std::vector<std::pair<std::string, int64_t>> all;
  for (const auto& seat : body_->seats_)
    for (const auto& [name, value] : seat.running->counters)
      all.emplace_back(fmt::format("{}.{}", seat.running->self_name(), name), value);
  for (const auto& in : body_->inbox_.links) {
    const auto& edge = body_->setup().plan->edge(in.link->edge).name;
    const uint64_t refused = in.num_refused_duplicates.get() + in.num_refused_epochs.get();
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

HostId Host::running_here() { return HostId(Body::here); }

Json Host::snapshot() const {
  Json all = Json::object();
  for (const auto& seat : body_->seats_)
    if (Json state = seat.running->actor().snapshot(); !state.is_null())
      all.set(seat.running->self_name(), std::move(state));
  return all;
}

void Host::request_stop() { body_->common_->stop_requested.store(true); }
HostId Host::id() const { return body_->setup().host; }
const std::string& Host::name() const { return body_->planned_.name; }
HostCounts Host::counts() const { return body_->counts(); }
HostView Host::view() const { return body_->view(); }
void Host::add_to(std::span<EdgeLedger> ledger) const { body_->add_to(ledger); }
void Host::add_load(std::span<EdgeLoad> edges, std::vector<InstanceLoad>& instances,
                    Time now) const {
  body_->add_load(edges, instances, now);
}
uint64_t Host::num_waiting_in(uint32_t in_index) const {
  return body_->inbox_.links[in_index].num_waiting.get();
}
uint64_t Host::num_held() const {
  uint64_t held = 0;
  for (const auto& in : body_->inbox_.links) held += in.num_waiting.get() + in.num_in_hand.get();
  for (const auto& out : body_->common_->flow->links) held += out.outbox.size();
  return held;
}
uint64_t Host::num_waiting_out(uint32_t out_index) const {
  return body_->common_->flow->links[out_index].outbox.size();
}

}  // namespace primerl
