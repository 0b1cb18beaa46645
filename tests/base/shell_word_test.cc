#include "graph/base/shell_word.h"

#include <gtest/gtest.h>

namespace primerl {
namespace {

TEST(ShellWord, QuotesWhatAShellWouldChange) {
  EXPECT_EQ(shell_word("my run"), "'my run'");
  EXPECT_EQ(shell_word("a$b"), "'a$b'");
  EXPECT_EQ(shell_word("~/run"), "'~/run'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word("=run"), "'=run'");
  EXPECT_EQ(shell_word("l\xC3\xA4uft"), "'l\xC3\xA4uft'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(ShellWord, LeavesAPlainPathAsItIs) {
  EXPECT_EQ(shell_word("/data/runs/20261125-demo_1/step_50"), "/data/runs/20261125-demo_1/step_50");
  EXPECT_EQ(shell_word("trainer:412"), "trainer:412");
}

}  // namespace
}  // namespace primerl
