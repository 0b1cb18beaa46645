/// RunPreparation: everything a run needs to know before it makes anything: which graph, from which
/// checkpoints, in which folder.
///
/// `--resume DIR`, DIR being
///   a run folder     goes on in it: files are appended to, the newest complete checkpoint counts;
///                    with --out the new run gets that folder of its own
///   a checkpoint     checkpoints/step_N: a new run folder, so that no younger checkpoint of the
///                    abandoned line is mistaken for this run's
/// A run folder whose last start was cut off is taken up from its record, when there is a whole
/// one: nothing it had done is done again, and the checkpoint only spares the learner its older
/// steps. Else, or with --from-checkpoint, the run goes on after the newest complete checkpoint.
/// GRAPH may be left out: the resolved graph of that run is taken again.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "graph/base/services.h"
#include "runtime/bin/commands/graph_options.h"
#include "runtime/bin/link_keys.h"
#include "runtime/store/run_folder.h"
#include "runtime/trace/recovery.h"

namespace primerl {

struct RunArguments {
  GraphArguments graph;
  std::string out;
  std::string resume;
  bool from_checkpoint = false;
  bool json = false;
  LinkKeyFiles link_keys;
  std::string hosts;               // the file that says where agents are; "": everything runs here
  std::string metrics_port = "0";  // "off": nothing is served
};

/// Where a run goes on. Empty in a fresh one.
struct ResumeChoice {
  std::filesystem::path run_folder;     // to go on in; empty = a new one
  std::filesystem::path graph_file;     // the resolved graph of that run
  std::vector<ResumePoint> points;      // index = tenant slot; filled by choose_checkpoints()
  std::filesystem::path record;         // to follow first; filled by choose_record()
  bool has_other_options = false;       // the record is of the same graph with other options
  std::vector<std::string> begun_from;  // checkpoints that `record` begins from
  std::vector<AbsentProcess> absent;    // that follow no record
  std::filesystem::path superseded;     // a record that `record` holds whole
  std::vector<std::string> notes;       // incomplete checkpoints that were passed over
};

/// Says what `--resume` names; an empty name is an empty choice.
Result<ResumeChoice> read_resume(const std::string& resume);

/// Finds the record of a start that was cut off, if it can be taken up; a note says why not.
void choose_record(const RunArguments& arguments, const Plan& plan, ResumeChoice& choice);

/// Finds every tenant's checkpoint; the error names what is missing and what to do.
Status choose_checkpoints(const std::string& resume, const Plan& plan, ResumeChoice& choice);

/// Makes or opens the run folder and writes the resolved graph into it; what was recorded there is
/// set aside, and choice.record follows it.
Result<std::unique_ptr<RunFolder>> make_run_folder(const RunArguments& arguments,
                                                   ResumeChoice& choice, const Plan& plan);

/// Seconds since 1970, and the same as "20261121-062445" and "2026-11-21T06:24:45Z".
double wall_seconds();
std::string folder_time(double wall);
std::string iso_time(double wall);

}  // namespace primerl
