/// SequenceTable: the sequences of an engine by state, each list in order, and the running slots,
/// adapter slots and blocks that they own. The parts of a BatchScheduler share one: Admission,
/// Preemption and StepBuilder. Used by one thread.
///
/// The order is by priority, then first come, first served. Every sequence that does not wait has a
/// running slot, which counts for its tenant.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "kernels/engine/adapter_slots.h"
#include "kernels/engine/sequence.h"
#include "kernels/engine/sequence_blocks.h"
#include "kernels/engine/tenant_claims.h"
#include "kernels/engine/waiting_queue.h"

namespace primerl {

struct SequenceTable {
  explicit SequenceTable(SchedulerLimits of);
  SequenceTable(const SequenceTable&) = delete;
  SequenceTable& operator=(const SequenceTable&) = delete;

  // Inserts `sequence` into the list of its state, in order.
  void enqueue(Sequence& sequence);
  void run(Sequence& sequence);
  /// Removes `sequence` from the list of its state.
  void leave(Sequence& sequence);
  void give_slot_back(Sequence& sequence);
  /// It loses its blocks and waits again, after take_over() if it is held.
  void preempt(Sequence& sequence);

  /// Tokens that the step in progress samples for it: at most one.
  int32_t num_unknown_tokens(const Sequence& sequence) const;
  /// Whether it samples another token after that.
  bool samples_another(const Sequence& sequence) const;
  bool needs_block(const Sequence& sequence) const;

  /// Gives `sequence`, sampled from `prefill`, its own blocks, or those of the prefill if it is
  /// last.
  void assign_blocks(PrefillTask& prefill, Sequence& sequence, bool is_last);
  /// Before the last token of a complete prompt is computed again: copies its block if it is
  /// shared, so that no shared block is written. False: no block is free for the copy.
  bool copy_shared_last_block(PrefillTask& prefill);

  const SchedulerLimits limits;
  VersionsByKey versions;  // empty: no version was applied yet
  SequenceBlocks blocks;
  AdapterSlots slots;
  std::unordered_map<uint64_t, std::unique_ptr<Sequence>> sequences;
  WaitingQueue waiting;
  TenantClaims run_claims;                               // of max_running
  std::vector<std::unique_ptr<PrefillTask>> prefilling;  // in order of admission
  std::vector<Sequence*> running;                        // in order
  std::vector<Sequence*> held;
  std::vector<RowCopy> copies;  // to run before the next forward pass
  int32_t num_prefilling = 0;   // sequences
  int32_t num_in_progress = 0;  // planned steps that are not finished
  uint64_t num_plans = 0;
  bool has_preempted = false;  // in this step
  EngineState totals;          // only the running totals

 private:
  void dequeue(Sequence& sequence);
};

}  // namespace primerl
