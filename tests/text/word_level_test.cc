#include <gmock/gmock.h>

#include "kernels/text/tokenizer.h"
#include "tests/text/tokenizer_files.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class WordLevel : public ::testing::Test {
 protected:
  std::shared_ptr<Tokenizer> load(const Json& file = testing::character_tokenizer()) {
    folder_.write_json("tokenizer.json", file);
    folder_.write_json("tokenizer_config.json", testing::character_tokenizer_config());
    auto tokenizer = load_tokenizer(folder_.path());
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().text();
    return tokenizer.ok() ? *tokenizer : nullptr;
  }
  std::string fault_of(const Json& file) {
    folder_.write_json("tokenizer.json", file);
    folder_.write_json("tokenizer_config.json", testing::character_tokenizer_config());
    auto tokenizer = load_tokenizer(folder_.path());
    return tokenizer.ok() ? "no fault" : tokenizer.error().text();
  }
  testing::TokenizerFolder folder_;
};

TEST_F(WordLevel, NamesTheUnknownCharacterAndItsOffset) {
  const auto tokenizer = load();
  EXPECT_THAT(tokenizer->encode_with_specials("r:é>").error().text(),
              HasSubstr("character 'é' (U+00E9) at byte offset 2 has no token"));
  EXPECT_THAT(tokenizer->encode_with_specials("ab\ncd").error().text(),
              HasSubstr("U+000A at byte offset 2"));
  EXPECT_THAT(tokenizer->encode_with_specials("a\xFFz").error().text(),
              HasSubstr("byte 0xFF at byte offset 1 is not UTF-8"));
}

TEST_F(WordLevel, EncodesEachPrintableCharacterAsItsOwnToken) {
  const auto tokenizer = load();
  EXPECT_THAT(*tokenizer->encode_with_specials("r:abc>"), ElementsAre(84, 28, 67, 68, 69, 32));
  EXPECT_THAT(*tokenizer->encode_with_specials(""), IsEmpty());
  std::string all;
  for (char c = 32; c < 127; ++c) all += c;
  const auto ids = *tokenizer->encode_with_specials(all);
  EXPECT_EQ(ids.size(), 95u);
  EXPECT_EQ(*tokenizer->decode(ids), all);
}

TEST_F(WordLevel, ReadsTheSpecialTokensOutOfTheTextAndDropsThemInDecode) {
  const auto tokenizer = load();
  EXPECT_THAT(*tokenizer->encode_with_specials("a<eos><pad>b<eos"),
              ElementsAre(67, 1, 0, 68, 30, 71, 81, 85));
  EXPECT_THAT(*tokenizer->encode_text("a<eos>"), ElementsAre(67, 30, 71, 81, 85, 32));
  EXPECT_EQ(*tokenizer->decode({67, 1, 0, 68}), "ab");
  EXPECT_EQ(*tokenizer->decode({67, 1, 0, 68}, false), "a<eos><pad>b");
}

TEST_F(WordLevel, TellsItsSizeEndAndPadding) {
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->vocab_size(), 97);
  EXPECT_THAT(tokenizer->eos_ids(), ElementsAre(1));
  EXPECT_EQ(tokenizer->pad_id(), 0);
}

TEST_F(WordLevel, DecodesPaddedRowsOfTheEmbeddingToNothing) {
  const auto tokenizer = load();
  EXPECT_EQ(*tokenizer->decode({96}), "~");
  EXPECT_EQ(*tokenizer->decode({97, 67, 127}), "a");
  EXPECT_EQ(tokenizer->decode({-1}).error().message(), "id -1 is no token");
}

TEST_F(WordLevel, MapsUnknownPiecesToAnUnknownTokenThatIsNotThePadding) {
  Json file = testing::character_tokenizer();
  Json model = *file.find("model");
  Json vocab = *model.find("vocab");
  file.set("model", model.set("vocab", vocab.set("<unk>", 97)).set("unk_token", "<unk>"));
  const auto tokenizer = load(file);
  // "." does not match line feeds: a run of them is one piece.
  EXPECT_THAT(*tokenizer->encode_with_specials("aé\n\nb"), ElementsAre(67, 97, 97, 68));
}

TEST_F(WordLevel, RefusesFilesItWouldReadDifferently) {
  Json file = testing::character_tokenizer();
  EXPECT_THAT(fault_of(Json(file).set("decoder", Json())), HasSubstr("'decoder'"));
  EXPECT_THAT(fault_of(Json(file).set("pre_tokenizer", Json())), HasSubstr("'pre_tokenizer'"));
  EXPECT_THAT(fault_of(Json(file).set("normalizer", Json::object().set("type", "Lowercase"))),
              HasSubstr("'normalizer'"));
  Json model = *file.find("model");
  EXPECT_THAT(fault_of(Json(file).set("model", Json(model).set("unk_token", "<unk>"))),
              HasSubstr("'model.unk_token' '<unk>' is not in 'model.vocab'"));
}

}  // namespace
}  // namespace primerl
