// Rollouts that their environment drives: names, samples, losses, cancels and bad answers.
#include "actors/common/run_salt.h"
#include "actors/gateway/run_turns.h"
#include "actors/messages/run.h"
#include "tests/actors/rollout_story.h"

namespace primerl::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const EnvironmentContract& driven_contract() {
  static const EnvironmentContract contract = [] {
    EnvironmentContract made;
    made.name = "verifiers";
    made.drives_rollouts = true;
    return made;
  }();
  return contract;
}

Tenant driven_tenant() {
  Tenant tenant = a_tenant();
  tenant.environment = {"verifiers", nullptr, &driven_contract()};
  return tenant;
}

struct RolloutRunsStory : RolloutStory {
  explicit RolloutRunsStory(RolloutOptions options = {}, Tenant tenant = driven_tenant())
      : RolloutStory(std::move(options), std::move(tenant)) {
    rollout.set_targets("run", {kEnvironment});
    rollout.set_targets("cancel_runs", {kEnvironment});
  }
  void address() {
    ASSERT_TRUE(rollout.give("address", GatewayAddress{"http://127.0.0.1:9", 41}).ok());
  }
  void driven_task(uint64_t ordinal, bool scores_groups = false) {
    Task task;
    task.ordinal = ordinal;
    task.prompt = "for people";
    task.data = "{}";
    task.scores_groups = scores_groups;
    ASSERT_TRUE(rollout.give("task", task).ok());
  }
  std::vector<primerl::Run> open(uint64_t ordinal = 0, bool scores_groups = false) {
    live(0);
    address();
    driven_task(ordinal, scores_groups);
    return runs();
  }
  std::vector<primerl::Run> runs() { return rollout.take<primerl::Run>("run"); }
  /// A turn as the gateway makes it.
  void turn(const MemberName& name, const std::string& prompt, const std::string& text) {
    const auto ids = [](const std::string& of) {
      return std::vector<int32_t>(of.begin(), of.end());
    };
    ASSERT_TRUE(gateway.begin(name, 1, 1000).ok());
    MemberTurn made = gateway.add(name, 1, ids(prompt), ids(text));
    made.logprobs.assign(text.size(), -0.5F);
    made.spans = {{PolicyVersion(0), 0, static_cast<int32_t>(text.size())}};
    ASSERT_TRUE(rollout.give("turn", made).ok());
  }
  void close(const MemberName& name) {
    ASSERT_TRUE(rollout.give("turn", gateway.close(name)).ok());
  }
  static MemberResult result(double reward, const std::string& tokens = "", int32_t begin = 0) {
    MemberResult made;
    made.reward = reward;
    made.scores = {{"correct", reward}};
    made.num_tool_calls = 2;
    made.stop_condition = "done";
    if (tokens.empty()) return made;
    made.branches = {
        {{tokens.begin(), tokens.end()}, {{begin, static_cast<int32_t>(tokens.size())}}}};
    return made;
  }
  void end_run(const MemberName& name, std::vector<MemberResult> members) {
    RunAnswered ended;
    ended.name = name;
    ended.members = std::move(members);
    ASSERT_TRUE(rollout.give("run_answered", ended).ok());
  }
  void fail_run(const MemberName& name, const std::string& fault, bool is_lost = false) {
    RunAnswered ended;
    ended.name = name;
    ended.fault = fault;
    ended.is_lost = is_lost;
    ASSERT_TRUE(rollout.give("run_answered", ended).ok());
  }
  std::vector<MemberName> closed() {
    std::vector<MemberName> names;
    for (const auto& message : rollout.take<MemberClosed>("closed"))
      names.insert(names.end(), message.names.begin(), message.names.end());
    return names;
  }
  std::vector<MemberName> cancelled() {
    std::vector<MemberName> names;
    for (const auto& message : rollout.take<CancelRuns>("cancel_runs"))
      names.insert(names.end(), message.names.begin(), message.names.end());
    return names;
  }
  /// A whole run with one turn.
  void play(const MemberName& name, double reward = 1) {
    turn(name, "ab", "xy");
    end_run(name, {result(reward, "abxy", 2)});
    close(name);
  }
  std::vector<std::string> reasons() {
    std::vector<std::string> texts;
    for (const auto& line : ends())
      texts.push_back(line.find("reason") == nullptr ? "" : *line.get_string("reason"));
    return texts;
  }

  RunTurns gateway;
};

