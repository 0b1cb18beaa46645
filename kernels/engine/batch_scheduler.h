/// Decides what an engine computes next: which sequences run, which prompts advance, who holds
/// blocks.
///
/// Knows nothing of models: it turns submitted sequences into StepPlans (rows of one forward pass)
/// and takes the sampled tokens back. One thread.
///
///   WAITING -> PREFILLING -> HELD -> (take_over) RUNNING -> ended
///      ^           |           |                    |
///      +-----------+-----------+------ preempted ---+
///
/// Order is by priority, then first come, first served; who waits is admitted in the order of
/// waiting_queue.h, which shares the engine between tenants; how many places and KV blocks one may
/// have is said by tenant_claims.h. A step has at most max_batched_tokens rows: running sequences
/// decode first, then prompts advance in chunks (of max_prefill_tokens together while anything
/// decodes, so that a long prompt does not hold up who runs), then the first waiting sequence is
/// admitted while it fits. A step samples at most max_batched_tokens tokens; a row may be sampled
/// from several times, so these are two counts.
///
/// A sequence takes blocks as it grows, before any row of the step is planned. When none is free,
/// or what is free is kept for other tenants, a sequence of the tenant that holds most beyond its
/// part loses its blocks, the last in the order, and waits again; what it had is computed again
/// later, as one prompt. The first of all in the order is never preempted for another, so
/// everything ends (docs/design/inference.md). A step that preempts admits nobody.
///
/// Full blocks are found again by name (block_hash.h): prompts that begin alike compute the common
/// blocks once, in one step or steps apart, and a later turn computes only what is new. At least
/// the last token of a prompt is computed again, for what follows it. Blocks that a preempted
/// sequence computes again under newer weights stay its own: under the old salt nobody finds them.
/// Sequences with equal key, salt and prompt that wait together compute it once, to its last token,
/// and copy what lies behind the last full block. A prompt whose log-probabilities are asked for is
/// computed from its first token; those who wait for it with it share them.
///
/// Rows of one adapter lie together in a plan, among those that decode, which come first, and among
/// those of prompts. An adapter lies in a slot while any of its sequences is admitted
/// (adapter_slots.h). One whose adapter is in no slot waits, and those of other adapters go on; the
/// first such one gets a slot that nobody holds, of an adapter whose own prompts do not wait for
/// longer. Where all slots are held and it is next of all, the adapter that has been held for
/// longest admits nothing more until its slot is free: so nobody waits for ever. The engine brings
/// adapters into their slots between steps.
///
/// An engine may plan a decode step before the tokens of the one before it are known:
/// plan_ahead(). Its rows name those tokens by their place. Who turns out to have ended has a row
/// there all the same, whose token nobody takes. What that row writes lies behind the sequence's
/// last token, in a block without a name; whoever is given the block writes it in a later step.
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
  EngineOptions options;  // max_sequence_tokens resolved, not 0
  int32_t vocab_size = 0;
  std::vector<int32_t> eos_ids;
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;  // for stop texts; null: none are taken
  std::string fingerprint = {};                          // of the model, in the names of blocks
};

struct PrefillTask;

/// A sequence inside the engine.
struct Sequence {
  enum class State : uint8_t { kWaiting, kPrefilling, kHeld, kRunning };
  SequenceRequest request;
  uint64_t prompt_hash = 0;
  uint64_t arrival = 0;          // unique; rises
  int32_t adapter = kNoAdapter;  // number of the adapter that makes its tokens
  bool has_slot = false;         // it holds its adapter's
  State state = State::kWaiting;
  StopRule stop;
  std::unique_ptr<LogitsProcessor> processor;  // null: its logits are as the model gives them
  bool was_told = false;                       // its PrefillEvent was taken
  bool was_taken_over = false;
  bool ended = false;       // held, but its only token was already the last
  bool has_left = false;    // its end was told; steps under way may still have a row of it
  uint64_t last_plan = 0;   // the last that samples from it
  int32_t last_sample = 0;  // its place there
  FinishReason reason = FinishReason::kLength;
  int32_t num_cached_tokens = 0;
  std::optional<PolicyVersion> began;  // weights under which it was first admitted
  PrefillTask* prefill = nullptr;      // while prefilling
  std::vector<BlockChain> chains;      // of its first full blocks, to look them up; while waiting
  // Empty while waiting, and when preempted while held.
  std::vector<int32_t> blocks;  // block i holds the positions from i * block_size on
  BlockChain chain;             // of its named blocks
  bool publishes = false;       // its next full block gets a name
  std::vector<int32_t> tokens;  // generated
  std::vector<float> logprobs;
  std::vector<VersionSpan> spans;
  std::vector<std::byte> kept;             // kept_sets.h; whoever samples appends
  std::vector<TokenLogprob> top_logprobs;  // likewise
  std::vector<float> prompt_logprobs;
  std::string detail;  // why, when refused or failed

