/// Environments and rewards that worker processes give: `process`, `python` and `math`
/// (docs/formats/outside.md). Their options, and the pools to ask that follow from these.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/catalog.h"
#include "graph/outside.h"

namespace primerl {

struct WorkersOptions {
  int64_t num_workers = 1;
  Duration start_timeout = Duration::seconds(60);
  int64_t answer_bytes_max = int64_t{16} << 20;
};

/// A command that speaks the protocol.
struct ProcessOptions : WorkersOptions {
  std::vector<std::string> command;
  std::vector<std::string> files;
  std::vector<std::string> files_sha256;
};

/// A Python file that worker.py runs.
struct PythonOptions : WorkersOptions {
  std::string file;
  std::string file_sha256;
  std::string python = "python3";
};

/// math-verify.
struct MathOptions : WorkersOptions {
  std::string python = "python3";
};

EnvironmentContract process_environment();
EnvironmentContract python_environment();
RewardContract python_reward();
RewardContract math_reward();

}  // namespace primerl
