/// TenantSteps: the steps of a learner's tenants, divided into passes over the model that several
/// of them share.
///
/// A pass has at most one micro-batch of each step, the same as when the step runs alone, in the
/// order of the adapters. Steps that measure first do so one micro-batch at a time, alone. A shared
/// pass has at most `rows_max` rows. A queued step runs one pass at a time, so that passes of other
/// steps can run between. If a pass fails, each of its steps is run alone. Not thread-safe: used on
/// its learner's thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/train/learner.h"
#include "kernels/train/loss.h"
#include "kernels/train/packing.h"

namespace primerl {

/// One step in progress.
struct StepInProgress {
  size_t index = 0;                         // index of its batch in the call
  std::shared_ptr<const TrainBatch> owned;  // set if the step continues in later work calls
  const TrainBatch* batch = nullptr;
  size_t trained = 0;    // index of the learner's weights that it trains
  int32_t adapter = -1;  // RowSpan::adapter value of its rows
  const Objective* objective = nullptr;
  TrainReport report;
  std::vector<MicroBatch> micro_batches;
  size_t num_measured = 0;  // micro-batches that were measured or need not be
  size_t next = 0;          // micro-batch
  LossSums sums;

  bool is_measuring() const { return num_measured < micro_batches.size(); }
  bool is_done() const { return next == micro_batches.size(); }
};

/// The operations of a learner that a step needs. Errors are values; it throws nothing.
class StepRunner {
 public:
  /// Checks the batch and clears the gradient that its passes add to. If the report says skipped,
  /// the step gets no further calls.
  virtual Result<StepInProgress> begin_step(const TrainBatch& batch) = 0;
  /// Runs the next micro-batch of a step that is_measuring() forward only, and plans the step after
  /// the last one (step_targets.h).
  virtual Status measure(StepInProgress& step) = 0;
  /// Runs the model over a pass, forward and backward; its targets belong to `parts`.
  virtual Status run_pass(const MicroBatch& pass, std::span<const LearnedPart> parts) = 0;
  /// Updates the weights after the last pass.
  virtual Result<TrainReport> end_step(StepInProgress& step) = 0;
  /// True if a debug observer has found a fault: the remaining passes are left out.
  virtual bool has_debug_fault() const = 0;
  virtual bool shares_passes() const = 0;

 protected:
  ~StepRunner() = default;
};

class TenantSteps {
 public:
  /// `runner` must stay valid while this object exists, or own it.
  TenantSteps(StepRunner& runner, int32_t rows_max) : runner_(runner), rows_max_(rows_max) {}

  /// Learner::step(), step_together() and pass_together(); the last two only if the runner shares
  /// passes.
  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop_requested);
  std::vector<Result<TrainReport>> step_together(std::span<const TrainBatch* const> batches,
                                                 const StopRequested& stop_requested);
  std::vector<std::optional<Result<TrainReport>>> pass_together(
      std::span<const std::shared_ptr<const TrainBatch>> batches,
      const StopRequested& stop_requested);
  /// Rows of the next pass of a divided step of `num_tokens` tokens.
  int64_t next_tokens(const TrainBatch& batch, int64_t num_tokens) const;
  /// Whether the step of `batch` had a pass and needs another.
  bool has_more_passes(const TrainBatch& batch) const {
    const auto found = unfinished_.find(batch.tenant);
    return found != unfinished_.end() && found->second->batch == &batch;
  }
  /// Whether a step of the tenant had a pass and needs another.
  bool has_unfinished(TenantSlot tenant) const { return unfinished_.contains(tenant); }
  void discard(TenantSlot tenant) { unfinished_.erase(tenant); }

 private:
  Status run_passes(std::span<StepInProgress> steps, const StopRequested& stop_requested);
  Status run_pass(std::span<StepInProgress* const> steps, const StopRequested& stop_requested);

  StepRunner& runner_;
  const int32_t rows_max_;
  /// Steps that need another pass.
  std::map<TenantSlot, std::shared_ptr<StepInProgress>> unfinished_;
};

}  // namespace primerl
