#include "runtime/replay/resuming_learner.h"

#include <algorithm>

#include "kernels/train/adapter_training.h"
#include "runtime/replay/traced_learner.h"

namespace primerl {
namespace {

template <class T>
std::string difference(const Result<T>& then, const Result<T>& now,
                       const ReplayTolerance& tolerance, double& largest) {
  if (then.ok() && now.ok()) return difference(*then, *now, tolerance, largest);
  if (then.ok()) return fmt::format("it failed: {}", now.error().text());
  if (now.ok())
    return fmt::format("it succeeded, in the recorded run it failed: {}", then.error().text());
  return then.error().code() == now.error().code()
             ? std::string()
             : fmt::format("recorded error: {}, now: {}", then.error().text(), now.error().text());
}

class ResumingLearner final : public TracedLearner {
 public:
  explicit ResumingLearner(ResumingLearnerSetup setup)
      : TracedLearner(std::move(setup.learner), std::move(setup.next)),
        setup_(std::move(setup)),
        tenants_(setup_.points.size()) {
    set_is_restoring(setup_.is_restoring);
    for (size_t i = 0; i < tenants_.size(); ++i)
      tenants_[i].is_real = is_real_at_first(setup_.points[i], 0);
  }

  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop) override {
    return follow_step(
        batch.tenant, [&] { return TracedLearner::step(batch, stop); },
        [&] { return learner().step(batch, stop); });
  }
  Result<TrainReport> apply(TenantSlot tenant, const AdamNumbers& adam) override {
    const bool was_real = of(tenant).is_real;
    auto report = follow_step(
        tenant, [&] { return TracedLearner::apply(tenant, adam); },
        [&] { return learner().apply(tenant, adam); });
    // A client may publish its moving key never again, and engines had a version of it.
    if (report.ok() && !was_real && of(tenant).is_real)
      RETURN_IF_ERROR(publish(tenant, of(tenant).newest));
    return report;
  }
  /// Calls before the checkpoint were applied before it. Later ones are computed again, also those
  /// that were open when the run ended.
  Result<LossResult> accumulate(const LossBatch& batch, const StopRequested& stop) override {
    const TenantSlot tenant = batch.tenant;
    RETURN_IF_ERROR(check_reached(tenant));
    const bool is_again = of(tenant).is_real && is_replaying(tenant);
    auto then = TracedLearner::accumulate(batch, stop);
    if (!is_again) return then;
    if (!then.ok() && then.error().code() == Code::kCancelled) {
      learner().discard(tenant);  // as the stop did
      return then;
    }
    auto now = learner().accumulate(batch, stop);
    double largest = 0;
    if (const std::string what = difference(then, now, setup_.tolerance, largest); !what.empty())
      setup_.on_divergence(fmt::format(
          "an accumulate after training step {}{} of this start came out otherwise than recorded: "
          "{}",
          of(tenant).num_taken, name_of(tenant), what));
    if (setup_.tolerance.is_exact()) return now;
    if (setup_.near != nullptr && now.ok())
      setup_.near->add_logprobs(static_cast<uint64_t>(now->totals.num_targets), largest);
    return then;
  }
  /// The real learner has the same tenants at each point of the record.
  Status begin_tenant(const AdapterTraining& training) override {
    const TenantSlot tenant = training.tenant;
    const bool is_live = setup_.is_live();
    Followed& followed = of(tenant);
    if (!is_live && is_restoring()) {
      RETURN_IF_ERROR(learner().begin_tenant(training));
      followed = {};
      followed.is_real = is_real_at_first(point_of(tenant), 0);
      return ok();
    }
    if (!is_live) RETURN_IF_ERROR(recorded_begin(tenant));
    RETURN_IF_ERROR(learner().begin_tenant(training));
    followed = {.num_begins = followed.num_begins + 1};
    followed.is_real = is_live || is_real_at_first(point_of(tenant), followed.num_begins);
    return ok();
  }
  void end_tenant(TenantSlot tenant) override {
    learner().end_tenant(tenant);
    forget_progress(tenant);
  }
  void discard(TenantSlot tenant) override {
    if (of(tenant).is_real) learner().discard(tenant);
    if (is_replaying(tenant)) TracedLearner::discard(tenant);
  }
  bool has_open_gradients(TenantSlot tenant) const override {
    return tenants_[tenant.index()].is_real ? learner().has_open_gradients(tenant)
                                            : TracedLearner::has_open_gradients(tenant);
  }

