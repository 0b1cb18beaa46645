/// The output of `ps`: the JSON of /status (schema primerl.status/1) as tables for people. Pure.
#pragma once

#include <string>

#include "graph/base/json.h"

namespace primerl {

/// Tables of a run in any state: "running" with all tables, "ended" with how it ended, "lost" with
/// the last known data. A value that the JSON does not have is shown as "-".
std::string run_table(const Json& status);

}  // namespace primerl
