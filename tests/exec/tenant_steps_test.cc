// Tenants that join, start, pause and leave as steps of actor groups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/outside.h"
#include "runtime/exec/group_tenants.h"
#include "tests/exec/small_graph.h"

namespace primerl::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Kind = TenantChange::Kind;

/// source (per tenant) -> middle (per tenant) -> sink (shared), with the tenant t0 in slot 0 and
/// `num_free` free slots. Each source counts to `count` in its own name.
class Hosted : public StepHooks {
 public:
  explicit Hosted(int num_free = 1, int64_t count = 5, uint64_t seed = 1) : count_(count) {
    graph_ = SmallGraph(1 + num_free);
    graph_.num_free_slots = num_free;
    source = middle = sink = strings();
    source.on_work = [this](Puppet& puppet) -> Result<bool> {
      if (puppet.count == count_ || puppet.out.room() <= 0) return false;
      puppet.out.send({.value = ++puppet.count, .bulk = {}},
                      for_tenant(puppet.world().tenants().front()));
      return puppet.count < count_;
    };
    middle.on_in = [](Puppet& puppet, const Number& number) {
      puppet.out.send({.value = number.value, .bulk = {}});
      return ok();
    };
    sink.on_in = [this](Puppet& puppet, const Number& number) {
      const TenantSlot slot = puppet.world().delivery().tenant;
      arrived.push_back(fmt::format("{}:{}", puppet.world().tenant(slot).name, number.value));
      return ok();
    };
    options_.seed = seed;
    options_.step_hooks = this;
    options_.is_hosted = true;
    options_.make_tenant = [this](const Plan&, const TenantChange& change) {
      auto tenant = std::make_shared<Tenant>();
      tenant->name = change.name;
      tenant->slot = change.slot;
      tenant->tenancy = change.tenancy;
      return Result<std::shared_ptr<const Tenant>>(std::move(tenant));
    };
    options_.events.tenant_changed = [this](const TenantChange& change, const Status& status) {
      events.push_back(fmt::format("{} {}{}", to_string(change.kind), change.name,
                                   status.ok() ? "" : ": " + status.error().text()));
    };
    options_.events.tenant_drained = [this](TenantSlot slot) {
      events.push_back(fmt::format("drained {}", slot.value));
    };
  }

