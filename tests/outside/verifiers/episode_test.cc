#include "runtime/outside/verifiers/episode.h"

#include <gmock/gmock.h>

#include "runtime/outside/verifiers/legacy_output.h"
#include "runtime/outside/verifiers/wire_member.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

constexpr auto kW0 = VerifiersDialect::kW0;
constexpr auto kW1a = VerifiersDialect::kW1a;
constexpr auto kW1c = VerifiersDialect::kW1c;

std::string answer(VerifiersDialect dialect, const std::string& reply, int64_t members = 1) {
  const auto made = run_answer(dialect, *parse_json(reply, "reply"), members);
  return made.ok() ? made->dump() : made.error().message();
}

/// The only member of the answer.
Json member(VerifiersDialect dialect, const std::string& reply) {
  const auto made = run_answer(dialect, *parse_json(reply, "reply"), 1);
  if (!made.ok()) return made.error().message();
  return made->find("members")->as_array().at(0);
}

std::string trace(const std::string& nodes, const std::string& more = "") {
  return R"({"id":"t","ok":true,"rewards":{"a":{"score":1,"weight":1}},"errors":[])" + more +
         R"(,"nodes":[)" + nodes + "]}";
}
std::string episode(const std::string& traces, const std::string& more = R"("ok":true)") {
  return R"({"success":true,"episode":{)" + more + R"(,"traces":[)" + traces + "]}}";
}
std::string node(const std::string& parent, const std::string& ids, const std::string& mask,
                 const std::string& more = "") {
  return R"({"parent":)" + parent + R"(,"token_ids":)" + ids + R"(,"mask":)" + mask + more + "}";
}
const std::string kPrompt = node("null", "[1,2]", "[false,false]");
const std::string kAnswer = node("0", "[3,4]", "[false,true]");

TEST(Episode, AMemberHasItsRewardScoresMetricsAndBranches) {
  EXPECT_EQ(
      answer(kW1c,
             episode(trace(
                 kPrompt + "," +
                     node("0", "[3,4]", "[false,true]",
                          R"(,"sampled":true,"message":{"role":"assistant","tool_calls":[{},{}]})"),
                 R"(,"metrics":{"m":2,"n":null},"stop_condition":"done","calls":[{}])"))),
      R"({"members":[{"reward":1.0,"scores":{"a":1.0},"metrics":{"m":2,"num_turns":1},)"
      R"("end":"done","error":"","is_truncated":false,"stop_condition":"done",)"
      R"("num_tool_calls":2,"branches":[{"tokens":[1,2,3,4],"sampled":[[3,4]]}]}]})");
}

/// `{"name0":VALUE,"name1":VALUE}` of `count` names.
std::string names(size_t count, const std::string& value) {
  std::string text = "{";
  for (size_t i = 0; i < count; ++i)
    text += fmt::format(R"({}"name{}":{})", i == 0 ? "" : ",", i, value);
  return text + "}";
}

TEST(Episode, ScoresAndMetricsHaveABound) {
  const auto fault = [](const std::string& rewards, const std::string& metrics) {
    return *member(kW1c, R"({"success":true,"episode":{"ok":true,"traces":[{"ok":true,"rewards":)" +
                             rewards + R"(,"metrics":)" + metrics + "}]}}")
                .get_string("error");
  };
  const std::string most = names(kMemberNumbersMax, "1");
  const std::string more = names(kMemberNumbersMax + 1, "1");
  EXPECT_EQ(fault(most, most), "");
  EXPECT_EQ(fault(more, "{}"), "it has more than 256 scores");
  EXPECT_EQ(fault("{}", more), "it has more than 256 metrics");
  EXPECT_EQ(fault("{}", names(kMemberNumbersMax + 1, "null")), "") << "these are no numbers";
  const Json legacy =
      *parse_json(R"({"reward":1,"trajectory":[{}],"metrics":)" + more + "}", "output");
  EXPECT_EQ(*legacy_member(legacy).get_string("error"), "it has more than 256 metrics");
}

