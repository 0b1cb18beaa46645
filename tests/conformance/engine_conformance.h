/// The guarantees of every Engine (kernels/engine/engine.h), as tests over a factory.
///
/// Include in one test file and write
///   INSTANTIATE_TEST_SUITE_P(Torch, EngineConformance, ::testing::Values(my_engine_under_test()));
#pragma once

#include <algorithm>

#include "kernels/engine/kept_sets.h"
#include "tests/conformance/engine_cache_conformance.h"
#include "tests/conformance/engine_ends_conformance.h"
#include "tests/conformance/engine_pause_conformance.h"
#include "tests/conformance/engine_sampling_conformance.h"
#include "tests/conformance/engine_tenants_conformance.h"
#include "tests/conformance/engine_under_test.h"

namespace primerl {

TEST_P(EngineConformance, RefusesAnEmptyPrompt) {
  auto engine = make();
  auto empty = request(1);
  empty.prompt_tokens.clear();
  ASSERT_FALSE(engine->submit(empty).ok());
  EXPECT_THAT(engine->take_finished(), ::testing::IsEmpty());
  expect_idle(*engine);
}

TEST_P(EngineConformance, RefusesATokenOutsideTheVocabulary) {
  auto engine = make();
  auto last = request(1);
  last.prompt_tokens.back() = GetParam().vocab_size - 1;
  EXPECT_TRUE(engine->submit(last).ok());
  for (const int32_t token : {GetParam().vocab_size, -1}) {
    auto outside = request(2);
    outside.prompt_tokens.back() = token;
    EXPECT_FALSE(engine->submit(outside).ok()) << token;
  }
}

TEST_P(EngineConformance, RefusesImpossibleSampling) {
  auto engine = make();
  auto bad = request(1);
  bad.sampling.top_p = 0;
  EXPECT_FALSE(engine->submit(bad).ok());
  bad.sampling.top_p = 1;
  bad.sampling.max_tokens = 0;
  EXPECT_FALSE(engine->submit(bad).ok());
}

TEST_P(EngineConformance, TakesTheLongestSequenceAndNoLonger) {
  auto engine = make();
  ASSERT_EQ(engine->max_sequence_tokens(), 64);
  EXPECT_FALSE(engine->submit(request(1, 60, 5)).ok());
  EXPECT_EQ(run_one(*engine, request(2, 59, 5)).tokens.size(), 59U);
}

TEST_P(EngineConformance, RefusesASecondSequenceOfTheSameId) {
  auto engine = make();
  ASSERT_TRUE(engine->submit(request(1)).ok());
  const Status again = engine->submit(request(1));
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code(), Code::kExists);
  EXPECT_EQ(finish_all(*engine).size(), 1U);
}

TEST_P(EngineConformance, FillsTheWaitingQueueAndRefusesOneMore) {
  EngineOptions options;
  options.max_waiting = 3;
  auto engine = make(options);
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_TRUE(engine->submit(request(id)).ok());
  const Status fourth = engine->submit(request(4));
  ASSERT_FALSE(fourth.ok());
  EXPECT_EQ(fourth.error().code(), Code::kExhausted);
  EXPECT_EQ(engine->state().num_waiting, 3);
  EXPECT_EQ(finish_all(*engine).size(), 3U);
}

TEST_P(EngineConformance, RefusesASequenceThatItsBlocksCanNeverHold) {
  EngineOptions options;
  options.kv_blocks = 2;
  options.block_size = 8;
  auto engine = make(options);
  EXPECT_FALSE(engine->submit(request(1, 12, 5)).ok());
  EXPECT_EQ(run_one(*engine, request(2, 11, 5)).tokens.size(), 11U);
}

TEST_P(EngineConformance, EndsEverySequenceOnce) {
  auto engine = make();
  for (uint64_t id = 1; id <= 20; ++id)
    ASSERT_TRUE(engine->submit(request(id, static_cast<int32_t>(1 + id % 7))).ok());
  const auto ends = finish_all(*engine);
  ASSERT_EQ(ends.size(), 20U);
  for (const auto& [id, end] : ends) {
    EXPECT_EQ(end.reason, FinishReason::kLength);
    EXPECT_EQ(end.tokens.size(), 1 + id % 7);
    expect_whole(end);
  }
  expect_idle(*engine);
}

