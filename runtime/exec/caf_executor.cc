#include "runtime/exec/caf_executor.h"

#include <algorithm>
#include <thread>

#include "runtime/exec/caf_core.h"
#include "runtime/exec/leak_on_purpose.h"

namespace primerl {
namespace {

int64_t pool_threads_of(const Plan& plan) {
  if (plan.settings.pool_threads > 0) return plan.settings.pool_threads;
  return default_pool_threads(static_cast<int64_t>(std::thread::hardware_concurrency()));
}

/// Interval of the watchdog when nothing asks for an earlier run.
Duration tick_of(const Plan& plan) {
  int64_t eighth = plan.settings.stall_after.to_nanoseconds() / 8;
  if (const Duration alarm = plan.settings.handler_alarm_after; alarm != Duration())
    eighth = std::min(eighth, alarm.to_nanoseconds() / 8);
  return std::clamp(Duration::nanoseconds(eighth), Duration::milliseconds(5),
                    Duration::milliseconds(250));
}

}  // namespace

CafExecutor::Core::Core(CafExecutorSetup setup)
    : setup_(std::move(setup)),
      wiring_(make_wiring(*setup_.plan)),
      arrival_check_(setup_.plan, wiring_, setup_.process),
      handler_watch_(*setup_.plan, *wiring_, setup_.plan->settings.handler_alarm_after),
      shared_resources_(setup_.plan->resources.size()),
      cells_(setup_.plan->groups.size()),
      live_incarnations_(setup_.plan->processes.size(), setup_.incarnation),
      known_incarnations_(setup_.plan->groups.size() * setup_.plan->processes.size()),
      started_(setup_.plan->groups.size()),
      ended_(setup_.plan->groups.size(), false),
      is_live_(setup_.step_source == nullptr) {
  // A free slot keeps no run alive.
  for (const Tenant& slot : setup_.plan->free_slots) finished_.insert(slot.slot);
  for (const auto& [process, incarnation] : setup_.peer_incarnations)
    live_incarnations_[process] = incarnation;
  for (size_t i = 0; i < known_incarnations_.size(); ++i)
    known_incarnations_[i] = live_incarnations_[i % live_incarnations_.size()];
}

CafExecutor::Core::~Core() {
  request_stop();
  shut_down();
}

Status CafExecutor::Core::check_process() const {
  if (setup_.others != nullptr) return ok();
  for (const WiredLink& link : wiring_->links)
    if (link.is_remote)
      return error(Code::kInvalid,
                   "edge '{}' joins two processes, which this executor cannot carry",
                   setup_.plan->edge(link.edge).name)
          .note("leave [place] out, so that all nodes share one process");
  return ok();
}

Status CafExecutor::Core::make_shared_resources() {
  const Plan& plan = *setup_.plan;
  std::vector<bool> is_owned(plan.resources.size(), false);
  std::vector<bool> is_used(plan.resources.size(), false);
  for (const auto& group : plan.groups)
    for (const int32_t resource : group.resources) is_owned[static_cast<size_t>(resource)] = true;
  for (const auto& instance : plan.instances)
    for (const int32_t resource : instance.resources)
      if (resource >= 0 && plan.group(instance.group).process == setup_.process)
        is_used[static_cast<size_t>(resource)] = true;
  for (size_t i = 0; i < plan.resources.size(); ++i) {
    if (is_owned[i] || !is_used[i]) continue;
    auto made = setup_.factory(plan, static_cast<int32_t>(i));
    if (!made.ok())
      return Error(made.error()).while_doing(fmt::format("making '{}'", plan.resources[i].name));
    shared_resources_[i] = std::move(made).value();
  }
  return ok();
}

void CafExecutor::Core::spawn(const std::shared_ptr<GroupCell>& cell) {
  const uint32_t generation = cell->adopt();
  const GroupId id = cell->group().id();
  const bool detached = has_own_thread(id);
  cell->set_wake_up(
      actors_->spawn([cell, generation] { return cell->turn(generation); }, detached));
}

Status CafExecutor::Core::prepare() {
  CHECK(phase_ == Phase::kNew, "an executor was started twice");
  if (setup_.begins_at && setup_.step_source == nullptr) clock_.continue_from(*setup_.begins_at);
  const Plan& plan = *setup_.plan;
  RETURN_IF_ERROR(check_process());
  RETURN_IF_ERROR(make_shared_resources());
  ASSIGN_OR_RETURN(actors_, CafActors::make(pool_threads_of(plan)));
  timers_ = std::make_unique<CafTimers>(
      clock_, cells_.size(), tick_of(plan),
      [this](GroupId group) { cells_[group.index()]->order(GroupCell::kWake); },
      [this] { watch(); });
  std::vector<Resource*> shared;
  for (const auto& resource : shared_resources_) shared.push_back(resource.get());
  for (const GroupId id : plan.processes[setup_.process.index()].groups) {
    GroupSetup group;
    group.plan = setup_.plan;
    group.wiring = wiring_;
    group.group = id;
    group.incarnation = setup_.incarnation;
    group.process_services = setup_.process_services;
    group.factory = setup_.factory;
    group.shared_resources = shared;
    group.observer = setup_.observer;
    group.cuts = setup_.cuts;
    group.make_tenant = setup_.make_tenant;
    group.tenant_resources = setup_.tenant_resources;
    group.wake = [this, id] { cells_[id.index()]->order(GroupCell::kAnswers); };
    if (setup_.step_source != nullptr) {
      group.step_source = &setup_.step_source->step_source(id);
      group.incarnation = setup_.step_source->incarnation();
    }
    auto cell =
        std::make_shared<GroupCell>(std::move(group), has_own_thread(id),
                                    static_cast<CellOwner*>(this), clock_, setup_.step_source);
    cell->begin_with(setup_.begins_with);
    here_.push_back(cell.get());
    cells_[id.index()] = std::move(cell);
  }
  for (const auto& cell : cells_)
    if (cell != nullptr) spawn(cell);
  return start_groups();
}

Status CafExecutor::Core::start_groups() {
  for (auto* cell : here_) cell->order(GroupCell::kStart);
  Status failure;
  {
    std::unique_lock lock(mutex_);
    for (auto* cell : here_) {
      auto& status = started_[cell->group().id().index()];
      changed_.wait(lock, [&status] { return status.has_value(); });
      if (failure.ok() && !status->ok()) failure = *status;
    }
    if (failure.ok() && phase_ == Phase::kNew) phase_ = Phase::kRunning;
  }
  if (!failure.ok()) {
    end(RunEnd::kFailed, failure);
    shut_down();
    return failure;
  }
  return ok();
}

void CafExecutor::Core::go() {
  for (auto* cell : here_) cell->order(GroupCell::kGo);
}

void CafExecutor::Core::request_drain() { begin_drain(RunEnd::kInterrupted); }

void CafExecutor::Core::request_stop() { end(RunEnd::kInterrupted, ok()); }

void CafExecutor::Core::begin_drain(RunEnd end) {
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kRunning) return;
    phase_ = Phase::kDraining;
    drained_end_ = end;
    draining_since_ = clock_.now();
  }
  for (auto* cell : here_) cell->order(GroupCell::kDrain);
  timers_->notice();
}

