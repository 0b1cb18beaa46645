// Requests of the Tinker wire: the bodies that SDK 0.25 and 0.38 send, and bad ones.
#include "actors/tinker/requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/tinker_bodies.h"

namespace primerl::tinker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string_view captured_body(std::string_view sdk, std::string_view route, size_t index = 0) {
  for (const CapturedBody& each : captured_bodies())
    if (each.sdk.starts_with(sdk) && each.route == route && index-- == 0) return each.body;
  ADD_FAILURE() << "no body of " << sdk << " " << route;
  return {};
}

template <class T>
std::string fault_text(const Result<T>& result) {
  return result.ok() ? "accepted" : result.error().text();
}

class TinkerSdk : public ::testing::TestWithParam<const char*> {};

TEST_P(TinkerSdk, EveryRouteIsKnown) {
  for (const CapturedBody& each : captured_bodies()) {
    if (!each.sdk.starts_with(GetParam())) continue;
    EXPECT_TRUE(read_route("POST", "/api/v1/" + std::string(each.route)).ok()) << each.route;
  }
}

TEST_P(TinkerSdk, SessionsAndModelsAreRead) {
  const auto session = read_create_session(captured_body(GetParam(), "create_session"));
  ASSERT_TRUE(session.ok()) << session.error().text();
  EXPECT_TRUE(session->sdk_version.starts_with(GetParam()));
  const auto model = read_create_model(captured_body(GetParam(), "create_model"));
  ASSERT_TRUE(model.ok()) << model.error().text();
  EXPECT_EQ(model->session, "session-1");
  EXPECT_EQ(model->base_model, "tiny");
  EXPECT_EQ(model->rank, 8);
  EXPECT_EQ(model->seed, 7);
  EXPECT_TRUE(model->trains_unembed && model->trains_mlp && model->trains_attention);
  EXPECT_EQ(read_one_name(captured_body(GetParam(), "get_info"), "model_id").value(),
            "session-1:train:0");
  EXPECT_EQ(read_retrieve_future(captured_body(GetParam(), "retrieve_future"))->request, 0u);
}

TEST_P(TinkerSdk, StepsAndWeightsAreRead) {
  const auto step = read_optim_step(captured_body(GetParam(), "optim_step"));
  ASSERT_TRUE(step.ok()) << step.error().text();
  EXPECT_EQ(step->seq, 4);
  EXPECT_EQ(step->adam.lr, 0.001);
  EXPECT_EQ(step->adam.epsilon, 1e-12);
  const auto saved = read_save_weights(captured_body(GetParam(), "save_weights"));
  ASSERT_TRUE(saved.ok()) << saved.error().text();
  EXPECT_EQ(saved->name, "step-1");
  EXPECT_FALSE(saved->overwrites);
  const auto named = read_save_for_sampler(captured_body(GetParam(), "save_weights_for_sampler"));
  ASSERT_TRUE(named.ok()) << named.error().text();
  EXPECT_EQ(named->name, "snap");
  const auto sampler =
      read_save_for_sampler(captured_body(GetParam(), "save_weights_for_sampler", 1));
  ASSERT_TRUE(sampler.ok()) << sampler.error().text();
  EXPECT_EQ(sampler->sampler_seq, 0);
  EXPECT_FALSE(sampler->is_inflight);
  const auto loaded = read_load_weights(captured_body(GetParam(), "load_weights"));
  ASSERT_TRUE(loaded.ok()) << loaded.error().text();
  EXPECT_EQ(loaded->from, (SavedWeights{"session-1:train:0", false, "step-1"}));
  EXPECT_EQ(loaded->seq, 7);
}

TEST_P(TinkerSdk, SamplesAreRead) {
  const auto sampler = read_create_sampler(captured_body(GetParam(), "create_sampling_session"));
  ASSERT_TRUE(sampler.ok()) << sampler.error().text();
  EXPECT_EQ(sampler->base_model, "tiny");
  const auto sample = read_sample(captured_body(GetParam(), "asample"));
  ASSERT_TRUE(sample.ok()) << sample.error().text();
  EXPECT_THAT(sample->prompt, ElementsAre(1, 2, 3));
  EXPECT_THAT(sample->stops, ElementsAre("end"));
  EXPECT_EQ(sample->max_tokens, 4);
  EXPECT_EQ(sample->seed, 3);
  EXPECT_EQ(sample->temperature, 0.5);
  EXPECT_EQ(sample->top_k, 0);
  EXPECT_TRUE(sample->wants_prompt_logprobs);
  EXPECT_FALSE(sample->ignores_eos);
  const auto endless = read_sample(captured_body(GetParam(), "asample", 1));
  ASSERT_TRUE(endless.ok()) << endless.error().text();
  EXPECT_THAT(endless->stops, IsEmpty());
  EXPECT_TRUE(endless->ignores_eos);
}

