#include "runtime/worker/worker_cuts.h"

#include <algorithm>

#include "graph/base/files.h"
#include "runtime/replay/traced_resources.h"
#include "runtime/store/step_lines.h"
#include "runtime/trace/segment_files.h"

namespace primerl {
namespace {

/// Cuts that a process with many tenants begins within `trace.cut_every`, at most.
constexpr int64_t kCutsOfInterval = 16;

/// Removes cuts of an earlier incarnation that died: the new one starts without them.
void remove_cuts_of_earlier(const std::filesystem::path& folder, const CutHead& head) {
  for (const auto& file : list_cuts(folder, head.process)) {
    const auto other = read_cut_head(file);
    std::error_code ignored;
    if (other.ok() && other->number != 0 && other->incarnation < head.incarnation)
      std::filesystem::remove(file, ignored);
  }
}

std::vector<int64_t> for_all_slots(const Plan& plan, std::vector<int64_t> steps) {
  steps.resize(plan.num_slots());
  return steps;
}

/// Tenants whose learners are in the process, with those that may join free slots.
size_t num_trained(const Plan& plan, ProcessId process) {
  size_t sum = tenants_trained_by(plan, process).size();
  for (const GroupId group : plan.process(process).groups) {
    const auto& owned = plan.group(group).resources;
    const bool learns = std::ranges::any_of(owned, [&plan](int32_t resource) {
      return plan.resources[static_cast<size_t>(resource)].kind == Learner::kResourceKind;
    });
    if (learns) sum += plan.free_slots.size();
  }
  return sum;
}

/// Adds the tenants that have joined this group and not left it.
void add_slots(const GroupState& state, std::vector<CutSlot>& slots) {
  for (const SavedSlot& each : state.slots) {
    const CutSlot slot{each.slot, each.tenancy, each.name};
    if (std::ranges::find(slots, slot) == slots.end()) slots.push_back(slot);
  }
}

/// Tenants of the group that were set aside and whose actors have drained: nothing more is saved.
void add_ended(const Plan& plan, const GroupState& state, std::set<TenantSlot>& ended) {
  const auto& instances = plan.group(state.group).instances;
  const auto has_drained = [&](TenantSlot tenant) {
    for (size_t i = 0; i < state.actors.size() && i < instances.size(); ++i)
      if (plan.instance(instances[i]).tenant == tenant && !state.actors[i].has_drained)
        return false;
    return true;
  };
  for (const TenantSlot tenant : state.set_aside)
    if (has_drained(tenant)) ended.insert(tenant);
}

}  // namespace

std::vector<TenantSlot> tenants_trained_by(const Plan& plan, ProcessId process) {
  std::vector<TenantSlot> tenants;
  for (const GroupId group : plan.process(process).groups)
    for (const TenantSlot tenant : tenants_trained_by(plan, group)) tenants.push_back(tenant);
  return tenants;
}

WorkerCuts::WorkerCuts(Setup setup, std::function<void(uint64_t)> order)
    : setup_(std::move(setup)),
      order_(std::move(order)),
      num_trained_(num_trained(*setup_.plan, setup_.process)),
      collector_(setup_.plan, make_wiring(*setup_.plan), setup_.process,
                 [this](ProcessCut&& cut) { made(std::move(cut)); }),
      waiting_(num_trained_, setup_.plan->trace.cut_every,
               for_all_slots(*setup_.plan, setup_.newest_steps)),
      writer_([this] { write(); }) {
  remove_cuts_of_earlier(setup_.folder, setup_.head);
}

WorkerCuts::~WorkerCuts() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  writer_.join();
}

