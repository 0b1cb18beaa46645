/// The guarantees of every Engine about how sequences end and how many it accepts at once. Included
/// by engine_conformance.h.
#pragma once

#include <algorithm>

#include "tests/conformance/engine_under_test.h"

namespace primerl {

TEST_P(EngineConformance, AStopTextEndsTheSequenceWithTheTokenThatCompletesIt) {
  const auto tokenizer = std::make_shared<SyllableTokenizer>();
  auto engine = make({}, tokenizer);
  const auto free = run_one(*engine, request(1, 24));
  const std::string text = *tokenizer->decode(free.tokens, true);
  for (size_t begin = 0; begin < text.size(); begin += 3) {
    for (const size_t size : {1U, 2U, 4U, 7U, 256U}) {
      auto one = request(1, 24);
      one.sampling.stop = {"never", text.substr(begin, size)};
      const size_t found = text.find(one.sampling.stop[1]) + one.sampling.stop[1].size();
      size_t num_tokens = 0, num_bytes = 0;
      while (num_bytes < found) num_bytes += tokenizer->bytes_of(free.tokens[num_tokens++]).size();
      const auto end = run_one(*engine, one);
      EXPECT_EQ(end.reason, FinishReason::kStop) << one.sampling.stop[1];
      ASSERT_EQ(end.tokens.size(), num_tokens) << one.sampling.stop[1];
      EXPECT_TRUE(std::equal(end.tokens.begin(), end.tokens.end(), free.tokens.begin()));
      expect_whole(end);
    }
  }
  expect_idle(*engine);
}

TEST_P(EngineConformance, AStopTextThatNeverComesEndsNothing) {
  auto engine = make({}, std::make_shared<SyllableTokenizer>());
  auto one = request(1, 24);
  one.sampling.stop = {"never", "abcdef-"};
  EXPECT_EQ(run_one(*engine, one).reason, FinishReason::kLength);
}

TEST_P(EngineConformance, TheFirstTokenMayCompleteAStopText) {
  const auto tokenizer = std::make_shared<SyllableTokenizer>();
  auto engine = make({}, tokenizer);
  auto one = request(1, 8);
  one.sampling.stop = {std::string(tokenizer->bytes_of(run_one(*engine, one).tokens[0]))};
  const auto end = run_one(*engine, one);
  EXPECT_EQ(end.tokens.size(), 1U);
  EXPECT_EQ(end.reason, FinishReason::kStop);
}

TEST_P(EngineConformance, RefusesStopTextsWithoutATokenizerAndThoseBeyondTheirBounds) {
  auto engine = make();
  auto one = request(1);
  one.sampling.stop = {"a"};
  const Status none = engine->submit(one);
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().text(), ::testing::HasSubstr("tokenizer"));
  engine = make({}, std::make_shared<SyllableTokenizer>());
  one.sampling.stop.assign(kStopsMax, std::string(kStopBytesMax, 'a'));
  one.sampling.stop_ids.assign(kStopIdsMax, 3);
  EXPECT_TRUE(engine->submit(one).ok());
  const auto refused = [&](auto change) {
    auto other = request(2);
    change(other.sampling);
    return !engine->submit(other).ok();
  };
  EXPECT_TRUE(refused([](auto& sampling) { sampling.stop.assign(kStopsMax + 1, "a"); }));
  EXPECT_TRUE(refused([](auto& sampling) { sampling.stop = {""}; }));
  EXPECT_TRUE(
      refused([](auto& sampling) { sampling.stop = {std::string(kStopBytesMax + 1, 'a')}; }));
  EXPECT_TRUE(refused([](auto& sampling) { sampling.stop_ids.assign(kStopIdsMax + 1, 3); }));
}