TEST(Episode, TheRewardIsTheSumOfScoresTimesWeights) {
  const auto reward = [](const std::string& rewards) {
    const Json made =
        member(kW1c, R"({"success":true,"episode":{"ok":true,"traces":[{"ok":true,"rewards":)" +
                         rewards + "}]}}");
    const auto number = made.get_double("reward");
    return number.ok() ? fmt::format("{}", *number) : made.get_string("error").value();
  };
  EXPECT_EQ(reward(R"({"a":{"score":1,"weight":0.25},"b":{"score":2.0},"d":3})"), "5.25");
  EXPECT_EQ(reward(R"({"a":{"score":1},"c":null})"), "the reward 'c' was not scored");
  EXPECT_EQ(reward("{}"), "0");
  EXPECT_EQ(reward("null"), "0");
  EXPECT_THAT(reward(R"({"a":{"weight":1}})"), HasSubstr("score"));
  EXPECT_THAT(reward(R"({"a":"x"})"), HasSubstr("score"));
  EXPECT_THAT(reward(R"({"a":{"score":1e308,"weight":1e308}})"), HasSubstr("not a finite number"));
}

TEST(Episode, ABranchIsAPathFromTheRootToALeaf) {
  const std::string nodes = kPrompt + "," + kAnswer + "," + node("1", "[5]", "[false]") + "," +
                            node("2", "[6,7]", "[true,true]") + "," + node("1", "[8]", "[true]") +
                            "," + node("null", "[9]", "[true]");
  EXPECT_EQ(member(kW1c, episode(trace(nodes))).find("branches")->dump(),
            R"([{"tokens":[1,2,3,4,5,6,7],"sampled":[[3,4],[5,7]]},)"
            R"({"tokens":[1,2,3,4,8],"sampled":[[3,5]]},{"tokens":[9],"sampled":[[0,1]]}])");
}

TEST(Episode, APathWithoutSampledTokensIsNoBranch) {
  EXPECT_EQ(member(kW1c, episode(trace(kPrompt))).find("branches")->dump(), "[]");
  EXPECT_EQ(
      member(kW1c, episode(trace(R"({"parent":null,"message":{}})"))).find("branches")->dump(),
      "[]");
}

TEST(Episode, AnAbandonedCompactionDoesNotTrain) {
  const std::string attempt =
      node("0", "[3]", "[true]", R"(,"semantic_parents":[{"node":0,"type":"compaction_attempt"}])");
  EXPECT_EQ(member(kW1c, episode(trace(kPrompt + "," + attempt))).find("branches")->dump(), "[]");
  const std::string resumed =
      node("null", "[7]", "[true]", R"(,"semantic_parents":[{"node":1,"type":"compaction"}])");
  EXPECT_EQ(member(kW1c, episode(trace(kPrompt + "," + attempt + "," + resumed)))
                .find("branches")
                ->as_array()
                .size(),
            2U);
}

TEST(Episode, AnAgentThatDoesNotTrainIsLeftOut) {
  const std::string judge =
      R"(,"agent":{"name":"judge","trainable":false},"stop_condition":"max_turns")";
  const std::string solver = R"(,"agent":{"name":"solver","trainable":true})";
  const Json both = member(kW1c, episode(trace(kAnswer, judge).replace(0, 0, "") + "," +
                                         trace(kPrompt + "," + kAnswer, solver)));
  EXPECT_EQ(both.get_string("end").value(), "done") << both.dump();
  EXPECT_EQ(both.find("branches")->as_array().size(), 1U);
  EXPECT_FALSE(both.get_bool("is_truncated").value());
  EXPECT_THAT(member(kW1c, episode(trace(kPrompt, judge))).get_string("error").value(),
              HasSubstr("no trace of a trainable agent"));
}

TEST(Episode, AgentsWithDifferentRewardsAreNoRollout) {
  std::string other = trace(kPrompt + "," + kAnswer);
  other.replace(other.find("\"score\":1"), 9, "\"score\":2");
  const std::string traces = trace(kPrompt + "," + kAnswer) + "," + other;
  EXPECT_THAT(member(kW1c, episode(traces)).get_string("error").value(),
              HasSubstr("trainable agents of the episode have the rewards 1 and 2"));
}

TEST(Episode, WhatTheServerCallsFailedIsFailed) {
  const auto why = [](const std::string& reply) {
    const Json made = member(kW1c, reply);
    EXPECT_EQ(made.get_string("end").value(), "failed") << made.dump();
    EXPECT_EQ(made.find("reward"), nullptr);
    return made.get_string("error").value();
  };
  EXPECT_EQ(why(episode(trace(kPrompt + "," + kAnswer), R"("ok":false)")),
            "the episode failed: 'ok' is false");
  EXPECT_EQ(
      why(episode(
          "", R"("ok":false,"errors":[{"type":"A","message":"1"},{"type":"B","message":"2"}])")),
      "the episode failed: B: 2");
  std::string failed = trace(kPrompt + "," + kAnswer);
  failed.replace(failed.find("\"ok\":true"), 9, "\"ok\":false");
  EXPECT_EQ(why(episode(failed)), "the trace failed: 'ok' is false");
  failed.replace(failed.find("\"errors\":[]"), 11, R"("errors":[{"type":"C","message":"3"}])");
  EXPECT_EQ(why(episode(failed, R"("ok":false,"errors":[])")), "the trace failed: C: 3")
      << "the episode has no reason of its own";
  EXPECT_THAT(why(R"({"success":true,"episode":{"ok":true}})"), HasSubstr("no list 'traces'"));
}

