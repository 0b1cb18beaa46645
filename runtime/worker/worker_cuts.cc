#include "runtime/worker/worker_cuts.h"

#include <algorithm>

#include "graph/base/files.h"
#include "runtime/replay/traced_resources.h"
#include "runtime/store/step_lines.h"
#include "runtime/trace/segment_files.h"

namespace primerl {
namespace {

/// Removes cuts of an earlier incarnation that died: the new one starts without them.
void remove_cuts_of_earlier(const std::filesystem::path& folder, const CutHead& head) {
  for (const auto& file : list_cuts(folder, head.process)) {
    const auto other = read_cut_head(file);
    std::error_code ignored;
    if (other.ok() && other->number != 0 && other->incarnation < head.incarnation)
      std::filesystem::remove(file, ignored);
  }
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
      num_trained_(tenants_trained_by(*setup_.plan, setup_.process).size()),
      collector_(setup_.plan, make_wiring(*setup_.plan), setup_.process,
                 [this](ProcessCut&& cut) { made(std::move(cut)); }),
      checkpoints_(setup_.newest_steps),
      writer_([this] { write(); }) {
  checkpoints_.resize(setup_.plan->tenants.size());
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
  if (num_trained_ > 0) return;
  if (!last_at_) {
    last_at_ = now;
    last_steps_ = num_steps;
  }
  const TraceSettings& trace = setup_.plan->trace;
  const bool is_due = now - *last_at_ >= trace.cut_every ||
                      num_steps - last_steps_ >= static_cast<uint64_t>(trace.cut_steps);
  if (!is_due) return;
  last_at_ = now;
  last_steps_ = num_steps;
  begin();
}

/// With a learner, a cut would wait for a checkpoint, which is written at the end of the drain.
void WorkerCuts::before_drain() {
  if (num_trained_ == 0) begin();
}

void WorkerCuts::checkpoint_begun(TenantSlot /*tenant*/) {
  if (num_trained_ > 0) begin();
}

void WorkerCuts::checkpoint_committed(TenantSlot tenant, int64_t step) {
  const std::lock_guard lock(mutex_);
  checkpoints_[tenant.index()] = std::max(checkpoints_[tenant.index()], step);
  hand_over_newest();
}

/// The newest cut that no longer has to wait; older ones are of no use then. Call with
/// mutex_ locked.
void WorkerCuts::hand_over_newest() {
  for (size_t i = early_.size(); i-- > 0;) {
    if (!may_be_written(early_[i].least_steps)) continue;
    hand_over(std::move(early_[i]));
    early_.erase(early_.begin(), early_.begin() + static_cast<ptrdiff_t>(i) + 1);
    return;
  }
}

void WorkerCuts::begin() {
  const uint64_t segment = setup_.segment();
  auto line_files = setup_.line_files(GroupId());
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    segment_ = segment;
    line_files_ = {line_files.begin(), line_files.end()};
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
  Made made{setup_.head, std::move(cut)};
  CutHead& head = made.head;
  head.number = made.cut.number;
  for (const GroupState& state : made.cut.groups) {
    head.steps.emplace_back(state.group.value, state.num_steps);
    head.at = std::max(head.at, state.at);
    const auto reached = learner_steps_of(*setup_.plan, state);
    if (!reached.ok()) continue;
    for (const auto& [tenant, steps] : *reached) {
      const int64_t all = setup_.begun_steps[tenant.index()] + steps;
      if (steps > 0) head.learner_steps.emplace_back(tenant.value, all);
      if (steps > 0) made.least_steps[tenant.value] = all;
    }
    const auto open = open_tenants_of(*setup_.plan, state);
    for (size_t i = 0; open.ok() && i < open->size(); ++i) {
      const TenantSlot tenant = (*open)[i];
      made.least_steps[tenant.value] = setup_.begun_steps[tenant.index()] + reached->at(tenant) + 1;
    }
  }
  const std::lock_guard lock(mutex_);
  // The next cut began meanwhile, so segment_ belongs to that one.
  if (head.number != number_) return;
  head.segment = segment_;
  head.line_files = {line_files_.begin(), line_files_.end()};
  early_.push_back(std::move(made));
  hand_over_newest();
  // The oldest is the first that may be written, the newest saves most.
  if (early_.size() > num_trained_ + 1) early_.erase(early_.end() - 2);
}

/// Call with mutex_ held.
bool WorkerCuts::may_be_written(const std::map<uint32_t, int64_t>& least_steps) const {
  return std::all_of(least_steps.begin(), least_steps.end(),
                     [this](const auto& each) { return each.second <= checkpoints_[each.first]; });
}

/// Call with mutex_ held.
void WorkerCuts::hand_over(Made made) {
  next_ = std::move(made);
  changed_.notify_all();
}

void WorkerCuts::write() {
  while (true) {
    std::optional<Made> made;
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
