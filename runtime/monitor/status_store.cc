#include "runtime/monitor/status_store.h"

#include <algorithm>
#include <map>

#include "runtime/exec/stall.h"

namespace primerl {
namespace {

constexpr Duration kSampleEvery = Duration::seconds(5);
constexpr size_t kSamplesMax =
    static_cast<size_t>(kServedWindow.to_nanoseconds() / kSampleEvery.to_nanoseconds()) + 1;

uint64_t tokens_of(const Heartbeat& beat, uint32_t tenant) {
  uint64_t sum = 0;
  for (const EngineReport& engine : beat.engines)
    if (engine.tenant == tenant) sum += engine.num_tokens;
  return sum;
}

/// The share of `slot` in the tokens computed between the two samples; none if there are none.
std::optional<double> part_of(const std::vector<double>& before, const std::vector<double>& now,
                              size_t slot) {
  double sum = 0;
  for (size_t i = 0; i < now.size(); ++i) sum += now[i] - before[i];
  if (sum <= 0) return std::nullopt;
  return (now[slot] - before[slot]) / sum;
}

}  // namespace

std::string_view to_string(ProcessState state) {
  switch (state) {
    case ProcessState::kStarting:
      return "starting";
    case ProcessState::kRunning:
      return "running";
    case ProcessState::kRestarting:
      return "restarting";
    case ProcessState::kEnded:
      return "ended";
  }
  return "unknown";
}

StatusStore::StatusStore(std::shared_ptr<const Plan> plan, Time now, const StatusStore* before)
    : plan_(std::move(plan)) {
  picture_.began = now;
  picture_.processes.resize(plan_->processes.size());
  picture_.tenants.resize(plan_->num_slots());
  served_.engine.resize(plan_->num_slots());
  served_.learner.resize(plan_->num_slots());
  for (size_t slot = 0; slot < plan_->tenants.size(); ++slot) {
    TenantPicture& tenant = picture_.tenants[slot];
    tenant.name = plan_->tenants[slot].name;
    if (!plan_->tenants[slot].is_client) tenant.max_steps = plan_->tenants[slot].max_steps;
    tenant.share = plan_->tenants[slot].share;
  }
  sample_served(now);
  if (before == nullptr) return;
  const RunSnapshot last = before->picture();
  picture_.began = last.began;
  for (size_t i = 0; i < std::min(last.processes.size(), picture_.processes.size()); ++i)
    picture_.processes[i].num_restarts = last.processes[i].num_restarts + 1;
  for (size_t i = 0; i < std::min(last.tenants.size(), picture_.tenants.size()); ++i) {
    TenantPicture& tenant = picture_.tenants[i];
    if (!last.tenants[i].state.empty()) tenant.name = last.tenants[i].name;
    tenant.newest = last.tenants[i].newest;
    tenant.step_at = last.tenants[i].step_at;
    tenant.alarms = last.tenants[i].alarms;
  }
  picture_.left = last.left;
}

void StatusStore::set_facts(RunFacts facts) {
  const std::lock_guard lock(mutex_);
  facts_ = std::move(facts);
}

void StatusStore::set_phase(const std::string& phase) {
  const std::lock_guard lock(mutex_);
  if (picture_.phase != phase) picture_.phase = phase;
}

void StatusStore::set_holds(std::vector<HoldPicture> holds) {
  const std::lock_guard lock(mutex_);
  picture_.holds = std::move(holds);
}

void StatusStore::process_started(ProcessId process, uint32_t incarnation, int64_t pid) {
  const std::lock_guard lock(mutex_);
  ProcessPicture& one = picture_.processes[process.index()];
  if (one.incarnation != 0) ++one.num_restarts;
  one.state = ProcessState::kStarting;
  one.incarnation = incarnation;
  one.pid = pid;
  one.beat.reset();
}

void StatusStore::process_said(ProcessId process, const Payload& message, Time now) {
  const bool is_beat = as_if<Heartbeat>(message) != nullptr;
  if (!is_beat && as_if<RunEnded>(message) == nullptr) return;
  const std::lock_guard lock(mutex_);
  ProcessPicture& one = picture_.processes[process.index()];
  one.state = is_beat ? ProcessState::kRunning : ProcessState::kEnded;
  if (!is_beat) return;
  count_engines(one, *as_if<Heartbeat>(message));
  sample_served(now);
  one.beat = std::static_pointer_cast<const Heartbeat>(message.message);
  one.beat_at = now;
}

void StatusStore::process_gone(ProcessId process, bool comes_back) {
  const std::lock_guard lock(mutex_);
  picture_.processes[process.index()].state =
      comes_back ? ProcessState::kRestarting : ProcessState::kEnded;
}

void StatusStore::step_taken(TenantSlot tenant, const StepFacts& facts, Time now) {
  auto newest = std::make_shared<const StepFacts>(facts);
  const std::lock_guard lock(mutex_);
  TenantPicture& one = picture_.tenants[tenant.index()];
  one.newest = std::move(newest);
  one.step_at = now;
  served_.learner[tenant.index()] += facts.get("progress/tokens");
  sample_served(now);
}

void StatusStore::set_alarms(TenantSlot tenant, std::vector<AlarmChange> raised) {
  const std::lock_guard lock(mutex_);
  picture_.tenants[tenant.index()].alarms = std::move(raised);
}

void StatusStore::set_aside(const SetAside& tenants) {
  const std::lock_guard lock(mutex_);
  for (const auto& [tenant, why] : tenants) picture_.tenants[tenant.index()].why_set_aside = why;
}

void StatusStore::serve(const std::vector<ServedTenant>& tenants) {
  const std::lock_guard lock(mutex_);
  std::map<std::string, TenantPicture> before;
  for (TenantPicture& one : picture_.left) before[one.name] = std::move(one);
  picture_.left.clear();
  std::vector<TenantPicture> slots(picture_.tenants.size());
  for (TenantPicture& one : picture_.tenants)
    if (!one.name.empty()) before[one.name] = one;
  for (const ServedTenant& tenant : tenants) {
    TenantPicture one = before[tenant.name];
    one.name = tenant.name;
    one.state = tenant.state;
    one.why_set_aside = tenant.why;
    one.max_steps = tenant.max_steps;
    one.share = tenant.share;
    if (!tenant.slot.is_none() && tenant.slot.index() < slots.size())
      slots[tenant.slot.index()] = std::move(one);
    else if (picture_.left.size() < kLeftTenantsMax)
      picture_.left.push_back(std::move(one));
  }
  for (size_t slot = 0; slot < slots.size(); ++slot)
    if (slots[slot].name != picture_.tenants[slot].name) forget_served(slot);
  picture_.tenants = std::move(slots);
}

/// Tokens of the slot's earlier tenant do not count for the next.
void StatusStore::forget_served(size_t slot) {
  served_.engine[slot] = served_.learner[slot] = 0;
  for (ServedTokens& sample : samples_) sample.engine[slot] = sample.learner[slot] = 0;
}

int64_t StatusStore::count_of(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const ProcessPicture& process : picture_.processes) {
    if (process.beat == nullptr) continue;
    for (const InstanceLoad& load : process.beat->instances)
      for (const NamedCount& count : load.counts)
        if (count.name == name) sum += count.value;
  }
  return sum;
}

