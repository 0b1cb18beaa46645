// A tenant joins one group: what its actors and resources hear, also if the join fails half way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/exec/group_stage.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = TenantChange::Kind;

constexpr TenantSlot kFree(1);

class Noted final : public Resource {};

/// A group with an actor that all tenants share and one of each tenant. Slot 1 is free, and the
/// group owns one resource.
class JoiningGroup : public ::testing::Test, private DeliveryObserver {
 protected:
  JoiningGroup() : graph_(2) {
    graph_.num_free_slots = 1;
    Strings strings;
    strings.on_tenant = [this](Puppet& puppet, TenantSlot slot, Kind kind) {
      // As engines do: a tenant that an actor does not know is a fault of the program.
      heard_.push_back(fmt::format("{} hears {} of {}", puppet.world().self_name(), to_string(kind),
                                   puppet.world().tenant(slot).name));
      return ok();
    };
    graph_
        .node("own", {.strings = strings,
                      .contract =
                          [this](Contract& contract) {
                            contract.make = [this, make = contract.make](const void* options) {
                              if (throws_) throw std::runtime_error("no memory for it");
                              return make(options);
                            };
                          },
                      .per_tenant = true,
                      .group = "both"})
        .node("shared", {.strings = strings, .group = "both"});
    stage_ = std::make_unique<GroupStage>(graph_, "both");
    GroupSetup& setup = stage_->common->setup;
    setup.make_tenant = [](const Plan&, const TenantChange& change) {
      return Result<std::shared_ptr<const Tenant>>(tenant_of(change));
    };
    setup.tenant_resources = [this](const Plan&, int32_t, Resource&, const Tenant& tenant,
                                    Kind kind) {
      heard_.push_back(fmt::format("resource hears {} of {}", to_string(kind), tenant.name));
      return kind == Kind::kJoin ? told_ : ok();
    };
    setup.observer = this;
    setup.factory = [](const Plan&, int32_t) -> Result<std::shared_ptr<Resource>> {
      return std::shared_ptr<Resource>(std::make_shared<Noted>());
    };
    // Small graphs have none.
    const_cast<PlanGroup&>(stage_->common->planned()).resources.push_back(0);
    const_cast<Plan&>(*setup.plan).resources.emplace_back();
  }
  static std::shared_ptr<const Tenant> tenant_of(const TenantChange& change) {
    auto tenant = std::make_shared<Tenant>();
    tenant->name = change.name;
    tenant->slot = change.slot;
    tenant->tenancy = change.tenancy;
    return tenant;
  }
  void on_step(const StepRecord& record) override {
    if (record.error != nullptr) errors_.push_back(record.error->text());
  }
  void start() {
    ASSERT_TRUE(stage_->steps.make_resources().ok());
    ASSERT_TRUE(stage_->actors.start(Time()).ok());
  }
  void join(uint32_t tenancy, const std::string& name) {
    Input input;
    input.kind = StepKind::kTenant;
    input.tenant_change =
        std::make_shared<const TenantChange>(TenantChange{Kind::kJoin, kFree, tenancy, name, ""});
    stage_->links.inbox().push_control(std::move(input), Time());
    ASSERT_TRUE(stage_->step());
  }

  SmallGraph graph_;
  std::unique_ptr<GroupStage> stage_;
  bool throws_ = false;  // the next actor cannot be made
  Status told_;          // what the resource answers to a join
  std::vector<std::string> heard_, errors_;
};

TEST_F(JoiningGroup, AnActorThatCannotBeMadeHearsNothing) {
  start();
  throws_ = true;
  join(0, "alice");
  ASSERT_EQ(errors_.size(), 1U);
  EXPECT_THAT(errors_[0], HasSubstr("no memory for it"));
  EXPECT_THAT(heard_, ElementsAre("resource hears join of alice", "shared hears leave of alice",
                                  "resource hears leave of alice"));
  EXPECT_TRUE(stage_->common->tenants.is_free(kFree));
  throws_ = false;
  heard_.clear();
  join(1, "bob");
  EXPECT_EQ(errors_.size(), 1U);
  EXPECT_THAT(heard_, ElementsAre("resource hears join of bob", "own.t1 hears join of bob",
                                  "shared hears join of bob"));
}

/// They would ask for a tenant that they do not have.
TEST_F(JoiningGroup, ActorsDoNotHearOfATenantThatAResourceRefused) {
  start();
  told_ = error(Code::kExhausted, "no memory for its adapter");
  join(0, "alice");
  ASSERT_EQ(errors_.size(), 1U);
  EXPECT_THAT(errors_[0], HasSubstr("no memory for its adapter"));
  EXPECT_THAT(heard_, ElementsAre("resource hears join of alice", "resource hears leave of alice"));
  EXPECT_TRUE(stage_->common->tenants.is_free(kFree));
}

