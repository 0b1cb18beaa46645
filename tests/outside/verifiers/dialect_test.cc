#include "runtime/outside/verifiers/dialect.h"

#include <gmock/gmock.h>

#include "runtime/outside/verifiers/msgpack_json.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kId = "0123456789abcdef0123456789abcdef";

Json call(const std::string& data, int64_t members = 1) {
  Json made = *parse_json(
      R"({"call":"run","salt":"v3|main.5.0.0@3","base_url":"http://h:1","model":"main",
          "api_key_var":"KEY","sampling":{"temperature":1.0,"top_k":40,"max_tokens":64}})",
      "");
  return made.set("data", *parse_json(data, "")).set("members", members);
}

/// Method and payload of a request, or the error.
std::string request(VerifiersDialect dialect, const Json& call, const PolicyClient& client = {}) {
  const auto frames = run_request(dialect, kId, call, client);
  if (!frames.ok()) return frames.error().text();
  EXPECT_EQ(frames->front(), kId);
  const std::string payload = read_msgpack(frames->back())->dump();
  return frames->size() == 3 ? (*frames)[1] + " " + payload : payload;
}

TEST(Dialect, HasNames) {
  for (const char* name : {"w0", "w1a", "w1b", "w1c", "w2"})
    EXPECT_EQ(to_string(*verifiers_dialect(name)), name);
  EXPECT_FALSE(verifiers_dialect("auto"));
  EXPECT_FALSE(verifiers_dialect("w3"));
}

// The bytes that the protocol's description gives.
TEST(Dialect, HealthAndCancelAreTheseFrames) {
  EXPECT_THAT(health_request(VerifiersDialect::kW0, kId), ElementsAre("health", "ping"));
  EXPECT_THAT(health_request(VerifiersDialect::kW1a, kId), ElementsAre(kId, "health", "\x80"));
  EXPECT_THAT(*cancel_request(VerifiersDialect::kW0, "x", kId), ElementsAre(kId, ""));
  EXPECT_THAT(*cancel_request(VerifiersDialect::kW2, "x", kId),
              ElementsAre("x", "cancel", "\x81\xaarequest_id\xd9\x20" + kId));
  EXPECT_FALSE(cancel_request(VerifiersDialect::kW1a, "x", kId));
  EXPECT_FALSE(cancel_request(VerifiersDialect::kW1b, "x", kId));
  EXPECT_TRUE(cancel_request(VerifiersDialect::kW1c, "x", kId));
}

TEST(Dialect, ARunOfW1AndW2NamesItsTaskClientModelAndSampling) {
  const std::string rest =
      R"("client":{"type":"train","base_url":"http://h:1/v1","api_key_var":"KEY","headers":{},)"
      R"("renderer":null,"renderer_model_name":null},"model":"main",)"
      R"("sampling":{"temperature":1.0,"top_k":40,"max_tokens":64,)"
      R"("cache_salt":"v3|main.5.0.0@3"}})";
  const Json by_data = call(R"({"task_data":{"idx":4}})");
  const Json by_index = call(R"({"task_idx":4})");
  EXPECT_EQ(request(VerifiersDialect::kW1a, by_index), "run_rollout {\"task_idx\":4," + rest);
  EXPECT_EQ(request(VerifiersDialect::kW1b, by_data), "run {\"task_data\":{\"idx\":4}," + rest);
  EXPECT_EQ(request(VerifiersDialect::kW1c, by_data), "run {\"task_data\":{\"idx\":4}," + rest);
  EXPECT_EQ(request(VerifiersDialect::kW2, by_data), "run {\"task_data\":{\"idx\":4}," + rest);
}

TEST(Dialect, ABridgedEnvironmentGetsTheSaltInTheExtraBody) {
  EXPECT_THAT(request(VerifiersDialect::kW1b, call(R"({"task_idx":4})")),
              HasSubstr(R"("max_tokens":64,"extra_body":{"cache_salt":"v3|main.5.0.0@3"}}})"));
}

TEST(Dialect, AGroupIsOneRequestWhereTheDialectHasIt) {
  EXPECT_THAT(request(VerifiersDialect::kW1a, call(R"({"task_idx":4})", 3)),
              HasSubstr("run_group {\"task_idx\":4,\"n\":3,"));
  EXPECT_THAT(
      request(VerifiersDialect::kW0, call(R"({"input":{"example_id":1}})", 2)),
      HasSubstr(
          R"("request_type":"run_group","group_inputs":[{"example_id":1},{"example_id":1}])"));
  EXPECT_THAT(request(VerifiersDialect::kW1c, call(R"({"task_data":{}})", 2)),
              HasSubstr("w1c runs one member a call, not 2"));
}

