// The tinker actor: training requests, their order, repeats and answers, saved weights.
#include <limits>

#include "tests/actors/tinker_story.h"

namespace primerl::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

struct TinkerTraining : TinkerStory {
  std::string model() {
    if (name.empty()) name = new_model(new_session());
    return name;
  }
  std::string name;
};

TEST_F(TinkerTraining, APassIsTheTrainersAndItsAnswerIsProtobuf) {
  const std::string request = future(pass(model(), 1));
  const auto sent = passes();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_FALSE(sent[0].batch.forward_only);
  ASSERT_THAT(sent[0].batch.data, SizeIs(1));
  EXPECT_EQ(sent[0].batch.data[0].tokens, (std::vector<int32_t>{97, 98}));
  EXPECT_EQ(sent[0].batch.data[0].targets, (std::vector<int32_t>{98, 99}));
  passed(sent[0].request);
  const uint64_t call = retrieve(request);
  EXPECT_THAT(reply(call), AllOf(StartsWith("200 "), HasSubstr("loss:sum")));
  EXPECT_EQ(listener.replies[call].content_type, "application/x-protobuf");
}

TEST_F(TinkerTraining, RequestsRunByTheirNumberEvenIfTheFirstComesLast) {
  const std::string third = future(step(model(), 3)), second = future(pass(model(), 2, true));
  EXPECT_THAT(passes(), IsEmpty());
  const std::string first = future(pass(model(), 1));
  auto sent = passes();
  ASSERT_THAT(sent, SizeIs(1)) << "one request of a tenant is open";
  EXPECT_FALSE(sent[0].batch.forward_only);
  passed(sent[0].request);
  sent = passes();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_TRUE(sent[0].batch.forward_only);
  EXPECT_THAT(updates(), IsEmpty());
  passed(sent[0].request);
  const auto steps = updates();
  ASSERT_THAT(steps, SizeIs(1));
  EXPECT_EQ(steps[0].adam, AdamNumbers());
  updated(steps[0].request);
  EXPECT_THAT(answer(first), StartsWith("200 "));
  EXPECT_THAT(answer(second), StartsWith("200 "));
  EXPECT_THAT(answer(third), AllOf(HasSubstr("\"grad_norm\":2"), HasSubstr("\"version\":1")));
}

TEST_F(TinkerTraining, AnUpdateThatWasSkippedHasNoNumberThatClientsCannotRead) {
  const std::string first = future(pass(model(), 1)), second = future(step(model(), 2));
  passed(passes().at(0).request);
  UpdateDone skipped;
  skipped.request = updates().at(0).request;
  skipped.version = PolicyVersion(0);
  skipped.skipped = true;
  skipped.skip_reason = "the gradient is not finite";
  skipped.grad_norm = std::numeric_limits<double>::quiet_NaN();
  skipped.loss = std::numeric_limits<double>::infinity();
  give("updated", skipped);
  EXPECT_THAT(answer(first), StartsWith("200 "));
  EXPECT_THAT(answer(second), AllOf(HasSubstr("\"skipped\":1"), Not(HasSubstr("null")),
                                    Not(HasSubstr("grad_norm")), Not(HasSubstr("\"loss\""))));
}

TEST_F(TinkerTraining, ARepeatHasTheAnswerOfItsFirstAndTrainsOnce) {
  const std::string request = future(pass(model(), 1));
  EXPECT_EQ(future(pass(model(), 1)), request);
  const auto sent = passes();
  ASSERT_THAT(sent, SizeIs(1));
  passed(sent[0].request);
  EXPECT_EQ(future(pass(model(), 1)), request);
  EXPECT_THAT(passes(), IsEmpty());
  EXPECT_THAT(reply(pass(model(), 1, true)), AllOf(StartsWith("422 "), HasSubstr("another body")));
  EXPECT_THAT(answer(request), StartsWith("200 "));
  EXPECT_THAT(reply(pass(model(), 1)), AllOf(StartsWith("422 "), HasSubstr("its answer is gone")));
}

