// The trace of a run: closed, interrupted by kill -9, resumed, bounded, refused by the disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "graph/base/random.h"
#include "runtime/query/maintenance.h"
#include "runtime/store/checkpoint.h"
#include "runtime/store/run_damage.h"
#include "tests/e2e/run_files.h"
#include "tests/e2e/trace_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

/// A run without a practical end. It keeps every checkpoint, so that a test can wait for one.
std::vector<std::string> endless_run(const fs::path& folder, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"--max-steps", "1000000000", "--set", "tenant.main.keep_last=0",
                             "--set", "graph.restarts_max=0"});
  auto words = scripted_run(folder, more);
  words.insert(words.begin(), "primerl-graph");
  return words;
}

using Group = std::pair<int64_t, int64_t>;  // ordinal, attempt

/// Groups that rollouts.jsonl lists as trained: Rollout learned it from a GroupEnded.
std::set<Group> groups_trained(const fs::path& folder) {
  std::set<Group> groups;
  for (const auto& rollout : lines_of(folder / "rollouts.jsonl"))
    if (*rollout.get_string("end") == "trained")
      groups.insert({*rollout.get_int("group"), *rollout.get_int("attempt")});
  return groups;
}

std::set<Group> groups_trained(const TraceContent& trace) {
  std::set<Group> groups;
  for (const auto& group : trace.groups_ended)
    if (group.end == RolloutEnd::kTrained)
      groups.insert({static_cast<int64_t>(group.ordinal), group.attempt});
  return groups;
}

TEST(Trace, OfAnEndedRunIsCompleteAndClosed) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  ASSERT_EQ(run_graph_program(scripted_run(folder)).code, 0);
  const TraceContent trace = read_trace(folder / "trace");
  EXPECT_EQ(trace.num_ends, 1U);
  EXPECT_EQ(trace.deliveries_at_end, trace.num_deliveries);
  EXPECT_EQ(trace.num_bad_bytes, 0U);
  EXPECT_EQ(trace.num_gaps, 0U);
  EXPECT_TRUE(trace.is_dense());
  EXPECT_EQ(trace.steps.size(), trace.catalog.groups.size()) << "every group did something";
  const Json facts = json_file(folder / "run.json");
  EXPECT_EQ(fmt::format("{:016x}", trace.catalog.run_id), *facts.get_string("run_id"));
  EXPECT_EQ(fmt::format("{:016x}", trace.catalog.graph_hash), *facts.get_string("graph_hash"));
  EXPECT_EQ(*facts.find("trace")->get_string("level"), "process");
  // One publication for each of 8 steps, and the loaded version.
  EXPECT_EQ(trace.stored.at("WeightsReady"), 8U + 1U);
  EXPECT_EQ(groups_trained(trace), groups_trained(folder));
  EXPECT_GE(trace.stored.at("Completion"), lines_of(folder / "rollouts.jsonl").size());
}

/// Files of a run folder that `trace verify` names as damaged.
std::set<std::string> files_named(const fs::path& folder) {
  std::set<std::string> files;
  const auto report = verify_trace(folder);
  if (!report.ok()) return {report.error().text()};
  for (const TraceFault& fault : report->faults)
    if (fault.is_fault()) files.insert(fault.file);
  for (const auto& damaged : find_damage(folder, report->graph_text))
    files.insert(damaged.file.string());
  return files;
}

