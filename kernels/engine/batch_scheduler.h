/// Decides what an engine computes next: which sequences run, which prompts advance, who owns
/// blocks.
///
/// Independent of models: it turns submitted sequences into StepPlans (rows of one forward pass)
/// and receives the sampled tokens. Used by one thread.
///
///   WAITING -> PREFILLING -> HELD -> (take_over) RUNNING -> ended
///      ^           |           |                    |
///      +-----------+-----------+------ preempted ---+
///
/// The order is by priority, then first come, first served. Waiting sequences are admitted in the
/// order of waiting_queue.h, which shares the engine between tenants. tenant_claims.h limits the
/// running slots and KV blocks of each tenant. A step has at most max_batched_tokens rows. Running
/// sequences decode first. Then prompts advance in chunks, of max_prefill_tokens together while any
/// sequence decodes, so that a long prompt does not delay decoding. Then the first waiting sequence
/// is admitted while it fits. A step samples at most max_batched_tokens tokens; a row may be
/// sampled from several times, so these are two counts.
///
/// A sequence gets blocks as it grows, before any row of the step is planned. If no block is free,
/// or the free ones are reserved for other tenants, one sequence is preempted: the last in the
/// order, of the tenant that is furthest beyond its part. It loses its blocks and waits again;
/// later its tokens are computed again as one prompt. The first sequence in the order is never
/// preempted, so every sequence ends (docs/design/inference.md). A step that preempts a sequence
/// admits none.
///
/// Full blocks are found by name (block_hash.h). Prompts with a common prefix compute its blocks
/// once, in the same step or in different steps, and a later turn computes only its new tokens. At
/// least the last token of a prompt is always computed, to get its logits. Blocks that a preempted
/// sequence computes again under newer weights are private: no lookup finds them under the old
/// salt. Sequences with equal key, salt and prompt that wait together compute the prompt once, to
/// its last token, and copy the partly filled last block. A prompt whose log-probabilities are
/// requested is computed from its first token; sequences that wait for the same prompt share them.
///
/// Rows of one adapter are adjacent in a plan: first among decode rows, which come first, then
/// among prompt rows. An adapter keeps its slot while any of its sequences is admitted
/// (adapter_slots.h). A sequence whose adapter has no slot waits, while those of other adapters
/// continue. The first of them gets a slot that no sequence uses, unless the prompts of that slot's
/// adapter have waited longer. If all slots are in use and such a sequence is next in the order,
/// the adapter that has been in use longest admits no more sequences until its slot is free. So no
/// sequence waits forever. The engine loads adapters into their slots between steps.
///
/// An engine may plan a decode step before the tokens of the previous step are known: plan_ahead().
/// Its rows refer to those tokens by sample index. A sequence that already ended still occupies a
/// row; its sampled token is discarded. That row writes after the sequence's last token, in an
/// unnamed block; the block's next owner overwrites it in a later step.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/engine/adapter_slots.h"
#include "kernels/engine/block_pool.h"
#include "kernels/engine/engine.h"
#include "kernels/engine/logits_processor.h"
#include "kernels/engine/options.h"
#include "kernels/engine/row_batch.h"
#include "kernels/engine/stop_rule.h"
#include "kernels/engine/tenant_claims.h"
#include "kernels/engine/waiting_queue.h"

namespace primerl {

struct SchedulerLimits {
  EngineOptions options;  // max_sequence_tokens is resolved, not 0
  int32_t vocab_size = 0;
  std::vector<int32_t> eos_ids;
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;  // for stop texts; null: stop texts are
                                                         // refused
  std::string fingerprint = {};                          // of the model; part of the block names
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
  uint64_t last_plan = 0;   // the last plan that samples from it
  int32_t last_sample = 0;  // its sample index in that plan
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
  std::vector<float> prompt_logprobs;
  std::string detail;  // the reason, when refused or failed

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
  std::vector<float> prompt_logprobs;  // of its tokens but the first, if requested

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

class BatchScheduler {
 public:
  explicit BatchScheduler(SchedulerLimits limits);

  /// `adapter`: number of the adapter that generates the tokens; valid only with adapter_slots.
  Status submit(SequenceRequest request, int32_t adapter = kNoAdapter);
  Status take_over(SequenceId id);
  void abort(SequenceId id);
  void expire(SequenceId id);
  /// From now on `version` generates the tokens of requests of `key`. At most kWeightsKeysMax keys.
  void set_version(WeightsKey key, PolicyVersion version);
  const VersionsByKey& versions() const { return versions_; }

