/// RunPreparation: everything that a run needs to know before it creates anything: the graph, the
/// checkpoints, the folder.
///
/// `--resume DIR`, where DIR is
///   a run folder     continues in it: files are appended to, the newest complete checkpoint
///   counts;
///                    with --out the new run gets that folder instead
///   a checkpoint     checkpoints/step_N: a new run folder, so that no later checkpoint of the old
///                    run is mistaken for one of this run
///
/// `--fork RUN@step=N`: a new run that begins after step N of RUN (fork.h). Groups that no batch
/// had consumed begin again, with their tasks and seeds.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/base/services.h"
#include "graph/plan.h"
#include "runtime/control/changed_values.h"
#include "runtime/control/run_lifecycle.h"
#include "runtime/replay/follow_file.h"
#include "runtime/store/checkpoint.h"
#include "runtime/store/run_folder.h"

namespace primerl {

struct Remake;  // runtime/replay/remade_checkpoint.h

/// Options of the command line: the folder of a run and where it resumes.
struct RunPlace {
  std::string out;               // the run's folder; "": one with a new name
  std::string resume;            // a run folder or a checkpoint; "": a new run
  std::string fork;              // RUN@step=N; "": no fork
  bool from_checkpoint = false;  // do not follow the record
};

/// The point where a run resumes. Empty for a new run.
struct ResumeChoice {
  std::filesystem::path run_folder;  // the folder to resume in; empty: a new one
  std::filesystem::path graph_file;  // the resolved graph of the resumed run
  bool is_served = false;            // tenants come and go (`serve`)
  std::filesystem::path fork_of;     // the run folder that is forked; empty: none
  int64_t fork_step = 0;
  /// In a fork: numbers of the tenants that had joined the other run, by name (forked_graph.h).
  std::map<std::string, uint32_t> fork_tenancies;
  std::shared_ptr<const void> made_graph_file;  // removes graph_file, if it was made for the fork
  /// Index = tenant slot: checkpoints of a fork that are made again; null: it exists, or the tenant
  /// has none.
  std::vector<std::shared_ptr<const Remake>> remakes;
  /// Index = tenant slot; filled by choose_checkpoints(). A point has no folder if a
  /// record is followed from the tenant's first step. Empty if no tenant has a checkpoint.
  std::vector<ResumePoint> points;
  FollowFile follow;  // filled by choose_record(); if its `record` is empty, no record is followed
  std::filesystem::path follow_file;          // file with `follow`, once there is a run folder
  bool has_other_options = false;             // the record has the same graph with other options
  std::map<std::string, int64_t> last_steps;  // last step of each tenant in the record
  std::filesystem::path superseded;           // an older record that the followed record contains
                                              // completely
  std::vector<std::string> notes;             // incomplete checkpoints that were skipped
  std::vector<FoundCheckpoints> found;        // by tenant slot; filled by choose_record()
  std::vector<ChangedValue> changed;          // changes since the start that wrote graph_file
};

/// Reads what `--resume` or `--fork` names; without either, the choice is empty.
Result<ResumeChoice> read_resume(const RunPlace& place);

/// Finds the record of an interrupted start if it can be followed; otherwise a note says why not.
void choose_record(const RunPlace& place, const Plan& plan, ResumeChoice& choice);

/// Finds every tenant's checkpoint. The error names what is missing and what to do.
Status choose_checkpoints(const RunPlace& place, const Plan& plan, ResumeChoice& choice);

/// Makes the run folder, or uses `taken`, and writes the resolved graph into it; an earlier
/// trace there is renamed (RunFolder::set_trace_aside()), and choice.record is updated. Checkpoints
/// of another run are copied into it or made again there. kCancelled: Ctrl-C came meanwhile.
Result<std::unique_ptr<RunFolder>> make_run_folder(const std::string& out,
                                                   std::unique_ptr<RunFolder> taken,
                                                   ResumeChoice& choice, const Plan& plan);

/// Whether a start that failed had done nothing of its own, for example because the learner does
/// not accept the checkpoint. It may have repeated steps of a record.
bool was_refused(const RunFolder& folder, const RunEnding& ending);

}  // namespace primerl
