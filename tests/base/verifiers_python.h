/// Python programs that have the package verifiers.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace primerl::testing {

/// The one that `scripts/setup.sh --tests` makes, and those of PRIMERL_VERIFIERS_PYTHONS, which are
/// separated by colons. Empty if the machine could not reach a package index.
inline std::vector<std::string> verifiers_pythons() {
  std::vector<std::string> found;
  const auto made = std::filesystem::path(PRIMERL_PYTHON).parent_path() / "python-verifiers";
  std::error_code fault;
  if (std::filesystem::exists(made, fault)) found.push_back(made.string());
  const char* more = std::getenv("PRIMERL_VERIFIERS_PYTHONS");
  std::string name;
  for (const char* at = more; at != nullptr; ++at) {
    if (*at != ':' && *at != '\0') {
      name += *at;
      continue;
    }
    if (!name.empty()) found.push_back(name);
    name.clear();
    if (*at == '\0') break;
  }
  return found;
}

}  // namespace primerl::testing
