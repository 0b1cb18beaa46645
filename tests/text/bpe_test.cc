#include "kernels/text/bpe.h"

#include <gmock/gmock.h>

#include "tests/text/tokenizer_files.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json object(std::initializer_list<std::pair<const char*, Json>> members) {
  Json made = Json::object();
  for (const auto& [key, value] : members) made.set(key, value);
  return made;
}

Json array(std::initializer_list<Json> items) { return Json(Json::Array(items)); }

Json split(const std::string& regex, const char* behavior = "Isolated", bool invert = false) {
  return object({{"type", "Split"},
                 {"pattern", object({{"Regex", regex}})},
                 {"behavior", behavior},
                 {"invert", invert}});
}

Json byte_level() {
  return object({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
}

Json sequence(std::initializer_list<Json> parts) {
  return object({{"type", "Sequence"}, {"pretokenizers", array(parts)}});
}

/// a, b, c, space, and the merges aa, ab, abc.
Json small_model() {
  return object(
      {{"type", "BPE"},
       {"vocab",
        object({{"a", 0}, {"b", 1}, {"c", 2}, {"Ġ", 3}, {"aa", 4}, {"ab", 5}, {"abc", 6}})},
       {"merges", array({"a a", "a b", "ab c"})}});
}

Json small_file(Json pre = byte_level()) {
  return object({{"model", small_model()},
                 {"pre_tokenizer", std::move(pre)},
                 {"decoder", object({{"type", "ByteLevel"}})}});
}

Result<std::shared_ptr<Tokenizer>> make(const Json& file) {
  ASSIGN_OR_RETURN(TokenizerFile parsed, parse_tokenizer_file(file.dump(), "t.json"));
  return make_tokenizer(std::move(parsed));
}

std::string fault_of(const Json& file) {
  const auto made = make(file);
  return made.ok() ? "no fault" : made.error().text();
}

std::string model_fault(const char* key, Json value) {
  return fault_of(small_file().set("model", small_model().set(key, std::move(value))));
}

TEST(Bpe, NamesThePositionOfUnsupportedKeys) {
  EXPECT_EQ(fault_of(small_file()), "no fault");
  EXPECT_THAT(fault_of(small_file(Json())), HasSubstr("t.json: 'pre_tokenizer' is missing"));
  EXPECT_THAT(fault_of(small_file(split("a"))), HasSubstr("'pre_tokenizer' has no ByteLevel"));
  EXPECT_THAT(fault_of(small_file(sequence({byte_level(), split("a")}))),
              HasSubstr("'pre_tokenizer.pretokenizers[1]' comes after ByteLevel"));
  EXPECT_THAT(
      fault_of(small_file(object({{"type", "Metaspace"}}))),
      HasSubstr(
          "'pre_tokenizer' is 'Metaspace'; only Split, ByteLevel and Sequence are supported"));
  EXPECT_THAT(fault_of(small_file(sequence({split("a", "MergedWithNext"), byte_level()}))),
              HasSubstr("[0].behavior' must be \"Isolated\" or \"Removed\""));
  EXPECT_THAT(fault_of(small_file(sequence({split("a("), byte_level()}))),
              HasSubstr("[0].pattern': the pattern is wrong at 2: missing closing parenthesis"));
  EXPECT_THAT(fault_of(small_file(sequence({split("a\\C"), byte_level()}))),
              HasSubstr("\\C is disabled"));
  EXPECT_THAT(fault_of(small_file().set("decoder", Json())), HasSubstr("'decoder' is 'null'"));
  EXPECT_THAT(fault_of(small_file().set("normalizer", object({{"type", "NFKC"}}))),
              HasSubstr("'normalizer' is 'NFKC'; only NFC is supported"));
  EXPECT_THAT(model_fault("byte_fallback", true), HasSubstr("'model.byte_fallback'"));
  EXPECT_THAT(model_fault("dropout", 0.1), HasSubstr("'model.dropout'"));
  EXPECT_THAT(model_fault("end_of_word_suffix", "</w>"), HasSubstr("'model.end_of_word_suffix'"));
  EXPECT_THAT(model_fault("merges", Json()), HasSubstr("'model.merges' is not an array"));
  EXPECT_THAT(model_fault("merges", array({"a a", "a"})),
              HasSubstr("'model.merges[1]' is not a pair"));
  EXPECT_THAT(model_fault("merges", array({"a a a"})),
              HasSubstr("'model.merges[0]' is not a pair"));
  EXPECT_THAT(model_fault("merges", array({"b a"})),
              HasSubstr("'model.merges[0]': token 'ba' is not in 'model.vocab'"));
}

TEST(Bpe, BoundsStagesAndPatterns) {
  const auto stages = [](size_t count) {
    Json::Array parts(count - 1, split("a"));
    parts.push_back(byte_level());
    return fault_of(
        small_file(object({{"type", "Sequence"}, {"pretokenizers", Json(std::move(parts))}})));
  };
  EXPECT_EQ(stages(kPreTokenizersMax), "no fault");
  EXPECT_THAT(stages(kPreTokenizersMax + 1), HasSubstr("at most 16 are supported"));
  const auto pattern = [](size_t size) {
    return fault_of(small_file(sequence({split(std::string(size, 'a')), byte_level()})));
  };
  EXPECT_EQ(pattern(kPatternBytesMax), "no fault");
  EXPECT_THAT(pattern(kPatternBytesMax + 1), HasSubstr("at most 16384 are accepted"));
}

TEST(Bpe, AppliesTheLowestRankFirstAndTheLeftmostOfEquals) {
  const auto tokenizer = *make(small_file());
  EXPECT_THAT(*tokenizer->encode_with_specials("abc"), ElementsAre(6));
  EXPECT_THAT(*tokenizer->encode_with_specials("aabc"), ElementsAre(4, 1, 2))
      << "'a a' outranks 'a b'";
  EXPECT_THAT(*tokenizer->encode_with_specials("aaa"), ElementsAre(4, 0));
  EXPECT_THAT(*tokenizer->encode_with_specials("a abcb"), ElementsAre(0, 3, 6, 1));
}

TEST(Bpe, NamesAByteThatHasNoToken) {
  const auto tokenizer = *make(small_file());
  EXPECT_THAT(tokenizer->encode_with_specials("axb").error().text(),
              HasSubstr("byte 0x78 of 'axb' has no token"));
  EXPECT_THAT(tokenizer->encode_with_specials("a\xC0").error().text(),
              HasSubstr("byte offset 1 is not UTF-8"));
}

TEST(Bpe, SplitsByTheGivenPattern) {
  const auto pieces_of = [](Json stage, const char* text) {
    const auto made = make(small_file(sequence({std::move(stage), byte_level()})));
    return *(*made)->encode_with_specials(text);
  };
  EXPECT_THAT(pieces_of(split("b"), "aabc"), ElementsAre(4, 1, 2));
  EXPECT_THAT(pieces_of(split("a"), "aaab"), ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(pieces_of(split("b", "Removed"), "abcb"), ElementsAre(0, 2));
  EXPECT_THAT(pieces_of(split("b", "Removed", true), "abcb"), ElementsAre(1, 1));
  EXPECT_THAT(pieces_of(split("x*"), "abc"), ElementsAre(0, 1, 2)) << "empty matches cut, and end";
}

TEST(Bpe, GivesUpOnAPatternThatTakesForever) {
  const auto tokenizer = *make(small_file(sequence({split("(a+a+)+[bc]"), byte_level()})));
  const auto ids = tokenizer->encode_with_specials(std::string(60, 'a') + " ");
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.error().code(), Code::kExhausted);
  EXPECT_THAT(ids.error().text(), HasSubstr("match limit exceeded"));
}

TEST(Bpe, EncodesLongTextsInOnePiece) {
  const auto tokenizer = *make(small_file());
  const auto ids = *tokenizer->encode_with_specials(std::string(1 << 20, 'a'));
  EXPECT_EQ(ids.size(), size_t{1} << 19);
}

}  // namespace
}  // namespace primerl
