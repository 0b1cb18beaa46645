// The tinker actor: samplers, snapshots and samples.
#include "tests/actors/tinker_story.h"

namespace primerl::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr uint32_t kSnapshot = 1 << 14;  // the key of the first snapshot

/// The fields of a protobuf message with this number.
std::vector<tinker::ProtoField> fields_of(std::string_view message, int32_t number) {
  std::vector<tinker::ProtoField> found;
  for (tinker::ProtoReader reader(message); !reader.is_done();) {
    const auto field = reader.next();
    EXPECT_TRUE(field.ok());
    if (!field.ok()) break;
    if (field->number == number) found.push_back(*field);
  }
  return found;
}

template <class T>
std::vector<T> numbers_of(std::string_view bytes) {
  std::vector<T> numbers(bytes.size() / sizeof(T));
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(T));
  return numbers;
}

struct TinkerSamples : TinkerStory {
  std::string model() {
    if (name.empty()) name = new_model(new_session());
    return name;
  }
  /// A sampler of a new snapshot.
  std::string sampler() {
    const int number = num_samplers++;
    return new_sampler(model(), number + 1, number, static_cast<uint32_t>(number + 1) * kSnapshot);
  }
  std::string inflight_sampler() {
    const int number = num_samplers++;
    const std::string request = future(
        save_for_sampler(model(), number + 1,
                         fmt::format(R"("sampling_session_seq_id":{},"kind":"inflight")", number)));
    publish(WeightsAction::kPublish, 0, number + 1);
    return member(retrieve(request), "sampling_session_id");
  }
  /// The protobuf answer of a future.
  std::string bytes(const std::string& request) {
    const uint64_t call = retrieve(request);
    EXPECT_TRUE(has_reply(call));
    EXPECT_EQ(listener.replies[call].content_type, "application/x-protobuf") << reply(call);
    return listener.replies[call].body;
  }
  std::string name;
  int num_samplers = 0;
};