/// A prompt is computed once for a group, and a step samples no more tokens than its limit.
TEST_P(EngineConformance, AGroupMayBeLargerThanAStep) {
  const auto tokens_with = [this](int32_t max_batched_tokens) {
    EngineOptions options;
    options.max_batched_tokens = max_batched_tokens;
    auto engine = make(options);
    for (uint64_t id = 1; id <= 12; ++id) {
      auto one = request(7, 6);
      one.id = SequenceId(id);
      one.seed = id;
      EXPECT_TRUE(engine->submit(one).ok());
    }
    std::vector<std::vector<int32_t>> tokens;
    for (const auto& [id, end] : finish_all(*engine)) tokens.push_back(end.tokens);
    expect_idle(*engine);
    return tokens;
  };
  const auto expected = tokens_with(4096);
  ASSERT_EQ(expected.size(), 12U);
  for (const int32_t budget : {1, 2, 7, 11, 12, 13}) EXPECT_EQ(tokens_with(budget), expected);
}

TEST_P(EngineConformance, SaysHowManyPromptsItStillQueues) {
  EngineOptions options;
  options.max_waiting = 3;
  auto engine = make(options);
  for (uint64_t id = 1; id <= 3; ++id) {
    EXPECT_EQ(engine->state().num_room, 4 - static_cast<int32_t>(id));
    ASSERT_TRUE(engine->submit(request(id)).ok());
  }
  EXPECT_EQ(engine->state().num_room, 0);
  const Status full = engine->submit(request(4));
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code(), Code::kExhausted);
  EXPECT_EQ(finish_all(*engine).size(), 3U);
  EXPECT_EQ(engine->state().num_room, 3);
}

TEST_P(EngineConformance, AnExpiredLeaseEndsAHeldSequenceAndNoOther) {
  auto engine = make();
  ASSERT_TRUE(engine->submit(request(1, 8)).ok());
  engine->expire(SequenceId(1));
  engine->expire(SequenceId(2));
  EXPECT_THAT(engine->take_finished(), ::testing::IsEmpty());
  for (int i = 0; i < kStepsMax && engine->has_work(); ++i) ASSERT_TRUE(engine->step().ok());
  engine->expire(SequenceId(1));
  EXPECT_THAT(engine->take_finished(), ::testing::IsEmpty()) << "its PrefillEvent was not read";
  ASSERT_EQ(engine->take_prefilled().size(), 1U);
  engine->expire(SequenceId(1));
  engine->expire(SequenceId(1));
  const auto ends = engine->take_finished();
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].reason, FinishReason::kRefused);
  EXPECT_EQ(ends[0].detail, kLeaseEnded);
  EXPECT_TRUE(ends[0].was_prefilled);
  expect_idle(*engine);
  ASSERT_TRUE(engine->submit(request(3, 8)).ok());
  while (engine->state().num_running == 0 && engine->has_work()) {
    ASSERT_TRUE(engine->step().ok());
    for (const auto& event : engine->take_prefilled())
      ASSERT_TRUE(engine->take_over(event.id).ok());
  }
  engine->expire(SequenceId(3));
  EXPECT_EQ(finish_all(*engine).size(), 1U);
}

TEST_P(EngineConformance, SaysWhetherThePrefillOfAnEndedSequenceWasTold) {
  auto engine = make();
  ASSERT_TRUE(engine->submit(request(1)).ok());
  for (int i = 0; i < kStepsMax && engine->has_work(); ++i) ASSERT_TRUE(engine->step().ok());
  engine->abort(SequenceId(1));
  EXPECT_THAT(engine->take_prefilled(), ::testing::IsEmpty());
  EXPECT_FALSE(engine->take_finished().at(0).was_prefilled);
  ASSERT_TRUE(engine->submit(request(2)).ok());
  for (int i = 0; i < kStepsMax && engine->has_work(); ++i) ASSERT_TRUE(engine->step().ok());
  ASSERT_EQ(engine->take_prefilled().size(), 1U);
  engine->abort(SequenceId(2));
  EXPECT_TRUE(engine->take_finished().at(0).was_prefilled);
}

}  // namespace primerl
