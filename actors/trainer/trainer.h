/// Makes batches of groups, steps the learner and publishes each new policy version.
///
///   group                         ->  [ trainer ]  -> weights
///   checkpoint                    ->               ~~~> ended
///   pass, update, weights_request ->               ~~~> passed, updated, weights_done
///
/// The last line is of a tenant that a client trains by halves of a step: it has no groups, and its
/// versions are the updates that were applied (client_steps.h).
///
/// Threads: the learner's. State: one tenant's version, waiting groups, consumed ordinals. Order:
/// batch N has the G oldest groups (by version, then ordinal) that passed the filters, and makes
/// version N. The first work call publishes the version that the run starts from (0, or the resumed
/// one), so engines and learner agree before the first group opens.
///
/// Each member is checked when its group arrives, against the learner's limits. A member that
/// cannot train fails alone; the group continues while two members are left (supervised: one).
///
/// Held-out examples of supervised data do not train. Their loss is measured, `eval/loss`, as the
/// tenant's `eval` says (held_out.h).
///
/// The run ends after `max_steps`. Supervised training with epochs also ends when all their groups
/// have come and those that are left do not fill a batch: then some of them did not train.
///
/// If several tenants share the learner, a complete batch leaves the pool and waits until the
/// learner accepts it (learner_turns.h).
///
/// If the learner skips a step (NaN or infinity in the gradient), its groups end as failed and no
/// version is made. These groups count as lost, so the gate opens as many new ones under the live
/// version and the batch is collected again. After `skipped_max` such steps in a row the node
/// fails.
///
/// A checkpoint is a copy that is made between two steps and written beside later ones. If another
/// one is due before it has ended, the trainer waits (saving.cc). Beside other tenants the process
/// may ask for one that `checkpoint_every` does not name: a saved state waits for it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "actors/common/ordinals.h"
#include "actors/messages/policy.h"
#include "actors/trainer/batch.h"
#include "actors/trainer/client_steps.h"
#include "actors/trainer/environment_metrics.h"
#include "actors/trainer/group_pool.h"
#include "actors/trainer/held_out.h"
#include "graph/contract.h"
#include "kernels/train/learner.h"

namespace primerl {

struct TrainerOptions {
  std::string learner;
  std::string weights;
  int64_t skipped_max = 10;        // steps in a row
  int64_t lost_batches_max = 100;  // batches' worth of groups in a row that end without training
  Duration save_max = Duration::seconds(1800);  // longest time of writing a checkpoint
  OwnObjectives objectives = {};                // of plugins; not an option
};

/// The metrics of a step that the learner reports.
void add_report_metrics(const TrainReport& report, ObjectiveRule rule, MetricValues& values);

class Trainer final : public Actor {
 public:
  using Options = TrainerOptions;
  /// `own`: the objectives of plugins.
  static Contract contract(const OwnObjectives& own = {});
  explicit Trainer(const TrainerOptions& options);

  Status start(Resources& resources) override;
  Result<bool> work() override;
  Status drain() override;
  /// At kLeave the channel forgets what it published. The learner is told by the runtime.
  Status on_tenant(TenantSlot slot, TenantChange::Kind kind) override;
  bool idle() const override {
    return num_groups_here() == 0 && !client_.request &&
           (fault_ || (!save_ && !client_.folder && !saves_at_end_));
  }
  /// The trainer's part of the manifest of a checkpoint of `tenant`; resume() reads it.
  Json checkpoint_state(const Tenant& tenant) const;

 private:
  /// A finished step whose duration is known only at the next delivery.
  struct FinishedStep {
    MetricValues values;
    Time began;
    int64_t num_tokens = 0, num_loss_tokens = 0;
    int64_t num_pass_tokens = 0;  // of all tenants in its last pass; 0: the pass was not shared
    double flops = 0, peak_flops = 0;  // StepMeasures

    template <class F>
    static void fields(F& f) {
      f("values", &FinishedStep::values)("began", &FinishedStep::began)(
          "num_tokens", &FinishedStep::num_tokens)("num_loss_tokens",
                                                   &FinishedStep::num_loss_tokens)(
          "num_pass_tokens", &FinishedStep::num_pass_tokens)("flops", &FinishedStep::flops)(
          "peak_flops", &FinishedStep::peak_flops);
    }
  };

  /// Why the tenant cannot continue. It is saved, so that the messages of a handler are sent before
  /// work() returns the error.
  struct Fault {
    uint8_t code = 0;  // Code
    std::string message;
    std::vector<std::string> notes;
    bool is_told = false;

    Error error() const;
    template <class F>
    static void fields(F& f) {
      f("code", &Fault::code)("message", &Fault::message)("notes", &Fault::notes)("is_told",
                                                                                  &Fault::is_told);
    }
  };

  /// A checkpoint that is being written.
  struct OpenSave {
    int64_t step = 0;
    bool is_awaited = false;  // the next one is due, which has been counted

    template <class F>
    static void fields(F& f) {
      f("step", &OpenSave::step)("is_awaited", &OpenSave::is_awaited);
    }
  };

  Status on_group(const TrajectoryGroup& group);
  Status add_held_out(const PooledGroup& pooled);
  Status on_straggler();
  Status on_save_timer();
  void set_save_timer(std::optional<Duration> delay);
  Status on_checkpoint_request(const CheckpointRequest& request);