/// Adds what the engines of a process did since its last heartbeat; a new incarnation begins at 0.
void StatusStore::count_engines(const ProcessPicture& before, const Heartbeat& beat) {
  for (uint32_t slot = 0; slot < served_.engine.size(); ++slot) {
    const uint64_t now = tokens_of(beat, slot);
    const uint64_t last = before.beat == nullptr ? 0 : tokens_of(*before.beat, slot);
    served_.engine[slot] += static_cast<double>(now - std::min(now, last));
  }
}

void StatusStore::sample_served(Time now) {
  served_.at = now;
  if (!samples_.empty() && now - samples_.back().at < kSampleEvery) return;
  samples_.push_back(served_);
  while (samples_.size() > kSamplesMax || now - samples_.front().at > kServedWindow)
    samples_.pop_front();
}

ServedParts StatusStore::served_parts(size_t slot) const {
  const ServedTokens& before = samples_.front();
  const double seconds = age(served_.at, before.at);
  const double tokens = served_.engine[slot] - before.engine[slot];
  return {part_of(before.engine, served_.engine, slot),
          part_of(before.learner, served_.learner, slot), seconds > 0 ? tokens / seconds : 0};
}

RunSnapshot StatusStore::picture() const {
  const std::lock_guard lock(mutex_);
  RunSnapshot picture = picture_;
  for (size_t slot = 0; slot < picture.tenants.size(); ++slot)
    picture.tenants[slot].served = served_parts(slot);
  return picture;
}

std::optional<TenantPicture> StatusStore::tenant(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  for (size_t slot = 0; slot < picture_.tenants.size(); ++slot)
    if (picture_.tenants[slot].name == name) {
      TenantPicture one = picture_.tenants[slot];
      one.served = served_parts(slot);
      return one;
    }
  const auto left = std::ranges::find(picture_.left, name, &TenantPicture::name);
  return left == picture_.left.end() ? std::nullopt : std::optional(*left);
}

RunFacts StatusStore::facts() const {
  const std::lock_guard lock(mutex_);
  return facts_;
}

std::shared_ptr<const Wiring> StatusStore::wiring() const {
  {
    const std::lock_guard lock(mutex_);
    if (wiring_ != nullptr) return wiring_;
  }
  // The wiring is computed without the lock, because the session must not wait for it.
  auto made = make_wiring(*plan_);
  const std::lock_guard lock(mutex_);
  wiring_ = std::move(made);
  return wiring_;
}

StallReport stall_report_of(const Plan& plan, const Wiring& wiring, const RunSnapshot& picture) {
  std::vector<GroupView> views;
  // Ages are subtracted from this time, so the processes need no common clock.
  const Time now = Time::from_nanoseconds(INT64_MAX / 2);
  for (const ProcessPicture& process : picture.processes) {
    if (process.beat == nullptr) continue;
    for (const GroupReport& report : process.beat->groups)
      if (auto view = to_view(plan, wiring, report, now)) views.push_back(std::move(*view));
  }
  return make_stall_report(plan, wiring, views, now);
}

bool is_stalled_for(const RunSnapshot& picture, Duration idle_for) {
  bool is_waiting = false;
  for (const ProcessPicture& process : picture.processes) {
    if (process.beat == nullptr) return false;
    if (Duration::milliseconds(process.beat->still_ms) < idle_for) return false;
    is_waiting = is_waiting || process.beat->is_waiting;
  }
  return is_waiting;
}

}  // namespace primerl
