/// Folders that a Python script fills once: reference numbers of the packages that we compare with.
/// The packages are looked for when a test runs, not when the build is configured.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace primerl::testing {

/// The folder `name` in the build, filled by `script` (a path in the tree), which is called with
/// it. If the script has changed, the first test process fills the folder again. None if `python`
/// does not have `module`. If the script fails although the module exists, this throws with its
/// text.
std::optional<std::filesystem::path> made_by_python(const std::string& python,
                                                    const std::string& module,
                                                    const std::string& script,
                                                    const std::string& name);

}  // namespace primerl::testing
