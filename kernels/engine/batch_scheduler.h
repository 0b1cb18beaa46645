/// Decides what an engine computes next: which sequences run, which prompts advance, who holds
/// blocks.
///
/// Knows nothing of models: it turns submitted sequences into StepPlans (rows of one forward pass)
/// and takes the sampled tokens back. One thread. Order is first come, first served throughout:
/// running sequences decode first, then prompts advance (in chunks when the step's tokens run out),
/// then the oldest waiting prompt is admitted while it fits. A step has at most max_batched_tokens
/// rows and samples at most as many tokens; a row may be sampled from several times, so these are
/// two counts. Admission reserves the blocks of
/// prompt and completion, so an admitted sequence always finishes and nothing is ever preempted.
///
///   WAITING -> PREFILLING -> HELD -> (take_over) RUNNING -> ended
///
/// Sequences that live at the same time and have equal key, salt and prompt share the prompt's
/// blocks and its computation, as long as the key's weights did not change since: a group of eight
/// computes its prompt once. Nothing is kept for later; that is the prefix cache's work.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/engine/engine.h"
#include "kernels/engine/options.h"
#include "kernels/engine/row_batch.h"
#include "kernels/engine/stop_rule.h"

namespace primerl {

struct SchedulerLimits {
  EngineOptions options;  // max_sequence_tokens resolved, not 0
  int32_t vocab_size = 0;
  std::vector<int32_t> eos_ids;
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;  // for stop texts; null: none are taken
};

struct Sequence;

/// A prompt inside the engine, with the sequences that begin with it.
struct Prompt {
  uint64_t hash = 0;  // of key, salt and tokens
  WeightsKey key;
  std::string salt;
  std::vector<int32_t> tokens;
  PolicyVersion version;  // of the weights that began it
  std::vector<int32_t> blocks;
  std::vector<int32_t> cache_rows;  // [tokens]
  int32_t num_computed = 0;         // tokens whose key and value are in the cache
  int32_t last_row = -1;            // of its last token in the current plan
  int32_t num_users = 0;            // sequences that hold it
  std::vector<Sequence*> waiting;   // want a token sampled when it is complete, in order
  size_t num_sampled = 0;           // of them, by the current plan

  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  bool is_complete() const { return num_computed == size(); }
};

/// A sequence inside the engine.
struct Sequence {
  enum class State : uint8_t { kWaiting, kPrefilling, kHeld, kRunning };
  SequenceRequest request;
  uint64_t prompt_hash = 0;
  State state = State::kWaiting;
  StopRule stop;
  bool was_told = false;  // its PrefillEvent was taken
  bool ended = false;     // held, but its only token was already the last
  FinishReason reason = FinishReason::kLength;
  int32_t num_cached_tokens = 0;
  Prompt* prompt = nullptr;         // null while waiting
  std::vector<int32_t> blocks;      // beyond the prompt's
  std::vector<int32_t> cache_rows;  // [max_tokens], of generated tokens
  std::vector<int32_t> tokens;      // generated
  std::vector<float> logprobs;
  std::vector<VersionSpan> spans;
  std::vector<std::byte> kept;  // kept_sets.h; whoever samples appends
  std::string detail;           // why, when refused
};

/// One forward pass: its rows, and the rows from which a token is sampled.
struct StepPlan {
  struct Sample {
    int32_t row = 0;
    Sequence* sequence = nullptr;
  };
  RowBatch rows;
  std::vector<Sample> samples;
};

class BatchScheduler {
 public:
  explicit BatchScheduler(SchedulerLimits limits);

  Status submit(SequenceRequest request);
  Status take_over(SequenceId id);
  void abort(SequenceId id);
  void expire(SequenceId id);
  /// From now on tokens of requests of `key` are made by `version`. At most kWeightsKeysMax keys.
  void set_version(WeightsKey key, PolicyVersion version);
  const VersionsByKey& versions() const { return versions_; }

  /// Fills `plan` with the next step; false when there is nothing to do.
  bool plan(StepPlan& plan);
  /// Takes one sampled token of the last plan, whose kept set has been appended to the sequence. A
  /// sequence with more of those than kKeptBytesMax ends as refused.
  void accept(Sequence& sequence, int32_t token, float logprob);
  /// Moves the sequences of the last plan on: prefilled ones are held, ended ones leave.
  void finish_step();

  bool has_work() const;
  std::vector<PrefillEvent> take_prefilled();
  std::vector<FinishEvent> take_finished() { return std::exchange(finished_, {}); }
  EngineState state() const;

 private:
  int32_t blocks_for(int64_t num_tokens) const;
  /// The live prompt that `sequence` may share, or null.
  Prompt* shared_prompt(const Sequence& sequence) const;
  bool can_admit() const;
  void admit(StepPlan& plan);
  Prompt& new_prompt(Sequence& sequence);
  void reserve_rows(Sequence& sequence);
  std::vector<int32_t> take_blocks(int32_t count);
  void add_decode(StepPlan& plan, Sequence& sequence);
  void add_chunk(StepPlan& plan, Prompt& prompt, int32_t num_rows);
  /// Samples for those who wait for the complete `prompt`, as many as the step still may.
  void add_samples(StepPlan& plan, Prompt& prompt);
  int32_t samples_left(const StepPlan& plan) const;
  void refuse(Sequence& sequence);
  void finish(Sequence& sequence, FinishReason reason, std::string detail = {});
  void release(Prompt& prompt);

  const SchedulerLimits limits_;
  VersionsByKey versions_;  // empty: nothing was applied yet
  std::unordered_map<uint64_t, std::unique_ptr<Sequence>> sequences_;
  std::vector<std::unique_ptr<Prompt>> prompts_;  // live ones, oldest first
  std::deque<Sequence*> waiting_;
  std::vector<Prompt*> prefilling_;   // in order of admission
  std::vector<Sequence*> running_;    // in order of take_over
  std::vector<int32_t> free_blocks_;  // taken from the back
  std::vector<PrefillEvent> prefilled_;
  std::vector<FinishEvent> finished_;
  int32_t num_prefilling_ = 0;  // sequences
  int32_t num_held_ = 0;
  uint64_t num_prefill_tokens_ = 0;
  uint64_t num_decode_tokens_ = 0;
};

}  // namespace primerl
