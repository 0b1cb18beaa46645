// The files of a process after the disk has refused one of them.
#include "runtime/worker/worker_files.h"

#include <gmock/gmock.h>

#include "runtime/store/run_folder.h"
#include "tests/exec/small_graph.h"
#include "tests/store/scratch_folder.h"

namespace primerl::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr TenantSlot kTenant(0);

/// One process. Its `logs` folder is missing, so step lines are refused until it is made.
class Writing {
 public:
  Writing() {
    graph.node("a");
    plan = graph.plan();
    files = std::make_unique<WorkerFiles>(
        *plan, scratch.path(), "main", std::vector<ResumePoint>(),
        [this](TenantSlot, int64_t step) { checkpoints.push_back(step); },
        [this](const Error& fault) { faults.push_back(fault.text()); });
  }
  Status append_step(int64_t step) { return files->append_step({"main", step, 1, {}}); }
  Status checkpoint(int64_t step) {
    RETURN_IF_ERROR(files->begin_checkpoint(kTenant, step));
    return files->commit_checkpoint(kTenant, step, Json::object().set("version", step));
  }
  fs::path logs() const { return scratch.path() / "logs"; }

  ScratchFolder scratch;
  SmallGraph graph;
  std::shared_ptr<const Plan> plan;
  std::vector<int64_t> checkpoints;
  std::vector<std::string> faults;
  std::unique_ptr<WorkerFiles> files;
};

TEST(WorkerFiles, WriteLinesStepsAndCheckpoints) {
  Writing run;
  fs::create_directory(run.logs());
  ASSERT_TRUE(run.append_step(1).ok());
  ASSERT_TRUE(run.files->append_line("rollouts.jsonl", "{}").ok());
  const Status saved = run.checkpoint(1);
  ASSERT_TRUE(saved.ok()) << saved.error().text();
  EXPECT_THAT(run.checkpoints, ElementsAre(1));
  EXPECT_THAT(run.faults, IsEmpty());
  EXPECT_EQ(complete_steps(checkpoints_folder(run.scratch.path(), "main", 1)),
            std::vector<int64_t>{1});
}

// A resumed run begins at its newest checkpoint. If a step before it has no line, the line would be
// missing for good.
TEST(WorkerFiles, ARefusedStepLineRefusesLaterCheckpointsAndLines) {
  Writing run;
  const Status refused = run.append_step(1);
  ASSERT_FALSE(refused.ok()) << "its folder does not exist";
  fs::create_directory(run.logs());
  const auto expect_the_same = [&](const Status& later) {
    ASSERT_FALSE(later.ok());
    EXPECT_EQ(later.error().text(), refused.error().text());
  };
  expect_the_same(run.append_step(2));
  expect_the_same(run.files->append_line("rollouts.jsonl", "{}"));
  EXPECT_THAT(run.checkpoint(2).error().text(), HasSubstr("checkpoint 2 is not written"));
  EXPECT_THAT(run.checkpoints, IsEmpty());
  EXPECT_THAT(run.faults, ElementsAre(refused.error().text())) << "reported once";
  EXPECT_FALSE(fs::exists(run.scratch.path() / "rollouts.jsonl"));
  EXPECT_THAT(checkpoint_steps(checkpoints_folder(run.scratch.path(), "main", 1)), IsEmpty());
}

// The disk refuses the line between begin_checkpoint() and commit_checkpoint().
TEST(WorkerFiles, ACheckpointThatWasBegunBeforeTheFaultIsNotCommitted) {
  Writing run;
  ASSERT_TRUE(run.files->begin_checkpoint(kTenant, 2).ok());
  ASSERT_FALSE(run.append_step(2).ok());
  EXPECT_FALSE(run.files->commit_checkpoint(kTenant, 2, Json::object().set("version", 2)).ok());
  EXPECT_THAT(run.checkpoints, IsEmpty());
  EXPECT_THAT(complete_steps(checkpoints_folder(run.scratch.path(), "main", 1)), IsEmpty());
}

