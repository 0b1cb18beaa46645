// Requests of runs at the gateway: their names, their turns, and the end of a run.
#include "actors/messages/run.h"

#include "actors/messages/rollout.h"
#include "tests/actors/gateway_story.h"

namespace primerl::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

struct GatewayRunsStory : GatewayStory {
  static constexpr InstanceId kRollout{70};

  GatewayRunsStory() {
    tenants.front().turns_max = 3;
    tenants.front().group_size = 4;
    tenants.front().sampling.temperature = 0.7;
  }
  NodeRunner<Gateway>& connected() {
    if (runner == nullptr) {
      runner = std::make_unique<NodeRunner<Gateway>>(options);
      runner->set_tenants(tenants);
      runner->use("listener", listener);
      runner->use("tokenizer", tokenizer);
      runner->set_targets("generate", {kRouter});
      runner->set_targets("turn", {kRollout});
      runner->set_targets("address", {kRollout});
      work();
      if (is_live) live(0);
    }
    return *runner;
  }
  /// The key that the gateway sends to Rollout with its address.
  uint64_t key() {
    if (key_) return *key_;
    connected();
    EXPECT_THAT(listener.addresses, SizeIs(1));
    listener.answers.push_back(
        {listener.addresses.front(), OutsideEnd::kDone, write_address("http://127.0.0.1:9")});
    work();
    const auto sent = connected().take<GatewayAddress>("address");
    EXPECT_THAT(sent, SizeIs(1));
    key_ = sent.at(0).seal_key;
    return *key_;
  }
  std::string salt(const MemberName& of, int64_t version = 5, const std::string& tenant = "main",
                   int32_t num_members = 1) {
    RunSalt made{"k", tenant, of, num_members, PolicyVersion(version)};
    made.seal = seal_of(made, key());
    return to_text(made);
  }
  uint64_t ask(const std::string& salt, const std::string& ids = "97,98",
               const std::string& more = "") {
    connected();
    return generate(fmt::format(R"({{"token_ids":[{}],"cache_salt":"{}"{}}})", ids, salt, more));
  }
  void close(std::vector<MemberName> names) {
    ASSERT_TRUE(connected().give("closed", MemberClosed{std::move(names)}).ok());
    work();
  }
  std::vector<MemberTurn> turns() { return connected().take<MemberTurn>("turn"); }

  const MemberName name{17, 0, 2};
  std::optional<uint64_t> key_;
};

TEST_F(GatewayRunsStory, NamesThatAreNotOfTheTenantAreRefused) {
  EXPECT_THAT(reply(ask(salt(name, 5, "other"))),
              AllOf(StartsWith("400 "), HasSubstr("names a rollout of 'other'")));
  EXPECT_THAT(reply(ask("k|main.x")), AllOf(StartsWith("400 "), HasSubstr("names no rollout")));
  EXPECT_THAT(requests(), IsEmpty());
}

TEST_F(GatewayRunsStory, ANameThatTheRunDidNotGiveIsRefusedAndLeavesTheRunAlone) {
  const std::string own = salt(name);
  std::string later = own;
  later.replace(later.find("main.17.0"), 9, "main.17.1");  // the next attempt of the same rollout
  std::string larger = own;
  larger.replace(larger.find(".1@5"), 4, ".4@5");  // more members, which would be more turns
  for (const std::string& forged : {later, larger})
    EXPECT_THAT(reply(ask(forged)), AllOf(StartsWith("400 "), HasSubstr("its seal"))) << forged;
  EXPECT_THAT(turns(), IsEmpty());
  for (const MemberName& each : {name, MemberName{17, 1, 2}}) {
    const uint64_t client = ask(salt(each));
    complete(requests().at(0));
    EXPECT_THAT(reply(client), StartsWith("200 "));
    EXPECT_EQ(turns().at(0).index, 0);
  }
}

TEST_F(GatewayRunsStory, AGraphWithoutDrivenRolloutsRefusesNames) {
  (void)key();
  connected().set_targets("turn", {});
  EXPECT_THAT(reply(generate(fmt::format(R"({{"token_ids":[97],"cache_salt":"{}"}})", salt(name)))),
              AllOf(StartsWith("400 "), HasSubstr("no environment drives rollouts")));
}

