#include "runtime/control/tenant_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/random.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using SlotOrder = TenantOrder;
constexpr ProcessId kDriver(0), kServing(1);

/// A graph of `num_slots` slots and two processes; "main" has the first slot.
Plan a_hosted_plan(size_t num_slots) {
  Plan plan;
  plan.processes.resize(2);
  Tenant main;
  main.name = "main";
  main.slot = TenantSlot(0);
  plan.tenants = {main};
  plan.free_slots.resize(num_slots - 1);
  plan.settings.tenant_limits.tenants_max = static_cast<int64_t>(num_slots);
  plan.resolved_toml = "[graph]\nname = \"g\"\n\n[tenant.main]\nseq_len = 8\n\n[edges]\n";
  return plan;
}

struct TenantTableStory : ::testing::Test {
  /// All processes carry the order out; the next order.
  std::optional<SlotOrder> answer(const SlotOrder& order) {
    EXPECT_FALSE(table.on_answer(kDriver, order).has_value()) << "one process is not all";
    return table.on_answer(kServing, order);
  }
  /// A tenant that trains.
  HostedTenant join(const std::string& name) {
    const auto admitted = table.admit(name, "[tenant." + name + "]\n");
    EXPECT_TRUE(admitted.ok()) << admitted.error().text();
    const auto started = answer(table.start(name).value());
    EXPECT_EQ(started->kind, SlotOrder::Kind::kStart);
    return *table.find(name);
  }
  /// Every process drains and destroys the actors of a tenant that drains.
  void empty_slot(const std::optional<SlotOrder>& drain) {
    ASSERT_TRUE(drain.has_value());
    ASSERT_EQ(drain->kind, SlotOrder::Kind::kDrain);
    const auto destroy = answer(*drain);
    ASSERT_TRUE(destroy.has_value());
    ASSERT_EQ(destroy->kind, SlotOrder::Kind::kDestroy);
    EXPECT_FALSE(answer(*destroy).has_value());
  }
  TenantState state(const std::string& name) const { return table.find(name)->state; }

  TenantTable table{a_hosted_plan(3)};
};

TEST_F(TenantTableStory, TenantsOfTheGraphTrainFromTheStart) {
  const HostedTenant* main = table.find("main");
  ASSERT_NE(main, nullptr);
  EXPECT_EQ(main->state, TenantState::kTraining);
  EXPECT_EQ(main->table, "[tenant.main]\nseq_len = 8\n");
  EXPECT_EQ(main->tenancy, 0U);
  EXPECT_EQ(table.num_free_slots(), 2U);
}

TEST_F(TenantTableStory, AJoinHasTwoSteps) {
  const auto admitted = table.admit("alice", "[tenant.alice]\n");
  ASSERT_TRUE(admitted.ok());
  EXPECT_EQ(admitted->slot, TenantSlot(1));
  EXPECT_EQ(state("alice"), TenantState::kAdmitted);
  const SlotOrder make = table.start("alice").value();
  EXPECT_EQ(make, (SlotOrder{SlotOrder::Kind::kMake, TenantSlot(1), 0}));
  EXPECT_FALSE(table.on_answer(kServing, make).has_value());
  EXPECT_FALSE(table.on_answer(kServing, make).has_value()) << "a repeated answer is one answer";
  EXPECT_EQ(state("alice"), TenantState::kStarting) << "the source waits for the last process";
  EXPECT_EQ(table.on_answer(kDriver, make), (SlotOrder{SlotOrder::Kind::kStart, TenantSlot(1), 0}));
  EXPECT_EQ(state("alice"), TenantState::kTraining);
}

TEST_F(TenantTableStory, ASlotIsFreeOnlyWhenEveryProcessHasDestroyedItsActors) {
  const HostedTenant alice = join("alice");
  join("bob");
  EXPECT_EQ(table.num_free_slots(), 0U);
  const auto drain = table.on_finished(alice.slot, alice.tenancy);
  EXPECT_FALSE(table.on_finished(alice.slot, alice.tenancy).has_value()) << "drained once";
  const auto destroy = answer(*drain);
  EXPECT_FALSE(table.on_answer(kDriver, *drain).has_value()) << "a late answer";
  EXPECT_FALSE(table.on_answer(kDriver, *destroy).has_value());
  EXPECT_EQ(state("alice"), TenantState::kDraining);
  EXPECT_EQ(table.admit("cy", "").error().code(), Code::kExhausted);
  EXPECT_FALSE(table.on_answer(kServing, *destroy).has_value());
  EXPECT_EQ(state("alice"), TenantState::kEnded);
  EXPECT_EQ(table.num_free_slots(), 1U);
}

