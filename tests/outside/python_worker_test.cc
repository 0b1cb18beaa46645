// worker.py, which runs rewards and environments of Python files.
#include <poll.h>
#include <unistd.h>

#include <array>

#include "actors/env/outside_calls.h"
#include "actors/env/python/workers.h"
#include "runtime/outside/piped_process.h"
#include "tests/outside/outside_story.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

struct PythonWorker : OutsideStory {
  void start_file(const std::string& text, int64_t num_workers = 1,
                  Duration call_timeout = Duration::seconds(30)) {
    PythonOptions options;
    options.file = write("user.py", text);
    options.num_workers = num_workers;
    options.python = PRIMERL_PYTHON;
    OutsidePool pool = python_reward().outside(&options);
    pool.call_timeout = call_timeout;
    start(std::move(pool));
  }
  OutsideAnswer score(uint64_t id, const std::string& said, const std::string& answer = "5") {
    EnvironmentTask task;
    task.prompt = "2+3?";
    task.answer = answer;
    task.row = R"({"level": 4})";
    ask(id, reward_body(task, {"first", said}, 0.25));
    return answer_to(id);
  }
};

TEST_F(PythonWorker, AFileThatCannotBeLoadedIsAFailureThatNamesIt) {
  start_file("import no_such_module\n");
  EXPECT_THAT(failure(), ::testing::ContainsRegex("user.py:1: ModuleNotFoundError: No module named "
                                                  "'no_such_module' for .*python.*: install it, or "
                                                  "let the option 'python' name another"));
}

TEST_F(PythonWorker, AFileWithoutRewardOrEnvironmentIsAFailure) {
  start_file("x = 1\n");
  EXPECT_THAT(failure(), HasSubstr("has neither a function 'reward' nor a class 'Environment'"));
}

TEST_F(PythonWorker, ARewardGetsWhatItNames) {
  start_file(
      "def reward(completion, answer, prompt, actions, row, given):\n"
      "    assert (prompt, actions, given) == ('2+3?', ['first', completion], 0.25)\n"
      "    return (completion == answer) + row['level']\n");
  EXPECT_EQ(*read_score(score(1, "5").body), 5);
  EXPECT_EQ(*read_score(score(2, "6").body), 4);
}

TEST_F(PythonWorker, ARewardThatIsNoNumberRaisesPrintsForksOrExitsFailsItsCallAlone) {
  start_file(
      "import os, sys\n"
      "def reward(completion, answer):\n"
      "    print('printed', flush=True)\n"
      "    if completion == 'nan': return float('nan')\n"
      "    if completion == 'inf': return float('inf')\n"
      "    if completion == 'text': return '1'\n"
      "    if completion == 'none': return None\n"
      "    if completion == 'raise': raise KeyError('gone')\n"
      "    if completion == 'exit': os._exit(4)\n"
      "    if completion == 'sys.exit': sys.exit(5)\n"
      "    if completion == 'fork': os.fork()\n"
      "    if completion == 'read': return len(input('? '))\n"
      "    return True\n");
  EXPECT_THAT(score(1, "nan").body, HasSubstr("reward() is nan, not a finite number"));
  EXPECT_THAT(score(2, "inf").body, HasSubstr("reward() is inf, not a finite number"));
  EXPECT_THAT(score(3, "text").body, HasSubstr("reward() is '1', not a number"));
  EXPECT_THAT(score(4, "none").body, HasSubstr("reward() is None, not a number"));
  EXPECT_THAT(score(5, "raise").body, HasSubstr("KeyError: 'gone' (user.py:8)"));
  EXPECT_THAT(score(6, "exit").body, HasSubstr("exited with code 4"));
  EXPECT_EQ(known[6].end, OutsideEnd::kLost);
  EXPECT_THAT(score(7, "sys.exit").body, HasSubstr("SystemExit: 5 (user.py:10)"));
  EXPECT_EQ(known[7].end, OutsideEnd::kFailed) << "the worker continues";
  EXPECT_EQ(*read_score(score(8, "fork").body), 1);
  EXPECT_THAT(score(9, "read").body, HasSubstr("EOFError"));
  EXPECT_EQ(*read_score(score(10, "fine").body), 1);
  EXPECT_THAT(log_text(), HasSubstr("worker 0: printed"));
}

