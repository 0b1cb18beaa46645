// The forms of the gateway's replies: log-probabilities, several completions, ids, tools.
#include <bit>

#include "graph/base/json.h"
#include "tests/actors/gateway_story.h"

namespace primerl::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr float kNone = -std::numeric_limits<float>::infinity();

struct GatewayReplies : GatewayStory {
  GatewayReplies() {
    auto source = std::make_shared<ChatSource>();
    source->file = "model/chat_template.jinja";
    source->templates.push_back({"default", "{% for m in messages %}{{ m.content }}{% endfor %}"});
    tokenizer.set_chat_source(source);
  }
  uint64_t sampled(const std::string& params) {
    return generate(R"({"token_ids":[97,98,99],"sampling_params":{)" + params + "}}");
  }
  uint64_t chat(const std::string& more) {
    return post("/v1/chat/completions",
                R"({"messages":[{"role":"user","content":"hi"}])" + more + "}");
  }
  GenerateRequest only_request() {
    const auto made = requests();
    EXPECT_THAT(made, SizeIs(1));
    return made.at(0);
  }
  /// The completion "x" with two likelier tokens, of which the last is missing.
  Completion ranked(const GenerateRequest& request) {
    Completion completion;
    completion.request = request.request;
    completion.end = FinishReason::kLength;
    completion.tokens = {'x'};
    completion.logprobs = {-1.5F};
    completion.ranks = {2};
    completion.top_tokens = {'a', 'x', -1};
    completion.top_logprobs = {-0.5F, -1.5F, kNone};
    completion.spans = {{PolicyVersion(3), 0, 1}};
    return completion;
  }
  void give(const Completion& completion) {
    ASSERT_TRUE(runner->give("completion", completion, Given()).ok());
    work();
  }
  Json choice(uint64_t request) {
    auto json = parse_json(listener.replies[request].body, "the reply");
    EXPECT_TRUE(json.ok()) << reply(request);
    return json->find("choices")->as_array().at(0);
  }
};

TEST_F(GatewayReplies, LogprobsAboveOneAskForTheLikeliestTokensAndTheRank) {
  const uint64_t plain = sampled(R"("logprobs":1)");
  EXPECT_EQ(only_request().sampling.num_top_logprobs, 0) << "the token's own is always there";
  (void)plain;
  const uint64_t id = sampled(R"("logprobs":3,"flat_logprobs":true,"detokenize":false)");
  const auto request = only_request();
  EXPECT_EQ(request.sampling.num_top_logprobs, 3);
  give(ranked(request));
  EXPECT_EQ(choice(id).find("logprobs")->dump(),
            R"({"content":[{"token":"token_id:120","token_id":120,"logprob":-1.5,"rank":2,)"
            R"("top_logprobs":[{"token":"token_id:97","token_id":97,"logprob":-0.5,"rank":1},)"
            R"({"token":"token_id:120","token_id":120,"logprob":-1.5,"rank":2},)"
            R"({"token":"token_id:0","token_id":0,"logprob":-9999,"rank":3}]}]})")
      << "a token without a probability fills the list up";
  EXPECT_EQ(choice(id).find("weight_versions")->dump(), R"([{"version":"3","start":0,"end":1}])");
  EXPECT_THAT(gateway().log(), IsEmpty()) << "these keys have their effect";
}

TEST_F(GatewayReplies, TheCompactFormHasARowOfIdsAndNumbersForEachToken) {
  const uint64_t id = sampled(R"("logprobs":3,"extra_args":{"prl_compact_logprobs":true})");
  give(ranked(only_request()));
  EXPECT_TRUE(choice(id).find("logprobs")->is_null());
  // 120, 97, 0; -1.5, -0.5, -9999: the sampled token first.
  EXPECT_THAT(reply(id),
              HasSubstr(R"("compact_logprobs":{"data":"eAAAAGEAAAAAAAAAAADAvwAAAL8APBzG",)"
                        R"("format":"u32-f32-le-v1","offsets":[0,3],"num_top_logprobs":3})"));
  const uint64_t own = sampled(R"("logprobs":1,"extra_args":{"prl_compact_logprobs":true})");
  complete(only_request(), "x");
  EXPECT_THAT(reply(own), HasSubstr(R"({"data":"eAAAAAAAgL4=",)"
                                    R"("format":"u32-f32-le-v1","offsets":[0,1],)"
                                    R"("num_top_logprobs":1})"));
}

