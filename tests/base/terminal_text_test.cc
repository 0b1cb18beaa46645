#include "graph/base/terminal_text.h"

#include <gtest/gtest.h>

namespace primerl {
namespace {

using namespace std::string_view_literals;

TEST(TerminalText, EscapesWhatWouldMoveTheCursor) {
  EXPECT_EQ(terminal_text("red \x1B[31m"), "red \\u001B[31m");
  EXPECT_EQ(terminal_text("a\0b\x7F"sv), "a\\u0000b\\u007F");
  EXPECT_EQ(terminal_text("a\xC2\x9B"), "a\\u009B");  // CSI in one character
}

TEST(TerminalText, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(terminal_text("\xFF\xFE["), "\\xFF\\xFE[");         // UTF-16
  EXPECT_EQ(terminal_text("\xC3"), "\\xC3");                    // cut in the middle
  EXPECT_EQ(terminal_text("\xC0\xAF"), "\\xC0\\xAF");           // longer than necessary
  EXPECT_EQ(terminal_text("\xED\xA0\x80"), "\\xED\\xA0\\x80");  // a surrogate
  EXPECT_EQ(terminal_text("\xF4\x90\x80\x80"), "\\xF4\\x90\\x80\\x80");
}

TEST(TerminalText, KeepsReadableTextAndLinesOnRequest) {
  EXPECT_EQ(terminal_text("l\xC3\xA4uft \xE2\x82\xAC \xF0\x9F\x98\x80"),
            "l\xC3\xA4uft \xE2\x82\xAC \xF0\x9F\x98\x80");
  EXPECT_EQ(terminal_text("a\n\tb"), "a\n\tb");
  EXPECT_EQ(terminal_text("a\n\tb", false), "a\\u000A\\u0009b");
}

TEST(TerminalText, CountsTheColumnsOfCharacters) {
  EXPECT_EQ(num_columns("abc"), 3U);
  EXPECT_EQ(num_columns("größe"), 5U);
  EXPECT_EQ(num_columns("語x"), 3U);
  EXPECT_EQ(num_columns("\xF0\x9F\x98\x80"), 2U);  // an emoji
  EXPECT_EQ(num_columns("e\xCC\x81"), 1U);         // a combining accent
  EXPECT_EQ(num_columns("a\xFF"), 2U);             // not UTF-8
}

TEST(TerminalText, CutsBetweenCharacters) {
  EXPECT_EQ(first_columns("größe", 3), "grö");
  EXPECT_EQ(first_columns("größe", 5), "größe");
  EXPECT_EQ(first_columns("語語", 3), "語");
  EXPECT_EQ(first_columns("e\xCC\x81x", 1), "e\xCC\x81");
  EXPECT_EQ(last_columns("größe", 3), "öße");
  EXPECT_EQ(last_columns("größe", 5), "größe");
  EXPECT_EQ(last_columns("語語", 3), "語");
  EXPECT_EQ(last_columns("xe\xCC\x81z", 1), "z");
  EXPECT_EQ(last_columns("abc", 0), "");
}

}  // namespace
}  // namespace primerl
