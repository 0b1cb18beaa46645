/// `primerl-graph model fetch NAME DIR`: makes the folder of a model that the package index has, by
/// scripts/fetch_model.py in a Python process.
#pragma once

#include <string>

namespace primerl {

/// Returns an exit code. The folder appears when it is complete.
int run_model_fetch(const std::string& name, const std::string& folder);

}  // namespace primerl
