/// TenantSteps: the steps of a learner's tenants, cut into passes over the model that several of
/// them share.
///
/// A pass has at most one micro-batch of each step, as it is when the step is alone, in the order
/// of the adapters, and at most `rows_max` rows where there are several. In line a step takes a
/// pass at a time, so that those of others come between. If something breaks a pass, each step of
/// it is taken alone. Not thread-safe: lives on its learner's thread.
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

/// One step that is under way.
struct StepUnderWay {
  size_t index = 0;                         // of its batch among those of a call
  std::shared_ptr<const TrainBatch> owned;  // of a step that goes on in later turns
  const TrainBatch* batch = nullptr;
  size_t trained = 0;    // which of the learner's sets of weights it is a step of
  int32_t adapter = -1;  // RowSpan::adapter of its rows
  const LossOptions* loss = nullptr;
  TrainReport report;
  std::vector<MicroBatch> micro_batches;
  size_t next = 0;  // micro-batch
  LossSums sums;

  bool is_done() const { return next == micro_batches.size(); }
};

/// What a learner does for its steps. An error is a value; nothing is thrown.
class StepRunner {
 public:
  /// Checks the batch and clears the gradient that its passes add to. Nothing more is asked of a
  /// step whose report is skipped.
  virtual Result<StepUnderWay> begin_step(const TrainBatch& batch) = 0;
  /// Runs the model over a pass, whose targets belong to `parts`, forward and backward.
  virtual Status run_pass(const MicroBatch& pass, std::span<const LearnedPart> parts) = 0;
  /// Updates the weights after the last pass.
  virtual Result<TrainReport> end_step(StepUnderWay& step) = 0;
  /// Someone looks at the passes and has seen enough: the steps are ended without the others.
  virtual bool is_found_broken() const = 0;
  virtual bool shares_passes() const = 0;

 protected:
  ~StepRunner() = default;
};

class TenantSteps {
 public:
  /// `runner` outlives it, or is its owner.
  TenantSteps(StepRunner& runner, int32_t rows_max) : runner_(runner), rows_max_(rows_max) {}

  /// Learner::step(), step_together() and pass_together(); the latter two where the runner shares
  /// passes.
  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop_requested);
  std::vector<Result<TrainReport>> step_together(std::span<const TrainBatch* const> batches,
                                                 const StopRequested& stop_requested);
  std::vector<std::optional<Result<TrainReport>>> pass_together(
      std::span<const std::shared_ptr<const TrainBatch>> batches,
      const StopRequested& stop_requested);
  /// Rows of the next pass of a step of `num_tokens` tokens that is divided.
  int64_t next_tokens(const TrainBatch& batch, int64_t num_tokens) const;
  /// Whether the step of `batch` has had a pass and has another to come.
  bool goes_on(const TrainBatch& batch) const {
    const auto found = going_on_.find(batch.tenant);
    return found != going_on_.end() && found->second->batch == &batch;
  }
  void discard(TenantSlot tenant) { going_on_.erase(tenant); }

 private:
  Status run_passes(std::span<StepUnderWay> steps, const StopRequested& stop_requested);
  Status run_pass(std::span<StepUnderWay* const> steps, const StopRequested& stop_requested);

  StepRunner& runner_;
  const int32_t rows_max_;
  /// Steps of which another pass is to come.
  std::map<TenantSlot, std::shared_ptr<StepUnderWay>> going_on_;
};

}  // namespace primerl
