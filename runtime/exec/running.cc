#include "runtime/exec/running.h"

#include <algorithm>

#include "graph/outside.h"
#include "graph/tenancies.h"
#include "graph/tenant_outside.h"

namespace primerl {
namespace {

/// An error of a handler goes into answers, logs and the record. Its text may come from outside (an
/// exception, an environment), so its length is limited here.
Error bounded(Error error) {
  std::string text = error.text();
  if (text.size() <= kErrorBytesMax) return error;
  const size_t size = text.size();
  text.resize(kErrorBytesMax);
  return Error(error.code(), fmt::format("{} ... ({} bytes in all)", text, size));
}

/// In place of the actor of a vacant instance.
class VacantActor final : public Actor {};

}  // namespace

std::shared_ptr<GroupCommon> GroupCommon::make(GroupSetup setup) {
  return std::make_shared<GroupCommon>(std::move(setup));
}

GroupCommon::GroupCommon(GroupSetup given)
    : setup(std::move(given)),
      tenants(setup.plan),
      is_vacant(setup.plan->is_vacant(setup.group)),
      flow(std::make_shared<Flow>(*setup.plan, *setup.wiring, setup.group,
                                  setup.step_source != nullptr)),
      counters(planned().instances.size()) {
  uses_resources = do_actors_use_resources();
}

bool GroupCommon::do_actors_use_resources() const {
  return std::ranges::any_of(planned().resources, [this](int32_t index) {
    const TenantSlot slot = setup.plan->resources[static_cast<size_t>(index)].slot;
    if (slot.is_none()) return true;
    const auto& tenant = tenants.by_slot()[slot.index()];
    return tenant != nullptr && outside_of(*tenant).asks();
  });
}

Running::Running(std::shared_ptr<GroupCommon> common, uint32_t actor)
    : common_(std::move(common)),
      index_(actor),
      self_(common_->setup.plan->group(common_->setup.group).instances[actor]),
      instance_(&common_->setup.plan->instance(self_)),
      node_(&common_->setup.plan->node(instance_->node)),
      contract_(node_->contract),
      is_vacant_(common_->tenants.is_vacant(instance_->tenant, *contract_)) {
  num_emitted_.assign(contract_->outputs.size(), 0);
  const auto seed = static_cast<uint64_t>(common_->setup.plan->settings.seed);
  random_key_ = stable_hash(node_->name, seed);
  refresh_tenants();
  if (!instance_->tenant.is_none()) began_with_ = (*by_slot_)[instance_->tenant.index()];
}

void Running::refresh_tenants() {
  by_slot_ = common_->tenants.shared_by_slot();
  tenants_.clear();
  for (uint32_t slot = 0; slot < by_slot_->size(); ++slot)
    if ((*by_slot_)[slot] != nullptr &&
        (instance_->tenant.is_none() || instance_->tenant.value == slot))
      tenants_.push_back(TenantSlot(slot));
  const NodeBursts& planned = common_->setup.wiring->bursts[instance_->node.index()];
  burst_ = planned.of_handler;
  work_burst_ = planned.of_work;
  if (!common_->tenants.differ_from_plan()) return;
  // A tenant that joined, or whose values were set, may have larger numbers than the one of the
  // plan. Its bounds were checked against those of the plan.
  const std::vector<Tenant> present = common_->tenants.present();
  const void* const options = node_->options.get();
  for (size_t i = 0; i < contract_->outputs.size(); ++i) {
    const OutputPort& port = contract_->outputs[i];
    burst_[i] = std::max(burst_[i], port.burst.value(options, present));
    work_burst_[i] = std::max(work_burst_[i], port.work_burst.value(options, present));
  }
}

Status Running::make_actor() {
  if (is_vacant()) {
    actor_ = std::make_unique<VacantActor>();
    actor_->attach(this);
    return ok();
  }
  actor_ = contract_->make(node_->options.get());
  if (actor_ == nullptr)
    return error(Code::kInternal, "the contract of '{}' makes no actor", contract_->name);
  for (uint32_t i = 0; i < contract_->outputs.size(); ++i)
    contract_->outputs[i].bind(*actor_).wire(this, i);
  actor_->attach(this);
  return ok();
}

void Running::begin(StepKind kind, uint64_t step, Time now) {
  const bool handles =
      kind == StepKind::kMessage || kind == StepKind::kTimer || kind == StepKind::kCommand;
  phase_ = kind == StepKind::kWork ? Phase::kWork : handles ? Phase::kHandler : Phase::kControl;
  if (kind == StepKind::kTenant) phase_ = Phase::kStart;
  now_ = now;
  if (!status_.ok()) status_ = ok();
  wants_more_work_ = false;
  delivery_ = {instance_->tenant, {}, {}, {self_, step}, now};
  std::fill(num_emitted_.begin(), num_emitted_.end(), 0);
  room_answers.clear();
  num_progress_calls = stopped_at_progress = 0;
  has_given_up = false;
}

Status Running::start(Time now) {
  begin(StepKind::kDrain, 0, now);
  phase_ = Phase::kStart;
  try {
    status_ = make_actor();
    if (status_.ok()) status_ = actor_->start(*this);
  } catch (const std::exception& exception) {
    status_ = error(Code::kInternal, "an exception left its constructor or start(): {}",
                    exception.what());
  } catch (...) {
    status_ = error(Code::kInternal, "an unknown exception left its constructor or start()");
  }
  phase_ = Phase::kNone;
  has_begun_ = status_.ok();
  if (has_begun_) return ok();
  return Error(status_.error()).while_doing(fmt::format("starting '{}'", instance_->name));
}

void Running::prepare(Input&& input, uint64_t step, Time now) {
  input_ = std::move(input);
  begin(input_.kind, step, now);
  if (input_.kind != StepKind::kMessage) return;
  const Envelope& envelope = input_.envelope;
  delivery_.tenant = envelope.tenant;
  delivery_.sender = envelope.sender;
  delivery_.origin = envelope.origin;
  delivery_.sent_at = envelope.sent_at;
}

void Running::prepare_work(uint64_t step, Time now, bool is_draining) {
  input_.kind = StepKind::kWork;
  is_draining_ = is_draining;
  has_started_ = common_->tenants.has_started(instance_->tenant);
  is_paused_ = common_->tenants.is_paused(instance_->tenant);
  begin(StepKind::kWork, step, now);
}

Status Running::on_tenant(TenantSlot slot, TenantChange::Kind kind, uint64_t step, Time now) {
  begin(StepKind::kTenant, step, now);
  delivery_.tenant = slot;
  try {
    status_ = actor_->on_tenant(slot, kind);
  } catch (const std::exception& exception) {
    status_ = error(Code::kInternal, "an exception left on_tenant(): {}", exception.what());
  } catch (...) {
    status_ = error(Code::kInternal, "an unknown exception left on_tenant()");
  }
  phase_ = Phase::kNone;
  if (status_.ok()) return ok();
  return bounded(Error(status_.error())
                     .while_doing(fmt::format("'{}', {}", instance_->name, to_string(kind))));
}

bool Running::is_for_free_slot() const {
  const auto is_free = [this](TenantSlot slot) {
    return !slot.is_none() && (*by_slot_)[slot.index()] == nullptr;
  };
  if (input_.kind == StepKind::kCommand) return is_free(instance_->tenant);
  if (input_.kind != StepKind::kMessage) return false;
  return is_free(instance_->tenant) || is_free(input_.envelope.tenant);
}

void Running::run() {
  try {
    if (auto status = handle(); !status.ok()) status_ = std::move(status);
  } catch (const std::exception& exception) {
    status_ = error(Code::kInternal, "an exception left the handler: {}", exception.what());
  } catch (...) {
    status_ = error(Code::kInternal, "an unknown exception left the handler");
  }
  if (!status_.ok()) status_ = bounded(std::move(status_).error());
}

Status Running::handle() {
  switch (input_.kind) {
    case StepKind::kMessage:
    case StepKind::kCommand: {
      if (is_for_free_slot())
        return error(Code::kCancelled, "the tenant of its slot has left or has not joined");
      if (is_vacant()) return ok();  // a client trains the tenant, and this is a part of loops
      const Payload& payload = input_.envelope.payload;
      const InputPort& port = contract_->inputs[input_.port];
      // A port casts its payload without a check, so a payload of another type must be refused
      // here.
      if (payload.type != port.type)
        return error(Code::kCorrupt, "a '{}' came to '{}.{}', which takes a '{}'",
                     payload.type->name, instance_->name, port.name, port.type->name);
      return port.handle(*actor_, payload.message.get());
    }
    case StepKind::kTimer:
      return contract_->timers[input_.port].handle(*actor_);
    case StepKind::kWork:
      return work();
    case StepKind::kDrain:
      return actor_->drain();
    case StepKind::kPeer:
      return actor_->on_peer(input_.peer);
    case StepKind::kTenant:  // on_tenant()
      break;
  }
  return ok();
}

Status Running::work() {
  if (!contract_->works || is_vacant() || (is_draining_ && contract_->is_source)) return ok();
  if (!has_started_) return ok();
  // The work of one that asks outside also takes answers for rollouts in flight, so that actor
  // holds its tasks back itself.
  if (is_paused_ && contract_->is_source && !contract_->asks_outside) return ok();
  ASSIGN_OR_RETURN(wants_more_work_, actor_->work());
  return ok();
}

void Running::refuse(const Error& error) {
  const auto& port = contract_->inputs[input_.port];
  if (!port.refuse || is_for_free_slot() || input_.envelope.payload.type != port.type) return;
  std::fill(num_emitted_.begin(), num_emitted_.end(), 0);
  try {
    port.refuse(*actor_, input_.envelope.payload.message.get(), error);
  } catch (const std::exception& exception) {
    log(LogLevel::kError, fmt::format("an exception left the refusal: {}", exception.what()));
  }
}

RandomStream Running::random(TenantSlot tenant, std::string_view purpose, uint64_t index) const {
  const uint64_t key = stable_hash(purpose, tenancy_key(this->tenant(tenant), random_key_));
  return RandomStream(mix(key, index));
}

uint32_t Running::timer_index(std::string_view name) const {
  for (uint32_t i = 0; i < contract_->timers.size(); ++i)
    if (contract_->timers[i].name == name) return i;
  CHECK(false, fmt::format("actor '{}' declares no timer '{}'", contract_->name, name));
  return 0;
}

uint32_t Running::input_index(std::string_view name) const {
  for (uint32_t i = 0; i < contract_->inputs.size(); ++i)
    if (contract_->inputs[i].name == name) return i;
  CHECK(false, fmt::format("actor '{}' has no input '{}'", contract_->name, name));
  return 0;
}

void Running::set_timer(std::string_view name, Duration delay) {
  timers.push_back({timer_index(name), true, delay});
}
void Running::cancel_timer(std::string_view name) {
  timers.push_back({timer_index(name), false, {}});
}
void Running::pause(std::string_view input) { pauses.push_back({input_index(input), true}); }
void Running::resume(std::string_view input) { pauses.push_back({input_index(input), false}); }

const Tenant& Running::tenant(TenantSlot slot) const {
  CHECK(!slot.is_none() && slot.index() < by_slot_->size() && (*by_slot_)[slot.index()] != nullptr,
        "a tenant was asked for that does not exist");
  return *(*by_slot_)[slot.index()];
}

const ResumePoint* Running::resume_point(TenantSlot slot) const {
  const auto& planned = common_->setup.plan->tenants;
  const auto& present = (*by_slot_)[slot.index()];
  if (present == nullptr) return nullptr;
  // A tenant that joined has nothing of what its slot had before. Values that were set make a copy
  // of the tenant, so its number says which one it is.
  if (slot.index() >= planned.size() || present->tenancy != planned[slot.index()].tenancy)
    return common_->setup.process_services->joined_point(*present);
  return common_->setup.process_services->resume_point(slot);
}

Progress Running::progress() {
  if (is_abandoned()) return Progress::kStopRequested;
  common_->num_progress.fetch_add(1, std::memory_order_relaxed);
  ++num_progress_calls;
  bool stop = common_->stop_requested.load(std::memory_order_relaxed);
  if (const StepSource* step_source = common_->setup.step_source;
      step_source != nullptr && step_source->next() != nullptr) {
    const uint64_t recorded = step_source->next()->stopped_at_progress;
    stop = recorded != 0 && num_progress_calls >= recorded;
  }
  if (stop && stopped_at_progress == 0) stopped_at_progress = num_progress_calls;
  return stop ? Progress::kStopRequested : Progress::kGoOn;
}

void Running::publish_metrics(TenantSlot tenant, int64_t step, const MetricValues& values) {
  if (!is_abandoned()) common_->setup.process_services->publish_metrics(tenant, step, values);
}

void Running::count(std::string_view name, int64_t amount) {
  if (!is_abandoned()) common_->counters[index_].add(name, amount);
}

void Running::log(LogLevel level, std::string_view text) {
  if (!is_abandoned()) common_->setup.process_services->log(level, instance_->name, text);
}

void Running::emit(uint32_t output, Payload payload, const SendOptions& options) {
  CHECK(phase_ != Phase::kStart && phase_ != Phase::kNone,
        "an actor sent outside a step: start() and on_tenant() may not send");
  PendingEmission& emission = emissions.emplace_back();
  emission.output = output;
  emission.target = options.target;
  Envelope& envelope = emission.envelope;
  envelope.sender = self_;
  envelope.sent_at = now_;
  envelope.sender_step = delivery_.ref.step;
  envelope.payload = std::move(payload);
  envelope.tenant = options.tenant.is_none() ? delivery_.tenant : options.tenant;
  envelope.cause = options.cause.is_none() ? delivery_.ref : options.cause;
  envelope.origin = !options.origin.is_none()    ? options.origin
                    : delivery_.origin.is_none() ? self_
                                                 : delivery_.origin;
  CHECK(!envelope.tenant.is_none() || input_.kind == StepKind::kMessage,
        fmt::format("'{}.{}' was sent for no tenant", instance_->name,
                    contract_->outputs[output].name));
  const int64_t count = ++num_emitted_[output];
  // drain() and on_peer() may emit more than the burst, to end everything in flight.
  if (phase_ == Phase::kControl) return;
  const int64_t most = phase_ == Phase::kWork ? work_burst_[output] : burst_[output];
  CHECK(count <= most, fmt::format("'{}.{}' was sent {} times in one step, its contract says {}",
                                   instance_->name, contract_->outputs[output].name, count, most));
}

int64_t Running::room(uint32_t output, InstanceId target) const {
  int64_t answer = 0;
  if (StepSource* step_source = common_->setup.step_source; step_source != nullptr) {
    const RecordedStep* step = step_source->next();
    const size_t at = common_->num_replayed_answers++;
    if (step != nullptr && at < step->room_answers.size())
      answer = step->room_answers[at];
    else
      step_source->diverged(
          fmt::format("'{}' asked {} times for room, in the recorded run {} times", instance_->name,
                      at + 1, step != nullptr ? step->room_answers.size() : 0));
  } else {
    const int64_t free = common_->flow->room(index_, output, target);
    answer = std::max<int64_t>(free - num_emitted_[output], 0);
  }
  if (common_->setup.observer != nullptr) room_answers.push_back(answer);
  return answer;
}

int64_t Running::capacity(uint32_t output, InstanceId target) const {
  return common_->flow->capacity(index_, output, target);
}

std::span<const InstanceId> Running::targets(uint32_t output, TenantSlot tenant) const {
  return common_->flow->targets(index_, output, tenant);
}

bool Running::share_resource(InstanceId one, InstanceId other) const {
  const Plan& plan = *common_->setup.plan;
  const PlanInstance& first = plan.instance(one);
  const PlanInstance& second = plan.instance(other);
  if (first.group != second.group) return false;  // each group has its own copies
  return std::ranges::any_of(plan.group(first.group).resources, [&](int32_t resource) {
    return std::ranges::count(first.resources, resource) > 0 &&
           std::ranges::count(second.resources, resource) > 0;
  });
}

Resource* Running::find(std::string_view use) {
  const auto& setup = common_->setup;
  for (size_t i = 0; i < contract_->resources.size(); ++i) {
    if (contract_->resources[i].name != use) continue;
    const int32_t wanted = setup.plan->instance(self()).resources[i];
    if (wanted < 0) return nullptr;
    const auto& owned = setup.plan->group(setup.group).resources;
    for (size_t k = 0; k < owned.size(); ++k)
      if (owned[k] == wanted) return common_->owned[k].get();
    return setup.shared_resources[static_cast<size_t>(wanted)];
  }
  if (use != Outside::kResourceKind) return nullptr;
  for (const auto& resource : common_->owned)
    if (dynamic_cast<Outside*>(resource.get()) != nullptr) return resource.get();
  return nullptr;
}

}  // namespace primerl
