// Runs whose rewards and environments are Python files: recorded, replayed, killed and resumed.
#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "graph/base/random.h"
#include "tests/cli/program.h"
#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

/// Answers at random, and adds a line to the file `started` in each process.
constexpr std::string_view kRandomReward =
    "import os, random\n"
    "open(os.path.join(os.path.dirname(__file__), 'started'), 'a').write('x\\n')\n"
    "def reward(completion, answer):\n"
    "    return random.random()\n";

/// Two turns, each of `seconds`.
std::string slow_environment(double seconds) {
  return fmt::format(
      "import asyncio\n"
      "class Environment:\n"
      "    def __init__(self, ordinal, seed):\n"
      "        self.turns = 0\n"
      "    async def task(self):\n"
      "        return 'abc'\n"
      "    async def step(self, action):\n"
      "        self.turns += 1\n"
      "        await asyncio.sleep({})\n"
      "        return {{'reward': len(action) % 7}}\n",
      seconds);
}

struct OutsideRun : ::testing::Test {
  fs::path write(const std::string& name, std::string_view text) {
    write_text(scratch.path() / name, std::string(text));
    return scratch.path() / name;
  }
  std::vector<std::string> run_words(const std::string& overlay,
                                     std::vector<std::string> more = {}) {
    std::vector<std::string> words{"--overlay", write("overlay.toml", overlay).string()};
    words.insert(words.end(), more.begin(), more.end());
    return scripted_run(folder, words);
  }
  bool has_started() const { return fs::exists(scratch.path() / "started"); }

  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
};

const std::string kWithReward =
    "[tenant.main]\nreward = { name = \"python\", file = \"reward.py\" }\n";

TEST_F(OutsideRun, AFileThatDoesNotLoadIsAFaultBeforeThereIsARunFolder) {
  write("reward.py", "import no_such_module\n");
  const auto end = run_graph_program(run_words(kWithReward));
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, HasSubstr("No module named 'no_such_module'"));
  EXPECT_FALSE(fs::exists(folder));
}

TEST_F(OutsideRun, ACheckStartsNothingAndSaysSoUntilItIsAskedTo) {
  write("reward.py", kRandomReward);
  write("overlay.toml", kWithReward);
  std::vector<std::string> words{"check", source_path("tests/cli/graphs/scripted.toml"),
                                 "--overlay", (scratch.path() / "overlay.toml").string()};
  const auto quiet = run_graph_program(words);
  EXPECT_EQ(quiet.code, 0) << quiet.err;
  EXPECT_THAT(quiet.out, HasSubstr("no process was started for reward 'python' of tenant 'main'"));
  EXPECT_FALSE(has_started());
  words.emplace_back("--start");
  const auto started = run_graph_program(words);
  EXPECT_EQ(started.code, 0) << started.err;
  EXPECT_THAT(started.out, HasSubstr("tenant 'main': 3 tasks played"));
  EXPECT_TRUE(has_started());
}

TEST_F(OutsideRun, ATrialSaysWhatItWaitsForAndWhatDoesNotEnd) {
  write("env.py",
        "import time\n"
        "class Environment:\n"
        "    def __init__(self, ordinal, seed):\n"
        "        if ordinal == 0: time.sleep(5.5)\n"
        "    def task(self):\n"
        "        return 'abc'\n"
        "    def step(self, action):\n"
        "        return 'more'\n");
  const auto overlay = write("overlay.toml",
                             "[tenant.main]\nturns_max = 4\n"
                             "environment = { name = \"python\", file = \"env.py\" }\n");
  const auto end = run_graph_program({"check", source_path("tests/cli/graphs/scripted.toml"),
                                      "--overlay", overlay.string(), "--start"});
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, ContainsRegex("task 0 of tenant 'main': waiting for environment 'python', "
                                     "call 1, [5-9] s so far \\(at most 3"));
  EXPECT_THAT(end.out, HasSubstr("; 3 did not end within turns_max 4"));
}

TEST_F(OutsideRun, AReplayStartsNoPythonAtAnyDepth) {
  write("reward.py", kRandomReward);
  const auto end = run_graph_program(run_words(kWithReward));
  ASSERT_EQ(end.code, 0) << end.err;
  const auto steps = lines_of(folder / "metrics.jsonl");
  ASSERT_EQ(steps.size(), 8U);
  const double mean = *steps.back().get_double("reward/python/mean");
  EXPECT_GT(mean, 0);
  EXPECT_LT(mean, 1);
  EXPECT_DOUBLE_EQ(mean, *steps.back().get_double("reward/trained/mean"));
  ASSERT_TRUE(has_started());
  fs::remove(scratch.path() / "started");
  for (const std::string depth : {"control", "learner", "full"}) {
    const auto replay = run_graph_program({"replay", folder.string(), "--depth", depth});
    EXPECT_EQ(replay.code, 0) << depth << replay.out << replay.err;
    EXPECT_THAT(replay.out, HasSubstr("identical")) << depth;
  }
  EXPECT_FALSE(has_started());
}