TEST_F(PythonWorker, AnErrorThatIsNoUtf8OrHasNoTextFailsItsCallAlone) {
  start_file(
      "class Silent(Exception):\n"
      "    def __str__(self): raise RuntimeError\n"
      "def reward(completion, answer):\n"
      "    if completion == 'surrogate': raise ValueError('\\ud800')\n"
      "    if completion == 'silent': raise Silent()\n"
      "    return 1\n");
  EXPECT_THAT(score(1, "surrogate").body, HasSubstr("ValueError: ? (user.py:4)"));
  EXPECT_THAT(score(2, "silent").body, HasSubstr("Silent: its text cannot be made"));
  EXPECT_EQ(*read_score(score(3, "fine").body), 1);
}

TEST_F(PythonWorker, ASyntaxErrorIsReportedWithItsLine) {
  start_file("x = 1\ny = (\n");
  EXPECT_THAT(failure(), HasSubstr("user.py:2: SyntaxError: '(' was never closed"));
}

TEST_F(PythonWorker, ARewardThatHangsIsKilled) {
  start_file(
      "import time\n"
      "def reward(completion):\n"
      "    if completion == 'hang':\n"
      "        while True: time.sleep(1)\n"
      "    return 1\n",
      1, Duration::seconds(3) * kSlowness);
  EXPECT_EQ(*read_score(score(1, "x").body), 1);
  EXPECT_THAT(score(2, "hang").body, HasSubstr("did not answer within"));
  EXPECT_EQ(*read_score(score(3, "x").body), 1);
}

TEST_F(PythonWorker, AsyncRewardsRunAtOnceInOneWorker) {
  start_file(
      "import asyncio\n"
      "async def reward(completion):\n"
      "    await asyncio.sleep(0.5)\n"
      "    return float(completion)\n");
  EnvironmentTask task;
  const auto began = steady_now();
  for (uint64_t id = 1; id <= 200; ++id) ask(id, reward_body(task, {std::to_string(id)}, 0));
  for (uint64_t id = 1; id <= 200; ++id)
    EXPECT_EQ(*read_score(answer_to(id).body), static_cast<double>(id));
  EXPECT_LT(steady_now() - began, Duration::seconds(60)) << "one after the other: 100 s";
}

TEST_F(PythonWorker, StartRunsBeforeTheFirstCall) {
  for (const std::string kind : {"", "async "}) {
    start_file(
        "import asyncio\n"
        "ready = False\n"
        "async def start():\n"
        "    global ready\n"
        "    await asyncio.sleep(0.05)\n"
        "    ready = True\n" +
        kind + "def reward(completion):\n    return ready\n");
    EXPECT_EQ(*read_score(score(kind.size(), "x").body), 1) << kind;
  }
}

TEST_F(PythonWorker, AStartThatRaisesIsAFailureWithItsLine) {
  for (const std::string kind : {"", "async "}) {
    start_file(kind + "def start():\n    raise OSError('no server')\n" + kind +
               "def reward():\n    return 1\n");
    EXPECT_THAT(failure(), HasSubstr("user.py:2: OSError: no server")) << kind;
  }
}

/// Everything that the process writes until it ends.
std::string all_output_of(const PipedProcess& process) {
  std::string text;
  std::array<char, 4096> buffer{};
  while (true) {
    pollfd ready{process.output(), POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(kPatience.to_seconds() * 1000)) <= 0) return "hangs";
    const ssize_t size = ::read(process.output(), buffer.data(), buffer.size());
    if (size <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(size));
  }
}

TEST_F(PythonWorker, StopRunsAfterTheLastCall) {
  for (const std::string kind : {"", "async "}) {
    const std::string stopped = (folder / ("stopped " + kind)).string();
    PythonOptions options;
    options.python = PRIMERL_PYTHON;
    options.file = write("user.py", "said = []\n" + kind + "def stop():\n    open('" + stopped +
                                        "', 'w').write(said[-1])\n" + kind +
                                        "def reward(completion):\n"
                                        "    said.append(completion)\n"
                                        "    return 1\n");
    auto process = PipedProcess::start(python_reward().outside(&options).command, {});
    ASSERT_TRUE(process.ok()) << process.error().text();
    const std::string call = R"({"id": 1, "call": "reward", "actions": ["last"]})"
                             "\n";
    ASSERT_EQ(::write((*process)->input(), call.data(), call.size()), std::ssize(call));
    (*process)->close_input();
    EXPECT_THAT(all_output_of(**process), HasSubstr(R"("reward": 1)")) << kind;
    std::string text;
    std::ifstream(stopped) >> text;
    EXPECT_EQ(text, "last") << kind;
  }
}

