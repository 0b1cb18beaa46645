/// The values that the parts of a BatchScheduler share: a sequence inside the engine, a prompt that
/// is being computed, and the plan of a step. Plain values, used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/engine/block_hash.h"
#include "kernels/engine/engine.h"
#include "kernels/engine/kv_layout.h"
#include "kernels/engine/logits_processor.h"
#include "kernels/engine/options.h"
#include "kernels/engine/row_batch.h"
#include "kernels/engine/stop_rule.h"

namespace primerl {

struct SchedulerLimits {
  EngineOptions options;  // max_sequence_tokens is resolved, not 0
  int32_t vocab_size = 0;
  std::vector<int32_t> eos_ids;
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;  // for stop texts; null: stop texts are
                                                         // refused
  std::string fingerprint = {};  // of the model; with the layout part of the block names
  KvLayout layout = {};          // of the cache
};

struct PrefillTask;

/// A sequence inside the engine.
struct Sequence {
  enum class State : uint8_t { kWaiting, kPrefilling, kHeld, kRunning };
  SequenceRequest request;
  uint64_t prompt_hash = 0;
  uint64_t arrival = 0;          // unique; rises
  int32_t adapter = kNoAdapter;  // number of the adapter that generates its tokens
  bool has_slot = false;         // it retains the slot of its adapter
  State state = State::kWaiting;
  StopRule stop;
  std::unique_ptr<LogitsProcessor> processor;  // null: the model's logits are unchanged
  bool was_reported = false;                   // its PrefillEvent was returned
  bool was_taken_over = false;
  bool ended = false;         // held, but its only token was the last
  bool has_finished = false;  // its FinishEvent was returned; steps in progress may still have a
                              // row of it
  uint64_t last_plan = 0;     // the last plan that samples from it
  int32_t last_sample = 0;    // its sample index in that plan
  FinishReason reason = FinishReason::kLength;
  int32_t num_cached_tokens = 0;
  std::optional<PolicyVersion> began;  // policy version when it was first admitted
  PrefillTask* prefill = nullptr;      // while prefilling
  std::vector<BlockChain> chains;      // of its first full blocks, for lookups while waiting
  // Empty while waiting, and after preemption in state kHeld.
  std::vector<int32_t> blocks;  // block i holds the positions from i * block_size on
  BlockChain chain;             // hash chain of its named blocks
  bool publishes = false;       // whether its next full block gets a name
  std::vector<int32_t> tokens;  // generated
  std::vector<float> logprobs;
  std::vector<VersionSpan> spans;
  std::vector<std::byte> kept;             // kept_sets.h; the sampler appends
  std::vector<TokenLogprob> top_logprobs;  // likewise
  std::vector<int32_t> ranks;              // of the tokens; empty without top_logprobs
  std::vector<float> prompt_logprobs;
  std::vector<TokenLogprob> prompt_top_logprobs;
  RoutedExperts routed;  // the engine fills it when the sequence has ended
  std::string detail;    // the reason, when refused or failed

  int32_t num_prompt_tokens() const { return static_cast<int32_t>(request.prompt_tokens.size()); }
  /// Prompt and generated tokens.
  int32_t size() const { return num_prompt_tokens() + static_cast<int32_t>(tokens.size()); }
  int32_t token(int32_t position) const {
    const int32_t generated = position - num_prompt_tokens();
    return generated < 0 ? request.prompt_tokens[static_cast<size_t>(position)]
                         : tokens[static_cast<size_t>(generated)];
  }
  /// Its whole prompt must still be computed, for the log-probabilities of its tokens.
  bool needs_prompt_logprobs() const {
    return request.sampling.prompt_logprobs && num_prompt_tokens() > 1 && prompt_logprobs.empty();
  }
  /// The number of likeliest tokens at each of them.
  int32_t num_prompt_top() const {
    return needs_prompt_logprobs() ? request.sampling.num_prompt_top_logprobs : 0;
  }
};

/// The order: lower priority first, then earlier arrival.
inline bool is_before(const Sequence* a, const Sequence* b) {
  return std::pair(a->request.priority, a->arrival) < std::pair(b->request.priority, b->arrival);
}

/// Tokens being computed into the KV cache: the prompt of the sequences that wait for it, or all
/// tokens of one preempted sequence.
struct PrefillTask {
  std::vector<Sequence*> waiting;  // sequences to sample for when it is complete, in order; never
                                   // empty
  size_t num_sampled = 0;          // how many of `waiting` the current plan samples for
  std::vector<int32_t> blocks;     // blocks of all its tokens
  int32_t num_found = 0;           // how many of the first blocks were found in the cache
  BlockChain chain;
  bool publishes = false;
  bool is_recomputed = false;   // the tokens of a preempted sequence, computed again
  bool has_shared_end = false;  // the block of the last token is shared, or can be found
  int32_t num_tokens = 0;
  int32_t num_computed = 0;  // tokens whose key and value are in the cache
  int32_t last_row = -1;     // row of its last token in the current plan
  bool scores_prompt = false;
  int32_t num_prompt_top = 0;          // number of likeliest tokens at each of these positions
  std::vector<float> prompt_logprobs;  // of its tokens but the first, if requested
  std::vector<TokenLogprob> prompt_top_logprobs;  // [these tokens, num_prompt_top]

  const Sequence& first() const { return *waiting.front(); }
  bool is_complete() const { return num_computed == num_tokens; }
};

/// A copy of cache rows: [from, from + num_rows) to [to, to + num_rows).
struct RowCopy {
  int32_t from = 0, to = 0, num_rows = 0;
};

/// Stands for the token that sample `place` of the previous step will give. Its own inverse.
constexpr int32_t token_of_sample(int32_t place) { return -1 - place; }

/// One forward pass: the copies before it, its rows, and the rows that a token is sampled from. In
/// a step that was planned ahead, a token of `rows` may be a token_of_sample() of the previous
/// step.
struct StepPlan {
  struct Sample {
    int32_t row = 0;
    Sequence* sequence = nullptr;
  };
  /// The log-probability of `token` after `row`, under the model's own distribution.
  struct Score {
    int32_t row = 0;
    int32_t token = 0;
    PrefillTask* prefill = nullptr;
  };
  std::vector<RowCopy> copies;  // applied in this order
  RowBatch rows;
  std::vector<Sample> samples;
  std::vector<Score> scores;           // computed in this order
  std::vector<PrefillTask*> prefills;  // prefills that have rows in the plan
};

}  // namespace primerl
