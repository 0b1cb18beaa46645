// When a process saves its state, which cuts it keeps, and what may then be removed.
#include "runtime/worker/worker_cuts.h"

#include <gmock/gmock.h>

#include <chrono>

#include "runtime/replay/traced_learner.h"
#include "runtime/trace/segment_files.h"
#include "tests/exec/small_graph.h"
#include "tests/store/scratch_folder.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kWaitMax = std::chrono::seconds(30);

/// A process with one group, whose state is saved at once when requested.
class Cutting {
 public:
  explicit Cutting(bool has_learner, std::filesystem::path folder = {}, size_t num_tenants = 1)
      : learner_steps(num_tenants) {
    SmallGraph graph;
    graph.node("a", {.strings = {.on_work = counts_to(1)}, .contract = make_source});
    plan = std::make_shared<Plan>(*graph.plan());
    set_tenants(num_tenants);
    plan->trace.cut_every = Duration::seconds(60);
    plan->trace.cut_steps = 1000;
    if (has_learner) {
      plan->resources.emplace_back().kind = "learner";
      plan->groups.front().resources = {0};
    }
    WorkerCuts::Setup setup;
    setup.plan = plan;
    setup.process = ProcessId(0);
    setup.head.process = plan->processes.front().name;
    setup.head.incarnation = 1;
    setup.run_folder = scratch.path();
    setup.folder = folder.empty() ? scratch.path() : folder;
    setup.begun_steps.assign(num_tenants, 10);
    setup.newest_steps.assign(num_tenants, 10);
    setup.segment = [this] { return segment; };
    setup.keep = [this](uint64_t from) { note([&] { kept_from.push_back(from); }); };
    setup.line_files = [](GroupId) { return std::vector<std::pair<std::string, uint64_t>>(); };
    setup.request = [this](WaitingCuts::Request request) { requests.push_back(request); };
    setup.is_useless = [this] { return is_useless; };
    setup.warn = [this](const std::string& what) { note([&] { warnings.push_back(what); }); };
    cuts = std::make_unique<WorkerCuts>(std::move(setup), [this](uint64_t number) {
      ++num_ordered;
      newest = number;
      if (!is_slow) save(number);
    });
  }

  /// The group joins the cut.
  void save(uint64_t number) {
    GroupState state;
    state.group = GroupId(0);
    state.at = saved_at;
    state.set_aside = set_aside;
    state.slots = slots;
    state.actors.resize(plan->groups.front().instances.size());
    for (SavedActor& actor : state.actors) actor.has_drained = !set_aside.empty();
    LearnerProgress progress;
    for (size_t slot = 0; slot < learner_steps.size(); ++slot)
      progress.tenants[TenantSlot(static_cast<uint32_t>(slot))].num_steps = learner_steps[slot];
    progress.tenants[TenantSlot(0)].is_open = has_open_gradients;
    if (has_learner_()) state.resources.push_back(written_state(progress));
    cuts->add_part(number, std::move(state));
  }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& file : list_cuts(scratch.path())) names.push_back(file.filename().string());
    return names;
  }
  /// Marks these segments as removed to free space.
  Status retire(uint64_t through) const {
    return set_retired_through(scratch.path(), plan->processes.front().name, 1, through);
  }
  /// Waits until the writing thread has done it.
  template <class Done>
  bool wait(const Done& done) {
    std::unique_lock lock(mutex);
    const auto deadline = std::chrono::steady_clock::now() + kWaitMax;
    while (!done() && std::chrono::steady_clock::now() < deadline)
      changed.wait_for(lock, std::chrono::milliseconds(2));
    return done();
  }

  ScratchFolder scratch;
  std::shared_ptr<Plan> plan;
  uint64_t segment = 1;
  std::vector<int64_t> learner_steps;  // by tenant
  bool has_open_gradients = false;     // the first tenant
  std::set<TenantSlot> set_aside;
  std::vector<SavedSlot> slots;
  Time saved_at;
  bool is_slow = false;  // the group is in a long step: save() ends it
  bool is_useless = false;
  int num_ordered = 0;
  uint64_t newest = 0;  // number of the cut that was ordered last
  std::vector<WaitingCuts::Request> requests;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<uint64_t> kept_from;
  std::vector<std::string> warnings;
  std::unique_ptr<WorkerCuts> cuts;  // the last member: its thread uses the others

 private:
  bool has_learner_() const { return !plan->resources.empty(); }
  /// Each tenant has an instance in the group, as if its node were per_tenant.
  void set_tenants(size_t count) {
    for (size_t slot = plan->tenants.size(); slot < count; ++slot) {
      plan->tenants.push_back(plan->tenants.front());
      plan->tenants.back().slot = TenantSlot(static_cast<uint32_t>(slot));
      plan->instances.push_back(plan->instances.front());
      plan->groups.front().instances.emplace_back(
          static_cast<uint32_t>(plan->instances.size() - 1));
    }
    for (size_t slot = 0; slot < count; ++slot)
      plan->instances[plan->groups.front().instances[slot].index()].tenant =
          TenantSlot(static_cast<uint32_t>(slot));
  }
  template <class Change>
  void note(const Change& change) {
    {
      const std::lock_guard lock(mutex);
      change();
    }
    changed.notify_all();
  }
};

