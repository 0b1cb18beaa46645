// `run --resume` of a run that was killed: it continues from its record, where it stopped.
#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <set>

#include "runtime/trace/cut_file.h"
#include "tests/cli/program.h"
#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

/// More steps than a test waits for.
std::vector<std::string> endless(const fs::path& folder, const std::string& checkpoint_every) {
  return scripted_run(folder, {"--max-steps", "1000000", "--set", "graph.restarts_max=0", "--set",
                               "tenant.main.checkpoint_every=" + checkpoint_every});
}

/// Runs until the trainer has made `num_steps` steps and its state was saved `num_cuts` times, then
/// kills the worker.
void run_and_kill(const fs::path& folder, size_t num_steps,
                  const std::string& checkpoint_every = "20", size_t num_cuts = 1) {
  std::vector<std::string> words = endless(folder, checkpoint_every);
  words.insert(words.begin(), "primerl-graph");
  Program run(words);
  ASSERT_TRUE(has_lines(run, folder, num_steps));
  if (checkpoint_every == "0") num_cuts = 0;
  ASSERT_TRUE(wait_until([&] { return list_cuts(folder / "trace").size() >= num_cuts; }));
  ::kill(worker_of(run), SIGKILL);
  ASSERT_EQ(run.wait().code, 1);
}

using FileLength = std::pair<std::string, uint64_t>;

std::string steps_and_ten(const fs::path& folder) {
  return std::to_string(*lines_of(folder / "metrics.jsonl").back().get_int("step") + 10);
}

ProgramEnd resume(const fs::path& folder, const std::string& max_steps,
                  std::vector<std::string> more = {}) {
  std::vector<std::string> words{"run", "--resume", folder.string(), "--max-steps", max_steps};
  words.insert(words.end(), more.begin(), more.end());
  return run_graph_program(words);
}

void expect_whole(const fs::path& folder, const std::string& last_step) {
  EXPECT_EQ(std::to_string(expect_steps_and_rollouts_once(folder)), last_step);
}

TEST(ARecoveredRun, IsNotAskedForFewerStepsThanItsRecordHas) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  run_and_kill(folder, 50);
  const int64_t recorded = *lines_of(folder / "metrics.jsonl").back().get_int("step");
  for (const int64_t asked : {int64_t{10}, recorded}) {
    const auto end = resume(folder, std::to_string(asked));
    EXPECT_EQ(end.code, 2) << end.err;
    EXPECT_THAT(end.err, HasSubstr(fmt::format("tenant 'main' has recorded {} steps, max_steps "
                                               "asks for {}",
                                               recorded, asked)));
    EXPECT_THAT(end.err, HasSubstr(fmt::format("--max-steps {} or more", recorded + 1)));
    EXPECT_THAT(end.err, Not(HasSubstr("another content")));
  }
  const auto end = resume(folder, std::to_string(recorded + 1));
  ASSERT_EQ(end.code, 0) << end.err;
  expect_whole(folder, std::to_string(recorded + 1));
}

TEST(ARecoveredRun, ContinuesWhereTheKilledOneStopped) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  run_and_kill(folder, 50);
  const std::string more = steps_and_ten(folder);
  const auto end = resume(folder, more);
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("the learner resumes after step"));
  EXPECT_THAT(end.err, HasSubstr("messages as recorded; the run is live"));
  expect_whole(folder, more);
  const Json facts = json_file(folder / "run.json");
  ASSERT_NE(facts.find("recovered"), nullptr);
  EXPECT_EQ(*facts.find("recovered")->get_string("record"), "trace.1");
  expect_replays(folder);
}

/// The step that got the error runs again and asks again; the recorded error is not reused. Without
/// any saved state, and with some.
TEST(ARecoveredRun, AsksAgainForACheckpointThatAFullDiskRefused) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  const fs::path fault = scratch.path() / "fault";
  const auto expect_full_disk = [](const ProgramEnd& end) {
    EXPECT_EQ(end.code, 1) << end.err;
    EXPECT_THAT(end.err, HasSubstr("No space left on device"));
  };
  const auto expect_resumed = [&folder](const ProgramEnd& end, const std::string& last_step) {
    ASSERT_EQ(end.code, 0) << end.err;
    EXPECT_THAT(end.err, HasSubstr("'trainer' had given up, which ended the run"));
    expect_whole(folder, last_step);
    expect_replays(folder);
  };
  write_text(fault, "no space");
  expect_full_disk(run_graph_program(
      scripted_run(folder, {"--max-steps", "60", "--set", "tenant.main.checkpoint_every=20",
                            "--set", "resource.learner.device_fault_file=" + fault.string()})));
  expect_resumed(resume(folder, "60"), "60");
  write_text(fault, "no space");
  expect_full_disk(resume(folder, "100"));
  expect_resumed(resume(folder, "100"), "100");
  const auto verify = run_graph_program({"trace", "verify", folder.string()});
  EXPECT_EQ(verify.code, 0) << verify.out;
}

