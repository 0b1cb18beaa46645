// The gateway: bad requests, limits, joining, cancelling, losses, deadlines, and its routes.
#include "runtime/program/version.h"
#include "tests/actors/gateway_story.h"

namespace primerl::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

// The byte tokenizer encodes <eos> as the byte '\n', its end token.
std::shared_ptr<const ChatSource> chat_source() {
  auto source = std::make_shared<ChatSource>();
  source->file = "model/chat_template.jinja";
  source->templates.push_back(
      {"default",
       "{% if tools %}T<eos>{% endif %}{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<eos>"
       "{% endfor %}{% if add_generation_prompt %}a:{% endif %}{% if mark %}{{ mark }}{% endif "
       "%}"});
  return source;
}

std::string generate_body(int num_tokens, const std::string& more = "") {
  const std::vector<int> ids(static_cast<size_t>(num_tokens), 97);
  return fmt::format(R"({{"token_ids":[{}]{}}})", fmt::join(ids, ","), more);
}

TEST_F(GatewayStory, ABodyThatIsWrongIsRefusedByItsKey) {
  const std::map<std::string, std::string> wrong = {
      {"", "the request has no body"},
      {"[]", "an array, not an object"},
      {"{", "the body"},
      {"{}", "no 'token_ids'"},
      {R"({"token_ids":[]})", "'token_ids' is empty"},
      {R"({"token_ids":"97"})", "'token_ids' is a string"},
      {R"({"token_ids":[97,-1]})", "'token_ids' has -1 at position 1"},
      {R"({"token_ids":[97.5]})", "'token_ids' has a number at position 0"},
      {R"({"token_ids":[4294967296]})", "'token_ids' has 4294967296"},
      {R"({"token_ids":[97],"stream":true})", "'stream'"},
      {R"({"token_ids":[97],"features":{}})", "'features' is not available"},
      {R"({"token_ids":[97],"model":7})", "'model' is a number, not a string"},
      {R"({"token_ids":[97],"cache_salt":"a b"})", "'cache_salt'"},
      {R"({"token_ids":[97],"sampling_params":7})", "'sampling_params' is a number"},
      {R"({"token_ids":[97],"sampling_params":{"n":0}})", "'n' is 0"},
      {R"({"token_ids":[97],"sampling_params":{"temperature":"hot"}})", "'temperature'"},
      {R"({"token_ids":[97],"sampling_params":{"temperature":-1}})", "temperature"},
      {R"({"token_ids":[97],"sampling_params":{"max_tokens":0}})", "'max_tokens' is 0"},
      {R"({"token_ids":[97],"sampling_params":{"top_k":-2}})", "'top_k' is -2"},
      {R"({"token_ids":[97],"sampling_params":{"stop":[1]}})", "'stop'"},
      {R"({"token_ids":[97],"sampling_params":{"logit_bias":{"x":1}}})", "'logit_bias'"},
      {R"({"token_ids":[97],"sampling_params":{"prompt_logprobs":-1}})", "'prompt_logprobs' is -1"},
      {R"({"token_ids":[97],"sampling_params":{"logprobs":21}})",
       "'logprobs' is 21, not from 0 to 20"},
      {R"({"token_ids":[97],"sampling_params":{"logprobs":21}})",
       "at most the 20 likeliest tokens of a position"},
  };
  for (const auto& [body, why] : wrong)
    EXPECT_THAT(reply(generate(body)), AllOf(StartsWith("400 "), HasSubstr(why),
                                             HasSubstr("\"type\":\"invalid_request_error\"")))
        << body;
  EXPECT_THAT(requests(), IsEmpty());
}

TEST_F(GatewayStory, APromptFitsUpToOneTokenBelowSeqLen) {
  const uint64_t longest = generate(generate_body(31));
  EXPECT_THAT(requests(), SizeIs(1));
  EXPECT_FALSE(has_reply(longest));
  EXPECT_THAT(
      reply(generate(generate_body(32))),
      AllOf(StartsWith("400 "), HasSubstr("This model's maximum context length is 32 tokens")));
}

