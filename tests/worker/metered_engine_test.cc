// What an engine is said to hold is what it applied, nothing else.
#include "runtime/worker/metered_engine.h"

#include <gtest/gtest.h>

#include "kernels/engine/engine.h"

namespace primerl {
namespace {

/// Takes versions below ten.
class PickyEngine final : public Engine {
 public:
  Status submit(SequenceRequest) override { return ok(); }
  Status take_over(SequenceId) override { return ok(); }
  void expire(SequenceId) override {}
  void abort(SequenceId) override {}
  std::vector<PrefillEvent> take_prefilled() override { return {}; }
  std::vector<FinishEvent> take_finished() override { return {}; }
  Result<uint64_t> apply(const WeightSnapshot& snapshot) override {
    if (snapshot.version >= PolicyVersion(10)) return error(Code::kInvalid, "too new");
    return uint64_t{0};
  }
  EngineState state() const override { return {}; }
  int32_t max_sequence_tokens() const override { return 1; }
};

class OtherResource final : public Resource {};

Plan plan_of_one_group() {
  Plan plan;
  plan.resources.resize(2);
  plan.groups.resize(1);
  plan.groups[0].resources = {0, 1};
  return plan;
}

TEST(MeteredEngine, HoldsWhatItAppliedLast) {
  auto board = std::make_shared<EngineBoard>();
  const auto make = watching_factory(
      [](const Plan&, int32_t) -> Result<std::unique_ptr<Resource>> {
        return std::unique_ptr<Resource>(std::make_unique<PickyEngine>());
      },
      board);
  auto made = make(plan_of_one_group(), 1);
  ASSERT_TRUE(made.ok());
  auto& engine = dynamic_cast<Engine&>(**made);
  ASSERT_EQ(board->reports().size(), 1u);
  EXPECT_EQ(board->reports()[0].resource, 1u);
  EXPECT_EQ(board->reports()[0].group, 0u);
  EXPECT_EQ(board->reports()[0].version, -1) << "nothing was applied";
  const auto apply = [&](int64_t version, uint32_t tenant = 0) {
    WeightSnapshot snapshot;
    snapshot.key.tenant = TenantSlot(tenant);
    snapshot.version = PolicyVersion(version);
    return engine.apply(snapshot).ok();
  };
  EXPECT_TRUE(apply(3));
  EXPECT_FALSE(apply(10));  // refused: it still has the third
  EXPECT_EQ(board->reports()[0].version, 3);
  EXPECT_EQ(board->reports()[0].num_applied, 1u);
  EXPECT_TRUE(apply(9));
  EXPECT_EQ(board->reports()[0].version, 9);
  EXPECT_EQ(board->reports()[0].num_applied, 2u);
  EXPECT_TRUE(apply(9, 1));
  const auto reports = board->reports();
  ASSERT_EQ(reports.size(), 2u) << "equal versions of two tenants";
  EXPECT_EQ(reports[0].num_applied, 2u);
  EXPECT_EQ(reports[1].tenant, 1u);
  EXPECT_EQ(reports[1].version, 9);
  EXPECT_EQ(reports[1].num_applied, 1u);
  EXPECT_EQ(reports[1].group, 0u);
}

TEST(MeteredEngine, OtherResourcesAndErrorsPassUnchanged) {
  auto board = std::make_shared<EngineBoard>();
  const auto make = watching_factory(
      [](const Plan&, int32_t index) -> Result<std::unique_ptr<Resource>> {
        if (index == 1) return error(Code::kUnavailable, "none");
        return std::unique_ptr<Resource>(std::make_unique<OtherResource>());
      },
      board);
  const auto made = make(plan_of_one_group(), 0);
  ASSERT_TRUE(made.ok());
  EXPECT_NE(dynamic_cast<OtherResource*>(made->get()), nullptr);
  EXPECT_FALSE(make(plan_of_one_group(), 1).ok());
  EXPECT_TRUE(board->reports().empty());
}

}  // namespace
}  // namespace primerl
