/// Backends: (kind, backend) of a plan's resource -> the real thing. The worker's composition root;
/// libtorch's part is left out of builds without it.
#pragma once

#include <string>
#include <vector>

#include "runtime/exec/executor.h"

namespace primerl {

/// Makes resources with the plan's compute threads. A resource this build lacks is an error that
/// names what it has.
ResourceFactory resource_factory();

/// A weight channel inside one process that keeps that many versions.
std::unique_ptr<Resource> memory_channel(size_t versions_max);

/// "engine torch", "engine scripted", ...
std::vector<std::string> backend_names();

}  // namespace primerl
