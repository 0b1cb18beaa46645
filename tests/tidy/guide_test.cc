// CONTRIBUTING.md's first actor, as a person would follow it: in a copy of the tree the files are
// written, the lines added and the commands run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/cli/program.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// Follows `guide` in a copy of `tree`.
ProgramEnd follow(const std::string& guide, const fs::path& tree, const fs::path& copy) {
  return Program({PRIMERL_PYTHON, source_path("tests/tidy/follow_guide.py"), guide, tree.string(),
                  copy.string(), PRIMERL_PYTHON},
                 {PRIMERL_WARNINGS})
      .wait();
}

/// A tree of one text, followed.
class FollowGuide : public ::testing::Test {
 protected:
  ProgramEnd follow_text(const std::string& text) {
    write_text(tree_.path() / "GUIDE.md", text);
    return follow("GUIDE.md", tree_.path(), copy());
  }
  fs::path copy() const { return work_.path() / "copy"; }

  ScratchFolder tree_, work_;
};

TEST_F(FollowGuide, WritesFilesAddsLinesAndRunsCommandsInTheCopyAlone) {
  write_text(tree_.path() / "list", "one\ntwo\nfour\n");
  const auto end = follow_text(
      "<!-- file: new/a -->\n```\nhere\n```\n"
      "<!-- edit: list -->\n```diff\n two\n+three\n four\n@@\n-one\n+zero\n two\n```\n"
      "<!-- do -->\n```sh\ncat new/a list > result\n```\n");
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(*read_text_file(copy() / "result"), "here\nzero\ntwo\nthree\nfour\n");
  EXPECT_EQ(*read_text_file(tree_.path() / "list"), "one\ntwo\nfour\n");
  EXPECT_FALSE(fs::exists(tree_.path() / "new"));
}

TEST_F(FollowGuide, AnEditThatFitsNowhereOrTwiceFails) {
  write_text(tree_.path() / "list", "one\none\n");
  for (const char* line : {"two", "one"}) {
    fs::remove_all(copy());
    const auto end =
        follow_text(std::string("text\n<!-- edit: list -->\n```diff\n ") + line + "\n+more\n```\n");
    EXPECT_EQ(end.code, 1);
    EXPECT_THAT(end.err, HasSubstr("GUIDE.md:2: 'edit: list': found in"));
  }
}

TEST_F(FollowGuide, ACommandThatFailsEndsItWithItsLine) {
  const auto end = follow_text("<!-- do -->\n```sh\nfalse\ntouch later\n```\n");
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, HasSubstr("GUIDE.md:1: 'do'"));
  EXPECT_FALSE(fs::exists(copy() / "later"));
}

TEST_F(FollowGuide, ATextWithoutAMarkedBlockFails) {
  EXPECT_EQ(follow_text("```sh\ntrue\n```\n").code, 1);
}

TEST(Contributing, AFirstActorWorksWhenItsTextIsFollowedToTheLetter) {
  const ScratchFolder work;
  const fs::path copy = work.path() / "copy";
  const auto end = follow("CONTRIBUTING.md", PRIMERL_SOURCE_DIR, copy);
  ASSERT_EQ(end.code, 0) << end.out << end.err;
  EXPECT_THAT(end.out, HasSubstr("[  PASSED  ] 3 tests."));
  EXPECT_THAT(*read_text_file(copy / "docs/reference/actors.md"), HasSubstr("length_filter"));
}

}  // namespace
}  // namespace primerl
