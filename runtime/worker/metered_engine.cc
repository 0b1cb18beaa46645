#include "runtime/worker/metered_engine.h"

#include <algorithm>
#include <chrono>

#include "kernels/engine/engine.h"

namespace primerl {
namespace {

class MeteredEngine final : public Engine {
 public:
  MeteredEngine(std::unique_ptr<Engine> engine, std::shared_ptr<EngineBoard> board,
                uint32_t resource, uint32_t group)
      : engine_(std::move(engine)), board_(std::move(board)), resource_(resource), group_(group) {
    board_->add(resource_, group_);
  }

  Result<uint64_t> apply(const WeightSnapshot& snapshot) override {
    const auto began = std::chrono::steady_clock::now();
    auto applied = engine_->apply(snapshot);
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - began;
    if (applied.ok())
      board_->applied(resource_, group_, snapshot.version, Duration::nanoseconds(took.count()));
    return applied;
  }

  Status submit(SequenceRequest request) override { return engine_->submit(std::move(request)); }
  Status take_over(SequenceId id) override { return engine_->take_over(id); }
  void abort(SequenceId id) override { engine_->abort(id); }
  void expire(SequenceId id) override { engine_->expire(id); }
  std::vector<PrefillEvent> take_prefilled() override { return engine_->take_prefilled(); }
  std::vector<FinishEvent> take_finished() override { return engine_->take_finished(); }
  WeightManifest manifest() const override { return engine_->manifest(); }
  EngineState state() const override { return engine_->state(); }
  int32_t max_sequence_tokens() const override { return engine_->max_sequence_tokens(); }
  Status step() override { return engine_->step(); }
  bool has_work() const override { return engine_->has_work(); }
  Duration take_cost() override { return engine_->take_cost(); }
  std::string describe() const override { return engine_->describe(); }

 private:
  const std::unique_ptr<Engine> engine_;
  const std::shared_ptr<EngineBoard> board_;
  const uint32_t resource_, group_;
};

uint32_t owner_of(const Plan& plan, int32_t resource) {
  for (uint32_t i = 0; i < plan.groups.size(); ++i) {
    const auto& owned = plan.groups[i].resources;
    if (std::find(owned.begin(), owned.end(), resource) != owned.end()) return i;
  }
  return GroupId::kNone;
}

}  // namespace

void EngineBoard::add(uint32_t resource, uint32_t group) {
  const std::lock_guard lock(mutex_);
  reports_.push_back({.resource = resource, .group = group});
}

void EngineBoard::applied(uint32_t resource, uint32_t group, PolicyVersion version, Duration took) {
  const std::lock_guard lock(mutex_);
  for (EngineReport& report : reports_) {
    if (report.resource != resource || report.group != group) continue;
    report.version = version.value;
    ++report.num_applied;
    report.apply_ns += static_cast<uint64_t>(took.to_nanoseconds());
  }
}

std::vector<EngineReport> EngineBoard::reports() const {
  const std::lock_guard lock(mutex_);
  return reports_;
}

ResourceFactory watching_factory(ResourceFactory make, std::shared_ptr<EngineBoard> board) {
  return [make = std::move(make), board = std::move(board)](
             const Plan& plan, int32_t index) -> Result<std::unique_ptr<Resource>> {
    auto made = make(plan, index);
    if (!made.ok()) return made;
    auto* engine = dynamic_cast<Engine*>(made->get());
    if (engine == nullptr) return made;
    (void)made->release();
    return std::unique_ptr<Resource>(
        std::make_unique<MeteredEngine>(std::unique_ptr<Engine>(engine), board,
                                        static_cast<uint32_t>(index), owner_of(plan, index)));
  };
}

}  // namespace primerl
