#include "runtime/exec/virtual_executor.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "runtime/exec/running.h"
#include "runtime/exec/stall.h"

namespace primerl {
namespace {

// Text that a failed CHECK prints: the command that repeats the current run, if any. One virtual
// run at a time per thread.
thread_local std::string repeat_line;

void print_repeat_line(std::string_view) {
  if (!repeat_line.empty()) std::fprintf(stderr, "%s\n", repeat_line.c_str());
}

}  // namespace

Duration apart_handler_limit(const Plan& plan) {
  if (plan.tenants.empty()) return Duration::forever();
  Duration limit;
  for (const Tenant& tenant : plan.tenants) limit = std::max(limit, tenant.environment_timeout);
  return limit;
}

VirtualExecutor::VirtualExecutor(std::shared_ptr<const Plan> plan, ResourceFactory factory,
                                 ProcessServices& process_services, VirtualOptions options)
    : plan_(std::move(plan)),
      wiring_(make_wiring(*plan_)),
      factory_(std::move(factory)),
      process_services_(process_services),
      options_(std::move(options)),
      apart_limit_(apart_handler_limit(*plan_)),
      choice_(mix(stable_hash("schedule"), options_.seed)),
      shared_(plan_->resources.size(), nullptr),
      slots_(plan_->groups.size()),
      finished_(plan_->num_slots(), false),
      is_replaying_(options_.step_source != nullptr) {
  // A free slot keeps no run alive.
  for (size_t i = plan_->tenants.size(); i < finished_.size(); ++i) finished_[i] = true;
  repeat_line = fmt::format("virtual run with seed {}", options_.seed);
  if (!options_.repeat_with.empty()) repeat_line += "; repeat with: " + options_.repeat_with;
  set_check_observer(&print_repeat_line);
}

VirtualExecutor::~VirtualExecutor() { repeat_line.clear(); }

Status VirtualExecutor::start() {
  std::vector<bool> is_owned(plan_->resources.size(), false);
  for (const PlanGroup& group : plan_->groups)
    for (int32_t resource : group.resources) is_owned[static_cast<size_t>(resource)] = true;
  for (size_t i = 0; i < plan_->resources.size(); ++i) {
    if (is_owned[i]) continue;
    ASSIGN_OR_RETURN(auto made, factory_(*plan_, static_cast<int32_t>(i)));
    shared_[i] = made.get();
    shared_owned_.push_back(std::move(made));
  }
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (auto status = start_group(GroupId(i)); !status.ok()) {
      for (auto& slot : slots_) slot.group.reset();
      return status;
    }
  }
  return ok();
}

GroupSetup VirtualExecutor::setup_of(GroupId id) {
  GroupSetup setup;
  setup.plan = plan_;
  setup.wiring = wiring_;
  setup.group = id;
  setup.incarnation = slots_[id.index()].incarnation;
  setup.process_services = &process_services_;
  setup.executor = this;
  setup.factory = factory_;
  setup.shared_resources = shared_;
  setup.make_tenant = options_.make_tenant;
  setup.tenant_resources = options_.tenant_resources;
  setup.observer = this;
  setup.cuts = options_.cuts;
  // The step of one group may give answers to another, for example a scripted server to a gateway.
  setup.wake = [this, id] {
    if (ActorGroup* group = slots_[id.index()].group.get(); group != nullptr && !is_replaying_)
      group->answers_arrived();
  };
  return setup;
}

Status VirtualExecutor::start_group(GroupId id) {
  GroupSlot& slot = slots_[id.index()];
  ++slot.incarnation;
  GroupSetup setup = setup_of(id);
  Time now = now_;
  if (is_replaying_) {
    setup.step_source = &options_.step_source->step_source(id);
    setup.incarnation = slot.incarnation = options_.step_source->incarnation();
    now = options_.step_source->started(id);
  }
  slot.group = std::make_unique<ActorGroup>(std::move(setup));
  const GroupState* state = is_replaying_ ? options_.step_source->state_of(id) : nullptr;
  if (state == nullptr) return slot.group->start(now);
  return slot.group->start_from(*state, options_.step_source->in_transit_to(id), now);
}

