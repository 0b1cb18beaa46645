#include "actors/env/env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "graph/testing/node_runner.h"
#include "runtime/exec/group_state.h"
#include "tests/actors/fakes.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// The action with the texts of the turns from `first_turn` on.
Action turn_of(uint64_t trajectory, int32_t first_turn, std::vector<std::string> texts) {
  Action action;
  action.trajectory = trajectory;
  action.first_turn = first_turn;
  action.turn = first_turn + static_cast<int32_t>(texts.size()) - 1;
  action.texts = std::move(texts);
  return action;
}

/// Task n is "n:<random number>". The last text of an answer decides: "reward 0.5" (or "nan",
/// "inf") is the reward, "more" asks for another turn, "fault" fails, anything else has the reward
/// 0.5.
class Puzzle final : public Environment {
 public:
  Result<EnvironmentTask> task(uint64_t ordinal, RandomStream random) override {
    if (all_fail || ordinal == broken) return error(Code::kUnavailable, "no puzzle today");
    if (!prompt.empty()) return EnvironmentTask{prompt, ""};
    return EnvironmentTask{fmt::format("{}:{}", ordinal, random.below(1000)), ""};
  }
  Result<EnvironmentStep> step(const EnvironmentTask& task,
                               const std::vector<std::string>& actions) override {
    judged.push_back(task.prompt);
    if (actions.back() == "fault") return error(Code::kUnavailable, "the judge is ill");
    if (actions.back().starts_with("reward "))
      return EnvironmentStep{"", std::stod(actions.back().substr(7)), true};
    if (actions.back() == "more") return EnvironmentStep{more, 0, false};
    return EnvironmentStep{"", 0.5, true};
  }
  uint64_t broken = UINT64_MAX;
  bool all_fail = false;
  std::string more = "go on";
  std::string prompt;  // the prompt of all tasks, if not empty
  std::vector<std::string> judged;
};

struct EnvStory : ::testing::Test {
  EnvStory() {
    auto made = std::make_unique<Puzzle>();
    puzzle = made.get();
    EnvOptions options;
    options.task_faults_max = 3;
    env =
        std::make_unique<NodeRunner<Env>>(options, std::make_unique<Env>(options, std::move(made)));
    env->set_room("task", 4);
  }
  Observation judge(const std::string& text, uint64_t ordinal = 0) {
    Action action;
    action.trajectory = 9;
    action.ordinal = ordinal;
    action.source.number = ordinal;
    action.attempt = 1;
    action.texts = {text};
    (void)env->give("action", action);
    const auto said = env->take<Observation>("observation");
    EXPECT_THAT(said, SizeIs(1));
    return said.empty() ? Observation() : said.front();
  }
  Puzzle* puzzle = nullptr;
  std::unique_ptr<NodeRunner<Env>> env;
};

TEST_F(EnvStory, AFaultOfTheEnvironmentIsAnObservationThatSaysSo) {
  const auto said = judge("fault");
  EXPECT_EQ(said.trajectory, 9U);
  EXPECT_EQ(said.attempt, 1U);
  EXPECT_THAT(said.fault, HasSubstr("the judge is ill"));
  EXPECT_EQ(env->counter("action_faults"), 1);
}

TEST_F(EnvStory, ARewardThatIsNotFiniteIsAFault) {
  for (const std::string reward : {"nan", "inf", "-inf"}) {
    const auto said = judge("reward " + reward);
    EXPECT_THAT(said.fault, HasSubstr("the environment gave the reward " + reward));
    EXPECT_EQ(said.reward, 0);
  }
}

TEST_F(EnvStory, AnyFiniteNumberIsAReward) {
  for (const double reward : {-3.5, 0.0, 1.0, 42.0, -1e6, 1e6}) {
    const auto said = judge(fmt::format("reward {}", reward));
    EXPECT_EQ(said.fault, "");
    EXPECT_EQ(said.reward, reward);
  }
}

TEST_F(EnvStory, ATaskThatCannotBeMadeFaultsItsRolloutAndIsSkipped) {
  puzzle->broken = 1;
  EXPECT_THAT(judge("anything", 1).fault, HasSubstr("no puzzle today"));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(env->run_work().ok());
  const auto tasks = env->sent<Task>("task");
  ASSERT_THAT(tasks, SizeIs(2));
  EXPECT_EQ(tasks[0].ordinal, 0U);
  EXPECT_EQ(tasks[1].ordinal, 2U);
}

