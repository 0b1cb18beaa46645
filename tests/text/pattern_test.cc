/// Regular expressions and classes of characters match what they match in the `tokenizers` package
/// (tests/text/make_patterns.py).
#include "kernels/text/pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <sstream>

#include "kernels/text/oniguruma.h"
#include "kernels/text/unicode.h"
#include "tests/base/made_by_python.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Spans = std::vector<std::pair<int64_t, int64_t>>;

std::string fault(std::string_view pattern) {
  const auto made = Pattern::regex(pattern);
  return made.ok() ? "no fault" : made.error().text();
}

TEST(Pattern, NamesTheByteOfSyntaxThatIsNotKnown) {
  for (const auto& [pattern, words] : std::vector<std::pair<const char*, const char*>>{
           {"ab(?~c)", "at byte 4: this kind of group is not supported"},
           {"a\\Kb", "at byte 1: '\\K' is not supported"},
           {"a\\X", "at byte 1: '\\X' is not supported"},
           {"a\\g<1>", "at byte 1: '\\g' is not supported"},
           {"\\p{Klingon}", "at byte 2: property 'Klingon' is not known"},
           {"[[:nice:]]", "at byte 1: class 'nice' is not known"},
           {"(?x: a)", "at byte 2: this kind of group is not supported"},
           {"(*FAIL)", "at byte 0: '(*' is not supported"},
           {"ab)", "at byte 2: ')' closes no group"},
           {"a(b", "at byte 1: the group has no ')'"},
           {"a[b", "at byte 1: the set has no ']'"},
           {"*a", "at byte 0: nothing to repeat"},
           {"a{3,2}", "at byte 1: the bounds are exchanged"},
           {"[z-a]", "at byte 1: the range is empty"},
           {"[a-\\d]", "at byte 1: a range ends with a class"},
           {"\\x{110000}", "at byte 0: beyond the characters of Unicode"},
           {"(?i)ss", "at byte 5: 'ss' without case is not supported"},
           {"(?i:\\p{Lu})", "at byte 6: property 'Lu' without case is not supported"},
           {"a\\", "at byte 1: the pattern ends after '\\'"}})
    EXPECT_THAT(fault(pattern), HasSubstr(words)) << pattern;
}

TEST(Pattern, BoundsDepthAndRepetitions) {
  const auto groups = [](int depth) {
    return fault(std::string(static_cast<size_t>(depth), '(') + "a" +
                 std::string(static_cast<size_t>(depth), ')'));
  };
  EXPECT_EQ(groups(kPatternDepthMax - 1), "no fault");
  EXPECT_THAT(groups(kPatternDepthMax), HasSubstr("groups are more than 64 deep"));
  EXPECT_EQ(fault("a{65535}"), "no fault");
  EXPECT_THAT(fault("a{65536}"), HasSubstr("more than 65535 repetitions"));
}