TEST_F(GatewayStory, ARouteOrMethodThatDoesNotExistIsNamed) {
  EXPECT_THAT(reply(post("/v1/completions", "{}")),
              AllOf(StartsWith("404 "), HasSubstr("there is no 'POST /v1/completions'")));
  EXPECT_THAT(reply(post("/v1/models", "{}")), StartsWith("405 "));
  ClientRequest get;
  get.method = "GET";
  get.path = "/inference/v1/generate";
  EXPECT_THAT(reply(client(get)), StartsWith("405 "));
}

TEST_F(GatewayStory, AModelIsATenantAndAKeyMayAllowOneOnly) {
  tenants.push_back(tenants.front());
  tenants.back().name = "blue";
  gateway();
  live(0, 1);
  EXPECT_THAT(reply(generate()), AllOf(StartsWith("400 "), HasSubstr("models are: main, blue")));
  EXPECT_THAT(reply(generate(generate_body(1, R"(,"model":"red")"))),
              AllOf(StartsWith("404 "), HasSubstr("the model 'red' does not exist")));
  ClientRequest limited;
  limited.method = "POST";
  limited.path = "/inference/v1/generate";
  limited.tenant = "blue";
  limited.body = generate_body(1, R"(,"model":"main")");
  EXPECT_THAT(reply(client(limited)), AllOf(StartsWith("404 "), Not(HasSubstr("are: main"))));
  limited.body = generate_body(1);
  (void)client(limited);
  ASSERT_THAT(gateway().emissions("generate"), SizeIs(1));
  EXPECT_EQ(gateway().emissions("generate")[0].options.tenant, TenantSlot(1));
}

TEST_F(GatewayStory, AModelHasTheNamesThatItIsServedAs) {
  tenants.front().served_as = {"Qwen/Qwen3-8B", "qwen"};
  gateway();
  (void)generate(generate_body(1, R"(,"model":"Qwen/Qwen3-8B")"));
  ASSERT_THAT(requests(), SizeIs(1));
  EXPECT_THAT(reply(generate(generate_body(1, R"(,"model":"Qwen/Qwen3")"))), StartsWith("404 "));
  ClientRequest get;
  get.method = "GET";
  get.path = "/v1/models";
  EXPECT_THAT(reply(client(get)),
              AllOf(HasSubstr(R"("id":"main")"), HasSubstr(R"("id":"Qwen/Qwen3-8B")"),
                    HasSubstr(R"("id":"qwen")")));
}

TEST_F(GatewayStory, AModelOfSeveralTenantsNamesTheOneThatAClientMayUse) {
  tenants.front().served_as = {"Qwen/Qwen3-8B"};
  tenants.push_back(tenants.front());
  tenants.back().name = "blue";
  gateway();
  live(0, 1);
  const std::string body = generate_body(1, R"(,"model":"Qwen/Qwen3-8B")");
  EXPECT_THAT(reply(generate(body)),
              AllOf(StartsWith("400 "), HasSubstr("'Qwen/Qwen3-8B' is trained by 2 tenants"),
                    HasSubstr("name one of them: main, blue")));
  ClientRequest get;
  get.method = "GET";
  get.path = "/v1/models";
  EXPECT_THAT(reply(client(get)), Not(HasSubstr("Qwen")));
  get.tenant = "blue";
  EXPECT_THAT(reply(client(get)), HasSubstr(R"("id":"Qwen/Qwen3-8B")"));
  ClientRequest limited;
  limited.method = "POST";
  limited.path = "/inference/v1/generate";
  limited.tenant = "blue";
  limited.body = body;
  (void)client(limited);
  ASSERT_THAT(gateway().emissions("generate"), SizeIs(1));
  EXPECT_EQ(gateway().emissions("generate")[0].options.tenant, TenantSlot(1));
}

