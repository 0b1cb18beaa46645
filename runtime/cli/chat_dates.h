/// The day that chat templates print (`strftime_now`): [tenant.x.chat] date, else the day, in UTC,
/// on which the run started first. It is written into the run's resolved graph, so a resume, a fork
/// and a replay on another day print the same. No state.
#pragma once

#include <string>
#include <vector>

#include "graph/plan.h"

namespace primerl {

/// "2026-11-26".
std::string utc_day(double seconds_since_1970);

/// `--set` values for the tenants of `plan` that have no date although a model's template prints
/// one. A tenant of `before`, the plan of the run that is resumed or forked, keeps its day; null: a
/// new run.
std::vector<std::string> dates_to_set(const Plan& plan, const Plan* before,
                                      const std::string& today);

}  // namespace primerl