TEST_F(TinkerTraining, AFaultOfTheTrainerIsAFailedFutureAndTheNextRequestRuns) {
  const std::string first = future(pass(model(), 1)), second = future(pass(model(), 2));
  PassDone fault;
  fault.request = passes().at(0).request;
  fault.fault = {static_cast<uint8_t>(Code::kInvalid), "datum 0 is wrong"};
  give("passed", fault);
  EXPECT_EQ(answer(first), R"(200 {"error":"datum 0 is wrong","category":"user"})");
  EXPECT_THAT(passes(), SizeIs(1));
  EXPECT_THAT(reply(retrieve(second)), "none");
}

TEST_F(TinkerTraining, ARequestWhoseEarlierOneDoesNotComeMayComeAgain) {
  const std::string request = future(pass(model(), 2));
  const uint64_t waiting = retrieve(request);
  advance(Duration::seconds(41));
  EXPECT_THAT(reply(waiting), HasSubstr("try_again"));
  const uint64_t second = retrieve(request);
  advance(Duration::seconds(20));
  EXPECT_THAT(reply(second), AllOf(StartsWith("410 "), HasSubstr("request 1 of the model")));
  const std::string again = future(pass(model(), 2));
  EXPECT_NE(again, request);
  pass(model(), 1);
  passed(passes().at(0).request);
  EXPECT_THAT(passes(), SizeIs(1)) << "the second one runs after the first";
}

