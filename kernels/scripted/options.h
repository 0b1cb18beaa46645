/// What a scripted engine and a scripted learner do: how long their outputs are, what a call costs
/// on a virtual clock, which calls fail. Plain values; the option registry with ranges and docs is
/// in runtime/backends/resource_catalog.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/base/clock.h"
#include "kernels/engine/options.h"
#include "kernels/train/adapter_training.h"

namespace primerl {

/// Tokens of the longest sequence where nothing else is said: there is no model to ask.
inline constexpr int32_t kScriptedSequenceTokens = 2048;

/// Every request draws its number of new tokens evenly from [new_tokens_min, new_tokens_max]; a
/// share `tail_fraction` of them is `tail_factor` times as long. It ends with `eos_id`, or at its
/// max_tokens. The costs are guesses of a small model on two cores: measure, then set them.
struct ScriptedEngineOptions : EngineOptions {
  ScriptedEngineOptions() { max_sequence_tokens = kScriptedSequenceTokens; }

  uint64_t seed = 0;            // of lengths and tokens, together with the request's seed
  int32_t vocab_size = 97;      // tokens
  int32_t first_token = 2;      // tokens are drawn from [first_token, vocab_size)
  int32_t eos_id = 1;           // ends a sequence; below first_token
  int32_t new_tokens_min = 4;   // tokens, the eos included; >= 1
  int32_t new_tokens_max = 12;  // tokens
  double tail_fraction = 0;     // of requests, [0, 1]
  int32_t tail_factor = 1;      // how much longer those are; >= 1
  int32_t refuse_every = 0;     // every n-th submit is refused; 0 = none
  /// Where a step finds a fault to have (device_fault.h); "": nowhere.
  std::string device_fault_file;
  /// Added to every log-probability, as another device's rounding would.
  double logprob_shift = 0;
  Duration step_cost = Duration::microseconds(500);         // of a step, whatever its size
  Duration prefill_token_cost = Duration::microseconds(5);  // of a prompt token
  Duration decode_token_cost = Duration::microseconds(20);  // of a sampled token
  Duration apply_cost = Duration::milliseconds(2);          // of new weights
  Duration adapter_load_cost = Duration::milliseconds(1);   // of one that comes into a slot
};

/// The optimizer, schedule and micro-batches of LearnerOptions count as they do for a real learner;
/// its loss options do not: no gradient is computed.
struct ScriptedLearnerOptions : LearnerOptions {
  uint64_t seed = 0;
  int32_t vocab_size = 97;                                // tokens
  int32_t max_sequence_tokens = kScriptedSequenceTokens;  // tokens of the longest sample
  Duration step_cost = Duration::milliseconds(5);         // of a pass: a micro-batch of each step
  Duration token_cost = Duration::microseconds(20);       // of a token through the model
  Duration snapshot_cost = Duration::milliseconds(1);
  std::string device_fault_file;  // as a ScriptedEngineOptions'
  double loss_shift = 0;          // of the loss that is reported, relative
  // No keys of a graph:
  std::vector<TrainingRules> rules_of_tenant;  // by slot; a tenant beyond has the options above
  bool writes_files = true;                    // false: save() leaves the disk alone
};

}  // namespace primerl
