// Tenants of a served run when a process, the control plane or the disk fails.
#include "runtime/control/tenant_control.h"

#include "runtime/store/removed_tenants.h"
#include "tests/control/tenant_stage.h"

namespace primerl::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct TenantRestartStory : TenantStage {};

TEST_F(TenantRestartStory, AProcessThatDiesWhileATenantStartsMakesItsActorsAgain) {
  all_ready();
  add("alice");
  const HostedTenant alice = *control->table().find("alice");
  for (const ProcessId process : kAll) {
    if (process != kServing) carried_out(process, Kind::kJoin, alice);
  }
  control->process_died(kServing);
  sent.clear();
  carried_out(kServing, Kind::kJoin, alice);
  EXPECT_EQ(state("alice"), TenantState::kStarting) << "the dead process's answer came too late";
  control->process_ready(kServing, now);
  EXPECT_THAT(take_sent(), ElementsAre("1: join 0 alice~0"));
  carried_out(kServing, Kind::kJoin, alice);
  EXPECT_EQ(state("alice"), TenantState::kTraining);
}

TEST_F(TenantRestartStory, AProcessThatDiesWhileATenantTrainsOrIsPausedGetsAllItsOrders) {
  all_ready();
  const HostedTenant alice = join("alice");
  control->process_died(kServing);
  ask("pause", "alice");
  EXPECT_THAT(take_sent(), ElementsAre("0: pause 0 alice~0", "2: pause 0 alice~0"));
  control->process_ready(kServing, now);
  EXPECT_THAT(take_sent(),
              ElementsAre("1: join 0 alice~0", "1: start 0 alice~0", "1: pause 0 alice~0"));
  carried_out(kServing, Kind::kJoin, alice);
  EXPECT_EQ(state("alice"), TenantState::kPaused);
}

TEST_F(TenantRestartStory, AProcessThatDiesWhileATenantDrainsBeginsTheRoundsAgain) {
  all_ready();
  const HostedTenant alice = join("alice");
  ask("remove", "alice");
  for (const ProcessId process : kAll) drained(process, alice, 1);
  drained(kDriver, alice, 2);
  control->process_died(kServing);
  sent.clear();
  drained(kTraining, alice, 2);
  control->process_ready(kServing, now);
  EXPECT_THAT(take_sent(), ElementsAre("1: join 0 alice~0", "0: drain 0 ~0 round 3",
                                       "1: drain 0 ~0 round 3", "2: drain 0 ~0 round 3"));
  for (const ProcessId process : kAll) drained(process, alice, 3);
  EXPECT_THAT(take_sent(), Each(HasSubstr("round 4"))) << "one round is not two";
  for (const ProcessId process : kAll) drained(process, alice, 4);
  EXPECT_THAT(take_sent(), Each(HasSubstr("leave")));
  control->process_died(kTraining);
  carried_out(kDriver, Kind::kLeave, alice);
  carried_out(kServing, Kind::kLeave, alice);
  control->process_ready(kTraining, now);
  EXPECT_THAT(take_sent(), ElementsAre("2: leave 0 alice~0"));
  carried_out(kTraining, Kind::kLeave, alice);
  EXPECT_EQ(control->table().find("alice"), nullptr);
}

TEST_F(TenantRestartStory, AnOrderWithoutAnswerIsRepeatedAfterDeadAfter) {
  all_ready();
  add("alice");
  const HostedTenant alice = *control->table().find("alice");
  carried_out(kServing, Kind::kJoin, alice);
  sent.clear();
  now = now + (plan->settings.dead_after - Duration::nanoseconds(1));
  control->tick(now);
  EXPECT_THAT(take_sent(), IsEmpty());
  now = now + Duration::nanoseconds(1);
  control->tick(now);
  EXPECT_THAT(take_sent(), ElementsAre("0: join 0 alice~0", "2: join 0 alice~0"));
  control->tick(now);
  EXPECT_THAT(take_sent(), IsEmpty());
  const Json one = control->picture(*control->table().find("alice"), false);
  EXPECT_EQ(one.find("waits_for")->dump(), R"(["driver","training"])");
  ask("remove", "alice");
  drained(kServing, alice, 1);
  sent.clear();
  now = now + plan->settings.dead_after;
  control->tick(now);
  EXPECT_THAT(take_sent(), ElementsAre("0: drain 0 ~0 round 1", "2: drain 0 ~0 round 1"));
}

