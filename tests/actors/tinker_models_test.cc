// The tinker actor: its routes, sessions, models and tenants.
#include "tests/actors/tinker_story.h"

namespace primerl::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST_F(TinkerStory, WhatNeedsNoSessionIsAnsweredAtOnce) {
  EXPECT_THAT(said("client/config", R"({"sdk_version":"0.38.0"})"),
              AllOf(StartsWith("200 "), HasSubstr("\"pjwt_auth_enabled\":false")));
  EXPECT_THAT(said("client/dynamic_config", "{}"), HasSubstr("\"sample_cancel_enabled\":true"));
  EXPECT_EQ(said("telemetry", "{}"), R"(200 {"status":"accepted"})");
  EXPECT_EQ(reply(get("healthz")), R"(200 {"status":"ok"})");
  EXPECT_THAT(reply(get("get_server_capabilities")),
              AllOf(HasSubstr(R"("model_name":"Org/Tiny")"), HasSubstr(R"("model_name":"tiny")"),
                    HasSubstr(R"("max_context_length":32)")));
}

TEST_F(TinkerStory, ARouteOrContentTypeThatIsNotKnownIsNamed) {
  EXPECT_THAT(said("copy_weights", "{}"), AllOf(StartsWith("404 "), HasSubstr("no route POST")));
  EXPECT_THAT(reply(get("create_session")), StartsWith("404 "));
  EXPECT_THAT(said("forward_backward", "{}"),
              AllOf(StartsWith("400 "), HasSubstr("is 'application/json'"),
                    HasSubstr("send application/x-protobuf")));
  EXPECT_THAT(reply(post("optim_step", "{}", "application/x-protobuf")),
              AllOf(StartsWith("400 "), HasSubstr("send application/json")));
}

TEST_F(TinkerStory, AnOldSdkIsRefusedWithTheVersionsThatWork) {
  EXPECT_THAT(said("create_session", R"({"sdk_version":"0.24.1"})"),
              AllOf(StartsWith("400 "), HasSubstr("tinker 0.25 to 0.38")));
}

TEST_F(TinkerStory, ASessionLivesWhileItIsUsedAndIsGoneWhenItIsFinished) {
  const std::string session = new_session();
  EXPECT_EQ(session, "session-1");
  const std::string beat = R"({"session_id":"session-1"})";
  EXPECT_EQ(said("session_heartbeat", beat), "200 {}");
  EXPECT_EQ(said("sessions/session-1/finish", ""), "200 {}");
  EXPECT_THAT(said("session_heartbeat", beat), AllOf(StartsWith("410 "), HasSubstr("has ended")));
  EXPECT_THAT(said("session_heartbeat", R"({"session_id":"session-2"})"), StartsWith("404 "));
}

TEST_F(TinkerStory, ASessionWithoutARequestEndsWithItsModel) {
  const std::string model = new_model(new_session());
  for (int i = 0; i < 3; ++i) {
    advance(Duration::seconds(299));
    EXPECT_EQ(said("session_heartbeat", R"({"session_id":"session-1"})"), "200 {}");
  }
  advance(Duration::seconds(300));
  EXPECT_THAT(said("get_info", R"({"model_id":"session-1:train:0"})"), StartsWith("404 "));
  EXPECT_THAT(said("session_heartbeat", R"({"session_id":"session-1"})"),
              AllOf(StartsWith("410 "), HasSubstr("without a request for 5m")));
  new_model(new_session());
}

TEST_F(TinkerStory, TheLastSessionFitsAndOneMoreDoesNot) {
  options.sessions_max = 2;
  new_session();
  new_session();
  EXPECT_THAT(said("create_session", R"({"sdk_version":"0.38.0"})"),
              AllOf(StartsWith("429 "), HasSubstr("has 2 open sessions, at most 2 may be")));
  said("sessions/session-1/finish", "");
  EXPECT_EQ(new_session(), "session-3");
}

