/// RunPreparation: everything a run needs to know before it makes anything: which graph, from which
/// checkpoints, in which folder.
///
/// `--resume DIR`, DIR being
///   a run folder     goes on in it: files are appended to, the newest complete checkpoint counts;
///                    with --out the new run gets that folder of its own
///   a checkpoint     checkpoints/step_N: a new run folder, so that no younger checkpoint of the
///                    abandoned line is mistaken for this run's
/// GRAPH may be left out: the resolved graph of that run is taken again.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "graph/base/services.h"
#include "runtime/bin/commands/graph_options.h"
#include "runtime/store/run_folder.h"

namespace primerl {

struct RunArguments {
  GraphArguments graph;
  std::string out;
  std::string resume;
  bool json = false;
};

/// Where a run goes on. Empty in a fresh one.
struct ResumeChoice {
  std::filesystem::path run_folder;  // to go on in; empty = a new one
  std::filesystem::path graph_file;  // the resolved graph of that run
  std::vector<ResumePoint> points;   // index = tenant slot; filled by choose_checkpoints()
  std::vector<std::string> notes;    // incomplete checkpoints that were passed over
};

/// Says what `--resume` names; an empty name is an empty choice.
Result<ResumeChoice> read_resume(const std::string& resume);

/// Finds every tenant's checkpoint; the error names what is missing and what to do.
Status choose_checkpoints(const std::string& resume, const Plan& plan, ResumeChoice& choice);

/// Makes or opens the run folder and writes the resolved graph into it.
Result<std::unique_ptr<RunFolder>> make_run_folder(const RunArguments& arguments,
                                                   const ResumeChoice& choice, const Plan& plan);

/// Seconds since 1970, and the same as "20261121-062445" and "2026-11-21T06:24:45Z".
double wall_seconds();
std::string folder_time(double wall);
std::string iso_time(double wall);

}  // namespace primerl
