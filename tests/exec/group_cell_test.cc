// The cell of a group: orders about tenants that wait in it, one turn at a time.
#include "runtime/exec/caf_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/exec/small_graph.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using Kind = TenantChange::Kind;

/// The cell of one group with an actor for each of three slots, of which the last is free. The test
/// is its executor and its thread.
class AGroupCell : public ::testing::Test, public CellOwner {
 protected:
  AGroupCell() : graph_(3) {
    graph_.num_free_slots = 1;
    Strings strings;
    strings.on_drain = [this](Puppet& puppet) {
      const Tenant& tenant = puppet.world().tenant(puppet.world().tenants().front());
      drained_.push_back(tenant.name);
      return ok();
    };
    graph_.node("actor", {.strings = std::move(strings), .per_tenant = true, .group = "all"});
    plan_ = graph_.plan();
    GroupSetup setup;
    setup.plan = plan_;
    setup.wiring = make_wiring(*plan_);
    setup.group = GroupId(0);
    setup.process_services = &services_;
    setup.make_tenant = [](const Plan&, const TenantChange& change) {
      auto tenant = std::make_shared<Tenant>();
      tenant->name = change.name;
      tenant->slot = change.slot;
      tenant->tenancy = change.tenancy;
      return Result<std::shared_ptr<const Tenant>>(std::move(tenant));
    };
    cell_ = std::make_unique<GroupCell>(std::move(setup), false, this, clock_, nullptr);
    cell_->order(GroupCell::kStart | GroupCell::kGo);
    settle();
  }
  void settle() {
    while (cell_->turn(cell_->adopt()) == TurnEnd::kMore) continue;
  }
  void change(Kind kind, uint32_t slot, uint32_t tenancy, const std::string& name) {
    cell_->change_tenant({kind, TenantSlot(slot), tenancy, name, ""});
  }
  /// Another tenant takes slot 1.
  void replace_one_by(const std::string& name) {
    change(Kind::kLeave, 1, 0, "t1");
    change(Kind::kJoin, 1, 1, name);
    change(Kind::kStart, 1, 1, name);
  }

  // CellOwner
  void deliver(MessageBatch&&) override {}
  void arm(GroupId, Time) override {}
  void tenant_finished(TenantSlot, uint32_t) override {}
  void tenant_failed(TenantSlot, uint32_t, std::string) override {}
  void group_failed(GroupId, Error error) override { ADD_FAILURE() << error.text(); }
  void batch_refused(GroupId, GroupId, const Error& why) override { ADD_FAILURE() << why.text(); }
  void group_started(GroupId, Status status) override { EXPECT_TRUE(status.ok()); }
  void group_ended(GroupId) override {}
  void group_caught_up(GroupId) override {}
  void group_idle() override {}
  bool is_stopping() const override { return false; }
  void peer_changed(GroupId, const PeerChange&) override {}
  void command_answered(CommandAnswer) override {}
  void tenant_changed(GroupId, const TenantChange&, Status status) override {
    EXPECT_TRUE(status.ok());
  }

  SmallGraph graph_;
  std::shared_ptr<const Plan> plan_;
  MemoryHostServices services_;
  RunClock clock_;
  std::unique_ptr<GroupCell> cell_;
  std::vector<std::string> drained_;
};

TEST_F(AGroupCell, ATenantThatFailedIsNotSetAsideAgainWithTheNext) {
  cell_->set_aside(TenantSlot(1));
  settle();
  EXPECT_THAT(drained_, ElementsAre("t1"));
  replace_one_by("bob");
  settle();
  drained_.clear();
  cell_->set_aside(TenantSlot(0));
  settle();
  EXPECT_THAT(drained_, ElementsAre("t0")) << "bob trains";
}

/// The control plane repeats an order while the group carries it out.
TEST_F(AGroupCell, DrainsComeFromAnotherThreadAtAnyMoment) {
  std::thread orders([this] {
    for (int i = 0; i < 2000; ++i) cell_->drain_tenant(TenantSlot(1));
  });
  for (int i = 0; i < 2000; ++i) settle();
  orders.join();
  settle();
  EXPECT_THAT(drained_, ElementsAre("t1"));
  EXPECT_TRUE(cell_->slot_counts(TenantSlot(1)).is_idle);
}

TEST_F(AGroupCell, ARepeatedDrainThatWaitsIsOne) {
  const uint64_t before = cell_->group().counts().num_steps;
  for (int i = 0; i < 3; ++i) cell_->drain_tenant(TenantSlot(1));
  settle();
  EXPECT_THAT(drained_, ElementsAre("t1"));
  EXPECT_EQ(cell_->group().counts().num_steps - before, 2U) << "the pause and the actor's drain";
}

}  // namespace
}  // namespace primerl::testing