INSTANTIATE_TEST_SUITE_P(Versions, TinkerSdk, ::testing::Values("0.25", "0.38"));

TEST(TinkerRequests, RoutesWithNamesAreRead) {
  EXPECT_EQ(read_route("GET", "/api/v1/samplers/s:sample:0")->name, "s:sample:0");
  EXPECT_EQ(read_route("POST", "/api/v1/sessions/s/finish")->route, Route::kFinishSession);
  for (const char* path : {"/api/v1/samplers/", "/api/v1/samplers/a/b", "/api/v2/healthz",
                           "/api/v1/sessions//finish", "/", ""})
    EXPECT_THAT(fault_text(read_route("GET", path)), HasSubstr("no route GET")) << path;
  EXPECT_FALSE(read_route("GET", "/api/v1/optim_step").ok());
}

TEST(TinkerRequests, OldSdksAreRefusedByName) {
  EXPECT_TRUE(read_sdk_version("0.25.0").ok());
  EXPECT_TRUE(read_sdk_version("1.0").ok());
  EXPECT_THAT(fault_text(read_sdk_version("0.24.9")), HasSubstr("too old"));
  for (const char* text : {"", "0", "a.b", "0.", "."}) EXPECT_FALSE(read_sdk_version(text).ok());
}

TEST(TinkerRequests, UnknownMembersAndNullsArePassedOver) {
  EXPECT_TRUE(
      read_optim_step(R"({"model_id":"m","seq_id":1,"new":[{}],"adam_params":{"x":1}})").ok());
  EXPECT_TRUE(
      read_save_weights(R"({"model_id":"m","seq_id":1,"path":null,"overwrite":null})").ok());
}

