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
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/engine/admission.h"
#include "kernels/engine/preemption.h"
#include "kernels/engine/sequence_table.h"
#include "kernels/engine/step_builder.h"

namespace primerl {

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
  const VersionsByKey& versions() const { return table_->versions; }
  /// Engine::set_share().
  void set_share(TenantSlot tenant, double share);
  /// Engine::drop(), without the weights: sequences end in the order of their numbers. `adapter`:
  /// the number that the key had, if any; another key may have it next. Not while a step is in
  /// progress.
  void drop(WeightsKey key, std::optional<int32_t> adapter);

  /// The adapter to load into a slot now; the engine may load it in parts, then calls
  /// slots().finish(). Until then the answer stays the same. Empty: no sequence waits for a slot,
  /// or no slot is free.
  const std::optional<AdapterSlots::Load>& next_load() { return admission_.next_load(); }
  AdapterSlots& slots() { return table_->slots; }

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
  /// that has left is dropped. `rank`: FinishEvent::ranks; 0 without top log-probabilities.
  void accept(Sequence& sequence, int32_t token, float logprob, int32_t rank = 0);
  /// `top`: the likeliest tokens at the position, num_prompt_top of the prefill.
  void accept(const StepPlan::Score& score, float logprob, std::span<const TokenLogprob> top = {}) {
    PrefillTask& prefill = *score.prefill;
    prefill.prompt_logprobs.push_back(logprob);
    prefill.prompt_top_logprobs.insert(prefill.prompt_top_logprobs.end(), top.begin(), top.end());
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
  const BlockPool& blocks() const { return table_->blocks.pool; }
  EngineState state() const;

 private:
  /// Kept until all steps that may have a row of it are finished.
  struct LeftSequence {
    std::unique_ptr<Sequence> sequence;
    int32_t num_steps = 0;
  };

  int32_t num_queued() const;
  void finish_prefill(PrefillTask& prefill);
  /// Ends the sequence with this step, without kept sets.
  void end_early(Sequence& sequence, FinishReason reason, std::string detail);
  void finish(Sequence& sequence, FinishReason reason, std::string detail = {});

  std::unique_ptr<SequenceTable> table_;  // its parts refer to it
  Admission admission_{*table_};
  Preemption preemption_{*table_};
  StepBuilder builder_{*table_};
  std::vector<LeftSequence> left_;
  std::vector<PrefillEvent> prefilled_;
  std::vector<FinishEvent> finished_;
  uint64_t num_arrived_ = 0;
  std::set<TenantSlot> ended_;  // tenants without a key, since drop()
};

}  // namespace primerl