constexpr std::string_view kCounting =
    "import os\n"
    "class Environment:\n"
    "    def __init__(self, ordinal, seed):\n"
    "        self.ordinal, self.actions = ordinal, []\n"
    "    def task(self):\n"
    "        return {'prompt': f'task {self.ordinal}', 'answer': 'x'}\n"
    "    def step(self, action):\n"
    "        if action == 'die': os._exit(1)\n"
    "        self.actions.append(action)\n"
    "        if action == 'end': return {'reward': len(self.actions)}\n"
    "        if action == 'triple': return ('', 0.5, True)\n"
    "        if action == 'wrong': return 7\n"
    "        return '+'.join(self.actions)\n";

TEST_F(PythonWorker, AnEnvironmentPlaysTrajectoriesSideBySide) {
  start_file(std::string(kCounting), 2);
  ask(1, task_body(4, 7));
  EXPECT_EQ(read_task(answer_to(1).body)->prompt, "task 4");
  EXPECT_EQ(read_task(answer_to(1).body)->answer, "x");
  for (uint64_t t = 0; t < 4; ++t)
    ask(10 + t, step_body({.trajectory = t, .ordinal = 4, .actions = {"a"}}), t + 1);
  for (uint64_t t = 0; t < 4; ++t) EXPECT_EQ(read_step(answer_to(10 + t).body)->step.text, "a");
  ask(20, step_body({.trajectory = 2, .ordinal = 4, .first_turn = 1, .actions = {"b"}}), 3, false);
  EXPECT_EQ(read_step(answer_to(20).body)->step.text, "a+b");
  ask(21, step_body({.trajectory = 2, .ordinal = 4, .first_turn = 2, .actions = {"end"}}), 3,
      false);
  EXPECT_EQ(read_step(answer_to(21).body)->step.reward, 3);
  ask(22, step_body({.trajectory = 1, .first_turn = 1, .actions = {"triple"}}), 2, false);
  EXPECT_EQ(read_step(answer_to(22).body)->step.reward, 0.5);
  ask(23, step_body({.trajectory = 0, .first_turn = 1, .actions = {"wrong"}}), 1, false);
  EXPECT_THAT(answer_to(23).body, HasSubstr("step() returned 7"));
}

TEST_F(PythonWorker, AnEnvironmentThatNamesEvaluationIsToldOfIt) {
  start_file(
      "class Environment:\n"
      "    def __init__(self, ordinal, seed, evaluation):\n"
      "        self.row = f'{\"held-out\" if evaluation else \"training\"} row {ordinal}'\n"
      "    def task(self): return self.row\n"
      "    def step(self, action): return f'{action} to {self.row}'\n");
  ask(1, task_body(4, 7, true));
  EXPECT_EQ(read_task(answer_to(1).body)->prompt, "held-out row 4");
  ask(2, task_body(4, 7));
  EXPECT_EQ(read_task(answer_to(2).body)->prompt, "training row 4");
  OutsideTurns turns{.trajectory = 1, .ordinal = 4, .actions = {"a"}, .is_evaluation = true};
  ask(3, step_body(turns), 2);
  EXPECT_EQ(read_step(answer_to(3).body)->step.text, "a to held-out row 4");
  // Played again by a fresh object, it is a row of an evaluation too.
  turns.actions = {"a", "b"};
  ask(4, step_body(turns), 2, true, true);
  EXPECT_EQ(read_step(answer_to(4).body)->step.text, "b to held-out row 4");
  ask(5, step_body({.trajectory = 2, .ordinal = 4, .actions = {"a"}}), 3);
  EXPECT_EQ(read_step(answer_to(5).body)->step.text, "a to training row 4");
}

TEST_F(PythonWorker, AnEnvironmentThatDoesNotNameEvaluationPlaysTheRowAsAnOrdinal) {
  start_file(std::string(kCounting));
  ask(1, task_body(4, 7, true));
  EXPECT_EQ(read_task(answer_to(1).body)->prompt, "task 4");
}