TEST_F(GatewayReplies, AsManyTopLogprobsAsTheLimitAndNotOneMore) {
  (void)sampled(R"("logprobs":20)");
  EXPECT_EQ(only_request().sampling.num_top_logprobs, 20);
  for (const auto& [params, why] : std::map<std::string, std::string>{
           {R"("logprobs":21)", "'logprobs' is 21, not from 0 to 20"},
           {R"("logprobs":-1)", "'logprobs' is -1"},
           {R"("logprobs":true)", "'logprobs' is a boolean"},
           {R"("prompt_logprobs":2)", "'prompt_logprobs' is 2, not from 0 to 1"},
           {R"("extra_args":7)", "'extra_args' is a number"},
           {R"("extra_args":{"prl_compact_logprobs":1})", "'prl_compact_logprobs' is a number"},
           {R"("extra_args":{"prl_compact_logprobs":true})", "without 'logprobs'"}})
    EXPECT_THAT(reply(sampled(params)), AllOf(StartsWith("400 "), HasSubstr(why))) << params;
  EXPECT_THAT(reply(chat(R"(,"top_logprobs":1)")), HasSubstr("without 'logprobs' true"));
  EXPECT_THAT(reply(chat(R"(,"logprobs":true,"top_logprobs":21)")), HasSubstr("not from 0 to 20"));
}

TEST_F(GatewayReplies, AnEngineWithoutWhatWasAskedIsAnErrorOfTheServer) {
  const uint64_t none = sampled(R"("logprobs":3)");
  complete(only_request(), "x");
  EXPECT_THAT(reply(none), AllOf(StartsWith("500 "), HasSubstr("not 3 for each")));
  const uint64_t prompt = sampled(R"("prompt_logprobs":0)");
  complete(only_request(), "x");
  EXPECT_THAT(reply(prompt), AllOf(StartsWith("500 "), HasSubstr("the prompt has 3 tokens")));
}

TEST_F(GatewayReplies, ThePromptHasItsLogprobsNullFirst) {
  const uint64_t id = sampled(R"("prompt_logprobs":1,"max_tokens":1)");
  const auto request = only_request();
  EXPECT_TRUE(request.sampling.prompt_logprobs);
  Completion completion;
  completion.request = request.request;
  completion.end = FinishReason::kLength;
  completion.tokens = {'x'};
  completion.logprobs = {-1};
  completion.prompt_logprobs = {-2, -0.5};
  give(completion);
  EXPECT_THAT(reply(id), HasSubstr(R"("prompt_logprobs":[null,)"
                                   R"({"98":{"logprob":-2,"rank":null,"decoded_token":null}},)"
                                   R"({"99":{"logprob":-0.5,"rank":null,"decoded_token":null}}])"));
}

TEST_F(GatewayReplies, AChatHasTheLikeliestTokensAsTexts) {
  const uint64_t id = chat(R"(,"logprobs":true,"top_logprobs":3)");
  give(ranked(only_request()));
  EXPECT_EQ(choice(id).find("logprobs")->dump(),
            R"({"content":[{"token":"x","logprob":-1.5,"bytes":[120],"top_logprobs":[)"
            R"({"token":"a","logprob":-0.5,"bytes":[97]},)"
            R"({"token":"x","logprob":-1.5,"bytes":[120]}]}]})");
}

