// Environments in separate processes. One that only computes rewards is restarted alone; the one
// that gives the tasks is restarted with the run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

class SplitEnvironments : public testing::Test {
 protected:
  std::vector<std::string> words(const std::vector<std::string>& more) const {
    std::vector<std::string> all{"primerl-graph", "run",
                                 source_path("tests/cli/graphs/split_environments.toml"), "--out",
                                 folder_.string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<std::string> variables() const {
    return {"XDG_RUNTIME_DIR=" + scratch_.path().string()};
  }
  const ScratchFolder scratch_;
  const fs::path folder_ = scratch_.path() / "run";
};

TEST_F(SplitEnvironments, OneThatOnlyJudgesComesBackAlone) {
  Program run(words({"--max-steps", "400"}), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  const pid_t judge = worker_named(run, "worlds#1");
  ASSERT_GT(judge, 0);
  ::kill(judge, SIGKILL);
  ASSERT_TRUE(run.wait_until_said("it is restarted as incarnation 2"));
  const auto end = run.wait();
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, AllOf(HasSubstr("process 'worlds#1' was killed by signal 9"),
                             Not(HasSubstr("the run is live"))));
  EXPECT_EQ(expect_steps_and_rollouts_once(folder_), 400);
  for (const Json& rollout : lines_of(folder_ / "rollouts.jsonl"))
    EXPECT_NE(*rollout.get_string("end"), "failed") << rollout.dump();
  expect_replays(folder_);
}

TEST_F(SplitEnvironments, TheOneThatGivesTheTasksComesBackWithTheRun) {
  Program run(words({"--max-steps", "1000000000"}), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  const pid_t giver = worker_named(run, "worlds#0");
  ASSERT_GT(giver, 0);
  ::kill(giver, SIGKILL);
  ASSERT_TRUE(run.wait_until_said("messages as recorded; the run is live"));
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  expect_steps_and_rollouts_once(folder_);
}

// Rollouts in flight may need those environments, so the drain waits for their replacements.
TEST_F(SplitEnvironments, ADrainThatLosesAllItsJudgesEndsAsAnyOther) {
  Program run(words({"--max-steps", "1000000000"}), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  const pid_t judges[] = {worker_named(run, "worlds#1"), worker_named(run, "worlds#2")};
  for (const pid_t judge : judges) ASSERT_GT(judge, 0);
  ::kill(run.pid(), SIGINT);
  ASSERT_TRUE(run.wait_until_said("draining:"));
  for (const pid_t judge : judges) ::kill(judge, SIGKILL);  // or it has already ended
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  EXPECT_THAT(end.err, Not(HasSubstr("error")));
  EXPECT_EQ(run_end(folder_), "interrupted");
  expect_steps_and_rollouts_once(folder_);
}

// The death of an environment process is in the record; a later death of the driver restarts all.
TEST_F(SplitEnvironments, ARunWhoseRewardProcessDiedIsResumedFromItsRecord) {
  Program run(words({"--max-steps", "1000000000"}), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  const pid_t judge = worker_named(run, "worlds#2");
  ASSERT_GT(judge, 0);
  ::kill(judge, SIGKILL);
  ASSERT_TRUE(run.wait_until_said("it is restarted as incarnation 2"));
  const pid_t driver = worker_named(run, "driver");
  ASSERT_GT(driver, 0);
  ::kill(driver, SIGKILL);
  ASSERT_TRUE(run.wait_until_said("messages as recorded; the run is live"));
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  expect_steps_and_rollouts_once(folder_);
}

}  // namespace
}  // namespace primerl
