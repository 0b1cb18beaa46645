// The example of a verifiers environment with the real package: a server plays the rollouts of a
// real model, and the run is recorded, replayed, killed and resumed.
#include <gmock/gmock.h>

#include <csignal>
#include <cstdlib>
#include <set>

#include "tests/base/real_model.h"
#include "tests/base/verifiers_python.h"
#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::AnyOfArray;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;

namespace fs = std::filesystem;

/// A small model of characters, whose tokenizer has a chat template here. Versions before 0.2 have
/// no tasksets: they get the same sums by load_environment().
class VerifiersRun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::verifiers_pythons().empty())
      GTEST_SKIP() << "no package 'verifiers': `scripts/setup.sh --tests` installs it";
    python_ = testing::verifiers_pythons().back();
    if (!fs::exists(python_))
      GTEST_SKIP() << "no program '" << python_ << "': `scripts/setup.sh --soak` makes it";
    const fs::path tokenizer = scratch_.path() / "tokenizer";
    fs::create_directory(tokenizer);
    fs::copy_file(source_path("examples/reverse_text/model/tokenizer.json"),
                  tokenizer / "tokenizer.json");
    write_text(tokenizer / "config.json", R"({"model_type": "llama"})");
    write_text(tokenizer / "tokenizer_config.json",
               R"({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>",
                   "chat_template": "{% for m in messages %}{{ m.content }} {% endfor %}"})");
    const std::string place =
        is_old() ? "id = \"sums_of_rows\", env_dir = \"" + source_path("tests/e2e/verifiers")
                 : "id = \"sums\", env_dir = \"" + source_path("examples/verifiers");
    write_text(scratch_.path() / "graph.toml",
               "[graph]\nname = \"sums\"\nseed = 5\n[tenant.main]\n"
               "environment = { name = \"verifiers\", " +
                   place + "\", python = \"" + python_ + "\", renderer_model = \"" +
                   tokenizer.string() +
                   "\" }\nsampling = { max_tokens = 8 }\nturns_max = 2\ngroup_size = 4\n"
                   "batch_size = 8\nmax_off_policy_steps = 2\n"
                   "filters = { zero_advantage = false }\n[model.policy]\npath = \"" +
                   source_path("examples/reverse_text/model") +
                   "\"\n[resource.learner]\noptimizer = { lr = 1e-4 }\n");
  }
  bool is_old() const {
    const char* probe =
        " -c 'from importlib.metadata import version; exit(version(\"verifiers\") < \"0.2\")'";
    return std::system((python_ + probe).c_str()) != 0;
  }
  std::string graph() const { return (scratch_.path() / "graph.toml").string(); }
  std::vector<std::string> run_words(int64_t num_steps) const {
    return {"run", graph(), "--max-steps",   std::to_string(num_steps), "--metrics-port",
            "off", "--out", folder_.string()};
  }
  /// Checks the rollouts that trained; a server that is killed too often fails some.
  static void expect_rollouts_that_train(const fs::path& folder) {
    size_t num_trained = 0;
    for (const Json& rollout : lines_of(folder / "rollouts.jsonl")) {
      if (*rollout.get_string("end") != "trained") continue;
      ++num_trained;
      EXPECT_THAT(*rollout.get_double("reward"), AllOf(Ge(0), Le(1))) << rollout.dump();
      EXPECT_EQ(*rollout.get_int("turns_unmatched"), 0) << rollout.dump();
      EXPECT_THAT(*rollout.get_string("prompt"), HasSubstr(" + ")) << rollout.dump();
    }
    EXPECT_GT(num_trained, 0);
  }
  static std::set<int64_t> groups_of_step(const fs::path& folder, int64_t step) {
    std::set<int64_t> groups;
    for (const Json& rollout : lines_of(folder / "rollouts.jsonl"))
      if (*rollout.get_int("step") == step) groups.insert(*rollout.get_int("group"));
    EXPECT_FALSE(groups.empty());
    return groups;
  }

  std::string python_;
  ScratchFolder scratch_;
  const fs::path folder_ = scratch_.path() / "run";
};

TEST_F(VerifiersRun, CheckStartsTheServerAndReadsTasks) {
  const auto end = run_graph_program({"check", graph(), "--start"});
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("3 tasks given"));
}