TEST_F(GatewayStory, ARequestBecomesAGenerateRequestAndItsCompletionTheReply) {
  const uint64_t id = generate(
      R"({"model":"main","token_ids":[97,98],"request_id":"r","cache_salt":"7","sampling_params":{)"
      R"("temperature":0.5,"top_k":-1,"top_p":0.9,"max_tokens":4,"min_tokens":1,"seed":11,)"
      R"("stop_token_ids":[5],"stop":"z","logprobs":1,"skip_special_tokens":false,"n":1,)"
      R"("repetition_penalty":null}})",
      "session");
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_THAT(made[0].prompt_tokens, ElementsAre(97, 98));
  EXPECT_EQ(made[0].version, PolicyVersion(0));
  EXPECT_EQ(made[0].salt, "7");
  EXPECT_EQ(made[0].seed, 11u);
  EXPECT_EQ(made[0].sampling.temperature, 0.5);
  EXPECT_EQ(made[0].sampling.top_k, 0);
  EXPECT_EQ(made[0].sampling.max_tokens, 4);
  EXPECT_THAT(made[0].sampling.stop_ids, ElementsAre(5));
  EXPECT_THAT(made[0].sampling.stop, ElementsAre("z"));
  EXPECT_GE(made[0].request, uint64_t{1} << 47) << "Rollout has the numbers below";
  complete(made[0], "x\n");
  EXPECT_EQ(reply(id),
            R"(200 {"request_id":"generate-1","model":"main","created":0,"choices":[{"index":0,)"
            R"("token_ids":[120,10],)"
            R"("logprobs":{"content":[{"token":"token_id:120","token_id":120,"logprob":-0.25,)"
            R"("rank":null,"top_logprobs":[]},{"token":"token_id:10","token_id":10,)"
            R"("logprob":-0.25,"rank":null,"top_logprobs":[]}]},"finish_reason":"stop",)"
            R"("weight_versions":[]}],)"
            R"("prompt_logprobs":null,"kv_transfer_params":null,"usage":{"prompt_tokens":2,)"
            R"("completion_tokens":2,"total_tokens":4,"prompt_tokens_details":)"
            R"({"cached_tokens":1}}})");
}

TEST_F(GatewayStory, WithoutMaxTokensTheRestOfSeqLenIsTheLimit) {
  (void)generate(generate_body(2));
  (void)generate(generate_body(30, R"(,"sampling_params":{"max_tokens":1000})"));
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(2));
  EXPECT_EQ(made[0].sampling.max_tokens, 30);
  EXPECT_EQ(made[1].sampling.max_tokens, 2);
  EXPECT_EQ(made[0].salt, "main:0") << "the salt of rollouts that open now";
  EXPECT_NE(made[0].seed, made[1].seed);
}

TEST_F(GatewayStory, ALaterTenantOfASlotHasTheSaltOfItsRollouts) {
  tenants.front().tenancy = 2;
  (void)generate(generate_body(2));
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_EQ(made[0].salt, "main~2:0");
}

TEST_F(GatewayStory, ALogprobThatIsNotFiniteIsAnErrorOfTheServer) {
  logprob = -std::numeric_limits<float>::infinity();
  const uint64_t id = generate();
  complete(requests().at(0));
  EXPECT_THAT(reply(id), AllOf(StartsWith("500 "), HasSubstr("\"type\":\"server_error\"")));
}

TEST_F(GatewayStory, KeysWithoutAnEffectAreNamedOnce) {
  for (int i = 0; i < 2; ++i)
    (void)generate(generate_body(1, R"(,"priority":1,"sampling_params":{"logit_scale":1})"));
  EXPECT_THAT(requests(), SizeIs(2));
  EXPECT_THAT(gateway().log(),
              ElementsAre(HasSubstr("'priority'"), HasSubstr("'sampling_params.logit_scale'")));
}

TEST_F(GatewayStory, SessionsKeepTheirNumberAndRequestsWithoutOneDoNot) {
  for (int i = 0; i < 2; ++i) (void)generate(generate_body(1 + i), "s");
  for (int i = 0; i < 2; ++i) (void)generate(generate_body(1));
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(4));
  EXPECT_EQ(made[0].session, made[1].session);
  EXPECT_NE(made[2].session, made[3].session);
  for (const auto& request : made)
    EXPECT_GT(request.session, uint64_t{1} << 48) << "trajectories are numbered from 0";
}

