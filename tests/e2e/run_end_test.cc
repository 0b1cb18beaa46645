// Runs of the scripted graph that do not finish normally: Ctrl-C, a dead worker, a full disk.
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

/// A run without a practical end. It keeps every checkpoint, so that a test can wait for one.
std::vector<std::string> endless_run(const fs::path& folder,
                                     const std::string& restarts_max = "0") {
  auto words = scripted_run(
      folder, {"--max-steps", "1000000000", "--set", "tenant.main.checkpoint_every=100", "--set",
               "tenant.main.keep_last=0", "--set", "graph.restarts_max=" + restarts_max});
  words.insert(words.begin(), "primerl-graph");
  return words;
}

/// A checkpoint is complete as soon as its folder has its final name.
void wait_for_checkpoint(const fs::path& folder, int step) {
  const std::string name = "step_" + std::to_string(step);
  ASSERT_TRUE(wait_until([&] { return fs::exists(folder / "checkpoints" / name); }))
      << "the run did not write the checkpoint " << name;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(CtrlC, TheFirstDrainsAndWritesACheckpoint) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  Program run(endless_run(folder));
  ASSERT_TRUE(run.wait_until_said("reward"));
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  EXPECT_THAT(end.err, HasSubstr("draining: what is in flight ends and a checkpoint is written"));
  EXPECT_THAT(end.out, HasSubstr("scripted: interrupted"));
  EXPECT_EQ(run_end(folder), "interrupted");
  const auto steps = lines_of(folder / "metrics.jsonl");
  ASSERT_FALSE(steps.empty());
  const auto last = std::to_string(*steps.back().get_int("step"));
  EXPECT_TRUE(fs::exists(folder / "checkpoints" / ("step_" + last) / "manifest.json"));
}

/// Interrupts a run whose checkpoints last longer than drain_max.
void expect_a_slow_checkpoint(std::vector<std::string> words, const fs::path& folder) {
  for (const char* setting : {"resource.learner.save_time=\"4s\"", "graph.drain_max=\"1500ms\"",
                              "tenant.main.environment_timeout=\"1s\""})
    words.insert(words.end(), {"--set", setting});
  Program run(words, {"XDG_RUNTIME_DIR=" + folder.parent_path().string()});
  ASSERT_TRUE(run.wait_until_said("reward"));
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  EXPECT_EQ(run_end(folder), "interrupted");
  const auto last = std::to_string(*lines_of(folder / "metrics.jsonl").back().get_int("step"));
  EXPECT_TRUE(fs::exists(folder / "checkpoints" / ("step_" + last) / "manifest.json"));
}

TEST(CtrlC, TheDrainWaitsForACheckpointOnASlowDisk) {
  ScratchFolder scratch;
  expect_a_slow_checkpoint(endless_run(scratch.path() / "run"), scratch.path() / "run");
}

TEST(CtrlC, AllProcessesWaitForTheCheckpointOfOne) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  expect_a_slow_checkpoint({"primerl-graph", "run", source_path("tests/cli/graphs/split.toml"),
                            "--out", folder.string(), "--max-steps", "1000000000"},
                           folder);
}

TEST(CtrlC, SaysHowToResumeAndTheCommandDoes) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "a run's";
  Program run(endless_run(folder));
  ASSERT_TRUE(run.wait_until_said("reward"));
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  const size_t begin = end.out.find("primerl-graph run --resume ");
  ASSERT_NE(begin, std::string::npos) << end.out;
  const std::string command = end.out.substr(begin, end.out.find('\n', begin) - begin);
  const auto last = *lines_of(folder / "metrics.jsonl").back().get_int("step");
  const auto resumed = Program({"/bin/sh", "-c",
                                fmt::format("PATH={}/bin:$PATH; {} --max-steps {}",
                                            PRIMERL_BINARY_DIR, command, last + 2)})
                           .wait();
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, Not(HasSubstr("to resume")));
  EXPECT_EQ(expect_steps_and_rollouts_once(folder), last + 2);
  const Json facts = json_file(folder / "run.json");
  const Json* resumes = facts.find("resumes");
  ASSERT_NE(resumes, nullptr);
  ASSERT_EQ(resumes->as_array().size(), 1u);
  const Json& entry = resumes->as_array()[0];
  EXPECT_EQ(*entry.get_int("incarnation"), 2);
  EXPECT_FALSE(entry.get_string("time")->empty());
  EXPECT_EQ(entry.find("changed")->dump(),
            fmt::format("[{{\"key\":\"tenant.main.max_steps\",\"before\":\"1000000000\","
                        "\"now\":\"{}\"}}]",
                        last + 2));
}

TEST(CtrlC, DrainsAlsoWhenNoProcessReadsTheOutput) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  Program run(endless_run(folder));
  ASSERT_TRUE(run.wait_until_said("reward"));
  run.stop_listening();  // Ctrl-C also ends the `tee` that reads the run's output
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130);
  EXPECT_EQ(end.signal, 0);
  EXPECT_EQ(run_end(folder), "interrupted");
  const auto last = std::to_string(*lines_of(folder / "metrics.jsonl").back().get_int("step"));
  EXPECT_TRUE(fs::exists(folder / "checkpoints" / ("step_" + last) / "manifest.json"));
}

TEST(CtrlC, TheThirdKillsAWorkerThatHearsNothing) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  Program run(endless_run(folder));
  ASSERT_TRUE(run.wait_until_said("reward"));
  ::kill(worker_of(run), SIGSTOP);
  ::kill(run.pid(), SIGINT);
  ASSERT_TRUE(run.wait_until_said("draining:"));
  ::kill(run.pid(), SIGINT);
  ASSERT_TRUE(run.wait_until_said("stopping now (Ctrl-C again kills)"));
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  EXPECT_THAT(end.err, HasSubstr("killed"));
  EXPECT_EQ(run_end(folder), "interrupted");
}

