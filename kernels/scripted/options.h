/// Options of a scripted engine and a scripted learner: output lengths, cost of a call on a virtual
/// clock, calls that fail. Plain values; the option registry with ranges and docs is in
/// runtime/backends/resource_catalog.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/base/clock.h"
#include "kernels/engine/options.h"
#include "kernels/train/adapter_training.h"

namespace primerl {

/// Default for the longest sequence in tokens, since there is no model to read it from.
inline constexpr int32_t kScriptedSequenceTokens = 2048;

/// The number of new tokens of a request is uniform in [new_tokens_min, new_tokens_max]; a share
/// `tail_fraction` of the requests gets `tail_factor` times as many. A sequence ends with `eos_id`,
/// or at its max_tokens. The default costs are guesses for a small model on two cores: measure,
/// then set them.
struct ScriptedEngineOptions : EngineOptions {
  ScriptedEngineOptions() { max_sequence_tokens = kScriptedSequenceTokens; }

  uint64_t seed = 0;            // of lengths and tokens, combined with the request's seed
  int32_t vocab_size = 97;      // tokens
  int32_t first_token = 2;      // tokens are sampled from [first_token, vocab_size)
  int32_t eos_id = 1;           // ends a sequence; below first_token
  int32_t new_tokens_min = 4;   // tokens, including the eos; >= 1
  int32_t new_tokens_max = 12;  // tokens
  double tail_fraction = 0;     // of requests, [0, 1]
  int32_t tail_factor = 1;      // how many times longer those are; >= 1
  int32_t refuse_every = 0;     // every n-th submit is refused; 0 = none
  /// The file that requests a fault of a step (device_fault.h); "": no faults.
  std::string device_fault_file;
  /// Added to every log-probability, to imitate the rounding of another device.
  double logprob_shift = 0;
  Duration step_cost = Duration::microseconds(500);         // per step, of any size
  Duration prefill_token_cost = Duration::microseconds(5);  // per prompt token
  Duration decode_token_cost = Duration::microseconds(20);  // per sampled token
  Duration apply_cost = Duration::milliseconds(2);          // per weight update
  Duration adapter_load_cost = Duration::milliseconds(1);   // per adapter loaded into a slot
};

/// The optimizer, schedule and micro-batch options of LearnerOptions work as in a real learner. The
/// loss options have no effect: no gradient is computed.
struct ScriptedLearnerOptions : LearnerOptions {
  uint64_t seed = 0;
  int32_t vocab_size = 97;                                // tokens
  int32_t max_sequence_tokens = kScriptedSequenceTokens;  // tokens of the longest sample
  Duration step_cost = Duration::milliseconds(5);         // per pass: one micro-batch of each step
  Duration token_cost = Duration::microseconds(20);       // per token through the model
  Duration snapshot_cost = Duration::milliseconds(1);
  /// How long a checkpoint is being written: by the virtual clock, or by the real one when another
  /// thread writes it, as if by a slow disk.
  Duration save_time;
  std::string device_fault_file;  // as in ScriptedEngineOptions
  double loss_shift = 0;          // relative change of the reported loss
  // Not settable in a graph file:
  std::vector<TrainingRules> rules_of_tenant;  // by slot; further tenants use the options above
  std::vector<TenantSlot> free_slots;          // no tenant is in them at first
  bool writes_files = true;                    // false: save() writes nothing
};

}  // namespace primerl
