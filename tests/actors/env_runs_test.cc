// Runs that an environment's server plays: calls, answers, cancels, bad answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/env/env.h"
#include "actors/env/run_calls.h"
#include "graph/base/json.h"
#include "graph/testing/node_runner.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

/// Keeps the calls; the test answers them.
class RunServer final : public Outside {
 public:
  Status ask(OutsideCall call) override {
    if (is_full) return error(Code::kExhausted, "too many calls");
    calls.push_back(std::move(call));
    return ok();
  }
  void forget(uint32_t, uint64_t session) override { forgotten.push_back(session); }
  std::vector<OutsideAnswer> receive_answers() override { return std::exchange(answers, {}); }
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

  std::vector<OutsideCall> calls;
  std::vector<OutsideAnswer> answers;
  std::vector<uint64_t> forgotten;
  bool is_full = false, is_stopped = false;
};

OutsidePool server_pool(const void*) {
  OutsidePool pool;
  pool.kind = OutsidePoolKind::kVerifiers;
  pool.run_timeout = Duration::seconds(100);
  pool.verifiers.api_key_var = "KEY";
  return pool;
}

constexpr std::string_view kAnswer =
    R"({"members":[{"end":"done","reward":0.5,"scores":{"correct":1,"skipped":null},)"
    R"("metrics":{"num_turns":2},"is_truncated":true,"stop_condition":"length",)"
    R"("num_tool_calls":3,"session":"x","branches":[{"tokens":[1,2,3],"sampled":[[1,3]]}]}]})";

struct EnvRunsStory : ::testing::Test {
  EnvRunsStory() {
    environment.name = "verifiers";
    environment.outside = &server_pool;
    environment.drives_rollouts = true;
    tenant.name = "main";
    tenant.environment = {"verifiers", nullptr, &environment};
    env.set_tenants({tenant});
    env.use("outside", server);
    env.set_room("task", 4);
  }
  static primerl::Run a_run(const MemberName& name = {3, 0, 1}, int32_t num_members = 1) {
    primerl::Run run;
    run.name = name;
    run.num_members = num_members;
    run.base_url = "http://127.0.0.1:9";
    run.salt = "k|main.3.0.1.1@0";
    run.sampling.temperature = 0.5;
    run.sampling.max_tokens = 7;
    run.data = R"({"task_idx":3})";
    run.time_left = Duration::seconds(7);
    return run;
  }
  void play(const primerl::Run& run) { ASSERT_TRUE(env.give("run", run).ok()); }
  void answer(const OutsideCall& call, std::string_view body, OutsideEnd end = OutsideEnd::kDone) {
    server.answers.push_back({call.id, end, std::string(body)});
    ASSERT_TRUE(env.run_work().ok());
  }
  std::vector<RunAnswered> ended() { return env.take<RunAnswered>("run_answered"); }
  std::string fault_of(std::string_view body, OutsideEnd end = OutsideEnd::kDone) {
    play(a_run());
    answer(server.of("run").back(), body, end);
    const auto all = ended();
    EXPECT_THAT(all, SizeIs(1));
    if (all.empty()) return "";
    return all[0].members.empty() ? all[0].fault : all[0].members[0].fault;
  }

  EnvironmentContract environment;
  Tenant tenant;
  RunServer server;
  NodeRunner<Env> env;
};

struct EnvEpochsStory : EnvRunsStory {
  EnvEpochsStory() {
    environment.rows = [](const void*) -> Result<EnvironmentContract::Rows> {
      return EnvironmentContract::Rows{3, 0};
    };
    tenant.epochs = 2;
    tenant.tasks_max = 6;  // as `check` counts them
    env.set_tenants({tenant});
    env.set_room("task", 100);
  }
  void answer_tasks(std::string_view num_tasks) {
    ASSERT_TRUE(env.run_work().ok());
    for (const OutsideCall& call : std::exchange(server.calls, {}))
      answer(call, fmt::format(R"({{"data":{{}},"prompt":"p","scores_groups":false,)"
                               R"("num_tasks":{}}})",
                               num_tasks));
    ASSERT_TRUE(env.run_work_until_done().ok());
  }
};

