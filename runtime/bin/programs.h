/// Finding the other files of an installation: primerl-worker beside this program, the examples.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

/// primerl-worker in the folder of this program, or $PRIMERL_WORKER; the error says where it
/// looked.
Result<std::filesystem::path> worker_program();

/// The folder that holds examples/<name>/graph.toml: of the installation or the source tree.
Result<std::filesystem::path> examples_folder();

/// Replaces this process by `primerl-worker ARGUMENTS`; returns only an error.
Error exec_worker(const std::vector<std::string>& arguments);

}  // namespace primerl
