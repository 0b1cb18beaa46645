#include "runtime/control/tenant_control.h"

#include "tests/control/tenant_stage.h"

namespace primerl::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct TenantControlStory : TenantStage {};

TEST_F(TenantControlStory, ATenantJoinsOverThreeProcessesInTwoSteps) {
  all_ready();
  const Json answer = add("alice");
  EXPECT_EQ(why(answer), "");
  EXPECT_EQ(answer.find("tenant")->get_string("state").value(), "starting");
  EXPECT_EQ(answer.find("tenant")->get_string("folder").value(),
            (scratch.path() / "checkpoints/alice").string());
  EXPECT_THAT(take_sent(),
              ElementsAre("0: join 0 alice~0", "1: join 0 alice~0", "2: join 0 alice~0"));
  const HostedTenant alice = *control->table().find("alice");
  carried_out(kTraining, Kind::kJoin, alice);
  carried_out(kTraining, Kind::kJoin, alice);
  carried_out(kDriver, Kind::kJoin, alice);
  EXPECT_THAT(take_sent(), IsEmpty()) << "its source waits for the last process";
  carried_out(kServing, Kind::kJoin, alice);
  EXPECT_THAT(take_sent(),
              ElementsAre("0: start 0 alice~0", "1: start 0 alice~0", "2: start 0 alice~0"));
  EXPECT_EQ(state("alice"), TenantState::kTraining);
}

TEST_F(TenantControlStory, TheAdmissionIsOnTheDiskBeforeAnyProcessHearsOfIt) {
  all_ready();
  disk.is_full = true;
  const Json answer = add("alice");
  EXPECT_THAT(why(answer), HasSubstr("No space left"));
  EXPECT_THAT(take_sent(), IsEmpty());
  EXPECT_EQ(control->table().find("alice"), nullptr) << "nothing is reserved";
  disk.is_full = false;
  EXPECT_EQ(why(add("alice")), "");
  EXPECT_THAT(saved(), HasSubstr("\"alice\""));
}

TEST_F(TenantControlStory, ABadFileIsRefusedWithTheErrorsOfAGraphFile) {
  all_ready();
  const Json answer = add("alice", "reverse_text", "revers_text");
  EXPECT_TRUE(answer.find("is_bad")->as_bool());
  EXPECT_THAT(answer.get_string("findings").value(),
              AllOf(HasSubstr("alice.toml:2:"), HasSubstr("reverse_text")));
  EXPECT_THAT(take_sent(), IsEmpty());
  control->ask("2", Json::object().set("tenant_verb", "add").set("file", "/no/such.toml"), "", now);
  EXPECT_THAT(answers["2"].get_string("findings").value(), HasSubstr("/no/such.toml"));
  control->ask("3", Json::object().set("tenant_verb", "fly").set("name", "alice"), "", now);
  EXPECT_THAT(why(answers["3"]), HasSubstr("no request 'fly'"));
}

TEST_F(TenantControlStory, ANameThatIsTakenAndAFullGraphAreRefused) {
  all_ready();
  join("alice");
  EXPECT_THAT(add("alice").get_string("findings").value(), HasSubstr("alice"));
  join("bob");
  EXPECT_THAT(add("cy").get_string("findings").value(), HasSubstr("the graph is full"));
  EXPECT_THAT(take_sent(), IsEmpty());
}

TEST_F(TenantControlStory, ATableThatFitsNoMessageIsRefused) {
  all_ready();
  const std::string tag(kTenantTableBytesMax, 'x');
  const Json answer =
      add("alice", "max_steps = 100", "description = \"" + tag + "\"\nmax_steps = 100");
  EXPECT_NE(why(answer), "");
  EXPECT_EQ(control->table().find("alice"), nullptr);
}

TEST_F(TenantControlStory, NothingChangesWhileTheRunCannot) {
  all_ready();
  join("alice");
  EXPECT_EQ(why(ask("remove", "alice", "keep", "the run ends")), "the run ends");
  EXPECT_EQ(state("alice"), TenantState::kTraining);
  EXPECT_EQ(why(ask("show", "alice", "keep", "the run ends")), "") << "it can still be looked at";
}