/// The first checkpoint and its saved state are complete, the second is being written. Strictly on
/// policy, so that both runs train on the same data.
TEST(ARecoveredRun, KilledWhileACheckpointIsWrittenContinuesFromTheOlderOne) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run", other = scratch.path() / "uninterrupted";
  const auto options = [](const std::string& save_time) {
    return std::vector<std::string>{
        "--max-steps", "45",
        "--set",       "graph.restarts_max=0",
        "--set",       "tenant.main.checkpoint_every=20",
        "--set",       "tenant.main.max_off_policy_steps=0",
        "--set",       "resource.learner.save_time=\"" + save_time + "\""};
  };
  const auto state = [](const fs::path& run) {
    return *read_text_file(run / "checkpoints" / "step_45" / "learner" / "state.json");
  };
  ASSERT_EQ(run_graph_program(scripted_run(other, options("0s"))).code, 0);
  {
    std::vector<std::string> words = scripted_run(folder, options("1s"));
    words.insert(words.begin(), "primerl-graph");
    Program run(words);
    const fs::path open = folder / "checkpoints" / ".step_40.tmp";
    ASSERT_TRUE(waits_for("open checkpoint of step 40", run, [&] {
      return fs::exists(open) && !list_cuts(folder / "trace").empty();
    }));
    ::kill(worker_of(run), SIGKILL);
    ASSERT_EQ(run.wait().code, 1);
  }
  ASSERT_TRUE(fs::exists(folder / "checkpoints" / "step_20"));
  ASSERT_FALSE(fs::exists(folder / "checkpoints" / "step_40"));
  ASSERT_EQ(list_cuts(folder / "trace").size(), 1U);
  const auto head = read_cut_head(list_cuts(folder / "trace").front());
  EXPECT_EQ(head->learner_steps.front().second, 20);
  const auto end = resume(folder, "45");
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("the learner resumes after step 20"));
  expect_whole(folder, "45");
  EXPECT_EQ(state(folder), state(other));
  expect_replays(folder);
}

/// The drain waits for the checkpoint that is being written, and for that of the last step.
TEST(ARecoveredRun, ThatWasInterruptedWhileItSavedHasTheCheckpointOfItsLastStep) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  const fs::path checkpoints = folder / "checkpoints";
  std::vector<std::string> words = endless(folder, "20");
  words.insert(words.begin(), "primerl-graph");
  words.insert(words.end(), {"--set", "resource.learner.save_time=\"500ms\""});
  Program run(words);
  ASSERT_TRUE(has_lines(run, folder, 30));
  ASSERT_TRUE(wait_until([&] { return fs::exists(checkpoints / ".step_20.tmp"); }, kLookOften));
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  ASSERT_EQ(end.code, 130) << end.err;
  const int64_t last = *lines_of(folder / "metrics.jsonl").back().get_int("step");
  EXPECT_TRUE(fs::exists(checkpoints / "step_20" / "manifest.json"));
  EXPECT_TRUE(fs::exists(checkpoints / fmt::format("step_{}", last) / "manifest.json"));
  const auto resumed = resume(folder, std::to_string(last + 2));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(*steps_of(folder).back().get_int("step"), last + 2);
}

/// A run that failed before its last step has steps left, whatever `max_steps` is now.
TEST(ARecoveredRun, ThatFailedIsFollowedWithAnotherNumberOfSteps) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  const fs::path fault = scratch.path() / "fault";
  write_text(fault, "no space");
  const auto failed = run_graph_program(
      scripted_run(folder, {"--max-steps", "60", "--set", "tenant.main.checkpoint_every=20",
                            "--set", "resource.learner.device_fault_file=" + fault.string()}));
  ASSERT_EQ(failed.code, 1) << failed.err;
  const auto end = resume(folder, "50");
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("the run is live"));
  expect_whole(folder, "50");
  expect_replays(folder);
}

