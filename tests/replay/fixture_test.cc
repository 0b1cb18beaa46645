// A fixture is small, contains no path of this machine, shows what the replay showed, and fails
// when its actor is changed. The fixtures of fixture_maker are compiled into this test.
#include "runtime/replay/replay_fixture.h"

#include <gmock/gmock.h>

#include "graph/base/files.h"
#include "runtime/replay/recovery.h"
#include "tests/cli/program.h"
#include "tests/replay/replay_run.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const fs::path kFixtures = PRIMERL_FIXTURES;

uint64_t bytes_of(const fs::path& folder) {
  uint64_t sum = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().extension() != ".index") sum += entry.file_size();
  return sum;
}

TEST(Fixture, IsSmall) {
  for (const char* name : {"router", "trainer", "diverged"}) {
    const uint64_t bytes = bytes_of(kFixtures / name);
    RecordProperty(name, std::to_string(bytes));
    EXPECT_LT(bytes, 24U << 10) << name;
  }
}

TEST(Fixture, NamesNoPlaceOfThisMachine) {
  for (const char* name : {"router", "trainer", "diverged"}) {
    const auto trace = Trace::open(kFixtures / name);
    ASSERT_TRUE(trace.ok()) << trace.error().text();
    EXPECT_THAT((*trace)->catalog().graph_text,
                AllOf(Not(HasSubstr(PRIMERL_SOURCE_DIR)), HasSubstr("path = \"model/policy\"")));
    for (const auto& entry : fs::directory_iterator(kFixtures / name)) {
      if (!entry.is_regular_file()) continue;
      EXPECT_THAT(*read_text_file(entry.path()), Not(HasSubstr(PRIMERL_SOURCE_DIR)));
    }
  }
}

TEST(Fixture, HoldsOneHostAloneAndIsNoDamagedTrace) {
  const auto trace = Trace::open(kFixtures / "router");
  ASSERT_TRUE(trace.ok()) << trace.error().text();
  ASSERT_EQ((*trace)->faults().size(), 1U);
  EXPECT_EQ((*trace)->faults().front().kind, TraceFault::Kind::kExcerpt);
  EXPECT_THAT((*trace)->faults().front().text, HasSubstr("steps 1 to 50 of 'router'"));
  EXPECT_FALSE((*trace)->is_complete());
  const auto other =
      open_replay({.run = (kFixtures / "router").string(), .depth = "control", .node = "trainer"});
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().text(), HasSubstr("an excerpt for 'router': 'trainer' is not in it"));
}

TEST(Fixture, IsNoRecordThatARunCanBeTakenUpFrom) {
  const auto session = open_replay({.run = (kFixtures / "router").string(), .depth = "control"});
  ASSERT_TRUE(session.ok()) << session.error().text();
  const auto checked = prefix_to_follow(*session->plan, session->trace);
  ASSERT_FALSE(checked.ok());
  EXPECT_THAT(checked.error().text(),
              AllOf(HasSubstr("is an excerpt (a fixture): steps 1 to 50 of 'router'"),
                    HasSubstr("it can be replayed, not resumed")));
}

TEST(Fixture, PassesWithTheActorThatWasRecorded) {
  for (const auto& [name, depth] :
       {std::pair("router", "control"), std::pair("trainer", "learner")}) {
    const auto played = play_fixture(kFixtures / name, depth);
    ASSERT_TRUE(played.ok()) << played.error().text();
    EXPECT_TRUE(played->is_identical) << played->text;
  }
}

TEST(Fixture, FailsWhenTheActorIsChanged) {
  const auto router = Program({"router_fixture_changed"}).wait();
  EXPECT_EQ(router.code, 1);
  EXPECT_THAT(router.out,
              AllOf(HasSubstr("'router.prefill -> prefill.request' has another content"),
                    HasSubstr("input: message 1 of 'rollout.generate -> ")));
  const auto trainer = Program({"trainer_fixture_changed"}).wait();
  EXPECT_EQ(trainer.code, 1);
  EXPECT_THAT(trainer.out, AllOf(HasSubstr("'trainer.ended -> rollout.ended' has another content"),
                                 HasSubstr("\"step\":2")));
}

TEST(Fixture, FailsLikeTheReplayThatDiverged) {
  const auto run = Program({"diverged_fixture"}).wait();
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.out, HasSubstr("rollout.main:"));
  EXPECT_THAT(*read_text_file(kFixtures / "diverged" / "README.md"),
              HasSubstr("When it was written, it failed:"));
}

TEST(Fixture, IsWrittenIntoANewFolderAlone) {
  ScratchFolder scratch;
  const sim::DemoCase demo{.seed = 17};
  sim::DemoResult run;
  const auto trace = sim::record_demo(demo, run);
  const auto session = open_replay({.run = trace.string(), .depth = "control"});
  ASSERT_TRUE(session.ok()) << session.error().text();
  ReplayReport report;
  report.num_steps.assign(session->plan->groups.size(), 0);
  const auto nothing = write_fixture(*session, session->setup(1), report, {}, scratch.path() / "x");
  ASSERT_FALSE(nothing.ok());
  EXPECT_THAT(nothing.error().text(), HasSubstr("say what to test with --node NAME"));
  EXPECT_FALSE(fs::exists(scratch.path() / "x"));
  ASSERT_TRUE(system_files().write_file(scratch.path() / "mine", "mine").ok());
  ReplayReport some = report;
  const GroupId router = *find_group(*session->plan, "router");
  some.num_steps[router.index()] = 5;
  const auto there = write_fixture(*session, session->setup(1), some, router, scratch.path());
  ASSERT_FALSE(there.ok());
  EXPECT_THAT(there.error().text(), HasSubstr("is there already"));
  EXPECT_EQ(*read_text_file(scratch.path() / "mine"), "mine");
}

TEST(Fixture, IsRefusedForWhatOnlyTheRecordShows) {
  ScratchFolder scratch;
  const sim::DemoCase demo{.seed = 17};
  sim::DemoResult run;
  const auto trace = sim::record_demo(demo, run);
  const auto session = open_replay({.run = trace.string(), .depth = "control"});
  ASSERT_TRUE(session.ok()) << session.error().text();
  ReplayReport report;
  report.num_steps.assign(session->plan->groups.size(), 0);
  Divergence divergence;
  divergence.kind = DivergenceKind::kUnreadable;
  divergence.group = GroupId(0);
  divergence.what = "step 7 is not in the record";
  report.divergences.push_back(divergence);
  const auto refused = write_fixture(*session, session->setup(1), report, {}, scratch.path() / "x");
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), AllOf(HasSubstr("lies in the record"), HasSubstr("step 7")));
}

}  // namespace
}  // namespace primerl