TEST_F(TenantTableStory, TheNextTenantOfASlotHasAnotherNumber) {
  const HostedTenant first = join("alice");
  empty_slot(table.remove("alice").value());
  EXPECT_EQ(table.find("alice"), nullptr) << "removed";
  const HostedTenant second = join("alice");
  EXPECT_EQ(second.slot, first.slot);
  EXPECT_EQ(second.tenancy, 1U);
  // What belongs to the first changes nothing for the second.
  EXPECT_FALSE(table.on_finished(first.slot, first.tenancy).has_value());
  EXPECT_FALSE(table.on_failed(first.slot, first.tenancy, "late").has_value());
  EXPECT_FALSE(table.on_answer(kDriver, {SlotOrder::Kind::kDrain, first.slot, 0}).has_value());
  EXPECT_EQ(state("alice"), TenantState::kTraining);
  EXPECT_EQ(table.find("alice")->why, "");
}

TEST_F(TenantTableStory, AFailureDrainsAndItsFirstReasonIsKept) {
  const HostedTenant alice = join("alice");
  const auto drain = table.on_failed(alice.slot, alice.tenancy, "its disk is full");
  EXPECT_FALSE(table.on_failed(alice.slot, alice.tenancy, "later").has_value());
  empty_slot(drain);
  EXPECT_EQ(state("alice"), TenantState::kFailed);
  EXPECT_EQ(table.find("alice")->why, "its disk is full");
  const auto again = table.admit("alice", "");
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.error().text(), HasSubstr("'alice' is there already: failed"));
  EXPECT_FALSE(table.remove("alice").value().has_value()) << "nothing is left to order";
  EXPECT_EQ(join("alice").tenancy, 1U);
}

TEST_F(TenantTableStory, AProcessThatCannotMakeTheActorsEndsTheJoin) {
  ASSERT_TRUE(table.admit("alice", "").ok());
  const SlotOrder make = table.start("alice").value();
  EXPECT_FALSE(table.on_answer(kDriver, make).has_value());
  const auto drain = table.on_failed(make.slot, make.tenancy, "no memory");
  EXPECT_FALSE(table.on_answer(kServing, make).has_value()) << "it does not start any more";
  empty_slot(drain);
  EXPECT_EQ(state("alice"), TenantState::kFailed);
}

TEST_F(TenantTableStory, VerbsNeedTheirState) {
  join("alice");
  EXPECT_EQ(table.pause("alice")->kind, SlotOrder::Kind::kPause);
  EXPECT_THAT(table.pause("alice").error().text(),
              HasSubstr("tenant 'alice' cannot be paused: it is paused"));
  EXPECT_EQ(table.resume("alice")->kind, SlotOrder::Kind::kResume);
  EXPECT_FALSE(table.resume("alice").ok());
  EXPECT_FALSE(table.start("alice").ok());
  EXPECT_THAT(table.pause("alise").error().text(), HasSubstr("alice and main"));
  const auto drain = table.remove("alice").value();
  EXPECT_FALSE(table.pause("alice").ok());
  EXPECT_FALSE(table.remove("alice").value().has_value()) << "it drains already";
  empty_slot(drain);
  EXPECT_FALSE(table.remove("alice").ok());
}

TEST_F(TenantTableStory, AnAdmittedTenantIsRemovedAtOnceAndItsNumberIsNotUsedAgain) {
  ASSERT_TRUE(table.admit("alice", "").ok());
  EXPECT_FALSE(table.remove("alice").value().has_value());
  EXPECT_EQ(table.num_free_slots(), 2U);
  EXPECT_EQ(table.admit("alice", "")->tenancy, 1U);
}

TEST_F(TenantTableStory, ARestartedProcessMakesTheActorsAgain) {
  const HostedTenant alice = join("alice");
  ASSERT_TRUE(table.pause("alice").ok());
  ASSERT_TRUE(table.admit("bob", "").ok());
  const SlotOrder make = table.start("bob").value();
  EXPECT_FALSE(table.on_answer(kServing, make).has_value());
  const auto of_alice = [&](SlotOrder::Kind kind) {
    return SlotOrder{kind, alice.slot, alice.tenancy};
  };
  EXPECT_THAT(table.on_restarted(kServing),
              ElementsAre(of_alice(SlotOrder::Kind::kMake), of_alice(SlotOrder::Kind::kStart),
                          of_alice(SlotOrder::Kind::kPause), make))
      << "the plan's tenant is made and started with the process";
  EXPECT_FALSE(table.on_answer(kDriver, make).has_value())
      << "what the earlier incarnation made is gone, so its answer does not count";
  EXPECT_EQ(table.on_answer(kServing, make)->kind, SlotOrder::Kind::kStart);
}