TEST(Dialect, ARunOfW0AsksForItsTrajectory) {
  PolicyClient client;
  client.renderer = *parse_json(R"({"name":"default","tool_parser":"qwen3"})", "");
  client.renderer_model = "org/model";
  const auto frames =
      run_request(VerifiersDialect::kW0, kId, call(R"({"input":{"example_id":1}})"), client);
  ASSERT_EQ(frames->size(), 2U);
  const Json payload = *read_msgpack(frames->back());
  EXPECT_EQ(payload.get_string("request_type").value(), "run_rollout");
  EXPECT_EQ(payload.find("state_columns")->dump(), R"(["trajectory"])");
  EXPECT_EQ(payload.get_int("max_retries").value(), 0);
  EXPECT_EQ(payload.find("request_id"), nullptr) << "the worker would answer under it";
  EXPECT_EQ(payload.find("sampling_args")->dump(),
            R"({"temperature":1.0,"max_completion_tokens":64,"logprobs":true,)"
            R"("extra_body":{"top_k":40,"cache_salt":"v3|main.5.0.0@3"}})");
  const Json& config = *payload.find("client_config");
  EXPECT_EQ(config.get_string("client_type").value(), "renderer");
  EXPECT_EQ(config.get_string("renderer").value(), "default");
  EXPECT_EQ(config.get_string("tool_parser").value(), "qwen3");
  EXPECT_EQ(config.find("renderer_config")->dump(), client.renderer.dump());
  EXPECT_EQ(config.get_string("renderer_model_name").value(), "org/model");
  EXPECT_EQ(config.get_string("api_base_url").value(), "http://h:1/v1");
}

TEST(Dialect, AnEvaluationAsksByChat) {
  PolicyClient client;
  client.is_training = false;
  EXPECT_THAT(request(VerifiersDialect::kW2, call(R"({"task_data":{}})"), client),
              HasSubstr(R"("client":{"type":"eval","base_url":"http://h:1/v1",)"
                        R"("api_key_var":"KEY","headers":{}})"));
  const std::string legacy = request(VerifiersDialect::kW0, call(R"({"input":{}})"), client);
  EXPECT_THAT(legacy, HasSubstr(R"("client_type":"openai_chat_completions")"));
  EXPECT_THAT(legacy, ::testing::Not(HasSubstr("logprobs")));
}

TEST(Dialect, ACallThatLacksSomethingIsRefused) {
  EXPECT_THAT(request(VerifiersDialect::kW2, call(R"({"input":{}})")),
              HasSubstr("dialect w2 needs 'task_data' in the data of a task"));
  EXPECT_THAT(request(VerifiersDialect::kW1b, call("{}")), HasSubstr("'task_data' or 'task_idx'"));
  EXPECT_THAT(request(VerifiersDialect::kW1a, call(R"({"task_idx":"4"})")),
              HasSubstr("'task_idx' of the task is a string"));
  for (const char* key : {"salt", "base_url", "model", "sampling", "data", "api_key_var"}) {
    Json without = call(R"({"task_data":{}})");
    std::erase_if(without.as_object(), [&](const auto& member) { return member.first == key; });
    EXPECT_THAT(request(VerifiersDialect::kW2, without), HasSubstr(key));
  }
}

TEST(Dialect, MembersAreBounded) {
  EXPECT_EQ(members_of(call("{}", kRunMembersMax)).value(), kRunMembersMax);
  EXPECT_FALSE(members_of(call("{}", kRunMembersMax + 1)).ok());
  EXPECT_FALSE(members_of(call("{}", 0)).ok());
}

TEST(Dialect, AnswersHaveTwoFramesOrThree) {
  const auto fault = [](VerifiersDialect dialect, const Frames& frames) {
    const auto frame = read_server_frame(dialect, frames);
    return frame.ok() ? std::string(frame->is_delta ? "delta" : "reply") : frame.error().message();
  };
  EXPECT_EQ(fault(VerifiersDialect::kW1c, {kId, "x"}), "reply");
  EXPECT_EQ(fault(VerifiersDialect::kW2, {kId, "delta", "x"}), "delta");
  EXPECT_EQ(fault(VerifiersDialect::kW2, {kId, "reply", "x"}), "reply");
  EXPECT_THAT(fault(VerifiersDialect::kW2, {kId, "news", "x"}), HasSubstr("of the kind 'news'"));
  EXPECT_THAT(fault(VerifiersDialect::kW2, {kId, "x"}), HasSubstr("has 2 frames, not 3"));
  EXPECT_THAT(fault(VerifiersDialect::kW0, {kId, "a", "x"}), HasSubstr("has 3 frames, not 2"));
  EXPECT_THAT(fault(VerifiersDialect::kW0, {}), HasSubstr("has 0 frames"));
}

TEST(Dialect, AReplySaysWhetherItSucceeded) {
  EXPECT_FALSE(*failure_of(*parse_json(R"({"success":true,"error":null})", "")));
  EXPECT_EQ(**failure_of(*parse_json(R"({"success":false,"error":"A: b"})", "")), "A: b");
  EXPECT_EQ(**failure_of(*parse_json(R"({"success":false})", "")), "the server gives no reason");
  EXPECT_FALSE(failure_of(*parse_json("{}", "")).ok());
  EXPECT_FALSE(failure_of(Json(1)).ok());
  EXPECT_TRUE(is_unknown_method("unknown method 'info'"));
  EXPECT_FALSE(is_unknown_method("ValueError: unknown method"));
}

}  // namespace
}  // namespace primerl
