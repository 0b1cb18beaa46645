// A learner hears of tenants that join and leave a running graph.
#include "runtime/backends/tenant_resources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/files.h"
#include "graph/outside.h"
#include "kernels/train/learner.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"

namespace primerl {
namespace {

/// examples/hosted with a scripted engine and learner.
std::shared_ptr<const Plan> hosted_plan() {
  Overrides overrides;
  overrides.cores = 2;
  overrides.sets = {"resource.engine.backend=\"scripted\"",
                    "resource.learner.backend=\"scripted\""};
  const auto graph = load_graph(std::string(PRIMERL_SOURCE_DIR) + "/examples/hosted/graph.toml",
                                overrides, full_catalog());
  CHECK(graph.plan != nullptr, render(graph.diagnostics, graph.sources));
  return graph.plan;
}

int32_t resource_of(const Plan& plan, std::string_view kind) {
  for (size_t i = 0; i < plan.resources.size(); ++i)
    if (plan.resources[i].kind == kind) return static_cast<int32_t>(i);
  return -1;
}

TEST(TenantResources, ALearnerMakesAndDropsTheAdapterOfATenant) {
  const auto plan = hosted_plan();
  const int32_t index = resource_of(*plan, Learner::kResourceKind);
  ASSERT_GE(index, 0);
  const auto learner = resource_factory(BackendSetup{})(*plan, index);
  ASSERT_TRUE(learner.ok()) << learner.error().text();
  Tenant alice = plan->in_slot(TenantSlot(2));
  alice.name = "alice";
  alice.adapter.rank = 8;
  using Kind = TenantChange::Kind;
  const auto tell = [&](Kind kind) {
    return notify_resource(*plan, index, **learner, alice, kind);
  };
  ASSERT_TRUE(tell(Kind::kJoin).ok());
  EXPECT_EQ(tell(Kind::kJoin).error().code(), Code::kExists) << "its slot is taken";
  EXPECT_TRUE(tell(Kind::kPause).ok()) << "a pause is nothing to a learner";
  ASSERT_TRUE(tell(Kind::kLeave).ok());
  alice.tenancy = 1;
  EXPECT_TRUE(tell(Kind::kJoin).ok());
}

TEST(TenantResources, AnEngineIgnoresAKeyThatItNeverHad) {
  const auto plan = hosted_plan();
  const int32_t index = resource_of(*plan, "engine");
  ASSERT_GE(index, 0);
  const auto engine = resource_factory(BackendSetup{})(*plan, index);
  ASSERT_TRUE(engine.ok()) << engine.error().text();
  const Tenant& free = plan->in_slot(TenantSlot(0));
  for (const auto kind : {TenantChange::Kind::kJoin, TenantChange::Kind::kLeave})
    EXPECT_TRUE(notify_resource(*plan, index, **engine, free, kind).ok());
}

/// Counts what it hears.
class CountingOutside final : public Outside {
 public:
  Status ask(OutsideCall) override { return ok(); }
  void forget(uint32_t, uint64_t) override {}
  std::vector<OutsideAnswer> receive_answers() override { return {}; }
  void stop() override {}
  void set_wake(std::function<void()>) override {}
  void begin_tenant(OutsideSpec) override { ++num_begun; }
  void end_tenant() override { ++num_ended; }

  int num_begun = 0, num_ended = 0;
};

TEST(TenantResources, TheOutsideOfASlotHearsOfItsTenantsOnly) {
  const auto plan = hosted_plan();
  const int32_t index = resource_of(*plan, Outside::kResourceKind);
  ASSERT_GE(index, 0) << "each slot has one";
  EXPECT_EQ(plan->resources[static_cast<size_t>(index)].slot, TenantSlot(0));
  CountingOutside outside;
  for (const uint32_t slot : {1U, 0U})
    for (const auto kind :
         {TenantChange::Kind::kJoin, TenantChange::Kind::kStart, TenantChange::Kind::kLeave})
      EXPECT_TRUE(
          notify_resource(*plan, index, outside, plan->in_slot(TenantSlot(slot)), kind).ok());
  EXPECT_EQ(outside.num_begun, 1);
  EXPECT_EQ(outside.num_ended, 1);
}

}  // namespace
}  // namespace primerl
