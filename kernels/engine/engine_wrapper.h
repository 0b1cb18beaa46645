/// EngineWrapper: forwards every call to the Engine that it owns. Subclasses watch or change a few
/// calls. Threads: those of that engine.
#pragma once

#include <memory>
#include <utility>

#include "kernels/engine/engine.h"

namespace primerl {

class EngineWrapper : public Engine {
 public:
  explicit EngineWrapper(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}

  Status submit(SequenceRequest request) override { return engine_->submit(std::move(request)); }
  Status take_over(SequenceId id) override { return engine_->take_over(id); }
  void abort(SequenceId id) override { engine_->abort(id); }
  void expire(SequenceId id) override { engine_->expire(id); }
  std::vector<PrefillEvent> take_prefilled() override { return engine_->take_prefilled(); }
  std::vector<FinishEvent> take_finished() override { return engine_->take_finished(); }
  bool prepare(const std::shared_ptr<const WeightSnapshot>& snapshot) override {
    return engine_->prepare(snapshot);
  }
  Result<uint64_t> apply(const WeightSnapshot& snapshot) override {
    return engine_->apply(snapshot);
  }
  Result<std::optional<uint64_t>> apply_prepared(
      const std::shared_ptr<const WeightSnapshot>& snapshot) override {
    return engine_->apply_prepared(snapshot);
  }
  void drop(WeightsKey key) override { engine_->drop(key); }
  void set_share(TenantSlot tenant, double share) override { engine_->set_share(tenant, share); }
  void set_paused(bool is_paused) override { engine_->set_paused(is_paused); }
  void show_holders(const std::vector<EngineHolder>& holders) override {
    engine_->show_holders(holders);
  }
  WeightManifest manifest() const override { return engine_->manifest(); }
  KvEvents take_kv_events() override { return engine_->take_kv_events(); }
  EngineState state() const override { return engine_->state(); }
  int32_t max_sequence_tokens() const override { return engine_->max_sequence_tokens(); }
  Status step() override { return engine_->step(); }
  bool has_work() const override { return engine_->has_work(); }
  Duration take_cost() override { return engine_->take_cost(); }
  std::string describe() const override { return engine_->describe(); }
  Blob save_state() const override { return engine_->save_state(); }
  Status restore_state(const Blob& state) override { return engine_->restore_state(state); }

 protected:
  Engine& engine() const { return *engine_; }

 private:
  const std::shared_ptr<Engine> engine_;
};

}  // namespace primerl
