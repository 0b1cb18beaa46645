// `primerl-graph eval`, runs that measure their policy, and runs that end with a data set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <fstream>

#include "tests/cli/program.h"
#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

namespace fs = std::filesystem;

const std::string kEval =
    "tenant.main.eval={ interval = 4, rows = 3, samples = 2, pass_reward = 0.1 }";

std::string scripted_graph() { return source_path("tests/cli/graphs/scripted.toml"); }

ProgramEnd eval(std::vector<std::string> more, const std::string& graph = scripted_graph()) {
  std::vector<std::string> words{"eval", graph};
  words.insert(words.end(), more.begin(), more.end());
  return run_graph_program(words);
}

std::vector<std::string> texts_of(const fs::path& file, std::string_view key) {
  std::vector<std::string> texts;
  for (const Json& line : lines_of(file)) texts.push_back(*line.get_string(key));
  return texts;
}

std::vector<int64_t> versions_in(const fs::path& folder) {
  std::vector<int64_t> versions;
  for (const Json& line : lines_of(folder / "evaluations.jsonl"))
    versions.push_back(*line.get_int("version"));
  return versions;
}

TEST(EvalCommand, PrintsATableAndWritesItsRollouts) {
  ScratchFolder scratch;
  const fs::path file = scratch.path() / "rollouts.jsonl", folder = scratch.path() / "run";
  const auto end =
      eval({"--k", "3", "--rows", "4", "--out", file.string(), "--run-folder", folder.string()});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, AllOf(HasSubstr("tenant  rows  samples"), HasSubstr("pass@1"),
                             HasSubstr("pass@2"), HasSubstr("pass@3"), HasSubstr("main")));
  EXPECT_THAT(texts_of(file, "end"), AllOf(SizeIs(12), Each("evaluated")));
  EXPECT_EQ(*read_text_file(file), *read_text_file(folder / "rollouts.jsonl"));
  EXPECT_EQ(run_end(folder), "finished");
  EXPECT_TRUE(fs::is_empty(folder / "checkpoints")) << "nothing trained";
  expect_replays(folder);
}

