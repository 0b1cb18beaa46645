/// The Python that commands start for what only Python packages can do.
#pragma once

#include <filesystem>

#include "graph/base/result.h"

namespace primerl {

/// $PRIMERL_PYTHON, else .venv of the source tree that `make setup` made, else python3.
Result<std::filesystem::path> find_python();

}  // namespace primerl