TEST_F(RolloutRunsStory, NoGroupOpensBeforeTheGatewayHasAnAddress) {
  live(0);
  driven_task(0);
  EXPECT_THAT(runs(), IsEmpty());
  address();
  EXPECT_THAT(runs(), SizeIs(2));
}

TEST_F(RolloutRunsStory, EachMemberIsARunWithAName) {
  const auto made = open(7);
  ASSERT_THAT(made, SizeIs(2));
  EXPECT_EQ(made[1].name, (MemberName{7, 0, 1}));
  EXPECT_EQ(made[1].num_members, 1);
  EXPECT_EQ(made[1].base_url, "http://127.0.0.1:9");
  EXPECT_EQ(made[1].data, "{}");
  EXPECT_EQ(made[1].sampling.max_tokens, 8);
  const auto salt = read_run_salt(made[1].salt);
  ASSERT_TRUE(salt.ok() && salt->has_value());
  EXPECT_EQ((*salt)->tenant, "main");
  EXPECT_EQ((*salt)->name, made[1].name);
  EXPECT_EQ((*salt)->version, PolicyVersion(0));
  EXPECT_EQ((*salt)->seal, seal_of(**salt, 41)) << "by the key that came with the address";
  EXPECT_EQ((*salt)->salt, "main:0");
  EXPECT_THAT(requests(), IsEmpty()) << "Rollout itself asks no engine";
}

TEST_F(RolloutRunsStory, TheTokensOfTheGatewayTrain) {
  const auto made = open();
  for (const primerl::Run& run : made) {
    turn(run.name, "ab", "xy");
    turn(run.name, "abxyQ", "z");
    end_run(run.name, {result(run.name.member, "abxyQzTAIL", 2)});
    EXPECT_THAT(groups(), IsEmpty()) << "turns may be on the way";
    close(run.name);
  }
  EXPECT_THAT(closed(), ElementsAre(made[0].name, made[1].name));
  const auto sent = groups();
  ASSERT_THAT(sent, SizeIs(1));
  ASSERT_THAT(sent[0].members, SizeIs(2));
  const Trajectory& member = sent[0].members[1];
  EXPECT_THAT(member.sampled, ElementsAre(0, 0, 1, 1, 0, 1));
  EXPECT_EQ(std::string(member.tokens.begin(), member.tokens.end()), "abxyQz");
  EXPECT_EQ(member.reward, 1);
  EXPECT_EQ(member.num_turns, 2);
  EXPECT_FALSE(member.is_failed);
  end(sent[0], RolloutEnd::kTrained, 1);
  const auto lines = ends();
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(*lines[1].get_int("branches"), 1);
  EXPECT_EQ(*lines[1].get_int("tool_calls"), 2);
  EXPECT_EQ(*lines[1].get_int("turns_unmatched"), 0);
  EXPECT_EQ(*lines[1].get_string("stop_condition"), "done");
  EXPECT_EQ(*lines[1].get_string("completion"), "xyz");
  EXPECT_EQ(lines[1].find("scores")->dump(), R"({"correct":1.0})");
  ASSERT_TRUE(rollout.drain().ok());
  ASSERT_THAT(rollout.metrics(), SizeIs(1));
  EXPECT_EQ(rollout.metrics()[0].at("env/verifiers/score/correct/mean"), 0.5);
  EXPECT_EQ(rollout.metrics()[0].at("env/verifiers/num_tool_calls/mean"), 2);
}

Tenant a_mix_of_runs() {
  Tenant tenant = driven_tenant();
  for (const char* label : {"a", "b"}) {
    auto part = std::make_shared<Tenant>(driven_tenant());
    part->label = label;
    tenant.mix.push_back(std::move(part));
  }
  return tenant;
}

struct MixedRunsStory : RolloutRunsStory {
  MixedRunsStory() : RolloutRunsStory({}, a_mix_of_runs()) {}
  /// A group of the environment whose rollouts get this reward, and train in `step`.
  void train(uint64_t ordinal, uint32_t environment, double reward, int64_t step) {
    Task task;
    task.ordinal = ordinal;
    task.data = "{}";
    task.source.environment = environment;
    ASSERT_TRUE(rollout.give("task", task).ok());
    for (const primerl::Run& run : runs()) play(run.name, reward);
    const auto sent = groups();
    ASSERT_THAT(sent, SizeIs(1));
    end(sent[0], RolloutEnd::kTrained, step);
  }
};