void WorkerCuts::tick(Time now, uint64_t num_steps) {
  if (num_trained_ > 0) {
    std::vector<WaitingCuts::Request> requests;
    {
      const std::lock_guard lock(mutex_);
      now_ = now;
      // A tenant alone is late for none: its cuts wait for its own checkpoints.
      if (num_trained_ > 1) requests = waiting_.requests(now);
    }
    for (const WaitingCuts::Request& each : requests) setup_.request(each);
    if (setup_.plan->free_slots.empty()) return;
  }
  if (!last_at_) {
    last_at_ = now;
    last_steps_ = num_steps;
  }
  const TraceSettings& trace = setup_.plan->trace;
  const bool has_many_steps =
      num_trained_ == 0 && num_steps - last_steps_ >= static_cast<uint64_t>(trace.cut_steps);
  if (now - *last_at_ < trace.cut_every && !has_many_steps) return;
  if (num_trained_ > 0 && !may_begin_at_intervals(now)) return;
  last_at_ = now;
  last_steps_ = num_steps;
  begin();
}

/// Beside the cuts at checkpoints, which there may be none of while no tenant trains.
bool WorkerCuts::may_begin_at_intervals(Time now) {
  const std::lock_guard lock(mutex_);
  return !began_ || now - *began_ >= setup_.plan->trace.cut_every;
}

/// With a learner, a cut would wait for a checkpoint, which is written at the end of the drain.
void WorkerCuts::before_drain() {
  if (num_trained_ == 0) begin();
}

void WorkerCuts::checkpoint_begun(TenantSlot tenant, int64_t step) {
  if (num_trained_ == 0) return;
  {
    const std::lock_guard lock(mutex_);
    waiting_.checkpoint_begun(tenant, step);
  }
  if (may_begin_beside_others()) begin();
}

/// Checkpoints of many tenants begin at any moment. A cut that each of them abandons would never be
/// complete, and a cut costs as much as all tenants' states.
bool WorkerCuts::may_begin_beside_others() {
  if (num_trained_ == 1) return true;
  const bool is_open = collector_.is_open();
  const std::lock_guard lock(mutex_);
  if (!began_) return true;
  const Duration cut_every = setup_.plan->trace.cut_every;
  const Duration passed = now_ - *began_;
  if (is_open) return passed >= cut_every;
  return num_trained_ <= kWaitingCutsMax || passed * kCutsOfInterval >= cut_every;
}

void WorkerCuts::checkpoint_committed(TenantSlot tenant, int64_t step) {
  const std::lock_guard lock(mutex_);
  hand_over(waiting_.checkpoint_committed(tenant, step));
}

void WorkerCuts::gradients_discarded(TenantSlot tenant) {
  {
    const std::lock_guard lock(mutex_);
    if (!waiting_.takes_new_cut(tenant)) return;
  }
  begin();
}

void WorkerCuts::tenant_joined(TenantSlot slot, uint32_t tenancy) {
  const std::lock_guard lock(mutex_);
  waiting_.tenant_joined(slot, tenancy);
}

void WorkerCuts::tenant_left(TenantSlot slot, uint32_t tenancy) {
  const std::lock_guard lock(mutex_);
  waiting_.tenant_left(slot, tenancy);
}

void WorkerCuts::begin() {
  const uint64_t segment = setup_.segment();
  auto line_files = setup_.line_files(GroupId());
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    segment_ = segment;
    line_files_ = {line_files.begin(), line_files.end()};
    began_ = now_;
    number = number_ = collector_.begin();
  }
  order_(number);
}

/// Called on the group's thread between two of its steps, so the files end with this step's lines.
void WorkerCuts::add_part(uint64_t number, GroupState&& state) {
  for (const auto& [file, bytes] : setup_.line_files(state.group)) {
    const std::lock_guard lock(mutex_);
    line_files_[file] = bytes;
  }
  collector_.add_part(number, std::move(state));
}

void WorkerCuts::add_in_transit(uint64_t number, SavedMessage&& message) {
  collector_.add_in_transit(number, std::move(message));
}

