/// The folder of a real model that `scripts/setup.sh --tests` makes once, outside of the tree.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>

namespace primerl::testing {

/// SmolLM2-135M-Instruct; none if the machine could not reach a package index.
inline std::optional<std::filesystem::path> smollm2_folder() {
  const char* home = std::getenv("HOME");
  if (home == nullptr) return std::nullopt;
  const auto folder =
      std::filesystem::path(home) / ".cache/primerl-graph/models/smollm2-135m-instruct";
  std::error_code fault;
  if (!std::filesystem::exists(folder / "config.json", fault)) return std::nullopt;
  return folder;
}

}  // namespace primerl::testing