TEST_P(EngineConformance, MoreSequencesThanItCanRunFinishAllTheSame) {
  EngineOptions options;
  options.max_running = 2;
  options.kv_blocks = 6;
  options.block_size = 8;
  options.max_batched_tokens = 7;
  auto engine = make(options);
  for (uint64_t id = 1; id <= 9; ++id) ASSERT_TRUE(engine->submit(request(id)).ok());
  EXPECT_EQ(finish_all(*engine).size(), 9U);
  expect_idle(*engine);
}

TEST_P(EngineConformance, HoldsAPrefilledSequenceUntilItIsTakenOver) {
  auto engine = make();
  ASSERT_TRUE(engine->submit(request(1)).ok());
  for (int i = 0; i < kStepsMax && engine->has_work(); ++i) ASSERT_TRUE(engine->step().ok());
  EXPECT_THAT(engine->take_finished(), ::testing::IsEmpty());
  EXPECT_EQ(engine->state().num_held, 1);
  EXPECT_LT(engine->state().num_free_blocks, engine->state().num_blocks);
  ASSERT_EQ(engine->take_prefilled().size(), 1U);
  ASSERT_TRUE(engine->take_over(SequenceId(1)).ok());
  EXPECT_EQ(engine->state().num_held, 0);
  EXPECT_EQ(finish_all(*engine).size(), 1U);
}

TEST_P(EngineConformance, TakesOverOnlyWhatIsPrefilled) {
  auto engine = make();
  const auto refused = [&](uint64_t id) {
    const Status status = engine->take_over(SequenceId(id));
    return !status.ok() && status.error().code() == Code::kNotFound;
  };
  EXPECT_TRUE(refused(1));
  ASSERT_TRUE(engine->submit(request(1)).ok());
  for (int i = 0; i < kStepsMax && engine->has_work(); ++i) ASSERT_TRUE(engine->step().ok());
  ASSERT_TRUE(engine->take_over(SequenceId(1)).ok());
  EXPECT_TRUE(refused(1));
}

TEST_P(EngineConformance, AOneTokenSequenceEndsWhenItIsTakenOver) {
  auto engine = make();
  ASSERT_TRUE(engine->submit(request(1, 1)).ok());
  for (int i = 0; i < kStepsMax && engine->has_work(); ++i) ASSERT_TRUE(engine->step().ok());
  EXPECT_THAT(engine->take_finished(), ::testing::IsEmpty());
  ASSERT_EQ(engine->take_prefilled().size(), 1U);
  ASSERT_TRUE(engine->take_over(SequenceId(1)).ok());
  auto ends = finish_all(*engine);
  collect(*engine, ends);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[1].tokens.size(), 1U);
  expect_idle(*engine);
}

TEST_P(EngineConformance, PrefillsInTheOrderOfSubmission) {
  auto engine = make();
  for (uint64_t id = 9; id >= 1; --id) ASSERT_TRUE(engine->submit(request(id)).ok());
  std::vector<uint64_t> order;
  for (int i = 0; i < kStepsMax && order.size() < 9; ++i) {
    ASSERT_TRUE(engine->step().ok());
    for (const auto& event : engine->take_prefilled()) order.push_back(event.id.value);
  }
  EXPECT_THAT(order, ::testing::ElementsAre(9, 8, 7, 6, 5, 4, 3, 2, 1));
}

TEST_P(EngineConformance, AbortOfAnUnknownSequenceIsIgnored) {
  auto engine = make();
  engine->abort(SequenceId(77));
  EXPECT_THAT(engine->take_finished(), ::testing::IsEmpty());
}

TEST_P(EngineConformance, AbortOfAWaitingSequenceFreesEverything) {
  auto engine = make();
  ASSERT_TRUE(engine->submit(request(1)).ok());
  engine->abort(SequenceId(1));
  engine->abort(SequenceId(1));
  const auto ends = engine->take_finished();
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].reason, FinishReason::kCancelled);
  expect_idle(*engine);
}

TEST_P(EngineConformance, AbortOfAHeldSequenceFreesEverything) {
  auto engine = make();
  ASSERT_TRUE(engine->submit(request(1)).ok());
  for (int i = 0; i < kStepsMax && engine->has_work(); ++i) ASSERT_TRUE(engine->step().ok());
  engine->abort(SequenceId(1));
  const auto ends = engine->take_finished();
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].reason, FinishReason::kCancelled);
  expect_whole(ends[0]);
  const Status late = engine->take_over(SequenceId(1));
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code(), Code::kNotFound);
  expect_idle(*engine);
}

