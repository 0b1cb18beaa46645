/// Decides what an engine computes next: which sequences run, which prompts advance, who holds
/// blocks.
///
/// Knows nothing of models: it turns submitted sequences into StepPlans (rows of one forward pass)
/// and takes the sampled tokens back. One thread. Order is first come, first served throughout:
/// running sequences decode first, then prompts advance (in chunks when the step's tokens run out),
/// then the oldest waiting prompt is admitted while it fits. Admission reserves the blocks of
/// prompt and completion, so an admitted sequence always finishes and nothing is ever preempted.
///
///   WAITING -> PREFILLING -> HELD -> (take_over) RUNNING -> ended
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/engine/engine.h"
#include "kernels/engine/options.h"
#include "kernels/engine/row_batch.h"

namespace primerl {

struct SchedulerLimits {
  EngineOptions options;  // max_sequence_tokens resolved, not 0
  int32_t vocab_size = 0;
  std::vector<int32_t> eos_ids;
};

/// A sequence inside the engine.
struct Sequence {
  enum class State : uint8_t { kWaiting, kPrefilling, kHeld, kRunning };
  SequenceRequest request;
  State state = State::kWaiting;
  bool ended = false;  // held, but its only token was already the last
  FinishReason reason = FinishReason::kLength;
  int32_t num_computed = 0;  // tokens whose key and value are in the cache
  std::vector<int32_t> blocks;
  std::vector<int32_t> cache_rows;  // [prompt + max_tokens]
  std::vector<int32_t> tokens;      // generated
  std::vector<float> logprobs;
  std::vector<VersionSpan> spans;

  int32_t num_prompt_tokens() const { return static_cast<int32_t>(request.prompt_tokens.size()); }
  int32_t num_tokens() const { return num_prompt_tokens() + static_cast<int32_t>(tokens.size()); }
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

  /// Fills `plan` with the next step; false when there is nothing to do.
  bool plan(StepPlan& plan);
  /// Takes one sampled token of the last plan.
  void accept(Sequence& sequence, int32_t token, float logprob, PolicyVersion version);
  /// Moves the sequences of the last plan on: prefilled ones are held, ended ones leave.
  void finish_step();

  bool has_work() const;
  std::vector<PrefillEvent> take_prefilled() { return std::exchange(prefilled_, {}); }
  std::vector<FinishEvent> take_finished() { return std::exchange(finished_, {}); }
  EngineState state() const;

 private:
  int32_t blocks_needed(const Sequence& sequence) const;
  bool can_admit() const;
  void admit();
  void add_span(StepPlan& plan, Sequence& sequence, int32_t num_rows);
  void finish(Sequence& sequence, FinishReason reason);

  const SchedulerLimits limits_;
  std::unordered_map<uint64_t, std::unique_ptr<Sequence>> sequences_;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> prefilling_;  // in order of admission
  std::vector<Sequence*> running_;     // in order of take_over
  std::vector<int32_t> free_blocks_;   // taken from the back
  std::vector<PrefillEvent> prefilled_;
  std::vector<FinishEvent> finished_;
  int32_t num_held_ = 0;
  uint64_t num_prefill_tokens_ = 0;
  uint64_t num_decode_tokens_ = 0;
};

}  // namespace primerl