TEST_F(GatewayStory, ARepeatJoinsTheRunningRequest) {
  const uint64_t first = generate(generate_body(1), "s");
  const uint64_t repeat = generate(generate_body(1), "s");
  const uint64_t other_body = generate(generate_body(2), "s");
  const uint64_t other_session = generate(generate_body(1), "t");
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(3));
  complete(made[0]);
  EXPECT_THAT(reply(first), StartsWith("200 "));
  EXPECT_EQ(reply(repeat), reply(first));
  EXPECT_FALSE(has_reply(other_body) || has_reply(other_session));
  (void)generate(generate_body(1), "s");
  EXPECT_THAT(requests(), SizeIs(1)) << "the first has ended: this one is new";
  (void)generate(generate_body(1));
  (void)generate(generate_body(1));
  EXPECT_THAT(requests(), SizeIs(2)) << "without a session nothing joins";
}

TEST_F(GatewayStory, ARequestIsCancelledWhenItsLastClientHasGone) {
  const uint64_t first = generate(generate_body(1), "s");
  const uint64_t repeat = generate(generate_body(1), "s");
  const auto made = requests();
  leave({first});
  EXPECT_THAT(gateway().sent<Cancel>("cancel"), IsEmpty());
  leave({repeat, 12345});
  const auto cancels = gateway().sent<Cancel>("cancel");
  ASSERT_THAT(cancels, SizeIs(1));
  EXPECT_THAT(cancels[0].requests, ElementsAre(made[0].request));
  EXPECT_FALSE(gateway().idle()) << "its completion must still come";
  complete(made[0], "", FinishReason::kCancelled);
  EXPECT_TRUE(gateway().idle());
  EXPECT_FALSE(has_reply(first) || has_reply(repeat));
}

TEST_F(GatewayStory, MaxInflightHoldsAtTheLimitAndTheNextOneWaits) {
  options.max_inflight = 2;
  for (int i = 0; i < 3; ++i) (void)generate();
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(2));
  complete(made[0]);
  const auto next = requests();
  ASSERT_THAT(next, SizeIs(1));
  EXPECT_THAT(next[0].answered, ElementsAre(made[0].request));
}

TEST_F(GatewayStory, ATenantHasItsOwnLimitAndTheOthersAreServed) {
  tenants.front().inflight = 1;
  tenants.push_back(tenants.front());
  tenants.back().name = "blue";
  gateway();
  live(0, 1);
  for (const char* model : {"main", "main", "blue", "blue"})
    (void)generate(generate_body(1, fmt::format(R"(,"model":"{}")", model)));
  const auto& sent = gateway().emissions("generate");
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].options.tenant, TenantSlot(0));
  EXPECT_EQ(sent[1].options.tenant, TenantSlot(1));
}

TEST_F(GatewayStory, MaxWaitingHoldsAtTheLimitAndOneMoreGets429) {
  options.max_inflight = 1;
  options.max_waiting = 2;
  (void)generate();
  const uint64_t waits = generate(), last = generate();
  EXPECT_THAT(reply(generate()), AllOf(StartsWith("429 "), HasSubstr("2 requests of 'main' wait")));
  leave({waits});
  (void)generate();
  EXPECT_FALSE(has_reply(last));
  EXPECT_THAT(requests(), SizeIs(1));
}

TEST_F(GatewayStory, AFullEdgeHoldsRequestsBack) {
  gateway().set_room("generate", 1);
  (void)generate();
  gateway().set_room("generate", 0);
  (void)generate();
  EXPECT_THAT(requests(), SizeIs(1));
  gateway().set_room("generate", 1);
  work();
  EXPECT_THAT(requests(), SizeIs(1));
}

TEST_F(GatewayStory, NothingIsSentBeforeAVersionIsLive) {
  is_live = false;
  (void)generate();
  EXPECT_THAT(requests(), IsEmpty());
  ClientRequest get;
  get.method = "GET";
  get.path = "/health";
  EXPECT_THAT(reply(client(get)), StartsWith("503 "));
  live(3);
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_EQ(made[0].version, PolicyVersion(3));
  EXPECT_EQ(reply(client(get)), R"(200 {"status":"ok"})");
}

