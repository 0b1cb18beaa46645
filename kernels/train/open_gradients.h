/// OpenGradients: the first halves of the steps that clients ask a learner for. It divides the
/// calls of accumulate() into passes and counts what is open.
///
/// `slot`: the weights that one optimizer trains. The gradients are with the runner; the first call
/// after an update or a discard clears them, so a discard costs nothing. One thread: that of its
/// learner.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/train/learner.h"
#include "kernels/train/objective.h"
#include "kernels/train/packing.h"

namespace primerl {

/// The operations of a learner that accumulate() needs. Errors are values; it throws nothing.
class AccumulateRunner {
 public:
  struct Division {
    std::vector<MicroBatch> micro_batches;
    double flops = 0;  // of all of them; 0: not known
  };
  /// Rows of a micro-batch, unless one datum is longer.
  virtual int32_t rows_wanted() const = 0;
  /// Divides a checked batch by pack(); the random keys are from `first_draws` on. `clears`: also
  /// clears the gradients of the slot.
  virtual Result<Division> divide(size_t slot, const LossBatch& batch, uint64_t first_draws,
                                  bool clears) = 0;
  /// Forward and backward of `batch`, whose targets all belong to `part`.
  virtual Status learn_part(size_t slot, const MicroBatch& batch, const LearnedPart& part) = 0;
  /// The same forward only: adds no gradient.
  virtual Status score_part(size_t slot, const MicroBatch& batch, const LearnedPart& part) = 0;

 protected:
  ~AccumulateRunner() = default;
};

class OpenGradients {
 public:
  /// `runner` must stay valid while this object exists, or own it.
  explicit OpenGradients(AccumulateRunner& runner) : runner_(runner) {}

  /// As the calls of Learner, for checked batches of the tenant of `slot`.
  Result<LossResult> accumulate(size_t slot, const LossBatch& batch,
                                const StopRequested& stop_requested);
  std::optional<Result<LossResult>> accumulate_pass(size_t slot,
                                                    const std::shared_ptr<const LossBatch>& batch,
                                                    const StopRequested& stop_requested);
  /// Rows of the next pass of an unfinished call with `batch`, else an upper bound of the first.
  int64_t next_rows(size_t slot, const LossBatch& batch) const;

  /// Whether a call with this batch needs another pass.
  bool is_running(size_t slot, const LossBatch& batch) const;
  bool has_open(size_t slot) const;
  /// Whether a call needs another pass, also one that is forward only.
  bool has_unfinished(size_t slot) const { return running_.contains(slot); }
  /// Refuses `what`, "a checkpoint", while the slot has open gradients.
  Status check_none(size_t slot, std::string_view what) const;
  /// The same, and while a call is not finished: a training step would change the weights between
  /// two of its passes.
  Status check_may_step(size_t slot) const;
  /// A report with the sums of all calls; an error if none is open or a call is not finished.
  Result<TrainReport> report(size_t slot) const;
  /// Nothing is open any more.
  void close(size_t slot);

 private:
  struct Open {
    int32_t num_calls = 0;
    int32_t num_micro_batches = 0;
    uint64_t num_data = 0;
    double flops = 0;
    LossTotals totals;
  };
  struct Running {
    std::shared_ptr<const LossBatch> owned;  // set if the call continues in later work calls
    bool forward_only = false;
    Objective objective;
    AccumulateRunner::Division division;
    size_t next = 0;  // micro-batch
    LossResult result;

    size_t num_micro_batches() const { return division.micro_batches.size(); }
  };

  Status begin(size_t slot, const LossBatch& batch);
  Status run_next(size_t slot, Running& running);
  std::optional<Result<LossResult>> pass(size_t slot, const StopRequested& stop_requested);
  Error failed(size_t slot, Error fault);
  LossResult finish(size_t slot);

  AccumulateRunner& runner_;
  std::map<size_t, Open> open_;        // slots with finished calls
  std::map<size_t, Running> running_;  // slots with an unfinished call
};

}  // namespace primerl