TEST_F(MixedRunsStory, AStepHasOneMeanOfEachEnvironmentEvenIfOneHasNoGroupInIt) {
  live(0);
  address();
  train(0, 0, 1, 1);
  train(1, 1, 0, 1);
  live(1);
  train(2, 0, 1, 2);
  train(3, 0, 0, 2);
  ASSERT_TRUE(rollout.drain().ok());
  ASSERT_THAT(rollout.metrics(), SizeIs(2));
  EXPECT_EQ(rollout.metrics()[0].at("env/a/score/correct/mean"), 1);
  EXPECT_EQ(rollout.metrics()[0].at("env/b/score/correct/mean"), 0);
  EXPECT_EQ(rollout.metrics()[1].step, 2);
  EXPECT_EQ(rollout.metrics()[1].at("env/a/score/correct/mean"), 0.5);
}

TEST_F(RolloutRunsStory, AMemberWithoutAMatchingTurnFailsAndTheOthersTrain) {
  const auto made = open();
  turn(made[0].name, "ab", "xy");
  end_run(made[0].name, {result(1, "abzz", 2)});
  close(made[0].name);
  play(made[1].name);
  const auto sent = groups();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_THAT(sent[0].members[0].fault, HasSubstr("no turn of the gateway is in its 1 branches"));
  EXPECT_FALSE(sent[0].members[1].is_failed);
  EXPECT_EQ(rollout.counter("turns_unmatched"), 1);
}

TEST_F(RolloutRunsStory, AFailedRunIsNeverAReward) {
  const auto made = open();
  fail_run(made[0].name, "it raised");
  MemberResult failed = result(5, "abxy", 2);
  failed.fault = "its server says so";
  turn(made[1].name, "ab", "xy");
  end_run(made[1].name, {failed});
  close(made[0].name);
  close(made[1].name);
  EXPECT_THAT(reasons(), ElementsAre(HasSubstr("it raised"), HasSubstr("its server says so")));
  EXPECT_THAT(end_names(), Each("failed"));
}

TEST_F(RolloutRunsStory, AWrongNumberOfResultsFailsTheRun) {
  const auto made = open();
  end_run(made[0].name, {result(1), result(1)});
  EXPECT_THAT(reasons(), ElementsAre(HasSubstr("2 results for 1 members")));
  EXPECT_THAT(closed(), ElementsAre(made[0].name));
}

TEST_F(RolloutRunsStory, ALastTurnThatCountsOthersFailsTheRun) {
  const auto made = open();
  end_run(made[0].name, {result(1, "abxy", 2)});
  MemberTurn last;
  last.name = made[0].name;
  last.is_last = true;
  last.index = 3;
  ASSERT_TRUE(rollout.give("turn", last).ok());
  EXPECT_THAT(reasons(), ElementsAre(HasSubstr("the gateway sent 3 turns, 0 came")));
}

TEST_F(RolloutRunsStory, ALostRunBeginsAgainUnderAnotherNameUntilItsAttemptsEnd) {
  auto made = open();
  const MemberName first = made[0].name;
  turn(first, "ab", "xy");
  for (uint32_t attempt = 1; attempt <= 3; ++attempt) {
    fail_run({0, attempt - 1, 0}, "its server died", true);
    EXPECT_THAT(closed(), ElementsAre(MemberName{0, attempt - 1, 0}));
    made = runs();
    ASSERT_THAT(made, SizeIs(1));
    EXPECT_EQ(made[0].name, (MemberName{0, attempt, 0}));
  }
  turn(first, "abxy", "late");
  EXPECT_EQ(rollout.counter("turns_dropped"), 1) << "of an older attempt";
  fail_run({0, 3, 0}, "its server died", true);
  EXPECT_THAT(runs(), IsEmpty());
  EXPECT_THAT(reasons(), ElementsAre(HasSubstr("lost 4 times: its server died")));
}

TEST_F(RolloutRunsStory, ARunOfALostEnvironmentBeginsAgainWithTheNextOne) {
  auto made = open();
  rollout.set_targets("run", {});
  rollout.set_targets("action", {});
  ASSERT_TRUE(rollout.peer({PeerEvent::Kind::kDown, kEnvironment}).ok());
  EXPECT_THAT(runs(), IsEmpty());
  const InstanceId next(51);
  rollout.set_targets("run", {next});
  rollout.set_targets("action", {next});
  ASSERT_TRUE(rollout.peer({PeerEvent::Kind::kUp, next}).ok());
  ASSERT_TRUE(rollout.advance(Duration()).ok());
  made = runs();
  ASSERT_THAT(made, SizeIs(2));
  EXPECT_EQ(made[0].name, (MemberName{0, 1, 0}));
  EXPECT_THAT(closed(), ElementsAre(MemberName{0, 0, 0}, MemberName{0, 0, 1}));
  for (const primerl::Run& run : made) play(run.name);
  EXPECT_THAT(groups(), SizeIs(1));
}

