/// Environments and rewards that worker processes give (docs/formats/outside.md): `process`,
/// `python`, `math`, `gymnasium`, `skyrl_gym` and `mcp`. Their options, and the pools to ask that
/// follow from these.
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
  std::vector<int64_t> files_bytes;
};

/// A Python file that worker.py runs.
struct PythonOptions : WorkersOptions {
  std::string file;
  std::string file_sha256;
  int64_t file_bytes = -1;
  std::string python = "python3";
};

/// math-verify.
struct MathOptions : WorkersOptions {
  std::string python = "python3";
};

/// An environment of Gymnasium (gymnasium_environment.py).
struct GymnasiumOptions : WorkersOptions {
  std::string id;
  std::string kwargs = "{}";  // JSON object, for gymnasium.make
  std::string prompt;         // text before the first observation
  std::string adapter;        // Python file
  std::string adapter_sha256;
  int64_t adapter_bytes = -1;
  std::string python = "python3";
};

/// Rows of a file in environments of SkyRL-Gym (skyrl_environment.py).
struct SkyrlOptions : WorkersOptions {
  std::string id;    // of rows without `env_class`
  std::string file;  // JSONL
  std::string file_sha256;
  int64_t file_bytes = -1;
  std::string eval_file;  // the same, for evaluations; empty: `file`
  std::string eval_file_sha256;
  int64_t eval_file_bytes = -1;
  std::string config = "{}";  // JSON object, the environment's env_config
  int64_t max_turns = 0;      // 0: as the row or the environment says
  std::string environments;   // Python file that registers environments
  std::string environments_sha256;
  int64_t environments_bytes = -1;
  bool shuffle = true;
  std::string python = "python3";
};

/// A Python file whose tasks have the tools of MCP servers (mcp_environment.py).
struct McpOptions : PythonOptions {
  std::string servers;  // mcp.json
  std::string servers_sha256;
  int64_t servers_bytes = -1;
  std::string state = "shared";
  Duration tool_timeout = Duration::seconds(10);
  int64_t result_bytes_max = int64_t{64} << 10;
  int64_t calls_max = 16;
  int64_t processes_max = 256;
};

EnvironmentContract process_environment();
EnvironmentContract python_environment();
EnvironmentContract gymnasium_environment();
EnvironmentContract skyrl_gym_environment();
EnvironmentContract mcp_environment();
RewardContract python_reward();
RewardContract math_reward();

}  // namespace primerl
