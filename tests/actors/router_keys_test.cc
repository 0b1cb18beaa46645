// Several weights keys of one tenant in the router: a request goes where its own key is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/router_story.h"

namespace primerl {
namespace {

using testing::a_load;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kPrefillA;
using testing::kPrefillB;
using ::testing::SizeIs;

WeightsKey snapshot_of_first(uint32_t n) { return snapshot_key({}, n); }

GenerateRequest a_request_of(uint32_t n, uint64_t request, int64_t version = 0) {
  GenerateRequest made = testing::a_request(request, request, version);
  made.adapter = snapshot_of_first(n).adapter;
  return made;
}

EngineLoad a_load_with(InstanceId engine, uint32_t n, int64_t version) {
  EngineLoad load = a_load(engine, 0);
  CHECK(load.applied.set(snapshot_of_first(n), PolicyVersion(version)), "too many keys");
  return load;
}

EngineLoad a_load_without(InstanceId engine, uint32_t n) {
  EngineLoad load = a_load(engine, 0);
  load.gone = {snapshot_of_first(n)};
  return load;
}

struct RouterKeys : testing::RouterStory {
  explicit RouterKeys(RouterOptions options = {}) : RouterStory(std::move(options)) {}
  void give(const EngineLoad& load) { ASSERT_TRUE(router.give("load", load).ok()); }
  std::vector<Completion> refused() { return router.sent<Completion>("refused"); }
};

TEST_F(RouterKeys, ARequestGoesToAnEngineThatHasItsOwnKey) {
  give(a_load(kPrefillA, 9));
  give(a_load_with(kPrefillB, 1, 2));
  for (uint64_t i = 0; i < 4; ++i) ask(a_request_of(1, i, 2));
  EXPECT_THAT(router.targets_of("prefill"), Each(kPrefillB));
  EXPECT_THAT(router.targets_of("prefill"), SizeIs(4));
  router.forget_sent();
  ask(testing::a_request(10, 10, 9));
  EXPECT_THAT(router.targets_of("prefill"), ElementsAre(kPrefillA)) << "only A has version 9";
}

TEST_F(RouterKeys, ARequestWaitsForItsKeyAndHoldsBackNoneOfAnother) {
  ready(9);
  ask(a_request_of(1, 1));
  ask(testing::a_request(2, 2));
  ASSERT_THAT(router.sent<GenerateRequest>("prefill"), SizeIs(1));
  EXPECT_EQ(router.sent<GenerateRequest>("prefill")[0].request, 2U);
  give(a_load_with(kPrefillB, 1, 0));
  ASSERT_THAT(router.sent<GenerateRequest>("prefill"), SizeIs(2));
  EXPECT_EQ(router.sent<GenerateRequest>("prefill")[1].adapter, snapshot_of_first(1).adapter);
}

TEST_F(RouterKeys, ASnapshotMustBeThereAlsoForARequestWithoutAVersion) {
  ready();
  ask(a_request_of(1, 1, -1));
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), IsEmpty());
  give(a_load_with(kPrefillB, 1, 0));
  EXPECT_THAT(router.targets_of("prefill"), ElementsAre(kPrefillB));
}

TEST_F(RouterKeys, ADropRefusesWhatWaitsAndWhatComesByName) {
  give(a_load_with(kPrefillA, 1, 0));
  ask(a_request_of(1, 1, 3));  // waits for a version that will not come
  ask(a_request_of(2, 2));     // waits for another snapshot
  give(a_load_without(kPrefillA, 1));
  ask(a_request_of(1, 3));
  const auto answers = refused();
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_EQ(answers[0].request, 1U);
  EXPECT_EQ(answers[1].request, 3U);
  for (const Completion& each : answers) {
    EXPECT_EQ(each.end, FinishReason::kRefused);
    EXPECT_THAT(each.detail, HasSubstr("snapshot 1 of tenant 0 was dropped"));
  }
  give(a_load_with(kPrefillA, 2, 0));
  EXPECT_THAT(router.sent<GenerateRequest>("prefill"), SizeIs(1));
}

TEST_F(RouterKeys, ADropRefusesNoMoreAtOnceThanTheEdgeTakes) {
  give(a_load(kPrefillA, 0));
  for (uint64_t i = 0; i < 40; ++i) ask(a_request_of(1, i));
  router.set_room("refused", 16);
  give(a_load_without(kPrefillA, 1));
  EXPECT_THAT(refused(), SizeIs(16));
  router.forget_sent();
  ASSERT_TRUE(router.advance(Duration::milliseconds(1)).ok());
  EXPECT_THAT(refused(), SizeIs(16)) << "the others follow as there is space";
}

/// The engine reported the drop while this router was away.
TEST_F(RouterKeys, AWholeLoadWithoutASnapshotIsADropToo) {
  give(a_load_with(kPrefillA, 1, 0));
  EngineLoad whole = a_load(kPrefillA, 4);
  whole.is_whole = true;
  give(whole);
  ask(a_request_of(1, 1));
  EXPECT_THAT(refused(), SizeIs(1));
  ask(testing::a_request(2, 2, 4));
  EXPECT_THAT(router.targets_of("prefill"), ElementsAre(kPrefillA));
}

TEST_F(RouterKeys, AnEngineThatDropsLaterChangesNothingMore) {
  for (const InstanceId engine : {kPrefillA, kPrefillB}) give(a_load_with(engine, 1, 0));
  give(a_load_without(kPrefillA, 1));
  ask(a_request_of(1, 1));
  ASSERT_THAT(refused(), SizeIs(1)) << "the other engine still has it, and drops it soon";
  give(a_load_without(kPrefillB, 1));
  EXPECT_THAT(refused(), SizeIs(1));
}

TEST_F(RouterKeys, RemembersTheNewestDropsUpToTheirNumber) {
  EngineLoad load = a_load(kPrefillA, 0);
  for (uint32_t n = 1; n <= kWeightsKeysMax; ++n) load.gone.push_back(snapshot_of_first(n));
  give(load);
  ask(a_request_of(1, 1));
  EXPECT_THAT(refused(), SizeIs(1)) << "as many are remembered";
  give(a_load_without(kPrefillA, kWeightsKeysMax + 1));
  ask(a_request_of(1, 2));
  EXPECT_THAT(refused(), SizeIs(1)) << "the oldest is forgotten, and its request waits";
  for (const uint32_t n : {2U, static_cast<uint32_t>(kWeightsKeysMax) + 1})
    ask(a_request_of(n, 10 + n));
  EXPECT_THAT(refused(), SizeIs(3));
}

struct CacheAwareKeys : RouterKeys {
  CacheAwareKeys() : RouterKeys({.policy = "cache_aware"}) {}
};

TEST_F(CacheAwareKeys, EqualPromptsOfTwoKeysHaveDifferentPrefixes) {
  for (const InstanceId engine : {kPrefillA, kPrefillB}) give(a_load_with(engine, 1, 0));
  GenerateRequest first = testing::a_request(1, 1);
  first.prompt_tokens.assign(64, 7);
  ask(first);
  GenerateRequest of_snapshot = first;
  of_snapshot.request = 2;
  of_snapshot.adapter = snapshot_of_first(1).adapter;
  ask(of_snapshot);
  GenerateRequest again = first;
  again.request = again.session = 3;
  ask(again);
  const auto targets = router.targets_of("prefill");
  ASSERT_THAT(targets, SizeIs(3));
  EXPECT_EQ(targets[0], targets[2]) << "the prefix is there";
  EXPECT_NE(targets[0], targets[1]) << "the less busy one: a session of another key is not here";
}

}  // namespace
}  // namespace primerl