TEST_F(TinkerSamples, ASnapshotIsServedOnceEveryEngineHasIt) {
  const std::string request =
      future(save_for_sampler(model(), 1, R"("path":"snap","kind":"snapshot")"));
  EXPECT_EQ(done(WeightsAction::kSnapshot, kSnapshot, 1).name, "session-1.train.0.snap");
  const uint64_t waiting = retrieve(request);
  EXPECT_FALSE(has_reply(waiting));
  live(1);
  EXPECT_FALSE(has_reply(waiting)) << "another key is live";
  live(1, kSnapshot);
  EXPECT_EQ(reply(waiting), R"(200 {"path":"tinker://session-1:train:0/sampler_weights/snap"})");
  const uint64_t made = post("create_sampling_session",
                             R"({"session_id":"session-1","sampling_session_seq_id":4,)"
                             R"("model_path":"tinker://session-1:train:0/sampler_weights/snap"})");
  EXPECT_EQ(member(made, "sampling_session_id"), "session-1:sample:4");
  EXPECT_THAT(reply(get("samplers/session-1:sample:4")),
              AllOf(HasSubstr(R"("base_model":"tiny")"),
                    HasSubstr("tinker://session-1:train:0/sampler_weights/snap")));
}

/// For example because every engine refused it, and the tenant has failed.
TEST_F(TinkerSamples, ASnapshotThatDoesNotGoLiveFailsAndIsDropped) {
  options.session_timeout = Duration::seconds(3600);
  const std::string request =
      future(save_for_sampler(model(), 1, R"("path":"snap","kind":"snapshot")"));
  const std::string second = future(save_for_sampler(model(), 2, R"("sampling_session_seq_id":0)"));
  done(WeightsAction::kSnapshot, kSnapshot, 1);
  advance(options.live_timeout);
  EXPECT_THAT(answer(request), HasSubstr("version 1 is not in every engine within"));
  EXPECT_EQ(done(WeightsAction::kDropSnapshot).adapter, AdapterId(kSnapshot));
  publish(WeightsAction::kSnapshot, 2 * kSnapshot);
  EXPECT_THAT(answer(second), HasSubstr("session-1:sample:0"));
}

TEST_F(TinkerSamples, ASnapshotWhoseAnswerCameTooLateIsDropped) {
  options.session_timeout = Duration::seconds(7200);
  future(save_for_sampler(model(), 1, R"("sampling_session_seq_id":0)"));
  const auto sent = weights();
  ASSERT_THAT(sent, SizeIs(1));
  advance(options.train_timeout);
  WeightsDone late;
  late.request = sent[0].request;
  late.adapter = AdapterId(kSnapshot);
  late.version = PolicyVersion(1);
  give("weights_done", late);
  EXPECT_EQ(done(WeightsAction::kDropSnapshot).adapter, AdapterId(kSnapshot));
  give("weights_done", late);
  EXPECT_EQ(done(WeightsAction::kDropSnapshot).adapter, AdapterId(kSnapshot));
}

/// A run that was resumed does not have the snapshots that were published before its checkpoint.
TEST_F(TinkerSamples, ASamplerWhoseWeightsAreLostIsRefusedByNameAndSavedAgain) {
  const std::string lost = sampler();
  const std::string request = future(sample(lost, 0));
  complete(requests().at(0), "", FinishReason::kRefused);
  EXPECT_THAT(answer(request), AllOf(HasSubstr("the engine refused"), HasSubstr("\"user\"")));
  const std::string again = sampler();
  const std::string served = future(sample(again, 0));
  complete(requests().at(0));
  EXPECT_THAT(answer(served), StartsWith("200 "));
}

TEST_F(TinkerSamples, ALiveMessageMayComeBeforeTheTrainersAnswerAndBesideOtherKeys) {
  const std::string request =
      future(save_for_sampler(model(), 1, R"("sampling_session_seq_id":0)"));
  PolicyLive message;
  message.version = PolicyVersion(0);
  message.others = {{AdapterId(kSnapshot), PolicyVersion(1)}};
  give("policy", message);
  done(WeightsAction::kSnapshot, kSnapshot, 1);
  EXPECT_THAT(answer(request), HasSubstr("session-1:sample:0"));
}

TEST_F(TinkerSamples, ASampleGeneratesWithTheKeyOfItsSampler) {
  const std::string request = future(sample(sampler(), 0));
  const auto sent = requests();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].adapter, AdapterId(kSnapshot));
  EXPECT_EQ(sent[0].version, PolicyVersion(1));
  EXPECT_EQ(sent[0].prompt_tokens, (std::vector<int32_t>{97, 98}));
  EXPECT_EQ(sent[0].seed, 7U);
  EXPECT_EQ(sent[0].sampling.max_tokens, 4);
  complete(sent[0], "xy");
  const std::string body = bytes(request);
  const auto sequences = fields_of(body, 1);
  ASSERT_THAT(sequences, SizeIs(1));
  EXPECT_EQ(numbers_of<int32_t>(fields_of(sequences[0].bytes, 2).at(0).bytes),
            (std::vector<int32_t>{'x', 'y'}));
  EXPECT_EQ(numbers_of<float>(fields_of(sequences[0].bytes, 3).at(0).bytes),
            (std::vector<float>{-0.25F, -0.25F}));
}

TEST_F(TinkerSamples, AnAnswerHasTheVersionsThatMadeItsTokens) {
  const std::string request = future(sample(sampler(), 0));
  complete(requests().at(0), "xy");
  const std::string body = bytes(request);
  const auto spans = fields_of(fields_of(body, 1).at(0).bytes, tinker::kSpanField);
  ASSERT_THAT(spans, SizeIs(1));
  EXPECT_EQ(fields_of(spans[0].bytes, 1).at(0).value, 3U);
  EXPECT_EQ(fields_of(spans[0].bytes, 3).at(0).value, 2U);
}

