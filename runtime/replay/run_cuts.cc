#include "runtime/replay/run_cuts.h"

#include <algorithm>

#include "runtime/backends/resource_catalog.h"

namespace primerl {
namespace {

/// Why a cut is of no use here; empty when it is.
std::string fault_of(const CutHead& head, const CutHead& wanted,
                     std::span<const int64_t> checkpoint_steps) {
  if (head.run_id != wanted.run_id) return "it is of another run";
  if (head.program_version != wanted.program_version)
    return fmt::format("it was made by '{}', this is '{}'", head.program_version,
                       wanted.program_version);
  if (head.state_hash != wanted.state_hash)
    return "it is of another graph, or of actors that keep another state";
  if (head.process != wanted.process) return fmt::format("it is of process '{}'", head.process);
  for (const auto& [slot, step] : head.learner_steps) {
    const int64_t newest = slot < checkpoint_steps.size() ? checkpoint_steps[slot] : -1;
    if (step > newest)
      return fmt::format("its learner had taken {} steps, the newest checkpoint is of step {}",
                         step, newest);
  }
  return {};
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
  for (const auto& path : list_cuts(folder)) {
    ASSIGN_OR_RETURN(const CutHead head, read_cut_head(path));
    if (head.number != 0) continue;
    if (head.state_hash != state_hash(plan))
      return error(Code::kInvalid, "the saved state '{}' is of another graph or program",
                   path.filename().string())
          .note("replay it with the program that recorded it");
    ASSIGN_OR_RETURN(CutFile file, read_cut(path));
    files.push_back(std::move(file));
  }
  return cuts_of(plan, files);
}

namespace {

struct NamedHead {
  std::filesystem::path path;
  CutHead head;
};

/// Cuts of which the record has all steps that come after.
std::vector<NamedHead> cuts_within(const Plan& plan, const Trace& trace,
                                   std::span<const std::filesystem::path> folders) {
  std::vector<NamedHead> found;
  // By GroupId: where the next start went on. What an older one holds behind it is of no record.
  std::vector<uint64_t> ends(plan.groups.size(), UINT64_MAX);
  const uint64_t hash = state_hash(plan);
  for (size_t start = folders.size(); start-- > 0;) {
    std::vector<uint64_t> begins = ends;
    for (const auto& path : list_cuts(folders[start])) {
      const auto head = read_cut_head(path);
      if (!head.ok() || head->state_hash != hash) continue;
      bool is_within = true;
      for (const auto& [index, step] : head->steps) {
        if (index >= plan.groups.size()) return {};  // of another graph, by a hash that is equal
        const GroupId group(index);
        is_within = is_within && step <= ends[index] && step <= trace.last_step(group) &&
                    trace.first_step(group) <= step + 1;
        if (head->number == 0) begins[index] = std::min(begins[index], step);
      }
      if (is_within) found.push_back({path, *head});
    }
    ends = std::move(begins);
  }
  return found;
}

bool is_before(const CutHead& head, const RunMoment& moment) {
  if (moment.step == 0)
    return std::any_of(head.learner_steps.begin(), head.learner_steps.end(), [&](const auto& of) {
      return of.first == 0 && of.second < moment.training_step;
    });
  return std::any_of(head.steps.begin(), head.steps.end(), [&](const auto& of) {
    return of.first == moment.group.value && of.second < moment.step;
  });
}

}  // namespace

std::vector<CutFile> cuts_before(const Plan& plan, const Trace& trace,
                                 std::span<const std::filesystem::path> folders,
                                 const RunMoment& moment) {
  const std::vector<NamedHead> all = cuts_within(plan, trace, folders);
  std::optional<Time> at;
  for (const NamedHead& each : all)
    if (is_before(each.head, moment)) at = std::max(at.value_or(each.head.at), each.head.at);
  if (!at) return {};
  std::vector<CutFile> files;
  for (const auto& process : plan.processes) {
    const NamedHead* newest = nullptr;
    for (const NamedHead& each : all) {
      if (each.head.process != process.name || each.head.at > *at) continue;
      if (newest == nullptr || each.head.at > newest->head.at) newest = &each;
    }
    if (newest == nullptr) continue;
    auto file = read_cut(newest->path);
    if (file.ok()) files.push_back(std::move(file).value());
  }
  return files;
}

CutChoice choose_cuts(const Plan& plan, const std::filesystem::path& record, uint64_t run_id,
                      std::span<const int64_t> checkpoint_steps,
                      const std::map<std::string, std::string>& unfit) {
  CutChoice choice;
  CutHead wanted;
  wanted.run_id = run_id;
  wanted.program_version = program_text(*plan.catalog);
  wanted.state_hash = state_hash(plan);
  for (const auto& process : plan.processes) {
    wanted.process = process.name;
    for (const auto& path : list_cuts(record, process.name)) {
      const auto known = unfit.find(path.string());
      auto file = read_cut(path);
      const std::string fault = known != unfit.end() ? known->second
                                : file.ok() ? fault_of(file->head, wanted, checkpoint_steps)
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