class PatternGolden : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto made = testing::made_by_python(PRIMERL_PYTHON, "tokenizers",
                                              "tests/text/make_patterns.py", "text_patterns");
    if (!made) GTEST_SKIP() << "no package 'tokenizers' in " PRIMERL_PYTHON;
    std::stringstream text;
    text << std::ifstream(*made / "patterns.json").rdbuf();
    golden_ = *parse_json(text.str(), "patterns.json");
    for (const Json& range : golden_.find("characters")->as_array())
      for (int64_t c = range.as_array()[0].as_int(); c <= range.as_array()[1].as_int(); ++c) {
        is_given_[static_cast<size_t>(c)] = true;
        append_utf8(all_, static_cast<uint32_t>(c));
        starts_.resize(all_.size(), static_cast<uint32_t>(c));
      }
  }

  /// The non-empty matches in `text`, in characters; none if it needs too many steps.
  std::optional<Spans> matches(const Pattern& pattern, const std::string& text) {
    std::vector<int64_t> characters(text.size() + 1, 0);
    int64_t count = 0;
    for (size_t at = 0; at < text.size(); ++count) {
      characters[at] = count;
      at += code_point_at(text, at).size;
    }
    characters[text.size()] = count;
    std::vector<Pattern::Match> found;
    const Status status = pattern.find_all(text, scratch_, found);
    if (!status.ok()) {
      EXPECT_EQ(status.error().code(), Code::kExhausted) << status.error().text();
      return std::nullopt;
    }
    Spans spans;
    for (const auto& match : found)
      if (match.begin < match.end)
        spans.emplace_back(characters[match.begin], characters[match.end]);
    return spans;
  }

  /// The first characters in which the two differ, as text; empty: none.
  std::string difference(const std::vector<bool>& seen, const std::vector<bool>& expected) {
    std::string text;
    for (uint32_t c = 0; c < seen.size() && text.size() < 100; ++c)
      if (seen[c] != expected[c]) text += fmt::format("{}{:X} ", seen[c] ? '+' : '-', c);
    return text;
  }

  std::vector<bool> set_of(const Json& ranges, size_t first = 0, size_t step = 1) {
    std::vector<bool> set(0x110000);
    for (size_t i = first; i < ranges.as_array().size(); i += step) {
      const auto& range = ranges.as_array()[i].as_array();
      // A run may go over the gaps between the characters.
      for (int64_t c = range[0].as_int(); c <= range[1].as_int(); ++c)
        set[static_cast<size_t>(c)] = is_given_[static_cast<size_t>(c)];
    }
    return set;
  }

  std::vector<bool> set_of(bool (*is_member)(uint32_t)) {
    std::vector<bool> set(0x110000);
    for (const uint32_t c : starts_) set[c] = is_member(c);
    return set;
  }

  Json golden_;
  std::string all_;               // every character
  std::vector<uint32_t> starts_;  // by byte of it
  std::vector<bool> is_given_ = std::vector<bool>(0x110000);
  PatternScratch scratch_;
};

TEST_F(PatternGolden, MatchesWhatItMatchesInOniguruma) {
  const auto& texts = golden_.find("texts")->as_array();
  int num_equal = 0, num_refused = 0, num_endless = 0;
  for (const Json& one : golden_.find("patterns")->as_array()) {
    const std::string& text = one.find("pattern")->as_string();
    const auto pattern = Pattern::regex(text);
    if (!pattern.ok()) {
      EXPECT_THAT(pattern.error().text(), HasSubstr("at byte ")) << text;
      ++num_refused;
      continue;
    }
    for (size_t i = 0; i < texts.size(); ++i) {
      Spans expected;
      for (const Json& span : one.find("matches")->as_array()[i].as_array())
        expected.emplace_back(span.as_array()[0].as_int(), span.as_array()[1].as_int());
      const auto seen = matches(*pattern, texts[i].as_string());
      num_endless += seen ? 0 : 1;
      EXPECT_EQ(seen.value_or(expected), expected) << text << " on text " << i;
    }
    ++num_equal;
  }
  EXPECT_GE(num_equal, 300);
  EXPECT_LE(num_refused, 20);
  EXPECT_LE(num_endless, 5) << "Oniguruma finds a match in time, where PCRE2 reaches its limit";
}

TEST_F(PatternGolden, ClassesHaveTheSameCharacters) {
  for (const Json& one : golden_.find("classes")->as_array()) {
    const std::string& name = one.find("class")->as_string();
    const auto pattern = Pattern::regex(name + "+");
    ASSERT_TRUE(pattern.ok()) << pattern.error().text();
    std::vector<Pattern::Match> found;
    ASSERT_TRUE(pattern->find_all(all_, scratch_, found).ok());
    std::vector<bool> seen(0x110000);
    for (const auto& match : found)
      for (size_t at = match.begin; at < match.end; ++at) seen[starts_[at]] = true;
    auto expected = set_of(*one.find("ranges"));
    // It changed its category after Unicode 14.
    if (name == "\\p{Mn}" || name == "\\p{Mc}") expected[0x1171E] = seen[0x1171E];
    EXPECT_THAT(difference(seen, expected), IsEmpty()) << name;
  }
}

TEST_F(PatternGolden, NumbersMarksAndSpacesAreTheSameCharacters) {
  EXPECT_THAT(difference(set_of(is_number), set_of(*golden_.find("digits"), 1, 2)), IsEmpty());
  EXPECT_THAT(difference(set_of(is_punctuation), set_of(*golden_.find("punctuation"), 1, 2)),
              IsEmpty());
  EXPECT_THAT(difference(set_of([](uint32_t c) { return !is_white_space(c); }),
                         set_of(*golden_.find("not_space"))),
              IsEmpty());
}

}  // namespace
}  // namespace primerl