uint64_t steps_followed(const std::string& err) {
  const size_t at = err.find("recovered: ");
  return at == std::string::npos ? 0 : std::strtoull(err.c_str() + at + 11, nullptr, 10);
}

TEST(ARecoveredRun, FollowsOnlyWhatCameAfterItsSavedState) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  run_and_kill(folder, 50, "20", 2);  // the second saved state is of step 40 or later
  // The same run, as if no state had been saved.
  const fs::path without = scratch.path() / "without";
  fs::copy(folder, without, fs::copy_options::recursive);
  for (const auto& cut : list_cuts(without / "trace")) fs::remove(cut);
  const std::string more = steps_and_ten(folder);
  const auto whole = resume(without, more);
  ASSERT_EQ(whole.code, 0) << whole.err;
  const auto end = resume(folder, more);
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_GT(steps_followed(end.err), 0U);
  EXPECT_LT(steps_followed(end.err), steps_followed(whole.err) / 2);
  for (const auto& each : {folder, without}) {
    expect_whole(each, more);
    expect_replays(each);
  }
  const auto newest = run_graph_program({"replay", (folder / "trace").string()});
  EXPECT_EQ(newest.code, 2) << newest.err;
  EXPECT_THAT(newest.err, HasSubstr("--depth control"));
  expect_replays(folder / "trace");
}

TEST(ARecoveredRun, IsOneRecordHoweverOftenItWasKilled) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  run_and_kill(folder, 50);
  for (int i = 0; i < 2; ++i) {
    const size_t before = num_lines(folder / "metrics.jsonl");
    Program again({"primerl-graph", "run", "--resume", folder.string()});
    ASSERT_TRUE(has_lines(again, folder, before + 50));
    ::kill(worker_of(again), SIGKILL);
    ASSERT_EQ(again.wait().code, 1);
  }
  const std::string more = steps_and_ten(folder);
  const auto end = resume(folder, more);
  ASSERT_EQ(end.code, 0) << end.err;
  expect_whole(folder, more);
  for (const char* older : {"trace.1", "trace.2", "trace.3"})
    EXPECT_TRUE(fs::exists(folder / older));
  const auto stat = run_graph_program({"trace", "stat", folder.string(), "--json"});
  const auto facts = parse_json(stat.out, "stat");
  ASSERT_TRUE(facts.ok()) << stat.err;
  EXPECT_EQ(*facts->get_int("num_starts"), 4);
  EXPECT_TRUE(*facts->get_bool("complete")) << stat.out;
  EXPECT_TRUE(*facts->get_bool("replays_from_start")) << stat.out;
  const auto verify = run_graph_program({"trace", "verify", folder.string()});
  EXPECT_EQ(verify.code, 0) << verify.out;
  EXPECT_THAT(verify.out, HasSubstr("sound: 4 starts"));
  EXPECT_THAT(verify.out, HasSubstr("the run went on from its saved state"));
  // Engines and learner of all four starts, read as one, compute the same again.
  for (const char* depth : {"learner", "full"}) {
    const auto replay = run_graph_program({"replay", folder.string(), "--depth", depth});
    EXPECT_EQ(replay.code, 0) << replay.out << replay.err;
    EXPECT_THAT(replay.out, HasSubstr("identical"));
  }
  // From the saved states of every start.
  const size_t last = num_lines(folder / "metrics.jsonl");
  for (const std::string& from :
       {std::to_string(last * 2 / 3), std::to_string(last), fmt::format("trainer:{}", last)}) {
    const auto part =
        run_graph_program({"replay", folder.string(), "--depth", "control", "--from", from});
    EXPECT_EQ(part.code, 0) << part.out << part.err;
    EXPECT_THAT(part.out, HasSubstr("with what was saved there"));
    EXPECT_THAT(part.out, HasSubstr("identical"));
  }
  const auto why = run_graph_program({"trace", "why", folder.string(), "trainer:10"});
  EXPECT_EQ(why.code, 0) << why.err;
}

