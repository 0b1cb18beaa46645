/// StepBuilder: the rows, samples and scores of one step. A part of BatchScheduler, whose page has
/// the rules.
#pragma once

#include <vector>

#include "kernels/engine/sequence_table.h"

namespace primerl {

class StepBuilder {
 public:
  /// `table` must stay valid while it exists.
  explicit StepBuilder(SequenceTable& table) : table_(table) {}

  void begin(StepPlan& plan);
  int32_t samples_left(const StepPlan& plan) const;
  void add_decode(StepPlan& plan, Sequence& sequence);
  void add_chunk(StepPlan& plan, PrefillTask& prefill, int32_t num_rows);
  /// Adds samples for the sequences that wait for the complete `prefill`, up to the step's limit.
  void add_samples(StepPlan& plan, PrefillTask& prefill);
  /// The first `num_decodes` spans are decode rows, and stay first.
  void group_by_adapter(StepPlan& plan, size_t num_decodes);

 private:
  void add_sample(StepPlan& plan, int32_t row, Sequence& sequence) const;
  void add_span(RowBatch& rows, const std::vector<int32_t>& blocks, int32_t begin, int32_t end,
                const Sequence& sequence) const;

  SequenceTable& table_;
  RowBatch grouped_;               // scratch: rows in the new order
  std::vector<int32_t> new_rows_;  // scratch: the new index of each row
};

}  // namespace primerl