void WorkerCuts::made(ProcessCut&& cut) {
  const auto is_draining = [](const GroupState& state) { return state.is_draining; };
  // A record that drains is not followed, so its cut is useless.
  if (setup_.is_useless() || std::any_of(cut.groups.begin(), cut.groups.end(), is_draining)) return;
  CutFile made{setup_.head, std::move(cut)};
  CutHead& head = made.head;
  head.number = made.cut.number;
  std::set<TenantSlot> ended;
  for (const GroupState& state : made.cut.groups) add_slots(state, head.slots);
  std::ranges::sort(head.slots, {},
                    [](const CutSlot& each) { return std::pair(each.slot, each.tenancy); });
  for (const GroupState& state : made.cut.groups) {
    head.steps.emplace_back(state.group.value, state.num_steps);
    head.at = std::max(head.at, state.at);
    const auto reached = learner_steps_of(*setup_.plan, state);
    if (!reached.ok()) continue;
    if (!reached->empty()) add_ended(*setup_.plan, state, ended);
    const auto open = open_tenants_of(*setup_.plan, state);
    for (const auto& [tenant, steps] : *reached) {
      const bool is_open = open.ok() && std::ranges::count(*open, tenant) > 0;
      if ((steps == 0 && !is_open) || ended.contains(tenant)) continue;
      head.learner_steps.emplace_back(tenant.value, steps_before(tenant, head) + steps);
      if (is_open) head.open_tenants.push_back(tenant.value);
    }
  }
  const std::lock_guard lock(mutex_);
  // The next cut began meanwhile, so segment_ belongs to that one.
  if (head.number != number_) return;
  head.segment = segment_;
  head.line_files = {line_files_.begin(), line_files_.end()};
  hand_over(waiting_.add(std::move(made), ended));
}

/// Steps of the tenant before this start; none of a tenant that joined in it.
int64_t WorkerCuts::steps_before(TenantSlot tenant, const CutHead& head) const {
  const auto has_joined = [tenant](const CutSlot& each) { return each.slot == tenant; };
  if (tenant.index() >= setup_.begun_steps.size() || std::ranges::any_of(head.slots, has_joined))
    return 0;
  return setup_.begun_steps[tenant.index()];
}

/// Call with mutex_ held.
void WorkerCuts::hand_over(std::optional<CutFile> cut) {
  if (!cut) return;
  next_ = std::move(cut);
  changed_.notify_all();
}

void WorkerCuts::write() {
  while (true) {
    std::optional<CutFile> made;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return next_.has_value() || is_over_; });
      if (!next_) return;
      made = std::exchange(next_, std::nullopt);
    }
    if (setup_.is_useless()) continue;
    const CutHead& head = made->head;
    Status written = sync_segments(setup_.folder, head.process, head.incarnation);
    for (const auto& [file, bytes] : head.line_files)
      if (written.ok()) written = system_files().sync(setup_.run_folder / file);
    const auto steps = step_lines_file(setup_.run_folder / "logs", head.process);
    std::error_code none;
    if (written.ok() && std::filesystem::exists(steps, none)) written = system_files().sync(steps);
    if (written.ok()) written = write_cut(setup_.folder, head, made->cut);
    if (!written.ok()) {
      if (!std::exchange(has_warned_, true))
        setup_.warn(
            "the state of this process could not be saved; a run that is resumed follows "
            "more of its record: " +
            written.error().text());
      continue;
    }
    has_warned_ = false;
    kept_.push_back({head.number, head.segment, head.at});
    retire();
  }
}

/// Removes superfluous cuts, and allows removal of segments that are older than the two newest
/// cuts.
void WorkerCuts::retire() {
  CutHead old = setup_.head;
  const uint64_t retired = retired_through(setup_.folder, old.process, old.incarnation);
  while (const auto index = cut_to_remove(kept_, retired)) {
    old.number = kept_[*index].number;
    std::error_code ignored;  // a remaining file does no harm
    std::filesystem::remove(cut_path(setup_.folder, old), ignored);
    kept_.erase(kept_.begin() + static_cast<ptrdiff_t>(*index));
  }
  if (kept_.size() >= kNewestCuts && all_have_cuts())
    setup_.keep(kept_[kept_.size() - kNewestCuts].segment);
}

/// A run resumes from cuts of all its processes, or from none.
bool WorkerCuts::all_have_cuts() const {
  for (const auto& process : setup_.plan->processes)
    if (!process.groups.empty() && list_cuts(setup_.folder, process.name).empty()) return false;
  return true;
}

}  // namespace primerl
