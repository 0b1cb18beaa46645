/// What `ps` prints: the JSON of /status (schema primerl.status/1) as tables for people. Pure.
#pragma once

#include <string>

#include "graph/base/json.h"

namespace primerl {

/// Of a run in any state: "running" with its tables, "ended" with how, "lost" with what is left.
/// What the JSON does not have is shown as "-".
std::string run_table(const Json& status);

}  // namespace primerl