  VirtualExecutor& run() {
    if (executor_ != nullptr) return *executor_;
    graph_.node("source", {.strings = source, .contract = make_source, .per_tenant = true})
        .node("middle", {.strings = middle, .per_tenant = true})
        .node("sink", {.strings = sink})
        .edge("source.out", "middle.in")
        .edge("middle.out", "sink.in");
    plan_ = graph_.plan();
    executor_ = std::make_unique<VirtualExecutor>(
        plan_,
        [](const Plan&, int32_t) -> Result<std::shared_ptr<Resource>> {
          return error(Code::kInternal, "small graphs have no resources");
        },
        services, options_);
    EXPECT_TRUE(executor_->start().ok());
    return *executor_;
  }
  /// Gives the change and makes all steps that follow from it.
  void change(Kind kind, uint32_t slot, uint32_t tenancy, const std::string& name) {
    ASSERT_TRUE(run().change_tenant({kind, TenantSlot(slot), tenancy, name, ""}).ok());
    run().settle();
  }
  void join_and_start(uint32_t slot, uint32_t tenancy, const std::string& name) {
    change(Kind::kJoin, slot, tenancy, name);
    change(Kind::kStart, slot, tenancy, name);
  }
  /// Drains the slot until that is reported, and lets the tenant leave.
  void leave(uint32_t slot, uint32_t tenancy, const std::string& name) {
    run().drain_tenant(TenantSlot(slot));
    const std::string drained = fmt::format("drained {}", slot);
    ASSERT_TRUE(run().run_until([&] { return std::ranges::find(events, drained) != events.end(); },
                                10'000));
    change(Kind::kLeave, slot, tenancy, name);
  }
  GroupId group(std::string_view name) {
    for (uint32_t i = 0; i < plan_->groups.size(); ++i)
      if (plan_->groups[i].name == name) return GroupId(i);
    return {};
  }
  void expect_balance() {
    for (const EdgeLedger& edge : run().ledger()) {
      EXPECT_TRUE(edge.balances());
      EXPECT_EQ(edge.in_flight, 0U);
    }
  }
  void keep_steps_of(GroupId id) { kept_of_ = id; }
  const std::vector<RecordedStep>& kept() const { return kept_; }
  const std::shared_ptr<const Plan>& plan() const { return plan_; }
  const TenantMaker& make_tenant() const { return options_.make_tenant; }
  void after(const StepRecord& record) override {
    if (record.group == kept_of_) {
      RecordedStep& step = kept_.emplace_back();
      step.kind = record.kind;
      if (record.tenant_change != nullptr) step.tenant_change = *record.tenant_change;
      step.began = record.began;
      step.room_answers.assign(record.room_answers.begin(), record.room_answers.end());
    }
    if (record.kind == StepKind::kTenant)
      steps.push_back(fmt::format("{} {} {}", plan_->group(record.group).name,
                                  to_string(record.tenant_change->kind),
                                  record.tenant_change->name));
  }

  Strings source, middle, sink;
  MemoryHostServices services;
  std::vector<std::string> lived;    // actors that started, drained or heard of a tenant
  std::vector<std::string> arrived;  // "name:value" at the sink
  std::vector<std::string> events;   // of the executor
  std::vector<std::string> steps;    // recorded changes, "group kind name"

 private:
  Strings strings() {
    Strings made;
    made.on_start = [this](Puppet& puppet) {
      lived.push_back(fmt::format("{} starts", puppet.world().self_name()));
      return ok();
    };
    made.on_drain = [this](Puppet& puppet) {
      lived.push_back(fmt::format("{} drains", puppet.world().self_name()));
      return ok();
    };
    made.on_tenant = [this](Puppet& puppet, TenantSlot slot, Kind kind) {
      lived.push_back(
          fmt::format("{} hears {} of {}", puppet.world().self_name(), to_string(kind), slot));
      return ok();
    };
    return made;
  }
  const int64_t count_;
  SmallGraph graph_;
  VirtualOptions options_;
  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<VirtualExecutor> executor_;
  GroupId kept_of_;
  std::vector<RecordedStep> kept_;
};

TEST(TenantSteps, AJoinMakesTheActorsAndTheStartLetsThemWork) {
  Hosted hosted;
  hosted.run().settle();
  EXPECT_EQ(hosted.arrived.size(), 5U);
  hosted.lived.clear();
  hosted.change(Kind::kJoin, 1, 0, "alice");
  EXPECT_THAT(hosted.events, ElementsAre("join alice"));
  EXPECT_THAT(hosted.lived, UnorderedElementsAre("source.t1 starts", "source.t1 hears join of 1",
                                                 "middle.t1 starts", "middle.t1 hears join of 1",
                                                 "sink hears join of 1"));
  EXPECT_EQ(hosted.arrived.size(), 5U) << "before its start it gives nothing";
  hosted.change(Kind::kStart, 1, 0, "alice");
  EXPECT_EQ(hosted.arrived.size(), 10U);
  EXPECT_THAT(hosted.arrived, Contains("alice:5"));
  EXPECT_THAT(hosted.steps, Contains("sink join alice"));
  EXPECT_THAT(hosted.steps, Contains("source.t1 start alice"));
  EXPECT_THAT(hosted.steps, ::testing::Not(Contains("source.t0 join alice")))
      << "the group has nothing of the slot";
  hosted.expect_balance();
}

TEST(TenantSteps, ASlotIsUsedAgainAfterItsTenantHasLeft) {
  Hosted hosted;
  hosted.join_and_start(1, 0, "alice");
  hosted.leave(1, 0, "alice");
  EXPECT_THAT(hosted.events, ElementsAre("join alice", "start alice", "drained 1", "leave alice"));
  EXPECT_THAT(hosted.lived, Contains("source.t1 drains"));
  EXPECT_THAT(hosted.lived, Contains("source.t1 hears leave of 1"));
  EXPECT_THAT(hosted.lived, Contains("sink hears leave of 1"));
  EXPECT_THAT(hosted.lived, ::testing::Not(Contains("source.t0 drains")));
  EXPECT_TRUE(hosted.run().group(hosted.group("source.t1")).state().actors[0].state.body.empty());
  hosted.arrived.clear();
  hosted.join_and_start(1, 1, "bob");
  EXPECT_THAT(hosted.arrived, ElementsAre("bob:1", "bob:2", "bob:3", "bob:4", "bob:5"))
      << "nothing is left of alice";
  hosted.leave(1, 1, "bob");
  hosted.expect_balance();
}

TEST(TenantSteps, ATenantOfTheFileLeavesToo) {
  Hosted hosted(0);
  EXPECT_FALSE(hosted.run().change_tenant({Kind::kLeave, TenantSlot(0), 0, "t0", ""}).ok())
      << "the graph has no limits";
  Hosted other(1);
  other.run().settle();
  other.leave(0, 0, "t0");
  other.arrived.clear();
  other.join_and_start(0, 1, "carol");
  EXPECT_THAT(other.arrived, ElementsAre("carol:1", "carol:2", "carol:3", "carol:4", "carol:5"));
}

TEST(TenantSteps, LateAndRepeatedChangesChangeNothing) {
  Hosted hosted;
  hosted.join_and_start(1, 0, "alice");
  hosted.lived.clear();
  hosted.change(Kind::kJoin, 1, 0, "alice");
  hosted.leave(1, 0, "alice");
  hosted.change(Kind::kLeave, 1, 0, "alice");
  hosted.join_and_start(1, 1, "bob");
  hosted.lived.clear();
  hosted.change(Kind::kLeave, 1, 0, "alice");
  hosted.change(Kind::kJoin, 1, 0, "alice");
  hosted.change(Kind::kPause, 1, 0, "alice");
  EXPECT_THAT(hosted.lived, IsEmpty());
  EXPECT_THAT(hosted.events, Contains("leave alice").Times(3)) << "each is answered";
}

TEST(TenantSteps, NobodyJoinsASlotThatAnotherHas) {
  Hosted hosted;
  hosted.join_and_start(1, 0, "alice");
  hosted.change(Kind::kJoin, 1, 1, "bob");
  EXPECT_THAT(hosted.events.back(),
              HasSubstr("join bob: tenant 'bob' cannot join slot 1, which tenant 'alice' has"));
  EXPECT_FALSE(hosted.run().change_tenant({Kind::kJoin, TenantSlot(2), 0, "bob", ""}).ok())
      << "there are two slots";
  hosted.expect_balance();
}

TEST(TenantSteps, AJoinThatFailsLeavesTheSlotFree) {
  Hosted hosted;
  bool fails = true;
  const auto start = hosted.middle.on_start;
  hosted.middle.on_start = [&, start](Puppet& puppet) -> Status {
    if (fails && puppet.world().self_name() == "middle.t1")
      return error(Code::kNotFound, "the file is gone");
    return start(puppet);
  };
  hosted.change(Kind::kJoin, 1, 0, "alice");
  ASSERT_EQ(hosted.events.size(), 1U);
  EXPECT_THAT(hosted.events[0], HasSubstr("tenant 'alice' joins 'middle.t1'"));
  EXPECT_THAT(hosted.events[0], HasSubstr("the file is gone"));
  // Other groups made the join: the drain and the leave undo it there.
  hosted.leave(1, 0, "alice");
  fails = false;
  hosted.join_and_start(1, 1, "bob");
  EXPECT_THAT(hosted.arrived, Contains("bob:5"));
  hosted.expect_balance();
}

TEST(TenantSteps, APauseHoldsTheSourceUntilItEnds) {
  Hosted hosted(1, 1'000);
  hosted.join_and_start(1, 0, "alice");
  hosted.run().settle();
  EXPECT_THAT(hosted.arrived, Contains("alice:1000"));
  Hosted other(1, 1'000);
  other.change(Kind::kJoin, 1, 0, "alice");
  ASSERT_TRUE(other.run().change_tenant({Kind::kStart, TenantSlot(1), 0, "alice", ""}).ok());
  ASSERT_TRUE(other.run().run_until([&] { return other.arrived.size() > 100; }));
  other.change(Kind::kPause, 1, 0, "alice");
  const auto num_arrived = std::ranges::count_if(
      other.arrived, [](const std::string& each) { return each.starts_with("alice"); });
  EXPECT_LT(num_arrived, 1000);
  other.expect_balance();
  other.change(Kind::kResume, 1, 0, "alice");
  EXPECT_THAT(other.arrived, Contains("alice:1000"));
}

/// An actor that is not idle keeps the slot for drain_max: what it waits for may be lost.
TEST(TenantSteps, ASlotDrainsWhenItsActorsAreIdle) {
  constexpr Duration kDrainMax = Duration::seconds(30);  // of small_graph.cc
  for (const bool is_idle : {true, false}) {
    Hosted hosted;
    hosted.middle.is_idle = [&](const Puppet& puppet) {
      return is_idle || puppet.world().self_name() != "middle.t1";
    };
    hosted.join_and_start(1, 0, "alice");
    const Time began = hosted.run().now();
    hosted.run().drain_tenant(TenantSlot(1));
    ASSERT_TRUE(hosted.run().run_until([&] { return hosted.events.back() == "drained 1"; }));
    const Duration lasted = hosted.run().now() - began;
    if (is_idle)
      EXPECT_LT(lasted, Duration::seconds(1));
    else
      EXPECT_GE(lasted, kDrainMax);
  }
}

/// An actor of a failed tenant may wait for a message that was lost with the failure.
TEST(TenantSteps, AFailedTenantLeavesAndAnotherTakesItsSlot) {
  Hosted hosted;
  hosted.middle.is_idle = [](const Puppet&) { return false; };
  hosted.middle.on_in = [](Puppet& puppet, const Number& number) -> Status {
    if (puppet.world().tenant(puppet.world().tenants().front()).name == "alice")
      puppet.world().fail_tenant(TenantSlot(1), error(Code::kInvalid, "no more"));
    puppet.out.send({.value = number.value, .bulk = {}});
    return ok();
  };
  hosted.join_and_start(1, 0, "alice");
  hosted.leave(1, 0, "alice");
  hosted.arrived.clear();
  hosted.join_and_start(1, 1, "bob");
  EXPECT_THAT(hosted.arrived, ElementsAre("bob:1", "bob:2", "bob:3", "bob:4", "bob:5"));
}

TEST(TenantSteps, ASavedGroupHasItsTenants) {
  Hosted hosted(2);
  hosted.join_and_start(1, 3, "alice");
  hosted.change(Kind::kJoin, 2, 0, "bob");
  hosted.leave(0, 0, "t0");
  const GroupId sink = hosted.group("sink");
  const GroupState before = hosted.run().group(sink).state();
  EXPECT_THAT(before.slots, ElementsAre(SavedSlot{TenantSlot(1), 3, "alice", "", true, false},
                                        SavedSlot{TenantSlot(2), 0, "bob", "", false, false}));
  EXPECT_EQ(before.left, (std::map<TenantSlot, uint32_t>{{TenantSlot(0), 0}}));
  for (const std::string_view name : {"sink", "source.t1", "source.t2", "source.t0"}) {
    const GroupId id = hosted.group(name);
    const SavedFields saved = encode_group_state(hosted.run().group(id).state());
    ASSERT_TRUE(hosted.run().remake(id).ok()) << name;
    EXPECT_EQ(encode_group_state(hosted.run().group(id).state()).body.bytes().size(),
              saved.body.bytes().size());
    EXPECT_TRUE(std::ranges::equal(encode_group_state(hosted.run().group(id).state()).body.bytes(),
                                   saved.body.bytes()))
        << name;
  }
  hosted.arrived.clear();
  hosted.change(Kind::kStart, 2, 0, "bob");
  EXPECT_THAT(hosted.arrived, ElementsAre("bob:1", "bob:2", "bob:3", "bob:4", "bob:5"));
}

/// A change that waits is a part of the saved state.
TEST(TenantSteps, AWaitingChangeIsSaved) {
  Hosted hosted;
  hosted.run().settle();
  ASSERT_TRUE(hosted.run().change_tenant({Kind::kJoin, TenantSlot(1), 0, "alice", "table"}).ok());
  const GroupId sink = hosted.group("sink");
  const GroupState state = hosted.run().group(sink).state();
  ASSERT_EQ(state.inputs.size(), 1U);
  EXPECT_EQ(state.inputs[0].tenant_change->table, "table");
  ASSERT_TRUE(hosted.run().remake(sink).ok());
  hosted.run().settle();
  EXPECT_THAT(hosted.events, ElementsAre("join alice"));
}

/// A group alone that repeats recorded steps.
class Repeated final : public StepSource, public GroupExecutor, public DeliveryObserver {
 public:
  Repeated(const Hosted& recorded, GroupId id, std::vector<RecordedStep> steps)
      : steps_(std::move(steps)) {
    GroupSetup setup;
    setup.plan = recorded.plan();
    setup.wiring = make_wiring(*setup.plan);
    setup.group = id;
    setup.process_services = &services_;
    setup.executor = this;
    setup.make_tenant = recorded.make_tenant();
    setup.observer = this;
    setup.step_source = this;
    group = std::make_unique<ActorGroup>(std::move(setup));
  }
  const RecordedStep* next() const override { return at_ < steps_.size() ? &steps_[at_] : nullptr; }
  void diverged(std::string what) override { ADD_FAILURE() << what; }
  void on_step(const StepRecord&) override { ++at_; }
  void ship(MessageBatch&& batch) override { num_shipped += batch.messages.size(); }
  void tenant_finished(TenantSlot, uint32_t) override {}
  void tenant_failed(TenantSlot, uint32_t, std::string) override {}
  void group_failed(GroupId, Error error) override { ADD_FAILURE() << error.text(); }
  void tenant_changed(GroupId, const TenantChange&, Status) override {
    ADD_FAILURE() << "it was reported in the recorded run";
  }

  std::unique_ptr<ActorGroup> group;
  size_t num_shipped = 0;

 private:
  MemoryHostServices services_;
  std::vector<RecordedStep> steps_;
  size_t at_ = 0;
};

TEST(TenantSteps, AReplayMakesThemAtTheirPositions) {
  Hosted hosted;
  hosted.run();
  const GroupId id = hosted.group("source.t1");
  hosted.keep_steps_of(id);
  hosted.join_and_start(1, 0, "alice");
  hosted.leave(1, 0, "alice");
  hosted.join_and_start(1, 1, "bob");
  const GroupState wanted = hosted.run().group(id).state();
  std::vector<RecordedStep> steps = hosted.kept();
  EXPECT_EQ(std::ranges::count(steps, StepKind::kTenant, &RecordedStep::kind), 6)
      << "two joins, two starts, the pause of the drain, and the leave";
  Repeated again(hosted, id, steps);
  ASSERT_TRUE(again.group->start(Time()).ok());
  for (size_t i = 0; i < steps.size(); ++i) ASSERT_TRUE(again.group->step(Time())) << i;
  const GroupState state = again.group->state();
  EXPECT_EQ(again.num_shipped, 10U);
  EXPECT_EQ(state.slots, wanted.slots);
  EXPECT_EQ(state.left, wanted.left);
  EXPECT_EQ(state.num_steps, wanted.num_steps);
  ASSERT_EQ(state.actors.size(), 1U);
  EXPECT_TRUE(
      std::ranges::equal(state.actors[0].state.body.bytes(), wanted.actors[0].state.body.bytes()));
  EXPECT_EQ(state.actors[0].has_drained, wanted.actors[0].has_drained);
}

}  // namespace
}  // namespace primerl::testing
