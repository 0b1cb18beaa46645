// Env with an environment and rewards outside of the process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "actors/env/env.h"
#include "graph/testing/node_runner.h"
#include "runtime/exec/group_state.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Keeps the calls; the test answers them by hand.
class HandOutside final : public Outside {
 public:
  Status ask(OutsideCall call) override {
    if (is_full) return error(Code::kExhausted, "too many calls");
    calls.push_back(std::move(call));
    return ok();
  }
  void forget(uint32_t, uint64_t session) override { forgotten.push_back(session); }
  std::vector<OutsideAnswer> receive_answers() override {
    std::vector<OutsideAnswer> received;
    while (!answers.empty() && received.size() < kOutsideAnswersMax) {
      received.push_back(std::move(answers.front()));
      answers.pop_front();
    }
    return received;
  }
  void stop() override { is_stopped = true; }
  void set_wake(std::function<void()>) override {}
  bool has_work() const override { return !answers.empty(); }

  std::vector<OutsideCall> of(std::string_view kind) const {
    std::vector<OutsideCall> found;
    for (const auto& call : calls)
      if (call.body.find(fmt::format("\"call\":\"{}\"", kind)) != std::string::npos)
        found.push_back(call);
    return found;
  }
  void answer(const OutsideCall& call, std::string body, OutsideEnd end = OutsideEnd::kDone) {
    answers.push_back({call.id, end, std::move(body)});
  }

  std::vector<OutsideCall> calls;
  std::deque<OutsideAnswer> answers;
  std::vector<uint64_t> forgotten;
  bool is_full = false, is_stopped = false;
};

OutsidePool pool_without_workers(const void*) { return {}; }

struct EnvOutsideStory : ::testing::Test {
  EnvOutsideStory() {
    environment.name = "process";
    environment.outside = &pool_without_workers;
    reward.name = "python";
    reward.outside = &pool_without_workers;
    tenant.name = "main";
    tenant.environment = {"process", nullptr, &environment};
  }
  NodeRunner<Env>& env() {
    if (runner == nullptr) {
      runner = std::make_unique<NodeRunner<Env>>(options);
      runner->set_tenants({tenant});
      runner->use("outside", outside);
      runner->set_room("task", 4);
    }
    return *runner;
  }
  void act(int32_t turn, const std::string& text, std::vector<uint64_t> ended = {},
           std::vector<ChatMessage> messages = {}, const std::string& prompt = "") {
    Action action;
    action.prompt = prompt;
    action.messages = std::move(messages);
    action.trajectory = 9;
    action.ordinal = 3;
    action.first_turn = action.turn = turn;
    action.texts = {text};
    action.ended = std::move(ended);
    ASSERT_TRUE(env().give("action", action).ok());
  }
  /// The observations after one work call.
  std::vector<Observation> observe() {
    EXPECT_TRUE(env().run_work().ok());
    return env().take<Observation>("observation");
  }
  std::string fault_of(const std::string& body, OutsideEnd end = OutsideEnd::kDone) {
    act(0, "a");
    outside.answer(outside.of("step").back(), body, end);
    const auto said = observe();
    EXPECT_THAT(said, SizeIs(1));
    return said.empty() ? "" : said[0].fault;
  }

  EnvironmentContract environment;
  RewardContract reward;
  Tenant tenant;
  EnvOptions options;
  HandOutside outside;
  std::unique_ptr<NodeRunner<Env>> runner;
};

TEST_F(EnvOutsideStory, AnAnswerThatIsNoStepFailsTheRolloutAndIsNeverAReward) {
  EXPECT_THAT(fault_of("{\"text\":\"x\"}"), HasSubstr("no key 'done'"));
  EXPECT_THAT(fault_of("{\"done\":true}"), HasSubstr("no 'reward'"));
  EXPECT_THAT(fault_of("{\"done\":true,\"reward\":\"1\"}"), HasSubstr("a string, not a number"));
  EXPECT_THAT(fault_of("{\"done\":true,\"reward\":NaN}"), HasSubstr("the answer"));
  EXPECT_THAT(fault_of("{\"done\":true,\"reward\":1e999}"), ::testing::Not(IsEmpty()));
  EXPECT_THAT(fault_of("[]"), HasSubstr("an array, not an object"));
  EXPECT_THAT(fault_of("{\"done\":false,\"text\":\"\xff\"}"), ::testing::Not(IsEmpty()));
  EXPECT_THAT(fault_of("it raised", OutsideEnd::kFailed), HasSubstr("it raised"));
  EXPECT_THAT(fault_of("its worker ended", OutsideEnd::kLost), HasSubstr("its worker ended"));
}