  Result<std::shared_ptr<const WeightSnapshot>> snapshot(TenantSlot tenant,
                                                         PolicyVersion version) override {
    auto snapshot = TracedLearner::snapshot(tenant, version);
    if (snapshot.ok()) of(tenant).newest = std::max(of(tenant).newest, version);
    const bool is_again = of(tenant).is_real && is_replaying(tenant);
    return snapshot.ok() && is_again ? learner().snapshot(tenant, version) : snapshot;
  }
  Result<std::vector<float>> score(TenantSlot tenant, const std::vector<int32_t>& tokens) override {
    return of(tenant).is_real ? learner().score(tenant, tokens)
                              : TracedLearner::score(tenant, tokens);
  }
  /// Files saved before the checkpoint existed in the recorded run and may have been removed.
  Status begin_save(LearnerSave save) override {
    const TenantSlot tenant = save.tenant;
    Followed& followed = of(tenant);
    followed.is_saving = false;
    if (is_replaying(tenant)) RETURN_IF_ERROR(TracedLearner::begin_save(save));
    if (!followed.is_real || save.folder == point_of(tenant).checkpoint) return ok();
    if (!setup_.writes_files && is_replaying(tenant)) return ok();
    followed.is_saving = true;
    return learner().begin_save(std::move(save));
  }
  /// A save that this learner did not begin was begun before the cut. It was committed, because
  /// otherwise there would be no cut.
  std::optional<Status> end_of_save(TenantSlot tenant, Time now) override {
    if (is_replaying(tenant)) return TracedLearner::end_of_save(tenant, now);
    return of(tenant).is_saving ? learner().end_of_save(tenant, now) : ok();
  }
  /// The recorded start was itself resumed from `folder`.
  Status load(TenantSlot tenant, const std::filesystem::path& folder) override {
    if (folder == point_of(tenant).checkpoint) return load_checkpoint(tenant);
    return of(tenant).is_real ? learner().load(tenant, folder) : ok();
  }
  Status load_weights(TenantSlot tenant, const std::filesystem::path& folder,
                      const std::filesystem::path& others) override {
    RETURN_IF_ERROR(check_reached(tenant));
    if (!of(tenant).is_real || !is_replaying(tenant))
      return TracedLearner::load_weights(tenant, folder, others);
    const Status then = TracedLearner::load_weights(tenant, folder, others);
    return then.ok() ? learner().load_weights(tenant, folder, others) : then;
  }
  /// For a cut, which must not be newer than the checkpoints.
  Status restore_state(const Blob& state) override {
    ASSIGN_OR_RETURN(const LearnerProgress progress, read_state<LearnerProgress>(state));
    for (const auto& [tenant, then] : progress.tenants) RETURN_IF_ERROR(restore(tenant, then));
    set_progress(progress);
    return ok();
  }
  /// Calls of tenants that follow the record cost nothing; calls of the others cost what the real
  /// learner reports.
  Duration take_cost() override { return learner().take_cost(); }

 protected:
  bool is_replaying(TenantSlot tenant) const override {
    return !tenants_[tenant.index()].is_real || !setup_.is_live();
  }
  bool is_replaying() const override { return !setup_.is_live(); }

 private:
  struct Followed {
    bool is_real = false;  // its newest checkpoint is loaded, or it has none
    int64_t num_taken = 0;
    bool is_ahead = false;   // of its newest checkpoint, with steps or open gradients
    bool is_saving = false;  // the real learner has begun the save that was asked for last
    int32_t num_begins = 0;  // tenants that began in the slot
    PolicyVersion newest{};  // of which a snapshot was made
  };

