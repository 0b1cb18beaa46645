/// RunStart: what one start of a run is called and when it began, and what run.json says about it.
/// Plain functions and values; one thread; reads no clock.
#pragma once

#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/control/run_preparation.h"
#include "runtime/store/run_folder.h"

namespace primerl {

struct RunStart {
  std::string run_id;        // of the run: equal for all its starts
  uint32_t incarnation = 1;  // of this start, and of each worker's first incarnation in it
  double wall = 0;           // wall-clock time of this start, in seconds since 1970
  double wall_zero = 0;      // wall-clock time of the run's first start
};

/// `wall`: the wall-clock time now. A new run gets an id that no other run has.
RunStart next_start_of(const RunFolder& folder, double wall);

/// The members of run.json that describe this start and where it resumes.
Json start_facts(const Plan& plan, const RunFolder& folder, const ResumeChoice& resume,
                 const RunStart& start);

/// For a resumed run: a line for each plugin whose file has changed since the last start.
std::vector<std::string> changed_plugins(const Plan& plan, const Json& facts);

/// Writes steps to metrics.jsonl that an earlier start reported but whose control plane was killed
/// before it read them.
Status keep_leftover_steps(const Plan& plan, const RunFolder& folder, const ResumeChoice& resume,
                           const RunStart& start);

/// Whether the run was started by `serve`: tenants come and go, and a person ends it.
bool is_served(const RunFolder& folder);

/// Whether the graph trains nothing and plays one evaluation, as that of `eval` does.
bool evaluates_only(const Plan& plan);

/// Whether the graph has no engine: then the status line shows the loss instead of a reward.
bool is_supervised(const Plan& plan);

}  // namespace primerl