TEST(Crash, AKilledWorkerEndsTheRunWithItsLastWordsAndReadableFiles) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  Program run(endless_run(folder));
  wait_for_checkpoint(folder, 100);
  ::kill(worker_of(run), SIGKILL);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, HasSubstr("error: process 'main' was killed by signal 9"));
  EXPECT_THAT(end.out, HasSubstr("scripted: failed"));
  EXPECT_EQ(run_end(folder), "failed");
  EXPECT_FALSE(lines_of(folder / "metrics.jsonl").empty());
  EXPECT_FALSE(lines_of(folder / "rollouts.jsonl").empty());
}

TEST(Crash, ARunTakesItselfUpAgainAsOftenAsItMay) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  Program run(endless_run(folder, "1"));
  wait_for_checkpoint(folder, 100);
  ::kill(worker_of(run), SIGKILL);
  ASSERT_TRUE(run.wait_until_said("the run is live"));
  pid_t worker = -1;
  ASSERT_TRUE(waits_for("worker", run, [&] { return (worker = worker_of(run)) > 0; }));
  ::kill(worker, SIGKILL);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 1);
  EXPECT_EQ(run_end(folder), "failed");
  EXPECT_THAT(end.err, HasSubstr("the run resumes (1 of at most 1 time within 1m)"));
  EXPECT_THAT(end.err, HasSubstr("the run has resumed 1 time within 1m"));
  EXPECT_EQ(count_of(end.err, "the run is live"), 1u);
  expect_steps_and_rollouts_once(folder);
}

TEST(Crash, ARunCanContinueAfterIt) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  {
    Program run(endless_run(folder));
    wait_for_checkpoint(folder, 100);
    ::kill(worker_of(run), SIGKILL);
    ASSERT_EQ(run.wait().code, 1);
  }
  const auto steps = lines_of(folder / "metrics.jsonl");
  ASSERT_FALSE(steps.empty());
  const auto more = std::to_string(*steps.back().get_int("step") + 10);
  const auto end = run_graph_program({"run", "--resume", folder.string(), "--max-steps", more});
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(*lines_of(folder / "metrics.jsonl").back().get_int("step"), std::stoll(more));
}

TEST(Crash, AWorkerThatDoesNotStartIsNamed) {
  ScratchFolder scratch;
  const auto none = run_graph_program(scripted_run(scratch.path() / "a"),
                                      {"PRIMERL_WORKER=/nowhere/primerl-worker"});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("no program '/nowhere/primerl-worker'"));
  const auto wrong =
      run_graph_program(scripted_run(scratch.path() / "b"), {"PRIMERL_WORKER=/bin/false"});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("exited with code 1"));
}

/// A run whose files may have at most `limit` KiB each, which simulates a full disk.
ProgramEnd run_on_full_disk(const fs::path& folder, int limit, std::vector<std::string> more) {
  std::string command = fmt::format("ulimit -f {}; exec", limit);
  auto words = endless_run(folder);
  words.insert(words.end(), more.begin(), more.end());
  for (const auto& word : words) command += " '" + word + "'";
  const std::string program = std::string(PRIMERL_BINARY_DIR) + "/bin/primerl-graph";
  command.replace(command.find("'primerl-graph'"), std::string("'primerl-graph'").size(), program);
  const fs::path script = folder.parent_path() / "run.sh";
  write_text(script, command);
  return Program({"/bin/bash", script.string()}).wait();
}

TEST(FullDisk, IsSaidOnceAndStopsTheRunWithReadableFiles) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  // rollouts.jsonl reaches the limit first.
  const auto end = run_on_full_disk(folder, 64, {"--set", "trace.level=off"});
  EXPECT_EQ(end.code, 1) << end.err;
  EXPECT_EQ(count_of(end.err, "File too large"), 1U) << end.err;
  EXPECT_THAT(end.err, AllOf(HasSubstr("error: "), HasSubstr("rollouts.jsonl")));
  EXPECT_EQ(run_end(folder), "failed");
  EXPECT_FALSE(lines_of(folder / "rollouts.jsonl").empty());
  EXPECT_FALSE(lines_of(folder / "metrics.jsonl").empty());
}

TEST(FullDisk, LosesNothingOnceThereIsRoom) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  const auto full = run_on_full_disk(
      folder, 2100,
      {"--set", "trace.segment_bytes=2097152", "--set", "tenant.main.checkpoint_every=0"});
  ASSERT_EQ(full.code, 1) << full.err;
  EXPECT_EQ(count_of(full.err, "File too large"), 1U) << full.err;
  const int64_t taken = *lines_of(folder / "metrics.jsonl").back().get_int("step");
  const std::string more = std::to_string(taken + 10);
  const auto end = run_graph_program({"run", "--resume", folder.string(), "--max-steps", more});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(expect_steps_and_rollouts_once(folder), taken + 10);
}

TEST(StandardFiles, ClosedOnesDoNotBecomeFilesOfTheRun) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  std::string line = "exec " + std::string(PRIMERL_BINARY_DIR) + "/bin/primerl-graph";
  for (const auto& word : scripted_run(folder, {"--max-steps", "5", "--metrics-port", "off"}))
    line += " '" + word + "'";
  const auto end = Program({"/bin/sh", "-c", line + " <&- >&- 2>&-"}).wait();
  EXPECT_EQ(end.code, 0);
  EXPECT_EQ(lines_of(folder / "metrics.jsonl").size(), 5U) << "each of them a JSON object";
}

}  // namespace
}  // namespace primerl
