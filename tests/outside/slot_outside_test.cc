// The Outside of a slot: tenants with and without processes come and go.
#include "runtime/outside/slot_outside.h"

#include "tests/outside/outside_story.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A worker that answers each call with the reward `reward`, and writes its process id.
OutsideSpec worker_spec(int reward, const std::string& pid_file = "/dev/null") {
  OutsidePool pool;
  pool.name = "reward 'test'";
  pool.command = {
      "/bin/sh", "-c",
      fmt::format("echo $$ >{}\necho '{{\"protocol\": \"primerl-graph 1\", \"concurrency\": 4, "
                  "\"in_order\": true}}'\nwhile read -r line; do id=${{line#*:}}; id=${{id%%,*}}\n"
                  "echo \"{{\\\"id\\\": $id, \\\"reward\\\": {}}}\"\ndone",
                  pid_file, reward)};
  return {{std::move(pool)}};
}

struct SlotOutsideStory : OutsideStory {
  void open(OutsideSpec first) {
    use(make_slot_outside(std::move(first), [this](OutsideSpec spec) {
      ++num_made;
      return make_outside_workers({std::move(spec), nullptr});
    }));
  }
  int num_made = 0;
};

TEST_F(SlotOutsideStory, AFreeSlotHasNeitherAThreadNorProcesses) {
  open({});
  EXPECT_EQ(num_made, 0);
  EXPECT_FALSE(outside->has_work());
  EXPECT_TRUE(outside->receive_answers().empty());
  EXPECT_TRUE(outside->step().ok());
  outside->forget(0, 1);
  outside->stop();
  outside->begin_tenant({});  // one that asks nothing outside
  EXPECT_EQ(num_made, 0);
  EXPECT_FALSE(outside->ask({1, 0, 0, 0, true, false, "{}"}).ok());
}

TEST_F(SlotOutsideStory, ATenantThatJoinsIsAnsweredByItsOwnProcesses) {
  open({});
  outside->begin_tenant(worker_spec(1));
  ask(1, "{}");
  EXPECT_THAT(answer_to(1).body, HasSubstr("\"reward\": 1"));
  outside->end_tenant();
  outside->begin_tenant(worker_spec(2));
  ask(2, "{}");
  EXPECT_THAT(answer_to(2).body, HasSubstr("\"reward\": 2"));
  EXPECT_EQ(num_made, 2);
}

TEST_F(SlotOutsideStory, ProcessesEndWithTheirTenant) {
  const std::string pid_file = (folder / "pid").string();
  open({});
  outside->begin_tenant(worker_spec(1, pid_file));
  ask(1, "{}");
  (void)answer_to(1);
  pid_t pid = 0;
  std::ifstream(pid_file) >> pid;
  ASSERT_GT(pid, 0);
  EXPECT_EQ(::kill(pid, 0), 0);
  outside->end_tenant();
  EXPECT_EQ(::kill(pid, 0), -1) << "end_tenant() waits for them";
  EXPECT_FALSE(outside->has_work());
}

TEST_F(SlotOutsideStory, TheTenantOfTheFileIsServedFromTheStart) {
  open(worker_spec(3));
  EXPECT_EQ(num_made, 1);
  ask(1, "{}");
  EXPECT_THAT(answer_to(1).body, HasSubstr("\"reward\": 3"));
}

/// A run that resumes after the tenant of its file has left starts only the later one's processes.
TEST_F(SlotOutsideStory, ATenantThatLeftBeforeTheStartHasNoProcess) {
  outside = make_slot_outside(worker_spec(1), [this](OutsideSpec spec) {
    ++num_made;
    return make_outside_workers({std::move(spec), nullptr});
  });
  outside->end_tenant();
  outside->begin_tenant(worker_spec(2));
  EXPECT_EQ(num_made, 0);
  use(outside);
  EXPECT_EQ(num_made, 1);
  ask(1, "{}");
  EXPECT_THAT(answer_to(1).body, HasSubstr("\"reward\": 2"));
}

TEST_F(SlotOutsideStory, AProgramThatIsMissingIsAnAnswerAndNoFaultOfTheGroup) {
  OutsideSpec spec = worker_spec(1);
  spec.pools[0].command = {"no-such-program-here"};
  open({});
  outside->begin_tenant(std::move(spec));
  ask(1, "{}");
  ask(2, "{}");
  const OutsideAnswer first = answer_to(1);
  EXPECT_EQ(first.end, OutsideEnd::kUnusable);
  EXPECT_THAT(first.body, HasSubstr("no program 'no-such-program-here' in PATH"));
  EXPECT_EQ(answer_to(2).end, OutsideEnd::kUnusable);
  ask(3, "{}");
  EXPECT_TRUE(outside->has_work()) << "later calls are answered, too";
  EXPECT_EQ(answer_to(3).end, OutsideEnd::kUnusable);
  outside->end_tenant();
  outside->begin_tenant(worker_spec(2));
  ask(4, "{}");
  EXPECT_EQ(answer_to(4).end, OutsideEnd::kDone) << "the next tenant is served";
}

TEST_F(SlotOutsideStory, NothingIsAnsweredAfterStopUntilTheNextTenant) {
  OutsideSpec spec = worker_spec(1);
  spec.pools[0].command = {"no-such-program-here"};
  open({});
  outside->begin_tenant(std::move(spec));
  ask(1, "{}");
  EXPECT_EQ(answer_to(1).end, OutsideEnd::kUnusable);
  outside->stop();
  ask(2, "{}");
  EXPECT_FALSE(outside->has_work());
  outside->end_tenant();
  outside->begin_tenant(worker_spec(2));
  ask(3, "{}");
  EXPECT_EQ(answer_to(3).end, OutsideEnd::kDone);
}

TEST_F(SlotOutsideStory, CallsOfATenantThatLeftAreForgotten) {
  OutsideSpec silent = worker_spec(1);
  silent.pools[0].command = {"/bin/sh", "-c", "sleep 1000"};
  open({});
  outside->begin_tenant(std::move(silent));
  ask(1, "{}");
  outside->end_tenant();
  outside->begin_tenant(worker_spec(2));
  ask(2, "{}");
  EXPECT_EQ(answer_to(2).end, OutsideEnd::kDone);
  EXPECT_THAT(known, ElementsAre(::testing::Key(2)));
}

}  // namespace
}  // namespace primerl