TEST_F(TinkerSamples, SamplersInFlightShareTheMovingKeyAndNoKvBlocks) {
  const std::string first = inflight_sampler(), second = inflight_sampler();
  future(sample(first, 0));
  future(sample(second, 0));
  const auto sent = requests();
  ASSERT_THAT(sent, SizeIs(2));
  for (const GenerateRequest& each : sent) {
    EXPECT_TRUE(each.adapter.is_none());
    EXPECT_EQ(each.version, PolicyVersion(2));
  }
  EXPECT_NE(sent[0].salt, sent[1].salt);
  EXPECT_THAT(reply(save_for_sampler(model(), 3, R"("path":"x","kind":"inflight")")),
              StartsWith("400 "));
}

TEST_F(TinkerSamples, AnotherBaseModelIsRefusedWithThoseThatWork) {
  new_session();
  EXPECT_THAT(said("create_sampling_session",
                   R"({"session_id":"session-1","sampling_session_seq_id":0,"base_model":"no"})"),
              AllOf(StartsWith("400 "), HasSubstr("base models: Org/Tiny, tiny")));
}

TEST_F(TinkerSamples, SeveralSamplesDifferInTheirSeedsAndOneScoresThePrompt) {
  const uint64_t asked = sample(sampler(), 0, R"(,"num_samples":3,"prompt_logprobs":true)");
  EXPECT_THAT(reply(asked), HasSubstr(R"("sample_sequence_ids":["r3:0","r3:1","r3:2"])"));
  const auto sent = requests();
  ASSERT_THAT(sent, SizeIs(3));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sent[i].seed, 7 + i);
    EXPECT_EQ(sent[i].session, sent[0].session);
    EXPECT_EQ(sent[i].sampling.prompt_logprobs, i == 0);
  }
  complete(sent[2], "c");
  complete(sent[0], "a");
  const uint64_t waiting = retrieve("r3");
  EXPECT_FALSE(has_reply(waiting));
  complete(sent[1], "b", FinishReason::kStop);
  const std::string& body = listener.replies[waiting].body;
  const auto sequences = fields_of(body, 1);
  ASSERT_THAT(sequences, SizeIs(3));
  std::string texts;
  for (const auto& each : sequences)
    texts += static_cast<char>(numbers_of<int32_t>(fields_of(each.bytes, 2).at(0).bytes).at(0));
  EXPECT_EQ(texts, "abc");
  const auto scores = numbers_of<float>(fields_of(body, 2).at(0).bytes);
  ASSERT_THAT(scores, SizeIs(2));
  EXPECT_TRUE(std::isnan(scores[0]));
  EXPECT_EQ(scores[1], -2.0F);
}

TEST_F(TinkerSamples, LikeliestTokensAreTablesWithPlaceholders) {
  const std::string request =
      future(sample(sampler(), 0, R"(,"topk_sample_logprobs":2,"topk_prompt_logprobs":2)"));
  const auto sent = requests();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].sampling.num_top_logprobs, 2);
  EXPECT_EQ(sent[0].sampling.num_prompt_top_logprobs, 2);
  Completion completion;
  completion.request = sent[0].request;
  completion.end = FinishReason::kLength;
  completion.tokens = {120};
  completion.logprobs = {-1};
  completion.top_tokens = {120, -1};
  completion.top_logprobs = {-1, -INFINITY};
  completion.prompt_logprobs = {-2};
  completion.prompt_top_tokens = {98, 99};
  completion.prompt_top_logprobs = {-2, -3};
  give("completion", completion);
  const std::string body = bytes(request);
  const auto top = fields_of(fields_of(body, 1).at(0).bytes, 4).at(0).bytes;
  EXPECT_THAT(numbers_of<int32_t>(fields_of(top, 1).at(0).bytes), ElementsAre(120, 0));
  EXPECT_THAT(numbers_of<float>(fields_of(top, 2).at(0).bytes), ElementsAre(-1, -99999));
  EXPECT_THAT(fields_of(body, 2), IsEmpty()) << "only the table was asked for";
  const auto prompt = fields_of(body, 3).at(0).bytes;
  EXPECT_THAT(numbers_of<int32_t>(fields_of(prompt, 1).at(0).bytes), ElementsAre(0, 0, 98, 99));
}

