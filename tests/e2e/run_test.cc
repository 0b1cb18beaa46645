// Runs of the scripted graph that end well: their output, their files, and how they are resumed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <set>

#include "runtime/store/run_folder.h"
#include "tests/e2e/run_files.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

TEST(Run, EndsWithEveryStepWrittenAndACheckpoint) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  const auto end = run_graph_program(scripted_run(folder));
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, AllOf(HasSubstr("scripted: finished after"), HasSubstr("step 8 of 8"),
                             HasSubstr("metrics.jsonl")));
  EXPECT_THAT(end.err, HasSubstr("run folder " + folder.string()));

  const auto steps = lines_of(folder / "metrics.jsonl");
  ASSERT_EQ(steps.size(), 8U);
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(*steps[i].get_int("step"), static_cast<int64_t>(i) + 1);
    EXPECT_EQ(*steps[i].get_string("tenant"), "main");
    EXPECT_LE(*steps[i].get_double("off_policy/max"), 2);
  }
  EXPECT_EQ(run_end(folder), "finished");
  EXPECT_TRUE(fs::exists(folder / "checkpoints" / "step_4" / "manifest.json"));
  EXPECT_TRUE(fs::exists(folder / "checkpoints" / "step_8" / "manifest.json"));
  EXPECT_TRUE(fs::exists(folder / "graph.resolved.toml"));
  EXPECT_FALSE(fs::is_empty(folder / "tb"));
}

TEST(Run, EveryRolloutEndsOnceAndTrainedOnesFillTheBatches) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  ASSERT_EQ(run_graph_program(scripted_run(folder)).code, 0);
  std::set<std::string> names;
  std::map<int64_t, int> trained_in_step;
  for (const auto& rollout : lines_of(folder / "rollouts.jsonl")) {
    EXPECT_TRUE(names.insert(*rollout.get_string("rollout")).second);
    if (*rollout.get_string("end") == "trained") {
      ++trained_in_step[*rollout.get_int("step")];
      EXPECT_LE(*rollout.get_int("staleness"), 2);
    }
  }
  EXPECT_EQ(trained_in_step.size(), 8U);
  for (const auto& [step, count] : trained_in_step) EXPECT_EQ(count, 16) << step;
}

TEST(Run, TheResolvedGraphIsTheSameGraph) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  ASSERT_EQ(run_graph_program(scripted_run(folder)).code, 0);
  const auto check =
      run_graph_program({"check", (folder / "graph.resolved.toml").string(), "--json"});
  ASSERT_EQ(check.code, 0) << check.out;
  const auto document = parse_json(check.out, "check");
  EXPECT_EQ(*document->get_string("graph_hash"),
            *json_file(folder / "run.json").get_string("graph_hash"));
}

TEST(Run, TellsWhenTheFirstTokenWasMade) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  const auto begin = std::chrono::steady_clock::now();
  const auto end = run_graph_program(scripted_run(folder));
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
  ASSERT_EQ(end.code, 0) << end.err;
  const double seconds = *json_file(folder / "run.json").get_double("first_token_seconds");
  EXPECT_GT(seconds, 0);
  EXPECT_LT(seconds, all.count() + 0.02) << "a start is known to a clock tick of 10 ms";
}

TEST(Run, JsonSummaryNamesFolderAndSteps) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  const auto end = run_graph_program(scripted_run(folder, {"--json", "--max-steps", "3"}));
  ASSERT_EQ(end.code, 0) << end.err;
  const auto summary = parse_json(end.out, "summary");
  ASSERT_TRUE(summary.ok()) << end.out;
  EXPECT_EQ(*summary->get_string("schema"), "primerl.run_summary/1");
  EXPECT_EQ(*summary->get_string("folder"), folder.string());
  EXPECT_EQ(*summary->find("tenants")->as_array()[0].get_int("step"), 3);
}

TEST(Run, SummaryOfOneStepAveragesNothingAndQuotesThePath) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "my run";
  const auto end = run_graph_program(scripted_run(folder, {"--max-steps", "1"}));
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, AllOf(HasSubstr("step 1 of 1, reward "), Not(HasSubstr("means of"))));
  EXPECT_THAT(end.out, HasSubstr("/ (metrics.jsonl, rollouts.jsonl, logs/, tb/)\n"));
  EXPECT_THAT(end.out, HasSubstr("my run/tb'\n"));
}

TEST(Run, TheDefaultFolderIsUnderRunsAndLatestPointsToIt) {
  ScratchFolder scratch;
  const auto end = Program({"primerl-graph", "run", source_path("tests/cli/graphs/scripted.toml"),
                            "--max-steps", "1"},
                           {}, scratch.path())
                       .wait();
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(run_end(scratch.path() / "runs" / "latest"), "finished");
}

TEST(Run, ATrainerThatGivesUpFailsTheRun) {
  for (const std::string on_error : {"auto", "drop"}) {
    ScratchFolder scratch;
    const fs::path folder = scratch.path() / "run";
    const auto end = run_graph_program(scripted_run(
        folder,
        {"--set", "resource.engine.refuse_every=1", "--set", "node.trainer.lost_batches_max=1",
         "--set", "node.trainer.on_error=" + on_error, "--no-rehearsal"}));
    EXPECT_EQ(end.code, 1) << on_error;
    EXPECT_THAT(end.err, HasSubstr("groups in a row ended without being trained on"));
    EXPECT_EQ(run_end(folder), "failed") << on_error;
  }
}

