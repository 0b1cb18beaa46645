#include "runtime/control/run_preparation.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <ctime>
#include <map>

#include "graph/base/real_clock.h"
#include "graph/tenancies.h"
#include "runtime/control/fork.h"
#include "runtime/control/resume_checks.h"
#include "runtime/replay/traced_resources.h"
#include "runtime/store/checkpoint.h"
#include "runtime/store/step_lines.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// The run folder that contains a checkpoint folder, or nothing.
fs::path run_folder_above(const fs::path& checkpoint) {
  fs::path folder = checkpoint;
  for (int level = 0; level < 3; ++level) {  // step_N, [tenant,] checkpoints
    folder = folder.parent_path();
    if (is_there(folder / "run.json")) return folder;
  }
  return {};
}

/// Whether the run was interrupted before any actor had done anything.
bool is_untouched(const fs::path& run_folder) {
  for (const char* file : {"metrics.jsonl", "rollouts.jsonl"}) {
    std::error_code none;
    const auto size = fs::file_size(run_folder / file, none);
    if (!none && size > 0) return false;
  }
  // With several tenants the folder is created with its first line.
  return !is_there(run_folder / "rollouts");
}

/// Checks every byte of the checkpoints, once.
const std::vector<FoundCheckpoints>& checkpoints_of(const fs::path& run_folder, const Plan& plan,
                                                    ResumeChoice& choice) {
  if (choice.found.empty())
    for (const auto& tenant : plan.tenants)
      choice.found.push_back(find_checkpoints(
          checkpoints_folder(run_folder, tenancy_name(tenant), plan.layout_tenants()),
          CheckpointDepth::kContents));
  return choice.found;
}

/// The id that all files of a run have; 0 if run.json has none.
uint64_t run_id_of(const fs::path& run_folder) {
  const auto text = read_text_file(run_folder / "run.json");
  const auto facts = text.ok() ? parse_json(*text, "run.json") : Result<Json>(text.error());
  const auto digits = facts.ok() ? facts->get_string("run_id") : Result<std::string>(facts.error());
  uint64_t id = 0;
  if (digits.ok()) std::from_chars(digits->data(), digits->data() + digits->size(), id, 16);
  return id;
}

/// A record, with the cuts and the checkpoints from which it is followed.
struct OpenRecord {
  RecordPrefix prefix;
  RunCuts cuts;
  std::vector<CutHead> heads;                 // of the cuts
  std::vector<std::string> paths;             // of the cuts
  std::vector<FoundCheckpoints> found;        // by tenant slot
  std::map<std::string, int64_t> last_steps;  // last followed step, by tenant
  std::vector<std::string> notes;
  Status fits = ok();  // why the record cannot be followed

  const Trace& trace() const { return *prefix.trace; }
  uint64_t last_step(GroupId group) const {
    return std::max(trace().last_step(group), cuts.first_step(group) - 1);
  }
};

/// Skips checkpoints that are newer than the last training step in the remaining record. False:
/// there are none of those.
Result<bool> skip_newer_checkpoints(const fs::path& run_folder, const Plan& plan,
                                    OpenRecord& record) {
  ASSIGN_OR_RETURN(const auto taken, learner_steps_in(plan, record.trace(), record.cuts));
  const auto& begun_from = record.trace().catalog().resumed_from;
  bool passes_over = false;
  for (const auto& tenant : plan.tenants) {
    const size_t slot = tenant.slot.index();
    FoundCheckpoints& found = record.found[slot];
    int64_t step = taken[slot];
    if (slot < begun_from.size() && begun_from[slot] != kNoCheckpoint) {
      ASSIGN_OR_RETURN(const auto begun,
                       read_checkpoint(begun_from[slot], CheckpointDepth::kSizes));
      step += begun.step;
    }
    record.last_steps[tenant.name] = step;
    if (!found.newest || found.newest->step <= step) continue;
    auto note = fmt::format("the checkpoint of step {} is newer than the remaining record",
                            found.newest->step);
    const auto folder = checkpoints_folder(run_folder, tenancy_name(tenant), plan.layout_tenants());
    found = find_checkpoints(folder, CheckpointDepth::kContents, step);
    found.ignored.insert(found.ignored.begin(), std::move(note));
    passes_over = true;
  }
  return passes_over;
}