TEST_F(TinkerSamples, WithoutStopTheEosEndsASequenceAndAnEmptyListEndsNothing) {
  const std::string from = sampler();
  sample(from, 0);
  sample(from, 1, "", R"("stop":[])");
  sample(from, 2, "", R"("stop":["end"],"max_tokens":100)");
  sample(from, 3, "", R"("stop":[5,6])");
  const auto sent = requests();
  ASSERT_THAT(sent, SizeIs(4));
  EXPECT_FALSE(sent[0].sampling.ignore_eos);
  EXPECT_TRUE(sent[1].sampling.ignore_eos);
  EXPECT_EQ(sent[1].sampling.max_tokens, 30) << "as many as fit";
  EXPECT_THAT(sent[2].sampling.stop, ElementsAre("end"));
  EXPECT_EQ(sent[2].sampling.max_tokens, 30);
  EXPECT_THAT(sent[3].sampling.stop_ids, ElementsAre(5, 6));
}

TEST_F(TinkerSamples, ASampleThatNoEngineCouldMakeIsRefusedAtOnce) {
  const std::string from = sampler();
  tinker().forget_sent();
  EXPECT_THAT(reply(sample(from, 0, "", R"("temperature":0.0001)")), StartsWith("400 "));
  EXPECT_THAT(reply(sample(from, 0, R"(,"topk_sample_logprobs":21)")),
              AllOf(StartsWith("400 "), HasSubstr("20")));
  EXPECT_THAT(reply(sample(from, 0, R"(,"num_samples":129)")), StartsWith("400 "));
  EXPECT_THAT(reply(sample("session-1:sample:99", 0)), StartsWith("404 "));
  std::string longest = sample_body(from, 0);
  longest.replace(longest.find("97,98"), 5, fmt::format("{}", fmt::join(std::vector(32, 97), ",")));
  EXPECT_THAT(said("asample", longest),
              AllOf(StartsWith("400 "), HasSubstr("has 32 tokens, and a sequence at most 32")));
  EXPECT_THAT(requests(), IsEmpty());
  longest.replace(longest.find("97,"), 3, "");
  EXPECT_THAT(said("asample", longest), StartsWith("200 "));
  EXPECT_THAT(requests(), SizeIs(1));
}

TEST_F(TinkerSamples, ARepeatOfASampleGeneratesOnce) {
  const std::string from = sampler();
  const std::string first = future(sample(from, 0));
  EXPECT_EQ(future(sample(from, 0)), first);
  EXPECT_THAT(requests(), SizeIs(1));
  EXPECT_THAT(reply(sample(from, 0, R"(,"num_samples":2)")), StartsWith("422 "));
}

TEST_F(TinkerSamples, ARepeatWhoseAnswerIsGoneIsSampledAgain) {
  const std::string sampler = new_sampler(new_model(new_session()), 1, 0, 1 << 14);
  const std::string first = future(sample(sampler, 0));
  complete(requests().at(0));
  EXPECT_THAT(answer(first), StartsWith("200 "));
  EXPECT_THAT(answer(first), StartsWith("410 ")) << "the answer was lost on its way";
  const std::string again = future(sample(sampler, 0));
  EXPECT_NE(again, first);
  EXPECT_EQ(future(sample(sampler, 0)), again);
  const auto sent = requests();
  ASSERT_THAT(sent, SizeIs(1));
  complete(sent[0]);
  EXPECT_THAT(answer(again), StartsWith("200 "));
}