TEST_F(OutsideRun, AChangedFileIsRefusedByName) {
  write("reward.py", kRandomReward);
  // This option has no effect, of which a run warns.
  ASSERT_EQ(
      run_graph_program(run_words(kWithReward, {"--set", "resource.engine.adapter_slots=2"})).code,
      0);
  const std::string resolved = *read_text_file(folder / "graph.resolved.toml");
  EXPECT_THAT(resolved, HasSubstr(fmt::format("file_bytes = {}", kRandomReward.size())));
  EXPECT_THAT(resolved, HasSubstr("file_sha256 = \""));
  write("reward.py", std::string(kRandomReward) + "# changed\n");
  const auto fork = (scratch.path() / "fork").string();
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"run", "--resume", folder.string(), "--max-steps", "20"},
        std::vector<std::string>{"run", "--fork", folder.string() + "@step=4", "--out", fork},
        std::vector<std::string>{"replay", folder.string(), "--depth", "control"}}) {
    const auto end = run_graph_program(words);
    EXPECT_EQ(end.code, 2) << end.err;
    EXPECT_THAT(end.err, ContainsRegex("reward.py' has another content"));
    EXPECT_THAT(end.err, HasSubstr(fmt::format("{} bytes", kRandomReward.size())));
    if (words[0] == "replay") {
      EXPECT_THAT(end.err, Not(HasSubstr("warning")));
    }
  }
  EXPECT_FALSE(fs::exists(fork));
}

TEST_F(OutsideRun, ARewardThatRaisesFailsRolloutsAndIsNeverZero) {
  write("reward.py",
        "num_calls = 0\n"
        "def reward(completion):\n"
        "    global num_calls\n"
        "    num_calls += 1\n"  // the three calls before the run succeed
        "    if num_calls % 5 == 4: raise ValueError('no judge today')\n"
        "    return 1 + num_calls % 3\n");
  const auto end = run_graph_program(run_words(kWithReward));
  ASSERT_EQ(end.code, 0) << end.err;
  int num_failed = 0;
  for (const Json& line : lines_of(folder / "rollouts.jsonl")) {
    if (*line.get_string("end") == "failed") {
      ++num_failed;
      EXPECT_THAT(*line.get_string("reason"), HasSubstr("no judge today"));
    } else if (*line.get_string("end") == "trained") {
      EXPECT_GE(*line.get_double("reward"), 1);
    }
  }
  EXPECT_GT(num_failed, 0);
  expect_replays(folder);
}

/// Kills a run at random moments, as often as PRIMERL_OUTSIDE_KILLS says. Each resume follows the
/// whole record, although the reward answers at random.
TEST_F(OutsideRun, KilledAtRandomFollowsItsWholeRecordEachTime) {
  const char* wanted = std::getenv("PRIMERL_OUTSIDE_KILLS");
  const int num_kills = wanted == nullptr ? 6 : std::atoi(wanted);
  write("reward.py", kRandomReward);
  std::vector<std::string> words =
      run_words(kWithReward, {"--max-steps", "1000000", "--set", "graph.restarts_max=0", "--set",
                              "tenant.main.checkpoint_every=20"});
  RandomStream random(17);
  for (int kill = 0; kill < num_kills; ++kill) {
    SCOPED_TRACE(kill);
    const size_t lines_before = num_lines(folder / "metrics.jsonl");
    words.insert(words.begin(), "primerl-graph");
    Program run(words);
    const size_t more = 1 + random.below(30);
    ASSERT_TRUE(has_lines(run, folder, lines_before + more));
    const pid_t worker = worker_of(run);
    ASSERT_GT(worker, 0);
    ::kill(worker, SIGKILL);
    const auto end = run.wait();
    ASSERT_EQ(end.code, 1) << end.err;
    if (kill > 0) {
      EXPECT_THAT(end.err, HasSubstr("messages as recorded; the run is live"));
      EXPECT_THAT(end.err, Not(HasSubstr("left out")));
    }
    words = {"run", "--resume", folder.string(), "--max-steps", "1000000"};
  }
  const auto last = std::to_string(*lines_of(folder / "metrics.jsonl").back().get_int("step") + 5);
  const auto end = run_graph_program({"run", "--resume", folder.string(), "--max-steps", last});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(std::to_string(expect_steps_and_rollouts_once(folder)), last);
  expect_replays(folder);
}