// A start that dies at once leaves a folder without a record.
TEST(ARecoveredRun, IsTakenUpFromTheRecordBeforeAStartThatDiedAtOnce) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  run_and_kill(folder, 50);
  fs::rename(folder / "trace", folder / "trace.1");
  fs::create_directory(folder / "trace");
  std::ofstream(folder / "trace" / "main.2.1.ptr.new") << "x";
  std::string text = *read_text_file(folder / "run.json");
  const size_t at = text.find("\"incarnation\": 1");
  ASSERT_NE(at, std::string::npos) << text;
  text.replace(at, 16, "\"incarnation\": 2");
  std::ofstream(folder / "run.json") << text;
  const auto stat = run_graph_program({"trace", "stat", folder.string()});
  EXPECT_EQ(stat.code, 0) << stat.err;
  const std::string more = steps_and_ten(folder);
  const auto end = resume(folder, more);
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("messages as recorded; the run is live"));
  expect_whole(folder, more);
  expect_replays(folder);
}

TEST(ARecoveredRun, KeepsOnlyTheNewestOfOlderRecordsBeyondTheLimit) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  run_and_kill(folder, 50);
  {
    Program again({"primerl-graph", "run", "--resume", folder.string()});
    ASSERT_TRUE(again.wait_until_said("the run is live"));
    ::kill(worker_of(again), SIGKILL);
    ASSERT_EQ(again.wait().code, 1);
  }
  ASSERT_TRUE(fs::exists(folder / "trace.1"));
  std::ofstream(folder / "trace.1" / "more") << std::string(4194304, 'x');
  const auto end =
      resume(folder, steps_and_ten(folder),
             {"--set", "trace.bytes_max=4194304", "--set", "trace.segment_bytes=2097152"});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("'trace.1' is removed: the record of earlier starts is larger"));
  EXPECT_FALSE(fs::exists(folder / "trace.1"));
  EXPECT_TRUE(fs::exists(folder / "trace.2"));
  expect_replays(folder);
}

TEST(ARecoveredRun, NamesASavedStateThatIsDamagedAndTakesTheOlderOne) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  run_and_kill(folder, 70, "20", 2);
  const auto cuts = list_cuts(folder / "trace");
  ASSERT_GE(cuts.size(), 2U);
  const auto flip = [](const fs::path& file) {
    std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
    stream.seekg(200);
    const int byte = stream.get();
    stream.seekp(200);
    stream.put(static_cast<char>(byte ^ 1));
  };
  flip(cuts.front());
  const fs::path both = scratch.path() / "both";
  fs::copy(folder, both, fs::copy_options::recursive);
  for (size_t i = 1; i < cuts.size(); ++i) flip(both / "trace" / cuts[i].filename());
  const std::string more = steps_and_ten(folder);
  const auto end = resume(folder, more);
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr(fmt::format("the saved state '{}' is not used",
                                             cuts.front().filename().string())));
  EXPECT_THAT(end.err, HasSubstr("its checksum does not fit"));
  expect_whole(folder, more);
  EXPECT_TRUE(fs::exists(folder / "trace" / "main.2.0.cut"));
  const auto from_first = resume(both, more);
  ASSERT_EQ(from_first.code, 0) << from_first.err;
  EXPECT_GT(steps_followed(from_first.err), steps_followed(end.err));
  EXPECT_FALSE(fs::exists(both / "trace" / "main.2.0.cut"));
  expect_whole(both, more);
}

TEST(ARecoveredRun, NeedsNoCheckpoint) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  run_and_kill(folder, 10, "0");
  const std::string more = steps_and_ten(folder);
  const auto end = resume(folder, more);
  ASSERT_EQ(end.code, 0) << end.err;
  expect_whole(folder, more);
}

TEST(ARecoveredRun, CanBeKilledAndTakenUpAgain) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  run_and_kill(folder, 50);
  {
    Program again({"primerl-graph", "run", "--resume", folder.string()});
    pid_t worker = -1;
    ASSERT_TRUE(wait_until([&] { return (worker = worker_of(again)) > 0; }, kLookOften));
    ::kill(worker, SIGKILL);  // while it starts or follows the record
    ASSERT_NE(again.wait().code, 0);
  }
  {
    Program again({"primerl-graph", "run", "--resume", folder.string()});
    ASSERT_TRUE(again.wait_until_said("the run is live"));
    ::kill(worker_of(again), SIGKILL);
    ASSERT_EQ(again.wait().code, 1);
  }
  const std::string more = steps_and_ten(folder);
  const auto end = resume(folder, more);
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, Not(HasSubstr("from the checkpoint only")));
  expect_whole(folder, more);
}