  /// The adapter to load into a slot now; the engine may load it in parts, then calls
  /// slots().finish(). Until then the answer stays the same. Empty: no sequence waits for a slot,
  /// or no slot is free.
  const std::optional<AdapterSlots::Load>& next_load();
  AdapterSlots& slots() { return slots_; }

  /// Fills `plan` with the next step; false if there is no work. Then call either accept() for each
  /// sample and finish_step(), or fail_step(): block names depend on the step.
  bool plan(StepPlan& plan);
  /// Fills `plan` with the step after the only step in progress, of which no token was accepted
  /// yet. Each running sequence that does not end by max_tokens before gets a row. False if the
  /// tokens must be known first: no sequence continues, a prompt may advance, rows must be copied,
  /// or a sequence would have to be preempted for its block. Then the earlier step is accepted and
  /// finished, or failed; after that any call but plan() is allowed. Between plan() and accept()
  /// only plan_ahead() may be called.
  bool plan_ahead(StepPlan& plan);
  /// Accepts one sampled token of a plan; its kept set and top log-probabilities were appended to
  /// the sequence. If the kept sets exceed kKeptBytesMax, the sequence ends as refused. If the
  /// log-probability is not finite, it ends as failed, without this token. The token of a sequence
  /// that has left is dropped.
  void accept(Sequence& sequence, int32_t token, float logprob);
  void accept(const StepPlan::Score& score, float logprob) {
    score.prefill->prompt_logprobs.push_back(logprob);
  }
  /// Updates the sequences of a plan: prefilled ones become held, ended ones leave.
  void finish_step();
  /// The step of `plan` was not computed, so its sequences end as failed; those with a prompt in it
  /// fail at take_over(). Prompts that only found blocks of the step start again.
  void fail_step(const StepPlan& plan, const std::string& why);

  bool has_work() const;
  std::vector<PrefillEvent> take_prefilled();
  std::vector<FinishEvent> take_finished() { return std::exchange(finished_, {}); }
  /// Events of the findable blocks; empty if options.kv_events_bytes_max is 0. If called once per
  /// step, no event is dropped.
  KvEvents take_kv_events();
  const BlockPool& blocks() const { return pool_; }
  EngineState state() const;

 private:
  /// Kept until all steps that may have a row of it are finished.
  struct LeftSequence {
    std::unique_ptr<Sequence> sequence;
    int32_t num_steps = 0;
  };

  int32_t blocks_for(int64_t num_tokens) const;
  int32_t samples_left(const StepPlan& plan) const;
  int32_t num_queued() const;

  // Inserts `sequence` into the list of its state, in order.
  void enqueue(Sequence& sequence);
  void run(Sequence& sequence);
  void dequeue(Sequence& sequence);

  // Admission (implemented, with all functions on blocks, in scheduler_blocks.cc).
  /// The prompt in progress that `sequence` may wait for too; or null.
  PrefillTask* shared_prefill(const Sequence& sequence) const;
  /// How many of the first blocks of `sequence` are in the pool; never the block of its last token.
  int32_t num_cached_blocks(Sequence& sequence) const;
  /// The first waiting sequence whose tenant may have the blocks and slot it needs and whose
  /// adapter, if any, is in a slot; or null.
  Sequence* next_to_admit() const;
  bool may_admit(Sequence& sequence) const;
  /// Whether `may_take` allows the blocks it needs, in addition to `num_held` blocks, which may
  /// include its own prefix.
  template <class MayTake>
  bool has_room(Sequence& sequence, int32_t num_held, const MayTake& may_take) const;
  /// By how many the free blocks decrease if it is admitted and computes its prompt alone.
  int32_t num_blocks_needed(Sequence& sequence) const;
  /// How many sequences own blocks and will soon need another; of `tenant`, or of all tenants.
  int32_t num_growing(std::optional<TenantSlot> tenant) const;
  /// The blocks that stay free for growing sequences if `next` is admitted.
  int32_t num_reserved(const Sequence& next, std::optional<TenantSlot> tenant) const;
  /// The first sequence that waits for an adapter slot; or null.
  const Sequence* first_without_slot() const;
  int32_t slot_for(const Sequence& sequence) const;
  /// The adapter that admits no sequence until its slot is free; kNoAdapter: none.
  int32_t draining() const;
  void give_slot_back(Sequence& sequence);
  /// Whether there are enough free blocks for the next sequence to admit.
  bool can_admit() const;
  void admit(StepPlan& plan);
  PrefillTask& new_prefill(Sequence& sequence);

