#include "kernels/text/tokenizer_file.h"

#include <gmock/gmock.h>

#include "tests/text/tokenizer_files.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TokenizerFolder;

std::string fault_of(const Json& file) {
  const auto parsed = parse_tokenizer_file(file.dump(), "x/tokenizer.json");
  return parsed.ok() ? "no fault" : parsed.error().text();
}

Json with_vocab(Json vocab) {
  Json file = testing::character_tokenizer();
  Json model = *file.find("model");
  return file.set("model", model.set("vocab", std::move(vocab))).set("added_tokens", Json::array());
}

Json with_added(Json token) {
  return testing::character_tokenizer().set("added_tokens", Json(Json::Array{std::move(token)}));
}

TEST(TokenizerFile, NamesFileAndPlaceOfBrokenJson) {
  EXPECT_THAT(parse_tokenizer_file("{\"model\": [}", "x/tokenizer.json").error().text(),
              HasSubstr("x/tokenizer.json:1:"));
}

TEST(TokenizerFile, NamesTheKeyOfEveryFault) {
  EXPECT_EQ(fault_of(Json::object()), "x/tokenizer.json: 'model' is missing, not an object");
  EXPECT_THAT(fault_of(Json::array()), HasSubstr("'model' is missing"));
  EXPECT_THAT(fault_of(Json::object().set("model", Json::object().set("type", "Unigram"))),
              HasSubstr("'model.type' is 'Unigram'; this program reads 'BPE' and 'WordLevel'"));
  EXPECT_THAT(fault_of(with_vocab(Json::array())), HasSubstr("'model.vocab' is an array"));
  EXPECT_THAT(fault_of(with_vocab(Json::object())), HasSubstr("'model.vocab' has no token"));
  EXPECT_THAT(fault_of(with_vocab(Json::object().set("a", "b"))),
              HasSubstr("gives token 'a' a string"));
  EXPECT_THAT(fault_of(with_vocab(Json::object().set("a", 0).set("b", 0))),
              HasSubstr("id 0 is both 'a' and 'b'"));
  EXPECT_THAT(fault_of(with_added(Json::object().set("id", 5))),
              HasSubstr("'added_tokens[0]': no key 'content'"));
  EXPECT_THAT(fault_of(with_added(testing::added_token(5, "<eos>"))),
              HasSubstr("'added_tokens[0]': id 5"));
  EXPECT_THAT(fault_of(with_added(testing::added_token(200, "<eos>"))),
              HasSubstr("token '<eos>' has two ids, 1 and 200"));
  EXPECT_THAT(fault_of(with_added(testing::added_token(97, ""))), HasSubstr("'content' is empty"));
  EXPECT_THAT(fault_of(with_added(testing::added_token(97, "x").set("lstrip", 1))),
              HasSubstr("'lstrip' is a number, not true or false"));
}

TEST(TokenizerFile, BoundsIdsAndTokens) {
  EXPECT_EQ(fault_of(with_vocab(Json::object().set("a", kVocabularyMax - 1))), "no fault");
  EXPECT_THAT(fault_of(with_vocab(Json::object().set("a", kVocabularyMax))),
              HasSubstr("not in [0, 1048576)"));
  EXPECT_THAT(fault_of(with_vocab(Json::object().set("a", -1))), HasSubstr("not in [0, 1048576)"));
  EXPECT_EQ(fault_of(with_vocab(Json::object().set(std::string(kTokenBytesMax, 'a'), 0))),
            "no fault");
  EXPECT_THAT(fault_of(with_vocab(Json::object().set(std::string(kTokenBytesMax + 1, 'a'), 0))),
              HasSubstr("at most 65536 are accepted"));
}

class EndAndPadIds : public ::testing::Test {
 protected:
  EndAndPadIds() { folder_.write_json("tokenizer.json", testing::character_tokenizer()); }
  EndAndPad read() {
    auto file = read_tokenizer_file(folder_.path());
    EXPECT_TRUE(file.ok()) << file.error().text();
    return file.ok() ? file->end_and_pad : EndAndPad{};
  }
  TokenizerFolder folder_;
};

TEST_F(EndAndPadIds, AreNoneInASilentFolder) {
  EXPECT_THAT(read().eos_ids, IsEmpty());
  EXPECT_EQ(read().pad_id, -1);
}

TEST_F(EndAndPadIds, ComeFromTheFirstFileThatSpeaks) {
  folder_.write("special_tokens_map.json",
                R"({"eos_token": {"content": "<eos>"}, "pad_token": "<pad>"})");
  EXPECT_THAT(read().eos_ids, ElementsAre(1));
  EXPECT_EQ(read().pad_id, 0);
  folder_.write("config.json", R"({"eos_token_id": 7, "pad_token_id": null})");
  EXPECT_THAT(read().eos_ids, ElementsAre(7));
  EXPECT_EQ(read().pad_id, 0);
  folder_.write("generation_config.json", R"({"eos_token_id": [8, 9], "pad_token_id": 5})");
  EXPECT_THAT(read().eos_ids, ElementsAre(8, 9));
  EXPECT_EQ(read().pad_id, 5);
}

TEST_F(EndAndPadIds, NameFileAndKeyOfAFault) {
  folder_.write("config.json", R"({"eos_token_id": "<end>"})");
  EXPECT_THAT(read_tokenizer_file(folder_.path()).error().text(),
              HasSubstr("config.json: 'eos_token_id': token '<end>' is not in the vocabulary"));
  folder_.write("config.json", R"({"eos_token_id": -3})");
  EXPECT_THAT(read_tokenizer_file(folder_.path()).error().text(),
              HasSubstr("'eos_token_id': id -3"));
  folder_.write("config.json", "{");
  EXPECT_THAT(read_tokenizer_file(folder_.path()).error().text(), HasSubstr("config.json:1:"));
}

TEST_F(EndAndPadIds, NeedATokenizer) {
  EXPECT_EQ(read_tokenizer_file(folder_.path() / "none").error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace primerl