TEST(Episode, ErrorsOfAnEarlierAttemptDoNotFailAGoodTrace) {
  std::string retried = trace(kPrompt + "," + kAnswer);
  retried.replace(retried.find("\"errors\":[]"), 11, R"("errors":[{"type":"A","message":"1"}])");
  EXPECT_EQ(member(kW1c, episode(retried)).get_string("end").value(), "done");
  // verifiers 0.2 has no `ok`: there an error is a failure.
  EXPECT_EQ(member(kW1a, R"({"success":true,"trace":{"errors":[{"type":"A","message":"1"}]}})")
                .get_string("error")
                .value(),
            "the trace failed: A: 1");
}

TEST(Episode, TruncationIsReadFromTheStopConditionOrTheLastCall) {
  const auto is_truncated = [](const std::string& more) {
    return member(kW1c, episode(trace(kPrompt + "," + kAnswer, more)))
        .get_bool("is_truncated")
        .value();
  };
  EXPECT_TRUE(is_truncated(R"(,"stop_condition":"max_output_tokens")"));
  EXPECT_TRUE(is_truncated(R"(,"stop_condition":"context_length")"));
  EXPECT_TRUE(is_truncated(R"(,"calls":[{"finish_reason":"stop"},{"finish_reason":"length"}])"));
  EXPECT_FALSE(is_truncated(R"(,"calls":[{"finish_reason":"length"},{"finish_reason":"stop"}])"));
  EXPECT_FALSE(is_truncated(R"(,"stop_condition":"agent_completed")"));
}

TEST(Episode, NodesThatContradictThemselvesFailTheMember) {
  const auto why = [](const std::string& nodes) {
    return member(kW1c, episode(trace(nodes))).get_string("error").value();
  };
  EXPECT_THAT(why(node("0", "[1]", "[true]")), HasSubstr("node 0 has the parent 0"));
  EXPECT_THAT(why(kPrompt + "," + node("7", "[1]", "[true]")),
              HasSubstr("node 1 has the parent 7"));
  EXPECT_THAT(why(node("-1", "[1]", "[true]")), HasSubstr("has the parent -1"));
  EXPECT_THAT(why(node("null", "[1,2]", "[true]")), HasSubstr("2 token ids, its mask has 1"));
  EXPECT_THAT(why(node("null", "[-1]", "[true]")), HasSubstr("-1, which is not a token id"));
  EXPECT_THAT(why(node("null", "[2147483648]", "[true]")), HasSubstr("is not a token id"));
  EXPECT_THAT(why(node("null", "[1.5]", "[true]")),
              HasSubstr("an item of 'token_ids' is a number"));
  EXPECT_THAT(why(node("null", "[1]", "[2]")), HasSubstr("'mask' has 2"));
  EXPECT_THAT(why(node("null", "\"x\"", "[]")), HasSubstr("'token_ids' is a string"));
}

TEST(Episode, TokensMayBeArrays) {
  Json reply = *parse_json(episode(trace(node("null", "[1,2]", "[0,1]"))), "");
  const Json array = *parse_json(R"({"__nd__":true,"dtype":"int32","shape":[2]})", "");
  Json ids = array;
  ids.set("data", std::string("\5\0\0\0\6\1\0\0", 8));
  Json& first = reply.as_object()[1]
                    .second.as_object()[1]
                    .second.as_array()[0]
                    .as_object()
                    .back()
                    .second.as_array()[0];
  first.set("token_ids", ids);
  const auto made = run_answer(kW1c, reply, 1);
  EXPECT_THAT(made->dump(), HasSubstr(R"("tokens":[5,262],"sampled":[[1,2]])"));
}

TEST(Episode, BranchTokensAreBounded) {
  WireMember result;
  WireBranch branch;
  branch.tokens.resize(static_cast<size_t>(kBranchTokensMax) - 1);
  branch.add_sampled(0);
  EXPECT_TRUE(result.add(branch).ok());
  WireBranch one;
  one.tokens = {1};
  one.add_sampled(0);
  EXPECT_TRUE(result.add(one).ok());
  EXPECT_EQ(result.add(one).error().code(), Code::kExhausted);
}