TEST_F(EnvOutsideStory, ACallThatIsNotAcceptedFailsItsRollout) {
  (void)env().start();
  outside.is_full = true;
  Action action;
  action.texts = {"a"};
  EXPECT_FALSE(env().give("action", action).ok());
  const auto said = env().take<Observation>("observation");
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0].fault, HasSubstr("too many calls"));
}

TEST_F(EnvOutsideStory, TasksAreSentInTheOrderOfTheirOrdinals) {
  ASSERT_TRUE(env().run_work().ok());
  const auto asked = outside.of("task");
  ASSERT_THAT(asked, SizeIs(kTasksAheadMax));
  EXPECT_THAT(asked[2].body, HasSubstr("\"ordinal\":2"));
  outside.answer(asked[1], R"({"prompt":"one"})");
  ASSERT_TRUE(env().run_work().ok());
  EXPECT_THAT(env().sent<Task>("task"), IsEmpty());
  outside.answer(asked[0], R"({"prompt":"none"})");
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(env().run_work().ok());
  const auto tasks = env().sent<Task>("task");
  ASSERT_THAT(tasks, SizeIs(2));
  EXPECT_EQ(tasks[0].prompt, "none");
  EXPECT_EQ(tasks[1].ordinal, 1U);
  EXPECT_THAT(outside.of("task"), SizeIs(kTasksAheadMax + 2)) << "as many as were sent";
}

TEST_F(EnvOutsideStory, ATaskThatFailsIsSkippedAndTooManyEndTheTenant) {
  options.task_faults_max = 3;
  ASSERT_TRUE(env().run_work().ok());
  const auto asked = outside.of("task");
  for (int i = 0; i < 2; ++i)
    outside.answer(asked[static_cast<size_t>(i)], "ill", OutsideEnd::kFailed);
  outside.answer(asked[2], R"({"prompt":"two"})");
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(env().run_work().ok());
  EXPECT_EQ(env().sent<Task>("task").at(0).ordinal, 2U);
  EXPECT_EQ(env().failure_of(TenantSlot(0)), nullptr);
  for (int i = 3; i < 6; ++i)
    outside.answer(asked[static_cast<size_t>(i)], "ill", OutsideEnd::kFailed);
  ASSERT_TRUE(env().run_work().ok());
  ASSERT_NE(env().failure_of(TenantSlot(0)), nullptr);
  EXPECT_THAT(env().failure_of(TenantSlot(0))->text(), HasSubstr("3 tasks in a row failed"));
}

TEST_F(EnvOutsideStory, AStepIsAskedWithTheNewTurnAloneAndItsAnswerIsTheObservation) {
  act(0, "first");
  const auto first = outside.of("step").back();
  EXPECT_TRUE(first.is_whole);
  EXPECT_EQ(first.session, 10U);
  outside.answer(first, R"({"done":false,"text":"look"})");
  auto said = observe();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].text, "look");
  EXPECT_FALSE(said[0].is_done);
  act(1, "second");
  const auto second = outside.of("step").back();
  EXPECT_FALSE(second.is_whole);
  EXPECT_THAT(second.body, HasSubstr(R"("first_turn":1,"actions":["second"])"));
  outside.answer(second, R"({"done":true,"reward":0.25})");
  said = observe();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_TRUE(said[0].is_done);
  EXPECT_EQ(said[0].reward, 0.25);
  EXPECT_EQ(said[0].turn, 1);
  EXPECT_THAT(outside.forgotten, ElementsAre(10U));
}

