/// What a person reads when a run has ended: how, how far, the reward curve, where the files are.
#pragma once

#include "runtime/control/run_session.h"

namespace primerl {

std::string summary_text(const Plan& plan, const RunFolder& folder, const MetricsLog* metrics,
                         const RunResult& result, const Terminal& terminal);

/// The same as {"schema": "primerl.run_summary/1", ...}.
Json summary_json(const Plan& plan, const RunFolder& folder, const MetricsLog* metrics,
                  const RunResult& result);

}  // namespace primerl
