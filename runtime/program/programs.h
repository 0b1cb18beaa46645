/// This program and the other files of an installation: primerl-worker beside it, the examples.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

/// primerl-worker in the folder of this program, or $PRIMERL_WORKER; the error says where it
/// looked.
Result<std::filesystem::path> worker_program();

/// The folder that holds examples/<name>/graph.toml: of the installation or the source tree.
Result<std::filesystem::path> examples_folder();

/// Seconds since this process was started, its loading included, to a hundredth; none if the system
/// does not tell.
std::optional<double> program_age_seconds();

/// How compute threads wait for each other in primerl-worker, as environment variables NAME and
/// value: asleep. libtorch's OpenMP reads them before main() and would spin otherwise, for as long
/// as the system gives the other thread's core to somebody else. None where this process's
/// environment, or one of `given` ("NAME=value"), says something about it.
std::vector<std::pair<std::string, std::string>> worker_environment(
    const std::vector<std::string>& given = {});

/// Replaces this process by `primerl-worker ARGUMENTS`; returns only an error.
Error exec_worker(const std::vector<std::string>& arguments);

}  // namespace primerl
