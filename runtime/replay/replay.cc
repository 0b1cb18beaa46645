#include "runtime/replay/replay.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "runtime/replay/replay_player.h"
#include "runtime/replay/tolerance.h"
#include "runtime/trace/read/tenant_uses.h"
#include "runtime/trace/schema.h"

namespace primerl {
namespace {

constexpr auto kLook = std::chrono::milliseconds(200);  // interval of the watchdog

std::vector<bool> taken_from_record(std::vector<bool> is_real) {
  is_real.flip();
  return is_real;
}

/// The fields that the contracts of a group's actors name, for a person. For a state above 1 MiB:
/// why it is not shown.
Json state_json(const Plan& plan, const GroupState& state) {
  Json all = Json::object();
  for (size_t i = 0; i < state.actors.size(); ++i) {
    const InstanceId instance = plan.group(state.group).instances[i];
    const StateOfActor& said = plan.contract_of(instance).state;
    if (said.kind != StateOfActor::Kind::kFields) continue;
    const SavedFields& saved = state.actors[i].state;
    const auto schema = read_schema(said.schema);
    auto json = schema.ok() ? body_json(*schema, saved.body.bytes(), saved.blobs)
                            : Result<Json>(schema.error());
    all.set(plan.instance(instance).name, json.ok() ? *std::move(json) : Json(json.error().text()));
  }
  return all;
}

}  // namespace

Player::Player(ReplaySetup setup)
    : setup_(std::move(setup)),
      wiring_(make_wiring(*setup_.plan)),
      incarnation_(incarnation_of(*setup_.plan, *setup_.trace,
                                  taken_from_record(setup_.options.is_real), setup_.cuts)),
      shared_(setup_.plan->resources.size(), nullptr),
      parts_(setup_.plan->groups.size()) {}

Player::~Player() {
  for (uint32_t worker = 0; worker < num_workers_; ++worker) destroy_parts(worker);
}

Status Player::prepare() {
  const Plan& plan = *setup_.plan;
  RETURN_IF_ERROR(check_fits(plan, setup_.trace->catalog()));
  const std::vector<bool> is_needed = shared_resources();
  for (size_t i = 0; i < plan.resources.size(); ++i) {
    if (!is_needed[i]) continue;
    ASSIGN_OR_RETURN(auto made, setup_.factory(plan, static_cast<int32_t>(i), *this));
    shared_[i] = made.get();
    owned_.push_back(std::move(made));
  }
  // Processes made their cuts at different moments. So from cuts, every process is replayed
  // separately, with the recorded messages of the others.
  const bool is_alone = !setup_.cuts.empty();
  std::vector<bool> is_absent = setup_.options.is_absent;
  if (is_alone) is_absent.resize(plan.groups.size(), false);
  if (!is_absent.empty())
    inputs_ = std::make_unique<const RecordedInputs>(
        plan, *wiring_, *setup_.trace, incarnation_, std::move(is_absent), is_alone,
        [this](GroupId group) { return setup_.cuts.state_of(group); });
  for (uint32_t i = 0; i < plan.groups.size(); ++i) {
    const GroupId id(i);
    if (!is_real(id)) continue;
    auto part = std::make_unique<Part>();
    const bool stops = setup_.options.stop_group == id;
    const uint64_t last = last_step_of(id);
    part->cursor = std::make_unique<ReplayCursor>(
        plan, *wiring_, *setup_.trace, id, stops ? std::min(setup_.options.stop_step, last) : last,
        setup_.watcher, inputs_.get(), setup_.cuts.state_of(id));
    parts_[i] = std::move(part);
  }
  assign_workers();
  return ok();
}

/// Resources that real groups use and no group owns, by index.
std::vector<bool> Player::shared_resources() const {
  const Plan& plan = *setup_.plan;
  std::vector<bool> is_shared(plan.resources.size(), false);
  for (const PlanInstance& instance : plan.instances) {
    if (!is_real(instance.group)) continue;
    for (int32_t resource : instance.resources)
      if (resource >= 0) is_shared[static_cast<size_t>(resource)] = true;
  }
  for (const PlanGroup& group : plan.groups)
    for (int32_t resource : group.resources) is_shared[static_cast<size_t>(resource)] = false;
  return is_shared;
}

void Player::assign_workers() {
  const Plan& plan = *setup_.plan;
  const uint32_t num_pooled = std::max(1U, setup_.options.num_threads);
  std::vector<int32_t> threads;  // of the compute resources
  const auto threads_of = [&](GroupId id) {
    int32_t most = 0;
    for (int32_t index : plan.group(id).resources) {
      const PlanResource& resource = plan.resources[static_cast<size_t>(index)];
      if (resource.contract != nullptr && resource.contract->computes)
        most = std::max(most, resource.threads);
    }
    return most;
  };
  for (uint32_t i = 0; i < parts_.size(); ++i)
    if (parts_[i] && threads_of(GroupId(i)) > 0) threads.push_back(threads_of(GroupId(i)));
  const bool all_equal =
      std::adjacent_find(threads.begin(), threads.end(), std::not_equal_to<>()) == threads.end();
  const bool shares_one = num_pooled == 1 && all_equal;
  // A replay starts nothing outside, so the Outside of a slot needs no thread.
  const auto has_resource = [&plan](const PlanGroup& group) {
    return std::any_of(group.resources.begin(), group.resources.end(), [&plan](int32_t index) {
      return plan.resources[static_cast<size_t>(index)].slot.is_none();
    });
  };
  num_workers_ = num_pooled;
  uint32_t next = 0;
  for (uint32_t i = 0; i < parts_.size(); ++i) {
    if (!parts_[i]) continue;
    if (!shares_one && has_resource(plan.groups[i]))
      parts_[i]->worker = num_workers_++;
    else
      parts_[i]->worker = next++ % num_pooled;
  }
}

Status Player::start_parts(uint32_t worker) {
  for (uint32_t i = 0; i < parts_.size(); ++i) {
    if (!parts_[i] || parts_[i]->worker != worker) continue;
    GroupSetup setup;
    setup.plan = setup_.plan;
    setup.wiring = wiring_;
    setup.group = GroupId(i);
    setup.incarnation = incarnation_;
    setup.process_services = setup_.process_services;
    setup.executor = this;
    setup.factory = [this](const Plan& plan, int32_t index) {
      return setup_.factory(plan, index, *this);
    };
    setup.make_tenant = setup_.make_tenant;
    setup.tenant_resources = setup_.tenant_resources;
    setup.shared_resources = shared_;
    setup.observer = parts_[i]->cursor.get();
    setup.step_source = parts_[i]->cursor.get();
    parts_[i]->group = std::make_unique<ActorGroup>(std::move(setup));
    ActorGroup& group = *parts_[i]->group;
    const GroupState* state = setup_.cuts.state_of(group.id());
    if (state == nullptr) {
      RETURN_IF_ERROR(group.start(setup_.trace->started(group.id()).value_or(Time())));
    } else {
      RETURN_IF_ERROR(
          group.start_from(*state, setup_.cuts.in_transit_to(*wiring_, group.id()), state->at));
    }
  }
  return ok();
}

void Player::destroy_parts(uint32_t worker) {
  for (auto& part : parts_)
    if (part && part->worker == worker) part->group.reset();
}

void Player::ship(MessageBatch&& batch) {
  const auto& from = parts_[batch.from.index()];
  if (from->cursor->divergence()) return;  // consequences of a difference are not compared
  Part* to = parts_[batch.to.index()].get();
  if (to == nullptr) return;
  num_pending_.fetch_add(1);
  {
    const std::lock_guard lock(to->mutex);
    // Moves only the contents: the group reuses its batches, with their from and to.
    MessageBatch& arrival = to->arrivals.emplace_back();
    if (!to->spare.empty()) {
      arrival = std::move(to->spare.back());
      to->spare.pop_back();
    }
    arrival.from = batch.from;
    arrival.to = batch.to;
    arrival.incarnation = batch.incarnation;
    std::swap(arrival.messages, batch.messages);
    std::swap(arrival.grants, batch.grants);
    to->has_arrivals.store(true, std::memory_order_release);
  }
  if (to->worker == from->worker) return;
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void Player::group_failed(GroupId group, Error error) {
  const std::lock_guard lock(mutex_);
  failures_.push_back(
      fmt::format("'{}' ended the run: {}", setup_.plan->group(group).name, error.text()));
}

void Player::tenant_failed(TenantSlot tenant, uint32_t, std::string why) {
  const std::lock_guard lock(mutex_);
  const GroupId group = ActorGroup::running_here();
  const uint64_t step = group.is_none() ? 0 : parts_[group.index()]->cursor->recorded().step;
  failures_.push_back(fmt::format("tenant '{}' was set aside: {}",
                                  setup_.trace->tenants().label(group, step, tenant), why));
}

void Player::play(uint32_t worker) {
  // A single worker also keeps the recorded order between groups. So shared resources (a weight
  // channel) have the same state as at the recorded steps.
  const int burst = num_workers_ == 1 ? 1 : kBurstSteps;
  while (true) {
    Part* part = pick(worker);
    if (part == nullptr) {
      if (!wait_for_arrivals(worker)) return;
      continue;
    }
    for (int i = 0; i < burst; ++i) {
      step(*part);
      if (part->cursor->next() == nullptr) break;
      accept(*part);
      if (!part->group->ready() && (!bring_input(*part) || !part->group->ready())) break;
    }
  }
}

/// False when no group can make progress any more.
bool Player::wait_for_arrivals(uint32_t worker) {
  std::unique_lock lock(mutex_);
  const auto has_some = [&] {
    for (const auto& part : parts_)
      if (part && part->worker == worker && part->has_arrivals.load()) return true;
    return false;
  };
  if (is_over_) return false;
  if (has_some()) return true;
  if (++num_idle_ == num_workers_ && num_pending_.load() == 0) {
    is_over_ = true;
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return is_over_ || has_some(); });
  --num_idle_;
  return !is_over_;
}

void Player::work(uint32_t worker) {
  Status started = start_parts(worker);
  {
    std::unique_lock lock(mutex_);
    ++num_started_;
    if (!started.ok() && !fault_) fault_ = started.error();
    changed_.notify_all();
    changed_.wait(lock, [&] { return num_started_ == num_workers_; });
    started = fault_ ? Status(*fault_) : ok();
  }
  if (started.ok()) play(worker);
  if (started.ok()) report_stop(worker);
  destroy_parts(worker);
  const std::lock_guard lock(mutex_);
  ++num_left_;
  changed_.notify_all();
}

void Player::report_stop(uint32_t worker) {
  if (!setup_.at_stop || !setup_.options.stop_group) return;
  const Part& part = *parts_[setup_.options.stop_group->index()];
  if (part.worker != worker || part.cursor->divergence() || !has_stopped_early()) return;
  const Status reported = setup_.at_stop(part.group->state());
  if (reported.ok()) return;
  const std::lock_guard lock(mutex_);
  if (!fault_) fault_ = reported.error();
}

Result<ReplayReport> Player::run() {
  CHECK(!is_started_, "a replay was run twice");
  is_started_ = true;
  std::vector<std::thread> threads;
  for (uint32_t worker = 0; worker < num_workers_; ++worker)
    threads.emplace_back([this, worker] { work(worker); });
  {
    std::unique_lock lock(mutex_);
    uint64_t seen = 0;
    auto moved = std::chrono::steady_clock::now();
    const auto limit = std::chrono::nanoseconds(setup_.options.step_max.to_nanoseconds());
    while (!changed_.wait_for(lock, kLook, [&] { return num_left_ == num_workers_; })) {
      const auto now = std::chrono::steady_clock::now();
      if (const uint64_t steps = num_steps_.load(); steps != seen) {
        seen = steps;
        moved = now;
      }
      if (now - moved < limit) continue;
      for (auto& thread : threads) thread.detach();
      return error(Code::kDeadline, "no step ended for {}: a handler hangs",
                   to_string(setup_.options.step_max));
    }
  }
  for (auto& thread : threads) thread.join();
  if (fault_) return *fault_;
  find_missing();
  return report();
}

Status Player::start_alone() {
  CHECK(num_workers_ == 1, "stepping by hand is for one thread");
  if (std::exchange(is_started_, true)) return fault_ ? Status(*fault_) : ok();
  if (Status started = start_parts(0); !started.ok()) fault_ = started.error();
  return fault_ ? Status(*fault_) : ok();
}

Result<bool> Player::advance() {
  RETURN_IF_ERROR(start_alone());
  Part* part = pick(0);
  if (part == nullptr) {
    find_missing();
    return false;
  }
  step(*part);
  return true;
}

std::optional<TraceStep> Player::upcoming() {
  if (!start_alone().ok()) return std::nullopt;
  Part* part = pick(0);
  if (part == nullptr) return std::nullopt;
  return part->cursor->recorded();
}

ReplayReport Player::report() {
  ReplayReport report;
  for (const auto& part : parts_) {
    report.num_steps.push_back(part ? part->cursor->num_steps() : 0);
    if (!part) continue;
    report.num_messages_compared += part->cursor->num_compared();
    if (part->cursor->divergence()) report.divergences.push_back(*part->cursor->divergence());
  }
  std::stable_sort(report.divergences.begin(), report.divergences.end(),
                   [](const auto& a, const auto& b) { return a.began < b.began; });
  if (setup_.near != nullptr) report.near = setup_.near->text(tolerance_of(*setup_.plan));
  for (const auto& fault : setup_.trace->faults()) report.notes.push_back(fault.text);
  const std::lock_guard lock(mutex_);
  report.notes.insert(report.notes.end(), failures_.begin(), failures_.end());
  return report;
}

Json Player::describe(GroupId group) const {
  const auto& part = parts_[group.index()];
  Json json = Json::object();
  json.set("group", setup_.plan->group(group).name);
  if (!part || part->group == nullptr) return json.set("real", false);
  Json queues = Json::array();
  const auto& in = wiring_->groups[group.index()].in;
  for (uint32_t i = 0; i < in.size(); ++i) {
    const uint64_t waiting = part->group->num_waiting_in(i);
    if (waiting == 0) continue;
    queues.push_back(Json::object()
                         .set("edge", setup_.plan->edge(wiring_->links[in[i].index()].edge).name)
                         .set("waiting", waiting));
  }
  json.set("steps", part->cursor->last_step()).set("queues", std::move(queues));
  return json.set("state", state_json(*setup_.plan, part->group->state()));
}

std::string_view to_string(DivergenceKind kind) {
  switch (kind) {
    case DivergenceKind::kEmission:
      return "emission";
    case DivergenceKind::kCount:
      return "count";
    case DivergenceKind::kOutcome:
      return "outcome";
    case DivergenceKind::kCourse:
      return "course";
    case DivergenceKind::kMissing:
      return "missing";
    case DivergenceKind::kUnreadable:
      return "unreadable";
  }
  return "unknown";
}

uint64_t ReplayReport::total_steps() const {
  uint64_t sum = 0;
  for (uint64_t steps : num_steps) sum += steps;
  return sum;
}

Result<std::unique_ptr<Replay>> Replay::make(ReplaySetup setup) {
  auto player = std::make_unique<Player>(std::move(setup));
  RETURN_IF_ERROR(player->prepare());
  return std::unique_ptr<Replay>(std::move(player));
}

}  // namespace primerl
