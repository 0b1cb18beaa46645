// The table of slots of one actor group.
#include "runtime/exec/group_tenants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/exec/small_graph.h"

namespace primerl::testing {
namespace {

using Kind = TenantChange::Kind;

TEST(GroupTenants, ValuesThatWereSetAreSavedAndEndWithTheTenant) {
  SmallGraph graph(2);
  graph.node("own", {.per_tenant = true});
  const auto plan = graph.plan();
  GroupTenants tenants(plan);
  const auto set = [](GroupTenants& to, const std::string& text) {
    const TenantChange change = {TenantChange::Kind::kSet, TenantSlot(0), 0, "t0", text};
    EXPECT_TRUE(to.is_due(change).value());
    to.make(change, to.with_values(change).value());
  };
  set(tenants, "inflight = 7\n");
  set(tenants, "max_off_policy_steps = 1\n");
  const Tenant& now = *tenants.by_slot()[0];
  EXPECT_EQ(now.max_off_policy_steps, 1);
  EXPECT_EQ(now.inflight, plan->tenants[0].inflight) << "a text has all values that were set";
  EXPECT_FALSE(
      tenants.with_values({TenantChange::Kind::kSet, TenantSlot(0), 0, "t0", "name"}).ok());
  GroupState state;
  tenants.save(state);
  GroupTenants restored(plan);
  set(restored, "inflight = 9\n");
  ASSERT_TRUE(restored.restore(state, {}).ok());
  EXPECT_EQ(restored.by_slot()[0]->max_off_policy_steps, 1);
  EXPECT_EQ(restored.by_slot()[0]->inflight, plan->tenants[0].inflight);
  restored.make({TenantChange::Kind::kLeave, TenantSlot(0), 0, "t0", ""}, nullptr);
  GroupState later;
  restored.save(later);
  EXPECT_TRUE(later.values.empty());
}

TEST(GroupTenants, KnowsWhichChangesAreDue) {
  SmallGraph graph(2);
  graph.num_free_slots = 1;
  GroupTenants tenants(graph.plan());
  const auto made = [](const TenantChange& change) {
    auto tenant = std::make_shared<Tenant>();
    tenant->name = change.name;
    tenant->slot = change.slot;
    tenant->tenancy = change.tenancy;
    return tenant;
  };
  TenantChange change{Kind::kJoin, TenantSlot(1), 4, "alice", ""};
  EXPECT_TRUE(tenants.is_free(TenantSlot(1)));
  ASSERT_TRUE(*tenants.is_due(change));
  tenants.make(change, made(change));
  EXPECT_FALSE(tenants.is_free(TenantSlot(1)));
  EXPECT_FALSE(tenants.has_started(TenantSlot(1)));
  EXPECT_FALSE(*tenants.is_due(change)) << "repeated";
  change.kind = Kind::kStart;
  change.tenancy = 3;
  EXPECT_FALSE(*tenants.is_due(change)) << "of an earlier tenant";
  change.tenancy = 4;
  ASSERT_TRUE(*tenants.is_due(change));
  tenants.make(change, nullptr);
  EXPECT_TRUE(tenants.has_started(TenantSlot(1)));
  EXPECT_TRUE(tenants.has_started(TenantSlot(0))) << "a tenant of the plan";
  change.kind = Kind::kLeave;
  tenants.make(change, nullptr);
  EXPECT_TRUE(tenants.is_free(TenantSlot(1)));
  change.kind = Kind::kJoin;
  EXPECT_FALSE(*tenants.is_due(change)) << "its number was used";
  change.tenancy = 5;
  EXPECT_TRUE(*tenants.is_due(change));
  EXPECT_FALSE(tenants.is_due({Kind::kStart, TenantSlot(2), 0, "", ""}).ok()) << "no such slot";
  EXPECT_FALSE(tenants.is_due({Kind::kStart, TenantSlot::none(), 0, "", ""}).ok());
}

}  // namespace
}  // namespace primerl::testing
