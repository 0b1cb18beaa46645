#include "kernels/engine/stop_rule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "graph/base/random.h"

namespace primerl {
namespace {

TEST(StopTexts, NoneFindNothing) {
  StopTexts none;
  EXPECT_TRUE(none.is_empty());
  EXPECT_FALSE(none.take("anything"));
}

TEST(StopTexts, ATextIsFoundAcrossPiecesAndOnlyWhenItIsWhole) {
  const std::vector<std::string> texts{"</answer>"};
  StopTexts stop(texts);
  EXPECT_FALSE(stop.take("<answer>7<"));
  EXPECT_FALSE(stop.take("/ans"));
  EXPECT_FALSE(stop.take(""));
  EXPECT_FALSE(stop.take("wer"));
  EXPECT_TRUE(stop.take("> and more"));
  EXPECT_FALSE(stop.take("</answer"));
  EXPECT_TRUE(stop.take(">"));
}

TEST(StopTexts, ATextMayBeginInsideAMismatchedOne) {
  const std::vector<std::string> texts{"aab"};
  StopTexts stop(texts);
  EXPECT_FALSE(stop.take("aa"));
  EXPECT_FALSE(stop.take("a"));
  EXPECT_TRUE(stop.take("b"));
}

TEST(StopTexts, BytesOfHalfACharacterCount) {
  const std::vector<std::string> texts{"\xE2\x82\xAC"};  // the euro sign
  StopTexts stop(texts);
  EXPECT_FALSE(stop.take("\xE2\x82"));
  EXPECT_TRUE(stop.take("\xAC"));
}

/// Against the plain search, over texts of two letters, where borders are everywhere.
TEST(StopTexts, FindWhatAPlainSearchFindsHoweverTheTextIsCut) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed);
    const auto word = [&](uint64_t size) {
      std::string made;
      while (made.size() < size) made += static_cast<char>('a' + random.below(2));
      return made;
    };
    std::vector<std::string> texts;
    for (uint64_t i = 0; i <= random.below(4); ++i) texts.push_back(word(1 + random.below(7)));
    StopTexts stop(texts);
    std::string all;
    for (int i = 0; i < 40; ++i) {
      const std::string piece = word(random.below(5));
      const size_t before = all.size();
      all += piece;
      const bool expected = std::any_of(texts.begin(), texts.end(), [&](const auto& text) {
        const size_t from = before + 1 >= text.size() ? before + 1 - text.size() : 0;
        return all.find(text, from) != std::string::npos && !piece.empty();
      });
      ASSERT_EQ(stop.take(piece), expected) << all;
    }
  }
}

}  // namespace
}  // namespace primerl