TEST_F(EnvStory, TooManyTaskFaultsInARowFailTheTenant) {
  puzzle->all_fail = true;
  EXPECT_TRUE(env->run_work().ok());
  EXPECT_TRUE(env->run_work().ok());
  EXPECT_EQ(env->failure_of(TenantSlot(0)), nullptr) << "two of three";
  EXPECT_TRUE(env->run_work().ok());
  ASSERT_NE(env->failure_of(TenantSlot(0)), nullptr);
  EXPECT_THAT(env->failure_of(TenantSlot(0))->text(), HasSubstr("3 tasks in a row failed"));
  puzzle->all_fail = false;
  EXPECT_FALSE(*env->run_work());
  EXPECT_THAT(env->sent<Task>("task"), IsEmpty()) << "no task is given any more";
}

TEST_F(EnvStory, GivesTasksWhileTheEdgeHasRoom) {
  env->set_room("task", 0);
  ASSERT_FALSE(*env->run_work());
  EXPECT_THAT(env->sent<Task>("task"), IsEmpty());
  env->set_room("task", 1);
  ASSERT_FALSE(*env->run_work());
  EXPECT_THAT(env->sent<Task>("task"), SizeIs(1));
}

TEST_F(EnvStory, JudgesTheTaskThatItGave) {
  ASSERT_TRUE(env->run_work().ok());
  ASSERT_TRUE(env->run_work().ok());
  const auto said = judge("reward", 1);
  EXPECT_TRUE(said.is_done);
  EXPECT_EQ(said.reward, 0.5);
  EXPECT_THAT(puzzle->judged, ElementsAre(env->sent<Task>("task")[1].prompt));
}

TEST_F(EnvStory, AskingForMoreIsNotTheEnd) {
  const auto said = judge("more");
  EXPECT_FALSE(said.is_done);
  EXPECT_EQ(said.text, "go on");
}

TEST_F(EnvStory, AResumedRunSkipsConsumedOrdinals) {
  ResumePoint point;
  point.manifest = *parse_json(R"({"consumed": [[0, 1], [3, 3]]})", "manifest");
  env->set_resume_point(TenantSlot(0), point);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(env->run_work().ok());
  std::vector<uint64_t> ordinals;
  for (const auto& task : env->sent<Task>("task")) ordinals.push_back(task.ordinal);
  EXPECT_THAT(ordinals, ElementsAre(2, 4, 5));
}

TEST_F(EnvStory, AReplacementContinuesWhereTheStuckOneWas) {
  ASSERT_TRUE(env->run_work().ok());
  const Contract contract = Env::contract();
  const SavedFields state = save_actor(contract, env->node());
  EnvOptions options;
  NodeRunner<Env> fresh(options, std::make_unique<Env>(options, std::make_unique<Puzzle>()));
  ASSERT_TRUE(fresh.start().ok());
  ASSERT_TRUE(restore_actor(contract, state, fresh.node()).ok());
  ASSERT_TRUE(fresh.run_work().ok());
  EXPECT_EQ(fresh.sent<Task>("task").front().ordinal, 1U);
  EXPECT_FALSE(restore_actor(contract, {}, fresh.node()).ok());
}

TEST_F(EnvStory, OnlyTheFirstReplicaGivesTasks) {
  env->set_replica(1);
  EXPECT_FALSE(*env->run_work());
  EXPECT_THAT(env->sent<Task>("task"), IsEmpty());
  EXPECT_TRUE(judge("reward").is_done) << "the others judge";
}

TEST_F(EnvStory, AnAnswerThatIsTooLongIsNotSent) {
  EnvOptions options;
  options.text_bytes_max = 5;
  for (const auto& [length, is_too_long] : {std::pair(5, false), std::pair(6, true)}) {
    auto made = std::make_unique<Puzzle>();
    made->more.assign(static_cast<size_t>(length), 'x');
    NodeRunner<Env> short_env(options, std::make_unique<Env>(options, std::move(made)));
    ASSERT_TRUE(short_env.give("action", turn_of(9, 0, {"more"})).ok());
    const auto said = short_env.take<Observation>("observation");
    ASSERT_THAT(said, SizeIs(1));
    EXPECT_EQ(said[0].is_too_long, is_too_long);
    EXPECT_EQ(said[0].text, is_too_long ? "" : "xxxxx");
    EXPECT_TRUE(said[0].fault.empty());
  }
}