TEST_F(RolloutRunsStory, RunsThatKnowAnAddressThatHasGoneBeginAgain) {
  const auto before = open();
  turn(before[0].name, "ab", "xy");
  end_run(before[0].name, {result(1, "abxy", 2)});
  ASSERT_TRUE(rollout.give("address", GatewayAddress{"http://127.0.0.1:9"}).ok());
  EXPECT_THAT(runs(), IsEmpty()) << "the address is the same";
  EXPECT_THAT(closed(), ElementsAre(before[0].name));
  ASSERT_TRUE(rollout.give("address", GatewayAddress{"http://127.0.0.1:10"}).ok());
  EXPECT_THAT(cancelled(), ElementsAre(before[1].name)) << "the server has answered the other";
  EXPECT_THAT(runs(), IsEmpty()) << "a run has at most one answer on its way";
  close(before[0].name);
  fail_run(before[1].name, "cancelled");
  EXPECT_THAT(closed(), ElementsAre(before[1].name));
  const auto made = runs();
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_EQ(made[0].name, (MemberName{0, 1, 1}));
  EXPECT_EQ(made[0].base_url, "http://127.0.0.1:10");
  close(before[1].name);
  EXPECT_THAT(end_names(), IsEmpty());
  play(made[0].name);
  EXPECT_THAT(groups(), SizeIs(1));
}

TEST_F(RolloutRunsStory, AStaleGroupIsCancelledOnBothSidesAndCountsUntilBothHaveAnswered) {
  const auto made = open();
  turn(made[0].name, "ab", "xy");
  live(3);
  EXPECT_THAT(end_names(), ElementsAre("stale", "stale"));
  EXPECT_EQ(rollout.counter("tokens_stale"), 2);
  EXPECT_THAT(cancelled(), ElementsAre(made[0].name, made[1].name));
  EXPECT_THAT(closed(), ElementsAre(made[0].name, made[1].name));
  for (const primerl::Run& run : made) fail_run(run.name, "cancelled");
  fail_run(made[0].name, "cancelled");
  EXPECT_EQ(rollout.counter("runs_unknown"), 1) << "an answer too many";
  turn(made[0].name, "abxy", "z");
  EXPECT_EQ(rollout.counter("turns_dropped"), 1);
  EXPECT_THAT(closed(), IsEmpty()) << "it is being closed";
  for (const primerl::Run& run : made) close(run.name);
  EXPECT_THAT(groups(), IsEmpty());
}

TEST_F(RolloutRunsStory, ARunThatIsLateIsCancelledOnBothSides) {
  const auto made = open();
  ASSERT_TRUE(rollout.advance(driven_tenant().rollout_timeout - Duration::milliseconds(1)).ok());
  EXPECT_THAT(end_names(), IsEmpty());
  ASSERT_TRUE(rollout.advance(Duration::milliseconds(1)).ok());
  EXPECT_THAT(reasons(), Each(HasSubstr("not done within")));
  EXPECT_THAT(cancelled(), SizeIs(2));
  EXPECT_THAT(closed(), SizeIs(2));
  end_run(made[0].name, {result(1, "abxy", 2)});
  EXPECT_THAT(end_names(), SizeIs(2)) << "each rollout ends once";
}

TEST_F(RolloutRunsStory, NamesThatNoRunHasAreClosed) {
  open();
  const MemberName forged{99, 0, 5};
  turn(forged, "ab", "xy");
  turn(forged, "abxy", "z");
  EXPECT_EQ(rollout.counter("turns_dropped"), 2);
  EXPECT_THAT(closed(), ElementsAre(forged)) << "once";
  turn({0, 0, 7}, "ab", "x");
  EXPECT_THAT(closed(), ElementsAre(MemberName{0, 0, 7})) << "the group has no such member";
  close(forged);
  close(forged);
  EXPECT_THAT(end_names(), IsEmpty());
}

TEST_F(RolloutRunsStory, ATurnThatDoesNotFollowFailsItsRun) {
  const auto made = open();
  turn(made[0].name, "ab", "xy");
  MemberTurn wrong;
  wrong.name = made[0].name;
  wrong.index = 5;
  ASSERT_TRUE(rollout.give("turn", wrong).ok());
  EXPECT_THAT(reasons(), ElementsAre(HasSubstr("turn 5 came after 1 turns")));
  EXPECT_THAT(cancelled(), ElementsAre(made[0].name));
}