TEST_F(GatewayReplies, SeveralCompletionsAreOneReplyInTheOrderOfTheirSeeds) {
  const uint64_t id =
      generate(R"({"token_ids":[97],"sampling_params":{"n":3,"seed":5,"max_tokens":4}})", "s");
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(3));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(made[i].seed, 5 + i);
    EXPECT_EQ(made[i].session, made[0].session) << "one engine has the prompt";
  }
  complete(made[2], "cc");
  complete(made[0], "a");
  EXPECT_FALSE(has_reply(id));
  complete(made[1], "b\n");
  EXPECT_THAT(reply(id), AllOf(StartsWith("200 "), HasSubstr(R"({"index":0,"token_ids":[97],)"),
                               HasSubstr(R"({"index":1,"token_ids":[98,10],)"),
                               HasSubstr(R"({"index":2,"token_ids":[99,99],)"),
                               HasSubstr(R"("prompt_tokens":1,"completion_tokens":5)")));
  EXPECT_TRUE(gateway().idle());
  (void)generate(R"({"token_ids":[97],"sampling_params":{"n":3,"seed":5,"max_tokens":4}})", "s");
  EXPECT_THAT(requests(), SizeIs(3)) << "the first has ended: nothing to join";
}

TEST_F(GatewayReplies, ACountOfCompletionsIsAcceptedUpToTheLimitAndNotOneMore) {
  for (const int n : {0, kSamplesMax + 1})
    EXPECT_THAT(
        reply(chat(fmt::format(R"(,"n":{})", n))),
        AllOf(StartsWith("400 "), HasSubstr(fmt::format("'n' is {}, not from 1 to 128", n))));
  (void)chat(fmt::format(R"(,"n":{})", kSamplesMax));
  EXPECT_THAT(requests(), SizeIs(kSamplesMax));
}

TEST_F(GatewayReplies, CompletionsOfARequestCountAsWaitingOnes) {
  options.max_waiting = 3;
  options.max_inflight = 1;
  EXPECT_THAT(reply(chat(R"(,"n":4)")), AllOf(StartsWith("400 "), HasSubstr("at most 3")));
  const uint64_t first = chat(R"(,"n":3)");
  EXPECT_THAT(reply(chat(R"(,"n":2)")), AllOf(StartsWith("429 "), HasSubstr("2 requests")));
  (void)chat("");
  EXPECT_THAT(reply(chat("")), StartsWith("429 "));
  EXPECT_FALSE(has_reply(first));
}

TEST_F(GatewayReplies, IfOneOfSeveralFailsTheOthersAreCancelled) {
  const uint64_t id = chat(R"(,"n":3)");
  const auto made = requests();
  complete(made[1], "b\n");
  complete(made[2], "", FinishReason::kRefused);
  EXPECT_THAT(reply(id), StartsWith("400 "));
  const auto cancels = gateway().sent<Cancel>("cancel");
  ASSERT_THAT(cancels, SizeIs(1));
  EXPECT_THAT(cancels[0].requests, ElementsAre(made[0].request));
  complete(made[0], "", FinishReason::kCancelled);
  EXPECT_TRUE(gateway().idle());
}

TEST_F(GatewayReplies, SeveralAreCancelledTogetherAndSentAgainTogether) {
  options.attempts_max = 1;
  const uint64_t id = chat(R"(,"n":2)");
  auto made = requests();
  ASSERT_TRUE(gateway().peer({PeerEvent::Kind::kDown, kRouter, 1}).ok());
  work();
  made = requests();
  ASSERT_THAT(made, SizeIs(2));
  complete(made[0], "a\n");
  leave({id});
  const auto cancels = gateway().sent<Cancel>("cancel");
  ASSERT_THAT(cancels, SizeIs(1));
  EXPECT_THAT(cancels[0].requests, ElementsAre(made[1].request));
  const uint64_t lost = chat(R"(,"n":2)");
  for (int i = 0; i < 2; ++i) {
    (void)requests();
    ASSERT_TRUE(gateway().peer({PeerEvent::Kind::kDown, kRouter, 1}).ok());
    work();
  }
  EXPECT_THAT(reply(lost), AllOf(StartsWith("500 "), HasSubstr("lost or failed 2 times")));
  EXPECT_TRUE(gateway().idle());
}

