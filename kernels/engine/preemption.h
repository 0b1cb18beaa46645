/// Preemption: gives running sequences the blocks they grow into, and takes them from others if
/// none is free. A part of BatchScheduler, whose page has the rules.
#pragma once

#include "kernels/engine/sequence_table.h"

namespace primerl {

class Preemption {
 public:
  /// `table` must stay valid while it exists.
  explicit Preemption(SequenceTable& table) : table_(table) {}

  /// Gives the first `num_rows_max` running sequences blocks for their next tokens. Returns how
  /// many have them.
  size_t grow_running(int32_t num_rows_max);
  /// Whether all sequences that continue after the step in progress may have blocks for that,
  /// without a preemption.
  bool can_grow_ahead() const;
  /// Preempts sequences without a row in `plan` that found blocks which the failed plan should have
  /// written.
  void preempt_readers(const StepPlan& plan);

 private:
  /// Reserves a block for `sequence`; preempts another sequence if necessary. False: `sequence`
  /// itself was preempted.
  bool grow(Sequence& sequence);
  bool may_grow(const Sequence& sequence, const TenantClaims& claims) const;
  /// The sequence to preempt so that `growing` gets a block.
  Sequence& victim_for(Sequence& growing) const;
  /// Visits all sequences that own blocks, or wait for a prefill that owns some.
  template <class Visit>
  void visit_with_blocks(const Visit& visit) const;

  SequenceTable& table_;
};

}  // namespace primerl