TEST_F(RolloutRunsStory, AnEnvironmentThatScoresGroupsGetsOneRun) {
  const auto made = open(0, true);
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_EQ(made[0].num_members, 2);
  const MemberName name = made[0].name;
  turn(name, "ab", "xy");
  turn(name, "ab", "uv");
  end_run(name, {result(0, "abuv", 2), result(1, "abxy", 2)});
  close(name);
  const auto sent = groups();
  ASSERT_THAT(sent, SizeIs(1));
  const auto text = [&](size_t i) {
    const auto& tokens = sent[0].members[i].tokens;
    return std::string(tokens.begin(), tokens.end());
  };
  EXPECT_EQ(text(0), "abuv");
  EXPECT_EQ(text(1), "abxy");
  EXPECT_EQ(sent[0].members[1].reward, 1);
}

TEST_F(RolloutRunsStory, ALostGroupRunBeginsAgainWhole) {
  auto made = open(0, true);
  fail_run(made[0].name, "its server died", true);
  made = runs();
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_EQ(made[0].name, (MemberName{0, 1, 0}));
  EXPECT_EQ(made[0].num_members, 2);
  fail_run(made[0].name, "it raised");
  EXPECT_THAT(reasons(), Each(HasSubstr("it raised")));
  EXPECT_THAT(end_names(), SizeIs(2));
}

TEST_F(RolloutRunsStory, TheEndOfTheRunCancelsAll) {
  const auto made = open();
  ASSERT_TRUE(rollout.drain().ok());
  EXPECT_THAT(end_names(), Each("cancelled"));
  EXPECT_THAT(cancelled(), SizeIs(2));
  EXPECT_THAT(closed(), SizeIs(2));
  EXPECT_TRUE(rollout.idle());
}

RolloutOptions tight_options() {
  RolloutOptions options;
  options.max_inflight = 2;
  return options;
}

struct TightRolloutRunsStory : RolloutRunsStory {
  TightRolloutRunsStory() : RolloutRunsStory(tight_options()) {}
};

TEST_F(TightRolloutRunsStory, AnAbandonedRunCountsAsInFlight) {
  const auto made = open();
  live(3);  // stale
  driven_task(1);
  EXPECT_THAT(runs(), IsEmpty());
  for (const primerl::Run& run : made) fail_run(run.name, "cancelled");
  EXPECT_THAT(runs(), IsEmpty()) << "the gateway has not answered";
  for (const primerl::Run& run : made) close(run.name);
  EXPECT_THAT(runs(), SizeIs(2));
}

Tenant evaluated_tenant() {
  Tenant tenant = driven_tenant();
  tenant.eval.interval = 1;
  tenant.eval.samples = 2;
  tenant.eval.rows = 1;
  tenant.eval.at_end = false;
  tenant.eval.max_tokens = 5;
  return tenant;
}

struct RolloutRunsEvaluationStory : RolloutRunsStory {
  RolloutRunsEvaluationStory() : RolloutRunsStory({}, evaluated_tenant()) {}
};

TEST_F(RolloutRunsEvaluationStory, ARowIsPlayedByRunsAndNeedsNoMatchingTurn) {
  live(0);
  EXPECT_THAT(actions(), IsEmpty()) << "its runs need the gateway";
  address();
  const auto asked = actions();
  ASSERT_THAT(asked, SizeIs(1));
  Observation first;
  first.trajectory = asked[0].trajectory;
  first.attempt = asked[0].attempt;
  first.turn = -1;
  first.data = "{}";
  ASSERT_TRUE(rollout.give("observation", first).ok());
  const auto made = runs();
  ASSERT_THAT(made, SizeIs(2));
  EXPECT_TRUE(is_evaluation(made[0].name.ordinal));
  EXPECT_EQ(made[0].sampling.max_tokens, 5);
  end_run(made[0].name, {result(1)});
  close(made[0].name);
  turn(made[1].name, "ab", "xy");
  end_run(made[1].name, {result(0)});
  close(made[1].name);
  EXPECT_THAT(end_names(), ElementsAre("evaluated", "evaluated"));
  ASSERT_THAT(rollout.lines("evaluations.jsonl"), SizeIs(1));
  EXPECT_THAT(rollout.lines("evaluations.jsonl")[0], HasSubstr("\"reward\":0.5"));
}

}  // namespace
}  // namespace primerl::testing