TEST_F(TenantControlStory, ASlotIsEmptiedInRoundsUntilTwoAgree) {
  all_ready();
  const HostedTenant alice = join("alice");
  EXPECT_EQ(why(ask("remove", "alice")), "");
  EXPECT_THAT(take_sent(), ElementsAre("0: drain 0 ~0 round 1", "1: drain 0 ~0 round 1",
                                       "2: drain 0 ~0 round 1"));
  for (const ProcessId process : kAll) drained(process, alice, 1, 5);
  EXPECT_THAT(take_sent(), Each(HasSubstr("round 2")));
  drained(kDriver, alice, 1, 5);
  drained(kDriver, alice, 2, 5);
  drained(kServing, alice, 2, 6);  // something was under way
  drained(kTraining, alice, 2, 5);
  EXPECT_THAT(take_sent(), IsEmpty()) << "the numbers still change: the round waits";
  EXPECT_EQ(control->time_to_next(Duration::seconds(1), now), TenantControl::kRoundPause);
  control->tick(now + (TenantControl::kRoundPause - Duration::nanoseconds(1)));
  EXPECT_THAT(take_sent(), IsEmpty());
  now = now + TenantControl::kRoundPause;
  control->tick(now);
  control->tick(now);
  EXPECT_THAT(take_sent(), AllOf(SizeIs(3), Each(HasSubstr("round 3"))));
  EXPECT_EQ(control->time_to_next(Duration::seconds(1), now), Duration::seconds(1));
  drained(kDriver, alice, 3, 5);
  drained(kServing, alice, 3, 6);
  EXPECT_THAT(take_sent(), IsEmpty());
  drained(kTraining, alice, 3, 5);
  EXPECT_THAT(take_sent(), AllOf(SizeIs(3), Each(HasSubstr("leave 0 alice~0"))));
  all_carried_out(Kind::kLeave, alice);
  EXPECT_EQ(control->table().find("alice"), nullptr);
  EXPECT_EQ(control->table().num_free_slots(), 2U);
}

TEST_F(TenantControlStory, TheNextTenantOfTheSlotHasAnotherNumberAndFolder) {
  all_ready();
  const HostedTenant alice = join("alice");
  ask("remove", "alice");
  all_drained(alice);
  all_carried_out(Kind::kLeave, alice);
  sent.clear();
  const Json again = add("alice");
  EXPECT_THAT(take_sent(),
              ElementsAre("0: join 0 alice~1", "1: join 0 alice~1", "2: join 0 alice~1"));
  EXPECT_THAT(again.find("tenant")->get_string("folder").value(), HasSubstr("checkpoints/alice-1"));
  // Answers of the first use.
  carried_out(kDriver, Kind::kJoin, alice);
  drained(kDriver, alice, 2);
  carried_out(kDriver, Kind::kLeave, alice);
  EXPECT_THAT(control->table().find("alice")->unanswered, SizeIs(3));
}

TEST_F(TenantControlStory, ATenantThatMadeItsLastStepEndsAndTheRunDoesNot) {
  all_ready();
  const HostedTenant alice = join("alice");
  ASSERT_TRUE(finished(alice, "").ok());
  ASSERT_TRUE(finished(alice, "").ok()) << "every node of it may say so";
  EXPECT_THAT(take_sent(), SizeIs(3));
  all_drained(alice);
  all_carried_out(Kind::kLeave, alice);
  EXPECT_EQ(state("alice"), TenantState::kEnded);
  EXPECT_THAT(saved(), HasSubstr("\"ended\""));
  ASSERT_TRUE(finished(alice, "").ok()) << "late";
  EXPECT_EQ(why(ask("remove", "alice")), "");
  EXPECT_EQ(control->table().find("alice"), nullptr);
}

