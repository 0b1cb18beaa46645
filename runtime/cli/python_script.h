/// Runs a script of scripts/ in a Python process, for commands that need Python packages.
///
/// The Python is that of find_python(). Plain function, any thread.
#pragma once

#include <string>
#include <vector>

#include "graph/base/clock.h"
#include "graph/base/result.h"

namespace primerl {

/// Returns the stdout of the script. A script that fails writes "error: SENTENCE" and lines with
/// what to do. It is killed after `most`.
Result<std::string> run_python_script(const std::string& script,
                                      const std::vector<std::string>& arguments, Duration most);

}  // namespace primerl