std::string bytes_of_file(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Every file that a resumed run reads. Each is damaged in one bit at a random position, then
/// truncated, then repaired.
TEST(TraceVerify, NamesEveryFileOfARunThatAResumeReadsAndIsDamaged) {
  constexpr int kFlips = 8;  // of each kind of file
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  ASSERT_EQ(run_graph_program(scripted_run(folder, {"--max-steps", "12"})).code, 0);
  ASSERT_TRUE(Trace::open(folder).ok());  // builds the indices
  EXPECT_THAT(files_named(folder), testing::IsEmpty());
  std::map<std::string, std::vector<std::pair<fs::path, std::string>>> kinds;  // file, name in text
  const auto add = [&](const std::string& kind, const fs::path& file, const std::string& named) {
    kinds[kind].emplace_back(file, named);
  };
  add("run.json", folder / "run.json", "run.json");
  add("graph", folder / "graph.resolved.toml", "graph.resolved.toml");
  for (const auto& file : fs::directory_iterator(folder / "trace"))
    if (file.is_regular_file() && file.path().extension() != ".json" && file.file_size() > 0)
      add(file.path().extension(), file.path(), file.path().filename());
  for (const int64_t step : checkpoint_steps(folder / "checkpoints")) {
    const std::string named = fmt::format("checkpoints/step_{}", step);
    for (const auto& file : fs::recursive_directory_iterator(folder / named))
      if (file.is_regular_file()) add("checkpoint", file.path(), named);
  }
  ASSERT_TRUE(kinds.contains(".ptr") || kinds.contains(".ptrz"));
  for (const char* kind : {".cut", ".index", "checkpoint"})
    ASSERT_TRUE(kinds.contains(kind)) << kind;
  RandomStream random(17);
  for (const auto& [kind, files] : kinds) {
    for (int flip = 0; flip < kFlips; ++flip) {
      const auto& [file, named] = files[random.next() % files.size()];
      const std::string whole = bytes_of_file(file);
      // A raw segment has unused space after its end frame; changing that is no damage.
      const size_t size = kind == ".ptr" ? whole.find_last_not_of('\0') + 1 : whole.size();
      std::string damaged = whole;
      const size_t at = 1 + random.next() % (size - 1);
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << (random.next() % 8)));
      write_text(file, damaged);
      EXPECT_THAT(files_named(folder), testing::Contains(named)) << file << " at byte " << at;
      write_text(file, whole.substr(0, at));
      EXPECT_THAT(files_named(folder), testing::Not(testing::IsEmpty()))
          << file << " cut at " << at;
      write_text(file, whole);
    }
  }
}

TEST(Trace, SaysNothingWhereItIsOff) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  ASSERT_EQ(run_graph_program(scripted_run(folder, {"--set", "trace.level=off"})).code, 0);
  EXPECT_FALSE(fs::exists(folder / "trace"));
  EXPECT_TRUE(json_file(folder / "run.json").find("trace")->is_null());
}

/// Waits for the checkpoint of a run.
::testing::AssertionResult has_checkpoint(Program& run, const fs::path& folder,
                                          const std::string& step) {
  return waits_for("checkpoint " + step, run,
                   [&] { return fs::exists(folder / "checkpoints" / step); });
}

/// Kills the worker of an endless run after a checkpoint and `spins` further checks, and compares.
void kill_and_compare(int checkpoint, uint64_t spins) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  Program run(endless_run(folder));
  const fs::path seen = folder / "checkpoints" / fmt::format("step_{}", checkpoint);
  ASSERT_TRUE(waits_for(
      "checkpoint to kill after", run, [&] { return fs::exists(seen); }, kLookOften));
  for (uint64_t i = 0; i < spins; ++i) (void)fs::exists(seen);
  ::kill(worker_of(run), SIGKILL);
  ASSERT_EQ(run.wait().code, 1);
  const TraceContent trace = read_trace(folder / "trace");
  EXPECT_EQ(trace.num_ends, 0U);
  EXPECT_EQ(trace.num_bad_bytes, 0U);
  EXPECT_EQ(trace.num_gaps, 0U);
  EXPECT_TRUE(trace.is_dense());
  // A line of rollouts.jsonl follows a GroupEnded. A line of metrics.jsonl is written by the step
  // that publishes. So all but the newest of those steps had ended.
  const auto told = groups_trained(folder), recorded = groups_trained(trace);
  EXPECT_FALSE(told.empty());
  for (const auto& group : told) EXPECT_TRUE(recorded.contains(group)) << group.first;
  EXPECT_GE(trace.stored.at("WeightsReady"), lines_of(folder / "metrics.jsonl").size());
}