/// From the newest cuts that are not in `unfit`, or from the first step.
Status open_record(const fs::path& folder, const Plan& plan, const fs::path& run_folder,
                   bool from_cuts, const std::map<std::string, std::string>& unfit,
                   OpenRecord& record) {
  std::vector<int64_t> steps;
  for (const auto& found : record.found) steps.push_back(found.newest ? found.newest->step : -1);
  CutChoice chosen;
  if (from_cuts) {
    chosen = choose_cuts(plan, folder, run_id_of(run_folder), steps, unfit);
    record.notes = std::move(chosen.notes);
  }
  record.paths = std::move(chosen.paths);
  record.cuts = cuts_of(plan, chosen.files);
  record.heads.clear();
  for (const CutFile& file : chosen.files) record.heads.push_back(file.head);
  ASSIGN_OR_RETURN(auto trace, Trace::open(folder, {.from = record.heads, .processes = {}}));
  ASSIGN_OR_RETURN(record.prefix, prefix_to_follow(plan, std::move(trace), record.cuts));
  return ok();
}

/// Opens a record from the newest cuts that fit each other and the checkpoints; otherwise from the
/// first step. An error without a record.
Result<OpenRecord> open_record(const fs::path& folder, const Plan& plan, ResumeChoice& choice) {
  OpenRecord record;
  record.found = checkpoints_of(choice.run_folder, plan, choice);
  std::map<std::string, std::string> unfit;
  // Each turn skips one more cut or checkpoint.
  for (bool from_cuts = true;;) {
    const Status opened = open_record(folder, plan, choice.run_folder, from_cuts, unfit, record);
    if (!opened.ok() && from_cuts) {
      from_cuts = false;
      continue;
    }
    if (!opened.ok()) {
      record.fits = opened.error();
      record.prefix = {};
      record.prefix.is_absent.assign(plan.groups.size(), false);
      ASSIGN_OR_RETURN(record.prefix.trace, Trace::open(folder));
      return record;
    }
    const auto& newer = record.prefix.newer_cuts;
    for (size_t i = 0; i < record.heads.size(); ++i)
      for (const ProcessId process : newer)
        if (plan.process(process).name == record.heads[i].process)
          unfit[record.paths[i]] = "it is newer than the remaining record of another process";
    if (!newer.empty()) continue;
    ASSIGN_OR_RETURN(const bool changes, skip_newer_checkpoints(choice.run_folder, plan, record));
    if (!changes) return record;
  }
}