TEST_F(EnvOutsideStory, ParsedAnswersAreBesideTheActions) {
  ChatMessage first = chat_message("assistant", "see");
  first.reasoning = "hm";
  first.tool_calls = {{.id = "", .name = "f", .arguments = R"({"x":1})"}};
  act(0, "first", {}, {first});
  EXPECT_THAT(outside.of("step").back().body,
              HasSubstr(R"("actions":["first"],"messages":[{"role":"assistant","content":"see",)"
                        R"("reasoning":"hm","tool_calls":[{"type":"function","function":)"
                        R"({"name":"f","arguments":{"x":1}}}]}])"));
  outside.answer(outside.of("step").back(), R"({"done":false,"text":"look"})");
  ASSERT_THAT(observe(), SizeIs(1));
  act(1, "second", {}, {chat_message("assistant", "done")});
  EXPECT_THAT(
      outside.of("step").back().body,
      HasSubstr(R"("actions":["second"],"messages":[{"role":"assistant","content":"done"}])"));
  outside.answer(outside.of("step").back(), "", OutsideEnd::kNeedsHistory);
  EXPECT_THAT(observe(), IsEmpty());
  EXPECT_THAT(outside.of("step").back().body, HasSubstr(R"("tool_calls":)")) << "all turns";
}

TEST_F(EnvOutsideStory, AnActionWithAnotherNumberOfMessagesIsRefused) {
  (void)env().start();
  Action action;
  action.texts = {"a"};
  action.messages = {chat_message("assistant", "a"), chat_message("assistant", "b")};
  EXPECT_FALSE(env().give("action", action).ok());
  EXPECT_THAT(env().take<Observation>("observation").at(0).fault,
              HasSubstr("1 texts has 2 parsed messages"));
}

TEST_F(EnvOutsideStory, AFreshWorkerPlaysAllTurnsAndMustObserveTheSame) {
  const std::string look = digest({.text = "look"});
  for (const bool is_same : {false, true}) {
    act(0, "first");
    outside.answer(outside.of("step").back(), R"({"done":false,"text":"look"})");
    ASSERT_THAT(observe(), SizeIs(1));
    act(1, "second");
    outside.answer(outside.of("step").back(), "", OutsideEnd::kNeedsHistory);
    EXPECT_THAT(observe(), IsEmpty());
    const auto whole = outside.of("step").back();
    EXPECT_TRUE(whole.is_whole);
    EXPECT_TRUE(whole.is_replay);
    EXPECT_THAT(whole.body, HasSubstr(R"("first_turn":0,"actions":["first","second"])"));
    outside.answer(whole, fmt::format(R"({{"done":true,"reward":1,"played":["{}"]}})",
                                      is_same ? look : digest({.text = "other"})));
    const auto said = observe();
    ASSERT_THAT(said, SizeIs(1));
    EXPECT_THAT(said[0].fault, is_same ? HasSubstr("") : HasSubstr("something else after turn 1"));
    EXPECT_EQ(said[0].reward, is_same ? 1 : 0);
    EXPECT_EQ(said[0].fault.empty(), is_same);
  }
}

TEST_F(EnvOutsideStory, ScoresComeFromHereAndFromOutsideInAnyOrder) {
  tenant.rewards = {{"python", nullptr, &reward, 2, "python"},
                    {"length", nullptr, nullptr, 1, "length"},
                    {"python", nullptr, &reward, -1, "python#2"}};
  act(0, "short");
  outside.answer(outside.of("step").back(), R"({"done":true,"reward":7,"answer":"5"})");
  EXPECT_THAT(observe(), IsEmpty());
  const auto asked = outside.of("reward");
  ASSERT_THAT(asked, SizeIs(2));
  EXPECT_EQ(asked[0].pool, 1U);
  EXPECT_EQ(asked[1].pool, 2U);
  EXPECT_THAT(asked[0].body, HasSubstr(R"("answer":"5","actions":["short"],"given":7)"));
  outside.answer(asked[1], R"({"reward":0.5})");
  EXPECT_THAT(observe(), IsEmpty());
  outside.answer(asked[0], R"({"reward":true})");
  const auto said = observe();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0].scores, ElementsAre(1, 1, 0.5));
  EXPECT_EQ(said[0].reward, 2 + 1 - 0.5);
}