TEST_F(TinkerStory, AModelBeginsWithAResetOfItsTenantsAdapter) {
  const std::string session = new_session();
  const uint64_t asked = post("create_model", create_model_body(session));
  EXPECT_EQ(future(asked), "r1");
  const uint64_t waiting = retrieve("r1");
  EXPECT_FALSE(has_reply(waiting));
  done(WeightsAction::kReset);
  EXPECT_EQ(reply(waiting), R"(200 {"model_id":"session-1:train:0"})");
  EXPECT_THAT(said("get_info", R"({"model_id":"session-1:train:0"})"),
              AllOf(HasSubstr(R"("lora_rank":8)"), HasSubstr(R"("model_name":"tiny")"),
                    HasSubstr(R"("is_lora":true)")));
}

TEST_F(TinkerStory, AClientGetsTheTokenizerThatTheNodeNames) {
  options.tokenizer = "/models/tiny";
  const std::string model = new_model(new_session());
  EXPECT_THAT(said("get_info", fmt::format(R"({{"model_id":"{}"}})", model)),
              HasSubstr(R"("tokenizer_id":"/models/tiny")"));
}

TEST_F(TinkerStory, AnAdapterThatTheTenantDoesNotHaveIsAFailureOfTheUser) {
  const std::string session = new_session();
  const std::map<std::string, std::string> wrong = {
      {create_model_body(session, 1, R"("rank":8)", "other"), "base models: Org/Tiny, tiny"},
      {create_model_body(session, 2, R"("rank":16)"), "send rank 8"},
      {create_model_body(session, 4, R"("rank":8,"train_mlp":false)"),
       "send train_attn = true, train_mlp = true, train_unembed = true"},
  };
  for (const auto& [body, why] : wrong) {
    const std::string request = future(post("create_model", body));
    EXPECT_THAT(answer(request),
                AllOf(StartsWith("200 "), HasSubstr(why), HasSubstr(R"("category":"user")")));
  }
  EXPECT_THAT(weights(), IsEmpty());
  const auto of_name =
      future(post("create_model", create_model_body(session, 5, R"("rank":8)", "Org/Tiny")));
  EXPECT_THAT(weights(), SizeIs(1)) << of_name;
}

TEST_F(TinkerStory, ASeedIsTakenAndTheLogSaysThatItChangesNothing) {
  const std::string session = new_session();
  const std::string request =
      future(post("create_model", create_model_body(session, 0, R"("rank":8,"seed":7)")));
  done(WeightsAction::kReset);
  EXPECT_THAT(answer(request), HasSubstr(R"("model_id":"session-1:train:0")"));
  EXPECT_THAT(tinker().log(),
              Contains(AllOf(StartsWith("warning: session-1:train:0"), HasSubstr("'seed' = 7"))));
}

TEST_F(TinkerStory, TheTargetsOfAnAdapterSayWhichPartsItTrains) {
  tenants.front().adapter.targets = {"q_proj", "v_proj"};
  const std::string session = new_session();
  const std::string refused = future(post("create_model", create_model_body(session)));
  EXPECT_THAT(answer(refused),
              HasSubstr("send train_attn = true, train_mlp = false, train_unembed = false"));
  post("create_model",
       create_model_body(session, 1, R"("rank":8,"train_mlp":false,"train_unembed":false)"));
  EXPECT_THAT(weights(), SizeIs(1));
}

TEST_F(TinkerStory, AllLinearHasNoHead) {
  tenants.front().adapter.targets = {"all-linear"};
  const std::string session = new_session();
  const std::string refused = future(post("create_model", create_model_body(session)));
  EXPECT_THAT(answer(refused),
              HasSubstr("send train_attn = true, train_mlp = true, train_unembed = false"));
}

TEST_F(TinkerStory, ATenantServesOneModelUntilItIsUnloaded) {
  const std::string session = new_session();
  const std::string model = new_model(session);
  const std::string second = future(post("create_model", create_model_body(session, 1)));
  EXPECT_THAT(answer(second), AllOf(HasSubstr("serves one model at a time"), HasSubstr(model),
                                    HasSubstr("ends 5m after its last request"),
                                    HasSubstr(R"("category":"user")")));
  const uint64_t unloaded = post("unload_model", R"({"model_id":"session-1:train:0"})");
  EXPECT_THAT(reply(unloaded), HasSubstr(R"("model_id":"session-1:train:0")"));
  EXPECT_EQ(answer(future(unloaded)), R"(200 {"model_id":"session-1:train:0"})");
  EXPECT_EQ(new_model(session, 2), "session-1:train:2");
  EXPECT_THAT(said("unload_model", R"({"model_id":"session-1:train:0"})"), StartsWith("404 "));
}