  int32_t num_prompt_tokens() const { return static_cast<int32_t>(request.prompt_tokens.size()); }
  /// Prompt and generated tokens.
  int32_t size() const { return num_prompt_tokens() + static_cast<int32_t>(tokens.size()); }
  int32_t token(int32_t position) const {
    const int32_t generated = position - num_prompt_tokens();
    return generated < 0 ? request.prompt_tokens[static_cast<size_t>(position)]
                         : tokens[static_cast<size_t>(generated)];
  }
  /// Its prompt is still to be computed whole, for the log-probabilities of its tokens.
  bool needs_prompt_logprobs() const {
    return request.sampling.prompt_logprobs && num_prompt_tokens() > 1 && prompt_logprobs.empty();
  }
};

/// The order: lower priority first, then who came first.
inline bool is_before(const Sequence* a, const Sequence* b) {
  return std::pair(a->request.priority, a->arrival) < std::pair(b->request.priority, b->arrival);
}

/// Tokens on their way into the cache: the prompt of the sequences that wait for it, or all tokens
/// of one that was preempted.
struct PrefillTask {
  std::vector<Sequence*> waiting;  // want a token sampled when it is complete, in order; never none
  size_t num_sampled = 0;          // of them, by the current plan
  std::vector<int32_t> blocks;     // of all its tokens
  int32_t num_found = 0;           // of them, the first: found in the cache
  BlockChain chain;
  bool publishes = false;
  bool is_again = false;        // what a preempted sequence had
  bool has_shared_end = false;  // others hold, or find, the block of the last token
  int32_t num_tokens = 0;
  int32_t num_computed = 0;  // tokens whose key and value are in the cache
  int32_t last_row = -1;     // of its last token in the current plan
  bool scores_prompt = false;
  std::vector<float> prompt_logprobs;  // of its tokens but the first, where it scores them

  const Sequence& first() const { return *waiting.front(); }
  bool is_complete() const { return num_computed == num_tokens; }
};

/// Cache rows [from, from + num_rows) are also those of [to, to + num_rows).
struct RowCopy {
  int32_t from = 0, to = 0, num_rows = 0;
};

/// In place of a token: what sample `place` of the step before draws. Its own inverse.
constexpr int32_t token_of_sample(int32_t place) { return -1 - place; }

/// One forward pass: what is copied before it, its rows, and the rows from which a token is
/// sampled. In a step that was planned ahead a token of `rows` may be token_of_sample() the one
/// before.
struct StepPlan {
  struct Sample {
    int32_t row = 0;
    Sequence* sequence = nullptr;
  };
  /// The log-probability of `token` after `row`, of the model's own distribution.
  struct Score {
    int32_t row = 0;
    int32_t token = 0;
    PrefillTask* prefill = nullptr;
  };
  std::vector<RowCopy> copies;  // in this order
  RowBatch rows;
  std::vector<Sample> samples;
  std::vector<Score> scores;           // taken in this order
  std::vector<PrefillTask*> prefills;  // of which there are rows
};

class BatchScheduler {
 public:
  explicit BatchScheduler(SchedulerLimits limits);

  /// `adapter`: the number of the one that makes its tokens; with one, there are adapter_slots.
  Status submit(SequenceRequest request, int32_t adapter = kNoAdapter);
  Status take_over(SequenceId id);
  void abort(SequenceId id);
  void expire(SequenceId id);
  /// From now on tokens of requests of `key` are made by `version`. At most kWeightsKeysMax keys.
  void set_version(WeightsKey key, PolicyVersion version);
  const VersionsByKey& versions() const { return versions_; }

  /// The adapter that is to be brought into a slot now, in as many parts as the engine likes; then
  /// slots().finish(). The same until then; none: nobody waits for one, or no slot is free.
  const std::optional<AdapterSlots::Load>& next_load();
  AdapterSlots& slots() { return slots_; }