TEST(Episode, AReplyHasOneResultForEachMember) {
  EXPECT_THAT(answer(kW1a, R"({"success":true,"traces":[{},{}]})", 2), HasSubstr("\"members\":[{"));
  EXPECT_THAT(answer(kW1a, R"({"success":true,"traces":[{},{}]})", 3),
              HasSubstr("the reply has 2 results under 'trace' and 'traces', not 3"));
  EXPECT_THAT(answer(kW1c, R"({"success":true})"), HasSubstr("has 0 results"));
  EXPECT_THAT(answer(kW1c, R"({"success":true,"episode":7})"), HasSubstr("not a map"));
  EXPECT_THAT(answer(kW0, R"({"success":true,"outputs":[{},{}]})", 2), HasSubstr("\"members\":[{"));
}

std::string step(const std::string& prompt, const std::string& completion,
                 const std::string& mask) {
  return R"({"completion":[{"role":"assistant","tool_calls":[{}]}],"tokens":{"prompt_ids":)" +
         prompt + R"(,"completion_ids":)" + completion + R"(,"completion_mask":)" + mask + "}}";
}
Json legacy(const std::string& steps, const std::string& more = "") {
  return legacy_member(*parse_json(R"({"reward":0.5,"metrics":{"exact":0.5},"stop_condition":"s",)"
                                   R"("is_truncated":true,"error":null,"trajectory":[)" +
                                       steps + "]" + more + "}",
                                   ""));
}

TEST(LegacyOutput, StepsThatExtendOneAnotherAreOneBranch) {
  const Json made =
      legacy(step("[1,2]", "[3]", "[1]") + "," + step("[1,2,3,4]", "[5,6]", "[1,1]") + "," +
             step("[1,9]", "[8]", "[1]") + "," + step("[1,2,3,4,5,6,7]", "[7]", "[0]"));
  EXPECT_EQ(made.find("branches")->dump(),
            R"([{"tokens":[1,2,3,4,5,6,7,7],"sampled":[[2,3],[4,6]]},)"
            R"({"tokens":[1,9,8],"sampled":[[2,3]]}])");
  EXPECT_EQ(made.get_double("reward").value(), 0.5);
  EXPECT_TRUE(made.get_bool("is_truncated").value());
  EXPECT_EQ(made.get_int("num_tool_calls").value(), 4);
  EXPECT_EQ(made.find("metrics")->dump(), R"({"exact":0.5,"num_turns":4})");
}

TEST(LegacyOutput, TheLongestBranchIsExtended) {
  EXPECT_EQ(legacy(step("[1]", "[2]", "[1]") + "," + step("[3]", "[4]", "[1]") + "," +
                   step("[1,2,5]", "[6]", "[1]") + "," + step("[1,2]", "[7]", "[1]"))
                .find("branches")
                ->dump(),
            R"([{"tokens":[1,2,5,6],"sampled":[[1,2],[3,4]]},{"tokens":[3,4],"sampled":[[1,2]]},)"
            R"({"tokens":[1,2,7],"sampled":[[2,3]]}])");
}

TEST(LegacyOutput, AFailedRolloutIsFailed) {
  const auto why = [](const Json& made) {
    EXPECT_EQ(made.get_string("end").value(), "failed");
    return made.get_string("error").value();
  };
  EXPECT_EQ(why(legacy("")), "the rollout has no steps and no error");
  EXPECT_EQ(why(legacy_member(*parse_json(
                R"({"error":{"error":"E","error_chain_str":"E: broke"},"trajectory":[]})", ""))),
            "the rollout failed: E: broke");
  EXPECT_EQ(why(legacy_member(*parse_json(R"({"error":"text"})", ""))), "the rollout failed: text");
  EXPECT_THAT(why(legacy(step("[1]", "[2,3]", "[1]"))),
              HasSubstr("2 completion ids, its mask has 1"));
  EXPECT_THAT(why(legacy_member(*parse_json(R"({"trajectory":[{}],"reward":null})", ""))),
              HasSubstr("reward"));
}

TEST(LegacyOutput, StepsWithoutTokensGiveNoBranches) {
  const Json made = legacy(R"({"tokens":null},{})");
  EXPECT_EQ(made.get_string("end").value(), "done");
  EXPECT_EQ(made.find("branches")->dump(), "[]");
}

}  // namespace
}  // namespace primerl