TEST_F(GatewayStory, ALostEngineIsSurvivedAttemptsMaxTimes) {
  options.attempts_max = 2;
  const uint64_t id = generate();
  auto made = requests();
  for (uint32_t attempt = 1; attempt <= 2; ++attempt) {
    complete(made.at(0), "", FinishReason::kEngineLost);
    const auto again = requests();
    ASSERT_THAT(again, SizeIs(1));
    EXPECT_EQ(again[0].attempt, attempt);
    EXPECT_NE(again[0].request, made[0].request);
    EXPECT_EQ(again[0].seed, made[0].seed) << "it samples the same tokens";
    made = again;
  }
  complete(made.at(0), "", FinishReason::kFailed);
  EXPECT_THAT(reply(id), AllOf(StartsWith("500 "), HasSubstr("lost or failed 3 times")));
}

TEST_F(GatewayStory, ARefusedRequestIsTheClientsFault) {
  const uint64_t id = generate();
  complete(requests().at(0), "", FinishReason::kRefused);
  EXPECT_THAT(reply(id), AllOf(StartsWith("400 "), HasSubstr("as the test says")));
}

TEST_F(GatewayStory, ALostRouterMeansThatRequestsAreSentAgainInOrder) {
  (void)generate(generate_body(1));
  const uint64_t gone = generate(generate_body(2));
  (void)generate(generate_body(3));
  const auto made = requests();
  leave({gone});
  ASSERT_TRUE(gateway().peer({PeerEvent::Kind::kDown, kRouter, 1}).ok());
  work();
  const auto again = requests();
  ASSERT_THAT(again, SizeIs(2));
  EXPECT_THAT(again[0].prompt_tokens, SizeIs(1));
  EXPECT_THAT(again[1].prompt_tokens, SizeIs(3));
  complete(made[0]);
  EXPECT_EQ(gateway().counter("completions_unknown"), 1);
}

TEST_F(GatewayStory, AClientGets504AtItsDeadline) {
  options.request_timeout = Duration::seconds(5);
  const uint64_t id = generate();
  const auto made = requests();
  EXPECT_EQ(made.at(0).time_left, Duration::seconds(5));
  ASSERT_TRUE(gateway().advance(Duration::milliseconds(4999)).ok());
  EXPECT_FALSE(has_reply(id));
  ASSERT_TRUE(gateway().advance(Duration::milliseconds(1)).ok());
  work();
  EXPECT_THAT(reply(id), AllOf(StartsWith("504 "), HasSubstr("no reply within 5s")));
  EXPECT_THAT(gateway().sent<Cancel>("cancel"), SizeIs(1));
}

TEST_F(GatewayStory, ADrainStopsTheListenerAndCancelsWhatRuns) {
  (void)generate();
  (void)requests();
  ASSERT_TRUE(gateway().drain().ok());
  work();
  EXPECT_TRUE(listener.is_stopped);
  EXPECT_THAT(gateway().sent<Cancel>("cancel"), SizeIs(1));
}

TEST_F(GatewayStory, AChatIsRenderedAndItsAnswerIsAMessage) {
  tokenizer.set_chat_source(chat_source());
  const uint64_t id = post("/v1/chat/completions",
                           R"({"model":"main","messages":[{"role":"user","content":"hi"}],)"
                           R"("max_completion_tokens":5,"logprobs":true,"return_token_ids":true})");
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(1));
  const std::string prompt(made[0].prompt_tokens.begin(), made[0].prompt_tokens.end());
  EXPECT_EQ(prompt, "u:hi\na:");
  EXPECT_EQ(made[0].sampling.max_tokens, 5);
  complete(made[0], "yo\n");
  EXPECT_THAT(reply(id),
              AllOf(StartsWith("200 "), HasSubstr("\"object\":\"chat.completion\""),
                    HasSubstr("\"model\":\"main\""), HasSubstr("\"finish_reason\":\"stop\""),
                    HasSubstr(R"("role":"assistant","content":"yo)"),
                    HasSubstr(R"("token":"y","logprob":-0.25,"bytes":[121])"),
                    HasSubstr("\"token_ids\":[121,111,10]"),
                    HasSubstr("\"prompt_token_ids\":[117,58,104,105,10,97,58]")));
  const uint64_t plain =
      post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"stop":["o"]})");
  complete(requests().at(0), "yo");
  EXPECT_THAT(reply(plain), AllOf(HasSubstr(R"("content":"y")"), HasSubstr("\"logprobs\":null"),
                                  Not(HasSubstr("token_ids"))));
}