TEST(Sft, TakesItsStepsAndShowsTheLoss) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  const auto end = run_graph_program(
      {"sft", source_path("tests/cli/graphs/supervised.toml"), "--out", folder.string()});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, AllOf(HasSubstr("step 5 of 5, loss "), Not(HasSubstr("staleness"))));
  EXPECT_THAT(end.out, HasSubstr("/ (metrics.jsonl, logs/, tb/)\n"));
  EXPECT_EQ(lines_of(folder / "metrics.jsonl").size(), 5U);
  EXPECT_TRUE(fs::exists(folder / "checkpoints" / "step_5" / "manifest.json"));
  EXPECT_EQ(json_file(folder / "run.json").find("first_token_seconds"), nullptr);
}

TEST(Sft, RefusesAGraphWithAnotherLoss) {
  ScratchFolder scratch;
  auto words = scripted_run(scratch.path() / "run");
  words[0] = "sft";
  const auto end = run_graph_program(words);
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, AllOf(HasSubstr("learner 'learner' minimises 'dppo'"),
                             HasSubstr("kind = \"cross_entropy\"")));
  EXPECT_FALSE(fs::exists(scratch.path() / "run"));
}

TEST(Resume, ContinuesInTheSameFolderFromTheNewestCompleteCheckpoint) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  ASSERT_EQ(run_graph_program(scripted_run(folder)).code, 0);
  // Simulates a machine that stopped while step 8 was written.
  fs::remove(folder / "checkpoints" / "step_8" / "manifest.json");
  const auto end = run_graph_program({"run", "--resume", folder.string(), "--max-steps", "10"});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, AllOf(HasSubstr("note: ignoring a damaged checkpoint"),
                             HasSubstr("resuming after step 4")));
  std::vector<int64_t> steps;
  for (const auto& line : lines_of(folder / "metrics.jsonl"))
    steps.push_back(*line.get_int("step"));
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(json_file(folder / "run.json").find("resumed")->as_array().size(), 1U);
}

/// A choice made from the files of a run that is still ending would soon be out of date.
TEST(Resume, ReadsNothingOfAFolderThatIsInUse) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  ASSERT_EQ(run_graph_program(scripted_run(folder)).code, 0);
  fs::remove(folder / "checkpoints" / "step_8" / "manifest.json");
  const auto in_use = RunFolder::open(folder);
  ASSERT_TRUE(in_use.ok()) << in_use.error().text();
  const auto end = run_graph_program({"run", "--resume", folder.string(), "--max-steps", "10"});
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, AllOf(HasSubstr("is in use by another run"),
                             Not(HasSubstr("ignoring a damaged checkpoint"))));
}

TEST(Resume, TakesTheOlderCheckpointWhenABitOfTheNewestHasFlipped) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  ASSERT_EQ(run_graph_program(scripted_run(folder)).code, 0);
  const fs::path newest = folder / "checkpoints" / "step_8";
  fs::path largest;
  for (const auto& entry : fs::recursive_directory_iterator(newest))
    if (entry.is_regular_file() && entry.path().filename() != "manifest.json" &&
        (largest.empty() || entry.file_size() > fs::file_size(largest)))
      largest = entry.path();
  ASSERT_FALSE(largest.empty());
  std::string bytes = *read_text_file(largest);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  write_text(largest, bytes);
  const auto named = run_graph_program(
      {"run", "--resume", newest.string(), "--out", (scratch.path() / "other").string()});
  EXPECT_EQ(named.code, 2);
  EXPECT_THAT(named.err, HasSubstr("differs from what was written"));
  const auto end = run_graph_program({"run", "--resume", folder.string(), "--max-steps", "10"});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, AllOf(HasSubstr("note: ignoring a damaged checkpoint"), HasSubstr("step_8"),
                             HasSubstr("differs from what was written"),
                             HasSubstr("resuming after step 4")));
}

TEST(Resume, NoRolloutNameComesTwiceAndNoConsumedGroupAgain) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  ASSERT_EQ(run_graph_program(scripted_run(folder)).code, 0);
  ASSERT_EQ(run_graph_program({"run", "--resume", folder.string(), "--max-steps", "12"}).code, 0);
  std::set<std::string> names;
  std::map<int64_t, std::set<int64_t>> steps_of_group;
  for (const auto& rollout : lines_of(folder / "rollouts.jsonl")) {
    EXPECT_TRUE(names.insert(*rollout.get_string("rollout")).second)
        << *rollout.get_string("rollout");
    if (*rollout.get_string("end") == "trained")
      steps_of_group[*rollout.get_int("group")].insert(*rollout.get_int("step"));
  }
  for (const auto& [group, steps] : steps_of_group) EXPECT_EQ(steps.size(), 1U) << group;
}

TEST(Resume, ACheckpointStartsANewRunFolder) {
  ScratchFolder scratch;
  const fs::path first = scratch.path() / "first", second = scratch.path() / "second";
  ASSERT_EQ(run_graph_program(scripted_run(first)).code, 0);
  const auto end = run_graph_program({"run", "--resume", (first / "checkpoints/step_4").string(),
                                      "--out", second.string(), "--max-steps", "6"});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(lines_of(second / "metrics.jsonl").size(), 2U);
  EXPECT_EQ(lines_of(first / "metrics.jsonl").size(), 8U);
}

TEST(Resume, ARunThatHasTakenItsStepsSaysSo) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  ASSERT_EQ(run_graph_program(scripted_run(folder)).code, 0);
  const auto end = run_graph_program({"run", "--resume", folder.string()});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err,
              AllOf(HasSubstr("has already taken 8 of 8 steps"), HasSubstr("--max-steps 9")));
}

}  // namespace
}  // namespace primerl
