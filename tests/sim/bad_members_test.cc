// An engine that sometimes returns invalid values: each fails one rollout, never a batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "kernels/engine/engine_wrapper.h"
#include "runtime/backends/backends.h"
#include "tests/sim/demo_run.h"

namespace primerl::sim {
namespace {

constexpr int64_t kBadEvery = 7;

/// Damages every seventh completion, in one of four ways.
class SpoilingEngine final : public EngineWrapper {
 public:
  using EngineWrapper::EngineWrapper;

  std::vector<FinishEvent> take_finished() override {
    auto events = EngineWrapper::take_finished();
    for (auto& event : events)
      if (!event.tokens.empty() && ++num_finished_ % kBadEvery == 0) spoil(event);
    return events;
  }

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
        event.tokens.front() = 1 << 20;  // not a row of the model's vocabulary
        break;
      default:  // more than was requested
        event.tokens.resize(3000, event.tokens.front());
        event.logprobs.resize(3000, -1);
        break;
    }
  }

  int64_t num_finished_ = 0;
};

ResourceFactory spoiling_factory() {
  return [make = resource_factory()](const Plan& plan,
                                     int32_t index) -> Result<std::shared_ptr<Resource>> {
    auto made = make(plan, index);
    auto engine = made.ok() ? std::dynamic_pointer_cast<Engine>(*made) : nullptr;
    if (engine == nullptr) return made;
    return std::shared_ptr<Resource>(std::make_unique<SpoilingEngine>(std::move(engine)));
  };
}

TEST(BadMembers, FailAloneAndNeverABatch) {
  for (int64_t off_policy : {0, 1, 2, 8})
    for (uint64_t seed = 1; seed <= 25; ++seed) {
      const DemoCase demo{.seed = seed, .max_off_policy_steps = off_policy};
      DemoHooks hooks;
      hooks.factory = spoiling_factory();
      const auto result = run_demo(demo, hooks);
      // The judge has checked that every step got its groups and every rollout ended once.
      EXPECT_THAT(result.violations, ::testing::IsEmpty()) << repeat_command(demo);
      EXPECT_GT(result.num_of("failed"), 0);
      EXPECT_GT(result.num_of("trained"), 2 * result.num_of("failed"));
      for (const auto& line : result.rollouts)
        EXPECT_THAT(line, ::testing::Not(::testing::HasSubstr("was skipped")));
    }
}

}  // namespace
}  // namespace primerl::sim
