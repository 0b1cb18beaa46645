#include "tests/sim/world_resources.h"

#include "kernels/engine/engine_wrapper.h"
#include "kernels/train/learner.h"
#include "kernels/weights/memory_channel.h"
#include "kernels/weights/snapshot.h"
#include "runtime/backends/backends.h"
#include "tests/sim/world_clients.h"
#include "tests/sim/world_outside.h"
#include "tests/sim/world_tinker.h"

namespace primerl::sim {
namespace {

/// Fails sequences as the world says, and refuses or delays weights.
class TroubledEngine final : public EngineWrapper {
 public:
  TroubledEngine(std::shared_ptr<Engine> engine, const WorldSpec& spec, int number)
      : EngineWrapper(std::move(engine)), spec_(spec), number_(number) {}

  std::vector<FinishEvent> take_finished() override {
    auto finished = EngineWrapper::take_finished();
    for (FinishEvent& event : finished) {
      const bool is_good =
          event.reason == FinishReason::kStop || event.reason == FinishReason::kLength;
      if (!is_good) continue;
      ++num_ended_;
      if (spec_.fails_from == 0 || num_ended_ < spec_.fails_from || num_ended_ > spec_.fails_until)
        continue;
      event.reason = FinishReason::kFailed;
      event.detail = "made to fail";
      event.tokens.clear();
      event.logprobs.clear();
      event.spans.clear();
      event.kept = {};
      ++num_failed_;
    }
    return finished;
  }
  EngineState state() const override {
    EngineState state = EngineWrapper::state();
    state.num_completed -= std::min(state.num_completed, num_failed_);
    state.num_failed += num_failed_;
    return state;
  }
  Result<std::optional<uint64_t>> apply_prepared(
      const std::shared_ptr<const WeightSnapshot>& snapshot) override {
    if (spec_.refuses_weights && snapshot->version.value % 3 == 1 + number_ % 2)
      return error(Code::kInvalid, "made to refuse version {}", snapshot->version);
    if (spec_.never_prepares || ++num_asked_ <= spec_.late_weights)
      return std::optional<uint64_t>();
    num_asked_ = 0;
    return EngineWrapper::apply_prepared(snapshot);
  }

 private:
  const WorldSpec spec_;
  const int number_;
  uint64_t num_ended_ = 0, num_failed_ = 0, num_asked_ = 0;
};

/// Reports when it is asked for its limits: the record has the answer.
class WatchedLearner final : public Learner {
 public:
  WatchedLearner(std::shared_ptr<Learner> learner, std::function<void()> on_limits)
      : learner_(std::move(learner)), on_limits_(std::move(on_limits)) {}

  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop) override {
    return learner_->step(batch, stop);
  }
  std::vector<std::optional<Result<TrainReport>>> pass_together(
      std::span<const std::shared_ptr<const TrainBatch>> batches,
      const StopRequested& stop) override {
    return learner_->pass_together(batches, stop);
  }
  int64_t next_tokens(const TrainBatch& batch) const override {
    return learner_->next_tokens(batch);
  }
  void discard(TenantSlot tenant) override { learner_->discard(tenant); }
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(TenantSlot tenant,
                                                         PolicyVersion version) override {
    return learner_->snapshot(tenant, version);
  }
  Result<std::vector<float>> score(TenantSlot tenant, const std::vector<int32_t>& tokens) override {
    return learner_->score(tenant, tokens);
  }
  Status begin_save(LearnerSave save) override { return learner_->begin_save(std::move(save)); }
  std::optional<Status> end_of_save(TenantSlot tenant, Time now) override {
    return learner_->end_of_save(tenant, now);
  }
  Status save(TenantSlot tenant, const std::filesystem::path& folder) override {
    return learner_->save(tenant, folder);
  }
  Status load(TenantSlot tenant, const std::filesystem::path& folder) override {
    return learner_->load(tenant, folder);
  }
  Status load_weights(TenantSlot tenant, const std::filesystem::path& folder,
                      const std::filesystem::path& others) override {
    return learner_->load_weights(tenant, folder, others);
  }
  std::optional<Result<TrainReport>> step_queued(std::shared_ptr<const TrainBatch> batch,
                                                 uint64_t turn,
                                                 const StopRequested& stop) override {
    return learner_->step_queued(std::move(batch), turn, stop);
  }
  Result<LossResult> accumulate(const LossBatch& batch, const StopRequested& stop) override {
    return learner_->accumulate(batch, stop);
  }
  std::optional<Result<LossResult>> accumulate_queued(std::shared_ptr<const LossBatch> batch,
                                                      uint64_t turn,
                                                      const StopRequested& stop) override {
    return learner_->accumulate_queued(std::move(batch), turn, stop);
  }
  Result<TrainReport> apply(TenantSlot tenant, const AdamNumbers& adam) override {
    return learner_->apply(tenant, adam);
  }
  bool has_open_gradients(TenantSlot tenant) const override {
    return learner_->has_open_gradients(tenant);
  }
  void leave_queue(TenantSlot tenant) override { learner_->leave_queue(tenant); }
  Status begin_tenant(const AdapterTraining& tenant) override {
    return learner_->begin_tenant(tenant);
  }
  void end_tenant(TenantSlot tenant) override { learner_->end_tenant(tenant); }
  SampleLimits limits() const override {
    on_limits_();
    return learner_->limits();
  }
  Duration take_cost() override { return learner_->take_cost(); }
  std::string describe() const override { return learner_->describe(); }