Time at(int64_t nanoseconds) { return Time::from_nanoseconds(nanoseconds); }

TEST(WorkerCuts, AreDueAfterATimeAndNotBefore) {
  Cutting cutting(false);
  const int64_t minute = Duration::seconds(60).to_nanoseconds();
  cutting.cuts->tick(at(5), 0);
  cutting.cuts->tick(at(5 + minute - 1), 0);
  EXPECT_EQ(cutting.num_ordered, 0);
  cutting.cuts->tick(at(5 + minute), 0);
  EXPECT_EQ(cutting.num_ordered, 1);
  cutting.cuts->tick(at(5 + 2 * minute - 1), 0);
  EXPECT_EQ(cutting.num_ordered, 1);
}

TEST(WorkerCuts, AreDueAfterSoManyStepsAndNotBefore) {
  Cutting cutting(false);
  cutting.cuts->tick(at(5), 7);
  cutting.cuts->tick(at(6), 1006);
  EXPECT_EQ(cutting.num_ordered, 0);
  cutting.cuts->tick(at(7), 1007);
  EXPECT_EQ(cutting.num_ordered, 1);
}

TEST(WorkerCuts, AreDueBeforeADrainUnlessTheyWouldWaitForACheckpoint) {
  Cutting cutting(false);
  cutting.cuts->before_drain();
  EXPECT_EQ(cutting.num_ordered, 1);
  EXPECT_TRUE(cutting.wait([&] { return cutting.files().size() == 1; }));
  Cutting learner(true);
  learner.cuts->before_drain();
  EXPECT_EQ(learner.num_ordered, 0);
}

TEST(WorkerCuts, LetTheRecordGoThatIsOlderThanTheNewestTwo) {
  Cutting cutting(false);
  cutting.cuts->tick(at(0), 0);
  for (uint64_t i = 1; i <= 4; ++i) {
    cutting.segment = 10 * i;
    cutting.cuts->tick(at(0), 1000 * i);
    const std::string newest = fmt::format(".1.{}.cut", i);
    ASSERT_TRUE(cutting.wait([&] {
      const auto files = cutting.files();
      return files.size() == i && files.front().ends_with(newest) &&
             cutting.kept_from.size() + 1 == i;
    }));
  }
  EXPECT_THAT(cutting.kept_from, ElementsAre(10, 20, 30));
}