TEST(Trace, AfterKillHasEveryStepWithAVisibleResult) {
  // PRIMERL_KILLS=100 runs more kills.
  const char* more = std::getenv("PRIMERL_KILLS");
  const int num_kills = more == nullptr ? 3 : std::atoi(more);
  RandomStream random(20261121);
  for (int i = 0; i < num_kills; ++i) {
    const int checkpoint = 4 * static_cast<int>(1 + random.below(15));
    const uint64_t spins = random.below(20'000);
    SCOPED_TRACE(fmt::format("kill {}: after checkpoint {} and {} looks", i, checkpoint, spins));
    ASSERT_NO_FATAL_FAILURE(kill_and_compare(checkpoint, spins));
  }
}

TEST(Trace, OfAnEarlierStartIsKeptBesideThatOfTheResumedRun) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  ASSERT_EQ(run_graph_program(scripted_run(folder)).code, 0);
  const uint64_t before = read_trace(folder / "trace").num_deliveries;
  for (const auto* max_steps : {"10", "12"})
    ASSERT_EQ(
        run_graph_program({"run", "--resume", folder.string(), "--max-steps", max_steps}).code, 0);
  const TraceContent first = read_trace(folder / "trace.1"),
                     second = read_trace(folder / "trace.2"), third = read_trace(folder / "trace");
  EXPECT_EQ(first.num_deliveries, before);
  for (const auto* trace : {&first, &second, &third}) {
    EXPECT_EQ(trace->num_ends, 1U);
    EXPECT_TRUE(trace->is_dense());
    EXPECT_EQ(trace->catalog.run_id, first.catalog.run_id);
  }
  EXPECT_EQ(third.segments.front().incarnation, 3U);
  EXPECT_EQ(*json_file(folder / "run.json").get_int("incarnation"), 3);
  // Each has the graph of its own start, and where it began.
  EXPECT_THAT(first.catalog.graph_text, HasSubstr("max_steps = 8\n"));
  EXPECT_THAT(second.catalog.graph_text, HasSubstr("max_steps = 10\n"));
  EXPECT_TRUE(first.catalog.resumed_from.empty());
  ASSERT_EQ(third.catalog.resumed_from.size(), 1U);
  EXPECT_THAT(third.catalog.resumed_from[0], HasSubstr("checkpoints/step_10"));
}

TEST(Trace, OfARingIsWrittenWhenTheRunFails) {
  ScratchFolder scratch;
  const fs::path good = scratch.path() / "good", bad = scratch.path() / "bad";
  ASSERT_EQ(run_graph_program(scripted_run(good, {"--set", "trace.level=ring"})).code, 0);
  EXPECT_FALSE(fs::exists(good / "trace"));
  const auto end = run_graph_program(
      scripted_run(bad, {"--set", "trace.level=ring", "--set", "resource.engine.refuse_every=1",
                         "--set", "node.trainer.lost_batches_max=1", "--no-rehearsal"}));
  ASSERT_EQ(end.code, 1) << end.err;
  const TraceContent trace = read_trace(bad / "trace");
  EXPECT_EQ(trace.num_bad_bytes, 0U);
  EXPECT_GT(trace.num_deliveries, 0U);
  EXPECT_FALSE(trace.groups_ended.empty()) << "the last steps are the ones that matter";
}

TEST(Trace, OfARingIsWrittenWhenASignalKillsTheWorker) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  Program run(endless_run(folder, {"--set", "trace.level=ring"}));
  ASSERT_TRUE(has_checkpoint(run, folder, "step_4"));
  ::kill(worker_of(run), SIGSEGV);
  const auto end = run.wait();
  ASSERT_EQ(end.code, 1);
  EXPECT_THAT(end.err, HasSubstr("signal 11")) << "it still dies of it";
  const TraceContent trace = read_trace(folder / "trace");
  EXPECT_EQ(trace.num_bad_bytes, 0U);
  EXPECT_GE(trace.stored.at("WeightsReady"), 4U);
  EXPECT_THAT(run_graph_program({"trace", "stat", folder.string()}).out,
              testing::Not(HasSubstr("a snapshot")));
}

ProgramEnd dump(const fs::path& run, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"trace", "dump", run.string()});
  return run_graph_program(more);
}

TEST(TraceDump, HasTheRecordOfALiveRun) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  Program run(endless_run(folder, {"--set", "trace.level=ring"}));
  uint64_t last = 0;
  for (const char* seen : {"step_4", "step_8"}) {
    ASSERT_TRUE(has_checkpoint(run, folder, seen));
    const auto dumped = dump(folder, {"--json"});
    ASSERT_EQ(dumped.code, 0) << dumped.err;
    const Json said = parse_json(dumped.out, "output").value();
    EXPECT_EQ(*said.get_string("folder"), (folder / "trace").string());
    const TraceContent trace = read_trace(folder / "trace");
    EXPECT_EQ(trace.num_bad_bytes, 0U);
    EXPECT_EQ(*said.get_int("steps"), static_cast<int64_t>(trace.num_deliveries));
    EXPECT_GT(trace.num_deliveries, last) << "an older dump";
    last = trace.num_deliveries;
  }
  const auto text = dump(folder);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("process 'main': "), HasSubstr("  trainer: steps "),
                              HasSubstr((folder / "trace").string() + "; the run continues")));
  EXPECT_THAT(run_graph_program({"trace", "stat", folder.string()}).out, HasSubstr("a snapshot"));
  // The run continued and ends as usual, and a resume does not use the snapshot.
  ASSERT_TRUE(has_checkpoint(run, folder, "step_12"));
  ::kill(worker_of(run), SIGKILL);
  ASSERT_EQ(run.wait().code, 1);
  EXPECT_EQ(dump(folder).code, 1);
  const int64_t newest = *lines_of(folder / "metrics.jsonl").back().get_int("step");
  const auto resumed = run_graph_program(
      {"run", "--resume", folder.string(), "--max-steps", std::to_string(newest + 2)});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("its record is a snapshot")) << resumed.out;
}

