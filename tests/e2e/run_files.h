/// Helpers of the tests of whole runs: reads the files of a run folder, and starts a run as a
/// process.
#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "graph/base/real_clock.h"
#include "tests/base/patience.h"
#include "tests/cli/program.h"
#include "tests/e2e/workers.h"

namespace primerl {

/// Time between two looks at what a test waits for: a test that looks all the time takes a core
/// from the run.
inline constexpr Duration kLookEvery = Duration::milliseconds(20);
/// For a moment that soon passes.
inline constexpr Duration kLookOften = Duration::milliseconds(1);

/// False after a time limit that is long enough for every test.
template <class Condition>
bool wait_until(const Condition& is_met, Duration look_every = kLookEvery) {
  const Time deadline = steady_now() + kPatience;
  while (!is_met()) {
    if (steady_now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::nanoseconds(look_every.to_nanoseconds()));
  }
  return true;
}

/// Waits while `run` is running, at most `at_most`, and reads its stderr meanwhile, so that it
/// never waits for a reader. A failure names `what`, and has what the run said.
template <class Condition>
::testing::AssertionResult waits_for(std::string_view what, Program& run, const Condition& is_met,
                                     Duration look_every = kLookEvery,
                                     Duration at_most = kPatience) {
  const Time deadline = steady_now() + at_most;
  while (!is_met()) {
    if (!run.is_running() && !is_met()) {
      run.listen(steady_now());
      return ::testing::AssertionFailure()
             << "the run ended before there was " << what << ": " << run.said();
    }
    if (steady_now() > deadline)
      return ::testing::AssertionFailure()
             << "there was no " << what << " within " << to_string(at_most) << ": " << run.said();
    run.listen_for(look_every);
  }
  return ::testing::AssertionSuccess();
}

/// Every line of a jsonl file; a line that is not JSON fails the test.
inline std::vector<Json> lines_of(const std::filesystem::path& file) {
  std::vector<Json> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    auto json = parse_json(line, file.string());
    EXPECT_TRUE(json.ok()) << line;
    if (json.ok()) lines.push_back(std::move(json).value());
  }
  return lines;
}

/// Number of complete lines so far, also while another process writes.
inline size_t num_lines(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return static_cast<size_t>(
      std::count(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>(), '\n'));
}

/// Waits until metrics.jsonl of `run` has `count` lines.
inline ::testing::AssertionResult has_lines(Program& run, const std::filesystem::path& folder,
                                            size_t count) {
  return waits_for(fmt::format("line {} of metrics.jsonl", count), run,
                   [&] { return num_lines(folder / "metrics.jsonl") >= count; });
}

inline Json json_file(const std::filesystem::path& file) {
  auto text = read_text_file(file);
  EXPECT_TRUE(text.ok()) << file;
  auto json = parse_json(text.ok() ? *text : "null", file.string());
  EXPECT_TRUE(json.ok()) << file;
  return json.ok() ? *json : Json();
}

inline std::string run_end(const std::filesystem::path& folder) {
  return *json_file(folder / "run.json").get_string("end");
}

