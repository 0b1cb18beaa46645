/// TracedLearner: a Learner that records its answers, or repeats those of a record.
///
/// With the answers in the trace, the Trainer can be replayed without computing a gradient (`replay
/// --depth control`). An answer names its tenant. For a step only the TrainReport is recorded, even
/// if the step shared a forward pass. A queued step records first whether its turn has come, then
/// the answer of the step. The snapshots of a recorded learner have a version but no tensors, which
/// that depth does not need. An apply() is recorded as the training step that it is. The answer of
/// an accumulate() has its log-probabilities in pieces, since they may exceed the limit of a
/// message. Only this class defines what a record keeps of a learner: a new method
/// of Learner needs one new method here.
///
/// Threads: the same as those of the learner that it replaces.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/train/learner.h"
#include "runtime/replay/traced_calls.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

/// Progress of one tenant.
struct TenantProgress {
  int64_t num_steps = 0;   // steps since the recorded start, without skipped ones
  PolicyVersion newest;    // newest version of which a snapshot was made
  bool is_open = false;    // it has open gradients, which no checkpoint has
  bool is_asking = false;  // a queued accumulate has no result yet

  template <class F>
  static void fields(F& f) {
    f("num_steps", &TenantProgress::num_steps)("newest", &TenantProgress::newest)(
        "is_open", &TenantProgress::is_open)("is_asking", &TenantProgress::is_asking);
  }
};

/// A cut's data about a learner; its weights are in checkpoints.
struct LearnerProgress {
  std::map<TenantSlot, TenantProgress> tenants;  // tenants that have called it

  template <class F>
  static void fields(F& f) {
    f("tenants", &LearnerProgress::tenants);
  }
};

class TracedLearner : public Learner {
 public:
  /// Records the answers of `learner`.
  TracedLearner(std::shared_ptr<Learner> learner, KeepAnswer keep);
  /// Repeats the record while is_replaying(), and otherwise calls `learner`. Null: it always
  /// repeats.
  TracedLearner(std::shared_ptr<Learner> learner, NextAnswer next);
  ~TracedLearner() override;
  /// `is_restoring` answers whether a group is being made from a saved state. The state's tenants
  /// had begun before it, so begin_tenant() then has no answer in the record and leaves none.
  void set_is_restoring(std::function<bool()> is_restoring) {
    is_restoring_ = std::move(is_restoring);
  }

  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop) override;
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(TenantSlot tenant,
                                                         PolicyVersion version) override;
  Result<std::vector<float>> score(TenantSlot tenant, const std::vector<int32_t>& tokens) override;
  Result<AnswerLoss> evaluate(const TrainBatch& batch) override;
  /// Not recorded; trainers call begin_save().
  Status save(TenantSlot tenant, const std::filesystem::path& folder) override;
  Status begin_save(LearnerSave save) override;
  std::optional<Status> end_of_save(TenantSlot tenant, Time now) override;
  void set_wake(std::function<void()> wake) override;
  Status load(TenantSlot tenant, const std::filesystem::path& folder) override;
  Status load_weights(TenantSlot tenant, const std::filesystem::path& folder,
                      const std::filesystem::path& others) override;
  SampleLimits limits() const override;
  std::optional<Result<TrainReport>> step_queued(std::shared_ptr<const TrainBatch> batch,
                                                 uint64_t turn, const StopRequested& stop) override;
  Result<LossResult> accumulate(const LossBatch& batch, const StopRequested& stop) override;
  std::optional<Result<LossResult>> accumulate_queued(std::shared_ptr<const LossBatch> batch,
                                                      uint64_t work_call,
                                                      const StopRequested& stop) override;
  Result<TrainReport> apply(TenantSlot tenant, const AdamNumbers& adam) override;
  /// Recorded; end_tenant() answers nothing, and forgets the progress of the tenant.
  Status begin_tenant(const AdapterTraining& tenant) override;
  void end_tenant(TenantSlot tenant) override;
  void set_share(TenantSlot tenant, double share) override {
    if (learner_ != nullptr) learner_->set_share(tenant, share);
  }
  void discard(TenantSlot tenant) override;
  bool has_open_gradients(TenantSlot tenant) const override;
  void leave_queue(TenantSlot tenant) override;
  Status step() override;
  bool has_work() const override;
  Duration take_cost() override;
  std::string describe() const override;
  /// For a learner that records: the number of steps, as LearnerProgress.
  Blob save_state() const override;
  Status restore_state(const Blob& state) override;

 protected:
  /// Whether the answers for `tenant` come from the record.
  virtual bool is_replaying(TenantSlot tenant) const;
  /// Whether answers for no particular tenant come from the record.
  virtual bool is_replaying() const;
  Learner& learner() const { return *learner_; }
  void set_progress(LearnerProgress progress) { progress_ = std::move(progress); }
  void forget_progress(TenantSlot tenant) { progress_.tenants.erase(tenant); }
  bool is_restoring() const { return is_restoring_ != nullptr && is_restoring_(); }
  /// The recorded answer to begin_tenant().
  Status recorded_begin(TenantSlot tenant);

 private:
  class Calls;
  class LossCalls;
  Result<TrainReport> recorded_step(TenantSlot tenant);
  Result<TrainReport> keep_step(TenantSlot tenant, Result<TrainReport> report);

  const std::shared_ptr<Learner> learner_;
  std::function<bool()> is_restoring_;
  const std::unique_ptr<const Calls> calls_;
  const std::unique_ptr<const LossCalls> loss_calls_;  // of the same record
  LearnerProgress progress_;  // without steps and versions in a learner that repeats
};

/// Whether a resource's note is a learner's answer that a call failed.
bool is_failed_learner_answer(std::span<const std::byte> note);

/// The step of a group that asked for a checkpoint of the tenant, after `training_step`, which made
/// the weights, and before the tenant's next training step.
std::optional<uint64_t> step_that_saved(const Trace& trace, GroupId group, TenantSlot tenant,
                                        uint64_t training_step);
/// Visits the training steps in a group's record, without skipped ones, from its step `from` on.
/// The visitor gets each one's tenant and the step of the group. It returns false to stop.
void visit_training_steps(const Trace& trace, GroupId group, uint64_t from,
                          const std::function<bool(TenantSlot tenant, uint64_t step)>& visitor);
/// The progress of a slot in a group's record, from its step `from` on.
struct RecordedProgress {
  int64_t num_steps = 0;   // of its newest tenant, without skipped ones
  int32_t num_begins = 0;  // tenants that began in it
};
std::map<TenantSlot, RecordedProgress> recorded_progress(const Trace& trace, GroupId group,
                                                         uint64_t from = 0);
/// Only the numbers of steps.
std::map<TenantSlot, int64_t> num_recorded_steps(const Trace& trace, GroupId group,
                                                 uint64_t from = 0);

}  // namespace primerl