// The fault of the workers is not in the record, so the resumed run asks again.
TEST_F(OutsideRun, WhoseWorkersCannotStartAnyMoreIsResumedWhenTheyCan) {
  const std::string down = (scratch.path() / "down").string();
  write("reward.py", fmt::format("import os\n"
                                 "if os.path.exists('{0}'): raise RuntimeError('no server')\n"
                                 "num_calls = 0\n"
                                 "def reward(completion):\n"
                                 "    global num_calls\n"
                                 "    num_calls += 1\n"
                                 "    if num_calls == 150:\n"
                                 "        open('{0}', 'w').close()\n"
                                 "        os._exit(1)\n"
                                 "    return num_calls % 3\n",
                                 down));
  const auto failed = run_graph_program(run_words(kWithReward, {"--max-steps", "1000"}));
  EXPECT_EQ(failed.code, 1) << failed.err;
  EXPECT_THAT(failed.err, HasSubstr("RuntimeError: no server"));
  fs::remove(down);
  const auto last = std::to_string(num_lines(folder / "metrics.jsonl") + 2);
  const auto end = run_graph_program({"run", "--resume", folder.string(), "--max-steps", last});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("messages as recorded; the run is live"));
  EXPECT_EQ(std::to_string(expect_steps_and_rollouts_once(folder)), last);
  expect_replays(folder);
}

TEST_F(OutsideRun, EndsAtOnceIfItIsInterruptedWhileItTriesAFileThatHangs) {
  write("reward.py", fmt::format("import time\nopen('{}', 'w').close()\ntime.sleep(1000)\n",
                                 (scratch.path() / "started").string()));
  auto words = run_words(kWithReward);
  words.insert(words.begin(), "primerl-graph");
  Program run(words);
  ASSERT_TRUE(wait_until([&] { return has_started(); }));
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  EXPECT_FALSE(fs::exists(folder));
}

/// 256 rollouts of an environment that sleeps for a second, in one worker with `async` functions.
TEST_F(OutsideRun, ManyRolloutsWaitForOneAsyncWorkerAtOnce) {
  write("env.py", slow_environment(1));
  const auto end = run_graph_program(
      run_words("[tenant.main]\nenvironment = { name = \"python\", file = \"env.py\", python = "
                "\"" PRIMERL_PYTHON "\" }\n",
                {"--max-steps", "1", "--set", "tenant.main.batch_size=256", "--set",
                 "tenant.main.max_off_policy_steps=0", "--set", "node.rollout.max_inflight=256"}));
  ASSERT_EQ(end.code, 0) << end.err;
  const auto steps = lines_of(folder / "metrics.jsonl");
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(*steps[0].get_int("progress/samples"), 256);
  const double seconds = *steps[0].get_double("time/step");
  RecordProperty("seconds", std::to_string(seconds));
  // On a machine with nothing else to do it is 1.08 s (runtime_outside_bench).
  EXPECT_LT(seconds, 10) << "one after the other: 256 s";
}

/// Workers are killed again and again; every rollout ends exactly once.
TEST_F(OutsideRun, EveryRolloutEndsOnceWhenWorkersAreKilled) {
  write("env.py",
        "import os, random\n"
        "num_steps = 0\n"
        "class Environment:\n"
        "    def __init__(self, ordinal, seed):\n"
        "        self.turns = 0\n"
        "    def task(self):\n"
        "        return 'abc'\n"
        "    def step(self, action):\n"
        "        global num_steps\n"
        "        num_steps += 1\n"  // the tasks that are tried before the run have 9 steps
        "        if num_steps > 20 and random.random() < 0.03: os._exit(9)\n"
        "        self.turns += 1\n"
        "        if self.turns < 3: return 'b'\n"
        "        return {'reward': random.random()}\n");
  const auto end = run_graph_program(run_words(
      "[tenant.main]\nenvironment = { name = \"python\", file = \"env.py\", num_workers = 4 }\n",
      {"--max-steps", "20", "--set", "tenant.main.turns_max=4"}));
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(expect_steps_and_rollouts_once(folder), 20);
  int num_trained = 0;
  for (const Json& line : lines_of(folder / "rollouts.jsonl"))
    num_trained += *line.get_string("end") == "trained" ? 1 : 0;
  EXPECT_GT(num_trained, 250);
  expect_replays(folder);
}

}  // namespace
}  // namespace primerl
