#include "kernels/engine/stop_rule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "graph/base/random.h"
#include "kernels/text/unicode.h"

namespace primerl {
namespace {

/// A token is the letter with its number.
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

/// Token n is the n-th piece; the last one is the end token, which also has a text.
class PieceTokenizer final : public Tokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces)
      : pieces_(std::move(pieces)), eos_{static_cast<int32_t>(pieces_.size()) - 1} {}
  Result<std::vector<int32_t>> encode_text(std::string_view) const override {
    return error(Code::kUnavailable, "not here");
  }
  Result<std::vector<int32_t>> encode_with_specials(std::string_view text) const override {
    return encode_text(text);
  }
  Result<std::string> decode(const std::vector<int32_t>& ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id < 0) return error(Code::kInvalid, "id {} is no token", id);
      text += bytes_of(id);
    }
    return to_valid_utf8(std::move(text));
  }
  std::string_view bytes_of(int32_t id) const override {
    return id < 0 ? std::string_view() : pieces_[static_cast<size_t>(id)];
  }
  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.size()); }
  const std::vector<int32_t>& eos_ids() const override { return eos_; }
  int32_t pad_id() const override { return -1; }

 private:
  const std::vector<std::string> pieces_;
  const std::vector<int32_t> eos_;
};

/// The text of all pieces in order, except the last, which ends with a stop.
std::string before_stop(std::vector<std::string> pieces, SamplingParams sampling) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < pieces.size(); ++i) tokens.push_back(static_cast<int32_t>(i));
  pieces.push_back("<eos>");
  const auto text = text_before_stop(tokens, sampling, PieceTokenizer(std::move(pieces)));
  return text.ok() ? *text : text.error().text();
}

TEST(TextBeforeStop, EndsBeforeAStopTextWhereverTheTokensCutIt) {
  const SamplingParams sampling{.stop = {"never", "</a>"}};
  EXPECT_EQ(before_stop({"4", "2", "</a>"}, sampling), "42") << "a token of its own";
  EXPECT_EQ(before_stop({"42</a>!"}, sampling), "42") << "inside one token";
  EXPECT_EQ(before_stop({"42<", "/", "", "a> and"}, sampling), "42") << "across tokens";
  EXPECT_EQ(before_stop({"</a>"}, sampling), "") << "nothing else was said";
  EXPECT_EQ(before_stop({"</a", "</a", ">"}, sampling), "</a") << "half of one stays";
}

TEST(TextBeforeStop, EndsBeforeTheStopTextThatIsCompleteFirst) {
  EXPECT_EQ(before_stop({"x", "abcd"}, {.stop = {"d", "bc", "abcd"}}), "xa");
  EXPECT_EQ(before_stop({"x", "abc"}, {.stop = {"c", "abc", "bc"}}), "x")
      << "the longest of those that one byte completes";
  EXPECT_EQ(before_stop({"xa", "b", "c"}, {.stop = {"c", "abc"}}), "x")
      << "for any token boundaries";
}

TEST(TextBeforeStop, EndsBeforeAnEndToken) {
  EXPECT_EQ(before_stop({"ab", "#!"}, {.stop_ids = {1}}), "ab");
  EXPECT_EQ(before_stop({"ab", "x#"}, {.stop_ids = {1}, .stop = {"#"}}), "ab")
      << "a stop text may be inside it";
  EXPECT_EQ(before_stop({"ab", "#"}, {.stop_ids = {1}, .stop = {"b#"}}), "a");
  EXPECT_EQ(before_stop({"ab", "<end>"}, {}), "ab") << "only the engine knows that it is one";
  const PieceTokenizer letters({"a", "."});
  EXPECT_EQ(*text_before_stop({0, 1}, {.stop = {"a."}}, letters), "");
  EXPECT_EQ(*text_before_stop({0, 1}, {.stop = {"."}}, letters), "a");
  EXPECT_EQ(*text_before_stop({0, 1}, {}, letters), "a");
}

TEST(TextBeforeStop, LeavesTextsThatAreCompleteBeforeTheLastToken) {
  EXPECT_EQ(before_stop({"a;", "b", "c;"}, {.stop = {";"}, .min_tokens = 3}), "a;bc");
}

TEST(TextBeforeStop, KeepsTheRulesOfDecoding) {
  EXPECT_EQ(before_stop({"\xE2\x82", "|\xAC"}, {.stop = {"|"}}), "\uFFFD");
  EXPECT_EQ(before_stop({"\xE2", "\x82\xAC|"}, {.stop = {"|"}}), "\u20AC");
  const PieceTokenizer letters({"a", "b"});
  EXPECT_FALSE(text_before_stop({-1}, {}, letters).ok());
  EXPECT_EQ(*text_before_stop({}, {}, letters), "");
}

TEST(StopTexts, WithoutTextsNothingIsFound) {
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

/// Compared with a plain search, over texts of two letters, in which borders are frequent.
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