bool VirtualExecutor::may_remake(GroupId id) const {
  const GroupSlot& slot = slots_[id.index()];
  return !outcome_ && slot.group != nullptr && !slot.is_busy && !slot.is_stuck && !is_replaying_;
}

Status VirtualExecutor::remake(GroupId id, const ChangeState& change) {
  CHECK(may_remake(id), "a group was remade that cannot be");
  GroupSlot& slot = slots_[id.index()];
  const SavedFields bytes = encode_group_state(slot.group->state());
  auto resources = slot.group->take_resources();
  GroupSetup setup = setup_of(id);
  size_t next = 0;
  setup.factory = [&](const Plan&, int32_t) -> Result<std::shared_ptr<Resource>> {
    return std::move(resources[next++]);
  };
  slot.group = std::make_unique<ActorGroup>(std::move(setup));
  is_remaking_ = true;
  const Status started = slot.group->start(now_);
  is_remaking_ = false;
  RETURN_IF_ERROR(started);
  ASSIGN_OR_RETURN(GroupState state, decode_group_state(bytes));
  if (change != nullptr) change(state, slot.group->state());
  return slot.group->restore(state, now_);
}

ActorGroup& VirtualExecutor::group(GroupId id) {
  CHECK(slots_[id.index()].group != nullptr, "a dead group was asked for");
  return *slots_[id.index()].group;
}

void VirtualExecutor::ship(MessageBatch&& batch) {
  const auto key = std::make_pair(batch.from, batch.to);
  const auto [found, is_new] = queue_of_.try_emplace(key, queues_.size());
  if (is_new) queues_.push_back({batch.from, batch.to, {}});
  in_transit_ += batch.messages.size();
  queues_[found->second].batches.push_back(std::move(batch));
}

void VirtualExecutor::tenant_finished(TenantSlot tenant, uint32_t tenancy) {
  finished_[tenant.index()] = true;
  if (options_.is_hosted && options_.events.tenant_finished)
    options_.events.tenant_finished(tenant, tenancy);
}

void VirtualExecutor::tenant_failed(TenantSlot tenant, uint32_t, std::string why) {
  if (options_.is_hosted && options_.events.tenant_failed)
    options_.events.tenant_failed(tenant, why);
  set_aside_.emplace(tenant, std::move(why));
  is_set_aside_ordered_ = true;
  finished_[tenant.index()] = true;
}

void VirtualExecutor::group_failed(GroupId group, Error error) {
  finish_run(RunEnd::kFailed,
             std::move(error).while_doing(fmt::format("node '{}'", plan_->group(group).name)));
}

void VirtualExecutor::on_start(GroupId group, Time now) {
  if (options_.observer != nullptr && !is_remaking_) options_.observer->on_start(group, now);
}

void VirtualExecutor::on_step(const StepRecord& record) {
  if (options_.observer != nullptr) options_.observer->on_step(record);
  trace_hash_ = mix(trace_hash_, mix(record.group.value, record.step));
  trace_hash_ = mix(trace_hash_, mix(static_cast<uint64_t>(record.kind), record.instance.value));
  if (record.message != nullptr)
    trace_hash_ = mix(trace_hash_, mix(record.message->edge.value, record.message->sequence));
  trace_hash_ = mix(trace_hash_, static_cast<uint64_t>(record.began.to_nanoseconds()));
  if (options_.step_hooks != nullptr) options_.step_hooks->after(record);
}

void VirtualExecutor::request_stop() {
  is_stop_requested_ = true;
  for (auto& slot : slots_)
    if (slot.group) slot.group->request_stop();
}

void VirtualExecutor::finish_run(RunEnd end, Status status) {
  if (outcome_) return;  // the first reason counts
  if (status.ok() && !set_aside_.empty()) {
    end = RunEnd::kFailed;
    status = why_set_aside(*plan_, set_aside_);
  }
  outcome_.emplace();
  outcome_->end = end;
  outcome_->status = std::move(status);
}

RunOutcome VirtualExecutor::wait() {
  while (advance()) {
  }
  if (!is_replaying_) check_invariants();
  if (!outcome_) finish_run(RunEnd::kStalled, error(Code::kDeadline, "nothing can move any more"));
  outcome_->ledger = ledger();
  return *outcome_;
}

