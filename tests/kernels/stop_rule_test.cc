#include "kernels/engine/stop_rule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "graph/base/random.h"

namespace primerl {
namespace {

/// A token is the letter of its number.
class LetterTokenizer final : public Tokenizer {
 public:
  LetterTokenizer() {
    for (int32_t id = 0; id < 128; ++id) letters_ += static_cast<char>(id);
  }
  Result<std::vector<int32_t>> encode_text(std::string_view) const override {
    return error(Code::kUnavailable, "not here");
  }
  Result<std::vector<int32_t>> encode_with_specials(std::string_view text) const override {
    return encode_text(text);
  }
  Result<std::string> decode(const std::vector<int32_t>& ids, bool) const override {
    return std::string(ids.begin(), ids.end());
  }
  std::string_view bytes_of(int32_t id) const override {
    return std::string_view(letters_).substr(static_cast<size_t>(id), 1);
  }
  int32_t vocab_size() const override { return 128; }
  const std::vector<int32_t>& eos_ids() const override { return none_; }
  int32_t pad_id() const override { return -1; }

 private:
  std::string letters_;
  std::vector<int32_t> none_;
};

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

TEST(StopRule, ATextEndsNothingBeforeMinTokensAndMayBeginThere) {
  const auto tokenizer = std::make_shared<LetterTokenizer>();
  SamplingParams sampling{.max_tokens = 9, .stop = {"ab"}, .min_tokens = 3};
  const auto ends_at = [&](std::string_view text) {
    auto rule = StopRule::make(sampling, tokenizer);
    EXPECT_TRUE(rule.ok());
    for (size_t i = 0; i < text.size(); ++i)
      if (rule->take(text[i], sampling, {})) return i + 1;
    return size_t{0};
  };
  EXPECT_EQ(ends_at("abcdabcd"), 6U) << "the first one came too early";
  EXPECT_EQ(ends_at("cabcdabc"), 3U) << "with as many tokens as it must have";
  EXPECT_EQ(ends_at("ccabcdabc"), 4U) << "it began before";
  EXPECT_EQ(ends_at("abcccccccccc"), 9U);
  sampling.min_tokens = 0;
  EXPECT_EQ(ends_at("abcd"), 2U);
}

}  // namespace
}  // namespace primerl
