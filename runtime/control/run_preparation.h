/// RunPreparation: everything a run needs to know before it makes anything: which graph, from which
/// checkpoints, in which folder.
///
/// `--resume DIR`, DIR being
///   a run folder     goes on in it: files are appended to, the newest complete checkpoint counts;
///                    with --out the new run gets that folder of its own
///   a checkpoint     checkpoints/step_N: a new run folder, so that no later checkpoint of the old
///                    run is mistaken for one of this run
/// A run folder whose last start was cut off is resumed from its record, as far as that is whole:
/// no finished work is done again, and with the checkpoint the learner need not repeat its older
/// steps. Otherwise, or with --from-checkpoint, the run resumes from the newest complete
/// checkpoint. GRAPH may be left out: the resolved graph of that run is used again.
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
#include "runtime/replay/follow_file.h"
#include "runtime/store/checkpoint.h"
#include "runtime/store/run_folder.h"

namespace primerl {

struct Remake;  // runtime/replay/remade_checkpoint.h

/// What the command line says about the folder of a run and where it resumes.
struct RunPlace {
  std::string out;               // the folder of the run; "": one with a new name
  std::string resume;            // a run folder or a checkpoint; "": a new run
  std::string fork;              // RUN@step=N; "": no fork
  bool from_checkpoint = false;  // do not follow the record
};

/// Where a run resumes. Empty for a new run.
struct ResumeChoice {
  std::filesystem::path run_folder;  // to resume in; empty = a new one
  std::filesystem::path graph_file;  // the resolved graph of that run
  std::filesystem::path fork_of;     // the run folder that is forked; empty: none
  int64_t fork_step = 0;
  /// Index = tenant slot: checkpoints of a fork that are made again; null: it is there, or none is.
  std::vector<std::shared_ptr<const Remake>> remakes;
  /// Index = tenant slot; filled by choose_checkpoints(). Without a folder where a record is
  /// followed from the tenant's first step; empty where nobody has a checkpoint.
  std::vector<ResumePoint> points;
  FollowFile follow;  // filled by choose_record(); without `record`: no record is followed
  std::filesystem::path follow_file;          // `follow`, once there is a run folder
  bool has_other_options = false;             // the record is of the same graph with other options
  std::map<std::string, int64_t> last_steps;  // of the record, by tenant
  std::filesystem::path superseded;           // a record that it contains completely
  std::vector<std::string> notes;             // incomplete checkpoints that were skipped
  std::vector<FoundCheckpoints> found;        // by tenant slot; filled by choose_record()
  std::vector<ChangedValue> changed;          // since the start that left graph_file
};

/// Says what `--resume` or `--fork` names; without either it is an empty choice.
Result<ResumeChoice> read_resume(const RunPlace& place);

/// Finds the record of a start that was cut off, if it can be followed; a note says why not.
void choose_record(const RunPlace& place, const Plan& plan, ResumeChoice& choice);

/// Finds every tenant's checkpoint; the error names what is missing and what to do.
Status choose_checkpoints(const RunPlace& place, const Plan& plan, ResumeChoice& choice);

/// Makes the run folder, or goes on in `taken`, and writes the resolved graph into it; an earlier
/// trace there is renamed (RunFolder::set_trace_aside()), and choice.record is updated. Checkpoints
/// of another run are copied into it or made again there. kCancelled: Ctrl-C came meanwhile.
Result<std::unique_ptr<RunFolder>> make_run_folder(const std::string& out,
                                                   std::unique_ptr<RunFolder> taken,
                                                   ResumeChoice& choice, const Plan& plan);

}  // namespace primerl