  /// Fills `plan` with the next step; false when there is nothing to do. Then either accept() of
  /// all and finish_step(), or fail_step(): names of blocks count on the step.
  bool plan(StepPlan& plan);
  /// Fills `plan` with the step after the only one under way, of which nothing was accepted yet: a
  /// token for every running sequence that does not end with max_tokens before. False where those
  /// tokens must be known first: nobody goes on, a prompt may advance, rows are to be copied, or a
  /// block would have to be taken from somebody. Then the earlier of the two is accepted and
  /// finished, or failed; then any call but plan() may come. Between plan() and accept() nothing
  /// but plan_ahead() is called.
  bool plan_ahead(StepPlan& plan);
  /// Takes one sampled token of a plan, whose kept set and top log-probabilities have been
  /// appended to the sequence. One with more of the former than kKeptBytesMax ends as refused, one
  /// whose log-probability is not finite as failed, without this token. Of a sequence that has left
  /// it is dropped.
  void accept(Sequence& sequence, int32_t token, float logprob);
  void accept(const StepPlan::Score& score, float logprob) {
    score.prefill->prompt_logprobs.push_back(logprob);
  }
  /// Moves the sequences of a plan on: prefilled ones are held, ended ones leave.
  void finish_step();
  /// The step of `plan` was not computed: its sequences end as failed, those whose
  /// prompt it was in when they are taken over. Prompts that only found blocks of it begin again.
  void fail_step(const StepPlan& plan, const std::string& why);

  bool has_work() const;
  std::vector<PrefillEvent> take_prefilled();
  std::vector<FinishEvent> take_finished() { return std::exchange(finished_, {}); }
  /// Of the blocks that can be found; none where options.kv_events_bytes_max is 0. Taken once a
  /// step, none is dropped.
  KvEvents take_kv_events();
  const BlockPool& blocks() const { return pool_; }
  EngineState state() const;

 private:
  /// Kept until the steps are finished that may have a row of it.
  struct LeftSequence {
    std::unique_ptr<Sequence> sequence;
    int32_t num_steps = 0;
  };

  int32_t blocks_for(int64_t num_tokens) const;
  int32_t samples_left(const StepPlan& plan) const;
  int32_t num_queued() const;

  // Into the lists, in order.
  void enqueue(Sequence& sequence);
  void run(Sequence& sequence);
  void dequeue(Sequence& sequence);

  // Admission (these and all on blocks: scheduler_blocks.cc).
  /// The prompt on its way that `sequence` may wait for, too; or null.
  PrefillTask* shared_prefill(const Sequence& sequence) const;
  /// How many of the first blocks of `sequence` the pool has; its last token is never in them.
  int32_t num_cached_blocks(Sequence& sequence) const;
  /// The first that waits, whose tenant may have what it needs and whose adapter, if it has one, is
  /// in a slot; or null.
  Sequence* next_to_admit() const;
  bool may_admit(Sequence& sequence) const;
  /// Whether `may_take` lets it have as many blocks as it needs, beside `num_held` of which some
  /// may be its own beginning.
  template <class MayTake>
  bool has_room(Sequence& sequence, int32_t num_held, const MayTake& may_take) const;
  /// How many blocks fewer are free once it is admitted, and computes its prompt alone.
  int32_t num_to_take(Sequence& sequence) const;
  /// How many sequences hold blocks and will soon want another; of `tenant`, or of all.
  int32_t num_growing(std::optional<TenantSlot> tenant) const;
  /// The blocks that stay free for them where `next` is admitted.
  int32_t num_reserved(const Sequence& next, std::optional<TenantSlot> tenant) const;
  /// The first that waits for a slot; or null.
  const Sequence* first_without_slot() const;
  int32_t slot_for(const Sequence& sequence) const;
  /// The adapter that admits nothing until its slot is free; kNoAdapter: none.
  int32_t draining() const;
  void give_slot_back(Sequence& sequence);
  /// Whether the next to admit has room.
  bool can_admit() const;
  void admit(StepPlan& plan);
  PrefillTask& new_prefill(Sequence& sequence);