// A process that follows its record reports that the first tenant has finished, long after it left.
TEST_F(TenantControlStory, AReportOfAnEarlierUseOfTheSlotEndsNoOther) {
  all_ready();
  const HostedTenant alice = join("alice");
  ask("remove", "alice");
  all_drained(alice);
  all_carried_out(Kind::kLeave, alice);
  const HostedTenant carol = join("carol");
  ASSERT_EQ(carol.slot, alice.slot);
  ASSERT_TRUE(finished(alice).ok());
  ASSERT_TRUE(finished(alice, "its data set is gone").ok());
  EXPECT_EQ(state("carol"), TenantState::kTraining);
  EXPECT_THAT(take_sent(), IsEmpty());
  HostedTenant unknown = carol;
  unknown.tenancy = kTenancyUnknown;
  ASSERT_TRUE(finished(unknown, "a handler is stuck").ok()) << "it is about the tenant of the slot";
  EXPECT_EQ(state("carol"), TenantState::kDraining);
}

TEST_F(TenantControlStory, AReasonIsSavedWhileTheTenantDrainsAlready) {
  all_ready();
  const HostedTenant alice = join("alice");
  ASSERT_TRUE(finished(alice).ok());
  ASSERT_TRUE(finished(alice, "its data set is gone").ok());
  EXPECT_THAT(saved(), HasSubstr("its data set is gone"));
}

TEST_F(TenantControlStory, AFailureWhileItDrainsKeepsTheFirstReason) {
  all_ready();
  const HostedTenant alice = join("alice");
  ASSERT_TRUE(finished(alice, "its data set is gone").ok());
  ASSERT_TRUE(finished(alice, "and its reward too").ok());
  all_drained(alice);
  all_carried_out(Kind::kLeave, alice);
  EXPECT_EQ(state("alice"), TenantState::kFailed);
  EXPECT_EQ(control->table().find("alice")->why, "its data set is gone");
}

TEST_F(TenantControlStory, AProcessThatCannotMakeItsActorsEndsTheJoin) {
  all_ready();
  add("alice");
  const HostedTenant alice = *control->table().find("alice");
  sent.clear();
  carried_out(kServing, Kind::kJoin, alice, "no memory for its adapter");
  EXPECT_THAT(take_sent(), AllOf(SizeIs(3), Each(HasSubstr("drain 0"))));
  carried_out(kDriver, Kind::kJoin, alice);
  carried_out(kTraining, Kind::kJoin, alice);
  EXPECT_THAT(take_sent(), IsEmpty()) << "it does not start any more";
  all_drained(alice);
  all_carried_out(Kind::kLeave, alice);
  EXPECT_EQ(state("alice"), TenantState::kFailed);
  EXPECT_EQ(control->table().find("alice")->why, "process 'inference': no memory for its adapter");
}

TEST_F(TenantControlStory, ATenantIsRemovedWhileItStarts) {
  all_ready();
  add("alice");
  const HostedTenant alice = *control->table().find("alice");
  carried_out(kServing, Kind::kJoin, alice);
  sent.clear();
  EXPECT_EQ(why(ask("remove", "alice")), "");
  carried_out(kDriver, Kind::kJoin, alice);
  carried_out(kTraining, Kind::kJoin, alice);
  EXPECT_THAT(take_sent(), AllOf(SizeIs(3), Each(HasSubstr("drain 0"))));
  all_drained(alice);
  all_carried_out(Kind::kLeave, alice);
  EXPECT_EQ(control->table().find("alice"), nullptr);
}

TEST_F(TenantControlStory, APauseReachesEveryProcess) {
  all_ready();
  join("alice");
  EXPECT_EQ(ask("pause", "alice").find("tenant")->get_string("state").value(), "paused");
  EXPECT_THAT(take_sent(), AllOf(SizeIs(3), Each(HasSubstr("pause 0 alice"))));
  EXPECT_THAT(why(ask("pause", "alice")), HasSubstr("cannot be paused: it is paused"));
  EXPECT_EQ(ask("resume", "alice").find("tenant")->get_string("state").value(), "training");
  EXPECT_THAT(take_sent(), AllOf(SizeIs(3), Each(HasSubstr("resume 0 alice"))));
  EXPECT_THAT(why(ask("pause", "alise")), HasSubstr("alice"));
}