void CafExecutor::Core::end(RunEnd end, Status status, StallReport stall) {
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::kEnding || phase_ == Phase::kEnded) return;
    phase_ = Phase::kEnding;
    if (status.ok() && !set_aside_.empty()) {
      end = RunEnd::kFailed;
      status = why_set_aside(*setup_.plan, set_aside_);
    }
    outcome_.end = end;
    outcome_.status = std::move(status);
    outcome_.stall = std::move(stall);
  }
  is_stopping_.store(true);
  for (auto* cell : here_) cell->group().request_stop();
  changed_.notify_all();
}

RunOutcome CafExecutor::Core::wait() {
  {
    std::unique_lock lock(mutex_);
    CHECK(phase_ != Phase::kNew, "wait() before start()");
    changed_.wait(lock, [this] { return phase_ == Phase::kEnding || phase_ == Phase::kEnded; });
  }
  shut_down();
  const std::lock_guard lock(mutex_);
  return outcome_;
}

void CafExecutor::Core::shut_down() {
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::kEnded) return;
  }
  if (timers_ != nullptr) timers_->stop();
  for (auto* cell : here_) cell->order(GroupCell::kQuit);
  auto stuck = collect_ended();
  auto edges = ledger();
  for (auto* cell : here_) cell->set_wake_up(nullptr);
  int64_t num_lost = 0;
  for (const auto* cell : here_) num_lost += cell->num_lost();
  if (!stuck.ok() || num_lost > 0) {
    has_lost_threads_ = true;
    if (actors_ != nullptr) actors_->leak();
  }
  actors_.reset();
  const std::lock_guard lock(mutex_);
  outcome_.ledger = std::move(edges);
  if (!stuck.ok() && outcome_.status.ok()) {
    outcome_.end = RunEnd::kFailed;
    outcome_.status = std::move(stuck);
  }
  phase_ = Phase::kEnded;
}

