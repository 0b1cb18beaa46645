/// The summary of an ended run for a person: how it ended, how many steps, the reward curve, and
/// where the files are.
#pragma once

#include "runtime/control/run_session.h"

namespace primerl {

/// `resume`: the command that resumes the run; "" when it is finished.
std::string summary_text(const Plan& plan, const RunFolder& folder, const MetricsLog* metrics,
                         const RunResult& result, const std::string& resume,
                         const Terminal& terminal);

/// The same as {"schema": "primerl.run_summary/1", ...}.
Json summary_json(const Plan& plan, const RunFolder& folder, const MetricsLog* metrics,
                  const RunResult& result, const std::string& resume);

/// Relative to the current folder if the path is near it.
std::string shown_path(const std::filesystem::path& path);

}  // namespace primerl