  /// A training step: `recorded` has it from the record, or computes it if the tenant is live;
  /// `compute` computes it again.
  template <class Recorded, class Compute>
  Result<TrainReport> follow_step(TenantSlot tenant, const Recorded& recorded,
                                  const Compute& compute) {
    RETURN_IF_ERROR(check_reached(tenant));
    Followed& followed = of(tenant);
    if (!followed.is_real) {
      auto report = recorded();
      if (!report.ok() || report->skipped) return report;
      if (++followed.num_taken == point_of(tenant).num_steps && is_of_point(tenant))
        RETURN_IF_ERROR(load_checkpoint(tenant));
      return report;
    }
    if (!is_replaying(tenant)) return recorded();
    const auto then = recorded();
    // It was stopped, perhaps together with other steps, and had no result.
    if (!then.ok() && then.error().code() == Code::kCancelled) return then;
    auto now = compute();
    const bool counts = now.ok() && !now->skipped;
    followed.num_taken += counts ? 1 : 0;
    double largest = 0;
    if (const std::string what = difference(then, now, setup_.tolerance, largest); !what.empty())
      setup_.on_divergence(
          fmt::format("training step {}{} of this start came out otherwise than recorded: {}",
                      followed.num_taken, name_of(tenant), what));
    if (setup_.tolerance.is_exact()) {
      if (then.ok() && now.ok()) now->num_pass_tokens = then->num_pass_tokens;
      return now;
    }
    if (setup_.near != nullptr && counts) setup_.near->add_report(largest);
    return then;
  }

  /// The state of a tenant that was set aside may be newer than its checkpoint: it calls no more.
  Status check_reached(TenantSlot tenant) {
    if (!of(tenant).is_ahead) return ok();
    return error(Code::kInvalid,
                 "a learner that had made {} steps{}, or has open gradients after them, has no "
                 "newer checkpoint than that of step {}",
                 of(tenant).num_taken, name_of(tenant), point_of(tenant).num_steps);
  }

  Followed& of(TenantSlot tenant) { return tenants_[tenant.index()]; }
  const RecoveryPoint& point_of(TenantSlot tenant) const { return setup_.points[tenant.index()]; }
  static bool is_real_at_first(const RecoveryPoint& point, int32_t num_begins) {
    return point.checkpoint.empty() && point.num_begins <= num_begins;
  }
  /// Whether the tenant that is in the slot now is the one that continues.
  bool is_of_point(TenantSlot tenant) {
    return of(tenant).num_begins == point_of(tenant).num_begins;
  }
  std::string name_of(TenantSlot tenant) const {
    return tenants_.size() == 1 ? std::string() : fmt::format(" of tenant {}", tenant);
  }

  Status load_checkpoint(TenantSlot tenant) {
    RETURN_IF_ERROR(learner().load(tenant, point_of(tenant).checkpoint));
    of(tenant).is_real = true;
    return ok();
  }

  Status restore(TenantSlot tenant, const TenantProgress& then) {
    if (tenant.index() >= tenants_.size())
      return error(Code::kCorrupt, "a learner's state names tenant {} of {}", tenant,
                   tenants_.size());
    Followed& followed = of(tenant);
    const int64_t reached = point_of(tenant).num_steps;
    followed.num_taken = then.num_steps;
    followed.newest = then.newest;
    if (!is_of_point(tenant)) return ok();  // it leaves in the record
    followed.is_ahead =
        followed.num_taken > reached || (followed.num_taken == reached && then.is_open);
    if (followed.num_taken == reached && !followed.is_real)
      RETURN_IF_ERROR(load_checkpoint(tenant));
    // The weights of a state that is ahead are in no checkpoint.
    if (!followed.is_real || followed.is_ahead) return ok();
    return publish(tenant, then.newest);
  }

  Status publish(TenantSlot tenant, PolicyVersion version) {
    if (version.is_none()) return ok();
    ASSIGN_OR_RETURN(const auto weights, learner().snapshot(tenant, version));
    return setup_.publish(tenant, *weights);
  }

  const ResumingLearnerSetup setup_;
  std::vector<Followed> tenants_;  // by slot
};

}  // namespace

std::shared_ptr<Learner> make_resuming_learner(ResumingLearnerSetup setup) {
  return std::make_unique<ResumingLearner>(std::move(setup));
}

}  // namespace primerl
