/// The flags of `generate`, `score` and `train-step`, declared once. primerl-graph checks them
/// without torch and executes primerl-worker, which parses the same words again.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/result.h"
#include "runtime/program/command_line.h"

namespace primerl {

/// Flags of all three commands: the model, and the device that computes it.
struct ModelCommandArguments {
  std::string model;
  std::string device = "cpu";
  std::string dtype = "auto";
  int64_t threads = 0;  // 0 = every core
  bool json = false;

 protected:
  void declare_model(Arguments& arguments);
  Status validate_model() const;
  /// The arguments of `command` for primerl-worker.
  std::vector<std::string> model_words(std::string command) const;
};

struct GenerateArguments : ModelCommandArguments {
  std::string adapter;  // a PEFT folder to apply; "" = none
  std::string prompt;
  std::string prompt_ids;
  std::string chat;         // a user's message, or a JSON file of messages
  std::string chat_kwargs;  // JSON object
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
  bool ignore_eos = false;
  bool include_stop = false;    // whether the printed text includes the stop text
  bool special_tokens = false;  // special tokens written in the prompt are encoded as such

  void declare(Arguments& arguments);
  /// Checks across flags: exactly one prompt, a model folder, lists of ids.
  Status validate() const;
  std::vector<std::string> words() const;

 private:
  void declare_logits(Arguments& arguments);
};

struct ScoreArguments : ModelCommandArguments {
  std::string ids_file;

  void declare(Arguments& arguments);
  Status validate() const;
  std::vector<std::string> words() const;
};

struct TrainStepArguments : ModelCommandArguments {
  std::string checkpoint;
  std::string batch;
  std::string dump;
  double lr = 1e-6;
  int64_t micro_batch_tokens = 4096;
  std::string numerics;  // "": what the device supports
  std::string recompute = "none";
  bool check_finite = false;
  double jsd_beta = -1;  // below 0: the objective's own

  void declare(Arguments& arguments);
  Status validate() const;
  std::vector<std::string> words() const;
};

/// Parses "1,2,3": whole numbers from 0 up, with or without spaces.
Result<std::vector<int32_t>> parse_token_ids(const std::string& text);

/// Parses items such as "7=-2.5": token ids with numbers, sorted by id; no id twice.
Result<std::vector<std::pair<int32_t, double>>> parse_biases(const std::vector<std::string>& words);

}  // namespace primerl