TEST_F(TinkerSamples, WaitingSequencesHaveALimit) {
  options.max_waiting = 3;
  options.max_inflight = 1;
  const std::string from = sampler();
  sample(from, 0);  // in flight
  EXPECT_THAT(reply(sample(from, 1, R"(,"num_samples":3)")), StartsWith("200 "));
  EXPECT_THAT(reply(sample(from, 2)),
              AllOf(StartsWith("429 "), HasSubstr("3 sequences of 'alice'")));
  complete(requests().at(0));
  EXPECT_THAT(requests(), SizeIs(1));
  EXPECT_THAT(reply(sample(from, 2)), StartsWith("200 "));
}

TEST_F(TinkerSamples, ALostEngineIsTriedAgainAsOftenAsAllowed) {
  options.attempts_max = 1;
  const std::string request = future(sample(sampler(), 0));
  auto sent = requests();
  complete(sent.at(0), "", FinishReason::kEngineLost);
  sent = requests();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].attempt, 1U);
  complete(sent[0], "", FinishReason::kFailed);
  EXPECT_THAT(answer(request), AllOf(HasSubstr("2 times"), HasSubstr("\"server\"")));
}

TEST_F(TinkerSamples, ARouterThatIsGoneGetsTheSequencesAgain) {
  const std::string request = future(sample(sampler(), 0, R"(,"num_samples":2)"));
  const auto lost = requests();
  ASSERT_TRUE(runner->peer({PeerEvent::Kind::kDown, kRouter, 1}).ok());
  work();
  const auto sent = requests();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].seed, lost[0].seed);
  complete(sent[1], "b");
  complete(sent[0], "a");
  EXPECT_THAT(fields_of(bytes(request), 1), SizeIs(2));
}

TEST_F(TinkerSamples, ACancelledSampleStopsAtItsEngine) {
  const std::string request = future(sample(sampler(), 0, R"(,"num_samples":2)"));
  const auto sent = requests();
  EXPECT_EQ(said("cancel_future", fmt::format(R"({{"request_id":"{}"}})", request)), "200 {}");
  const auto cancels = tinker().take<Cancel>("cancel");
  ASSERT_THAT(cancels, SizeIs(1));
  EXPECT_THAT(cancels[0].requests, ElementsAre(sent[0].request, sent[1].request));
  EXPECT_FALSE(tinker().idle());
  for (const GenerateRequest& each : sent) complete(each, "", FinishReason::kCancelled);
  EXPECT_TRUE(tinker().idle());
  EXPECT_THAT(answer(request), HasSubstr("cancelled"));
}

