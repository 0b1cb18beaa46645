/// The guarantees of every Engine for its KV cache: sharing, eviction and recomputation change no
/// token and no log-probability. Included by engine_conformance.h.
#pragma once

#include <cmath>
#include <functional>
#include <set>
#include <tuple>

#include "tests/conformance/engine_under_test.h"

namespace primerl {

/// All reported token data, by sequence.
using Generated = std::map<uint64_t, std::tuple<std::vector<int32_t>, std::vector<float>,
                                                std::vector<TokenLogprob>, std::vector<float>>>;

inline Generated generated_of(const std::map<uint64_t, FinishEvent>& ends) {
  Generated all;
  for (const auto& [id, end] : ends)
    all[id] = {end.tokens, end.logprobs, end.top_logprobs, end.prompt_logprobs};
  return all;
}

class EngineCache : public EngineConformance {
 protected:
  /// Three groups of four and four single sequences, with prompts that share a prefix; some arrive
  /// while others run. `change` sets each one's options.
  Generated generate(
      EngineOptions options,
      const std::function<void(SequenceRequest&)>& change = [](SequenceRequest&) {}) {
    auto engine = make(options);
    EXPECT_TRUE(apply(*engine, {}, 1).ok());
    Ends ends;
    uint64_t id = 0;
    for (int32_t prompt = 0; prompt < 7; ++prompt) {
      for (int32_t member = 0; member < (prompt < 3 ? 4 : 1); ++member) {
        auto one = request(5, 10 + prompt + member, 6 + 5 * prompt);
        one.id = SequenceId(++id);
        one.seed = id;
        one.salt = "main:1";
        change(one);
        const Status submitted = engine->submit(one);
        EXPECT_TRUE(submitted.ok()) << (submitted.ok() ? "" : submitted.error().text());
      }
      EXPECT_TRUE(!engine->has_work() || engine->step().ok());
      collect(*engine, ends);
    }
    for (auto& [late, end] : finish_all(*engine)) ends.emplace(late, std::move(end));
    expect_idle(*engine);
    EXPECT_EQ(ends.size(), 16U);
    return generated_of(ends);
  }
};

TEST_P(EngineCache, SharingAndRecomputationChangeNoBit) {
  EngineOptions roomy;
  roomy.prefix_cache = false;
  const Generated expected = generate(roomy);
  for (const int32_t block_size : {1, 3, 4, 16, 64})
    for (const bool prefix_cache : {false, true}) {
      SCOPED_TRACE(fmt::format("block_size {}, prefix_cache {}", block_size, prefix_cache));
      EngineOptions options;
      options.block_size = block_size;
      options.prefix_cache = prefix_cache;
      EXPECT_EQ(generate(options), expected);
      // So few blocks that sequences are preempted all the time.
      options.kv_blocks = (64 + block_size - 1) / block_size;
      EXPECT_EQ(generate(options), expected) << "with few blocks";
      options.max_batched_tokens = 5;
      options.max_prefill_tokens = 3;
      EXPECT_EQ(generate(options), expected) << "with few blocks and tokens";
    }
}

/// Penalties use a history that preemption must neither lose nor count twice.
TEST_P(EngineCache, NorDoesItWithPenaltiesBiasesMinTokensAndAllLogprobs) {
  const auto change = [this](SequenceRequest& one) {
    SamplingParams& sampling = one.sampling;
    sampling.min_tokens = 3 + static_cast<int32_t>(one.id.value % 5);
    sampling.stop_ids = {3, 11, 17};
    sampling.ignore_eos = false;
    if (one.id.value % 3 == 0) sampling.top_p = 0.8;
    if (!GetParam().has_logits) return;
    sampling.repetition_penalty = one.id.value % 2 == 0 ? 1.4 : 0.9;
    sampling.frequency_penalty = 0.7;
    sampling.presence_penalty = -0.2;
    sampling.logit_bias = {{5, -1.5}, {11, 1}, {23, 2}};
    sampling.num_top_logprobs = 4;
    sampling.prompt_logprobs = one.id.value % 4 != 1;
  };
  EngineOptions roomy;
  roomy.prefix_cache = false;
  const Generated expected = generate(roomy, change);
  for (const int32_t block_size : {1, 4, 16})
    for (const bool prefix_cache : {false, true}) {
      SCOPED_TRACE(fmt::format("block_size {}, prefix_cache {}", block_size, prefix_cache));
      EngineOptions options;
      options.block_size = block_size;
      options.prefix_cache = prefix_cache;
      EXPECT_EQ(generate(options, change), expected);
      options.kv_blocks = (64 + block_size - 1) / block_size;
      EXPECT_EQ(generate(options, change), expected) << "with few blocks";
      options.max_batched_tokens = 5;
      options.max_prefill_tokens = 3;
      EXPECT_EQ(generate(options, change), expected) << "with few blocks and tokens";
    }
}

TEST_P(EngineCache, ALaterTurnContinuesAsIfItsHistoryWereNew) {
  const auto second_turn = [this](bool prefix_cache) {
    EngineOptions options;
    options.block_size = 4;
    options.prefix_cache = prefix_cache;
    auto engine = make(options);
    auto first = request(1, 12, 9);
    first.salt = "main:1";
    const auto turn = run_one(*engine, first);
    auto next = first;
    next.id = SequenceId(2);
    next.prompt_tokens.insert(next.prompt_tokens.end(), turn.tokens.begin(), turn.tokens.end());
    next.prompt_tokens.push_back(3);
    const auto end = run_one(*engine, next);
    return std::pair(end.tokens, end.logprobs);
  };
  EXPECT_EQ(second_turn(true), second_turn(false));
}

TEST_P(EngineCache, AfterAnUpdateANewSaltGivesWhatAFreshEngineGives) {
  auto one = request(1, 12, 18);
  one.salt = "main:1";
  auto engine = make(), fresh = make();
  ASSERT_TRUE(apply(*engine, {}, 1).ok());
  run_one(*engine, one);
  ASSERT_TRUE(apply(*engine, {}, 2).ok());
  ASSERT_TRUE(apply(*fresh, {}, 2).ok());
  one.salt = "main:2";
  const auto after = run_one(*engine, one), expected = run_one(*fresh, one);
  EXPECT_EQ(after.tokens, expected.tokens);
  EXPECT_EQ(after.logprobs, expected.logprobs);
}

TEST_P(EngineCache, WithoutASaltNothingOfOlderWeightsIsUsed) {
  auto one = request(1, 12, 18);
  auto engine = make(), fresh = make();
  ASSERT_TRUE(apply(*engine, {}, 1).ok());
  run_one(*engine, one);
  ASSERT_TRUE(apply(*engine, {}, 2).ok());
  ASSERT_TRUE(apply(*fresh, {}, 2).ok());
  const auto after = run_one(*engine, one), expected = run_one(*fresh, one);
  EXPECT_EQ(after.logprobs, expected.logprobs);
}

}  // namespace primerl