  // Blocks.
  /// Names those blocks in `blocks` that are full now and have no name.
  void publish(const std::vector<int32_t>& blocks, BlockChain& chain, const Sequence& sequence,
               int32_t num_computed);
  BlockChain next_chain(const BlockChain& chain, const Sequence& sequence) const;
  /// Like the pool's take(), and counted per tenant.
  int32_t take_block(TenantSlot tenant);
  void hold_block(int32_t block, TenantSlot tenant);
  void release_block(int32_t block, TenantSlot tenant);
  /// Gives the first `num_rows_max` running sequences blocks for their next tokens. Returns how
  /// many have them.
  size_t grow_running(int32_t num_rows_max);
  /// Reserves a block for `sequence`; preempts another sequence if necessary. False: `sequence`
  /// itself was preempted.
  bool grow(Sequence& sequence);
  bool may_grow(const Sequence& sequence, const TenantClaims& claims) const;
  /// The sequence to preempt so that `growing` gets a block.
  Sequence& victim_for(Sequence& growing) const;
  void preempt(Sequence& sequence);
  /// Preempts sequences without a row in `plan` that found blocks which the failed plan should have
  /// written.
  void preempt_readers(const StepPlan& plan);
  /// Removes `sequence` from the list of its state.
  void leave(Sequence& sequence);
  void release(std::vector<int32_t>& blocks, TenantSlot tenant);
  /// Visits all sequences that own blocks, or wait for a prefill that owns some.
  template <class Visit>
  void visit_with_blocks(const Visit& visit) const;
  /// Gives `sequence`, sampled from `prefill`, its own blocks, or those of the prefill if it is
  /// last.
  void assign_blocks(PrefillTask& prefill, Sequence& sequence, bool is_last);
  /// Before the last token of a complete prompt is computed again: copies its block if it is
  /// shared, so that no shared block is written.
  bool copy_shared_last_block(PrefillTask& prefill);

  // Building the plan.
  void begin(StepPlan& plan);
  /// Tokens that the step in progress samples for it: at most one.
  int32_t num_unknown_tokens(const Sequence& sequence) const;
  /// Whether it samples another token after that.
  bool samples_another(const Sequence& sequence) const;
  bool needs_block(const Sequence& sequence) const;
  /// Whether all continuing sequences may have the blocks for that.
  bool can_grow_ahead() const;
  void add_sample(StepPlan& plan, int32_t row, Sequence& sequence) const;
  void add_decode(StepPlan& plan, Sequence& sequence);
  void add_chunk(StepPlan& plan, PrefillTask& prefill, int32_t num_rows);
  void add_span(RowBatch& rows, const std::vector<int32_t>& blocks, int32_t begin, int32_t end,
                const Sequence& sequence) const;
  /// Adds samples for the sequences that wait for the complete `prefill`, up to the step's limit.
  void add_samples(StepPlan& plan, PrefillTask& prefill);
  /// The first `num_decodes` spans are decode rows, and stay first.
  void group_by_adapter(StepPlan& plan, size_t num_decodes);

  void finish_prefill(PrefillTask& prefill);
  /// Ends the sequence with this step, without kept sets.
  void end_early(Sequence& sequence, FinishReason reason, std::string detail);
  /// A failed sequence's blocks lose their names: its keys may be the cause of the failure.
  void withdraw(const Sequence& sequence);
  void finish(Sequence& sequence, FinishReason reason, std::string detail = {});

  const SchedulerLimits limits_;
  mutable BlockHasher hasher_;           // mutable: its scratch memory changes
  mutable std::vector<int32_t> tokens_;  // scratch: tokens of a block
  RowBatch grouped_;                     // scratch: rows in the new order
  std::vector<int32_t> new_rows_;        // scratch: the new index of each row
  std::unique_ptr<KvEventLog> events_;   // null: events are off
  BlockPool pool_;
  AdapterSlots slots_;
  VersionsByKey versions_;  // empty: no version was applied yet
  std::unordered_map<uint64_t, std::unique_ptr<Sequence>> sequences_;
  WaitingQueue waiting_;
  TenantClaims places_;        // of max_running; every sequence that does not wait has one slot
  TenantClaims block_claims_;  // of the pool; each block belongs to one tenant
  std::vector<std::unique_ptr<PrefillTask>> prefilling_;  // in order of admission
  std::vector<Sequence*> running_;                        // in order
  std::vector<Sequence*> held_;
  std::vector<LeftSequence> left_;
  std::vector<RowCopy> copies_;  // to run before the next forward pass
  std::vector<PrefillEvent> prefilled_;
  std::vector<FinishEvent> finished_;
  uint64_t num_arrived_ = 0;
  int32_t num_prefilling_ = 0;   // sequences
  int32_t num_in_progress_ = 0;  // planned steps that are not finished
  uint64_t num_plans_ = 0;
  bool has_preempted_ = false;  // in this step
  EngineState totals_;          // only the running totals
};

}  // namespace primerl
