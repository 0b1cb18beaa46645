// The tinker actor: the REST interface, samplers of the base model, ages of data.
#include <bit>

#include "tests/actors/tinker_story.h"

namespace primerl::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr uint32_t kFirstSnapshot = 1 << 14;  // the key of the first snapshot
constexpr int64_t kReceived = 1'700'000'000;  // 2023-11-14T22:13:20Z

struct TinkerLists : TinkerStory {
  std::string rest(const std::string& method, const std::string& route,
                   const std::string& body = "") {
    ClientRequest request;
    request.method = method;
    request.path = "/api/v1/" + route;
    request.body = body;
    request.tenant = key_of;
    request.received = kReceived;
    return reply(client(std::move(request)));
  }
  /// Saved weights "a" and the snapshot "b" of a new model.
  std::string model_with_weights() {
    const std::string model = new_model(new_session());
    save(model, 1, "a");
    done(WeightsAction::kSave);
    save_for_sampler(model, 2, R"("path":"b")");
    publish(WeightsAction::kSnapshot, kFirstSnapshot);
    return model;
  }
  uint64_t base_sampler(int seq = 0, const std::string& base = "tiny") {
    return post("create_sampling_session",
                fmt::format(R"({{"session_id":"session-1","sampling_session_seq_id":{},)"
                            R"("base_model":"{}"}})",
                            seq, base));
  }
};