  // Requests of a client; client_work.cc.
  Status on_pass(const PassRequest& request);
  Status on_update(const UpdateRequest& request);
  Status on_weights(const WeightsRequest& request);
  /// Why a request cannot be taken now; empty: it can.
  std::optional<Error> refusal() const;
  /// Keeps a checked request until work() does it.
  void take_request(OpenRequest request);
  Result<bool> work_for_client();
  void wait_for_client();
  bool client_checkpoint_is_due() const;
  Status begin_folder(std::string_view path, WeightsDone answer, bool weights_only);
  void end_folder(const Status& written);
  /// Runs a part of the open pass. Empty: other tenants use the learner first, or it has more.
  std::optional<Result<LossResult>> accumulate();
  void end_pass(const Result<LossResult>& result);
  void run_update();
  void run_weights();
  Status run_weights(const WeightsRequest& asked, WeightsDone& answer);
  Status publish_snapshot(const WeightsRequest& asked, WeightsDone& answer);
  Result<PolicyVersion> publish_as(WeightsKey key, bool is_base = false);
  /// The request, which is no longer open.
  OpenRequest close_request();
  SendOptions answer_to(const OpenRequest& request) const;
  void answer_weights(WeightsDone answer);
  /// Answers the open request, if there is one, with the fault.
  void refuse_request(const Error& fault);
  /// The run ends: nothing stays open.
  void end_client();

  Status resume(const ResumePoint& point);
  Status publish(bool is_last);
  bool batch_is_ready();
  /// Moves the oldest groups from the pool into the next batch.
  void take_batch();
  /// Runs the step of the batch. Empty: other tenants use the learner first.
  std::optional<Result<TrainReport>> step();
  void end_step(const Result<TrainReport>& report);
  void leave_queue();
  bool shares_learner() const { return tenant().share > 0 && tenant().share < 1; }
  size_t num_groups() const { return static_cast<size_t>(tenant().groups_per_batch()); }
  /// Supervised training has given all epochs, and the groups that are left do not fill a batch.
  bool has_had_all_groups() const;
  /// Groups in the pool and in the batch.
  size_t num_groups_here() const { return pool_.size() + batch_groups_.size(); }
  /// Removes and returns all of them.
  std::vector<PooledGroup> take_groups_here();
  void end_skipped(const std::vector<PooledGroup>& groups, const std::string& reason);
  void end_group(const PooledGroup& group, RolloutEnd end, const std::string& reason);
  void end_all(std::vector<PooledGroup> groups, RolloutEnd end, const std::string& reason);
  Status fail_when_nothing_trains();
  void publish_waiting();
  /// Publishes the last step's metrics, once its end is known.
  void publish_step_metrics();
  /// Keeps the number by which checkpoints are the best ones. Unknown metrics end the run.
  void keep_score(const MetricValues& values);
  /// Begins a checkpoint of this version.
  Status checkpoint();
  /// Asks whether the open checkpoint has ended.
  void look_for_save();
  bool wait_for_save();
  /// Measures the next part of the held-out rows.
  Status evaluate();
  void update_flow();
  /// Stops training. work() returns the error: the run fails, or continues for the other tenants.
  void give_up(Error fault);
  const Tenant& tenant() const { return services().tenant(tenant_); }

  const TrainerOptions options_;
  // Constant after start.
  std::vector<RolloutUse> uses_;  // parallel to the tenant's environments
  Learner* learner_ = nullptr;
  WeightChannel* weights_ = nullptr;
  TenantSlot tenant_;
  int64_t num_resumes_ = 0;
  std::optional<SampleLimits> limits_;  // of the learner; read when the first group arrives
  // Touched only by handlers.
  PolicyVersion version_{0};  // last version made; also the number of steps
  GroupPool pool_;
  std::vector<PooledGroup> batch_groups_;    // of the next batch; empty: it is not complete
  std::shared_ptr<const TrainBatch> batch_;  // made from them; null: to be made again
  OrdinalSet consumed_;
  HeldOut held_out_;
  std::optional<FinishedStep> finished_step_;
  Time last_end_;
  std::map<uint32_t, RewardTotals> filtered_;  // since the last step, by environment
  std::map<uint32_t, TrainedRows> rows_;       // of the environments that have a curriculum
  int64_t num_sampled_tokens_ = 0;             // received since the last step
  WastedTokens wasted_;                        // since the last step
  int64_t num_skipped_ = 0;                    // in a row
  int64_t num_lost_ = 0;                       // groups in a row
  LossReasons loss_reasons_;                   // why these did not train
  int64_t checkpointed_ = -1;                  // step of the newest checkpoint
  std::optional<double> score_;                // of this version, for keep_best; larger is better
  std::optional<OpenSave> save_;
  bool saves_at_end_ = false;  // another checkpoint follows the open one, because the run ends
  bool is_published_ = false;
  bool is_waiting_ = false;  // for a straggler; the timer is set
  bool waited_ = false;      // the next batch does not wait for a straggler
  bool is_queued_ = false;   // in the queue of a shared learner
  bool is_done_ = false;
  std::optional<Fault> fault_;
  ClientProgress client_;
  std::shared_ptr<const LossBatch> pass_;  // of the open request; null: to be made again
  Out<PassDone> passed_;
  Out<UpdateDone> updated_;
  Out<WeightsDone> weights_done_;
  Out<WeightsReady> weights_out_;
  Out<GroupEnded> ended_;
};

}  // namespace primerl