TEST(WorkerCuts, GoWithTheRecordThatWasRetired) {
  Cutting cutting(false);
  cutting.cuts->tick(at(0), 0);
  for (uint64_t i = 1; i <= 4; ++i) {
    if (i == 4) {
      ASSERT_TRUE(cutting.retire(20).ok());
    }
    cutting.segment = 10 * i;
    cutting.cuts->tick(at(0), 1000 * i);
    ASSERT_TRUE(cutting.wait([&] {
      const auto files = cutting.files();
      return !files.empty() && files.front().ends_with(fmt::format(".1.{}.cut", i)) &&
             cutting.kept_from.size() + 1 == i;
    }));
  }
  EXPECT_EQ(cutting.files().size(), 2U);
}

TEST(WorkerCuts, OfAnEarlierIncarnationAreRemoved) {
  ScratchFolder scratch;
  CutHead head;
  head.process = Cutting(false).plan->processes.front().name;
  head.incarnation = 0;
  for (const uint64_t number : {0, 5}) {
    head.number = number;
    ASSERT_TRUE(write_cut(scratch.path(), head, {}).ok());
  }
  const Cutting cutting(false, scratch.path());
  // The cut from which the start resumed is still known.
  ASSERT_EQ(list_cuts(scratch.path()).size(), 1U);
  EXPECT_EQ(read_cut_head(list_cuts(scratch.path()).front())->number, 0U);
}

TEST(WorkerCuts, OfALearnerAreMadeAtCheckpointsAlone) {
  Cutting cutting(true);
  cutting.cuts->tick(at(0), 0);
  cutting.cuts->tick(at(1) + Duration::seconds(1000), 1000000);
  EXPECT_EQ(cutting.num_ordered, 0);
  cutting.learner_steps[0] = 5;  // the start began at step 10
  cutting.cuts->checkpoint_begun(TenantSlot(0), 15);
  EXPECT_EQ(cutting.num_ordered, 1);
  cutting.cuts->checkpoint_committed(TenantSlot(0), 15);
  EXPECT_EQ(cutting.num_ordered, 1);
  EXPECT_TRUE(cutting.wait([&] { return cutting.files().size() == 1; }));
}

// A run that is killed before the commit resumes from the older pair.
TEST(WorkerCuts, OfALearnerAreNoFileBeforeTheirCheckpointIsCommitted) {
  Cutting cutting(true);
  cutting.learner_steps[0] = 5;
  cutting.cuts->checkpoint_begun(TenantSlot(0), 15);
  cutting.cuts->checkpoint_committed(TenantSlot(0), 14);  // an older one
  cutting.cuts.reset();                                   // writes what may be written
  EXPECT_EQ(cutting.num_ordered, 1);
  EXPECT_THAT(cutting.files(), IsEmpty());
}

TEST(WorkerCuts, NewerThanTheCheckpointWaitForTheNextCheckpoint) {
  Cutting cutting(true);
  cutting.learner_steps[0] = 6;  // the learner has made step 16 before it was cut
  cutting.cuts->checkpoint_begun(TenantSlot(0), 15);
  cutting.cuts->checkpoint_committed(TenantSlot(0), 15);
  cutting.learner_steps[0] = 12;
  cutting.cuts->checkpoint_begun(TenantSlot(0), 16);
  cutting.cuts->checkpoint_committed(TenantSlot(0), 16);
  ASSERT_TRUE(cutting.wait([&] { return !cutting.files().empty(); }));
  ASSERT_EQ(cutting.files().size(), 1U);
  const auto head = read_cut_head(cutting.scratch.path() / cutting.files().front());
  EXPECT_THAT(head->learner_steps, ElementsAre(std::pair(0U, int64_t{16})));
}

/// No checkpoint has open gradients, so only the one after their update covers them.
TEST(WorkerCuts, WithOpenGradientsWaitForTheCheckpointOfALaterStep) {
  for (const int64_t steps : {0, 5}) {
    Cutting cutting(true);
    cutting.learner_steps[0] = steps;
    cutting.has_open_gradients = true;
    cutting.cuts->checkpoint_begun(TenantSlot(0), 10 + steps);
    cutting.cuts->checkpoint_committed(TenantSlot(0), 10 + steps);
    cutting.cuts.reset();  // writes what may be written
    EXPECT_THAT(cutting.files(), IsEmpty());
    Cutting later(true);
    later.learner_steps[0] = steps;
    later.has_open_gradients = true;
    later.cuts->checkpoint_begun(TenantSlot(0), 10 + steps);
    later.cuts->checkpoint_committed(TenantSlot(0), 11 + steps);
    EXPECT_TRUE(later.wait([&] { return later.files().size() == 1; }));
  }
}