RunStatus VirtualExecutor::status() const {
  RunStatus status;
  status.is_draining = drain_deadline_.has_value();
  for (const auto& slot : slots_)
    if (slot.group) status.num_steps += slot.group->counts().num_steps;
  status.edges = ledger();
  return status;
}

std::vector<EdgeLedger> VirtualExecutor::ledger() const {
  std::vector<EdgeLedger> ledger(plan_->edges.size());
  for (const auto& slot : slots_)
    if (slot.group) slot.group->add_to(ledger);
  return ledger;
}

StallReport VirtualExecutor::stall_report() const {
  std::vector<GroupView> views;
  for (const auto& slot : slots_)
    if (slot.group) views.push_back(slot.group->view());
  return make_stall_report(*plan_, *wiring_, views, now_);
}

std::vector<std::pair<std::string, int64_t>> VirtualExecutor::counters() const {
  std::vector<std::pair<std::string, int64_t>> all;
  for (const auto& slot : slots_) {
    if (!slot.group) continue;
    auto own = slot.group->counters();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

int64_t VirtualExecutor::num_abandoned() const {
  int64_t count = 0;
  for (const auto& [tenant, of_tenant] : num_abandoned_) count += of_tenant;
  return count;
}

bool VirtualExecutor::run_until(const std::function<bool()>& done, uint64_t events_max) {
  for (uint64_t i = 0; i < events_max; ++i) {
    if (done()) return true;
    if (!advance()) break;
  }
  return done();
}

void VirtualExecutor::settle() {
  while (!outcome_ && step_something()) {
  }
}

void VirtualExecutor::kill(ProcessId process) {
  for (GroupId id : plan_->processes[process.index()].groups) {
    GroupSlot& slot = slots_[id.index()];
    const GroupCounts counts = slot.group->counts();
    counts_of_dead_groups_.num_steps += counts.num_steps;
    counts_of_dead_groups_.num_shipped += counts.num_shipped;
    counts_of_dead_groups_.num_received += counts.num_received;
    slot.group.reset();
    slot.is_busy = slot.is_stuck = false;
    for (BatchQueue& queue : queues_) {
      if (queue.to != id && queue.from != id) continue;
      const GroupSlot& sender = slots_[queue.from.index()];
      for (const MessageBatch& batch : queue.batches) {
        const bool is_counted = queue.from == id
                                    ? batch.incarnation == slot.incarnation
                                    : sender.group && batch.incarnation == sender.incarnation;
        if (is_counted) in_transit_ -= batch.messages.size();
        if (queue.to == id) counts_of_dead_groups_.num_received += batch.messages.size();
      }
      if (queue.to == id) queue.batches.clear();
    }
  }
  for (GroupId dead : plan_->processes[process.index()].groups)
    for (GroupSlot& slot : slots_)
      if (slot.group) slot.group->peer_down(dead, slots_[dead.index()].incarnation, now_);
  check_invariants();
}

Status VirtualExecutor::restart_process(ProcessId process) {
  for (GroupId id : plan_->processes[process.index()].groups) {
    RETURN_IF_ERROR(start_group(id));
  }
  repeat_changes(process);
  for (GroupId id : plan_->processes[process.index()].groups) {
    if (drain_deadline_) slots_[id.index()].group->begin_drain(now_);
    for (const auto& [tenant, why] : set_aside_) slots_[id.index()].group->set_aside(tenant, now_);
    for (const auto& [slot, drain] : slot_drains_)
      slots_[id.index()].group->drain_tenant(slot, now_);
  }
  for (GroupId id : plan_->processes[process.index()].groups)
    for (GroupSlot& slot : slots_)
      if (slot.group && slot.group->id() != id)
        slot.group->peer_up(id, slots_[id.index()].incarnation, now_);
  return ok();
}

void VirtualExecutor::command(const ActorCommand& command) {
  for (GroupSlot& slot : slots_)
    if (slot.group) slot.group->command(command, now_);
}

void VirtualExecutor::broken(const std::string& text) {
  CHECK(false, text);
  std::abort();
}

}  // namespace primerl
