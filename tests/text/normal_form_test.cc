// Normal forms, lower case and characters of words, for every character, compared with the
// `tokenizers` package.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "graph/base/json.h"
#include "kernels/text/unicode.h"
#include "tests/base/made_by_python.h"

namespace primerl {
namespace {

class EveryCharacter : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto made = testing::made_by_python(
        PRIMERL_PYTHON, "tokenizers", "tests/text/make_normal_forms.py", "text_normal_forms");
    if (!made) GTEST_SKIP() << "no package 'tokenizers' in " PRIMERL_PYTHON;
    folder_ = *made;
  }

  Json read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(folder_ / name).rdbuf();
    return parse_json(text.str(), name).value();
  }

  /// Text to text, for a list of pairs.
  static std::unordered_map<std::string, std::string> pairs_of(const Json& list) {
    std::unordered_map<std::string, std::string> pairs;
    for (const Json& pair : list.as_array())
      pairs.emplace(pair.as_array().at(0).as_string(), pair.as_array().at(1).as_string());
    return pairs;
  }

  template <class Check>
  static void for_each_character(const Check& check) {
    for (uint32_t value = 0; value <= 0x10FFFF; ++value) {
      if (value >= 0xD800 && value < 0xE000) continue;
      std::string text;
      append_utf8(text, value);
      check(value, text);
      if (::testing::Test::HasFailure()) return;  // one is enough
    }
  }

  std::filesystem::path folder_;
};

TEST_F(EveryCharacter, HasTheNormalFormsOfTokenizers) {
  const Json forms = read("forms.json");
  const std::pair<NormalForm, const char*> known[] = {{NormalForm::kNfc, "NFC"},
                                                      {NormalForm::kNfd, "NFD"},
                                                      {NormalForm::kNfkc, "NFKC"},
                                                      {NormalForm::kNfkd, "NFKD"}};
  for (const auto& [form, name] : known) {
    const auto changed = pairs_of(*forms.find(name));
    ASSERT_GT(changed.size(), 1000U);
    for (const auto& [text, expected] : changed)
      ASSERT_EQ(to_normal_form(text, form).value(), expected) << name << " of " << text;
    for_each_character([&, form = form, name = name](uint32_t value, const std::string& text) {
      for (const std::string& each : {text, "a\u0315" + text + "\u0327b"})
        if (!changed.contains(each)) {
          ASSERT_EQ(to_normal_form(each, form).value(), each)
              << name << " of U+" << std::hex << value;
        }
    });
  }
}

TEST_F(EveryCharacter, HasTheLowerCaseOfTokenizers) {
  const auto changed = pairs_of(read("lower.json"));
  ASSERT_GT(changed.size(), 1000U);
  for_each_character([&](uint32_t value, const std::string& text) {
    const auto found = changed.find(text);
    ASSERT_EQ(to_lowercase(text), found == changed.end() ? text : found->second)
        << "U+" << std::hex << value;
  });
}

TEST_F(EveryCharacter, BelongsToAWordAsInTokenizers) {
  std::unordered_set<uint32_t> words;
  const Json list = read("words.json");
  for (const Json& value : list.as_array()) words.insert(static_cast<uint32_t>(value.as_int()));
  ASSERT_GT(words.size(), 100000U);
  for_each_character([&](uint32_t value, const std::string&) {
    ASSERT_EQ(is_word_character(value), words.contains(value)) << "U+" << std::hex << value;
  });
}

}  // namespace
}  // namespace primerl