// The control plane was killed between the file and the order, and the records said that the tenant
// is paused.
TEST_F(TenantTableStory, ARestartedProcessIsToldThatAPauseHasEnded) {
  const auto of = [](const HostedTenant& tenant, SlotOrder::Kind kind) {
    return SlotOrder{kind, tenant.slot, tenant.tenancy};
  };
  const HostedTenant main = *table.find("main");
  const HostedTenant alice = join("alice");
  for (const char* name : {"main", "alice"}) {
    ASSERT_TRUE(table.pause(name).ok());
    ASSERT_TRUE(table.resume(name).ok());
  }
  TenantTable again(a_hosted_plan(3));
  ASSERT_TRUE(again.restore(parse_json(table.json().dump(), "table").value()).ok());
  again.all_restarted();
  EXPECT_THAT(again.on_restarted(kServing),
              ElementsAre(of(alice, SlotOrder::Kind::kMake), of(alice, SlotOrder::Kind::kStart),
                          of(alice, SlotOrder::Kind::kResume), of(main, SlotOrder::Kind::kResume)));
}

TEST_F(TenantTableStory, ARestartedProcessDestroysThePlansTenantThatHasLeft) {
  empty_slot(table.remove("main").value());
  const SlotOrder gone{SlotOrder::Kind::kDestroy, TenantSlot(0), 0};
  EXPECT_THAT(table.on_restarted(kServing), ElementsAre(gone));
  const HostedTenant next = join("alice");
  ASSERT_EQ(next.slot, TenantSlot(0));
  EXPECT_THAT(table.on_restarted(kServing),
              ElementsAre(gone, SlotOrder{SlotOrder::Kind::kMake, next.slot, next.tenancy},
                          SlotOrder{SlotOrder::Kind::kStart, next.slot, next.tenancy}));
  EXPECT_FALSE(table.on_answer(kServing, gone).has_value());
  EXPECT_EQ(state("alice"), TenantState::kTraining);
}

// The record of a killed process ended before the tenant left, and the slot is another's now.
TEST_F(TenantTableStory, ARestartedProcessDestroysTheLastTenantThatLeftASlot) {
  const HostedTenant alice = join("alice");
  empty_slot(table.remove("alice").value());
  const HostedTenant bob = join("bob");
  ASSERT_EQ(bob.slot, alice.slot);
  TenantTable again(a_hosted_plan(3));
  ASSERT_TRUE(again.restore(parse_json(table.json().dump(), "table").value()).ok());
  EXPECT_THAT(again.on_restarted(kServing),
              ElementsAre(SlotOrder{SlotOrder::Kind::kDestroy, alice.slot, alice.tenancy},
                          SlotOrder{SlotOrder::Kind::kMake, bob.slot, bob.tenancy},
                          SlotOrder{SlotOrder::Kind::kStart, bob.slot, bob.tenancy}));
}

TEST_F(TenantTableStory, AProcessThatRestartsWhileATenantDrainsAnswersAgain) {
  const HostedTenant alice = join("alice");
  const SlotOrder drain = *table.remove("alice", RemovedFiles::kPurge).value();
  EXPECT_FALSE(table.on_answer(kServing, drain).has_value());
  const SlotOrder make{SlotOrder::Kind::kMake, alice.slot, alice.tenancy};
  EXPECT_THAT(table.on_restarted(kServing), ElementsAre(make, drain));
  EXPECT_FALSE(table.on_answer(kServing, make).has_value()) << "it does not train again";
  EXPECT_FALSE(table.on_answer(kDriver, drain).has_value());
  const SlotOrder destroy = *table.on_answer(kServing, drain);
  EXPECT_FALSE(table.on_answer(kServing, destroy).has_value());
  EXPECT_THAT(table.on_restarted(kServing), ElementsAre(destroy));
  EXPECT_EQ(table.find("alice")->files, RemovedFiles::kPurge);
  EXPECT_FALSE(table.on_answer(kDriver, destroy).has_value());
  EXPECT_FALSE(table.on_answer(kServing, destroy).has_value());
  EXPECT_EQ(table.find("alice"), nullptr);
}

TEST_F(TenantTableStory, WhenAllProcessesAreNewATenantDrainsAgain) {
  const HostedTenant alice = join("alice");
  const SlotOrder drain = *table.remove("alice").value();
  const SlotOrder destroy = *answer(drain);
  EXPECT_FALSE(table.on_answer(kServing, destroy).has_value());
  table.all_restarted();
  const SlotOrder make{SlotOrder::Kind::kMake, alice.slot, alice.tenancy};
  EXPECT_THAT(table.on_restarted(kServing), ElementsAre(make, drain));
  EXPECT_THAT(table.on_restarted(kDriver), ElementsAre(make, drain));
  empty_slot(drain);
}