TEST_F(EnvOutsideStory, RewardsReadThePromptThatTheTaskHad) {
  tenant.rewards = {{"python", nullptr, &reward, 1, "python"}};
  act(0, "a", {}, {}, "2+3?");
  outside.answer(outside.of("step").back(), R"({"done":false,"text":"again"})");
  EXPECT_THAT(observe(), SizeIs(1));
  // A restarted instance has it too.
  const SavedFields saved = save_actor(Env::contract(), env().actor());
  runner.reset();
  ASSERT_TRUE(env().start().ok());
  ASSERT_TRUE(restore_actor(Env::contract(), saved, env().actor()).ok());
  act(1, "b");
  outside.answer(outside.of("step").back(), R"({"done":true,"reward":0})");
  EXPECT_THAT(observe(), IsEmpty());
  EXPECT_THAT(outside.of("reward").back().body, HasSubstr(R"("prompt":"2+3?")"));
}

TEST_F(EnvOutsideStory, AStepThatEndsMaySayAnotherPromptForRewards) {
  tenant.rewards = {{"python", nullptr, &reward, 1, "python"}};
  act(0, "a", {}, {}, "2+3?");
  outside.answer(outside.of("step").back(), R"({"done":true,"reward":0,"prompt":"Add 2 to 3."})");
  EXPECT_THAT(observe(), IsEmpty());
  EXPECT_THAT(outside.of("reward").back().body, HasSubstr(R"("prompt":"Add 2 to 3.")"));
}

TEST_F(EnvOutsideStory, ALateAnswerOfAFailedRolloutIsIgnored) {
  tenant.rewards = {{"python", nullptr, &reward, 1, "python"},
                    {"python", nullptr, &reward, 1, "python#2"}};
  act(0, "short");
  outside.answer(outside.of("step").back(), R"({"done":true,"reward":0})");
  EXPECT_THAT(observe(), IsEmpty());
  const auto asked = outside.of("reward");
  outside.answer(asked[0], "it raised", OutsideEnd::kFailed);
  EXPECT_THAT(observe(), SizeIs(1));
  outside.answer(asked[1], R"({"reward":1})");
  outside.answer(asked[1], R"({"reward":1})");
  EXPECT_THAT(observe(), IsEmpty());
}

TEST_F(EnvOutsideStory, OneWorkCallTakesABoundedNumberOfAnswers) {
  for (uint64_t i = 0; i < kOutsideAnswersMax + 1; ++i) {
    Action action;
    action.trajectory = i;
    action.texts = {"a"};
    ASSERT_TRUE(env().give("action", action).ok());
    outside.answer(outside.of("step").back(), R"({"done":true,"reward":1})");
  }
  EXPECT_THAT(observe(), SizeIs(kOutsideAnswersMax));
  EXPECT_THAT(observe(), SizeIs(1));
}

TEST_F(EnvOutsideStory, AnEndedTrajectoryIsForgottenAndADrainStopsEverything) {
  act(0, "a", {4});
  EXPECT_THAT(outside.forgotten, ElementsAre(5U));
  ASSERT_TRUE(env().drain().ok());
  EXPECT_TRUE(outside.is_stopped);
  act(0, "b");
  EXPECT_THAT(env().sent<Observation>("observation"), IsEmpty());
}

TEST_F(EnvOutsideStory, ANewActorContinuesFromTheSavedState) {
  tenant.rewards = {{"python", nullptr, &reward, 1, "python"}};
  act(0, "a");
  outside.answer(outside.of("step").back(), R"({"done":true,"reward":0})");
  EXPECT_THAT(observe(), IsEmpty());
  const SavedFields saved = save_actor(Env::contract(), env().actor());
  runner.reset();
  ASSERT_TRUE(env().start().ok());
  ASSERT_TRUE(restore_actor(Env::contract(), saved, env().actor()).ok());
  outside.answer(outside.of("reward").back(), R"({"reward":0.75})");
  const auto said = observe();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].reward, 0.75);
  EXPECT_EQ(said[0].trajectory, 9U);
}

}  // namespace
}  // namespace primerl
