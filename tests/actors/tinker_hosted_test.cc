// The tinker actor in a run that is served: tenants that join, pause and leave, their keys, and
// several models of one client after each other.
#include "tests/actors/tinker_story.h"

namespace primerl::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

/// A tenant that joins, leaves and is followed by another one of the same name.
struct TinkerHosted : TinkerStory {
  TinkerHosted() { key_of = "alice"; }
  /// One step of a new model.
  void passed_and_updated(const std::string& model) {
    const std::string first = future(pass(model, 1));
    const auto sent = passes();
    ASSERT_EQ(sent.size(), 1U);
    passed(sent[0].request);
    EXPECT_THAT(answer(first), ::testing::StartsWith("200 "));
    const std::string second = future(step(model, 2));
    const auto steps = updates();
    ASSERT_EQ(steps.size(), 1U);
    updated(steps[0].request);
    EXPECT_THAT(answer(second), ::testing::HasSubstr("grad_norm"));
  }
  void change(TenantChange::Kind kind) {
    ASSERT_TRUE(tinker().change_tenant(TenantSlot(0), kind).ok());
    if (kind == TenantChange::Kind::kLeave) runner->change_tenants({});
    work();
  }
  /// The next alice, in the same slot.
  void join_again() {
    tenants.front().tenancy = 1;
    runner->change_tenants(tenants);
    change(TenantChange::Kind::kJoin);
    change(TenantChange::Kind::kStart);
    live(0);
  }
};

TEST_F(TinkerHosted, AKeyIsForOneUseOfItsTenantsName) {
  new_model(new_session());
  change(TenantChange::Kind::kLeave);
  EXPECT_THAT(said("create_session", R"({"sdk_version":"0.38.0"})"),
              AllOf(StartsWith("404 "), HasSubstr("tenant 'alice' of this key has left")));
  join_again();
  EXPECT_THAT(said("create_session", R"({"sdk_version":"0.38.0"})"), StartsWith("404 "))
      << "the key of the earlier tenant";
  key_of = "alice~1";
  const std::string session = new_session();
  EXPECT_EQ(new_model(session), session + ":train:0");
}

TEST_F(TinkerHosted, AKeyOfATenantThatHasNotStartedIsRefusedForNow) {
  tinker();
  key_of = "bob";
  EXPECT_THAT(said("create_session", R"({"sdk_version":"0.38.0"})"),
              AllOf(StartsWith("503 "), HasSubstr("tenant 'bob' of this key is not here yet")));
}

TEST_F(TinkerHosted, RequestsOfATenantThatLeavesEndWithItsNameAtOnce) {
  const std::string model = new_model(new_session());
  const std::string sampler = new_sampler(model, 1, 0, 1 << 14);
  const std::string running = future(pass(model, 2)), queued = future(pass(model, 3)),
                    early = future(pass(model, 5)), sampled = future(sample(sampler, 0));
  std::vector<uint64_t> polls;
  for (const std::string& request : {running, queued, early, sampled})
    polls.push_back(retrieve(request));
  change(TenantChange::Kind::kLeave);
  for (const uint64_t poll : polls)
    EXPECT_THAT(reply(poll), AllOf(StartsWith("200 "), HasSubstr("tenant 'alice' has left"),
                                   HasSubstr(R"("category":"server")")));
  EXPECT_THAT(answer(running), AllOf(StartsWith("404 "), HasSubstr("has left")));
  EXPECT_TRUE(tinker().idle());
}

TEST_F(TinkerHosted, TheNextTenantOfASlotFindsNoNameOfTheEarlierOne) {
  const std::string model = new_model(new_session());
  const std::string sampler = new_sampler(model, 1, 0, 1 << 14);
  const std::string saving = future(save(model, 2, "mine"));
  done(WeightsAction::kSave);
  change(TenantChange::Kind::kLeave);
  join_again();
  key_of = "alice~1";
  const std::string session = new_session();
  for (const uint64_t call :
       {pass(model, 3), sample(sampler, 0), retrieve(saving), get("samplers/" + sampler),
        post("session_heartbeat", R"({"session_id":"session-1"})"),
        post("load_weights", fmt::format(R"({{"session_id":"{}","model_seq_id":0,)"
                                         R"("path":"tinker://{}/weights/mine"}})",
                                         session, model))})
    EXPECT_THAT(reply(call), StartsWith("404 "));
}

TEST_F(TinkerHosted, AClientSeesThatItsPausedTenantWaits) {
  const std::string model = new_model(new_session());
  change(TenantChange::Kind::kPause);
  const uint64_t waiting = retrieve(future(pass(model, 1)));
  advance(Duration::seconds(40));
  EXPECT_THAT(reply(waiting), AllOf(HasSubstr("try_again"), HasSubstr("paused_capacity")));
  change(TenantChange::Kind::kResume);
  EXPECT_THAT(passes(), SizeIs(1));
  const uint64_t running = retrieve("r2");
  advance(Duration::seconds(40));
  EXPECT_THAT(reply(running), HasSubstr(R"("queue_state":"active")"));
}

TEST_F(TinkerHosted, AModelThatWaitsForAnotherSaysSo) {
  new_model(new_session());
  advance(Duration::seconds(5));
  const std::string again = new_session();
  const uint64_t waiting = retrieve(future(post("create_model", create_model_body(again))));
  advance(Duration::seconds(40));
  EXPECT_THAT(reply(waiting), HasSubstr("paused_capacity"));
}

TEST_F(TinkerHosted, LoopsOfOneClientFollowEachOther) {
  const std::string first = new_session();
  std::string model = new_model(first);
  passed_and_updated(model);
  said("sessions/" + first + "/finish", "");
  const std::string second = new_session();
  model = new_model(second);
  passed_and_updated(model);
  const std::string saving = future(save(model, 3, "kept"));
  done(WeightsAction::kSave);
  post("unload_model", fmt::format(R"({{"model_id":"{}"}})", model));
  const std::string request =
      future(post("load_weights", fmt::format(R"({{"session_id":"{}","model_seq_id":1,)"
                                              R"("path":"tinker://{}/weights/kept"}})",
                                              second, model)));
  done(WeightsAction::kReset);
  done(WeightsAction::kLoad);
  EXPECT_THAT(answer(request), HasSubstr(R"("model_id":"session-2:train:1")"));
  passed_and_updated("session-2:train:1");
  EXPECT_THAT(
      reply(get("get_server_capabilities")),
      AllOf(HasSubstr(R"("open_models_max":1)"), HasSubstr(R"("open_model":"session-2:train:1")"),
            HasSubstr(R"("lora_rank":8)")));
}

TEST_F(TinkerHosted, ATenantKeepsNoMoreSnapshotsThanItsOwnNumber) {
  tenants.front().snapshots = 1;
  const std::string model = new_model(new_session());
  const std::string first = new_sampler(model, 1, 0, 1 << 14);
  const std::string second = future(save_for_sampler(model, 2, R"("sampling_session_seq_id":1)"));
  done(WeightsAction::kDropSnapshot);
  publish(WeightsAction::kSnapshot, 2 << 14);
  EXPECT_THAT(answer(second), HasSubstr("sampling_session_id"));
  EXPECT_THAT(reply(get("samplers/" + first)), StartsWith("404 "));
}

}  // namespace
}  // namespace primerl::testing
