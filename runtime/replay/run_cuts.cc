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
