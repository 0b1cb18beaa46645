/// Paths of the files of an installation: this program, primerl-worker beside it, the examples.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

/// primerl-worker in the folder of this program, or $PRIMERL_WORKER; the error names the paths that
/// were tried.
Result<std::filesystem::path> worker_program();

/// The folder that contains examples/<name>/graph.toml: of the installation or the source tree.
Result<std::filesystem::path> examples_folder();

/// Seconds since this process was started, including its loading, to a hundredth; none if the
/// system does not provide it.
std::optional<double> program_age_seconds();

/// How compute threads wait for each other in primerl-worker, as environment variables NAME and
/// value: they sleep. libtorch's OpenMP reads the variables before main(). By default its threads
/// spin, also while the operating system runs another process on the core of the thread they wait
/// for. None if this process's environment, or one of `given` ("NAME=value"), already sets it.
std::vector<std::pair<std::string, std::string>> worker_environment(
    const std::vector<std::string>& given = {});

/// Replaces this process by `primerl-worker ARGUMENTS`; returns only an error.
Error exec_worker(const std::vector<std::string>& arguments);

}  // namespace primerl
