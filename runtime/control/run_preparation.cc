#include "runtime/control/run_preparation.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <ctime>

#include "graph/base/real_clock.h"
#include "runtime/monitor/metrics_log.h"
#include "runtime/store/checkpoint.h"
#include "runtime/store/step_lines.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// The run folder a checkpoint folder lies in, or nothing.
fs::path run_folder_above(const fs::path& checkpoint) {
  fs::path folder = checkpoint;
  for (int level = 0; level < 3; ++level) {  // step_N, [tenant,] checkpoints
    folder = folder.parent_path();
    if (is_there(folder / "run.json")) return folder;
  }
  return {};
}

/// Whether the run was cut off before an actor had done anything.
bool is_untouched(const fs::path& run_folder) {
  for (const char* file : {"metrics.jsonl", "rollouts.jsonl"}) {
    std::error_code none;
    const auto size = fs::file_size(run_folder / file, none);
    if (!none && size > 0) return false;
  }
  return true;
}

/// Looks at every byte of them, once.
const std::vector<FoundCheckpoints>& checkpoints_of(const fs::path& run_folder, const Plan& plan,
                                                    ResumeChoice& choice) {
  if (choice.found.empty())
    for (const auto& tenant : plan.tenants)
      choice.found.push_back(
          find_checkpoints(checkpoints_folder(run_folder, tenant.name, plan.tenants.size()),
                           CheckpointDepth::kContents));
  return choice.found;
}

/// The id that all files of a run carry; 0 when run.json does not say.
uint64_t run_id_of(const fs::path& run_folder) {
  const auto text = read_text_file(run_folder / "run.json");
  const auto facts = text.ok() ? parse_json(*text, "run.json") : Result<Json>(text.error());
  const auto digits = facts.ok() ? facts->get_string("run_id") : Result<std::string>(facts.error());
  uint64_t id = 0;
  if (digits.ok()) std::from_chars(digits->data(), digits->data() + digits->size(), id, 16);
  return id;
}

/// A record, with the cuts from which it is followed.
struct OpenRecord {
  std::shared_ptr<const Trace> trace;
  RunCuts cuts;
  std::vector<std::string> paths;  // of the cuts

  uint64_t last_step(GroupId group) const {
    return std::max(trace->last_step(group), cuts.first_step(group) - 1);
  }
};

/// From the newest cuts, when every process that follows has one that fits; else from the first
/// step.
Result<OpenRecord> open_record(const fs::path& folder, const Plan& plan, ResumeChoice& choice) {
  OpenRecord record;
  std::vector<int64_t> steps;
  for (const auto& found : checkpoints_of(choice.run_folder, plan, choice))
    steps.push_back(found.newest ? found.newest->step : -1);
  CutChoice chosen = choose_cuts(plan, folder, run_id_of(choice.run_folder), steps);
  for (auto& note : chosen.notes) choice.notes.push_back(std::move(note));
  if (!chosen.files.empty()) {
    std::vector<CutHead> heads;
    for (const CutFile& file : chosen.files) heads.push_back(file.head);
    RunCuts cuts = cuts_of(plan, chosen.files);
    auto trace = Trace::open(folder, heads);
    const Status fits = trace.ok() ? Recovery::check(plan, **trace, cuts) : Status(trace.error());
    if (fits.ok()) return OpenRecord{*std::move(trace), std::move(cuts), std::move(chosen.paths)};
  }
  ASSIGN_OR_RETURN(record.trace, Trace::open(folder));
  return record;
}

Status read_points(const fs::path& run_folder, const Plan& plan, ResumeChoice& choice) {
  for (const auto& tenant : plan.tenants) {
    const auto folder = checkpoints_folder(run_folder, tenant.name, plan.tenants.size());
    auto found = checkpoints_of(run_folder, plan, choice)[tenant.slot.index()];
    for (auto& note : found.ignored) choice.notes.push_back(std::move(note));
    if (!found.newest && !choice.record.empty()) {
      choice.points.clear();  // all steps are taken again
      return ok();
    }
    if (!found.newest && is_untouched(run_folder)) {
      choice.notes.push_back("nothing had been done yet: it starts with the first step");
      choice.points.clear();
      return ok();
    }
    if (!found.newest)
      return error(Code::kNotFound, "no complete checkpoint of tenant '{}' in '{}'", tenant.name,
                   folder.string())
          .note("start a new run without --resume");
    choice.points.push_back(std::move(*found.newest));
  }
  return ok();
}