TEST_F(TenantControlStory, AnEndedTenantMayKeepItsCheckpointsAlone) {
  all_ready();
  const HostedTenant alice = join("alice");
  ASSERT_TRUE(finished(alice, "").ok());
  all_drained(alice);
  all_carried_out(Kind::kLeave, alice);
  const fs::path folder = checkpoints_folder(scratch.path(), "alice", 2);
  const fs::path rollouts = scratch.path() / rollouts_file_name("alice", 2);
  fs::create_directories(folder / "step_1");
  fs::create_directories(rollouts.parent_path());
  std::ofstream(rollouts) << "{}\n";
  EXPECT_THAT(why(ask("remove", "alice", "all")), HasSubstr("keep_checkpoints"));
  EXPECT_EQ(ask("remove", "alice", "keep_checkpoints").find("tenant")->get_string("state").value(),
            "removed");
  EXPECT_FALSE(fs::exists(rollouts));
  EXPECT_TRUE(fs::exists(folder / "step_1"));
}

TEST_F(TenantControlStory, ARefusedRemovalOfAnEndedTenantRemovesNoFile) {
  all_ready();
  const HostedTenant alice = join("alice");
  ASSERT_TRUE(finished(alice, "").ok());
  all_drained(alice);
  all_carried_out(Kind::kLeave, alice);
  const fs::path step = checkpoints_folder(scratch.path(), "alice", 2) / "step_1";
  fs::create_directories(step);
  disk.is_full = true;
  EXPECT_THAT(why(ask("remove", "alice", "purge")), HasSubstr("No space left"));
  EXPECT_TRUE(fs::exists(step));
  EXPECT_EQ(state("alice"), TenantState::kEnded);
  disk.is_full = false;
  EXPECT_EQ(why(ask("remove", "alice", "purge")), "");
  EXPECT_FALSE(fs::exists(step));
  EXPECT_EQ(control->table().find("alice"), nullptr);
}

TEST_F(TenantControlStory, ARemovalThatACrashEndedIsFinishedAtTheNextStart) {
  all_ready();
  const HostedTenant alice = join("alice");
  ASSERT_TRUE(finished(alice, "").ok());
  all_drained(alice);
  all_carried_out(Kind::kLeave, alice);
  const fs::path step = checkpoints_folder(scratch.path(), "alice", 2) / "step_1";
  fs::create_directories(step);
  std::string table = saved();
  const auto replace = [&table](const std::string& from, const std::string& to) {
    ASSERT_NE(table.find(from), std::string::npos) << table;
    table.replace(table.find(from), from.size(), to);
  };
  replace(R"("is_removed":false)", R"("is_removed":true)");
  replace(R"("files":"keep")", R"("files":"purge")");
  std::ofstream(tenants_file(scratch.path())) << table;
  crash();
  EXPECT_FALSE(fs::exists(step));
  EXPECT_EQ(control->table().find("alice"), nullptr);
}

TEST_F(TenantControlStory, ListsTenantsSlotsAndTables) {
  all_ready();
  join("alice");
  const Json all = ask("ls", "");
  EXPECT_EQ(all.get_int("slots").value(), 2);
  EXPECT_EQ(all.get_int("free").value(), 1);
  ASSERT_THAT(all.find("tenants")->as_array(), SizeIs(1));
  EXPECT_EQ(all.find("tenants")->as_array()[0].find("table"), nullptr);
  const Json one = ask("show", "alice");
  EXPECT_THAT(one.find("tenant")->get_string("table").value(), HasSubstr("max_steps = 100"));
  EXPECT_THAT(why(ask("show", "bob")), HasSubstr("alice"));
}

