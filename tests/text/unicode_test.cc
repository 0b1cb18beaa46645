#include "kernels/text/unicode.h"

#include <gtest/gtest.h>

namespace primerl {
namespace {

TEST(Unicode, RefusesWhatIsNoUtf8) {
  for (const std::string_view bad :
       {"\x80", "\xC0\xAF", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82", "\xF0\x9F\x98", "\xFF"})
    EXPECT_FALSE(check_utf8(bad).ok()) << testing::PrintToString(bad);
  for (const std::string_view good :
       {"", "a", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
        "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"})
    EXPECT_TRUE(check_utf8(good).ok()) << testing::PrintToString(good);
}

TEST(Unicode, ReadsEveryCodePointForwardsAndBackwards) {
  for (uint32_t value = 0; value <= 0x10FFFF; value += value < 0x3000 ? 1 : 101) {
    if (value >= 0xD800 && value < 0xE000) continue;
    std::string text = "x";
    append_utf8(text, value);
    const CodePoint after = code_point_at(text, 1), before = code_point_before(text, text.size());
    ASSERT_EQ(after.value, value);
    ASSERT_EQ(after.size, text.size() - 1);
    ASSERT_EQ(before.value, value);
  }
}

TEST(Unicode, ReplacesEachMaximalBrokenPartOnce) {
  // The table of the Unicode standard, section 3.9, and Rust's from_utf8_lossy.
  const std::string fffd = "\xEF\xBF\xBD";
  EXPECT_EQ(to_valid_utf8("a\xF1\x80\x80\xE1\x80\xC2z"), "a" + fffd + fffd + fffd + "z");
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80"), fffd + fffd + fffd);
  EXPECT_EQ(to_valid_utf8("\xF0\x80"), fffd + fffd);
  EXPECT_EQ(to_valid_utf8("\xE2\x82"), fffd);
  EXPECT_EQ(to_valid_utf8("é"), "é");
}

TEST(Unicode, ComposesToNormalFormC) {
  EXPECT_EQ(*to_nfc("plain"), "plain");
  EXPECT_EQ(*to_nfc("e\xCC\x81"), "\xC3\xA9");
  EXPECT_EQ(*to_nfc("\xE2\x84\xA6"), "\xCE\xA9");                // OHM SIGN
  EXPECT_EQ(*to_nfc("q\xCC\x87\xCC\xA3"), "q\xCC\xA3\xCC\x87");  // reordered marks
  EXPECT_EQ(*to_nfc(std::string_view("a\0é", 4)), std::string_view("a\0é", 4));
  EXPECT_EQ(*to_nfc(""), "");
}

TEST(Unicode, KnowsWhiteSpaceAndWords) {
  for (const uint32_t space : {0x09, 0x0D, 0x20, 0x85, 0xA0, 0x1680, 0x2003, 0x2028, 0x3000})
    EXPECT_TRUE(is_white_space(space)) << space;
  for (const uint32_t other : {0x08, 0x61, 0x180E, 0x200B, 0xFEFF})
    EXPECT_FALSE(is_white_space(other));
  for (const uint32_t word : {0x30, 0x5F, 0x61, 0xE9, 0x301, 0x4E00})
    EXPECT_TRUE(is_word_character(word));
  for (const uint32_t other : {0x20, 0x2D, 0x3C, 0x1F600}) EXPECT_FALSE(is_word_character(other));
}

}  // namespace
}  // namespace primerl