TEST(EvalCommand, GivesTheSameResultTwiceAsJson) {
  ScratchFolder scratch;
  std::vector<std::string> results;
  for (const std::string name : {"a", "b"}) {
    const auto end =
        eval({"--rows", "5", "--json", "--run-folder", (scratch.path() / name).string()});
    ASSERT_EQ(end.code, 0) << end.err;
    const Json result = *parse_json(end.out, "the result");
    EXPECT_EQ(*result.get_string("schema"), "primerl.eval/1");
    const auto& evaluations = result.find("evaluations")->as_array();
    ASSERT_THAT(evaluations, SizeIs(1));
    EXPECT_EQ(*evaluations[0].get_int("rollouts"), 5);
    results.push_back(evaluations[0].dump());
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(EvalCommand, SaysWhatIsWrongBeforeItPlays) {
  ScratchFolder scratch;
  const auto expect_refused = [](const ProgramEnd& end, const std::string& text) {
    EXPECT_EQ(end.code, 2) << end.err;
    EXPECT_THAT(end.err, HasSubstr(text));
  };
  expect_refused(eval({}), "environment 'reverse_text' of tenant 'main' has no rows");
  expect_refused(eval({"--rows", "2", "--tenant", "mian"}), "no tenant 'mian' in this graph");
  expect_refused(eval({"--rows", "2", "--model", (scratch.path() / "none").string()}), "--model '");
  expect_refused(eval({"--rows", "2", "--k", "33"}), "--k is 33");
  const fs::path taken = scratch.path() / "taken";
  std::ofstream(taken) << "kept";
  expect_refused(eval({"--rows", "2", "--out", taken.string()}), "taken' exists");
  EXPECT_EQ(*read_text_file(taken), "kept");
  expect_refused(eval({"--rows", "2", "--out", (scratch.path() / "no/x").string()}),
                 "does not exist");
  expect_refused(eval({"--rows", "2"}, source_path("examples/arithmetic_tool/sft.toml")),
                 "plays no rollouts");
  const auto unknown = eval({"--rows", "0"});
  EXPECT_EQ(unknown.code, 3) << unknown.err;
}

TEST(ARunWithEvaluations, MeasuresTheFirstVersionEachMultipleAndTheLast) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  const auto end = run_graph_program(scripted_run(folder, {"--set", kEval, "--max-steps", "6"}));
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, AllOf(HasSubstr("step 6 of 6"), HasSubstr("ended by max_steps = 6"),
                             HasSubstr("eval of version 6: avg@2")));
  EXPECT_THAT(versions_in(folder), ElementsAre(0, 4, 6));
  size_t num_evaluated = 0, num_trained = 0;
  for (const std::string& how : texts_of(folder / "rollouts.jsonl", "end")) {
    num_evaluated += how == "evaluated";
    num_trained += how == "trained";
  }
  EXPECT_EQ(num_evaluated, 3U * 3 * 2);
  EXPECT_EQ(num_trained, 6U * 16);
  std::vector<int64_t> steps, measured;
  for (const Json& line : lines_of(folder / "metrics.jsonl"))
    (line.find("eval/reverse_text/avg@2") != nullptr ? measured : steps)
        .push_back(*line.get_int("step"));
  EXPECT_THAT(steps, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(measured, ElementsAre(0, 4, 6));
  EXPECT_TRUE(fs::exists(folder / "checkpoints/step_6/manifest.json"));
  expect_replays(folder);
}

TEST(ARunWithEvaluations, ThatWasKilledContinuesThemAndWritesEachLineOnce) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  std::vector<std::string> words =
      scripted_run(folder, {"--set", "tenant.main.eval={ interval = 2, rows = 3, samples = 4 }",
                            "--max-steps", "1000000", "--set", "graph.restarts_max=0"});
  words.insert(words.begin(), "primerl-graph");
  Program run(words);
  ASSERT_TRUE(waits_for("12 evaluations", run,
                        [&] { return num_lines(folder / "evaluations.jsonl") >= 12; }));
  ::kill(worker_of(run), SIGKILL);
  ASSERT_EQ(run.wait().code, 1);
  const int64_t last = versions_in(folder).back();
  const auto end = run_graph_program(
      {"run", "--resume", folder.string(), "--max-steps", std::to_string(last + 20)});
  ASSERT_EQ(end.code, 0) << end.err;
  const auto versions = versions_in(folder);
  for (size_t i = 1; i < versions.size(); ++i) EXPECT_LT(versions[i - 1], versions[i]);
  EXPECT_EQ(versions.back(), last + 20);
  std::map<std::string, int> ended;
  for (const std::string& name : texts_of(folder / "rollouts.jsonl", "rollout")) ++ended[name];
  for (const auto& [name, count] : ended) EXPECT_EQ(count, 1) << name;
  std::vector<int64_t> measured;
  for (const Json& line : lines_of(folder / "metrics.jsonl"))
    if (line.find("eval/reverse_text/avg@4") != nullptr) measured.push_back(*line.get_int("step"));
  EXPECT_EQ(measured, versions);
}

TEST(ARunWithEpochs, EndsAfterAllRowsAndSaysSo) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run", data = scratch.path() / "rows.jsonl";
  std::string rows;
  for (int i = 0; i < 10; ++i) rows += fmt::format("{{\"prompt\": \"a{}\", \"answer\": 1}}\n", i);
  write_text(data, rows);
  const auto end = run_graph_program(
      scripted_run(folder, {"--set",
                            "tenant.main.environment={ name = \"dataset\", file = \"" +
                                data.string() + "\", holdout = 1 }",
                            "--set", "tenant.main.epochs=2", "--set", "tenant.main.max_steps=100",
                            "--set", "tenant.main.eval={ interval = 3 }"}));
  ASSERT_EQ(end.code, 0) << end.err;
  // 9 rows twice are 18 groups, 4 a batch.
  EXPECT_THAT(end.out, AllOf(HasSubstr("step 4 of 4"),
                             HasSubstr("ended by 2 epochs of its data set (18 tasks)")));
  std::map<std::string, int> given;
  for (const Json& line : lines_of(folder / "rollouts.jsonl"))
    if (line.find("evaluation") == nullptr && *line.get_int("group") < 18)
      ++given[*line.get_string("prompt")];
  EXPECT_LE(given.size(), 9U) << "the row in the holdout is never a task";
  // Version 3 is not measured if version 4 is made before its first row opens.
  EXPECT_THAT(versions_in(folder), AnyOf(ElementsAre(0, 3, 4), ElementsAre(0, 4)));
}

