/// The flags of `generate`, `score` and `train-step`, declared once: primerl-graph checks them
/// without torch and hands them over; primerl-worker parses the same words again.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/result.h"
#include "runtime/program/command_line.h"

namespace primerl {

struct GenerateArguments {
  std::string model;
  std::string adapter;  // a PEFT folder to put on it; "" = none
  std::string prompt;
  std::string prompt_ids;
  int64_t max_tokens = 64;
  int64_t min_tokens = 0;
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t top_k = 0;
  double min_p = 0.0;
  std::vector<std::string> logit_bias;  // ID=VALUE
  double repetition_penalty = 1.0;
  double frequency_penalty = 0.0;
  double presence_penalty = 0.0;
  std::vector<std::string> stop;
  std::string stop_ids;
  int64_t top_logprobs = 0;
  bool prompt_logprobs = false;
  int64_t seed = 0;
  int64_t num_samples = 1;
  int64_t threads = 0;  // 0 = every core
  bool ignore_eos = false;
  bool include_stop = false;    // in the text that is printed
  bool special_tokens = false;  // written out in the prompt, they count as such
  bool json = false;

  void declare(Arguments& arguments);
  /// What flags alone cannot say: exactly one prompt, a model folder, lists of ids.
  Status validate() const;
  std::vector<std::string> words() const;

 private:
  void declare_logits(Arguments& arguments);
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

/// "7=-2.5" and others: token ids with numbers, by rising id; none twice.
Result<std::vector<std::pair<int32_t, double>>> parse_biases(const std::vector<std::string>& words);

}  // namespace primerl