TEST_F(GatewayRunsStory, ATurnIsSentBeforeTheReplyWithTheGroupsVersionAndTheTenantsSampling) {
  const uint64_t client = ask(salt(name), "97,98", R"(,"sampling_params":{"temperature":0})");
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_EQ(made[0].version, PolicyVersion(5));
  EXPECT_EQ(made[0].salt, "k");
  EXPECT_EQ(made[0].sampling.temperature, 0.7);
  EXPECT_THAT(turns(), IsEmpty());
  complete(made[0]);
  EXPECT_THAT(reply(client), StartsWith("200 "));
  const auto sent = turns();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].name, name);
  EXPECT_FALSE(sent[0].is_last);
  EXPECT_THAT(sent[0].prompt_tokens, ElementsAre(97, 98));
  EXPECT_THAT(sent[0].tokens, ElementsAre('x', 'y', '\n'));
  EXPECT_THAT(sent[0].logprobs, SizeIs(3));
}

TEST_F(GatewayRunsStory, ARunHasTheSamplingAndTheLimitsOfItsEnvironment) {
  const Tenant whole = tenants.front();
  for (const double temperature : {0.5, 2.0}) {
    auto part = std::make_shared<Tenant>(whole);
    part->label = temperature < 1 ? "cold" : "hot";
    part->sampling.temperature = temperature;
    part->seq_len = temperature < 1 ? 16 : 24;
    part->turns_max = temperature < 1 ? 1 : 2;
    tenants.front().mix.push_back(std::move(part));
  }
  std::vector<double> temperatures;
  for (const uint64_t ordinal : {17, 18}) {  // of equal weights one each
    ask(salt({ordinal, 0, 0}));
    const auto made = requests();
    ASSERT_THAT(made, SizeIs(1));
    temperatures.push_back(made[0].sampling.temperature);
    const bool is_cold = temperatures.back() < 1;
    EXPECT_EQ(made[0].sampling.max_tokens, is_cold ? 14 : 22);
    complete(made[0]);
    const uint64_t second = ask(salt({ordinal, 0, 0}));
    EXPECT_EQ(has_reply(second), is_cold) << "it has had its only turn";
    (void)requests();
  }
  EXPECT_THAT(temperatures, UnorderedElementsAre(0.5, 2.0));
}

TEST_F(GatewayRunsStory, AnEvaluationSamplesAsItsClientSays) {
  ask(salt(MemberName{kEvaluationOrdinals + 1, 0, 0}), "97",
      R"(,"sampling_params":{"temperature":0})");
  EXPECT_EQ(requests()[0].sampling.temperature, 0);
}

TEST_F(GatewayRunsStory, RequestsOfARunNeedNoLiveVersion) {
  is_live = false;
  ask(salt(name, -1));
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_TRUE(made[0].version.is_none());
}

TEST_F(GatewayRunsStory, RequestsOfARunDoNotWaitBehindOnesThatWaitForAVersion) {
  is_live = false;
  connected();
  (void)generate();
  ask(salt(name));
  auto made = requests();
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_EQ(made[0].version, PolicyVersion(5));
  live(3);
  made = requests();
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_EQ(made[0].version, PolicyVersion(3));
}

TEST_F(GatewayRunsStory, ARunThatBeginsAgainSamplesWithTheSameSeeds) {
  ask(salt({17, 0, 2}));
  ask(salt({17, 1, 2}));
  ask(salt({17, 0, 3}));
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(3));
  EXPECT_EQ(made[0].seed, made[1].seed);
  EXPECT_NE(made[0].seed, made[2].seed);
  EXPECT_NE(made[0].session, made[1].session);
}

TEST_F(GatewayRunsStory, RequestsThatRunTogetherHaveSeedsOfTheirOwn) {
  options.attempts_max = 0;
  ask(salt(name));
  ask(salt(name));
  auto made = requests();
  ASSERT_THAT(made, SizeIs(2));
  std::set<uint64_t> seeds = {made[0].seed, made[1].seed};
  complete(made[0], "", FinishReason::kEngineLost);  // it has failed, the other still runs
  ask(salt(name));
  made = requests();
  ASSERT_THAT(made, SizeIs(1));
  seeds.insert(made[0].seed);
  EXPECT_THAT(seeds, SizeIs(3));
}