/// `trace/`; if the last start died before it made one, the record of the start before. A start
/// that was not recorded at all is never skipped.
fs::path newest_record(const fs::path& run_folder) {
  const fs::path newest = run_folder / "trace";
  if (is_there(newest)) return newest;
  const auto text = read_text_file(run_folder / "run.json");
  const auto facts = text.ok() ? parse_json(*text, "run.json") : Result<Json>(text.error());
  if (!facts.ok() || facts->find("trace") == nullptr || facts->find("trace")->is_null())
    return newest;
  const auto incarnation = facts->get_int("incarnation");
  for (int64_t before = incarnation.ok() ? *incarnation : 0; before > 0; --before)
    if (const fs::path aside = run_folder / fmt::format("trace.{}", before); is_there(aside))
      return aside;
  return newest;
}

/// Whether a start that followed `older` was cut off before the end of that record. Actor groups of
/// processes that died are left out: they start again and count their steps from 1.
bool was_cut_while_following(const Plan& plan, const OpenRecord& newer, const OpenRecord& older) {
  if (!check_fits(plan, newer.trace->catalog()).ok() ||
      !check_fits(plan, older.trace->catalog()).ok())
    return false;
  const auto was_absent = absent_groups(plan, *older.trace, older.cuts);
  const auto is_absent = absent_groups(plan, *newer.trace, newer.cuts);
  for (uint32_t i = 0; i < plan.groups.size(); ++i) {
    if (was_absent[i] || is_absent[i]) continue;
    if (newer.last_step(GroupId(i)) < older.last_step(GroupId(i))) return true;
  }
  return false;
}

/// A record is followed to its end, so `max_steps` must lie beyond it. With unchanged options it
/// does.
Status check_recorded_steps(const Plan& plan, const ResumeChoice& choice) {
  if (!choice.has_other_options) return ok();
  ASSIGN_OR_RETURN(auto steps, newest_steps(choice.run_folder / "metrics.jsonl"));
  for (const auto& file : find_step_lines(choice.run_folder / "logs")) {
    ASSIGN_OR_RETURN(const auto later, newest_steps(file));
    for (const auto& [tenant, step] : later) steps[tenant] = std::max(steps[tenant], step);
  }
  for (size_t slot = 0; slot < plan.tenants.size(); ++slot) {
    const Tenant& tenant = plan.tenants[slot];
    const int64_t step = steps[tenant.name];
    if (step < tenant.max_steps) continue;
    Error fault = error(Code::kInvalid, "tenant '{}' has recorded {} steps, max_steps asks for {}",
                        tenant.name, step, tenant.max_steps)
                      .note(fmt::format("go on with --max-steps {} or more", step + 1));
    if (slot >= choice.points.size() || choice.points[slot].step >= tenant.max_steps) return fault;
    return std::move(fault).note(
        fmt::format("or go back with --from-checkpoint, to what step {} had left behind",
                    choice.points[slot].step));
  }
  return ok();
}

}  // namespace

Result<ResumeChoice> read_resume(const std::string& resume) {
  ResumeChoice choice;
  if (resume.empty()) return choice;
  std::error_code fault;
  const fs::path folder = fs::canonical(resume, fault);
  if (fault) return error(Code::kNotFound, "--resume: no folder '{}'", resume);
  if (is_there(folder / "manifest.json")) {
    const fs::path above = run_folder_above(folder);
    if (!above.empty()) choice.graph_file = above / "graph.resolved.toml";
    return choice;
  }
  if (!is_there(folder / "run.json"))
    return error(Code::kInvalid, "--resume: '{}' is neither a run folder nor a checkpoint", resume)
        .note("give runs/<run> or runs/<run>/checkpoints/step_N");
  choice.run_folder = folder;
  choice.graph_file = folder / "graph.resolved.toml";
  return choice;
}

