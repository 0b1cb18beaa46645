#include "kernels/text/bpe.h"

#include <gmock/gmock.h>

#include "kernels/text/file_parts.h"
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
  EXPECT_THAT(fault_of(small_file(sequence({byte_level(), byte_level()}))),
              HasSubstr("'pre_tokenizer.pretokenizers[1]': ByteLevel is there twice"));
  EXPECT_THAT(
      fault_of(small_file(object({{"type", "FixedLength"}}))),
      HasSubstr("'pre_tokenizer' is 'FixedLength'; known pre-tokenizers: Split, ByteLevel"));
  EXPECT_THAT(fault_of(small_file(sequence({split("a", "Kept"), byte_level()}))),
              HasSubstr("[0].behavior' is \"Kept\"; known: \"Removed\", \"Isolated\""));
  EXPECT_THAT(fault_of(small_file(sequence({split("a("), byte_level()}))),
              HasSubstr("[0].pattern': the pattern is not supported: at byte 1: the group has no"));
  EXPECT_THAT(fault_of(small_file(sequence({split("a\\C"), byte_level()}))),
              HasSubstr("at byte 1: '\\C' is not supported"));
  EXPECT_THAT(fault_of(small_file().set("decoder", Json())), HasSubstr("'decoder' is missing"));
  EXPECT_THAT(fault_of(small_file().set("decoder", object({{"type", "CTC"}}))),
              HasSubstr("'decoder' is 'CTC'; known decoders: ByteLevel"));
  EXPECT_THAT(fault_of(small_file().set("normalizer", object({{"type", "Nmt"}}))),
              HasSubstr("'normalizer' is 'Nmt'; known normalizers: NFC"));
  EXPECT_THAT(fault_of(small_file().set("post_processor", object({{"type", "Other"}}))),
              HasSubstr("'post_processor' is 'Other'; known post-processors: TemplateProcessing"));
  EXPECT_THAT(model_fault("unk_token", "<unk>"), HasSubstr("'<unk>' is not in 'model.vocab'"));
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
  EXPECT_EQ(stages(kFilePartsMax), "no fault");
  EXPECT_THAT(stages(kFilePartsMax + 1), HasSubstr("at most 16 are supported"));
  const auto pattern = [](size_t size) {
    return fault_of(small_file(sequence({split(std::string(size, 'a')), byte_level()})));
  };
  EXPECT_EQ(pattern(kPatternBytesMax), "no fault");
  EXPECT_THAT(pattern(kPatternBytesMax + 1), HasSubstr("at most 16384 are accepted"));
}

Json prepend(size_t bytes) {
  return object({{"type", "Prepend"}, {"prepend", std::string(bytes, 'a')}});
}

TEST(Bpe, BoundsWhatANormalizerAdds) {
  EXPECT_EQ(fault_of(small_file().set("normalizer", prepend(kContentBytesMax))), "no fault");
  EXPECT_THAT(fault_of(small_file().set("normalizer", prepend(kContentBytesMax + 1))),
              HasSubstr("'normalizer.prepend' has 257 bytes; at most 256 are accepted"));
  const auto grown = [](size_t bytes_for_each) {
    const Json replace = object({{"type", "Replace"},
                                 {"pattern", object({{"String", "a"}})},
                                 {"content", std::string(bytes_for_each, 'b')}});
    const auto tokenizer = *make(small_file().set("normalizer", replace));
    return tokenizer->encode_text(std::string(kGrownBytesMin, 'a')).ok();
  };
  EXPECT_TRUE(grown(kGrowthMax + 1));
  EXPECT_FALSE(grown(kGrowthMax + 2));
}

TEST(Bpe, TurnsUnknownTextIntoTheUnknownTokenUnlessThatEndsSequences) {
  const Json model = small_model().set("unk_token", "c").set("fuse_unk", true);
  const auto tokenizer = *make(small_file().set("model", model));
  EXPECT_THAT(*tokenizer->encode_text("axyb"), ElementsAre(0, 2, 1));
  TokenizerFile file =
      parse_tokenizer_file(small_file().set("model", model).dump(), "t.json").value();
  file.end_and_pad.eos_ids = {2};
  const auto careful = *make_tokenizer(std::move(file));
  EXPECT_THAT(careful->encode_text("axyb").error().text(), HasSubstr("byte 0x78"));
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