TEST_F(GatewayRunsStory, TurnsHaveABoundThatEndsTheRunAsTruncated) {
  for (int i = 0; i < 3; ++i) ask(salt(name));
  EXPECT_THAT(reply(ask(salt(name))),
              AllOf(StartsWith("400 "), HasSubstr("maximum context length")));
  EXPECT_THAT(requests(), SizeIs(3));
  // A run of several members has the turns of all.
  const MemberName group{18, 0, 0};
  for (int i = 0; i < 12; ++i) ask(salt(group, 5, "main", 4));
  EXPECT_THAT(reply(ask(salt(group, 5, "main", 4))), StartsWith("400 "));
}

TEST_F(GatewayRunsStory, AClosedRunCancelsItsRequestsRefusesLaterOnesAndSendsALastTurn) {
  connected().set_room("generate", 1);
  const uint64_t running = ask(salt(name));
  const uint64_t other = ask(salt({17, 0, 3}));
  const auto made = requests();
  close({name});
  EXPECT_THAT(reply(running), AllOf(StartsWith("410 "), HasSubstr("the rollout has ended")));
  EXPECT_FALSE(has_reply(other));
  const auto cancels = connected().take<Cancel>("cancel");
  ASSERT_THAT(cancels, SizeIs(1));
  EXPECT_THAT(cancels[0].requests, ElementsAre(made[0].request));
  auto sent = turns();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_TRUE(sent[0].is_last);
  EXPECT_EQ(sent[0].index, 0);
  EXPECT_THAT(reply(ask(salt(name))), StartsWith("410 "));
  // Its completion was on the way.
  complete(made[0], "", FinishReason::kCancelled);
  EXPECT_THAT(turns(), IsEmpty());
  EXPECT_THAT(reply(ask(salt({17, 1, 2}))), ::testing::StrEq("none")) << "the next attempt";
}

TEST_F(GatewayRunsStory, ALastTurnCountsThoseBeforeIt) {
  ask(salt(name));
  complete(requests()[0]);
  ask(salt(name), "97,98,120,121,10,99");
  complete(requests()[0], "z\n");
  close({name, {99, 0, 0}});
  const auto sent = turns();
  ASSERT_THAT(sent, SizeIs(4));
  EXPECT_EQ(sent[1].sequence, 0);
  EXPECT_THAT(sent[1].prompt_tokens, ElementsAre(99)) << "the rest is known";
  EXPECT_EQ(sent[2].index, 2);
  EXPECT_EQ(sent[3].index, 0) << "a run that asked nothing";
}

TEST_F(GatewayRunsStory, ARequestThatFailsIsNoTurn) {
  options.attempts_max = 0;
  const uint64_t client = ask(salt(name));
  complete(requests()[0], "", FinishReason::kEngineLost);
  EXPECT_THAT(reply(client), StartsWith("500 "));
  close({name});
  const auto sent = turns();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].index, 0);
}

TEST_F(GatewayRunsStory, ItSendsItsAddressOnceAndAgainWhenItChanges) {
  connected();
  const auto address_calls = [&] {
    std::vector<std::string> found;
    for (const std::string& call : listener.calls)
      if (call.find("\"address\"") != std::string::npos) found.push_back(call);
    return found;
  };
  ASSERT_THAT(address_calls(), SizeIs(1));
  ASSERT_THAT(listener.addresses, SizeIs(1));
  listener.answers.push_back(
      {listener.addresses.front(), OutsideEnd::kDone, write_address("http://127.0.0.1:1234")});
  work();
  const auto sent = connected().take<GatewayAddress>("address");
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].base_url, "http://127.0.0.1:1234");
  ASSERT_THAT(address_calls(), SizeIs(2));
  EXPECT_THAT(address_calls()[1], HasSubstr("1234")) << "an answer comes only for another address";
}

}  // namespace
}  // namespace primerl::testing