/// Waits until every group has been destroyed on its thread. The Error names a group that was not
/// destroyed in time.
Status CafExecutor::Core::collect_ended() {
  const auto limit = std::chrono::nanoseconds(setup_.plan->settings.drain_max.to_nanoseconds());
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (auto* cell : here_) {
    const ActorGroup& group = cell->group();
    if (!group.may_run_apart()) continue;
    // A handler that runs apart owns nothing that other groups need: if one runs now, it is
    // abandoned.
    if (group.view().is_running && cell->take_over()) {
      spawn(cells_[group.id().index()]);
      cell->order(GroupCell::kQuit);
    }
  }
  std::vector<const ActorGroup*> late;
  {
    std::unique_lock lock(mutex_);
    for (auto* cell : here_) {
      const ActorGroup& group = cell->group();
      const bool has_ended = changed_.wait_until(
          lock, deadline, [this, &group] { return static_cast<bool>(ended_[group.id().index()]); });
      if (!has_ended) late.push_back(&group);
    }
  }
  if (late.empty()) return ok();
  // The other late groups may only be waiting for the thread of a group whose handler runs.
  const auto culprit = std::find_if(
      late.begin(), late.end(), [](const ActorGroup* group) { return group->view().is_running; });
  return not_stopped(culprit == late.end() ? *late.front() : **culprit);
}

Error CafExecutor::Core::not_stopped(const ActorGroup& group) const {
  const auto view = group.view();
  std::string last = "outside a handler";
  if (!view.handling.is_none() && view.handling_type != nullptr)
    last = fmt::format("'{}' handles a '{}'", setup_.plan->instance(view.handling).name,
                       view.handling_type->name);
  else if (view.is_running)
    last = "in a work call";
  return error(Code::kDeadline, "'{}' has not stopped within {} ({})", group.name(),
               to_string(setup_.plan->settings.drain_max), last);
}

std::vector<EdgeLedger> CafExecutor::Core::ledger() const {
  std::vector<EdgeLedger> edges(setup_.plan->edges.size());
  for (auto* cell : here_) cell->group().add_to(edges);
  return edges;
}

RunStatus CafExecutor::Core::status() const {
  RunStatus status;
  for (auto* cell : here_) status.num_steps += cell->group().counts().num_steps;
  status.edges = ledger();
  add_idle_time(status);
  const std::lock_guard lock(mutex_);
  status.is_draining = phase_ == Phase::kDraining;
  return status;
}

std::vector<GroupView> CafExecutor::Core::views() const {
  std::vector<GroupView> views;
  for (auto* cell : here_) {
    views.push_back(cell->group().view());
    views.back().busy = cell->busy();
  }
  return views;
}

bool CafExecutor::Core::has_lost_threads() const { return has_lost_threads_; }

void CafExecutor::Core::tenant_finished(TenantSlot tenant, uint32_t tenancy) {
  if (setup_.others != nullptr) return setup_.others->tenant_finished(tenant, tenancy);
  if (setup_.is_hosted) {
    if (setup_.events.tenant_finished) setup_.events.tenant_finished(tenant, tenancy);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    finished_.insert(tenant);
    if (finished_.size() < setup_.plan->num_slots()) return;
  }
  begin_drain(RunEnd::kFinished);
}

void CafExecutor::Core::set_aside(TenantSlot tenant) {
  for (auto* cell : here_) cell->set_aside(tenant);
}

void CafExecutor::Core::command(const ActorCommand& command) {
  for (auto* cell : here_) {
    const GroupId group = cell->group().id();
    std::vector<InstanceId> meant;
    for (const InstanceId instance : setup_.plan->group(group).instances)
      if (input_for(*setup_.plan, instance, *command.message.type, command.tenant))
        meant.push_back(instance);
    if (meant.empty()) continue;
    const Status taken = cell->command(command);
    if (taken.ok()) continue;
    for (const InstanceId instance : meant) command_answered({command.number, instance, taken});
  }
}

void CafExecutor::Core::tenant_failed(TenantSlot tenant, uint32_t tenancy, std::string why) {
  if (setup_.others != nullptr) return setup_.others->tenant_failed(tenant, tenancy, why);
  if (setup_.is_hosted) {
    // The control plane drains the tenant, if it still has the slot.
    if (setup_.on_set_aside != nullptr) setup_.on_set_aside(tenant, tenancy, why);
    if (setup_.events.tenant_failed) setup_.events.tenant_failed(tenant, why);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    set_aside_.emplace(tenant, why);
  }
  set_aside(tenant);
  tenant_finished(tenant, tenancy);
  if (setup_.on_set_aside != nullptr) setup_.on_set_aside(tenant, tenancy, why);
}