TEST(ARecoveredRun, WithoutAnyStepStartsWithTheFirstStep) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  {
    std::vector<std::string> words = endless(folder, "20");
    words.insert(words.begin(), "primerl-graph");
    Program run(words);
    ASSERT_TRUE(wait_until([&] { return fs::exists(folder / "run.json"); }, kLookOften));
    ::kill(run.pid(), SIGKILL);
    run.wait();
  }
  const auto end = resume(folder, "5");
  EXPECT_EQ(end.code, 0) << end.err;
  expect_whole(folder, "5");
  expect_replays(folder);
}

TEST(ARecoveredRun, FallsBackToTheCheckpointWhenItsFilesAreOtherwiseThanRecorded) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  run_and_kill(folder, 50);
  {
    // The first line after the newest saved state: for lines before it only the length is checked.
    const auto cut = read_cut_head(list_cuts(folder / "trace").front());
    ASSERT_TRUE(cut.ok()) << cut.error().text();
    const auto saved = std::ranges::find(cut->line_files, "rollouts.jsonl", &FileLength::first);
    ASSERT_NE(saved, cut->line_files.end());
    ASSERT_GT(fs::file_size(folder / "rollouts.jsonl"), saved->second + 2);
    std::fstream rollouts(folder / "rollouts.jsonl", std::ios::in | std::ios::out);
    rollouts.seekp(static_cast<std::streamoff>(saved->second) + 2);
    rollouts << "X";
  }
  const auto end = resume(folder, steps_and_ten(folder));
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("is otherwise than recorded"));
  EXPECT_THAT(end.err, HasSubstr("warning: resuming from the checkpoint only"));
  EXPECT_THAT(end.err, HasSubstr("resuming after step"));
}

TEST(ARecoveredRun, LeavesTheRecordAloneWhenToldTo) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  run_and_kill(folder, 50);
  const auto end = resume(folder, steps_and_ten(folder), {"--from-checkpoint"});
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("resuming after step"));
  EXPECT_THAT(end.err, Not(HasSubstr("the run is live")));
  expect_steps_once(folder);  // those after the checkpoint are made a second time
  expect_replays(folder);
}

/// Segments of the record in order: the first is full or being written, the next one is only
/// prepared.
std::vector<fs::path> segments_of(const fs::path& folder) {
  std::set<fs::path> segments;
  for (const auto& entry : fs::directory_iterator(folder / "trace"))
    if (entry.path().extension() == ".ptr") segments.insert(entry.path());
  return {segments.begin(), segments.end()};
}

/// Damages more than one frame, because the first one may not be needed.
void damage(const fs::path& segment) {
  std::fstream stream(segment, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(200'000);
  stream << std::string(4096, 'x');
}

TEST(ARecoveredRun, FollowsADamagedRecordUpToTheDamage) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  run_and_kill(folder, 70);
  for (const auto& cut : list_cuts(folder / "trace")) fs::remove(cut);
  damage(segments_of(folder).front());
  const std::string more = steps_and_ten(folder);
  const auto end = resume(folder, more);
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, ContainsRegex("note: [0-9]+ recorded steps of [0-9]+ actor groups are not "
                                     "followed: .*step [0-9]+ of '[a-z.+]+' is missing"));
  EXPECT_THAT(end.err,
              ContainsRegex("checkpoint of step [0-9]+ is newer than the remaining record"));
  EXPECT_THAT(end.err, HasSubstr("the run is live"));
  expect_whole(folder, more);
}

TEST(ARecoveredRun, DoesNotNeedWhatIsDamagedBeforeItsSavedState) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  run_and_kill(folder, 70);
  damage(segments_of(folder).front());
  const std::string more = steps_and_ten(folder);
  const auto end = resume(folder, more);
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, Not(HasSubstr("are not followed")));
  EXPECT_THAT(end.err, HasSubstr("the run is live"));
  expect_whole(folder, more);
}

TEST(ARecoveredRun, SaysWhyARecordCannotBeTakenUp) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  run_and_kill(folder, 50);
  for (const auto& cut : list_cuts(folder / "trace")) fs::remove(cut);
  fs::remove(segments_of(folder).front());
  const auto end = resume(folder, steps_and_ten(folder));
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("from the checkpoint only: no step is left in its record"));
}

}  // namespace
}  // namespace primerl