 private:
  const std::shared_ptr<Learner> learner_;
  const std::function<void()> on_limits_;
};

/// One end of the shared channel, for each process.
class SharedChannel final : public WeightChannel {
 public:
  SharedChannel(std::shared_ptr<WeightChannel> channel, const WorldSpec& spec)
      : channel_(std::move(channel)), spec_(spec) {}

  Status publish(std::shared_ptr<const WeightSnapshot> snapshot) override {
    return channel_->publish(std::move(snapshot));
  }
  Result<std::shared_ptr<const WeightSnapshot>> fetch(WeightsKey key,
                                                      PolicyVersion version) override {
    if (++num_asked_ <= spec_.late_weights)
      return error(Code::kUnavailable, "the bytes of version {} have not come", version);
    auto snapshot = channel_->fetch(key, version);
    // After a retired version the newest one is fetched at once, and must not be late again.
    if (snapshot.ok()) num_asked_ = 0;
    return snapshot;
  }
  PolicyVersion newest(WeightsKey key) const override { return channel_->newest(key); }
  void drop(WeightsKey key) override { channel_->drop(key); }
  Status expect(const WeightManifest& manifest) override { return channel_->expect(manifest); }
  std::string describe() const override { return channel_->describe(); }

 private:
  const std::shared_ptr<WeightChannel> channel_;
  const WorldSpec spec_;
  uint64_t num_asked_ = 0;
};

}  // namespace

ResourceFactory factory_of(const WorldSpec& spec, std::function<void(std::string_view)> seen) {
  std::shared_ptr<WeightChannel> channel = make_memory_channel(2);
  return [spec, channel, seen = std::move(seen), make = resource_factory(), number = 0](
             const Plan& plan, int32_t index) mutable -> Result<std::shared_ptr<Resource>> {
    if (plan.resources[static_cast<size_t>(index)].kind == WeightChannel::kResourceKind)
      return std::shared_ptr<Resource>(std::make_unique<SharedChannel>(channel, spec));
    if (plan.resources[static_cast<size_t>(index)].kind == Outside::kResourceKind) {
      const std::string& name = plan.resources[static_cast<size_t>(index)].name;
      return std::shared_ptr<Resource>(make_seen_outside(name == "front" ? make_world_clients(spec)
                                                         : name == "tinker"
                                                             ? make_world_tinker(spec)
                                                             : make_troubled_outside(spec),
                                                         seen));
    }
    auto made = make(plan, index);
    if (!made.ok()) return made;
    if (auto learner = std::dynamic_pointer_cast<Learner>(*made); learner != nullptr)
      return std::shared_ptr<Resource>(
          std::make_unique<WatchedLearner>(std::move(learner), [seen] { seen("limits"); }));
    auto engine = std::dynamic_pointer_cast<Engine>(*made);
    if (engine == nullptr) return made;
    return std::shared_ptr<Resource>(
        std::make_unique<TroubledEngine>(std::move(engine), spec, number++));
  };
}

}  // namespace primerl::sim
