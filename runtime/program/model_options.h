/// The flags of `generate`, `score` and `train-step`, declared once: primerl-graph checks them
/// without torch and hands them over; primerl-worker parses the same words again.
#pragma once

#include <string>
#include <vector>

#include "graph/base/result.h"
#include "runtime/program/command_line.h"

namespace primerl {

struct GenerateArguments {
  std::string model;
  std::string prompt;
  std::string prompt_ids;
  int64_t max_tokens = 64;
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t top_k = 0;
  double min_p = 0.0;
  int64_t seed = 0;
  int64_t num_samples = 1;
  int64_t threads = 0;  // 0 = every core
  bool ignore_eos = false;
  bool special_tokens = false;  // written out in the prompt, they count as such
  bool json = false;

  void declare(Arguments& arguments);
  /// What flags alone cannot say: exactly one prompt, a model folder.
  Status validate() const;
  std::vector<std::string> words() const;
};

struct ScoreArguments {
  std::string model;
  std::string ids_file;
  int64_t threads = 0;
  bool json = false;

  void declare(Arguments& arguments);
  Status validate() const;
  std::vector<std::string> words() const;
};

struct TrainStepArguments {
  std::string model;
  std::string checkpoint;
  std::string batch;
  std::string dump;
  double lr = 1e-6;
  int64_t micro_batch_tokens = 4096;
  std::string numerics = "invariant";
  std::string recompute = "none";
  int64_t threads = 0;
  bool check_finite = false;
  bool json = false;

  void declare(Arguments& arguments);
  Status validate() const;
  std::vector<std::string> words() const;
};

/// "1,2,3": whole numbers from 0 on, with or without spaces.
Result<std::vector<int32_t>> parse_token_ids(const std::string& text);

}  // namespace primerl
