/// Checks /metrics with Prometheus' own promtool, which scripts/setup.sh --tests installs.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "graph/base/files.h"
#include "tests/store/scratch_folder.h"

namespace primerl {

/// The output of `promtool check metrics`; "" without complaints.
inline std::string promtool_says(const std::string& metrics) {
  const ScratchFolder scratch;
  const auto file = scratch.path() / "metrics", said = scratch.path() / "said";
  std::ofstream(file, std::ios::binary) << metrics;
  const std::string python_folder = std::filesystem::path(PRIMERL_PYTHON).parent_path().string();
  const std::string command =
      fmt::format("PATH='{}':'{}/.venv/bin':\"$PATH\" promtool check metrics < '{}' > '{}' 2>&1",
                  python_folder, PRIMERL_SOURCE_DIR, file.string(), said.string());
  const int status = std::system(command.c_str());
  const std::string words = *read_text_file(said);
  if (status == 0) return words;
  return fmt::format("status {} (scripts/setup.sh --tests installs promtool): {}", status, words);
}

}  // namespace primerl