TEST(ARunWithEpochs, EndsWhenGroupsThatDoNotTrainLeaveTooFewForABatch) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run", data = scratch.path() / "rows.jsonl";
  std::string rows;
  for (int i = 0; i < 10; ++i) rows += fmt::format("{{\"prompt\": \"a{}\", \"answer\": 1}}\n", i);
  write_text(data, rows);
  // Every rollout has the reward 0, so every group is filtered.
  const auto end = run_graph_program(scripted_run(
      folder,
      {"--set", "tenant.main.environment={ name = \"dataset\", file = \"" + data.string() + "\" }",
       "--set", "tenant.main.epochs=1", "--set", "tenant.main.filters={ zero_advantage = true }"}));
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, AllOf(HasSubstr("no step was taken"),
                             HasSubstr("ended by 1 epoch of its data set (10 tasks), of which")));
  // 3 groups are fewer than the 4 of a batch: those still in flight then are cancelled.
  const auto ends = texts_of(folder / "rollouts.jsonl", "end");
  EXPECT_THAT(ends, AllOf(SizeIs(40), Each(AnyOf("filtered", "cancelled"))));
  EXPECT_GE(std::ranges::count(ends, "filtered"), 28);
}

/// Killed in its first epoch; the resumed run trains what is left and ends as one that was not.
TEST(SupervisedEpochs, ThatWereKilledEndAtTheSameStepWithTheSameNumbers) {
  ScratchFolder scratch;
  std::string rows;
  for (int i = 0; i < 90; ++i)
    rows += fmt::format("{{\"prompt\": \"r:{0}>\", \"completion\": \"{0}\"}}\n",
                        std::string(static_cast<size_t>(1 + i % 5), 'a' + i % 26));
  write_text(scratch.path() / "pairs.jsonl", rows);
  const auto words = [&](const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> all{"sft", source_path("examples/reverse_text/sft.toml"), "--out",
                                 (scratch.path() / name).string()};
    for (const std::string& set :
         {"node.data.file=" + (scratch.path() / "pairs.jsonl").string(),
          std::string("tenant.main.group_size=2"), std::string("tenant.main.batch_size=8"),
          std::string("tenant.main.epochs=2"), std::string("tenant.main.checkpoint_every=3"),
          std::string("graph.restarts_max=0")})
      all.insert(all.end(), {"--set", set});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto whole = run_graph_program(words("whole", {}));
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.out, AllOf(HasSubstr("step 22 of 22"),
                               HasSubstr("ended by 2 epochs of its data set (180 examples)")));
  const fs::path folder = scratch.path() / "killed";
  auto first = words("killed", {});
  first.insert(first.begin(), "primerl-graph");
  Program run(first);
  ASSERT_TRUE(wait_until([&] { return num_lines(folder / "metrics.jsonl") >= 4; }));
  ::kill(worker_of(run), SIGKILL);
  EXPECT_EQ(run.wait().code, 1);
  const auto end = run_graph_program({"run", "--resume", folder.string()});
  ASSERT_EQ(end.code, 0) << end.err;
  const auto losses = [](const fs::path& file) {
    std::vector<double> all;
    for (const Json& line : lines_of(file)) all.push_back(*line.get_double("loss/mean"));
    return all;
  };
  EXPECT_EQ(losses(folder / "metrics.jsonl"), losses(scratch.path() / "whole" / "metrics.jsonl"));
}

}  // namespace
}  // namespace primerl