TEST_F(TinkerStory, AClientThatStartsAgainWaitsForTheEndOfItsEarlierSession) {
  new_model(new_session());
  advance(Duration::seconds(5));
  const std::string again = new_session();
  const std::string request = future(post("create_model", create_model_body(again)));
  advance(Duration::seconds(294));
  EXPECT_THAT(weights(), IsEmpty());
  const uint64_t call = retrieve(request);
  EXPECT_FALSE(has_reply(call));
  advance(Duration::seconds(1));
  done(WeightsAction::kReset);
  EXPECT_THAT(reply(call), HasSubstr(R"("model_id":"session-2:train:0")"));
}

TEST_F(TinkerStory, AModelBesideThatOfALivingClientFailsWithItsNextHeartbeat) {
  const std::string model = new_model(new_session());
  advance(Duration::seconds(5));
  const std::string other = new_session();
  const std::string request = future(post("create_model", create_model_body(other)));
  const uint64_t waiting = retrieve(request);
  advance(Duration::seconds(5));
  EXPECT_FALSE(has_reply(waiting));
  EXPECT_EQ(said("session_heartbeat", R"({"session_id":"session-1"})"), "200 {}");
  EXPECT_THAT(reply(waiting), AllOf(HasSubstr("serves one model at a time"), HasSubstr(model)));
  EXPECT_THAT(future(pass(model, 1)), StartsWith("r")) << "the first client continues";
}

TEST_F(TinkerStory, ARepeatOfAModelIsTheSameModel) {
  const std::string session = new_session();
  const std::string body = create_model_body(session);
  const std::string first = future(post("create_model", body));
  EXPECT_EQ(future(post("create_model", body)), first);
  done(WeightsAction::kReset);
  EXPECT_EQ(future(post("create_model", body)), first);
  EXPECT_THAT(weights(), IsEmpty());
  EXPECT_THAT(said("create_model", create_model_body(session, 0, R"("rank":16)")),
              AllOf(StartsWith("422 "), HasSubstr("with another body")));
}

TEST_F(TinkerStory, ARepeatOfAModelWhoseAnswerIsGoneIsAnsweredAgain) {
  const std::string session = new_session();
  const std::string body = create_model_body(session);
  const std::string first = future(post("create_model", body));
  done(WeightsAction::kReset);
  EXPECT_THAT(answer(first), StartsWith("200 "));
  EXPECT_THAT(answer(first), StartsWith("410 "));
  const std::string again = future(post("create_model", body));
  EXPECT_EQ(answer(again), R"(200 {"model_id":"session-1:train:0"})");
  EXPECT_THAT(weights(), IsEmpty()) << "its weights stay";
  said("unload_model", R"({"model_id":"session-1:train:0"})");
  EXPECT_THAT(said("create_model", body), AllOf(StartsWith("422 "), HasSubstr("is closed")));
}

TEST_F(TinkerStory, AClosedModelFailsWhatWaitsForIt) {
  const std::string model = new_model(new_session());
  const std::string first = future(pass(model, 1)), queued = future(pass(model, 2)),
                    early = future(pass(model, 4));
  const auto sent = passes();
  ASSERT_THAT(sent, SizeIs(1));
  said("sessions/session-1/finish", "");
  for (const std::string& request : {queued, early})
    EXPECT_THAT(answer(request), HasSubstr("was closed"));
  passed(sent[0].request);
  EXPECT_THAT(answer(first), StartsWith("200 ")) << "it was at the trainer";
  new_model(new_session());
}