// A run that follows its record repeats what the tenant did before it was removed.
TEST(WorkerFiles, ATenantWhoseFilesWereRemovedWritesNoLinesAgain) {
  ScratchFolder scratch;
  SmallGraph graph(2);
  graph.node("a");
  const auto plan = graph.plan();
  ASSERT_TRUE(add_removed(system_files(), scratch.path(), {"t0", true}).ok());
  ASSERT_TRUE(add_removed(system_files(), scratch.path(), {"t0", true}).ok()) << "repeated";
  EXPECT_THAT(removed_tenants(scratch.path()), ElementsAre(RemovedTenant{"t0", true}));
  WorkerFiles files(
      *plan, scratch.path(), "main", {}, [](TenantSlot, int64_t) {},
      [](const Error& fault) { ADD_FAILURE() << fault.text(); });
  files.follow({{"rollouts/t0.jsonl", 40}, {"rollouts/t1.jsonl", 0}}, {});
  ASSERT_TRUE(files.append_line("rollouts/t0.jsonl", "{}").ok());
  ASSERT_TRUE(files.append_line("rollouts/t1.jsonl", "{}").ok());
  const Status live = files.resume({});
  ASSERT_TRUE(live.ok()) << live.error().text();
  EXPECT_FALSE(fs::exists(scratch.path() / "rollouts/t0.jsonl"));
  EXPECT_EQ(read_text_file(scratch.path() / "rollouts/t1.jsonl").value(), "{}\n");
}

/// Each use of a slot has files of its own, and a step has the name of its tenancy.
TEST(WorkerFiles, ATenantThatJoinedWritesItsOwnFiles) {
  ScratchFolder scratch;
  SmallGraph graph(2);
  graph.num_free_slots = 1;
  graph.settings.tenant_limits.tenants_max = 2;
  WorkerFiles* files = nullptr;
  std::vector<std::string> labels;
  const auto join = [&](uint32_t tenancy) {
    Tenant tenant;
    tenant.name = "alice";
    tenant.slot = TenantSlot(0);
    tenant.tenancy = tenancy;
    EXPECT_FALSE(files->begin_tenant(tenant)) << "no learner is in this group";
    labels.push_back(files->label(tenant.slot));
    EXPECT_TRUE(files->append_line("rollouts.jsonl", fmt::format("{}", tenancy)).ok());
    return tenant;
  };
  Strings strings;
  strings.on_work = [&](Puppet& puppet) -> Result<bool> {
    EXPECT_EQ(files->label(TenantSlot(0)), "t0") << "the plan's own tenant";
    EXPECT_EQ(files->label(TenantSlot(1)), "") << "a free slot";
    const Tenant first = join(1);
    files->end_tenant(first);
    (void)join(2);
    puppet.world().finish(TenantSlot(0));
    return false;
  };
  graph.node("actor", {.strings = std::move(strings), .contract = make_source});
  const auto plan = graph.plan();
  WorkerFiles made(
      *plan, scratch.path(), "main", {}, [](TenantSlot, int64_t) {},
      [](const Error& fault) { ADD_FAILURE() << fault.text(); });
  files = &made;
  SmallRun run(graph);
  (void)run->wait();
  EXPECT_THAT(labels, ElementsAre("alice~1", "alice~2"));
  for (const char* line : {"1", "2"})
    EXPECT_EQ(read_text_file(scratch.path() / fmt::format("rollouts/alice-{}.jsonl", line)).value(),
              fmt::format("{}\n", line));
  const auto begun = made.begin_checkpoint(TenantSlot(1), 1);
  ASSERT_FALSE(begun.ok());
  EXPECT_THAT(begun.error().text(), HasSubstr("slot 1 is free"));
}

}  // namespace
}  // namespace primerl::testing