TEST_F(EnvStory, APromptThatIsTooLongIsATaskThatFailed) {
  EnvOptions options;
  options.text_bytes_max = 5;
  for (const auto& [length, num_tasks] : {std::pair(5, 1U), std::pair(6, 0U)}) {
    auto made = std::make_unique<Puzzle>();
    made->prompt.assign(static_cast<size_t>(length), 'x');
    NodeRunner<Env> short_env(options, std::make_unique<Env>(options, std::move(made)));
    short_env.set_room("task", 1);
    ASSERT_TRUE(short_env.run_work().ok());
    EXPECT_THAT(short_env.sent<Task>("task"), SizeIs(num_tasks));
    EXPECT_EQ(short_env.counter("task_faults"), num_tasks == 0 ? 1 : 0);
  }
}

// Otherwise the end of a run would wait for many calls whose results are not needed.
TEST_F(EnvStory, ADrainingEnvMakesNoEnvironmentCalls) {
  ASSERT_TRUE(env->drain().ok());
  EXPECT_TRUE(env->give("action", turn_of(9, 0, {"reward"})).ok());
  EXPECT_THAT(env->take<Observation>("observation"), IsEmpty());
  EXPECT_THAT(puzzle->judged, IsEmpty());
}

/// Counts the turns that were played; "over" ends the trajectory.
class Counted final : public Environment {
 public:
  struct Sandbox final : World {
    explicit Sandbox(Counted& counted) : owner(counted) { ++owner.num_begun; }
    ~Sandbox() override { ++owner.num_gone; }
    Result<EnvironmentStep> step(const std::string& action) override {
      ++owner.num_steps;
      if (action == "fault") return error(Code::kUnavailable, "broken");
      played += action;
      return EnvironmentStep{played, 1, action == "over"};
    }
    Counted& owner;
    std::string played;
  };
  Result<EnvironmentTask> task(uint64_t, RandomStream) override {
    return EnvironmentTask{"?", "!"};
  }
  Result<EnvironmentStep> step(const EnvironmentTask&, const std::vector<std::string>&) override {
    return error(Code::kInternal, "it plays worlds");
  }
  Result<std::unique_ptr<World>> begin(const EnvironmentTask&) override {
    return std::unique_ptr<World>(std::make_unique<Sandbox>(*this));
  }
  int num_begun = 0, num_gone = 0, num_steps = 0;
};

struct WorldStory : ::testing::Test {
  explicit WorldStory(int64_t worlds_max = 2) {
    options.worlds_max = worlds_max;
    auto made = std::make_unique<Counted>();
    counted = made.get();
    env =
        std::make_unique<NodeRunner<Env>>(options, std::make_unique<Env>(options, std::move(made)));
  }
  Observation act(const Action& action) {
    (void)env->give("action", action);
    const auto said = env->take<Observation>("observation");
    EXPECT_THAT(said, SizeIs(1));
    return said.empty() ? Observation() : said.front();
  }
  EnvOptions options;
  Counted* counted = nullptr;
  std::unique_ptr<NodeRunner<Env>> env;
};

TEST_F(WorldStory, NoTurnPlaysTheEarlierOnesAgain) {
  EXPECT_EQ(act(turn_of(1, 0, {"a"})).text, "a");
  EXPECT_EQ(act(turn_of(1, 1, {"b"})).text, "ab");
  EXPECT_EQ(act(turn_of(1, 2, {"c"})).text, "abc");
  EXPECT_EQ(counted->num_begun, 1);
  EXPECT_EQ(counted->num_steps, 3);
  EXPECT_TRUE(act(turn_of(1, 3, {"over"})).is_done);
  EXPECT_EQ(counted->num_gone, 1) << "a world that is over is given up at once";
}

TEST_F(WorldStory, AnUnknownTrajectoryIsAskedForAllItsTurns) {
  EXPECT_TRUE(act(turn_of(1, 1, {"b"})).needs_history);
  EXPECT_EQ(counted->num_steps, 0);
  const auto said = act(turn_of(1, 0, {"a", "b"}));
  EXPECT_FALSE(said.needs_history);
  EXPECT_EQ(said.text, "ab");
  EXPECT_EQ(env->counter("trajectories_unknown"), 1);
}

TEST_F(WorldStory, ATurnThatWasLeftOutIsNoticed) {
  (void)act(turn_of(1, 0, {"a"}));
  EXPECT_TRUE(act(turn_of(1, 2, {"c"})).needs_history);
}

TEST_F(WorldStory, AboveWorldsMaxTheLeastRecentlyUsedWorldIsDropped) {
  (void)act(turn_of(1, 0, {"a"}));
  (void)act(turn_of(2, 0, {"a"}));
  (void)act(turn_of(1, 1, {"b"}));
  EXPECT_EQ(counted->num_gone, 0) << "two fit";
  (void)act(turn_of(3, 0, {"a"}));
  EXPECT_EQ(counted->num_gone, 1);
  EXPECT_FALSE(act(turn_of(1, 2, {"c"})).needs_history);
  EXPECT_TRUE(act(turn_of(2, 1, {"b"})).needs_history);
}