/// A tenant that joined may have the slot of one of the file, and a resource has one for each slot.
TEST_F(JoiningGroup, ResourcesOfASavedStateFreeASlotBeforeItIsTakenAgain) {
  std::vector<GroupId> made_for;
  stage_->common->setup.make_tenant = [&](const Plan&, const TenantChange& change) {
    made_for.push_back(ActorGroup::running_here());
    return Result<std::shared_ptr<const Tenant>>(tenant_of(change));
  };
  ASSERT_TRUE(stage_->steps.make_resources().ok());
  GroupState state;
  state.slots = {{TenantSlot(0), 1, "bob", "", true, false}};
  ASSERT_TRUE(stage_->steps.restore_slots(state, Time()).ok());
  EXPECT_THAT(made_for, ElementsAre(stage_->common->setup.group)) << "its files are this group's";
  EXPECT_TRUE(ActorGroup::running_here().is_none());
  ASSERT_TRUE(stage_->steps.notify_of_joined().ok());
  EXPECT_THAT(heard_, ElementsAre("resource hears leave of t0", "resource hears join of bob"));
}

/// A tenant with values is a copy of the one that joined or that the file has.
TEST_F(JoiningGroup, ResourcesOfASavedStateHearOfValuesAfterTheTenants) {
  std::vector<std::string> heard;
  stage_->common->setup.tenant_resources = [&heard](const Plan&, int32_t, Resource&,
                                                    const Tenant& tenant, Kind kind) {
    heard.push_back(fmt::format("{} {} {}", to_string(kind), tenant.name, tenant.max_steps));
    return ok();
  };
  ASSERT_TRUE(stage_->steps.make_resources().ok());
  GroupState state;
  state.slots = {{kFree, 1, "bob", "", true, false}};
  state.values = {{TenantSlot(0), "max_steps = 7\n"}, {kFree, "max_steps = 8\n"}};
  ASSERT_TRUE(stage_->steps.restore_slots(state, Time()).ok());
  ASSERT_TRUE(stage_->steps.notify_of_joined().ok());
  EXPECT_THAT(heard, ElementsAre("join bob 100", "set t0 7", "set bob 8"))
      << "t0 has not left, and the learner gets bob as it joined";
}

/// An actor that is made again asks for it.
TEST_F(JoiningGroup, ATenantWhoseValuesWereSetKeepsItsResumePoint) {
  struct : MemoryHostServices {
    const ResumePoint* resume_point(TenantSlot) const override { return &point; }
    ResumePoint point;
  } services;
  stage_->common->setup.process_services = &services;
  start();
  TenantChange change{Kind::kSet, TenantSlot(0), 0, "t0", "max_steps = 7\n"};
  Input input;
  input.kind = StepKind::kTenant;
  input.tenant_change = std::make_shared<const TenantChange>(std::move(change));
  stage_->links.inbox().push_control(std::move(input), Time());
  ASSERT_TRUE(stage_->step());
  const Services& world = stage_->puppet(0).world();
  EXPECT_EQ(world.tenant(TenantSlot(0)).max_steps, 7);
  EXPECT_EQ(world.resume_point(TenantSlot(0)), &services.point);
  stage_.reset();  // before its services
}

struct EndedRecord final : StepSource {
  const RecordedStep* next() const override { return nullptr; }
  void diverged(std::string what) override { ADD_FAILURE() << what; }
};

/// The executor would take it for the tenant that has the slot now.
TEST_F(JoiningGroup, ATenantThatFinishedAndLeftInTheRecordIsNotReported) {
  EndedRecord record;
  start();
  stage_->common->setup.step_source = &record;
  stage_->puppet(0).world().finish(TenantSlot(0));
  stage_->actors.apply_effects(stage_->actors.running(0));
  stage_->common->tenants.make({Kind::kLeave, TenantSlot(0), 0, "t0", ""}, nullptr);
  stage_->actors.vacate(TenantSlot(0), Time());
  stage_->actors.report_at_end_of_record();
  EXPECT_TRUE(stage_->finished.empty());
}

TEST_F(JoiningGroup, ATenantThatFinishedInTheRecordIsReportedAtItsEnd) {
  EndedRecord record;
  start();
  stage_->common->setup.step_source = &record;
  stage_->puppet(0).world().finish(TenantSlot(0));
  stage_->actors.apply_effects(stage_->actors.running(0));
  EXPECT_TRUE(stage_->finished.empty()) << "it may leave in the record";
  stage_->common->setup.step_source = nullptr;
  stage_->actors.report_at_end_of_record();
  EXPECT_THAT(stage_->finished, ElementsAre(TenantSlot(0)));
}

}  // namespace
}  // namespace primerl::testing
