/// The environment `verifiers`: servers of the Python package that drive whole rollouts
/// (docs/design/verifiers.md). Its options, and the pool to ask that follows from these.
#pragma once

#include <cstdint>
#include <string>

#include "graph/catalog.h"
#include "graph/outside.h"

namespace primerl {

struct VerifiersOptions {
  std::string id;
  std::string args = "{}";  // JSON object, for the environment
  std::string python = "python3";
  std::string env_dir;
  bool shuffle = true;
  int64_t num_tasks = 0;  // 0: not said
  int64_t num_workers = 1;
  std::string address;
  std::string protocol = "auto";
  std::string client = "train";
  std::string renderer = "{}";  // JSON object
  std::string renderer_model;
  std::string api_key_var = "PRIMERL_API_KEY";
  Duration run_timeout = Duration::seconds(3600);
  int64_t concurrency = 256;
  int64_t answer_bytes_max = int64_t{256} << 20;
  Duration health_timeout = Duration::seconds(30);
  Duration start_timeout = Duration::seconds(600);
};

EnvironmentContract verifiers_environment();

}  // namespace primerl