/// `primerl-graph run` of the scripted graph into `folder`.
inline std::vector<std::string> scripted_run(const std::filesystem::path& folder,
                                             std::vector<std::string> more = {}) {
  std::vector<std::string> words{"run", source_path("tests/cli/graphs/scripted.toml"), "--out",
                                 folder.string()};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// The same graph, written to `graph`, with groups that are larger than a frame and kept whole in
/// the record.
inline std::vector<std::string> run_with_blobs(const std::filesystem::path& graph,
                                               const std::filesystem::path& folder,
                                               const std::vector<std::string>& more) {
  std::string text = *read_text_file(source_path("tests/cli/graphs/scripted.toml"));
  const auto replace = [&text](const std::string& before, const std::string& now) {
    text.replace(text.find(before), before.size(), now);
  };
  replace("\"rollout.group       -> trainer.group\"",
          "{ path = \"rollout.group -> trainer.group\", record = \"payload\" }");
  replace("../../../examples", source_path("examples"));
  write_text(graph, text);
  std::vector<std::string> words = scripted_run(folder, more);
  words[1] = graph.string();
  for (const char* option :
       {"tenant.main.group_size=128", "tenant.main.batch_size=128",
        "tenant.main.environment.length_min=100", "tenant.main.environment.length_max=100",
        "node.rollout.max_inflight=1024"})
    words.insert(words.end(), {"--set", option});
  return words;
}

/// The lines of metrics.jsonl that are steps: neither evaluations nor numbers of environments.
inline std::vector<Json> steps_of(const std::filesystem::path& folder) {
  std::vector<Json> steps;
  for (Json& line : lines_of(folder / "metrics.jsonl"))
    if (line.find("progress/samples") != nullptr) steps.push_back(std::move(line));
  return steps;
}

/// Checks that every step exists once and in order. Returns the last step.
inline int64_t expect_steps_once(const std::filesystem::path& folder) {
  int64_t last = 0;
  for (const Json& line : steps_of(folder)) {
    EXPECT_EQ(*line.get_int("step"), last + 1);
    last = *line.get_int("step");
  }
  return last;
}

/// Checks that every step exists once and in order, and every rollout once: nothing was lost or
/// repeated. Returns the last step.
inline int64_t expect_steps_and_rollouts_once(const std::filesystem::path& folder) {
  const int64_t last = expect_steps_once(folder);
  std::set<std::string> seen;
  for (const Json& line : lines_of(folder / "rollouts.jsonl"))
    EXPECT_TRUE(seen.insert(*line.get_string("rollout")).second) << line.dump();
  return last;
}

/// Checks that rollouts.jsonl has every rollout of the batch of each step.
inline void expect_rollouts_of_every_step(const std::filesystem::path& folder) {
  std::map<int64_t, int64_t> trained;  // number of rollouts by step
  for (const Json& line : lines_of(folder / "rollouts.jsonl")) ++trained[*line.get_int("step")];
  for (const Json& line : steps_of(folder)) {
    const int64_t step = *line.get_int("step");
    EXPECT_EQ(trained[step], static_cast<int64_t>(line.find("progress/samples")->as_double()))
        << "rollouts of step " << step;
  }
}

/// Starts the run of `words` into `folder`, kills its worker after three steps, and resumes it from
/// its record to two steps more.
inline void expect_continues_after_a_kill(const std::filesystem::path& folder,
                                          std::vector<std::string> words) {
  words.insert(words.begin(), "primerl-graph");
  words.insert(words.end(), {"--max-steps", "1000", "--set", "graph.restarts_max=0"});
  Program run(words);
  ASSERT_TRUE(wait_until([&] { return num_lines(folder / "metrics.jsonl") >= 3; }));
  const pid_t worker = worker_of(run);
  ASSERT_GT(worker, 0);
  ::kill(worker, SIGKILL);
  EXPECT_EQ(run.wait().code, 1);
  const auto last = std::to_string(num_lines(folder / "metrics.jsonl") + 2);
  const auto end = run_graph_program({"run", "--resume", folder.string(), "--max-steps", last});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_NE(end.err.find("messages as recorded; the run is live"), std::string::npos) << end.err;
  EXPECT_EQ(std::to_string(expect_steps_and_rollouts_once(folder)), last);
}

/// Checks that each of these replays of the newest record repeats it to the end.
inline void expect_replays_at(const std::filesystem::path& folder,
                              const std::vector<std::string>& depths) {
  for (const std::string& depth : depths) {
    const auto replay = run_graph_program({"replay", folder.string(), "--depth", depth});
    EXPECT_EQ(replay.code, 0) << depth << replay.out << replay.err;
    EXPECT_NE(replay.out.find("identical"), std::string::npos) << depth << replay.out;
  }
}

/// Checks that the newest record is complete, whichever start made it.
inline void expect_replays(const std::filesystem::path& folder) {
  expect_replays_at(folder, {"control"});
}

}  // namespace primerl