TEST(WorkerCuts, NameTheTenantsWithOpenGradients) {
  Cutting cutting(true);
  cutting.learner_steps[0] = 5;
  cutting.has_open_gradients = true;
  cutting.cuts->checkpoint_begun(TenantSlot(0), 15);
  cutting.cuts->checkpoint_committed(TenantSlot(0), 16);
  ASSERT_TRUE(cutting.wait([&] { return cutting.files().size() == 1; }));
  const auto head = read_cut_head(list_cuts(cutting.scratch.path()).front());
  ASSERT_TRUE(head.ok());
  EXPECT_THAT(head->learner_steps, ElementsAre(std::pair(0U, int64_t{15})));
  EXPECT_THAT(head->open_tenants, ElementsAre(0U));
  EXPECT_THAT(checkpoints_needed(*head), ElementsAre(std::pair(0U, int64_t{16})));
}

/// A client may discard its gradients and make no further step. The cut that has them would wait
/// for ever, and with it every older checkpoint's state.
TEST(WorkerCuts, WithGradientsThatAreDiscardedGiveWayToANewOne) {
  Cutting cutting(true);
  cutting.learner_steps[0] = 5;
  cutting.has_open_gradients = true;
  cutting.cuts->checkpoint_begun(TenantSlot(0), 15);
  cutting.cuts->checkpoint_committed(TenantSlot(0), 15);
  ASSERT_EQ(cutting.num_ordered, 1);
  cutting.has_open_gradients = false;
  cutting.cuts->gradients_discarded(TenantSlot(0));
  EXPECT_EQ(cutting.num_ordered, 2);
  ASSERT_TRUE(cutting.wait([&] { return cutting.files().size() == 1; }));
  const auto head = read_cut_head(list_cuts(cutting.scratch.path()).front());
  EXPECT_EQ(head->number, 2U);
  EXPECT_THAT(head->open_tenants, IsEmpty());
  cutting.cuts->gradients_discarded(TenantSlot(0));
  EXPECT_EQ(cutting.num_ordered, 2) << "no cut waits for gradients";
  cutting.cuts->checkpoint_committed(TenantSlot(0), 16);
  cutting.cuts.reset();
  EXPECT_EQ(cutting.files().size(), 1U) << "the older cut was dropped";
}

