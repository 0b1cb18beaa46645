// An engine that makes bad numbers now and then: each costs one rollout, never a batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "kernels/engine/engine.h"
#include "runtime/backends/backends.h"
#include "tests/sim/demo_run.h"

namespace primerl::sim {
namespace {

constexpr int64_t kBadEvery = 7;

/// Spoils every seventh completion, in one of four ways.
class SpoilingEngine final : public Engine {
 public:
  explicit SpoilingEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  Status submit(SequenceRequest request) override { return engine_->submit(std::move(request)); }
  Status take_over(SequenceId id) override { return engine_->take_over(id); }
  void abort(SequenceId id) override { engine_->abort(id); }
  void expire(SequenceId id) override { engine_->expire(id); }
  std::vector<PrefillEvent> take_prefilled() override { return engine_->take_prefilled(); }
  std::vector<FinishEvent> take_finished() override {
    auto events = engine_->take_finished();
    for (auto& event : events)
      if (!event.tokens.empty() && ++num_finished_ % kBadEvery == 0) spoil(event);
    return events;
  }
  Result<uint64_t> apply(const WeightSnapshot& snapshot) override {
    return engine_->apply(snapshot);
  }
  WeightManifest manifest() const override { return engine_->manifest(); }
  EngineState state() const override { return engine_->state(); }
  int32_t max_sequence_tokens() const override { return engine_->max_sequence_tokens(); }
  Status step() override { return engine_->step(); }
  bool has_work() const override { return engine_->has_work(); }
  Duration take_cost() override { return engine_->take_cost(); }
  std::string describe() const override { return engine_->describe(); }

 private:
  void spoil(FinishEvent& event) const {
    switch (num_finished_ / kBadEvery % 4) {
      case 0:
        event.logprobs.front() = std::numeric_limits<float>::quiet_NaN();
        break;
      case 1:
        event.logprobs.back() = -std::numeric_limits<float>::infinity();
        break;
      case 2:
        event.tokens.front() = 1 << 20;  // no row of the model's
        break;
      default:  // more than anybody asked for
        event.tokens.resize(3000, event.tokens.front());
        event.logprobs.resize(3000, -1);
        break;
    }
  }

  const std::unique_ptr<Engine> engine_;
  int64_t num_finished_ = 0;
};

ResourceFactory spoiling_factory() {
  return [make = resource_factory()](const Plan& plan,
                                     int32_t index) -> Result<std::unique_ptr<Resource>> {
    auto made = make(plan, index);
    auto* engine = made.ok() ? dynamic_cast<Engine*>(made->get()) : nullptr;
    if (engine == nullptr) return made;
    (void)made->release();
    return std::unique_ptr<Resource>(
        std::make_unique<SpoilingEngine>(std::unique_ptr<Engine>(engine)));
  };
}

TEST(BadMembers, CostThemselvesAndNeverABatch) {
  for (int64_t off_policy : {0, 1, 2, 8})
    for (uint64_t seed = 1; seed <= 25; ++seed) {
      const DemoCase demo{.seed = seed, .max_off_policy_steps = off_policy};
      DemoHooks hooks;
      hooks.factory = spoiling_factory();
      const auto result = run_demo(demo, hooks);
      // The judge has seen that every step took its groups and every rollout ended once.
      EXPECT_THAT(result.violations, ::testing::IsEmpty()) << repeat_command(demo);
      EXPECT_GT(result.num_of("failed"), 0);
      EXPECT_GT(result.num_of("trained"), 2 * result.num_of("failed"));
      for (const auto& line : result.rollouts)
        EXPECT_THAT(line, ::testing::Not(::testing::HasSubstr("was skipped")));
    }
}

}  // namespace
}  // namespace primerl::sim
