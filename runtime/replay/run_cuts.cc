#include "runtime/replay/run_cuts.h"

#include <algorithm>
#include <functional>

#include "graph/tenancies.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/store/checkpoint.h"
#include "runtime/store/run_folder.h"

namespace primerl {
namespace {

/// Why a cut cannot be used here; empty: it can.
std::string fault_of(const CutHead& head, const CutHead& wanted,
                     const std::function<int64_t(TenantSlot)>& newest_checkpoint) {
  if (head.run_id != wanted.run_id) return "it is of another run";
  if (head.program_version != wanted.program_version)
    return fmt::format("it was made by '{}', this is '{}'", head.program_version,
                       wanted.program_version);
  if (head.state_hash != wanted.state_hash)
    return "it is of another graph, or of actors that keep another state";
  if (head.process != wanted.process) return fmt::format("it is of process '{}'", head.process);
  for (const auto& [slot, step] : checkpoints_needed(head)) {
    const int64_t newest = newest_checkpoint(TenantSlot(slot));
    if (step <= newest) continue;
    if (std::ranges::count(head.open_tenants, slot) > 0)
      return fmt::format(
          "its learner had open gradients after {} steps, the newest checkpoint is of step {}",
          step - 1, newest);
    return fmt::format("its learner had taken {} steps, the newest checkpoint is of step {}", step,
                       newest);
  }
  return {};
}

/// Step of the newest checkpoint of a tenant that had joined the run; -1: there is none.
int64_t newest_of_joined(const Plan& plan, const std::filesystem::path& record,
                         const CutSlot& joined) {
  Tenant tenant;
  tenant.name = joined.name;
  tenant.tenancy = joined.tenancy;
  const auto folder =
      checkpoints_folder(record.parent_path(), tenancy_name(tenant), plan.layout_tenants());
  const auto found = find_checkpoints(folder, CheckpointDepth::kSizes);
  return found.newest ? found.newest->step : -1;
}

}  // namespace

RunCuts cuts_of(const Plan& plan, std::span<const CutFile> files) {
  if (files.empty()) return {};
  std::vector<std::shared_ptr<const ProcessCut>> of(plan.processes.size());
  for (const CutFile& file : files)
    for (size_t i = 0; i < of.size(); ++i)
      if (plan.processes[i].name == file.head.process)
        of[i] = std::make_shared<const ProcessCut>(file.cut);
  return RunCuts(plan, std::move(of));
}

Result<RunCuts> base_cuts(const Plan& plan, const std::filesystem::path& folder) {
  std::vector<CutFile> files;
  for (const auto& path : list_base_cuts(folder)) {
    ASSIGN_OR_RETURN(const CutHead head, read_cut_head(path));
    if (head.state_hash != state_hash(plan))
      return error(Code::kInvalid, "the saved state '{}' is of another graph or program",
                   path.filename().string())
          .note("replay it with the program that recorded it");
    ASSIGN_OR_RETURN(CutFile file, read_cut(path));
    files.push_back(std::move(file));
  }
  return cuts_of(plan, files);
}

SavedStates::SavedStates(const Plan& plan, const Trace& trace,
                         std::span<const std::filesystem::path> folders)
    : plan_(plan) {
  // By GroupId: where the next start resumed. Steps of an older start after that are not part of
  // the record.
  std::vector<uint64_t> ends(plan.groups.size(), UINT64_MAX);
  const uint64_t hash = state_hash(plan);
  const auto is_of_record = [&](const CutHead& head) {
    return std::ranges::all_of(head.steps, [&](const auto& of) {
      const auto [group, step] = of;
      return group < ends.size() && step <= ends[group] &&
             step <= trace.last_step(GroupId(group)) &&
             trace.first_step(GroupId(group)) <= step + 1;
    });
  };
  for (size_t start = folders.size(); start-- > 0;) {
    std::vector<uint64_t> begins = ends;
    for (const auto& path : list_cuts(folders[start])) {
      const auto head = read_cut_head(path);
      if (!head.ok()) notes_.push_back("saved state is passed over: " + head.error().text());
      if (!head.ok() || head->state_hash != hash || head->run_id != trace.catalog().run_id)
        continue;
      if (is_of_record(*head)) all_.push_back({path, *head});
      if (head->number != 0) continue;
      for (const auto& [group, step] : head->steps)
        if (group < begins.size()) begins[group] = std::min(begins[group], step);
    }
    ends = std::move(begins);
  }
}

RunCuts SavedStates::before(const RunMoment& moment) {
  const auto is_before = [&](const CutHead& head) {
    if (moment.step == 0)
      return std::ranges::any_of(head.learner_steps, [&](const auto& of) {
        return of.first == moment.tenant.value && of.second < moment.training_step;
      });
    return std::ranges::any_of(head.steps, [&](const auto& of) {
      return of.first == moment.group.value && of.second < moment.step;
    });
  };
  std::optional<Time> at;
  for (const Saved& each : all_)
    if (is_before(each.head)) at = std::max(at.value_or(each.head.at), each.head.at);
  if (!at) return {};
  std::vector<CutFile> files;
  for (const auto& process : plan_.processes) {
    while (true) {
      Saved* newest = nullptr;
      for (Saved& each : all_) {
        if (each.head.process != process.name || each.head.at > *at || each.is_unreadable) continue;
        if (newest == nullptr || each.head.at > newest->head.at) newest = &each;
      }
      if (newest == nullptr) break;
      auto file = read_cut(newest->path);
      newest->is_unreadable = !file.ok();
      if (!file.ok()) {
        notes_.push_back("saved state is passed over: " + file.error().text());
        continue;
      }
      files.push_back(std::move(file).value());
      break;
    }
  }
  made_at_ = Time();
  for (const CutFile& file : files) made_at_ = std::max(made_at_, file.head.at);
  return cuts_of(plan_, files);
}

std::vector<int64_t> SavedStates::training_steps() const {
  std::vector<int64_t> steps;
  for (const Saved& each : all_)
    for (const auto& [slot, step] : each.head.learner_steps)
      if (slot == 0) steps.push_back(step);
  std::ranges::sort(steps);
  return steps;
}

std::optional<std::pair<uint64_t, int64_t>> SavedStates::newest_of_learner(
    GroupId learner, TenantSlot tenant) const {
  std::optional<std::pair<uint64_t, int64_t>> newest;
  for (const Saved& each : all_)
    for (const auto& [group, step] : each.head.steps)
      for (const auto& [slot, taken] : each.head.learner_steps)
        if (group == learner.value && slot == tenant.value && (!newest || step > newest->first))
          newest = std::pair(step, taken);
  return newest;
}

CutChoice choose_cuts(const Plan& plan, const std::filesystem::path& record, uint64_t run_id,
                      std::span<const int64_t> checkpoint_steps,
                      const std::map<std::string, std::string>& unfit) {
  CutChoice choice;
  CutHead wanted;
  wanted.run_id = run_id;
  wanted.program_version = program_text(*plan.catalog);
  wanted.state_hash = state_hash(plan);
  const auto newest_of = [&](const CutHead& head) {
    return [&](TenantSlot slot) -> int64_t {
      // Groups are saved at different moments, so one slot may have two tenants: the newer counts.
      const CutSlot* joined = nullptr;
      for (const CutSlot& each : head.slots)
        if (each.slot == slot) joined = &each;
      if (joined != nullptr) return newest_of_joined(plan, record, *joined);
      return slot.index() < checkpoint_steps.size() ? checkpoint_steps[slot.index()] : -1;
    };
  };
  for (const auto& process : plan.processes) {
    wanted.process = process.name;
    for (const auto& path : list_cuts(record, process.name)) {
      const auto known = unfit.find(path.string());
      auto file = read_cut(path);
      const std::string fault = known != unfit.end() ? known->second
                                : file.ok() ? fault_of(file->head, wanted, newest_of(file->head))
                                            : file.error().text();
      if (fault.empty()) {
        choice.files.push_back(std::move(file).value());
        choice.paths.push_back(path.string());
        break;
      }
      choice.notes.push_back(
          fmt::format("the saved state '{}' is not used: {}", path.filename().string(), fault));
    }
  }
  return choice;
}

}  // namespace primerl