TEST_F(TinkerLists, ModelsAndWeightsAreListedWithTheirTimes) {
  model_with_weights();
  EXPECT_THAT(rest("GET", "training_runs"),
              AllOf(StartsWith("200 "), HasSubstr(R"("training_run_id":"session-1:train:0")"),
                    HasSubstr(R"("base_model":"tiny")"), HasSubstr(R"("lora_rank":8)"),
                    HasSubstr(R"("model_owner":"alice")"),
                    HasSubstr(R"("last_request_time":"2023-11-14T22:13:20Z")"),
                    HasSubstr(R"("total_count":1)")));
  EXPECT_THAT(
      rest("GET", "training_runs/session-1:train:0"),
      AllOf(HasSubstr(R"("last_checkpoint":{"checkpoint_id":"weights/a")"),
            HasSubstr(R"("last_sampler_checkpoint":{"checkpoint_id":"sampler_weights/b")")));
  for (const char* route : {"checkpoints", "training_runs/session-1:train:0/checkpoints"})
    EXPECT_THAT(rest("GET", route),
                AllOf(HasSubstr(R"("checkpoint_type":"training")"),
                      HasSubstr(R"("tinker_path":"tinker://session-1:train:0/weights/a")"),
                      HasSubstr(R"("checkpoint_type":"sampler")"), HasSubstr(R"("total_count":2)"),
                      Not(HasSubstr("expires_at"))));
  EXPECT_THAT(
      rest("POST", "weights_info", R"({"tinker_path":"tinker://session-1:train:0/weights/a"})"),
      AllOf(HasSubstr(R"("base_model":"Org/Tiny")"), HasSubstr(R"("lora_rank":8)"),
            HasSubstr(R"("train_unembed":true)")));
}

TEST_F(TinkerLists, AClosedModelIsListedWhileItHasWeights) {
  model_with_weights();
  said("sessions/session-1/finish", "");
  EXPECT_THAT(rest("GET", "training_runs"), HasSubstr("session-1:train:0"));
  const std::string folder = "training_runs/session-1:train:0/checkpoints/";
  EXPECT_EQ(rest("DELETE", folder + "weights/a"), "200 {}");
  EXPECT_EQ(done(WeightsAction::kDropSaved).name, "session-1.train.0.a");
  EXPECT_EQ(rest("DELETE", folder + "sampler_weights/b"), "200 {}");
  done(WeightsAction::kDropSnapshot);
  EXPECT_THAT(rest("DELETE", folder + "weights/a"), StartsWith("404 "));
  EXPECT_THAT(rest("GET", "training_runs"), HasSubstr(R"("training_runs":[])"));
  EXPECT_THAT(rest("GET", "training_runs/session-1:train:0"), StartsWith("404 "));
}

TEST_F(TinkerLists, ATimeToLiveIsSetAndRemoved) {
  model_with_weights();
  const std::string ttl = "training_runs/session-1:train:0/checkpoints/weights/a/ttl";
  EXPECT_EQ(rest("PUT", ttl, R"({"ttl_seconds":3600})"), "200 {}");
  EXPECT_THAT(rest("GET", "checkpoints"), HasSubstr(R"("expires_at":"2023-11-14T23:13:20Z")"));
  EXPECT_EQ(rest("PUT", ttl, R"({"ttl_seconds":null})"), "200 {}");
  EXPECT_THAT(rest("GET", "checkpoints"), Not(HasSubstr("expires_at")));
  EXPECT_EQ(rest("PUT", ttl, R"({"ttl_seconds":100})"), "200 {}");
  advance(Duration::seconds(100));
  done(WeightsAction::kDropSaved);
  EXPECT_THAT(rest("PUT", ttl, R"({"ttl_seconds":3600})"), StartsWith("404 "));
  EXPECT_THAT(rest("POST", "training_runs/session-1:train:0/checkpoints/weights/a/publish"),
              AllOf(StartsWith("400 "), HasSubstr("no weights to other tenants")));
}

TEST_F(TinkerLists, AnotherTenantSeesNothing) {
  add_tenant("bob");
  key_of = "alice";
  model_with_weights();
  key_of = "bob";
  EXPECT_THAT(rest("GET", "training_runs"), HasSubstr(R"("training_runs":[])"));
  EXPECT_THAT(rest("GET", "checkpoints"), HasSubstr(R"("checkpoints":[])"));
  EXPECT_EQ(rest("GET", "sessions"), R"(200 {"sessions":[]})");
  const std::string folder = "training_runs/session-1:train:0/checkpoints/";
  EXPECT_THAT(rest("GET", "sessions/session-1"), StartsWith("404 "));
  EXPECT_THAT(rest("DELETE", folder + "weights/a"), StartsWith("404 "));
  EXPECT_THAT(rest("DELETE", folder + "sampler_weights/b"), StartsWith("404 "));
  EXPECT_THAT(rest("PUT", folder + "weights/a/ttl", "{}"), StartsWith("404 "));
  EXPECT_THAT(
      rest("POST", "weights_info", R"({"tinker_path":"tinker://session-1:train:0/weights/a"})"),
      StartsWith("404 "));
  EXPECT_THAT(weights(), IsEmpty());
}

TEST_F(TinkerLists, ASessionHasItsModelsAndSamplers) {
  const std::string model = new_model(new_session());
  new_sampler(model, 1, 4, kFirstSnapshot);
  EXPECT_EQ(rest("GET", "sessions"), R"(200 {"sessions":["session-1"]})");
  EXPECT_EQ(rest("GET", "sessions/session-1"), R"(200 {"training_run_ids":["session-1:train:0"],)"
                                               R"("sampler_ids":["session-1:sample:4"]})");
  const std::string join = R"({"sampling_session_id":"session-1:sample:4"})";
  EXPECT_EQ(said("join_sampling_session", join), R"(200 {"client_counter":1})");
  EXPECT_EQ(said("join_sampling_session", join), R"(200 {"client_counter":2})");
}

TEST_F(TinkerLists, ASamplerOfTheBaseModelIsThereOnceEveryEngineHasItsWeights) {
  new_session();
  const uint64_t first = base_sampler(0), second = base_sampler(1);
  EXPECT_FALSE(has_reply(first));
  done(WeightsAction::kBase, kFirstSnapshot, 1);
  EXPECT_FALSE(has_reply(first)) << "its key is not live";
  live(1, kFirstSnapshot);
  EXPECT_EQ(reply(first), R"(200 {"sampling_session_id":"session-1:sample:0"})");
  EXPECT_EQ(reply(second), R"(200 {"sampling_session_id":"session-1:sample:1"})");
  EXPECT_THAT(reply(base_sampler(2)), StartsWith("200 ")) << "no further publication";
  EXPECT_THAT(reply(base_sampler(0)), StartsWith("200 ")) << "a repeat";
  EXPECT_THAT(weights(), IsEmpty());
  sample("session-1:sample:0", 0);
  const auto sent = requests();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].adapter, AdapterId(kFirstSnapshot));
  EXPECT_THAT(reply(base_sampler(3, "other")), AllOf(StartsWith("400 "), HasSubstr("tiny")));
}

TEST_F(TinkerLists, SnapshotsOfTheModelDoNotReplaceTheBaseModel) {
  options.snapshots_max = 1;
  const std::string model = new_model(new_session());
  base_sampler(0);
  done(WeightsAction::kBase, kFirstSnapshot, 1);
  live(1, kFirstSnapshot);
  new_sampler(model, 1, 1, 2 * kFirstSnapshot);
  const std::string request = future(save_for_sampler(model, 2, R"("sampling_session_seq_id":2)"));
  EXPECT_EQ(done(WeightsAction::kDropSnapshot).adapter, AdapterId(2 * kFirstSnapshot));
  publish(WeightsAction::kSnapshot, 3 * kFirstSnapshot);
  EXPECT_THAT(answer(request), StartsWith("200 "));
  EXPECT_THAT(reply(sample("session-1:sample:0", 0)), StartsWith("200 "));
}

TEST_F(TinkerLists, ABaseModelThatCannotBePublishedIsAnErrorOfItsSampler) {
  new_session();
  const uint64_t call = base_sampler();
  done(WeightsAction::kBase, 0, 0, "no space");
  EXPECT_THAT(reply(call), AllOf(StartsWith("400 "), HasSubstr("no space")));
  const uint64_t again = base_sampler();
  advance(Duration::seconds(40));
  EXPECT_THAT(reply(again), AllOf(StartsWith("408 "), HasSubstr("not there within 40s")));
  done(WeightsAction::kBase, kFirstSnapshot, 1);
  live(1, kFirstSnapshot);
  EXPECT_THAT(reply(base_sampler()), StartsWith("200 ")) << "the client sends it again";
}

TEST_F(TinkerLists, ABaseModelThatEnginesHaveLostIsPublishedAgain) {
  new_session();
  base_sampler();
  done(WeightsAction::kBase, kFirstSnapshot, 1);
  live(1, kFirstSnapshot);
  sample("session-1:sample:0", 0);
  GenerateRequest sent = requests().at(0);
  Completion refused;
  refused.request = sent.request;
  refused.end = FinishReason::kRefused;
  refused.detail = "the prompt is too long";
  give("completion", refused);
  EXPECT_THAT(weights(), IsEmpty()) << "another reason";
  sample("session-1:sample:0", 1);
  sent = requests().at(0);
  refused.request = sent.request;
  refused.detail = fmt::format("{} was dropped: its requests are refused",
                               to_string(WeightsKey{TenantSlot(0), AdapterId(kFirstSnapshot)}));
  give("completion", refused);
  EXPECT_EQ(done(WeightsAction::kDropSnapshot).adapter, AdapterId(kFirstSnapshot))
      << "first, because the trainer has space for one";
  done(WeightsAction::kBase, 2 * kFirstSnapshot, 2);
  live(2, 2 * kFirstSnapshot);
  EXPECT_THAT(weights(), IsEmpty());
  sample("session-1:sample:0", 2);
  EXPECT_EQ(requests().at(0).adapter, AdapterId(2 * kFirstSnapshot));
}

/// Ages of data: tokens "bc" are what pass_body() trains.
struct TinkerAges : TinkerLists {
  std::map<std::string, double> metrics_of(const std::string& request) {
    const uint64_t call = retrieve(request);
    std::map<std::string, double> metrics;
    for (tinker::ProtoReader reader(listener.replies[call].body); !reader.is_done();) {
      const auto field = reader.next();
      if (!field.ok()) break;
      if (field->number != 3) continue;
      tinker::ProtoReader entry(field->bytes);
      const auto name = entry.next(), value = entry.next();
      if (!name.ok() || !value.ok()) break;
      metrics[std::string(name->bytes)] = std::bit_cast<double>(value->value);
    }
    return metrics;
  }
  void update(const std::string& model, int seq, int64_t version) {
    const std::string request = future(step(model, seq));
    const auto sent = updates();
    ASSERT_THAT(sent, SizeIs(1));
    ages = sent[0].ages;
    UpdateDone done;
    done.request = sent[0].request;
    done.version = PolicyVersion(version);
    give("updated", done);
    EXPECT_THAT(answer(request), StartsWith("200 "));
  }
  std::map<std::string, double> trained(const std::string& model, int seq, int64_t version) {
    const std::string request = future(pass(model, seq));
    PassDone done;
    done.request = passes().at(0).request;
    done.version = PolicyVersion(version);
    done.result.logprobs = {{-0.5F, -0.5F}};
    give("passed", done);
    return metrics_of(request);
  }
  DataAges ages;  // of the last update
};

TEST_F(TinkerAges, APassSaysHowManyUpdatesItsTokensAreBehind) {
  const std::string model = new_model(new_session());
  const std::string from = new_sampler(model, 1, 0, kFirstSnapshot);
  sample(from, 0);
  complete(requests().at(0), "bc");
  auto metrics = trained(model, 2, 0);
  EXPECT_EQ(metrics.at("num_sampled_data:sum"), 1);
  EXPECT_EQ(metrics.at("updates_behind:max"), 0);
  update(model, 3, 1);
  EXPECT_EQ(ages.num_data, 1);
  EXPECT_EQ(ages.sum, 0);
  update(model, 4, 2);
  EXPECT_EQ(ages.num_data, 0) << "no pass";
  trained(model, 5, 2);
  metrics = trained(model, 6, 2);
  EXPECT_EQ(metrics.at("updates_behind:sum"), 2);
  EXPECT_EQ(metrics.at("updates_behind:max"), 2);
  update(model, 7, 3);
  EXPECT_EQ(ages.num_data, 2);
  EXPECT_EQ(ages.sum, 4);
  EXPECT_EQ(ages.most, 2);
  EXPECT_EQ(ages.counts.at(bucket_of(kStalenessBounds, 2.0)), 2);
}

TEST_F(TinkerAges, TokensOfTheBaseModelAndOthersHaveNone) {
  const std::string model = new_model(new_session());
  base_sampler();
  done(WeightsAction::kBase, kFirstSnapshot, 1);
  live(1, kFirstSnapshot);
  sample("session-1:sample:0", 0);
  complete(requests().at(0), "bc");
  EXPECT_EQ(trained(model, 1, 0).at("num_sampled_data:sum"), 0);
  const std::string from = new_sampler(model, 2, 1, 2 * kFirstSnapshot);
  sample(from, 0);
  complete(requests().at(0), "xy");
  EXPECT_EQ(trained(model, 3, 0).at("num_sampled_data:sum"), 0);
}

TEST_F(TinkerAges, PublishedVersionsAreCountedInUpdates) {
  const std::string model = new_model(new_session());
  trained(model, 1, 0);
  update(model, 2, 1);
  const std::string request =
      future(save_for_sampler(model, 3, R"("sampling_session_seq_id":0,"kind":"inflight")"));
  publish(WeightsAction::kPublish, 0, 3);  // complete() says that version 3 made the tokens
  const std::string from = member(retrieve(request), "sampling_session_id");
  trained(model, 4, 1);
  update(model, 5, 2);
  sample(from, 0);
  complete(requests().at(0), "bc");
  EXPECT_EQ(trained(model, 6, 2).at("updates_behind:max"), 1);
}

TEST_F(TinkerAges, AVersionThatIsOlderThanTheKnownOnesHasNone) {
  const std::string model = new_model(new_session());
  trained(model, 1, 0);
  update(model, 2, 1);
  std::string from;
  for (int i = 0; i <= static_cast<int>(tinker::kPublishedMax); ++i) {
    const std::string request = future(save_for_sampler(
        model, 3 + i, fmt::format(R"("sampling_session_seq_id":{},"kind":"inflight")", i)));
    publish(WeightsAction::kPublish, 0, 3 + i);
    from = member(retrieve(request), "sampling_session_id");
  }
  sample(from, 0);
  complete(requests().at(0), "bc");  // by version 3
  EXPECT_EQ(trained(model, 4 + static_cast<int>(tinker::kPublishedMax), 1)
                .at("num_sampled_data:sum"),
            0);
}

}  // namespace
}  // namespace primerl::testing