TEST_F(WorldStory, ATrajectoryThatEndedElsewhereIsDropped) {
  (void)act(turn_of(1, 0, {"a"}));
  Action next = turn_of(2, 0, {"a"});
  next.ended = {1, 77};
  (void)act(next);
  EXPECT_EQ(counted->num_gone, 1);
  EXPECT_TRUE(act(turn_of(1, 1, {"b"})).needs_history);
}

TEST_F(WorldStory, AFaultEndsTheWorld) {
  (void)act(turn_of(1, 0, {"a"}));
  EXPECT_THAT(act(turn_of(1, 1, {"fault"})).fault, HasSubstr("broken"));
  EXPECT_EQ(counted->num_gone, 1);
}

TEST_F(WorldStory, ARestoredActorPlaysTheEarlierTurnsOnce) {
  (void)act(turn_of(1, 0, {"a"}));
  (void)act(turn_of(1, 1, {"b"}));
  const Contract contract = Env::contract();
  const SavedFields state = save_actor(contract, env->node());
  struct Another : WorldStory {
    void TestBody() override {}
  } other;
  ASSERT_TRUE(other.env->start().ok());
  ASSERT_TRUE(restore_actor(contract, state, other.env->node()).ok());
  EXPECT_EQ(other.act(turn_of(1, 2, {"c"})).text, "abc");
  EXPECT_EQ(other.counted->num_steps, 3);
  EXPECT_EQ(other.act(turn_of(1, 3, {"d"})).text, "abcd");
  EXPECT_EQ(other.counted->num_steps, 4);
}

TEST_F(WorldStory, EachCallOfAWorldThatIsPlayedAgainReportsProgress) {
  Worlds worlds;
  auto* played = worlds.add(turn_of(1, 0, {"a", "b", "c"}), 2);
  ASSERT_NE(played, nullptr);
  int num_signs = 0;
  const auto said = Worlds::play(
      *played, [this] { return counted->begin({}); }, [&num_signs] { ++num_signs; });
  EXPECT_EQ(said->text, "abc");
  EXPECT_EQ(num_signs, 3);
}

TEST_F(WorldStory, AnActionWhoseTurnsDoNotAddUpIsRefused) {
  Action action = turn_of(1, 0, {"a"});
  action.turn = 4;
  EXPECT_THAT(act(action).fault, HasSubstr("turn 4 has 1 texts from turn 0 on"));
  EXPECT_THAT(act(turn_of(1, 0, {})).fault, HasSubstr("0 texts"));
}

/// The observation from an Env whose tenant names a reward.
Observation judged_by(TenantReward reward, const std::string& text) {
  Tenant tenant;
  tenant.environment.name = "copy";
  if (!reward.name.empty()) tenant.rewards.push_back(std::move(reward));
  NodeRunner<Env> env;
  env.set_tenants({tenant});
  Action action;
  action.texts = {text};
  (void)env.give("action", action);
  const auto said = env.take<Observation>("observation");
  EXPECT_THAT(said, SizeIs(1));
  return said.empty() ? Observation() : said.front();
}

TEST(EnvReward, OfTheTenantReplacesTheEnvironmentsReward) {
  EXPECT_EQ(judged_by({"exact", nullptr}, "no such word").reward, 0);
  EXPECT_TRUE(judged_by({"exact", nullptr}, "no such word").is_done);
}

TEST(EnvReward, GetsTheEnvironmentsReward) {
  class Double final : public Reward {
    Result<double> score(const EnvironmentTask&, const std::vector<std::string>&,
                         double given) override {
      return 2 * given + 1;
    }
  };
  RewardContract contract;
  contract.name = "double";
  contract.make = [](const void*) -> Result<std::unique_ptr<Reward>> {
    return std::unique_ptr<Reward>(std::make_unique<Double>());
  };
  const double given = judged_by({}, "x").reward;
  EXPECT_EQ(judged_by({"double", nullptr, &contract}, "x").reward, 2 * given + 1);
}

