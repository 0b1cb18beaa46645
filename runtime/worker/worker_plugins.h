/// Checks that a worker runs the same plugins as the rest of its run. A function, any thread.
#pragma once

#include <string>

#include "graph/base/result.h"

namespace primerl {

/// A restarted worker must run the same code as the others: each plugin's file must still be the
/// one that run.json names.
Status check_plugins(const std::string& run_folder);

}  // namespace primerl