TEST_F(GatewayReplies, IdsOfThePromptComeWhenTheyAreAskedFor) {
  const uint64_t with = generate(R"({"token_ids":[97,98],"return_token_ids":true})");
  complete(only_request(), "x");
  EXPECT_THAT(reply(with), HasSubstr(R"("prompt_token_ids":[97,98])"));
  const uint64_t without = generate();
  complete(only_request(), "x");
  EXPECT_THAT(reply(without), Not(HasSubstr("prompt_token_ids")));
}

TEST_F(GatewayReplies, ARequestNamesItsEngineAndWhenItCame) {
  ClientRequest request;
  request.method = "POST";
  request.path = "/inference/v1/generate";
  request.body = R"({"token_ids":[97]})";
  request.engine = 2;
  request.received = 1'790'000'000;
  request.session = "s";
  const uint64_t id = client(request);
  const auto made = only_request();
  EXPECT_EQ(made.engine, 2);
  request.engine = 1;
  (void)client(request);
  EXPECT_EQ(only_request().engine, 1) << "the same body for another engine does not join";
  complete(made, "x");
  EXPECT_THAT(reply(id), HasSubstr(R"("created":1790000000)"));
  EXPECT_EQ((void(generate()), only_request()).engine, -1);
}

TEST_F(GatewayReplies, ExpertsOfAMixtureAreFoundByTheirFirstBytes) {
  const uint64_t id = sampled(R"("routed_experts_prompt_start":2)");
  const auto request = only_request();
  EXPECT_EQ(request.sampling.routed_experts_start, 2);
  Completion completion = ranked(request);
  completion.ranks = {};
  completion.top_tokens = {};
  completion.top_logprobs = {};
  const std::vector<std::byte> bytes = {std::byte{1}, std::byte{7}, std::byte{0}, std::byte{2}};
  completion.routed = {
      .bytes = Blob(bytes), .start = 2, .num_layers = 2, .per_token = 2, .is_wide = false};
  give(completion);
  EXPECT_THAT(reply(id),
              HasSubstr(R"("routed_experts":{"data":"AQcAAg==","shape":[1,2,2],"start":2}}])"));
  const uint64_t wide = sampled("");
  EXPECT_EQ(requests().at(0).sampling.routed_experts_start, 0);
  completion.request += 1;
  completion.routed.is_wide = true;
  completion.routed.num_layers = 1;
  completion.routed.start = 0;
  give(completion);
  EXPECT_THAT(reply(wide), HasSubstr(R"("shape":[1,1,2],"start":0,"dtype":"uint16"}}])"));
  (void)chat("");
  EXPECT_EQ(only_request().sampling.routed_experts_start, -1) << "a chat has none";
}

TEST_F(GatewayReplies, ReasoningAndToolCallsAreParsed) {
  tenants.front().chat.parser = "hermes";
  tenants.front().seq_len = 256;
  const std::string tools =
      R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{}}}])";
  const uint64_t id = chat(tools);
  complete(only_request(),
           "<think>why</think>Look<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":1}}"
           "</tool_call>");
  EXPECT_THAT(reply(id),
              AllOf(StartsWith("200 "), HasSubstr(R"("reasoning_content":"why")"),
                    HasSubstr(R"("content":"Look")"), HasSubstr(R"("finish_reason":"tool_calls")"),
                    HasSubstr(R"("id":"chatcmpl-1-call-0")"),
                    HasSubstr(R"("type":"function","function":{"name":"f","arguments":)")));
}

}  // namespace
}  // namespace primerl::testing