TEST_F(TenantRestartStory, ACrashInEachStateLosesNothing) {
  all_ready();
  add("alice");
  crash();
  EXPECT_THAT(take_sent(),
              ElementsAre("0: join 0 alice~0", "1: join 0 alice~0", "2: join 0 alice~0"));
  const HostedTenant alice = *control->table().find("alice");
  all_carried_out(Kind::kJoin, alice);
  crash();
  EXPECT_THAT(take_sent(), AllOf(SizeIs(6), Contains("1: start 0 alice~0")));
  EXPECT_EQ(state("alice"), TenantState::kTraining);
  ask("pause", "alice");
  crash();
  EXPECT_THAT(take_sent(), AllOf(SizeIs(9), Contains("1: pause 0 alice~0")));
  EXPECT_EQ(state("alice"), TenantState::kPaused);
  ask("remove", "alice", "purge");
  for (const ProcessId process : kAll) drained(process, alice, 1);
  crash();
  EXPECT_THAT(take_sent(), Contains("2: drain 0 ~0 round 3"));
  all_drained(alice, 3);
  carried_out(kDriver, Kind::kLeave, alice);
  crash();
  EXPECT_EQ(state("alice"), TenantState::kDraining) << "its actors may be there again";
  all_drained(alice, 3);
  all_carried_out(Kind::kLeave, alice);
  EXPECT_EQ(control->table().find("alice"), nullptr);
  crash();
  EXPECT_THAT(take_sent(), ElementsAre("0: leave 0 ~0", "1: leave 0 ~0", "2: leave 0 ~0"))
      << "a record may end before it left";
  EXPECT_EQ(join("alice").tenancy, 1U) << "its number is not used again";
}

TEST_F(TenantRestartStory, AProcessIsToldThatThePlansTenantHasLeft) {
  plan = hosted_plan(
      "\n[tenant.main]\nenvironment = { name = \"reverse_text\" }\n"
      "max_off_policy_steps = 2\nadapter = { rank = 4 }\n");
  fs::remove(tenants_file(scratch.path()));
  open();
  all_ready();
  EXPECT_THAT(take_sent(), IsEmpty()) << "tenants of the plan are made and started with it";
  const HostedTenant main = *control->table().find("main");
  ask("remove", "main");
  all_drained(main);
  all_carried_out(Kind::kLeave, main);
  sent.clear();
  control->process_died(kServing);
  control->process_ready(kServing, now);
  EXPECT_THAT(take_sent(), ElementsAre("1: leave 0 main~0"));
}

TEST_F(TenantRestartStory, APurgeRemovesItsFilesBeforeTheNameIsFree) {
  all_ready();
  const HostedTenant alice = join("alice");
  const fs::path folder = checkpoints_folder(scratch.path(), "alice", 2);
  const fs::path rollouts = scratch.path() / rollouts_file_name("alice", 2);
  const fs::path clients = clients_folder(scratch.path(), "alice");
  const fs::path others = clients_folder(scratch.path(), "alice~1");
  const auto make_files = [&] {
    fs::create_directories(folder / "step_1");
    fs::create_directories(clients / "weights/a");
    fs::create_directories(others);
    fs::create_directories(rollouts.parent_path());
    std::ofstream(rollouts) << "{}\n";
  };
  make_files();
  ask("remove", "alice", "purge");
  all_drained(alice);
  EXPECT_TRUE(fs::exists(rollouts)) << "its actors may still write";
  all_carried_out(Kind::kLeave, alice);
  EXPECT_FALSE(fs::exists(rollouts));
  EXPECT_FALSE(fs::exists(folder));
  EXPECT_FALSE(fs::exists(clients)) << "what its clients saved";
  EXPECT_TRUE(fs::exists(others)) << "of another use of the name";
  EXPECT_THAT(removed_tenants(scratch.path()), ElementsAre(RemovedTenant{"alice", true}))
      << "a run that follows its record must not write them again";
  EXPECT_THAT(ask("remove", "alice", "purge").get_string("error").value(), HasSubstr("alice"));
}

TEST_F(TenantRestartStory, AFullDiskStopsTheOrders) {
  all_ready();
  const HostedTenant alice = join("alice");
  disk.is_full = true;
  EXPECT_THAT(why(ask("pause", "alice")), HasSubstr("No space left"));
  EXPECT_EQ(state("alice"), TenantState::kTraining);
  EXPECT_FALSE(finished(alice, "").ok()) << "the run cannot continue";
  EXPECT_THAT(take_sent(), IsEmpty());
}

TEST_F(TenantRestartStory, ADamagedTableEndsTheStart) {
  std::ofstream(tenants_file(scratch.path())) << "{\"schema\": 1";
  TenantControl::Setup setup;
  setup.run_folder = scratch.path();
  TenantControl damaged(*plan, std::move(setup));
  const Status opened = damaged.open();
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.error().text(), HasSubstr("tenants.json"));
}

}  // namespace
}  // namespace primerl::testing