TEST_F(TinkerSamples, ASampleHasATimeLimit) {
  options.sample_timeout = Duration::seconds(100);
  const std::string request = future(sample(sampler(), 0));
  requests();
  advance(Duration::milliseconds(99'999));
  const uint64_t waiting = retrieve(request);
  EXPECT_FALSE(has_reply(waiting));
  advance(Duration::milliseconds(1));
  EXPECT_THAT(reply(waiting), HasSubstr("no samples within"));
  EXPECT_THAT(tinker().sent<Cancel>("cancel"), SizeIs(1));
}

TEST_F(TinkerSamples, AFinishedSessionCancelsItsSamples) {
  const std::string request = future(sample(sampler(), 0));
  requests();
  said("sessions/session-1/finish", "");
  EXPECT_THAT(tinker().sent<Cancel>("cancel"), SizeIs(1));
  EXPECT_THAT(answer(request), HasSubstr("was closed"));
}

TEST_F(TinkerSamples, BeyondTheMostSnapshotsTheOneUnusedLongestIsDropped) {
  options.snapshots_max = 2;
  const std::string first = sampler(), second = sampler();
  complete((future(sample(first, 0)), requests().at(0)));
  const std::string third = future(save_for_sampler(model(), 3, R"("sampling_session_seq_id":2)"));
  EXPECT_EQ(done(WeightsAction::kDropSnapshot).adapter, AdapterId(2 * kSnapshot))
      << "the second was not used since";
  publish(WeightsAction::kSnapshot, 3 * kSnapshot);
  EXPECT_THAT(answer(third), HasSubstr("session-1:sample:2"));
  EXPECT_THAT(reply(sample(second, 0)),
              AllOf(StartsWith("404 "), HasSubstr("of which a tenant keeps 2")));
  EXPECT_THAT(reply(sample(first, 1)), StartsWith("200 "));
}

TEST_F(TinkerSamples, ASnapshotInUseIsNeverDropped) {
  options.snapshots_max = 2;
  const std::string first = sampler(), second = sampler();
  sample(first, 0);
  sample(second, 0);
  const std::string third = future(save_for_sampler(model(), 3, R"("sampling_session_seq_id":2)"));
  EXPECT_THAT(answer(third), AllOf(HasSubstr("all 2 weights for samplers"),
                                   HasSubstr("'snapshots_max' of the tinker node")));
  EXPECT_THAT(weights(), IsEmpty());
  complete(requests().at(1));
  future(save_for_sampler(model(), 4, R"("sampling_session_seq_id":3)"));
  EXPECT_EQ(done(WeightsAction::kDropSnapshot).adapter, AdapterId(2 * kSnapshot));
}

TEST_F(TinkerSamples, WeightsThatAreSavedUnderTheSamePathReplaceTheEarlierOnes) {
  future(save_for_sampler(model(), 1, R"("path":"best")"));
  publish(WeightsAction::kSnapshot, kSnapshot);
  future(save_for_sampler(model(), 2, R"("path":"best")"));
  EXPECT_EQ(done(WeightsAction::kDropSnapshot).adapter, AdapterId(kSnapshot));
  publish(WeightsAction::kSnapshot, 2 * kSnapshot);
  const uint64_t made = post("create_sampling_session",
                             R"({"session_id":"session-1","sampling_session_seq_id":0,)"
                             R"("model_path":"tinker://session-1:train:0/sampler_weights/best"})");
  sample(member(made, "sampling_session_id"), 0);
  EXPECT_EQ(requests().at(0).adapter, AdapterId(2 * kSnapshot));
}

TEST_F(TinkerSamples, SnapshotsOutliveTheirModelAndSession) {
  const std::string saving = future(save_for_sampler(model(), 1, R"("path":"final")"));
  publish(WeightsAction::kSnapshot, kSnapshot);
  EXPECT_THAT(answer(saving), StartsWith("200 "));
  said("sessions/session-1/finish", "");
  const std::string session = new_session();
  const uint64_t made =
      post("create_sampling_session",
           fmt::format(R"({{"session_id":"{}","sampling_session_seq_id":0,)"
                       R"("model_path":"tinker://session-1:train:0/sampler_weights/final"}})",
                       session));
  EXPECT_THAT(reply(sample(member(made, "sampling_session_id"), 0)), StartsWith("200 "));
}

TEST_F(TinkerSamples, BeyondTheMostSamplersTheOneUnusedLongestEnds) {
  options.samplers_max = 2;
  const std::string first = inflight_sampler(), second = inflight_sampler();
  complete((future(sample(first, 0)), requests().at(0)));
  const std::string third = inflight_sampler();
  EXPECT_THAT(reply(sample(second, 0)), StartsWith("404 "));
  EXPECT_THAT(reply(sample(first, 1)), StartsWith("200 "));
  EXPECT_THAT(reply(sample(third, 0)), StartsWith("200 "));
}

TEST_F(TinkerSamples, AtADrainNothingIsSentAndOpenSamplesAreCancelled) {
  const std::string from = sampler();
  sample(from, 0);
  const auto sent = requests();
  ASSERT_TRUE(tinker().drain().ok());
  work();
  EXPECT_TRUE(listener.is_stopped);
  EXPECT_FALSE(tinker().idle());
  complete(sent.at(0), "", FinishReason::kCancelled);
  EXPECT_TRUE(tinker().idle());
}

}  // namespace
}  // namespace primerl::testing
