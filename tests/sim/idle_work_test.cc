// Work calls without progress are bounded in every simulated run.
#include "tests/sim/idle_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/engine/engine_wrapper.h"
#include "runtime/backends/backends.h"
#include "tests/sim/demo_run.h"

namespace primerl::sim {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

StepRecord step_of(uint32_t group, StepKind kind, uint32_t num_emissions) {
  StepRecord record;
  record.group = GroupId(group);
  record.kind = kind;
  record.num_emissions = num_emissions;
  return record;
}

void add_idle(IdleWork& idle, uint32_t group, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) idle.add(step_of(group, StepKind::kWork, 0));
}

TEST(IdleWork, IsAFaultOneCallBeyondItsLimit) {
  IdleWork idle;
  add_idle(idle, 1, IdleWork::kCallsMax);
  add_idle(idle, 2, IdleWork::kCallsMax);
  EXPECT_THAT(idle.fault(), IsEmpty());
  add_idle(idle, 2, 1);
  EXPECT_EQ(idle.fault(), "group 2 has made 3001 work calls in a row that sent nothing");
}

TEST(IdleWork, EndsWithAMessageOrAnotherStep) {
  for (const auto& progress : {step_of(1, StepKind::kWork, 1), step_of(1, StepKind::kTimer, 0),
                               step_of(1, StepKind::kMessage, 0)}) {
    IdleWork idle;
    add_idle(idle, 1, IdleWork::kCallsMax);
    idle.add(progress);
    add_idle(idle, 1, IdleWork::kCallsMax);
    EXPECT_THAT(idle.fault(), IsEmpty());
  }
}

TEST(IdleWork, StepsOfAllGroupsWithoutAMessageHaveALimitToo) {
  IdleWork idle;
  for (uint64_t i = 0; i < IdleWork::kStepsMax; ++i)
    idle.add(
        step_of(static_cast<uint32_t>(i % 3), i % 2 == 0 ? StepKind::kTimer : StepKind::kWork, 0));
  EXPECT_THAT(idle.fault(), IsEmpty());
  idle.add(step_of(1, StepKind::kTimer, 0));
  EXPECT_EQ(idle.fault(), "the run has made 10001 steps in a row that sent nothing");
}

/// An engine that always says that it has work.
class RestlessEngine final : public EngineWrapper {
 public:
  using EngineWrapper::EngineWrapper;
  bool has_work() const override { return true; }
};

TEST(IdleWork, OfAnEngineThatAlwaysHasWorkEndsASimulatedRun) {
  DemoHooks hooks;
  hooks.factory = [make = resource_factory()](const Plan& plan,
                                              int32_t index) -> Result<std::shared_ptr<Resource>> {
    auto made = make(plan, index);
    if (!made.ok()) return made;
    auto engine = std::dynamic_pointer_cast<Engine>(*made);
    if (engine == nullptr) return made;
    return std::shared_ptr<Resource>(std::make_shared<RestlessEngine>(std::move(engine)));
  };
  EXPECT_THAT(run_demo({}, hooks).violations,
              Contains(HasSubstr("work calls in a row that sent nothing")));
}

}  // namespace
}  // namespace primerl::sim