TEST_F(VerifiersRun, TrainsTwoStepsRepeatsThemAndIsForkedAfterTheFirst) {
  const auto end = run_graph_program(run_words(2));
  ASSERT_EQ(end.code, 0) << end.err;
  const auto steps = steps_of(folder_);
  ASSERT_EQ(steps.size(), 2);
  for (const Json& step : steps) EXPECT_EQ(*step.get_int("progress/samples"), 8);
  // Tokens of the first version train under the same weights: engine and learner agree to the bit.
  EXPECT_EQ(steps[0].find("mismatch_kl/all/mean")->as_double(), 0.0);
  expect_rollouts_that_train(folder_);
  expect_steps_and_rollouts_once(folder_);
  const auto replay = run_graph_program({"replay", folder_.string()});
  EXPECT_EQ(replay.code, 0) << replay.out << replay.err;
  // There is no checkpoint of step 1. It is made from the recorded turns; no server is asked.
  const std::string before = *read_text_file(folder_ / "rollouts.jsonl");
  const fs::path fork = scratch_.path() / "fork";
  const auto forked =
      run_graph_program({"run", "--fork", folder_.string() + "@step=1", "--max-steps", "2",
                         "--metrics-port", "off", "--out", fork.string()});
  ASSERT_EQ(forked.code, 0) << forked.err;
  EXPECT_THAT(forked.err, HasSubstr("re-making the checkpoint of step 1"));
  ASSERT_EQ(steps_of(fork).size(), 1U);
  EXPECT_EQ(*steps_of(fork)[0].get_int("step"), 2);
  expect_rollouts_of_every_step(fork);
  expect_rollouts_that_train(fork);
  // The groups of step 1 were consumed, so other tasks are played.
  EXPECT_THAT(groups_of_step(fork, 2), Each(Not(AnyOfArray(groups_of_step(folder_, 1)))));
  EXPECT_EQ(*read_text_file(folder_ / "rollouts.jsonl"), before);
  expect_replays(fork);
}

TEST_F(VerifiersRun, AKilledRunContinuesWhereItWas) {
  auto command = run_words(3);
  command.insert(command.begin(), "primerl-graph");
  {
    Program run(command);
    ASSERT_TRUE(wait_until([&] { return num_lines(folder_ / "metrics.jsonl") >= 1; }));
    ::kill(run.pid(), SIGKILL);
  }
  const auto end =
      run_graph_program({"run", "--resume", folder_.string(), "--metrics-port", "off"});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(expect_steps_and_rollouts_once(folder_), 3);
  expect_rollouts_of_every_step(folder_);
  expect_rollouts_that_train(folder_);
  expect_replays(folder_);
}

/// The processes below `parent` that are servers: children of a process with the same words.
std::vector<pid_t> servers_below(pid_t parent) {
  std::vector<pid_t> servers;
  for (const pid_t child : children_of(parent)) {
    const std::string words = line_of_process(child, "cmdline");
    if (words.find("\"serves\"") != std::string::npos &&
        words == line_of_process(parent, "cmdline"))
      servers.push_back(child);
    const auto below = servers_below(child);
    servers.insert(servers.end(), below.begin(), below.end());
  }
  return servers;
}

TEST_F(VerifiersRun, AServerThatIsKilledIsStartedAgainAndEachRolloutEndsOnce) {
  const char* set = std::getenv("PRIMERL_VERIFIERS_KILLS");
  const int num_kills = set == nullptr ? 1 : std::atoi(set);
  auto command = run_words(num_kills + 1);
  command.insert(command.begin(), "primerl-graph");
  Program run(command);
  // Each new server is killed after a rollout has come back from it, or when it has one.
  for (int kill = 0; kill < num_kills; ++kill) {
    const size_t num_rollouts = num_lines(folder_ / "rollouts.jsonl");
    ASSERT_TRUE(wait_until(
        [&] { return !run.is_running() || num_lines(folder_ / "rollouts.jsonl") > num_rollouts; }));
    for (const pid_t server : servers_below(run.pid())) ::kill(server, SIGKILL);
  }
  const auto end = run.wait();
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(expect_steps_and_rollouts_once(folder_), num_kills + 1);
  expect_rollouts_of_every_step(folder_);
  expect_rollouts_that_train(folder_);
  expect_replays(folder_);
}

TEST(SmolLM2Verifiers, TheExampleTrainsAStepAndRepeatsIt) {
  if (testing::verifiers_pythons().empty())
    GTEST_SKIP() << "no package 'verifiers': `scripts/setup.sh --tests` installs it";
  const auto model = testing::smollm2_folder();
  if (!model) GTEST_SKIP() << "no folder of SmolLM2: `scripts/setup.sh --tests` makes it";
  const ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  std::vector<std::string> words{"run", source_path("examples/verifiers/graph.toml")};
  for (const std::string& set :
       {"model.policy.path=\"" + model->string() + "\"",
        "tenant.main.environment.python=\"" + testing::verifiers_pythons().front() + "\"",
        std::string("tenant.main.batch_size=4"), std::string("tenant.main.group_size=2"),
        std::string("tenant.main.sampling.max_tokens=8"),
        std::string("tenant.main.filters.zero_advantage=false"),
        // Without moments a checkpoint has 0.5 GB in place of 1.6.
        std::string("resource.learner.optimizer.kind=\"sgd\""),
        std::string("resource.learner.optimizer.momentum=0")})
    words.insert(words.end(), {"--set", set});
  words.insert(words.end(),
               {"--max-steps", "1", "--metrics-port", "off", "--out", folder.string()});
  const auto end = run_graph_program(words);
  ASSERT_EQ(end.code, 0) << end.err;
  const auto steps = steps_of(folder);
  ASSERT_EQ(steps.size(), 1);
  EXPECT_EQ(steps[0].find("mismatch_kl/all/mean")->as_double(), 0.0);
  fs::remove_all(folder / "checkpoints");  // a replay needs none
  const auto replay = run_graph_program({"replay", folder.string()});
  EXPECT_EQ(replay.code, 0) << replay.out << replay.err;
}

}  // namespace
}  // namespace primerl