Status read_points(const fs::path& run_folder, const Plan& plan, ResumeChoice& choice) {
  const auto& of_all = checkpoints_of(run_folder, plan, choice);
  const bool has_any = std::ranges::any_of(
      of_all, [](const FoundCheckpoints& found) { return found.newest.has_value(); });
  for (const auto& tenant : plan.tenants) {
    const auto folder = checkpoints_folder(run_folder, tenancy_name(tenant), plan.layout_tenants());
    auto found = checkpoints_of(run_folder, plan, choice)[tenant.slot.index()];
    for (auto& note : found.ignored) choice.notes.push_back(std::move(note));
    if (!found.newest && !choice.follow.record.empty()) {
      choice.points.emplace_back();  // all steps of the tenant are made again
      continue;
    }
    if (!found.newest && has_any) {
      choice.notes.push_back(
          fmt::format("tenant '{}' has no complete checkpoint: it starts from step 1 with a fresh "
                      "adapter; the others continue from their checkpoints",
                      tenant.name));
      choice.points.emplace_back();
      continue;
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
  const auto is_none = [](const ResumePoint& point) { return point.folder.empty(); };
  if (std::ranges::all_of(choice.points, is_none)) choice.points.clear();
  return ok();
}

/// `trace/`. If the last start died before it recorded anything, the record of the start before it.
/// A start without recording enabled is never skipped.
fs::path newest_record(const fs::path& run_folder) {
  const fs::path newest = run_folder / "trace";
  if (has_record(newest)) return newest;
  const auto text = read_text_file(run_folder / "run.json");
  const auto facts = text.ok() ? parse_json(*text, "run.json") : Result<Json>(text.error());
  if (!facts.ok() || facts->find("trace") == nullptr || facts->find("trace")->is_null())
    return newest;
  const auto incarnation = facts->get_int("incarnation");
  for (int64_t before = incarnation.ok() ? *incarnation : 0; before > 0; --before)
    if (const fs::path aside = run_folder / fmt::format("trace.{}", before); has_record(aside))
      return aside;
  return newest;
}

/// Whether the last start has reported its end and has not failed. After a failure a checkpoint may
/// be newer than a line that another process could not write.
bool has_ended_well(const fs::path& run_folder) {
  const auto text = read_text_file(run_folder / "run.json");
  const auto facts = text.ok() ? parse_json(*text, "run.json") : Result<Json>(text.error());
  const auto end = facts.ok() ? facts->get_string("end") : Result<std::string>(facts.error());
  return end.ok() && *end != "failed" && *end != "running";
}

/// Whether a start that followed `older` was interrupted before the end of that record. Actor
/// groups of processes that died are ignored, because they restart and count their steps from 1.
bool was_cut_while_following(const Plan& plan, const OpenRecord& newer, const OpenRecord& older) {
  if (!check_fits(plan, newer.trace().catalog()).ok()) return false;
  for (uint32_t i = 0; i < plan.groups.size(); ++i) {
    if (older.prefix.is_absent[i] || newer.prefix.is_absent[i]) continue;
    if (newer.last_step(GroupId(i)) < older.last_step(GroupId(i))) return true;
  }
  return false;
}

/// Whether the record has more training steps to follow than the newest checkpoints. Then the run
/// failed or was stopped at once, because an orderly end writes a checkpoint.
bool is_beyond_checkpoints(const Plan& plan, const OpenRecord& record,
                           std::span<const FoundCheckpoints> newest) {
  for (const auto& tenant : plan.tenants) {
    const auto last = record.last_steps.find(tenant.name);
    const auto& found = newest[tenant.slot.index()].newest;
    if (last != record.last_steps.end() && last->second > (found ? found->step : 0)) return true;
  }
  return false;
}

}  // namespace

Result<ResumeChoice> read_resume(const RunPlace& place) {
  if (!place.fork.empty() && (!place.resume.empty() || place.from_checkpoint))
    return error(Code::kInvalid, "--fork begins a new run: leave {} out",
                 place.resume.empty() ? "--from-checkpoint" : "--resume");
  if (!place.fork.empty()) return read_fork(place.fork);
  const std::string& resume = place.resume;
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
    choice.notes.push_back("resuming from the checkpoint only: " + why);
  };
  auto opened = open_record(newest_record(choice.run_folder), plan, choice);
  if (!opened.ok()) {
    const bool has_none = opened.error().code() == Code::kNotFound;
    const bool may_have_none = !plan.trace.is_on() || is_untouched(choice.run_folder);
    if (!has_none || !may_have_none) leave(opened.error().text());
    return;
  }
  fs::path record = opened->trace().folder();
  // A start that was interrupted while it followed an older record has less than that record.
  if (const std::string followed = opened->trace().catalog().recovers; !followed.empty()) {
    const fs::path before = choice.run_folder / followed;
    if (auto older = open_record(before, plan, choice); older.ok() && older->fits.ok()) {
      const bool is_longer = was_cut_while_following(plan, *opened, *older);
      // Steps before a cut are only in the older record.
      choice.superseded = is_longer ? record : opened->cuts.empty() ? before : fs::path();
      if (is_longer) record = before;
      if (is_longer) opened = std::move(older);
    }
  }
  const Trace& trace = opened->trace();
  const bool is_empty = trace.num_steps() == 0 && opened->cuts.empty();
  const bool has_other_options = trace.catalog().graph_hash != plan.graph_hash;
  const bool has_steps_left =
      !has_ended_well(choice.run_folder) || is_beyond_checkpoints(plan, *opened, choice.found);
  const bool is_done =
      trace.is_closed() && (!has_steps_left || has_reached_max_steps(trace.catalog().graph_text,
                                                                     plan, opened->last_steps));
  if (is_done || is_empty || !opened->fits.ok()) choice.superseded.clear();
  if (is_done) return;
  // A start that died before its first step has added nothing to its checkpoint.
  if (is_empty &&
      (trace.is_closed() || died_before_first_step(record) || is_untouched(choice.run_folder)))
    return;
  if (is_empty) return leave("no step is left in its record");
  for (auto& note : opened->notes) choice.notes.push_back(std::move(note));
  if (!opened->fits.ok()) return leave(opened->fits.error().text());
  if (!opened->prefix.dropped.empty()) choice.notes.push_back(opened->prefix.dropped);
  choice.found = std::move(opened->found);
  choice.has_other_options = has_other_options;
  choice.last_steps = std::move(opened->last_steps);
  FollowFile& follow = choice.follow;
  follow.record = record;
  follow.cuts = std::move(opened->paths);
  for (uint32_t i = 0; i < plan.groups.size(); ++i)
    follow.last_steps.push_back(opened->last_step(GroupId(i)));
  follow.absent = opened->prefix.absent;
  follow.ended = opened->prefix.ended;
  follow.incarnation = opened->prefix.incarnation;
  follow.resumed_from = trace.catalog().resumed_from;
  follow.bytes_before = trace.catalog().bytes_before;
  follow.zero_ns = trace.catalog().zero_ns;
  follow.wall_zero_seconds = trace.catalog().wall_zero_seconds;
}

