#include "runtime/control/run_lifecycle.h"

#include <gtest/gtest.h>

namespace primerl {
namespace {

using Order = RunLifecycle::Action;
using How = RunEnding::How;
using Phase = RunLifecycle::Phase;

Error stalled() { return error(Code::kDeadline, "no progress for 60 s"); }
Error disk_full() { return error(Code::kIo, "no space left on device"); }

RunLifecycle fresh() { return RunLifecycle(false, true); }
RunLifecycle following() {
  RunLifecycle run(true, true);
  run.on_launched();
  return run;
}
RunLifecycle running() {
  RunLifecycle run(false, true);
  run.on_launched();
  run.on_step();
  return run;
}

TEST(RunLifecycle, ShowsWhereItStands) {
  RunLifecycle run(true, true);
  EXPECT_EQ(run.phase_text(), "starting");
  run.on_launched();
  EXPECT_EQ(run.phase_text(), "following the record");
  run.on_step();  // a recorded step
  EXPECT_EQ(run.phase(), Phase::kFollowing);
  run.on_followed();
  EXPECT_EQ(run.phase_text(), "");
  EXPECT_EQ(run.on_signal(), Order::kDrain);
  EXPECT_EQ(run.phase_text(), "draining");
  run.on_step();  // the last steps
  EXPECT_EQ(run.phase(), Phase::kDraining);
  EXPECT_EQ(run.on_signal(), Order::kStop);
  EXPECT_EQ(run.phase_text(), "stopping");
}

TEST(RunLifecycle, WithoutARecordRunsFromItsFirstStep) {
  RunLifecycle run = fresh();
  run.on_launched();
  EXPECT_EQ(run.phase(), Phase::kStarting);
  run.on_step();
  EXPECT_EQ(run.phase(), Phase::kRunning);
}

TEST(RunLifecycle, EndsWellWhenNothingHappened) {
  const RunEnding ending = running().end("", false, true);
  EXPECT_EQ(ending.how, How::kFinished);
  EXPECT_FALSE(ending.has_lost_worker || ending.must_skip_record || ending.was_following);
}

TEST(RunLifecycle, DrainsThenStopsThenKills) {
  RunLifecycle run = running();
  EXPECT_EQ(run.on_signal(), Order::kDrain);
  EXPECT_FALSE(run.is_forced());
  EXPECT_EQ(run.on_signal(), Order::kStop);
  EXPECT_TRUE(run.is_forced());
  EXPECT_EQ(run.on_signal(), Order::kKillAll);
  EXPECT_EQ(run.on_signal(), Order::kKillAll);
  EXPECT_EQ(run.end("", false, false).how, How::kInterrupted);
}

TEST(RunLifecycle, StopsWhenThereIsNothingToDrain) {
  RunLifecycle run = fresh();
  EXPECT_EQ(run.on_signal(), Order::kDrain);
  EXPECT_EQ(run.on_nothing_to_drain(), Order::kStop);
  EXPECT_EQ(run.on_signal(), Order::kNothing) << "it stops already";
  EXPECT_EQ(run.on_signal(), Order::kKillAll);
}

TEST(RunLifecycle, TellsWorkersToStopOnce) {
  RunLifecycle run = running();
  EXPECT_EQ(run.on_worker_failed(), Order::kStop);
  EXPECT_EQ(run.on_worker_failed(), Order::kNothing);
  EXPECT_EQ(run.on_cannot_go_on(stalled()), Order::kNothing);
}

TEST(RunLifecycle, KeepsTheFirstFault) {
  RunLifecycle run = running();
  EXPECT_EQ(run.on_cannot_go_on(error(Code::kInvalid, "another graph")), Order::kStop);
  EXPECT_EQ(run.on_cannot_write(disk_full()), Order::kNothing);
  EXPECT_TRUE(run.cannot_write());
  run.note_fault("a third");
  EXPECT_EQ(run.fault(), "another graph");
  EXPECT_EQ(run.end(run.fault(), false, true).how, How::kFailed);
}

TEST(RunLifecycle, NamesAStall) {
  RunLifecycle run = running();
  EXPECT_EQ(run.on_cannot_go_on(stalled()), Order::kStop);
  const RunEnding ending = run.end(run.fault(), false, true);
  EXPECT_EQ(ending.how, How::kStalled);
  EXPECT_FALSE(ending.must_skip_record) << "it followed none";
  EXPECT_EQ(running().end("trainer: no progress", true, true).how, How::kStalled)
      << "as a worker says";
}

TEST(RunLifecycle, StopsOnceWhenItCannotWrite) {
  RunLifecycle run = running();
  EXPECT_FALSE(run.cannot_write());
  EXPECT_EQ(run.on_cannot_write(disk_full()), Order::kStop);
  EXPECT_EQ(run.on_cannot_write(disk_full()), Order::kNothing);
}

TEST(RunLifecycle, IsTakenUpAgainAfterTheLossOfAWorker) {
  RunLifecycle run = running();
  EXPECT_EQ(run.on_worker_lost("'trainer' was killed", true), Order::kKillAll);
  EXPECT_TRUE(run.is_stopping());
  const RunEnding ending = run.end(run.fault(), false, false);
  EXPECT_TRUE(ending.has_lost_worker);
  EXPECT_EQ(ending.why, "'trainer' was killed");
}

TEST(RunLifecycle, IsNotTakenUpAgainWhereItWouldEndTheSameWay) {
  {
    RunLifecycle run = running();
    EXPECT_EQ(run.on_worker_lost("exited with code 1", false), Order::kStop) << "before it was up";
    EXPECT_FALSE(run.end(run.fault(), false, false).has_lost_worker);
  }
  {
    RunLifecycle run(false, false);
    EXPECT_EQ(run.on_worker_lost("was killed", true), Order::kStop) << "restarts_max = 0";
  }
  {
    RunLifecycle run = running();
    run.note_fault("after 5 restarts within 1m");
    EXPECT_EQ(run.on_worker_lost("was killed", true), Order::kStop) << "there was a fault before";
    EXPECT_FALSE(run.end(run.fault(), false, false).has_lost_worker);
  }
  {
    RunLifecycle run = running();
    EXPECT_EQ(run.on_worker_failed(), Order::kStop);
    EXPECT_EQ(run.on_worker_lost("was killed", true), Order::kNothing) << "it stops already";
    EXPECT_FALSE(run.end("failed", false, false).has_lost_worker);
  }
}

TEST(RunLifecycle, IsNotTakenUpAgainWhenAPersonWantsItToEnd) {
  RunLifecycle run = running();
  EXPECT_EQ(run.on_signal(), Order::kDrain);
  EXPECT_EQ(run.on_worker_lost("was killed", true), Order::kKillAll);
  const RunEnding ending = run.end(run.fault(), false, false);
  EXPECT_EQ(ending.how, How::kFailed);
  EXPECT_FALSE(ending.has_lost_worker);
}

TEST(RunLifecycle, LosesItsWorkersWithTheirAgent) {
  RunLifecycle run = running();
  const Error lost = error(Code::kUnavailable, "agent 'a' is lost");
  EXPECT_EQ(run.on_agent_lost(lost, true), Order::kKillAll);
  EXPECT_EQ(run.on_agent_lost(lost, true), Order::kNothing);
  EXPECT_TRUE(run.end(run.fault(), false, false).has_lost_worker);
  RunLifecycle early = fresh();
  EXPECT_EQ(early.on_agent_lost(lost, false), Order::kKillAll);
  EXPECT_FALSE(early.end_of_launch(lost).has_lost_worker);
}

TEST(RunLifecycle, DrainsForAnAgentThatIsToldToStop) {
  RunLifecycle run = running();
  EXPECT_EQ(run.on_agent_leaving(), Order::kDrain);
  EXPECT_EQ(run.on_agent_leaving(), Order::kNothing);
  EXPECT_EQ(run.end("", false, true).how, How::kInterrupted);
}

TEST(RunLifecycle, FallsBackToTheCheckpointWhenTheRecordCannotBeFollowed) {
  {
    RunLifecycle run = following();
    EXPECT_TRUE(run.end("differs at step 7", false, true).must_skip_record) << "as a worker says";
  }
  {
    RunLifecycle run = following();
    EXPECT_EQ(run.on_cannot_go_on(stalled()), Order::kStop);
    EXPECT_TRUE(run.end(run.fault(), false, true).must_skip_record);
  }
}

TEST(RunLifecycle, SaysThatItFollowedWhenThatMayBeTheReason) {
  RunLifecycle run = following();
  const RunEnding died = run.end("'trainer' died", false, false);
  EXPECT_FALSE(died.must_skip_record) << "it may have died of the checkpoint, too";
  EXPECT_TRUE(died.was_following);
  EXPECT_NE(died.why.find("--from-checkpoint"), std::string::npos);
  EXPECT_EQ(run.on_worker_lost("was killed", true), Order::kKillAll);
  const RunEnding lost = run.end(run.fault(), false, false);
  EXPECT_TRUE(lost.has_lost_worker && lost.was_following);
  EXPECT_EQ(lost.why, "was killed");
}

TEST(RunLifecycle, AFailedLaunchIsTakenUpAgainOnlyAfterASignal) {
  const Error why = error(Code::kUnavailable, "process 'trainer' ended before it was ready");
  RunLifecycle killed = fresh();
  killed.on_worker_died_early(true);
  EXPECT_TRUE(killed.end_of_launch(why).has_lost_worker);
  RunLifecycle left = fresh();
  left.on_worker_died_early(false);
  EXPECT_FALSE(left.end_of_launch(why).has_lost_worker);
  RunLifecycle interrupted = fresh();
  EXPECT_EQ(interrupted.on_signal(), Order::kDrain);
  EXPECT_EQ(interrupted.end_of_launch(why).how, How::kInterrupted);
}

// Otherwise a record that kills its readers would be tried until no restart is left.
TEST(RunLifecycle, AWorkerThatDiesBeforeItIsReadyMayHaveDiedOfTheRecord) {
  const Error why = error(Code::kUnavailable, "process 'trainer' ended before it was ready");
  RunLifecycle reader = following();
  reader.on_worker_died_early(true);
  const RunEnding ending = reader.end_of_launch(why);
  EXPECT_TRUE(ending.has_lost_worker && ending.was_following);
  RunLifecycle other = fresh();
  other.on_worker_died_early(true);
  EXPECT_FALSE(other.end_of_launch(why).was_following);
}

}  // namespace
}  // namespace primerl