/// While no tenant trains there is no checkpoint, but the record grows.
TEST(WorkerCuts, OfALearnerWithFreeSlotsAreDueAfterATimeToo) {
  Cutting cutting(true);
  cutting.learner_steps[0] = 0;
  cutting.plan->free_slots.push_back(cutting.plan->tenants.front());
  cutting.cuts->tick(at(0), 0);
  cutting.cuts->tick(at(59'999'999'999), 5000);
  EXPECT_EQ(cutting.num_ordered, 0);
  cutting.cuts->tick(at(60'000'000'000), 5001);
  EXPECT_EQ(cutting.num_ordered, 1);
  ASSERT_TRUE(cutting.wait([&] { return cutting.files().size() == 1; }));
  cutting.cuts->tick(at(100'000'000'000), 5002);
  cutting.cuts->checkpoint_begun(TenantSlot(0), 10);
  EXPECT_EQ(cutting.num_ordered, 2);
  cutting.cuts->tick(at(120'000'000'000), 5003);
  EXPECT_EQ(cutting.num_ordered, 2) << "one has begun 20 s before";
}

TEST(WorkerCuts, NameTheTenantsThatHaveJoined) {
  Cutting cutting(true);
  cutting.slots = {
      {.slot = TenantSlot(0), .tenancy = 3, .name = "alice", .table = "[tenant.alice]"}};
  cutting.learner_steps[0] = 5;
  cutting.cuts->checkpoint_begun(TenantSlot(0), 5);
  cutting.cuts->checkpoint_committed(TenantSlot(0), 4);
  cutting.cuts->checkpoint_committed(TenantSlot(0), 5);
  ASSERT_TRUE(cutting.wait([&] { return cutting.files().size() == 1; }));
  const auto head = read_cut_head(list_cuts(cutting.scratch.path()).front());
  ASSERT_TRUE(head.ok());
  EXPECT_THAT(head->slots, ElementsAre(CutSlot{TenantSlot(0), 3, "alice"}));
  EXPECT_THAT(head->learner_steps, ElementsAre(std::pair(0U, int64_t{5})))
      << "steps of the slot's earlier tenant, before this start, do not count";
}

/// The newest checkpoint of the slot is of a tenant that has left.
TEST(WorkerCuts, OfANewTenantWaitForItsOwnCheckpoint) {
  Cutting cutting(true);
  cutting.cuts->checkpoint_committed(TenantSlot(0), 50);
  cutting.slots = {{.slot = TenantSlot(0), .tenancy = 1, .name = "bob", .table = {}}};
  cutting.cuts->tenant_joined(TenantSlot(0), 1);
  cutting.learner_steps[0] = 5;
  cutting.cuts->checkpoint_begun(TenantSlot(0), 5);
  EXPECT_THAT(cutting.files(), IsEmpty());
  cutting.cuts->checkpoint_committed(TenantSlot(0), 5);
  ASSERT_TRUE(cutting.wait([&] { return cutting.files().size() == 1; }));
}

/// The learner's progress counts from the join, checkpoints from the tenant's first step.
TEST(WorkerCuts, OfATenantThatContinuedAtACheckpointCountFromThere) {
  Cutting cutting(true);
  cutting.slots = {{.slot = TenantSlot(0),
                    .tenancy = 1,
                    .name = "bob",
                    .table = {},
                    .has_started = true,
                    .is_paused = false,
                    .begins_at = 40}};
  cutting.cuts->tenant_joined(TenantSlot(0), 1);
  cutting.learner_steps[0] = 5;
  cutting.cuts->checkpoint_begun(TenantSlot(0), 45);
  cutting.cuts->checkpoint_committed(TenantSlot(0), 44);
  EXPECT_THAT(cutting.files(), IsEmpty());
  cutting.cuts->checkpoint_committed(TenantSlot(0), 45);
  ASSERT_TRUE(cutting.wait([&] { return cutting.files().size() == 1; }));
  const auto head = read_cut_head(list_cuts(cutting.scratch.path()).front());
  ASSERT_TRUE(head.ok());
  EXPECT_THAT(head->learner_steps, ElementsAre(std::pair(0U, int64_t{45})));
}

TEST(WorkerCuts, ThatWaitAreAtMostOneMoreThanTheTenants) {
  Cutting cutting(true);  // one tenant: two cuts wait
  for (const int64_t steps : {5, 6, 7}) {
    cutting.learner_steps[0] = steps;
    cutting.cuts->checkpoint_begun(TenantSlot(0), 10 + steps);
  }
  cutting.cuts->checkpoint_committed(TenantSlot(0), 15);
  ASSERT_TRUE(cutting.wait([&] { return cutting.files().size() == 1; }));
  cutting.cuts->checkpoint_committed(TenantSlot(0), 16);  // its cut was dropped
  cutting.cuts->checkpoint_committed(TenantSlot(0), 17);
  cutting.cuts.reset();
  std::vector<int64_t> steps;
  for (const auto& file : list_cuts(cutting.scratch.path()))
    steps.push_back(read_cut_head(file)->learner_steps.front().second);
  EXPECT_THAT(steps, ::testing::UnorderedElementsAre(15, 17));
}

/// Two tenants. The first has a checkpoint after step 15, the second none.
struct TwoCutting : Cutting {
  TwoCutting() : Cutting(true, {}, 2) {
    learner_steps = {5, 3};
    cuts->tick(at(0), 0);
    cuts->checkpoint_begun(kFirst, 15);
    cuts->checkpoint_committed(kFirst, 15);
  }
  static constexpr TenantSlot kFirst{0}, kSecond{1};
  static constexpr Duration kEvery = Duration::seconds(60);
};

TEST(WorkerCuts, OfTwoTenantsWaitForTheSecondAndItIsAskedAfterCutEvery) {
  TwoCutting cutting;
  cutting.cuts->tick(at(1), 0);  // the cut is seen
  cutting.cuts->tick(at(0) + cutting.kEvery, 0);
  EXPECT_THAT(cutting.requests, IsEmpty());
  EXPECT_THAT(cutting.files(), IsEmpty());
  cutting.cuts->tick(at(1) + cutting.kEvery, 0);
  ASSERT_EQ(cutting.requests.size(), 1U);
  EXPECT_EQ(cutting.requests[0], (WaitingCuts::Request{cutting.kSecond, 13}));
  cutting.cuts->tick(at(2) + cutting.kEvery, 0);
  EXPECT_EQ(cutting.requests.size(), 1U) << "it is asked once";
  cutting.cuts->checkpoint_begun(cutting.kSecond, 14);
  cutting.cuts->checkpoint_committed(cutting.kSecond, 14);
  EXPECT_TRUE(cutting.wait([&] { return cutting.files().size() == 1; }));
}

TEST(WorkerCuts, OfSeveralTenantsAreNotAbandonedByTheNextCheckpoint) {
  TwoCutting cutting;
  cutting.is_slow = true;
  cutting.cuts->checkpoint_begun(cutting.kSecond, 13);
  const uint64_t open = cutting.newest;
  cutting.cuts->checkpoint_begun(cutting.kFirst, 15);
  EXPECT_EQ(cutting.newest, open);
  cutting.cuts->tick(at(0) + cutting.kEvery, 0);
  cutting.cuts->checkpoint_begun(cutting.kFirst, 15);
  EXPECT_EQ(cutting.newest, open + 1) << "a group that never joins it ends it";
}

TEST(WorkerCuts, DoNotWaitForATenantThatWasSetAside) {
  TwoCutting cutting;
  cutting.set_aside = {cutting.kSecond};
  cutting.cuts->checkpoint_begun(cutting.kFirst, 15);
  ASSERT_TRUE(cutting.wait([&] { return cutting.files().size() == 1; }));
  const auto head = read_cut_head(cutting.scratch.path() / cutting.files().front());
  EXPECT_THAT(head->learner_steps, ElementsAre(std::pair(0U, int64_t{15})));
}

TEST(WorkerCuts, RefusedByTheDiskAreReportedOnceAndTheRunContinues) {
  Cutting cutting(false, "/nowhere/at/all");
  cutting.cuts->tick(at(0), 0);
  cutting.cuts->tick(at(0), 1000);
  ASSERT_TRUE(cutting.wait([&] { return !cutting.warnings.empty(); }));
  cutting.cuts->tick(at(0), 2000);
  cutting.cuts.reset();  // writes the waiting cut
  ASSERT_EQ(cutting.warnings.size(), 1U);
  EXPECT_THAT(cutting.warnings.front(), HasSubstr("could not be saved"));
}

TEST(WorkerCuts, AreOfNoUseWhereTwoGroupsWriteOneFile) {
  Cutting cutting(false);
  cutting.is_useless = true;
  cutting.cuts->tick(at(0), 0);
  cutting.cuts->tick(at(0), 1000);
  EXPECT_EQ(cutting.num_ordered, 1);
  cutting.cuts.reset();
  EXPECT_THAT(cutting.files(), IsEmpty());
}

}  // namespace
}  // namespace primerl::testing
