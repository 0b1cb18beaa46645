/// TracedLearner: a Learner that records its answers, or repeats those of a record.
///
/// With the answers in the trace, the Trainer can be replayed without computing a gradient (`replay
/// --depth control`). Of a step only the TrainReport is recorded; the snapshots of a recorded
/// learner have a version but no tensors, which are not needed at that depth. This is the one place
/// that knows what a record holds of a learner: a new method of Learner is one more method here.
///
/// Threads: those of the learner that it replaces.
#pragma once

#include <memory>

#include "kernels/train/learner.h"
#include "runtime/replay/traced_calls.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

/// What a cut holds of a learner; its weights are in checkpoints.
struct LearnerProgress {
  int64_t num_steps = 0;  // taken since the recorded start, without skipped ones
  PolicyVersion newest;   // of which a snapshot was taken

  template <class F>
  static void fields(F& f) {
    f("num_steps", &LearnerProgress::num_steps)("newest", &LearnerProgress::newest);
  }
};

class TracedLearner : public Learner {
 public:
  /// Records the answers of `learner`.
  TracedLearner(std::unique_ptr<Learner> learner, KeepAnswer keep);
  /// Repeats the record while is_replaying(), and asks `learner` when not; null: it always is.
  TracedLearner(std::unique_ptr<Learner> learner, NextAnswer next);
  ~TracedLearner() override;

  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop) override;
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(PolicyVersion version) override;
  Result<std::vector<float>> score(const std::vector<int32_t>& tokens) override;
  Status save(const std::filesystem::path& folder) override;
  Status load(const std::filesystem::path& folder) override;
  SampleLimits limits() const override;
  Status step() override;
  bool has_work() const override;
  Duration take_cost() override;
  std::string describe() const override;
  /// Of one that records: how many steps were taken, as LearnerProgress.
  Blob save_state() const override;
  Status restore_state(const Blob& state) override;

 protected:
  virtual bool is_replaying() const;
  Learner& learner() const { return *learner_; }

 private:
  class Calls;
  const std::unique_ptr<Learner> learner_;
  const std::unique_ptr<const Calls> calls_;
  LearnerProgress progress_;  // of one that records
};

/// Number of training steps in a group's record, without skipped ones, from its step `from` on.
int64_t num_recorded_steps(const Trace& trace, GroupId group, uint64_t from = 0);

}  // namespace primerl