TEST_F(TenantControlStory, ARequestWithANumberIsAboutThatUseOfTheName) {
  all_ready();
  (void)add("alice");
  const auto ask_with = [this](const char* verb, uint32_t number) {
    control->ask("1",
                 Json::object().set("tenant_verb", verb).set("name", "alice").set("number", number),
                 "", now);
    return answers["1"];
  };
  const Json other = ask_with("show", 1);
  EXPECT_THAT(why(other), HasSubstr("no tenant 'alice'"));
  EXPECT_EQ(other.get_string("code").value(), "not_found");
  EXPECT_THAT(why(ask_with("pause", 1)), HasSubstr("no tenant 'alice'"));
  EXPECT_EQ(why(ask_with("show", 0)), "");
}

TEST_F(TenantControlStory, ValuesAreSetWhileATenantTrains) {
  all_ready();
  const HostedTenant alice = join("alice");
  const auto set = [this](const std::string& numbers) {
    Json content = Json::object().set("tenant_verb", "set").set("name", "alice");
    content.set("values", parse_json(numbers, "values").value());
    control->ask("1", content, "", now);
    return answers["1"];
  };
  const auto shown = [this] {
    return ask("show", "alice").find("tenant")->get_string("table").value();
  };
  const std::string table = shown(), file = saved();
  EXPECT_THAT(why(set(R"({"rank": 3})")), HasSubstr("cannot be set"));
  EXPECT_THAT(set(R"({"max_off_policy_steps": 5})").get_string("findings").value(),
              HasSubstr("G096"));
  EXPECT_NE(why(set(R"({"inflight": 100000})")), "");
  EXPECT_EQ(shown(), table) << "a refused value changes nothing";
  EXPECT_EQ(saved(), file);
  EXPECT_THAT(take_sent(), IsEmpty());

  EXPECT_EQ(why(set(R"({"max_off_policy_steps": 1})")), "");
  EXPECT_THAT(take_sent(), ElementsAre("0: set 0 alice~0", "1: set 0 alice~0", "2: set 0 alice~0"));
  EXPECT_THAT(shown(), HasSubstr("max_off_policy_steps = 1\n"));
  EXPECT_EQ(state("alice"), TenantState::kTraining);
  ASSERT_EQ(why(set(R"({"inflight": 8})")), "");
  EXPECT_EQ(control->table().find("alice")->values, "inflight = 8\nmax_off_policy_steps = 1\n")
      << "an order has all values, so a repeated one changes nothing";
  crash();
  EXPECT_THAT(take_sent(), ::testing::IsSupersetOf({"0: join 0 alice~0", "0: set 0 alice~0"}));
  disk.is_full = true;
  EXPECT_NE(why(set(R"({"inflight": 4})")), "");
  disk.is_full = false;
  EXPECT_THAT(shown(), HasSubstr("inflight = 8\n"));
  ASSERT_EQ(why(ask("remove", "alice")), "");
  EXPECT_THAT(why(set(R"({"inflight": 4})")), HasSubstr("it is draining"));
}

TEST(HostedClients, AreTheTenantsWhoseTablesSaySo) {
  const ScratchFolder run;
  const Json alice = Json::object()
                         .set("name", "alice")
                         .set("number", 2)
                         .set("table", "[tenant.alice]\nclient = true\nseq_len = 64\n");
  const Json bob =
      Json::object().set("name", "bob").set("number", 0).set("table", "[tenant.bob]\n");
  Json all = Json::array();
  all.push_back(alice);
  all.push_back(bob);
  ASSERT_TRUE(replace_file(system_files(), tenants_file(run.path()),
                           Json::object().set("tenants", all).dump())
                  .ok());
  EXPECT_THAT(hosted_clients(run.path()), ElementsAre("alice~2"));
  EXPECT_THAT(hosted_names(run.path()), ElementsAre("alice~2", "bob"));
}

}  // namespace
}  // namespace primerl::testing
