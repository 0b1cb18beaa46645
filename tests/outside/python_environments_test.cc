// The environments "gymnasium" and "skyrl_gym", with the real packages.
#include <cstdlib>

#include "actors/env/outside_calls.h"
#include "actors/env/python/workers.h"
#include "tests/outside/outside_story.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

/// Plays trajectories in a worker of an environment.
struct PlayedEnvironment : OutsideStory {
  void need(const std::string& package) {
    const std::string probe = PRIMERL_PYTHON " -c 'import " + package + "' 2>/dev/null";
    if (std::system(probe.c_str()) != 0) GTEST_SKIP() << "no package '" << package << "'";
  }
  template <class Options>
  void start_environment(const EnvironmentContract& contract, Options options) {
    options.python = PRIMERL_PYTHON;
    start(contract.outside(&options));
  }
  EnvironmentTask task(uint64_t ordinal, uint32_t seed = 0, bool is_evaluation = false) {
    ask(++num_calls, task_body(ordinal, seed, is_evaluation));
    const auto answer = answer_to(num_calls);
    auto task = answer.end == OutsideEnd::kDone ? read_task(answer.body)
                                                : error(Code::kInvalid, "{}", answer.body);
    EXPECT_TRUE(task.ok()) << answer.body;
    return task.ok() ? *task : EnvironmentTask{};
  }
  /// The next turn of a trajectory.
  OutsideAnswer turn(uint64_t trajectory, const std::string& action, uint32_t seed = 0) {
    const int32_t first = num_turns[trajectory]++;
    ask(++num_calls,
        step_body(
            {.trajectory = trajectory, .seed = seed, .first_turn = first, .actions = {action}}),
        trajectory + 1, first == 0);
    return answer_to(num_calls);
  }
  EnvironmentStep step(uint64_t trajectory, const std::string& action, uint32_t seed = 0) {
    const auto answer = turn(trajectory, action, seed);
    EXPECT_EQ(answer.end, OutsideEnd::kDone) << answer.body;
    const auto read = read_step(answer.body);
    EXPECT_TRUE(read.ok()) << answer.body;
    return read.ok() ? read->step : EnvironmentStep{};
  }
  uint64_t num_calls = 0;
  std::map<uint64_t, int32_t> num_turns;
};

struct Gymnasium : PlayedEnvironment {
  void SetUp() override { need("gymnasium"); }
  void start_gymnasium(const std::string& id, const std::string& kwargs = "{}") {
    options.id = id;
    options.kwargs = kwargs;
    start_environment(gymnasium_environment(), options);
  }
  GymnasiumOptions options;
};

TEST_F(Gymnasium, AnEnvironmentThatDoesNotExistIsAFailure) {
  start_gymnasium("NoSuchLake-v1");
  EXPECT_THAT(failure(), HasSubstr("Environment `NoSuchLake` doesn't exist"));
}

TEST_F(Gymnasium, AnArgumentThatDoesNotExistIsAFailure) {
  start_gymnasium("FrozenLake-v1", R"({"size": 3})");
  EXPECT_THAT(failure(), HasSubstr("unexpected keyword argument 'size'"));
}

TEST_F(Gymnasium, IsPlayedByText) {
  options.prompt = "G?\n";
  start_gymnasium("FrozenLake-v1", R"({"is_slippery": false})");
  EXPECT_EQ(task(0).prompt, "G?\n[S]FFF\nFHFH\nFFFH\nHFFG\naction (0 to 3): ");
  EXPECT_EQ(step(1, "down").text, "\nno number\naction (0 to 3): ");
  EXPECT_EQ(step(1, "4").text, "\n'4' is no action\naction (0 to 3): ");
  EXPECT_THAT(step(1, "not 3 but 2").text, HasSubstr("S[F]FF\nFHFH"));
  for (const char* action : {"2", "1", "1", "1"}) EXPECT_FALSE(step(1, action).done);
  const auto last = step(1, "2");
  EXPECT_TRUE(last.done);
  EXPECT_EQ(last.reward, 1);
  EXPECT_FALSE(step(2, "1").done);
  EXPECT_EQ(step(2, "2").reward, 0) << "a hole";
}