TEST_F(EnvEpochsStory, TheTasksOfAllEpochsAreAskedForAndThenOneSaysThatNoMoreFollow) {
  std::vector<uint64_t> ordinals;
  std::string last = "none";
  for (int i = 0; i < 10; ++i) {
    answer_tasks("3");
    for (const Task& task : env.take<Task>("task")) {
      ordinals.push_back(task.ordinal);
      last = task.prompt;
    }
  }
  EXPECT_THAT(ordinals, ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_EQ(last, "") << "the empty one";
  EXPECT_THAT(server.calls, IsEmpty());
}

TEST_F(EnvEpochsStory, TheFirstTaskOfAnEnvironmentWithAnotherNumberOfTasksEndsTheRun) {
  const auto fault = [](std::string_view num_tasks) {
    const Status checked = check_num_tasks(fmt::format(R"({{"num_tasks":{}}})", num_tasks), 3);
    return checked.ok() ? "" : checked.error().text();
  };
  EXPECT_EQ(fault("3"), "");
  EXPECT_THAT(fault("2"), HasSubstr("'num_tasks' is 3, but the environment has 2 tasks"));
  EXPECT_THAT(fault("null"), HasSubstr("tasks have no end"));
  answer_tasks("4");
  ASSERT_NE(env.failure_of(TenantSlot(0)), nullptr);
  EXPECT_THAT(env.failure_of(TenantSlot(0))->text(), HasSubstr("the environment has 4 tasks"));
  EXPECT_THAT(env.take<Task>("task"), IsEmpty());
}

TEST_F(EnvRunsStory, TheEndOfATrajectoryIsNotTheEndOfARunWithItsNumber) {
  tenant.eval = {.interval = 1, .rows = 2};
  env.set_tenants({tenant});
  play(a_run());
  Action action;
  action.ordinal = kEvaluationOrdinals;
  action.turn = kAsksTask;
  action.ended = {server.of("run").at(0).session - 1};  // the session of trajectory n is n + 1
  ASSERT_TRUE(env.give("action", action).ok());
  EXPECT_THAT(server.forgotten, IsEmpty());
}

TEST_F(EnvRunsStory, AnAnswerThatIsNoResultFailsTheRunAndIsNeverAReward) {
  const auto member = [](std::string_view text) {
    return fmt::format("{{\"members\":[{}]}}", text);
  };
  EXPECT_THAT(fault_of("[]"), HasSubstr("an array, not an object"));
  EXPECT_THAT(fault_of("{}"), HasSubstr("no array 'members'"));
  EXPECT_THAT(fault_of("{\"members\":[]}"), HasSubstr("0 members, 1 were asked for"));
  EXPECT_THAT(fault_of("{\"members\":[{},{}]}"), HasSubstr("2 members, 1 were asked for"));
  EXPECT_THAT(fault_of(member("7")), HasSubstr("a member is"));
  EXPECT_THAT(fault_of(member("{}")), HasSubstr("'end'"));
  EXPECT_THAT(fault_of(member(R"({"end":"won"})")), HasSubstr("'end' is 'won'"));
  EXPECT_THAT(fault_of(member(R"({"end":"done"})")), HasSubstr("no 'reward'"));
  EXPECT_THAT(fault_of(member(R"({"end":"done","reward":"1"})")),
              HasSubstr("'reward' is a string"));
  EXPECT_THAT(fault_of(member(R"({"end":"done","reward":1e999})")), ::testing::Not(IsEmpty()));
  EXPECT_THAT(fault_of(member(R"({"end":"failed","error":"it raised"})")), HasSubstr("it raised"));
  EXPECT_THAT(fault_of(member(R"({"end":"failed"})")), HasSubstr("without an error"));
  EXPECT_THAT(fault_of(member(R"({"end":"done","reward":1,"error":"late"})")), HasSubstr("late"));
  EXPECT_THAT(fault_of(member(R"({"end":"done","reward":1,"scores":{"a":"b"}})")),
              HasSubstr("'scores.a'"));
  EXPECT_THAT(fault_of("it hung", OutsideEnd::kFailed), HasSubstr("it hung"));
  EXPECT_THAT(fault_of("", OutsideEnd::kFailed), HasSubstr("without an error"));
}

TEST_F(EnvRunsStory, BranchesThatAreWrongFailTheirMemberAlone) {
  const auto branches = [this](std::string_view text) {
    return fault_of(
        fmt::format(R"({{"members":[{{"end":"done","reward":1,"branches":{}}}]}})", text));
  };
  EXPECT_THAT(branches("7"), HasSubstr("'branches' is"));
  EXPECT_THAT(branches("[{}]"), HasSubstr("no array 'tokens'"));
  EXPECT_THAT(branches("[7]"), HasSubstr("no array 'tokens'"));
  EXPECT_THAT(branches(R"([{"tokens":[-1]}])"), HasSubstr("'tokens' has -1"));
  EXPECT_THAT(branches(R"([{"tokens":[2147483648]}])"), HasSubstr("'tokens' has 2147483648"));
  EXPECT_THAT(branches(R"([{"tokens":["a"]}])"), HasSubstr("'tokens' has a string"));
  EXPECT_THAT(branches(R"([{"tokens":[1],"sampled":[[0,2]]}])"), HasSubstr("[0, 2)"));
  EXPECT_THAT(branches(R"([{"tokens":[1,2],"sampled":[[1,2],[0,1]]}])"), HasSubstr("[0, 1)"));
  EXPECT_THAT(branches(R"([{"tokens":[1],"sampled":[[0]]}])"), HasSubstr("not a pair"));
  EXPECT_THAT(branches(R"([{"tokens":[],"sampled":[]}])"), IsEmpty());
  EXPECT_THAT(branches(R"([{"tokens":[1],"sampled":[[0,1]]}])"), IsEmpty());
}

TEST(RunAnswers, NumbersOfBranchesAndScoresHaveBounds) {
  const auto fault_with = [](size_t num_branches, size_t num_scores) {
    Json branches = Json::array();
    for (size_t i = 0; i < num_branches; ++i)
      branches.push_back(Json::object().set("tokens", Json::array()));
    Json scores = Json::object();
    for (size_t i = 0; i < num_scores; ++i) scores.set(fmt::format("s{}", i), 1);
    Json members = Json::array();
    members.push_back(Json::object()
                          .set("end", "done")
                          .set("reward", 1)
                          .set("scores", std::move(scores))
                          .set("branches", std::move(branches)));
    return read_run(Json::object().set("members", std::move(members)).dump(), 1)->front().fault;
  };
  EXPECT_THAT(fault_with(kBranchesMax, kRunNumbersMax), IsEmpty());
  EXPECT_THAT(fault_with(kBranchesMax + 1, 0), HasSubstr("4097 branches"));
  EXPECT_THAT(fault_with(0, kRunNumbersMax + 1), HasSubstr("more than 256 numbers"));
}

TEST_F(EnvRunsStory, ResultsThatDoNotFitIntoAMessageFailTheRun) {
  const auto fault_of_members = [this](int32_t num_members) {
    Json numbers = Json::object();
    for (size_t i = 0; i < kRunNumbersMax; ++i) numbers.set(fmt::format("{:0>256}", i), 1);
    Json members = Json::array();
    for (int32_t i = 0; i < num_members; ++i)
      members.push_back(Json::object()
                            .set("end", "done")
                            .set("reward", 1)
                            .set("scores", numbers)
                            .set("metrics", numbers));
    play(a_run({3, 0, 0}, num_members));
    answer(server.of("run").back(), Json::object().set("members", std::move(members)).dump());
    return ended()[0].fault;
  };
  EXPECT_THAT(fault_of_members(6), IsEmpty());
  EXPECT_THAT(fault_of_members(8), HasSubstr("bytes besides tokens"));
}

TEST_F(EnvRunsStory, ATaskNeedsDataForItsServer) {
  ASSERT_TRUE(env.run_work().ok());
  const auto asked = server.of("task");
  answer(asked[0], R"({"prompt":"no data"})");
  EXPECT_EQ(env.counter("task_faults"), 1);
  answer(asked[1], R"({"data":{"task_idx":1},"prompt":"p","scores_groups":true,"num_tasks":9})");
  const auto tasks = env.take<Task>("task");
  ASSERT_THAT(tasks, SizeIs(1));
  EXPECT_EQ(tasks[0].data, R"({"task_idx":1})");
  EXPECT_EQ(tasks[0].prompt, "p");
  EXPECT_TRUE(tasks[0].scores_groups);
}

TEST_F(EnvRunsStory, TheServerGetsTheRunAndItsAnswerBecomesTheEnd) {
  play(a_run());
  const auto calls = server.of("run");
  ASSERT_THAT(calls, SizeIs(1));
  EXPECT_NE(calls[0].session, 0U);
  EXPECT_FALSE(calls[0].is_whole);
  const auto body = parse_json(calls[0].body, "the call");
  ASSERT_TRUE(body.ok());
  EXPECT_EQ(*body->get_string("salt"), "k|main.3.0.1.1@0");
  EXPECT_EQ(*body->get_string("base_url"), "http://127.0.0.1:9");
  EXPECT_EQ(*body->get_string("model"), "main");
  EXPECT_EQ(*body->get_string("api_key_var"), "KEY");
  EXPECT_EQ(*body->get_int("members"), 1);
  EXPECT_EQ(*body->get_int("deadline_ms"), 7000) << "what is left, not the pool's limit";
  EXPECT_EQ(*body->find("data")->get_int("task_idx"), 3);
  EXPECT_EQ(body->find("sampling")->dump(), R"({"temperature":0.5,"top_p":1.0,"max_tokens":7})");
  answer(calls[0], kAnswer);
  const auto all = ended();
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_EQ(all[0].name, (MemberName{3, 0, 1}));
  EXPECT_THAT(all[0].fault, IsEmpty());
  ASSERT_THAT(all[0].members, SizeIs(1));
  const MemberResult& member = all[0].members[0];
  EXPECT_EQ(member.reward, 0.5);
  EXPECT_THAT(member.scores, ElementsAre(Pair("correct", 1.0)));
  EXPECT_THAT(member.metrics, ElementsAre(Pair("num_turns", 2.0)));
  EXPECT_TRUE(member.is_truncated);
  EXPECT_EQ(member.stop_condition, "length");
  EXPECT_EQ(member.num_tool_calls, 3);
  EXPECT_THAT(member.branches, ElementsAre(Branch{{1, 2, 3}, {{1, 3}}}));
}

TEST_F(EnvRunsStory, ACancelledRunHasItsEndWhenTheServerAnswers) {
  play(a_run());
  play(a_run({3, 0, 2}));
  ASSERT_TRUE(env.give("cancel_runs", CancelRuns{{{3, 0, 1}, {9, 9, 9}}}).ok());
  const auto calls = server.of("run");
  EXPECT_THAT(server.forgotten, ElementsAre(calls[0].session));
  EXPECT_THAT(ended(), IsEmpty());
  answer(calls[0], "cancelled", OutsideEnd::kFailed);
  const auto all = ended();
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_EQ(all[0].name, (MemberName{3, 0, 1}));
  EXPECT_EQ(all[0].fault, "cancelled");
}

TEST_F(EnvRunsStory, ALostRunSaysSo) {
  play(a_run());
  answer(server.of("run")[0], "its server ended", OutsideEnd::kLost);
  const auto all = ended();
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_TRUE(all[0].is_lost);
  EXPECT_EQ(env.counter("runs_lost"), 1);
}

TEST_F(EnvRunsStory, ARunThatCannotBeAskedHasItsEndAtOnce) {
  ASSERT_TRUE(env.start().ok());
  server.is_full = true;
  EXPECT_FALSE(env.give("run", a_run()).ok());
  const auto all = ended();
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_THAT(all[0].fault, HasSubstr("too many calls"));
  server.is_full = false;
  play(a_run());
  EXPECT_FALSE(env.give("run", a_run()).ok()) << "the same name twice";
  EXPECT_THAT(ended()[0].fault, HasSubstr("came twice"));
}

TEST_F(EnvRunsStory, AnEnvironmentThatDoesNotDriveRefusesRuns) {
  NodeRunner<Env> other;
  environment.outside = [](const void*) { return OutsidePool(); };
  other.set_tenants({tenant});
  other.use("outside", server);
  EXPECT_FALSE(other.give("run", a_run()).ok());
  EXPECT_THAT(other.take<RunAnswered>("run_answered")[0].fault,
              HasSubstr("does not drive rollouts"));
}

TEST_F(EnvRunsStory, TheEndOfTheRunStopsTheServerAndAnswersNothing) {
  play(a_run());
  ASSERT_TRUE(env.drain().ok());
  EXPECT_TRUE(server.is_stopped);
  answer(server.of("run")[0], kAnswer);
  EXPECT_THAT(ended(), IsEmpty());
}

}  // namespace
}  // namespace primerl
