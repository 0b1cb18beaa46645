// The saved state from which a resumed run continues: the newest that fits; every other one is
// named.
#include "runtime/replay/run_cuts.h"

#include <gmock/gmock.h>

#include <fstream>

#include "graph/base/files.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/store/checkpoint.h"
#include "runtime/store/run_folder.h"
#include "tests/replay/replay_run.h"
#include "tests/store/scratch_folder.h"

namespace primerl::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kRun = 77;

class CutsOfARun : public ::testing::Test {
 protected:
  CutHead head(uint64_t number) const {
    CutHead head;
    head.run_id = kRun;
    head.program_version = program_text(*plan->catalog);
    head.state_hash = state_hash(*plan);
    head.process = plan->processes.front().name;
    head.incarnation = 1;
    head.number = number;
    return head;
  }
  void write(const CutHead& head) {
    ProcessCut cut;
    cut.number = head.number;
    ASSERT_TRUE(write_cut(scratch.path(), head, cut).ok());
  }
  CutChoice choose(int64_t checkpoint = -1) const {
    return choose_cuts(*plan, scratch.path(), kRun, std::vector<int64_t>{checkpoint});
  }

  const std::shared_ptr<const Plan> plan = demo_plan({});
  ScratchFolder scratch;
};

TEST_F(CutsOfARun, TheNewestIsTaken) {
  for (const uint64_t number : {1, 2, 3}) write(head(number));
  const CutChoice choice = choose();
  ASSERT_EQ(choice.files.size(), 1U);
  EXPECT_EQ(choice.files.front().head.number, 3U);
  EXPECT_THAT(choice.notes, IsEmpty());
}

TEST_F(CutsOfARun, UnfitOnesAreNamedAndTheNextOlderIsTried) {
  write(head(1));
  CutHead other = head(2);
  other.run_id = 78;
  write(other);
  other = head(3);
  other.program_version = "0.0.1";
  write(other);
  other = head(4);
  other.state_hash += 1;
  write(other);
  other = head(5);
  other.learner_steps = {{0, 21}};
  write(other);
  write(head(6));
  std::ofstream(cut_path(scratch.path(), head(6)), std::ios::app) << "more";
  const CutChoice choice = choose(20);
  ASSERT_EQ(choice.files.size(), 1U);
  EXPECT_EQ(choice.files.front().head.number, 1U);
  EXPECT_THAT(choice.notes,
              ElementsAre(HasSubstr("its checksum does not fit"),
                          HasSubstr("its learner had taken 21 steps, the newest checkpoint is of "
                                    "step 20"),
                          HasSubstr("of another graph"), HasSubstr("it was made by '0.0.1'"),
                          HasSubstr("it is of another run")));
}

TEST_F(CutsOfARun, OfALearnerNeedACheckpointThatIsNotOlder) {
  CutHead with_learner = head(1);
  with_learner.learner_steps = {{0, 20}};
  write(with_learner);
  EXPECT_TRUE(choose(-1).files.empty());
  EXPECT_TRUE(choose(19).files.empty());
  EXPECT_EQ(choose(20).files.size(), 1U);
}

/// No checkpoint has open gradients. Without this the newest checkpoint's loss made a run fail that
/// was resumed.
TEST_F(CutsOfARun, WithOpenGradientsNeedACheckpointOfALaterStep) {
  CutHead open = head(1);
  open.learner_steps = {{0, 20}};
  open.open_tenants = {0};
  write(open);
  const CutChoice choice = choose(20);
  EXPECT_TRUE(choice.files.empty());
  EXPECT_THAT(choice.notes, ElementsAre(HasSubstr("its learner had open gradients after 20 steps, "
                                                  "the newest checkpoint is of step 20")));
  EXPECT_EQ(choose(21).files.size(), 1U);
}

/// The slot's number says nothing: the checkpoints are those of its tenant.
TEST_F(CutsOfARun, OfATenantThatJoinedNeedItsOwnCheckpoint) {
  const auto record = scratch.path() / "trace";
  std::filesystem::create_directories(record);
  CutHead joined = head(1);
  joined.learner_steps = {{0, 3}};
  joined.slots = {{TenantSlot(0), 1, "bob"}, {TenantSlot(0), 2, "alice"}};
  ASSERT_TRUE(write_cut(record, joined, {}).ok());
  const auto choose_from = [&] {
    return choose_cuts(*plan, record, kRun, std::vector<int64_t>{20});
  };
  EXPECT_TRUE(choose_from().files.empty());
  EXPECT_THAT(choose_from().notes, ElementsAre(HasSubstr("the newest checkpoint is of step -1")));
  const auto folder = checkpoints_folder(scratch.path(), "alice~2", plan->layout_tenants());
  CheckpointStore store(system_files(), folder, "alice", {});
  for (const int64_t step : {2, 3}) {
    ASSERT_TRUE(store.begin(step).ok());
    ASSERT_TRUE(store.commit(step, Json::object().set("version", step)).ok());
    EXPECT_EQ(choose_from().files.size(), step == 3 ? 1U : 0U) << step;
  }
}

/// Cuts beside a recorded run: a replay, or a fork, begins with one of them.
class SavedStatesOfARun : public CutsOfARun {
 protected:
  static void SetUpTestSuite() {
    DemoResult run;
    trace_ = Trace::open(record_demo({.seed = kRun}, run)).value();
  }
  static void TearDownTestSuite() { trace_ = nullptr; }

  /// The head of a cut after `step` steps of the trainer's group; its time is `number` ns.
  CutHead head_at(uint64_t number, uint64_t step) const {
    CutHead made = head(number);
    made.at = Time::from_nanoseconds(static_cast<int64_t>(number));
    made.steps = {{trainer_.value, step}};
    return made;
  }
  /// The number of the newest cut from before `step`; 0: there is none.
  int64_t newest_before(uint64_t step) const {
    const std::filesystem::path folders[] = {scratch.path()};
    SavedStates saved(*plan, *trace_, folders);
    (void)saved.before({.group = trainer_, .step = step});
    return saved.made_at().to_nanoseconds();
  }

  const GroupId trainer_ = host_of(*plan, "trainer");
  static inline std::shared_ptr<const Trace> trace_;
};

TEST_F(SavedStatesOfARun, AreTakenFromBeforeTheMomentAlone) {
  write(head_at(1, 3));
  write(head_at(2, 6));
  EXPECT_EQ(newest_before(3), 0);
  EXPECT_EQ(newest_before(4), 1);
  EXPECT_EQ(newest_before(6), 1);
  EXPECT_EQ(newest_before(7), 2);
}

TEST_F(SavedStatesOfARun, OfAnotherRunOrGraphAreNotTaken) {
  write(head_at(1, 3));
  CutHead other = head_at(2, 4);
  other.run_id += 1;
  write(other);
  other = head_at(3, 5);
  other.state_hash += 1;
  write(other);
  EXPECT_EQ(newest_before(9), 1);
}

TEST_F(CutsOfARun, ChangeTheirHashWithWhatActorsSave) {
  auto changed = std::make_shared<Plan>(*plan);
  EXPECT_EQ(state_hash(*changed), state_hash(*plan));
  changed->groups.front().name += "x";
  EXPECT_NE(state_hash(*changed), state_hash(*plan));
  changed = std::make_shared<Plan>(*plan);
  Contract contract = *changed->nodes.front().contract;
  contract.state.schema += "x";
  changed->nodes.front().contract = &contract;
  EXPECT_NE(state_hash(*changed), state_hash(*plan)) << "an actor of this program saves more";
}

}  // namespace
}  // namespace primerl::sim