TEST_F(GatewayStory, AChatThatIsWrongIsRefusedByItsKey) {
  const auto chat = [this](const std::string& body) {
    return reply(post("/v1/chat/completions", body));
  };
  const std::string user = R"("messages":[{"role":"user","content":"hi"}])";
  EXPECT_THAT(chat("{" + user + "}"), StartsWith("400 ")) << "the model has no template";
  tokenizer.set_chat_source(chat_source());
  EXPECT_THAT(chat("{}"), HasSubstr("no 'messages'"));
  EXPECT_THAT(chat(R"({"messages":[]})"), HasSubstr("'messages' is empty"));
  EXPECT_THAT(chat(R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})"),
              AllOf(StartsWith("400 "), HasSubstr("image_url")));
  EXPECT_THAT(chat("{" + user + R"(,"tools":{}})"), HasSubstr("'tools'"));
  EXPECT_THAT(chat("{" + user + R"(,"top_logprobs":3})"), HasSubstr("'top_logprobs' is 3"));
  EXPECT_THAT(chat("{" + user + R"(,"chat_template_kwargs":[]})"),
              HasSubstr("'chat_template_kwargs' is an array"));
}

TEST_F(GatewayStory, TemplateKwargsOfARequestAreUsed) {
  tokenizer.set_chat_source(chat_source());
  (void)post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"hi"}],"chat_template_kwargs":{"mark":"M"}})");
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(1));
  const std::string prompt(made[0].prompt_tokens.begin(), made[0].prompt_tokens.end());
  EXPECT_EQ(prompt, "u:hi\na:M");
}

TEST_F(GatewayStory, TokenizeVersionAndModelsAnswerAtOnce) {
  tokenizer.set_chat_source(chat_source());
  EXPECT_EQ(reply(post("/tokenize", R"({"prompt":"ab","return_token_strs":true})")),
            R"(200 {"count":2,"max_model_len":32,"tokens":[97,98],"token_strs":["a","b"]})");
  EXPECT_EQ(reply(post("/tokenize", R"({"messages":[{"role":"user","content":"h"}],)"
                                    R"("add_generation_prompt":false})")),
            R"(200 {"count":4,"max_model_len":32,"tokens":[117,58,104,10]})");
  EXPECT_THAT(reply(post("/tokenize", R"({})")), HasSubstr("'prompt' or 'messages'"));
  EXPECT_THAT(reply(post("/tokenize", R"({"prompt":"!"})")), StartsWith("400 "));
  ClientRequest get;
  get.method = "GET";
  get.path = "/version";
  EXPECT_EQ(reply(client(get)), fmt::format(R"(200 {{"version":"{}"}})", kProgramVersion));
  get.path = "/v1/models";
  EXPECT_EQ(reply(client(get)),
            R"(200 {"object":"list","data":[{"id":"main","object":"model","created":0,)"
            R"("owned_by":"primerl-graph","max_model_len":32}]})");
}

TEST_F(GatewayStory, RequestIdsAreSentBack) {
  ClientRequest request;
  request.method = "POST";
  request.path = "/inference/v1/generate";
  request.request_id = "own";
  request.body = generate_body(1);
  const uint64_t id = client(request);
  complete(requests().at(0));
  EXPECT_EQ(listener.replies[id].request_id, "own");
  EXPECT_THAT(reply(id), HasSubstr(R"("request_id":"own")"));
}

TEST_F(GatewayStory, AsManyAcceptsAreOpenHoweverManyRequestsCome) {
  gateway();
  const size_t open = listener.accepts.size();
  for (int i = 0; i < 10; ++i) (void)generate();
  EXPECT_EQ(listener.accepts.size(), open);
  EXPECT_THAT(listener.closed_calls, SizeIs(1));
}

}  // namespace
}  // namespace primerl::testing