  // Blocks.
  /// Names the blocks of `blocks` that are full now and have no name.
  void publish(const std::vector<int32_t>& blocks, BlockChain& chain, const Sequence& sequence,
               int32_t num_computed);
  BlockChain next_chain(const BlockChain& chain, const Sequence& sequence) const;
  /// Like the pool's, and counted by tenant.
  int32_t take_block(TenantSlot tenant);
  void hold_block(int32_t block, TenantSlot tenant);
  void release_block(int32_t block, TenantSlot tenant);
  /// Gives the first `num_rows_max` running sequences the blocks of their next tokens; how many
  /// have them.
  size_t grow_running(int32_t num_rows_max);
  /// Takes a block for `sequence`, from another if need be. False: it lost its own and waits again.
  bool grow(Sequence& sequence);
  bool may_grow(const Sequence& sequence, const TenantClaims& claims) const;
  /// Who loses its blocks so that `growing` may have one.
  Sequence& victim_for(Sequence& growing) const;
  void preempt(Sequence& sequence);
  /// Those whose prompts have no row in `plan`, and have found blocks that it was to write.
  void preempt_readers(const StepPlan& plan);
  /// Takes `sequence` out of the list of its state.
  void leave(Sequence& sequence);
  void release(std::vector<int32_t>& blocks, TenantSlot tenant);
  /// All that have blocks, or wait for the prompt that has some.
  template <class Visit>
  void visit_with_blocks(const Visit& visit) const;
  /// Gives `sequence`, sampled from `prefill`, blocks of its own, or those of the prefill.
  void settle(PrefillTask& prefill, Sequence& sequence, bool is_last);
  /// Before the last token of a complete prompt is computed again: nobody else's block is written.
  bool copy_shared_last_block(PrefillTask& prefill);

  // The plan.
  void begin(StepPlan& plan);
  /// Tokens that the step under way draws for it: at most one.
  int32_t num_coming(const Sequence& sequence) const;
  /// Whether it draws another one after that.
  bool goes_on(const Sequence& sequence) const;
  bool needs_block(const Sequence& sequence) const;
  /// Whether all that go on may have the blocks for that.
  bool can_grow_ahead() const;
  void add_sample(StepPlan& plan, int32_t row, Sequence& sequence) const;
  void add_decode(StepPlan& plan, Sequence& sequence);
  void add_chunk(StepPlan& plan, PrefillTask& prefill, int32_t num_rows);
  void add_span(RowBatch& rows, const std::vector<int32_t>& blocks, int32_t begin, int32_t end,
                const Sequence& sequence) const;
  /// Samples for those who wait for the complete `prefill`, as many as the step still may.
  void add_samples(StepPlan& plan, PrefillTask& prefill);
  /// The first spans are of those that decode, and stay the first.
  void group_by_adapter(StepPlan& plan, size_t num_decodes);

  void hand_on(PrefillTask& prefill);
  /// It ends with this step, without kept sets.
  void end_early(Sequence& sequence, FinishReason reason, std::string detail);
  /// What failed must not be found again: its keys may be what made it fail.
  void withdraw(const Sequence& sequence);
  void finish(Sequence& sequence, FinishReason reason, std::string detail = {});

  const SchedulerLimits limits_;
  mutable BlockHasher hasher_;           // its scratch changes
  mutable std::vector<int32_t> tokens_;  // scratch: of a block
  RowBatch grouped_;                     // scratch: rows in another order
  std::vector<int32_t> new_rows_;        // scratch: where each row went
  std::unique_ptr<KvEventLog> events_;   // null: nobody asked for any
  BlockPool pool_;
  AdapterSlots slots_;
  VersionsByKey versions_;  // empty: nothing was applied yet
  std::unordered_map<uint64_t, std::unique_ptr<Sequence>> sequences_;
  WaitingQueue waiting_;
  TenantClaims places_;        // of max_running: whoever does not wait has one
  TenantClaims block_claims_;  // of the pool, whose blocks belong to one tenant each
  std::vector<std::unique_ptr<PrefillTask>> prefilling_;  // in order of admission
  std::vector<Sequence*> running_;                        // in order
  std::vector<Sequence*> held_;
  std::vector<LeftSequence> left_;
  std::vector<RowCopy> copies_;  // due before the next forward pass
  std::vector<PrefillEvent> prefilled_;
  std::vector<FinishEvent> finished_;
  uint64_t num_arrived_ = 0;
  int32_t num_prefilling_ = 0;  // sequences
  int32_t num_under_way_ = 0;   // steps that were planned and not finished
  uint64_t num_plans_ = 0;
  bool has_preempted_ = false;  // in this step
  EngineState totals_;          // running totals alone
};

}  // namespace primerl