TEST_P(EngineConformance, AbortOfARunningSequenceFreesEverythingAndLeavesItsMatesAlone) {
  auto engine = make();
  const auto alone = run_one(*engine, request(2, 20));
  ASSERT_TRUE(engine->submit(request(1, 20)).ok());
  ASSERT_TRUE(engine->submit(request(2, 20)).ok());
  Ends ends;
  while (engine->state().num_running < 2 && engine->has_work()) {
    ASSERT_TRUE(engine->step().ok());
    collect(*engine, ends);
  }
  ASSERT_TRUE(engine->step().ok());
  engine->abort(SequenceId(1));
  while (engine->has_work()) {
    ASSERT_TRUE(engine->step().ok());
    collect(*engine, ends);
  }
  collect(*engine, ends);
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends[1].reason, FinishReason::kCancelled);
  expect_whole(ends[1]);
  EXPECT_LT(ends[1].tokens.size(), 20U);
  EXPECT_EQ(ends[2].tokens, alone.tokens);
  expect_idle(*engine);
}

TEST_P(EngineConformance, AnAbortedIdMayBeUsedAgain) {
  auto engine = make();
  ASSERT_TRUE(engine->submit(request(1)).ok());
  engine->abort(SequenceId(1));
  EXPECT_EQ(engine->take_finished().size(), 1U);
  EXPECT_EQ(run_one(*engine, request(1)).reason, FinishReason::kLength);
}

TEST_P(EngineConformance, BatchMatesAndOrderNeverChangeTokens) {
  auto engine = make();
  std::map<uint64_t, std::vector<int32_t>> alone;
  for (uint64_t id = 1; id <= 6; ++id) alone[id] = run_one(*engine, request(id, 12)).tokens;
  for (uint64_t id = 6; id >= 1; --id) ASSERT_TRUE(engine->submit(request(id, 12)).ok());
  for (const auto& [id, end] : finish_all(*engine)) EXPECT_EQ(end.tokens, alone[id]) << id;
}

TEST_P(EngineConformance, ChunkedPrefillNeverChangesTokens) {
  EngineOptions chunked;
  chunked.max_batched_tokens = 3;
  auto whole = make(), parts = make(chunked);
  EXPECT_EQ(run_one(*whole, request(1, 12, 17)).tokens, run_one(*parts, request(1, 12, 17)).tokens);
}

TEST_P(EngineConformance, TheSeedDecidesTheTokens) {
  auto engine = make();
  auto first = request(1, 24), other = request(2, 24);
  other.prompt_tokens = first.prompt_tokens;
  const auto tokens = run_one(*engine, first).tokens;
  EXPECT_EQ(run_one(*engine, first).tokens, tokens);
  EXPECT_NE(run_one(*engine, other).tokens, tokens);
}

TEST_P(EngineConformance, AStopIdEndsTheSequenceAndIsItsLastToken) {
  auto engine = make();
  auto one = request(1, 24);
  const auto tokens = run_one(*engine, one).tokens;
  one.sampling.ignore_eos = false;
  one.sampling.stop_ids = {tokens[5]};
  const auto end = run_one(*engine, one);
  EXPECT_EQ(end.reason, FinishReason::kStop);
  ASSERT_LE(end.tokens.size(), 6U);
  EXPECT_TRUE(std::equal(end.tokens.begin(), end.tokens.end(), tokens.begin()));
  EXPECT_EQ(end.tokens.back(), tokens[5]);
}

TEST_P(EngineConformance, WithIgnoreEosAStopIdEndsTheSequenceAllTheSame) {
  auto engine = make();
  auto one = request(1, 12);
  const auto tokens = run_one(*engine, one).tokens;
  ASSERT_EQ(tokens.size(), 12U);
  one.sampling.stop_ids = {tokens[2]};
  const auto end = run_one(*engine, one);
  EXPECT_EQ(end.reason, FinishReason::kStop);
  EXPECT_EQ(end.tokens.back(), tokens[2]);
  EXPECT_LE(end.tokens.size(), 3U);
}