TEST_F(TenantTableStory, ItsLimitHoldsAtTheBoundAndOnePastIt) {
  for (size_t i = table.tenants().size(); i < TenantTable::kTenantsMax; ++i) {
    const HostedTenant ended = join(fmt::format("t{}", i));
    empty_slot(table.on_finished(ended.slot, ended.tenancy));
  }
  const auto past = table.admit("past", "");
  ASSERT_FALSE(past.ok());
  EXPECT_EQ(past.error().code(), Code::kExhausted);
  ASSERT_TRUE(table.remove("t1").ok());
  EXPECT_TRUE(table.admit("past", "").ok());
}

/// Random verbs, answers, failures and restarts of the table from its text: no slot is given twice,
/// no number comes back, and in the end everything can be removed.
TEST(TenantTable, KeepsSlotsAndNumbersApartAtEverySeed) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    RandomStream random(mix(seed, 39));
    const Plan plan = a_hosted_plan(4);
    auto table = std::make_unique<TenantTable>(plan);
    std::vector<SlotOrder> orders;
    std::set<std::pair<uint32_t, uint32_t>> numbers = {{0, 0}};
    const auto give = [&](const std::optional<SlotOrder>& order) {
      if (order) orders.push_back(*order);
    };
    for (int i = 0; i < 300; ++i) {
      const std::string name = fmt::format("t{}", random.below(6));
      const HostedTenant* there = table->find(name);
      switch (random.below(8)) {
        case 0:
          if (const auto admitted = table->admit(name, "x"); admitted.ok()) {
            ASSERT_TRUE(numbers.emplace(admitted->slot.value, admitted->tenancy).second) << seed;
          }
          break;
        case 1:
          if (const auto order = table->start(name); order.ok()) give(*order);
          break;
        case 2:
          (void)table->pause(name);
          break;
        case 3:
          (void)table->resume(name);
          break;
        case 4:
          if (const auto order = table->remove(name); order.ok()) give(*order);
          break;
        case 5:
          if (there != nullptr)
            give(random.below(2) == 0 ? table->on_finished(there->slot, there->tenancy)
                                      : table->on_failed(there->slot, there->tenancy, "why"));
          break;
        case 6:
          if (!orders.empty()) {
            const SlotOrder order = orders[random.below(orders.size())];
            give(table->on_answer(ProcessId(static_cast<uint32_t>(random.below(2))), order));
          }
          break;
        default: {
          const Json text = table->json();
          auto again = std::make_unique<TenantTable>(plan);
          ASSERT_TRUE(again->restore(parse_json(text.dump(), "table").value()).ok()) << seed;
          ASSERT_EQ(again->json(), text) << seed;
          table = std::move(again);
        }
      }
      std::set<TenantSlot> slots;
      size_t num_used = 0;
      for (const auto& [each, tenant] : table->tenants()) {
        if (tenant.state == TenantState::kEnded || tenant.state == TenantState::kFailed) continue;
        ++num_used;
        slots.insert(tenant.slot);
      }
      ASSERT_EQ(slots.size(), num_used) << "two tenants have one slot, seed " << seed;
      ASSERT_EQ(table->num_free_slots(), 4 - num_used) << seed;
    }
  }
}

TEST(TenantTable, RefusesATextThatIsNotItsOwn) {
  TenantTable table(a_hosted_plan(2));
  const std::string text = table.json().dump();
  const auto restored = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return table.restore(parse_json(changed, "table").value()).ok();
  };
  EXPECT_TRUE(restored("main", "main"));
  EXPECT_FALSE(restored("\"training\"", "\"trainin\""));
  EXPECT_FALSE(restored("\"slot\":0", "\"slot\":2"));
  EXPECT_TRUE(restored("\"slot\":0", "\"slot\":1"));
  EXPECT_FALSE(restored("\"unanswered\":[]", "\"unanswered\":[2]"));
  EXPECT_FALSE(restored("\"numbers\"", "\"number\""));
  EXPECT_FALSE(restored("\"keep\"", "\"kept\""));
  EXPECT_FALSE(restored("\"left\":{}", "\"left\":{\"0\":-1}"));
  EXPECT_FALSE(restored("\"slots\":{\"0\"", "\"slots\":{\"x\""));
  EXPECT_NE(table.holder(TenantSlot(1)), nullptr) << "a refusal changes nothing";
}

}  // namespace
}  // namespace primerl