Status choose_checkpoints(const RunPlace& place, const Plan& plan, ResumeChoice& choice) {
  const std::string& resume = place.resume;
  if (resume.empty() && choice.fork_of.empty()) return ok();
  if (!choice.fork_of.empty()) {
    RETURN_IF_ERROR(choose_fork_points(plan, choice));
  } else if (!choice.run_folder.empty()) {
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
  RETURN_IF_ERROR(check_environments(plan, choice));
  if (choice.is_served) return ok();  // a tenant without steps left ends, and the run does not
  if (!choice.follow.record.empty()) return check_recorded_steps(plan, choice);
  if (choice.points.empty()) return ok();  // nothing was done yet: all steps are left
  return check_steps_left(plan, choice);
}

bool was_refused(const RunFolder& folder, const RunEnding& ending) {
  if (ending.has_lost_worker) return false;
  return ending.was_following || !is_there(folder.trace_folder()) ||
         died_before_first_step(folder.trace_folder());
}

Result<std::unique_ptr<RunFolder>> make_run_folder(const std::string& out,
                                                   std::unique_ptr<RunFolder> taken,
                                                   ResumeChoice& choice, const Plan& plan) {
  std::unique_ptr<RunFolder> folder = std::move(taken);
  const bool is_new = folder == nullptr;
  if (!is_new) {
    RETURN_IF_ERROR(folder->remember());
    std::error_code ignored;  // remaining files only use space
    if (!choice.superseded.empty()) fs::remove_all(choice.superseded, ignored);
    // Removes the trace folder of a start that died at once.
    if (!has_record(folder->trace_folder())) fs::remove_all(folder->trace_folder(), ignored);
    ASSIGN_OR_RETURN(const fs::path aside, folder->set_trace_aside());
    FollowFile& follow = choice.follow;
    if (follow.record == folder->trace_folder()) {
      follow.record = aside;
      for (auto& cut : follow.cuts) cut = (aside / fs::path(cut).filename()).string();
    }
    if (!follow.record.empty()) {
      ASSIGN_OR_RETURN(choice.follow_file, write_follow_file(follow));
    }
    const auto bytes_max = static_cast<uint64_t>(plan.trace.bytes_max);
    for (const fs::path& gone : folder->remove_oldest_traces(bytes_max, follow.record))
      choice.notes.push_back(fmt::format(
          "'{}' is removed: the record of earlier starts is larger than {} bytes (trace.bytes_max)",
          gone.filename().string(), bytes_max));
  } else {
    ASSIGN_OR_RETURN(folder,
                     RunFolder::create(".", out, plan.settings.name, folder_time(wall_seconds())));
  }
  RETURN_IF_ERROR(folder->write_graph(plan.resolved_toml));
  RETURN_IF_ERROR(make_fork_checkpoints(plan, *folder, choice));
  // The other run may remove them; this one must not depend on it.
  for (size_t slot = 0; is_new && slot < choice.points.size(); ++slot) {
    ResumePoint& point = choice.points[slot];
    const fs::path own =
        checkpoints_folder(folder->path(), tenancy_name(plan.tenants[slot]), plan.layout_tenants());
    if (point.folder.empty() || point.folder.parent_path() == own) continue;
    const fs::path kept = own / fmt::format("step_{}", point.step);
    RETURN_IF_ERROR(take_over_checkpoint(point.folder, kept));
    choice.notes.push_back(
        fmt::format("it begins from a checkpoint of another run, '{}'", point.folder.string()));
    point.folder = kept;
  }
  return folder;
}

}  // namespace primerl