TEST_P(EngineConformance, TellsFromWhichTokensEachWasDrawnWhenSomeWereLeftOut) {
  auto engine = make();
  auto one = request(1, 24);
  EXPECT_TRUE(run_one(*engine, one).kept.empty()) << "all tokens were kept";
  one.sampling.top_k = 3;
  for (const double min_p : {0.0, 0.01}) {
    one.sampling.min_p = min_p;
    const auto end = run_one(*engine, one);
    const Status checked = check_kept(end.kept.bytes(), end.tokens, GetParam().vocab_size);
    EXPECT_TRUE(checked.ok()) << checked.error().text();
    KeptReader reader(end.kept.bytes());
    std::vector<int32_t> ids;
    while (!reader.is_at_end()) {
      reader.next()->list(ids);
      EXPECT_GE(ids.size(), 1U);
      EXPECT_LE(ids.size(), 3U);
    }
  }
  one.sampling = {.temperature = 0, .top_k = 3, .max_tokens = 4, .ignore_eos = true};
  EXPECT_TRUE(run_one(*engine, one).kept.empty()) << "greedy log-probabilities leave nothing out";
}

TEST_P(EngineConformance, CountsWhatItDid) {
  auto engine = make();
  run_one(*engine, request(1, 8, 5));
  EXPECT_EQ(engine->state().num_prefill_tokens, 5U);
  EXPECT_GE(engine->state().num_decode_tokens, 7U);
  EXPECT_LE(engine->state().num_decode_tokens, 8U);
}

TEST_P(EngineConformance, InitialWeightsHaveNoVersionAndVersionZeroIsApplied) {
  auto engine = make();
  EXPECT_TRUE(engine->state().versions.empty());
  const auto applied = engine->apply(*GetParam().snapshot(PolicyVersion(0)));
  ASSERT_TRUE(applied.ok()) << applied.error().text();
  EXPECT_GT(*applied, 0U) << "the tensors of version 0 are put in place like any others";
  EXPECT_EQ(engine->state().versions.of({}), PolicyVersion(0));
  EXPECT_EQ(run_one(*engine, request(1)).spans.at(0).version, PolicyVersion(0));
}

TEST_P(EngineConformance, MarksTheTokensOfEachVersion) {
  auto engine = make();
  ASSERT_TRUE(engine->apply(*GetParam().snapshot(PolicyVersion(0))).ok());
  EXPECT_EQ(engine->state().versions.of({}), PolicyVersion(0));
  ASSERT_TRUE(engine->submit(request(1, 12)).ok());
  Ends ends;
  while (engine->state().num_running == 0 && engine->has_work()) {
    ASSERT_TRUE(engine->step().ok());
    collect(*engine, ends);
  }
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->step().ok());
  const auto applied = engine->apply(*GetParam().snapshot(PolicyVersion(1)));
  ASSERT_TRUE(applied.ok()) << applied.error().text();
  EXPECT_EQ(engine->state().versions.of({}), PolicyVersion(1));
  while (engine->has_work()) ASSERT_TRUE(engine->step().ok());
  collect(*engine, ends);
  expect_whole(ends[1]);
  ASSERT_EQ(ends[1].spans.size(), 2U);
  EXPECT_EQ(ends[1].spans[0].version, PolicyVersion(0));
  EXPECT_EQ(ends[1].spans[1].version, PolicyVersion(1));
}

TEST_P(EngineConformance, ApplyingTheSameVersionAgainDoesNothing) {
  auto engine = make();
  const auto snapshot = GetParam().snapshot(PolicyVersion(3));
  ASSERT_TRUE(engine->apply(*snapshot).ok());
  const auto tokens = run_one(*engine, request(1)).tokens;
  ASSERT_TRUE(engine->apply(*snapshot).ok());
  EXPECT_EQ(engine->state().versions.of({}), PolicyVersion(3));
  EXPECT_EQ(run_one(*engine, request(1)).tokens, tokens);
}