TEST(TinkerRequests, BadBodiesAreNamed) {
  const std::pair<const char*, const char*> steps[] = {
      {"", "the body"},
      {"[]", "not an object"},
      {R"({"seq_id":1,"adam_params":{}})", "no 'model_id'"},
      {R"({"model_id":"m","adam_params":{}})", "no 'seq_id'"},
      {R"({"model_id":"m","seq_id":0,"adam_params":{}})", "'seq_id' is 0"},
      {R"({"model_id":"m","seq_id":2147483648,"adam_params":{}})", "'seq_id' is 2147483648"},
      {R"({"model_id":"m","seq_id":1.5,"adam_params":{}})", "not an integer"},
      {R"({"model_id":"m","seq_id":1})", "no 'adam_params'"},
      {R"({"model_id":"m","seq_id":1,"adam_params":{"beta1":1}})", "beta1 is 1"},
      {R"({"model_id":"m","seq_id":1,"adam_params":{"eps":"NaN"}})", "'eps' is"},
      {R"({"model_id":"m","seq_id":1,"adam_params":{"learning_rate":NaN}})", "the body"},
      {R"({"model_id":"m","seq_id":1,"adam_params":{"learning_rate":1e999}})", ""},
      {R"({"model_id":"m","seq_id":1,"optimizer_params":{"type":"dimuon"}})", "'optimizer_params'"},
      {R"({"model_id":"a\u0001","seq_id":1,"adam_params":{}})", "control character"}};
  for (const auto& [body, text] : steps) {
    EXPECT_FALSE(read_optim_step(body).ok()) << body;
    EXPECT_THAT(fault_text(read_optim_step(body)), HasSubstr(text)) << body;
  }
  EXPECT_THAT(fault_text(read_create_model(
                  R"({"session_id":"s","model_seq_id":0,"base_model":"b",
                      "optimizer_config":{"type":"dimuon"},"lora_config":{"rank":1}})")),
              HasSubstr("unknown optimizer 'dimuon'"));
  EXPECT_THAT(
      fault_text(read_create_model(R"({"session_id":"s","model_seq_id":0,"base_model":"b"})")),
      HasSubstr("no 'lora_config'"));
  for (const char* rank : {"0", "4097"})
    EXPECT_FALSE(
        read_create_model(std::string(R"({"session_id":"s","model_seq_id":0,"base_model":"b",
                                     "lora_config":{"rank":)") +
                          rank + "}}")
            .ok());
}

TEST(TinkerRequests, NamesHaveABound) {
  EXPECT_TRUE(check_name("x", std::string(kNameBytesMax, 'a')).ok());
  EXPECT_FALSE(check_name("x", std::string(kNameBytesMax + 1, 'a')).ok());
  EXPECT_TRUE(check_saved_name(std::string(kSavedNameBytesMax, 'a')).ok());
  EXPECT_FALSE(check_saved_name(std::string(kSavedNameBytesMax + 1, 'a')).ok());
  for (const char* name : {"", ".", "..", "a/b", ".hidden", "a b", "a\\b", "~"})
    EXPECT_FALSE(check_saved_name(name).ok()) << name;
}

TEST(TinkerRequests, APathHasThreeParts) {
  const SavedWeights saved{"s:train:0", true, "a.1"};
  EXPECT_EQ(to_path(saved), "tinker://s:train:0/sampler_weights/a.1");
  EXPECT_EQ(read_path(to_path(saved)).value(), saved);
  for (const char* path :
       {"", "tinker://", "tinker://m/weights", "tinker://m/weights/", "tinker://m/weights/a/b",
        "tinker://m/weights/..", "tinker:///weights/a", "tinker://m/other/a", "/etc/passwd"}) {
    ASSERT_FALSE(read_path(path).ok()) << path;
    EXPECT_EQ(read_path(path).error().code(), Code::kNotFound) << path;
  }
  EXPECT_EQ(read_request_name("r17").value(), 17u);
  for (const char* name : {"", "r", "17", "r017", "r1x", "r99999999999999999999"})
    EXPECT_FALSE(read_request_name(name).ok()) << name;
}

std::string sample_with(const std::string& members, const std::string& params = "") {
  return R"({"sampling_session_id":"s","seq_id":0,"prompt":{"chunks":[{"type":"encoded_text",)"
         R"("tokens":[1,2]}]},"sampling_params":{)" +
         params + "}" + members + "}";
}

TEST(TinkerRequests, SamplesThatCannotBeHonouredAreRefused) {
  ASSERT_EQ(fault_text(read_sample(sample_with(""))), "accepted");
  const std::pair<std::string, const char*> bad[] = {
      {sample_with(R"(,"num_samples":0)"), "'num_samples' is 0"},
      {sample_with(R"(,"num_samples":129)"), "'num_samples' is 129"},
      {sample_with(R"(,"prompt_alt_tokens_k":2)"), "no 'prompt_alt_tokens_k'"},
      {sample_with(R"(,"record_stability_info":true)"), "no 'record_stability_info'"},
      {sample_with(R"(,"target_prompt_logprobs":{"data":[]})"), "no 'target_prompt_logprobs'"},
      {sample_with(R"(,"prompt_logprobs_last_n":1)"), "needs 'prompt_logprobs'"},
      {sample_with(R"(,"prompt_logprobs":true,"prompt_logprobs_last_n":2)"), "is 2"},
      {sample_with("", R"("top_p":0)"), "'top_p' is 0"},
      {sample_with("", R"("temperature":-1)"), "'temperature' is -1"},
      {sample_with("", R"("stop":["a",1])"), "use one kind"},
      {sample_with("", R"("stop":[1,"a"])"), "not a token id"},
      {sample_with("", R"("max_tokens":0)"), "'max_tokens' is 0"}};
  for (const auto& [body, text] : bad)
    EXPECT_THAT(fault_text(read_sample(body)), HasSubstr(text)) << body;
  EXPECT_TRUE(read_sample(sample_with(R"(,"num_samples":128)")).ok());
  const auto last = read_sample(
      sample_with(R"(,"prompt_logprobs":true,"prompt_logprobs_last_n":1)", R"("stop":[7,8])"));
  ASSERT_TRUE(last.ok()) << last.error().text();
  EXPECT_EQ(last->last_prompt_logprobs, 1);
  EXPECT_THAT(last->stop_ids, ElementsAre(7, 8));
  EXPECT_THAT(fault_text(read_sample(R"({"sampling_session_id":"s","seq_id":0,"prompt":{"chunks":
                [{"type":"image"}]},"sampling_params":{}})")),
              HasSubstr("a chunk 'image'"));
}

}  // namespace
}  // namespace primerl::tinker