void CafExecutor::Core::group_failed(GroupId group, Error error) {
  end(RunEnd::kFailed,
      std::move(error).while_doing(fmt::format("in '{}'", setup_.plan->group(group).name)));
}

void CafExecutor::Core::group_started(GroupId group, Status status) {
  {
    const std::lock_guard lock(mutex_);
    started_[group.index()] = std::move(status);
  }
  changed_.notify_all();
}

void CafExecutor::Core::group_caught_up(GroupId) {
  {
    const std::lock_guard lock(mutex_);
    if (++num_followed_ < here_.size()) return;
  }
  if (setup_.on_followed != nullptr) return setup_.on_followed();
  resume();
}

/// Changes that a group is notified of when it resumes: processes without a record have died and
/// run again.
std::vector<PeerChange> CafExecutor::Core::returns_for(GroupId group) const {
  std::vector<PeerChange> changes;
  for (const ProcessId process : setup_.step_source->absent()) {
    const uint32_t incarnation = live_incarnations_[process.index()];
    for (const bool is_up : {false, true})
      for (const GroupId peer : wiring_->groups[group.index()].peers)
        if (setup_.plan->group(peer).process == process)
          changes.push_back({peer, is_up, is_up ? incarnation : incarnation - 1});
  }
  return changes;
}

void CafExecutor::Core::cut(uint64_t number) {
  for (auto* cell : here_) cell->cut(number);
}

bool CafExecutor::Core::is_live() const {
  const std::lock_guard lock(mutex_);
  return is_live_;
}

void CafExecutor::Core::resume() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_live_, true)) return;
    idle_since_ns_ = 0;  // it was measured on the old clock
    // A drain that began meanwhile gets its full time, counted from now.
    clock_.continue_from(setup_.step_source->ended());
    draining_since_ = clock_.now();
  }
  setup_.step_source->resume();
  // Called before a group writes a line that is not in the record.
  if (setup_.on_live != nullptr) setup_.on_live();
  for (auto* cell : here_) cell->resume(returns_for(cell->group().id()));
  timers_->notice();
}

void CafExecutor::Core::group_ended(GroupId group) {
  {
    const std::lock_guard lock(mutex_);
    ended_[group.index()] = true;
  }
  changed_.notify_all();
}

CafExecutor::CafExecutor(CafExecutorSetup setup)
    : core_(std::make_unique<Core>(std::move(setup))) {}

CafExecutor::~CafExecutor() {
  core_->request_stop();
  core_->shut_down();
  // The stuck thread may still use its group.
  if (core_->has_lost_threads()) leak_on_purpose(core_);
}

Status CafExecutor::start() {
  RETURN_IF_ERROR(core_->prepare());
  core_->go();
  return ok();
}
Status CafExecutor::prepare() { return core_->prepare(); }
void CafExecutor::go() { core_->go(); }
void CafExecutor::resume() { core_->resume(); }
void CafExecutor::cut(uint64_t number) { core_->cut(number); }
bool CafExecutor::is_live() const { return core_->is_live(); }
Status CafExecutor::arrive(ProcessId from, MessageBatch&& batch) {
  return core_->arrive(from, std::move(batch));
}
void CafExecutor::peer_down(ProcessId process, uint32_t incarnation) {
  core_->peer_down(process, incarnation);
}
Status CafExecutor::peer_up(ProcessId process, uint32_t incarnation,
                            const std::function<Status()>& join) {
  return core_->peer_up(process, incarnation, join);
}
void CafExecutor::finish(RunEnd end) { core_->finish(end); }
StallReport CafExecutor::stall_report() const { return core_->stall_report(); }
void CafExecutor::request_drain() { core_->request_drain(); }
void CafExecutor::set_aside(TenantSlot tenant) { core_->set_aside(tenant); }
Status CafExecutor::change_tenant(const TenantChange& change) {
  return core_->change_tenant(change);
}
void CafExecutor::drain_tenant(TenantSlot slot) { core_->drain_tenant(slot); }
uint64_t CafExecutor::num_steps_of(TenantSlot slot) const { return core_->num_steps_of(slot); }
void CafExecutor::command(const ActorCommand& command) { core_->command(command); }
void CafExecutor::request_stop() { core_->request_stop(); }
RunOutcome CafExecutor::wait() { return core_->wait(); }
RunStatus CafExecutor::status() const { return core_->status(); }
std::vector<GroupView> CafExecutor::views() const { return core_->views(); }
ProcessLoad CafExecutor::load() const { return core_->load(); }
bool CafExecutor::has_lost_threads() const { return core_->has_lost_threads(); }

}  // namespace primerl