TEST(EnvReward, OfSeveralIsTheSumOfScoresTimesWeights) {
  Tenant tenant;
  tenant.environment.name = "copy";
  tenant.rewards = {{"length", nullptr, nullptr, 0.5}, {"exact", nullptr, nullptr, 2}};
  NodeRunner<Env> env;
  env.set_tenants({tenant});
  Action action;
  action.texts = {"no such word"};
  (void)env.give("action", action);
  const auto said = env.take<Observation>("observation");
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0].scores, ElementsAre(1, 0));
  EXPECT_EQ(said[0].reward, 0.5);
}

TEST(EnvReward, ThatFailsOrIsNotFiniteFaultsItsRollout) {
  class Broken final : public Reward {
    Result<double> score(const EnvironmentTask&, const std::vector<std::string>& actions,
                         double) override {
      if (actions.back() == "nan") return NAN;
      if (actions.back() == "inf") return INFINITY;
      if (actions.back() == "finite") return -7.25;
      return error(Code::kUnavailable, "the judge is ill");
    }
  };
  RewardContract contract;
  contract.name = "broken";
  contract.make = [](const void*) -> Result<std::unique_ptr<Reward>> {
    return std::unique_ptr<Reward>(std::make_unique<Broken>());
  };
  const TenantReward reward{"broken", nullptr, &contract};
  EXPECT_THAT(judged_by(reward, "x").fault, HasSubstr("the judge is ill"));
  for (const std::string number : {"nan", "inf"})
    EXPECT_THAT(judged_by(reward, number).fault,
                HasSubstr("the tenant's reward gave the reward " + number));
  EXPECT_EQ(judged_by(reward, "finite").fault, "");
  EXPECT_EQ(judged_by(reward, "finite").reward, -7.25);
}

Tenant a_tenant_with_rows() {
  Tenant tenant = testing::a_tenant();
  tenant.eval = {.interval = 1, .rows = 3};
  return tenant;
}

Action asks_for_row(uint64_t ordinal) {
  Action action;
  action.trajectory = 5;
  action.ordinal = ordinal;
  action.attempt = 2;
  action.turn = -1;
  return action;
}

TEST_F(EnvStory, TheFirstObservationOfAnEvaluationIsTheTaskOfItsRow) {
  env->set_tenants({a_tenant_with_rows()});
  std::vector<std::string> prompts;
  for (const int64_t version : {0, 7}) {
    ASSERT_TRUE(
        env->give("action", asks_for_row(evaluation_ordinal(PolicyVersion(version), 2, 3))).ok());
    const auto said = env->take<Observation>("observation");
    ASSERT_THAT(said, SizeIs(1));
    EXPECT_EQ(said[0].trajectory, 5U);
    EXPECT_EQ(said[0].attempt, 2U);
    EXPECT_EQ(said[0].turn, -1);
    EXPECT_FALSE(said[0].is_done);
    prompts.push_back(said[0].text);
  }
  EXPECT_TRUE(prompts[0].starts_with("2:"));
  EXPECT_EQ(prompts[0], prompts[1]) << "the same row for every version";
  // The training task 2 has other random numbers.
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(env->run_work().ok());
  EXPECT_NE(env->sent<Task>("task")[2].prompt, prompts[0]);
}

TEST_F(EnvStory, ATaskIsGivenOnlyForTheOrdinalOfAnEvaluation) {
  env->set_tenants({a_tenant_with_rows()});
  EXPECT_FALSE(env->give("action", asks_for_row(2)).ok());
  EXPECT_THAT(env->take<Observation>("observation")[0].fault, HasSubstr("asks for the task"));
  Action with_text = asks_for_row(kEvaluationOrdinals);
  with_text.texts = {"a"};
  EXPECT_FALSE(env->give("action", with_text).ok());
}

TEST_F(EnvStory, ARowWithoutATaskIsAFault) {
  env->set_tenants({a_tenant_with_rows()});
  puzzle->all_fail = true;
  EXPECT_FALSE(env->give("action", asks_for_row(kEvaluationOrdinals)).ok());
  const auto said = env->take<Observation>("observation");
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0].fault, HasSubstr("no puzzle today"));
  EXPECT_EQ(said[0].turn, -1);
}

TEST_F(EnvStory, AfterTheLastTaskOfAllEpochsOneEmptyTaskFollows) {
  Tenant tenant = testing::a_tenant();
  tenant.tasks_max = 2;
  env->set_tenants({tenant});
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(env->run_work().ok());
  const auto tasks = env->sent<Task>("task");
  ASSERT_THAT(tasks, SizeIs(3));
  EXPECT_EQ(tasks[1].ordinal, 1U);
  EXPECT_EQ(tasks[2].ordinal, 2U);
  EXPECT_EQ(tasks[2].prompt, "");
}

}  // namespace
}  // namespace primerl