TEST_F(Gymnasium, TheSameSeedIsTheSameWorld) {
  start_gymnasium("FrozenLake-v1");  // slippery: steps are random
  const auto path = [this](uint64_t trajectory, uint32_t seed) {
    std::string texts;
    for (int i = 0; i < 20; ++i) {
      const auto next = step(trajectory, std::to_string(i % 4), seed);
      texts += next.text;
      if (next.done) break;
    }
    return texts;
  };
  EXPECT_EQ(path(1, 5), path(2, 5));
  std::set<std::string> paths;
  for (uint32_t seed = 0; seed < 8; ++seed) paths.insert(path(10 + seed, seed));
  EXPECT_GT(paths.size(), 1U);
}

TEST_F(Gymnasium, ATruncatedEpisodeEndsWithTheRewardsSoFar) {
  start_gymnasium("CartPole-v1", R"({"max_episode_steps": 3})");
  EXPECT_THAT(task(0).prompt, HasSubstr("action (0 to 1): "));
  EXPECT_FALSE(step(1, "0").done);
  EXPECT_FALSE(step(1, "1").done);
  const auto last = step(1, "0");
  EXPECT_TRUE(last.done);
  EXPECT_EQ(last.reward, 3);
}

TEST_F(Gymnasium, ABoxIsReadAsJson) {
  start_gymnasium("Pendulum-v1");
  EXPECT_THAT(step(1, "[0.5").text, HasSubstr("Expecting"));
  EXPECT_THAT(step(1, "{}").text, HasSubstr("float()"));
  EXPECT_THAT(step(1, "[9]").text, HasSubstr("'[9]' is no action"));
  EXPECT_THAT(step(1, "[NaN]").text, HasSubstr("'[NaN]' is no action"));
  EXPECT_THAT(step(1, std::string(100'000, '[')).text, HasSubstr("action (JSON"));
  EXPECT_THAT(step(1, "[0.5]").text, HasSubstr("\n["));
}

TEST_F(Gymnasium, AnAdapterReadsAndWritesTheTexts) {
  options.adapter = write("adapter.py",
                          "NAMES = ['left', 'down', 'right', 'up']\n"
                          "def observe(observation, info, env):\n"
                          "    return f'field {observation}'\n"
                          "def hint(env):\n"
                          "    return 'where? '\n"
                          "def act(text, env):\n"
                          "    if text == 'fall': raise KeyError(text)\n"
                          "    if text not in NAMES: raise ValueError(f'not {text}')\n"
                          "    return NAMES.index(text)\n");
  start_gymnasium("FrozenLake-v1", R"({"is_slippery": false})");
  EXPECT_EQ(task(0).prompt, "field 0\nwhere? ");
  EXPECT_EQ(step(1, "back").text, "\nnot back\nwhere? ");
  EXPECT_EQ(step(1, "right").text, "\nfield 1\nwhere? ");
  const auto fault = turn(1, "fall");
  EXPECT_EQ(fault.end, OutsideEnd::kFailed);
  EXPECT_EQ(fault.body, "KeyError: 'fall' (adapter.py:7)");
}

constexpr std::string_view kRows =
    R"({"prompt": [{"role": "user", "content": "2+3?"}], "env_class": "gsm8k_multi_turn",)"
    R"( "reward_spec": {"method": "rule", "ground_truth": "5"}, "extra_info": {}})"
    "\n\n"
    R"({"prompt": "3+4=", "reward_spec": {"ground_truth": "7"}})"
    "\n";

struct SkyrlGym : PlayedEnvironment {
  void SetUp() override { need("skyrl_gym"); }
  void start_skyrl(const std::string& rows, const std::string& id = "") {
    options.id = id;
    options.file = write("rows.jsonl", rows);
    options.shuffle = false;
    start_environment(skyrl_gym_environment(), options);
  }
  SkyrlOptions options;
};

TEST_F(SkyrlGym, ARowThatIsWrongIsAFailureThatNamesItsLine) {
  start_skyrl(std::string(kRows) + "{\"prompt\": 4}\n", "gsm8k");
  EXPECT_THAT(failure(), HasSubstr("rows.jsonl:4: 'prompt' is a text or a list of messages"));
}

TEST_F(SkyrlGym, AnEnvironmentThatIsNotRegisteredIsAFailure) {
  start_skyrl(R"({"prompt": "x", "env_class": "chess"})");
  EXPECT_THAT(failure(), HasSubstr("No registered env with id: chess"));
}

TEST_F(SkyrlGym, PlaysRowsInTheEnvironmentThatTheyName) {
  options.max_turns = 3;
  start_skyrl(std::string(kRows), "gsm8k");
  const auto chat = task(0);
  ASSERT_THAT(chat.messages, SizeIs(1));
  EXPECT_EQ(text_of(chat.messages[0]), "2+3?");
  EXPECT_EQ(task(1).prompt, "3+4=");
  EXPECT_EQ(task(2).prompt, "2+3?") << "the second epoch";
  const auto again = step(4, "it may be 6");
  ASSERT_THAT(again.messages, SizeIs(1));
  EXPECT_EQ(again.messages[0].role, "user");
  EXPECT_FALSE(step(4, "#### 6").done);
  const auto last = step(4, "#### 5");
  EXPECT_TRUE(last.done);
  EXPECT_NEAR(last.reward, 1 + 0.2 / 3, 1e-9) << "the sum of the rewards of all turns";
}

TEST_F(SkyrlGym, AnEvaluationPlaysTheRowsOfItsFileInTheirOrder) {
  options.eval_file = write("held_out.jsonl",
                            R"({"prompt": "4+4=", "reward_spec": {"ground_truth": "8"}})"
                            "\n"
                            R"({"prompt": "5+4=", "reward_spec": {"ground_truth": "9"}})"
                            "\n");
  start_skyrl(std::string(kRows), "gsm8k");
  EXPECT_EQ(task(1).prompt, "3+4=");
  EXPECT_EQ(task(1, 0, true).prompt, "5+4=");
  ask(++num_calls,
      step_body({.trajectory = 1, .ordinal = 1, .actions = {"#### 9"}, .is_evaluation = true}), 2);
  EXPECT_EQ(read_step(answer_to(num_calls).body)->step.reward, 1);
  ask(++num_calls, task_body(2, 0, true));
  EXPECT_THAT(answer_to(num_calls).body, HasSubstr("held_out.jsonl has 2 rows, row 2 was asked"));
}

TEST_F(SkyrlGym, WithoutAFileOfItsOwnAnEvaluationPlaysTheTrainingRowsInTheirOrder) {
  start_skyrl(std::string(kRows), "gsm8k");
  options.shuffle = true;
  start_environment(skyrl_gym_environment(), options);
  EXPECT_EQ(task(0, 0, true).prompt, "2+3?");
  EXPECT_EQ(task(1, 0, true).prompt, "3+4=");
}

TEST_F(SkyrlGym, PlaysEnvironmentsOfYourOwn) {
  options.config = R"({"word": "again"})";
  options.environments =
      write("echo_env.py",
            "import skyrl_gym\n"
            "from skyrl_gym.envs.base_text_env import BaseTextEnv\n"
            "class Echo(BaseTextEnv):\n"
            "    def __init__(self, env_config, extras):\n"
            "        super().__init__()\n"
            "        self.word, self.answer = env_config.word, extras['answer']\n"
            "    def init(self, prompt):\n"
            "        return prompt + [{'role': 'user', 'content': 'say it'}], {}\n"
            "    def step(self, action):\n"
            "        if action == 'fault': raise RuntimeError('no world')\n"
            "        done = action == self.answer\n"
            "        said = [] if done else [{'role': 'user', 'content': self.word}]\n"
            "        return {'observations': said, 'reward': 0.5, 'done': done, 'metadata': {}}\n"
            "skyrl_gym.register(id='echo', entry_point=Echo)\n");
  start_skyrl(R"({"prompt": "a", "answer": "b"})", "echo");
  EXPECT_EQ(task(0).prompt, "a\nsay it");
  EXPECT_EQ(step(1, "c").text, "again");
  EXPECT_EQ(step(1, "b").reward, 1);
  EXPECT_THAT(turn(2, "fault").body, HasSubstr("RuntimeError: no world (echo_env.py:10)"));
}

}  // namespace
}  // namespace primerl
