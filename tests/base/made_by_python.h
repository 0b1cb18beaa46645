/// Folders that a Python script fills once: reference numbers of the packages we compare with.
/// Which packages there are is asked when a test runs, not when the build is configured.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace primerl::testing {

/// The folder `name` of the build that `script`, a path in the tree, filled when called with it.
/// Made anew when the script has changed, by whichever test process comes first. None where
/// `python` does not have `module`; a script that fails all the same throws, with its words.
std::optional<std::filesystem::path> made_by_python(const std::string& python,
                                                    const std::string& module,
                                                    const std::string& script,
                                                    const std::string& name);

}  // namespace primerl::testing
