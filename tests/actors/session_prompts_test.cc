#include "actors/prefill/session_prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/random.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using Tokens = std::vector<int32_t>;

constexpr size_t kMany = 100;
constexpr SessionName kOne{TenantSlot(0), 1}, kTwo{TenantSlot(0), 2};

TokenPrefix prefix_of(const Tokens& tokens) { return TokenPrefix().extended(tokens); }

TEST(SessionPrompts, ATurnContinuesTheLastPromptOfItsSession) {
  SessionPrompts prompts;
  ASSERT_NE(prompts.take(kOne, {}, Tokens{5, 6}, 100, kMany), nullptr);
  const auto* whole = prompts.take(kOne, prefix_of({5, 6}), Tokens{7, 8}, 100, kMany);
  ASSERT_NE(whole, nullptr);
  EXPECT_THAT(*whole, ElementsAre(5, 6, 7, 8));
  whole = prompts.take(kOne, prefix_of({5, 6, 7, 8}), Tokens{9}, 100, kMany);
  ASSERT_NE(whole, nullptr);
  EXPECT_THAT(*whole, ElementsAre(5, 6, 7, 8, 9));
  EXPECT_EQ(prompts.num_tokens(), 5);
}

TEST(SessionPrompts, AnotherPrefixIsUnknownAndChangesNothing) {
  SessionPrompts prompts;
  prompts.take(kOne, {}, Tokens{5, 6}, 100, kMany);
  EXPECT_EQ(prompts.take(kOne, prefix_of({5, 7}), Tokens{8}, 100, kMany), nullptr)
      << "another token";
  EXPECT_EQ(prompts.take(kOne, prefix_of({5}), Tokens{8}, 100, kMany), nullptr) << "too short";
  EXPECT_EQ(prompts.take(kOne, prefix_of({5, 6, 7}), Tokens{8}, 100, kMany), nullptr) << "too long";
  EXPECT_EQ(prompts.take(kOne, {-2, 0}, Tokens{8}, 100, kMany), nullptr);
  EXPECT_EQ(prompts.take(kTwo, prefix_of({5, 6}), Tokens{8}, 100, kMany), nullptr)
      << "another session";
  EXPECT_EQ(prompts.take({TenantSlot(1), 1}, prefix_of({5, 6}), Tokens{8}, 100, kMany), nullptr);
  EXPECT_EQ(prompts.num_tokens(), 2);
  EXPECT_EQ(prompts.num_sessions(), 1U);
  EXPECT_NE(prompts.take(kOne, prefix_of({5, 6}), Tokens{8}, 100, kMany), nullptr);
}

TEST(SessionPrompts, AWholePromptReplacesWhatWasThere) {
  SessionPrompts prompts;
  prompts.take(kOne, {}, Tokens{5, 6}, 100, kMany);
  const auto* whole = prompts.take(kOne, {}, Tokens{9}, 100, kMany);
  ASSERT_NE(whole, nullptr);
  EXPECT_THAT(*whole, ElementsAre(9));
  EXPECT_EQ(prompts.num_tokens(), 1);
}

TEST(SessionPrompts, TheSessionUsedLeastRecentlyIsForgottenAtOnePastTheLimit) {
  SessionPrompts prompts;
  prompts.take(kOne, {}, Tokens{1, 2}, 5, kMany);
  prompts.take(kTwo, {}, Tokens{3, 4}, 5, kMany);
  // At the limit both sessions are remembered.
  ASSERT_NE(prompts.take(kOne, prefix_of({1, 2}), Tokens{5}, 5, kMany), nullptr);
  EXPECT_EQ(prompts.num_sessions(), 2U);
  ASSERT_NE(prompts.take(kOne, prefix_of({1, 2, 5}), Tokens{6}, 5, kMany), nullptr);
  EXPECT_EQ(prompts.num_sessions(), 1U);
  EXPECT_EQ(prompts.take(kTwo, prefix_of({3, 4}), Tokens{7}, 5, kMany), nullptr);
  // A prompt that is longer than the limit is kept alone.
  const auto* whole = prompts.take(kTwo, {}, Tokens{1, 2, 3, 4, 5, 6, 7}, 5, kMany);
  ASSERT_NE(whole, nullptr);
  EXPECT_EQ(whole->size(), 7U);
  EXPECT_EQ(prompts.num_sessions(), 1U);
  EXPECT_EQ(prompts.num_tokens(), 7);
}

TEST(SessionPrompts, OneSessionMoreThanTheLimitPushesTheOldestOut) {
  SessionPrompts prompts;
  prompts.take(kOne, {}, Tokens{1}, 100, 2);
  prompts.take(kTwo, {}, Tokens{2}, 100, 2);
  EXPECT_EQ(prompts.num_sessions(), 2U);
  ASSERT_NE(prompts.take(kOne, prefix_of({1}), Tokens{5}, 100, 2), nullptr);
  prompts.take({TenantSlot(0), 3}, {}, Tokens{3}, 100, 2);
  EXPECT_EQ(prompts.num_sessions(), 2U);
  EXPECT_EQ(prompts.take(kTwo, prefix_of({2}), Tokens{6}, 100, 2), nullptr);
  EXPECT_NE(prompts.take(kOne, prefix_of({1, 5}), Tokens{6}, 100, 2), nullptr);
}

// In any order of calls, the returned prompt equals the sender's own prompt, token by token.
TEST(SessionPrompts, NeverReturnAPromptThatWasNotSent) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed);
    SessionPrompts prompts;
    std::map<SessionName, std::pair<Tokens, TokenPrefix>> asked;  // the last prompt that the sender
                                                                  // sent
    int64_t num_taken = 0, num_unknown = 0;
    for (int i = 0; i < 400; ++i) {
      const SessionName name{TenantSlot(static_cast<uint32_t>(random.below(2))), random.below(6)};
      auto& [prompt, known] = asked[name];
      // Sometimes the sender has an older prefix, or none at all.
      if (random.below(8) == 0) known = {};
      const bool is_wrong = random.below(8) == 0 && known.num_tokens > 0;
      const TokenPrefix said = is_wrong ? TokenPrefix{known.num_tokens, known.digest + 1} : known;
      for (uint64_t more = 1 + random.below(5); more > 0; --more)
        prompt.push_back(static_cast<int32_t>(random.below(3)));
      const std::span<const int32_t> rest(prompt.begin() + known.num_tokens, prompt.end());
      const auto* whole = prompts.take(name, said, rest, 40, kMany);
      if (whole == nullptr) {
        ++num_unknown;
        known = {};
        continue;
      }
      ++num_taken;
      ASSERT_EQ(*whole, prompt);
      known = known.extended(rest);
      ASSERT_TRUE(prompts.num_tokens() <= 40 || prompts.num_sessions() == 1);
    }
    EXPECT_GT(num_taken, 100);
    EXPECT_GT(num_unknown, 10);
  }
}

}  // namespace
}  // namespace primerl