TEST_F(PythonWorker, TheLastStepHasTheAnswerOfTheTaskUnlessItSaysAnother) {
  start_file(
      "class Environment:\n"
      "    def __init__(self, ordinal, seed): self.ordinal = ordinal\n"
      "    def task(self): return {'prompt': 'p', 'answer': 'x'} if self.ordinal else 'p'\n"
      "    def step(self, action):\n"
      "        if action == 'other': return {'reward': 0, 'answer': 'y'}\n"
      "        return {'reward': 0}\n");
  const auto answer = [this](uint64_t id, uint64_t ordinal, const std::string& action) {
    ask(id, step_body({.trajectory = id, .ordinal = ordinal, .actions = {action}}), id + 1);
    return read_step(answer_to(id).body)->answer;
  };
  EXPECT_EQ(answer(1, 1, "end"), "x");
  EXPECT_EQ(answer(2, 1, "other"), "y");
  EXPECT_EQ(answer(3, 0, "end"), "");
}

ChatMessage with_call(const std::string& content) {
  ChatMessage message = chat_message("assistant", content);
  message.reasoning = "hm";
  message.tool_calls = {{.id = "", .name = "add", .arguments = R"({"a": 2})"}};
  return message;
}

TEST_F(PythonWorker, AnEnvironmentThatNamesMessageGetsTheParsedAnswer) {
  start_file(
      "class Environment:\n"
      "    def __init__(self, ordinal, seed): self.seen = []\n"
      "    def task(self): return 'task'\n"
      "    def step(self, action, message):\n"
      "        if message is None: return 'none'\n"
      "        call = message['tool_calls'][0]['function']\n"
      "        self.seen.append(message['content'])\n"
      "        return f\"{self.seen} {message['reasoning']} {call['arguments']['a'] + 1}\"\n");
  OutsideTurns turns{.trajectory = 1, .actions = {"one"}, .messages = {with_call("x")}};
  ask(1, step_body(turns), 2);
  EXPECT_EQ(read_step(answer_to(1).body)->step.text, "['x'] hm 3");
  // Played again, each action has its own message.
  turns.actions = {"one", "two"};
  turns.messages = {with_call("x"), with_call("y")};
  ask(2, step_body(turns), 2, true, true);
  const auto again = read_step(answer_to(2).body);
  EXPECT_EQ(again->step.text, "['x', 'y'] hm 3");
  EXPECT_THAT(again->played, ::testing::ElementsAre(digest({.text = "['x'] hm 3"})));
  ask(3, step_body({.trajectory = 4, .actions = {"plain"}}), 5);
  EXPECT_EQ(read_step(answer_to(3).body)->step.text, "none");
}

TEST_F(PythonWorker, ARewardGetsTheParsedAnswersOfAllTurns) {
  start_file(
      "def reward(messages, completion):\n"
      "    if messages is None: return -1\n"
      "    return messages[1]['tool_calls'][0]['function']['arguments']['a'] + len(messages)\n");
  ask(1, reward_body({}, {"one", "two"}, 0, {with_call("x"), with_call("y")}));
  EXPECT_EQ(*read_score(answer_to(1).body), 4);
  ask(2, reward_body({}, {"one", "two"}, 0));
  EXPECT_EQ(*read_score(answer_to(2).body), -1);
}

TEST_F(PythonWorker, AFreshWorkerPlaysAllTurnsAndSaysWhatItObserved) {
  start_file(std::string(kCounting));
  ask(1, step_body({.trajectory = 2, .actions = {"a"}}), 3);
  const auto first = read_step(answer_to(1).body)->step;
  ask(2, step_body({.trajectory = 2, .first_turn = 1, .actions = {"die"}}), 3, false);
  EXPECT_EQ(answer_to(2).end, OutsideEnd::kNeedsHistory);
  ask(3, step_body({.trajectory = 2, .actions = {"a", "end"}}), 3, true, true);
  const auto again = read_step(answer_to(3).body);
  EXPECT_EQ(again->step.reward, 2);
  EXPECT_THAT(again->played, ::testing::ElementsAre(digest(first)));
}

}  // namespace
}  // namespace primerl