TEST(TraceDump, SaysWhyThereIsNone) {
  ScratchFolder scratch;
  const fs::path plain = scratch.path() / "plain", ring = scratch.path() / "ring",
                 off = scratch.path() / "off";
  ASSERT_EQ(run_graph_program(scripted_run(plain)).code, 0);
  ASSERT_EQ(run_graph_program(scripted_run(ring, {"--set", "trace.level=ring"})).code, 0);
  ASSERT_EQ(run_graph_program(scripted_run(off, {"--set", "trace.level=off"})).code, 0);
  EXPECT_FALSE(fs::exists(ring / "trace")) << "no dump was requested";
  const auto expect = [](const ProgramEnd& end, int code, const char* why) {
    EXPECT_EQ(end.code, code) << end.err;
    EXPECT_THAT(end.err, HasSubstr(why));
    EXPECT_EQ(end.out, "");
  };
  expect(dump(ring), 1, "has ended (finished)");
  expect(dump(plain), 2, "is no flight recorder: trace.level = \"process\"");
  expect(dump(off), 2, "records nothing");
  expect(dump(scratch.path()), 2, "is no run folder");
  expect(dump(ring, {"--wait", "0"}), 3, "--wait");
}

TEST(Trace, StaysBelowItsBoundOnceThereAreCheckpoints) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  constexpr uint64_t kSegment = 2097152, kBound = 4194304;
  ASSERT_EQ(
      run_graph_program(
          scripted_run(folder, {"--max-steps", "400", "--set", "trace.segment_bytes=2097152",
                                "--set", "trace.bytes_max=4194304", "--set", "trace.pack=false"}))
          .code,
      0);
  const TraceContent trace = read_trace(folder / "trace");
  EXPECT_GT(trace.segments.front().number, 1U) << "nothing was removed";
  EXPECT_EQ(trace.num_ends, 1U);
  uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder / "trace"))
    if (entry.is_regular_file()) bytes += entry.file_size();
  EXPECT_LE(bytes, kBound + 3 * kSegment) << "the bound, and the segments being written and sealed";
}

TEST(Trace, WithoutSpaceAtTheStartIsReportedOnceAndNothingRuns) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  // A limit of the file size simulates a full disk: no segment fits.
  std::string command = "ulimit -f 64; exec";
  for (const auto& word : endless_run(folder)) command += " '" + word + "'";
  const std::string program = std::string(PRIMERL_BINARY_DIR) + "/bin/primerl-graph";
  command.replace(command.find("'primerl-graph'"), std::string("'primerl-graph'").size(), program);
  write_text(scratch.path() / "run.sh", command);
  const auto end = Program({"/bin/bash", (scratch.path() / "run.sh").string()}).wait();
  EXPECT_EQ(end.code, 1) << end.err;
  EXPECT_THAT(end.err, AllOf(HasSubstr("opening the trace"), HasSubstr("File too large"),
                             HasSubstr("trace.level=off")));
  EXPECT_EQ(end.err.find("File too large"), end.err.rfind("File too large")) << end.err;
  EXPECT_FALSE(fs::exists(folder)) << "no step was taken";
}

TEST(Trace, WithoutMoreSpaceEndsTheRunAndIsReportedOnce) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  Program run(
      endless_run(folder, {"--set", "trace.segment_bytes=2097152", "--set", "trace.pack=false"}));
  ASSERT_TRUE(has_checkpoint(run, folder, "step_4"));
  fs::rename(folder / "trace", scratch.path() / "gone");
  const auto end = run.wait();
  EXPECT_EQ(end.code, 1) << end.err;
  EXPECT_THAT(end.err, HasSubstr("recording the run"));
  EXPECT_EQ(end.err.find("recording the run"), end.err.rfind("recording the run")) << end.err;
  EXPECT_EQ(run_end(folder), "failed");
  const TraceContent trace = read_trace(scratch.path() / "gone");
  EXPECT_EQ(trace.num_bad_bytes, 0U);
  EXPECT_TRUE(trace.is_dense());
}

}  // namespace
}  // namespace primerl
