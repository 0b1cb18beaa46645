/// Whether a checkpoint fits the graph, whether steps are left for a resumed run, and whether its
/// record already has its last one.
#pragma once

#include <map>
#include <string>

#include "runtime/control/run_preparation.h"

namespace primerl {

/// A record is followed to its end, so `max_steps` must lie beyond it. With unchanged options it
/// does.
Status check_recorded_steps(const Plan& plan, const ResumeChoice& choice);

/// The checkpoints were made with the environments that the tenants have now.
Status check_environments(const Plan& plan, const ResumeChoice& choice);

/// A tenant has steps left. A tenant without steps left is done when the run begins.
Status check_steps_left(const Plan& plan, const ResumeChoice& choice);

/// Whether a tenant had taken the last of its steps when the graph was `recorded` (TOML), and
/// `plan` has another `max_steps`: the last step differs from the same step in the middle of a run.
bool has_reached_max_steps(const std::string& recorded, const Plan& plan,
                           const std::map<std::string, int64_t>& last_steps);

}  // namespace primerl