TEST_F(TinkerTraining, RetrieveIsHeldForLessThan45SecondsAndThenSaysTryAgain) {
  const std::string request = future(pass(model(), 1));
  const uint64_t waiting = retrieve(request);
  advance(Duration::milliseconds(39'999));
  EXPECT_FALSE(has_reply(waiting));
  advance(Duration::milliseconds(1));
  EXPECT_EQ(reply(waiting), fmt::format(R"(200 {{"type":"try_again","request_id":"{}",)"
                                        R"("queue_state":"active"}})",
                                        request));
  const uint64_t other = retrieve(request);
  passed(passes().at(0).request);
  EXPECT_THAT(reply(other), StartsWith("200 "));
}

TEST_F(TinkerTraining, AClientThatWaitsForAnAnswerKeepsItsSession) {
  const std::string request = future(pass(model(), 1));
  const auto sent = passes();
  ASSERT_THAT(sent, SizeIs(1));
  for (int i = 0; i < 10; ++i) {
    retrieve(request);
    advance(Duration::seconds(40));
  }
  passed(sent[0].request);
  EXPECT_THAT(answer(request), StartsWith("200 "));
  EXPECT_THAT(future(pass(model(), 2)), StartsWith("r")) << "its session of 300 s is open";
}

TEST_F(TinkerTraining, AnAnswerStaysWhenItsClientHasGone) {
  const std::string request = future(pass(model(), 1));
  const uint64_t waiting = retrieve(request);
  leave({waiting});
  passed(passes().at(0).request);
  EXPECT_FALSE(has_reply(waiting));
  EXPECT_THAT(answer(request), StartsWith("200 "));
}

TEST_F(TinkerTraining, AFetchedAnswerIsGoneAndAnUnknownRequestIsNot) {
  const std::string request = future(pass(model(), 1));
  passed(passes().at(0).request);
  EXPECT_THAT(answer(request), StartsWith("200 "));
  EXPECT_THAT(answer(request), AllOf(StartsWith("410 "), HasSubstr("is gone")));
  EXPECT_THAT(answer("r999"), StartsWith("404 "));
  EXPECT_THAT(answer("x"), StartsWith("404 "));
}

TEST_F(TinkerTraining, AnAnswerIsKeptForTenMinutes) {
  const std::string request = future(pass(model(), 1));
  passed(passes().at(0).request);
  for (int i = 0; i < 3; ++i) {
    advance(Duration::seconds(199));
    said("session_heartbeat", R"({"session_id":"session-1"})");
  }
  advance(Duration::seconds(3));
  EXPECT_THAT(answer(request), StartsWith("410 "));
}

TEST_F(TinkerTraining, TheTrainerIsGoneWithWhatItHad) {
  const std::string request = future(pass(model(), 1));
  PassDone late;
  late.request = passes().at(0).request;
  ASSERT_TRUE(runner->peer({PeerEvent::Kind::kDown, kTrainer, 1}).ok());
  work();
  EXPECT_THAT(answer(request), AllOf(HasSubstr("open gradients"), HasSubstr("\"server\"")));
  give("passed", late);  // of the earlier trainer: it is passed over
}

/// In a graph without slots the actor is not notified that a tenant has failed.
TEST_F(TinkerTraining, ATrainerThatDoesNotAnswerFailsTheRequestAndTheNextOneIsSent) {
  options.session_timeout = Duration::seconds(3600);
  const std::string first = future(pass(model(), 1));
  const std::string second = future(step(model(), 2));
  const uint64_t number = passes().at(0).request;
  advance(options.train_timeout - Duration::nanoseconds(1));
  EXPECT_THAT(updates(), IsEmpty());
  advance(Duration::nanoseconds(1));
  EXPECT_THAT(answer(first),
              AllOf(HasSubstr("no answer of the trainer within"), HasSubstr("\"server\"")));
  passed(number);  // too late: it is passed over
  updated(updates().at(0).request);
  EXPECT_THAT(answer(second), HasSubstr("grad_norm"));
}

TEST_F(TinkerTraining, ManyOpenRequestsOfOneTenantLeaveSpaceForAnother) {
  add_tenant("bob");
  key_of = "alice";
  const std::string flood = new_model(new_session());
  slot = 1;
  key_of = "bob";
  const std::string other = new_model(new_session());
  slot = 0;
  key_of = "alice";
  // Half of 4096, and its part of the other half.
  uint64_t last = 0;
  for (int seq = 1; seq <= 3072; ++seq) last = step(flood, seq);
  EXPECT_THAT(reply(last), StartsWith("200 "));
  EXPECT_THAT(reply(step(flood, 3073)),
              AllOf(StartsWith("429 "), HasSubstr("3072 of them are of this tenant")));
  key_of = "bob";
  EXPECT_THAT(reply(step(other, 1)), StartsWith("200 "));
  key_of = "alice";
  updated(updates().at(0).request);
  EXPECT_THAT(reply(step(flood, 3073)), StartsWith("200 "));
}

TEST_F(TinkerTraining, OnlySamplesAreCancelled) {
  const std::string request = future(pass(model(), 1));
  EXPECT_THAT(said("cancel_future", fmt::format(R"({{"request_id":"{}"}})", request)),
              AllOf(StartsWith("400 "), HasSubstr("only samples can be cancelled")));
}

TEST_F(TinkerTraining, WeightsAreSavedOnceUnderAName) {
  const std::string first = future(save(model(), 1, "step-1"));
  const auto sent = done(WeightsAction::kSave);
  EXPECT_EQ(sent.name, "session-1.train.0.step-1");
  EXPECT_EQ(answer(first), R"(200 {"path":"tinker://session-1:train:0/weights/step-1"})");
  const std::string again = future(save(model(), 2, "step-1"));
  EXPECT_THAT(answer(again), AllOf(HasSubstr("there already"), HasSubstr("\"user\"")));
  future(save(model(), 3, "step-1", R"(,"overwrite":true)"));
  EXPECT_TRUE(done(WeightsAction::kSave).overwrites);
  const std::string unnamed =
      future(post("save_weights", fmt::format(R"({{"model_id":"{}","seq_id":4}})", model())));
  done(WeightsAction::kSave);
  EXPECT_THAT(answer(unnamed), HasSubstr("/weights/weights-4"));
}

TEST_F(TinkerTraining, ALongNameOfWeightsIsAFolderNameStill) {
  future(save(model(), 1, std::string(128, 'a')));
  EXPECT_TRUE(tinker::check_saved_name(done(WeightsAction::kSave).name).ok());
  future(save(model(), 2, std::string(127, 'a') + "b"));
  EXPECT_TRUE(tinker::check_saved_name(done(WeightsAction::kSave).name).ok());
  EXPECT_THAT(reply(save(model(), 3, std::string(129, 'a'))), StartsWith("400 "));
}

TEST_F(TinkerTraining, SavedWeightsAreLoadedIntoTheModelOrANewOne) {
  future(save(model(), 1, "a"));
  done(WeightsAction::kSave);
  const std::string path = R"("path":"tinker://session-1:train:0/weights/a","optimizer":)";
  const std::string own = future(
      post("load_weights", fmt::format(R"({{"model_id":"{}","seq_id":2,{}true}})", model(), path)));
  const auto sent = done(WeightsAction::kLoad);
  EXPECT_EQ(sent.name, "session-1.train.0.a");
  EXPECT_TRUE(sent.with_optimizer);
  EXPECT_THAT(answer(own), HasSubstr(R"("model_id":"session-1:train:0")"));
  said("unload_model", R"({"model_id":"session-1:train:0"})");
  const std::string fresh =
      future(post("load_weights",
                  fmt::format(R"({{"session_id":"session-1","model_seq_id":1,{}false}})", path)));
  done(WeightsAction::kReset);
  EXPECT_FALSE(done(WeightsAction::kLoad).with_optimizer);
  EXPECT_THAT(answer(fresh), HasSubstr(R"("model_id":"session-1:train:1")"));
  EXPECT_THAT(said("get_info", R"({"model_id":"session-1:train:1"})"), StartsWith("200 "));
}

TEST_F(TinkerTraining, WeightsWhoseTimeEndsDuringTheResetAreLoadedBeforeTheyAreRemoved) {
  future(save(model(), 1, "short", R"(,"ttl_seconds":60)"));
  done(WeightsAction::kSave);
  said("unload_model", R"({"model_id":"session-1:train:0"})");
  const std::string request =
      future(post("load_weights", R"({"session_id":"session-1","model_seq_id":1,)"
                                  R"("path":"tinker://session-1:train:0/weights/short"})"));
  advance(Duration::seconds(60));
  done(WeightsAction::kReset);
  EXPECT_EQ(done(WeightsAction::kLoad).name, "session-1.train.0.short");
  EXPECT_EQ(done(WeightsAction::kDropSaved).name, "session-1.train.0.short");
  EXPECT_THAT(answer(request), HasSubstr(R"("model_id":"session-1:train:1")"));
}

TEST_F(TinkerTraining, WeightsThatAreNotThereAreNotLoaded) {
  const auto load = [&](int seq, const std::string& path) {
    return post("load_weights",
                fmt::format(R"({{"model_id":"{}","seq_id":{},"path":"{}"}})", model(), seq, path));
  };
  EXPECT_THAT(reply(load(1, "tinker://session-9:train:0/weights/a")), StartsWith("404 "));
  EXPECT_THAT(reply(load(1, "tinker://session-1:train:0/sampler_weights/a")),
              AllOf(StartsWith("400 "), HasSubstr("for samplers")));
  const std::string own = future(load(1, "tinker://session-1:train:0/weights/a"));
  EXPECT_THAT(answer(own), AllOf(HasSubstr("no weights"), HasSubstr("\"user\"")));
}

TEST_F(TinkerTraining, WeightsWithATimeToLiveAreRemovedAfterIt) {
  future(save(model(), 1, "short", R"(,"ttl_seconds":60)"));
  done(WeightsAction::kSave);
  advance(Duration::seconds(59));
  EXPECT_THAT(weights(), IsEmpty());
  advance(Duration::seconds(1));
  EXPECT_EQ(done(WeightsAction::kDropSaved).name, "session-1.train.0.short");
}

TEST_F(TinkerTraining, WeightsThatAreSavedAgainWhileTheirTimeEndsStay) {
  future(save(model(), 1, "a", R"(,"ttl_seconds":60)"));
  done(WeightsAction::kSave);
  const std::string again = future(save(model(), 2, "a", R"(,"overwrite":true)"));
  advance(Duration::seconds(60));
  done(WeightsAction::kSave);
  EXPECT_THAT(weights(), IsEmpty()) << "the trainer would remove the new ones";
  EXPECT_THAT(answer(again), HasSubstr("/weights/a"));
}

}  // namespace
}  // namespace primerl::testing