TEST_F(TinkerStory, ATenantIsNamedByTheKeyOrByTheProject) {
  add_tenant("bob");
  EXPECT_THAT(said("create_session", R"({"sdk_version":"0.38.0"})"),
              AllOf(StartsWith("400 "), HasSubstr("2 tenants are trained by clients"),
                    HasSubstr(R"(project_id=\"alice\" or \"bob\")")));
  EXPECT_EQ(new_session(R"(,"project_id":"bob")"), "session-1");
  post("create_model", create_model_body("session-1"));
  ASSERT_THAT(tinker().emissions("weights"), SizeIs(1));
  EXPECT_EQ(tinker().emissions("weights")[0].options.tenant, TenantSlot(1));
  key_of = "alice";
  EXPECT_EQ(new_session(R"(,"project_id":"bob")"), "session-2") << "the key decides";
  EXPECT_THAT(said("session_heartbeat", R"({"session_id":"session-1"})"), StartsWith("404 "));
  EXPECT_THAT(said("session_heartbeat", R"({"session_id":"session-2"})"), StartsWith("200 "));
}

TEST_F(TinkerStory, ATenantOfTheGraphsLoopIsNotServed) {
  add_tenant("loop");
  tenants.back().is_client = false;
  EXPECT_EQ(new_session(), "session-1") << "alice is the only one";
  key_of = "loop";
  EXPECT_THAT(said("create_session", R"({"sdk_version":"0.38.0"})"),
              AllOf(StartsWith("400 "), HasSubstr("no client trains tenant 'loop'")));
}

TEST_F(TinkerStory, APausedTenantWaitsAndOneThatLeavesTakesItsNamesWithIt) {
  const std::string model = new_model(new_session());
  const std::string sampler = new_sampler(model, 1, 0, 1 << 14);
  ASSERT_TRUE(tinker().node().on_tenant(TenantSlot(0), TenantChange::Kind::kPause).ok());
  const std::string trained = future(pass(model, 2)), sampled = future(sample(sampler, 0));
  EXPECT_THAT(passes(), IsEmpty());
  EXPECT_THAT(requests(), IsEmpty());
  ASSERT_TRUE(tinker().node().on_tenant(TenantSlot(0), TenantChange::Kind::kResume).ok());
  work();
  EXPECT_THAT(passes(), SizeIs(1));
  EXPECT_THAT(requests(), SizeIs(1));
  ASSERT_TRUE(tinker().node().on_tenant(TenantSlot(0), TenantChange::Kind::kLeave).ok());
  work();
  EXPECT_THAT(said("session_heartbeat", R"({"session_id":"session-1"})"), StartsWith("404 "));
  for (const std::string& request : {trained, sampled})
    EXPECT_THAT(answer(request), StartsWith("404 "));
  EXPECT_THAT(said("get_info", fmt::format(R"({{"model_id":"{}"}})", model)), StartsWith("404 "));
  EXPECT_TRUE(tinker().idle());
}

TEST_F(TinkerStory, NamesOfAnotherTenantDoNotExist) {
  add_tenant("bob");
  key_of = "alice";
  const std::string model = new_model(new_session());
  const std::string sampler = new_sampler(model, 1, 0, 1 << 14);
  const std::string saving = future(save(model, 2, "mine"));
  done(WeightsAction::kSave);
  const std::string snapped = future(save_for_sampler(model, 3, R"("path":"snap")"));
  publish(WeightsAction::kSnapshot, 2 << 14);
  key_of = "bob";
  new_session();
  const std::string info = fmt::format(R"({{"model_id":"{}"}})", model);
  for (const uint64_t call :
       {post("get_info", info), post("unload_model", info), pass(model, 4), step(model, 4),
        save(model, 4, "x"), save_for_sampler(model, 4, R"("path":"x")"),
        post("session_heartbeat", R"({"session_id":"session-1"})"),
        post("sessions/session-1/finish", ""), post("create_model", create_model_body("session-1")),
        sample(sampler, 0), get("samplers/" + sampler), retrieve(saving), retrieve(snapped),
        post("cancel_future", fmt::format(R"({{"request_id":"{}"}})", saving)),
        post("load_weights", fmt::format(R"({{"session_id":"session-2","model_seq_id":0,)"
                                         R"("path":"tinker://{}/weights/mine"}})",
                                         model)),
        post("create_sampling_session",
             fmt::format(R"({{"session_id":"session-2","sampling_session_seq_id":0,)"
                         R"("model_path":"tinker://{}/sampler_weights/snap"}})",
                         model))})
    EXPECT_THAT(reply(call), StartsWith("404 "));
}

}  // namespace
}  // namespace primerl::testing