TEST_P(EngineConformance, EqualVersionsOfTwoTenantsAreNotTakenForEachOther) {
  auto engine = make();
  const WeightsKey mine{TenantSlot(0)}, other{TenantSlot(1)};
  ASSERT_GT(*apply(*engine, mine, 3), 0U);
  auto of_other = request(2, 12);
  of_other.tenant = other.tenant;
  const auto applied = apply(*engine, other, 3);
  if (GetParam().tenants_max == 1) {
    ASSERT_FALSE(applied.ok());
    EXPECT_THAT(applied.error().text(), ::testing::AllOf(::testing::HasSubstr("tenant 0"),
                                                         ::testing::HasSubstr("tenant 1")));
    EXPECT_FALSE(engine->submit(of_other).ok()) << "it would be answered with another's weights";
    EXPECT_THAT(engine->state().versions.list(),
                ::testing::ElementsAre(KeyedVersion{mine, PolicyVersion(3)}));
    return;
  }
  ASSERT_TRUE(applied.ok()) << applied.error().text();
  EXPECT_GT(*applied, 0U) << "it had that version of another tenant";
  ASSERT_TRUE(engine->submit(request(1, 12)).ok());
  ASSERT_TRUE(engine->submit(of_other).ok());
  Ends ends;
  while (engine->state().num_running < 2 && engine->has_work()) {
    ASSERT_TRUE(engine->step().ok());
    collect(*engine, ends);
  }
  ASSERT_GT(*apply(*engine, other, 4), 0U);
  ends.merge(finish_all(*engine));
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends[1].spans, (std::vector<VersionSpan>{{PolicyVersion(3), 0, 12}}));
  ASSERT_EQ(ends[2].spans.size(), 2U);
  EXPECT_EQ(ends[2].spans[0].version, PolicyVersion(3));
  EXPECT_EQ(ends[2].spans[1].version, PolicyVersion(4));
  EXPECT_EQ(engine->state().versions.of(mine), PolicyVersion(3));
  EXPECT_EQ(engine->state().versions.of(other), PolicyVersion(4));
}

TEST_P(EngineConformance, HoldsTheWeightsOfAsManyTenantsAsItMayAndOfNoneMore) {
  auto engine = make();
  const size_t tenants_max = GetParam().tenants_max;
  const auto key = [](size_t tenant) {
    return WeightsKey{TenantSlot(static_cast<uint32_t>(tenant))};
  };
  for (size_t tenant = 0; tenant < tenants_max; ++tenant)
    ASSERT_GT(*apply(*engine, key(tenant), 1), 0U) << tenant;
  const auto before = run_one(*engine, request(1, 20));
  EXPECT_FALSE(apply(*engine, key(tenants_max), 1).ok());
  EXPECT_EQ(engine->state().versions.list().size(), tenants_max);
  EXPECT_TRUE(engine->state().versions.of(key(tenants_max)).is_none());
  const auto after = run_one(*engine, request(1, 20));
  EXPECT_EQ(after.tokens, before.tokens);
  EXPECT_EQ(after.logprobs, before.logprobs);
  EXPECT_EQ(after.spans, before.spans);
  ASSERT_GT(*apply(*engine, key(tenants_max - 1), 2), 0U) << "its own keys continue";
}

TEST_P(EngineConformance, MisshapenWeightsAreNamedAndTheOldOnesStay) {
  auto engine = make();
  const auto before = run_one(*engine, request(1, 20));
  WeightSnapshot bad = *GetParam().snapshot(PolicyVersion(1));
  ASSERT_FALSE(bad.tensors.empty());
  auto& last = bad.tensors.back();
  last.shape.push_back(2);
  const auto applied = engine->apply(bad);
  ASSERT_FALSE(applied.ok());
  EXPECT_THAT(applied.error().text(), ::testing::HasSubstr(last.name));
  EXPECT_TRUE(engine->state().versions.empty());
  const auto after = run_one(*engine, request(1, 20));
  EXPECT_EQ(after.tokens, before.tokens);
  EXPECT_EQ(after.logprobs, before.logprobs);
}

TEST_P(EngineConformance, MissingWeightsAreNamedAndTheOldOnesStay) {
  auto engine = make();
  const auto before = run_one(*engine, request(1, 20));
  WeightSnapshot bad = *GetParam().snapshot(PolicyVersion(1));
  ASSERT_FALSE(bad.tensors.empty());
  const auto name = bad.tensors.back().name;
  bad.tensors.pop_back();
  const auto applied = engine->apply(bad);
  ASSERT_FALSE(applied.ok());
  EXPECT_THAT(applied.error().text(), ::testing::HasSubstr(name));
  EXPECT_EQ(run_one(*engine, request(1, 20)).logprobs, before.logprobs);
}

}  // namespace primerl
