#include "runtime/worker/lost_device.h"

#include <cstdlib>
#include <utility>

#include "kernels/engine/observed_engine.h"
#include "kernels/train/learner.h"
#include "runtime/backends/backends.h"
#include "runtime/program/exit_code.h"

namespace primerl {
namespace {

/// Checks the results that pass through it.
class Watch {
 public:
  Watch(GroupId owner, OnDeviceLost on_lost) : owner_(owner), on_lost_(std::move(on_lost)) {}

  template <class T>
  void look(const Result<T>& result) const {
    if (!result.ok() && result.error().code() == Code::kDeviceLost)
      on_lost_(owner_, result.error());
  }
  template <class T>
  Result<T> seen(Result<T> result) const {
    look(result);
    return result;
  }

 private:
  const GroupId owner_;
  const OnDeviceLost on_lost_;
};

/// Watches the calls of an engine that compute.
class EngineWatch final : public EngineObserver {
 public:
  explicit EngineWatch(Watch watch) : watch_(std::move(watch)) {}

  void stepped(Engine& /*engine*/, const Status& status) override { watch_.look(status); }
  void applied(const WeightSnapshot& /*snapshot*/,
               const Result<std::optional<uint64_t>>& num_tensors) override {
    watch_.look(num_tensors);
  }

 private:
  const Watch watch_;
};

class WatchedLearner final : public Learner {
 public:
  WatchedLearner(std::shared_ptr<Learner> learner, Watch watch)
      : learner_(std::move(learner)), watch_(std::move(watch)) {}

  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop) override {
    return watch_.seen(learner_->step(batch, stop));
  }
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(TenantSlot tenant,
                                                         PolicyVersion version) override {
    return watch_.seen(learner_->snapshot(tenant, version));
  }
  Result<AnswerLoss> evaluate(const TrainBatch& batch) override {
    return watch_.seen(learner_->evaluate(batch));
  }
  Result<std::vector<float>> score(TenantSlot tenant, const std::vector<int32_t>& tokens) override {
    return watch_.seen(learner_->score(tenant, tokens));
  }
  Result<std::shared_ptr<const LearnerImage>> capture(TenantSlot tenant) override {
    return watch_.seen(learner_->capture(tenant));
  }
  Status save(TenantSlot tenant, const std::filesystem::path& folder) override {
    return watch_.seen(learner_->save(tenant, folder));
  }
  Status load(TenantSlot tenant, const std::filesystem::path& folder) override {
    return watch_.seen(learner_->load(tenant, folder));
  }
  Status load_weights(TenantSlot tenant, const std::filesystem::path& folder,
                      const std::filesystem::path& others) override {
    return watch_.seen(learner_->load_weights(tenant, folder, others));
  }
  std::optional<Result<TrainReport>> step_queued(std::shared_ptr<const TrainBatch> batch,
                                                 uint64_t turn,
                                                 const StopRequested& stop) override {
    auto report = learner_->step_queued(std::move(batch), turn, stop);
    if (report) watch_.look(*report);
    return report;
  }
  Result<LossResult> accumulate(const LossBatch& batch, const StopRequested& stop) override {
    return watch_.seen(learner_->accumulate(batch, stop));
  }
  std::optional<Result<LossResult>> accumulate_queued(std::shared_ptr<const LossBatch> batch,
                                                      uint64_t work_call,
                                                      const StopRequested& stop) override {
    auto result = learner_->accumulate_queued(std::move(batch), work_call, stop);
    if (result) watch_.look(*result);
    return result;
  }
  Result<TrainReport> apply(TenantSlot tenant, const AdamNumbers& adam) override {
    return watch_.seen(learner_->apply(tenant, adam));
  }
  void discard(TenantSlot tenant) override { learner_->discard(tenant); }
  bool has_open_gradients(TenantSlot tenant) const override {
    return learner_->has_open_gradients(tenant);
  }
  Status begin_tenant(const AdapterTraining& tenant) override {
    return watch_.seen(learner_->begin_tenant(tenant));
  }
  void end_tenant(TenantSlot tenant) override { learner_->end_tenant(tenant); }
  void set_share(TenantSlot tenant, double share) override { learner_->set_share(tenant, share); }
  void leave_queue(TenantSlot tenant) override { learner_->leave_queue(tenant); }
  SampleLimits limits() const override { return learner_->limits(); }
  Status step() override { return watch_.seen(learner_->step()); }
  bool has_work() const override { return learner_->has_work(); }
  Duration take_cost() override { return learner_->take_cost(); }
  std::string describe() const override { return learner_->describe(); }
  Blob save_state() const override { return learner_->save_state(); }
  Status restore_state(const Blob& state) override { return learner_->restore_state(state); }

 private:
  const std::shared_ptr<Learner> learner_;
  const Watch watch_;
};

}  // namespace

OnDeviceLost end_of_process(const Plan& plan, Log& log) {
  return [&plan, &log](GroupId owner, const Error& why) {
    log.write_last(LogLevel::kError, plan.group(owner).name,
                   why.text() + "\n   this process ends; the run continues as after its death");
    std::_Exit(kExitDeviceLost);
  };
}

ResourceFactory device_watching_factory(ResourceFactory make, OnDeviceLost on_lost) {
  return [make = std::move(make), on_lost = std::move(on_lost)](
             const Plan& plan, int32_t index) -> Result<std::shared_ptr<Resource>> {
    auto made = make(plan, index);
    if (!made.ok()) return made;
    Watch watch(owner_of(plan, index), on_lost);
    if (auto* engine = observed_engine(*made))
      engine->add(std::make_unique<EngineWatch>(std::move(watch)));
    else if (auto learner = std::dynamic_pointer_cast<Learner>(*made))
      return std::shared_ptr<Resource>(
          std::make_unique<WatchedLearner>(std::move(learner), std::move(watch)));
    return made;
  };
}

}  // namespace primerl