void choose_record(const RunPlace& place, const Plan& plan, ResumeChoice& choice) {
  if (choice.run_folder.empty() || !place.out.empty() || place.from_checkpoint) return;
  const auto leave = [&choice](const std::string& why) {
    choice.notes.push_back("going on from the checkpoint alone: " + why);
  };
  auto opened = open_record(newest_record(choice.run_folder), plan, choice);
  if (!opened.ok()) {
    if (opened.error().code() != Code::kNotFound) leave(opened.error().text());
    return;
  }
  auto* trace = &opened->trace;
  fs::path record = (*trace)->folder();
  // A start that was itself cut off while it followed an older record holds less than that one.
  if (const std::string followed = (*trace)->catalog().recovers; !followed.empty()) {
    const fs::path before = choice.run_folder / followed;
    if (auto older = open_record(before, plan, choice); older.ok()) {
      const bool is_longer = was_cut_while_following(plan, *opened, *older);
      // What went before a cut is in the older record alone.
      choice.superseded = is_longer ? record : opened->cuts.empty() ? before : fs::path();
      if (is_longer) record = before;
      if (is_longer) opened = std::move(older);
      trace = &opened->trace;
    }
  }
  if ((*trace)->is_closed() || ((*trace)->num_steps() == 0 && opened->cuts.empty())) {
    choice.superseded.clear();
    return;
  }
  const Status fits = Recovery::check(plan, **trace, opened->cuts);
  if (fits.ok()) {
    choice.cuts = opened->paths;
    choice.record = record;
    choice.has_other_options = (*trace)->catalog().graph_hash != plan.graph_hash;
    choice.absent = Recovery::absent_processes(plan, **trace, opened->cuts);
    choice.begun_from = (*trace)->catalog().resumed_from;
    return;
  }
  choice.superseded.clear();
  leave(fits.error().text());
}

Status choose_checkpoints(const std::string& resume, const Plan& plan, ResumeChoice& choice) {
  if (resume.empty()) return ok();
  if (!choice.run_folder.empty()) {
    RETURN_IF_ERROR(read_points(choice.run_folder, plan, choice));
  } else {
    if (plan.tenants.size() != 1)
      return error(Code::kInvalid, "a graph of {} tenants cannot resume from one checkpoint",
                   plan.tenants.size())
          .note("give the run folder instead");
    std::error_code fault;
    ASSIGN_OR_RETURN(auto point,
                     read_checkpoint(fs::canonical(resume, fault), CheckpointDepth::kContents));
    choice.points.push_back(std::move(point));
  }
  if (!choice.record.empty()) return check_recorded_steps(plan, choice);
  if (choice.points.empty()) return ok();  // nothing was done yet: all steps are left
  for (size_t slot = 0; slot < plan.tenants.size(); ++slot) {
    const int64_t step = choice.points[slot].step, max_steps = plan.tenants[slot].max_steps;
    if (step >= max_steps)
      return error(Code::kInvalid, "tenant '{}' has already taken {} of {} steps",
                   plan.tenants[slot].name, step, max_steps)
          .note(fmt::format("go on with --max-steps {} or more", step + 1));
  }
  return ok();
}

Result<std::unique_ptr<RunFolder>> make_run_folder(const std::string& out, ResumeChoice& choice,
                                                   const Plan& plan) {
  std::unique_ptr<RunFolder> folder;
  if (!choice.run_folder.empty() && out.empty()) {
    ASSIGN_OR_RETURN(folder, RunFolder::open(choice.run_folder));
    std::error_code ignored;  // what stays only takes space
    if (!choice.superseded.empty()) fs::remove_all(choice.superseded, ignored);
    ASSIGN_OR_RETURN(const fs::path aside, folder->set_trace_aside());
    if (choice.record == folder->trace_folder()) {
      choice.record = aside;
      for (auto& cut : choice.cuts) cut = (aside / fs::path(cut).filename()).string();
    }
  } else {
    ASSIGN_OR_RETURN(folder,
                     RunFolder::create(".", out, plan.settings.name, folder_time(wall_seconds())));
  }
  RETURN_IF_ERROR(folder->write_graph(plan.resolved_toml));
  return folder;
}

}  // namespace primerl
