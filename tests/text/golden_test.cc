/// The same tokens as the `tokenizers` package (tests/text/make_vectors.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "graph/base/json.h"
#include "kernels/text/text_stream.h"
#include "tests/base/made_by_python.h"

namespace primerl {
namespace {

std::vector<int32_t> ids_of(const Json& json) {
  std::vector<int32_t> ids;
  for (const Json& id : json.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  return ids;
}

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto vectors = testing::made_by_python(PRIMERL_PYTHON, "tokenizers",
                                                 "tests/text/make_vectors.py", "text_vectors");
    if (!vectors) GTEST_SKIP() << "no package 'tokenizers' in " PRIMERL_PYTHON;
    const std::string folder = *vectors / GetParam();
    std::ifstream file(folder + "/vectors.json");
    std::stringstream text;
    text << file.rdbuf();
    vectors_ = *parse_json(text.str(), folder + "/vectors.json");
    auto loaded = load_tokenizer(folder);
    ASSERT_TRUE(loaded.ok()) << loaded.error().text();
    tokenizer_ = *loaded;
  }
  Json vectors_;
  std::shared_ptr<Tokenizer> tokenizer_;
};

TEST_P(Golden, EncodesAsTheTokenizersPackageDoes) {
  ASSERT_GE(vectors_.find("encoded")->as_array().size(), 500u);
  for (const Json& one : vectors_.find("encoded")->as_array()) {
    const std::string& text = one.find("text")->as_string();
    const auto ids = tokenizer_->encode_with_specials(text);
    if (one.find("has_unknown")->as_bool()) {
      EXPECT_FALSE(ids.ok()) << ::testing::PrintToString(text);
      continue;
    }
    ASSERT_TRUE(ids.ok()) << ids.error().text();
    EXPECT_EQ(*ids, ids_of(*one.find("ids"))) << ::testing::PrintToString(text);
  }
}

TEST_P(Golden, EncodesTextFromOutsideAsTheTokenizersPackageSplitsSpecialTokens) {
  int64_t num_other = 0;
  for (const Json& one : vectors_.find("encoded")->as_array()) {
    const std::string& text = one.find("text")->as_string();
    const auto ids = tokenizer_->encode_text(text);
    if (one.find("has_unknown")->as_bool()) {
      EXPECT_FALSE(ids.ok()) << ::testing::PrintToString(text);
      continue;
    }
    ASSERT_TRUE(ids.ok()) << ids.error().text();
    EXPECT_EQ(*ids, ids_of(*one.find("text_ids"))) << ::testing::PrintToString(text);
    num_other += *ids != ids_of(*one.find("ids"));
    for (const int32_t id : *ids) {
      if (id == vectors_.find("unknown")->as_int()) continue;
      const auto whole = tokenizer_->decode({id}, false), shown = tokenizer_->decode({id}, true);
      EXPECT_EQ(*whole, *shown) << "a special token out of " << ::testing::PrintToString(text);
    }
  }
  EXPECT_GT(num_other, 0) << "the texts hold special tokens";
}

TEST_P(Golden, DecodesAsTheTokenizersPackageDoes) {
  for (const Json& one : vectors_.find("decoded")->as_array()) {
    const auto ids = ids_of(*one.find("ids"));
    EXPECT_EQ(*tokenizer_->decode(ids), one.find("text")->as_string());
    EXPECT_EQ(*tokenizer_->decode(ids, false), one.find("all")->as_string());
  }
}

TEST_P(Golden, KnowsItsSizeAndItsEnd) {
  EXPECT_EQ(tokenizer_->vocab_size(), vectors_.find("vocab_size")->as_int());
  ASSERT_EQ(tokenizer_->eos_ids().size(), 1u);
  EXPECT_EQ(tokenizer_->eos_ids()[0], vectors_.find("eos")->as_int());
}

TEST_P(Golden, PutsTheSameIdsAroundAText) {
  EXPECT_EQ(tokenizer_->prefix_ids(), ids_of(*vectors_.find("prefix")));
  EXPECT_EQ(tokenizer_->suffix_ids(), ids_of(*vectors_.find("suffix")));
}

TEST_P(Golden, StreamsTheTextThatIsDecodedAtOnce) {
  for (const Json& one : vectors_.find("streams")->as_array()) {
    const auto ids = ids_of(*one.find("ids"));
    TextStream stream(*tokenizer_);
    std::string text;
    for (const int32_t id : ids) {
      const auto added = stream.add(id);
      ASSERT_TRUE(added.ok()) << added.error().text();
      text += *added;
    }
    const std::string& expected = one.find("text")->as_string();
    EXPECT_EQ(text.substr(0, expected.size()), expected);
    text += *stream.finish();
    EXPECT_EQ(text, *tokenizer_->decode(ids));
  }
}

INSTANTIATE_TEST_SUITE_P(Text, Golden,
                         ::testing::Values("gpt2", "gpt2_prefix_space", "qwen3", "llama3",
                                           "words_only", "characters", "llama2", "mistral", "gemma",
                                           "falcon", "words", "behaviors", "spaces", "small_claude",
                                           "small_deepseek_v3", "small_gemini", "small_gemma3",
                                           "small_gpt35turbo", "small_gpt4o", "small_gptoss",
                                           "small_llama2", "small_llama3", "small_llama3_1",
                                           "small_qwen3", "small_smollm2"),
                         [](const auto& one) { return std::string(one.param); });

TEST(SmallTokenizers, EachNamesItsSource) {
  const std::filesystem::path folder = PRIMERL_SOURCE_DIR "/tests/text/small";
  std::set<std::string> named, there;
  std::ifstream sources(folder / "sources.txt");
  for (std::string line; std::getline(sources, line);)
    if (!line.starts_with("#")) named.insert(line.substr(0, line.find(' ')));
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".json") there.insert(entry.path().stem().string());
  EXPECT_EQ(named, there);
  EXPECT_GE(there.size(), 12U);
}

}  // namespace
}  // namespace primerl
