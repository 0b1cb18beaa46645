#include "runtime/store/line_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "graph/base/files.h"
#include "runtime/store/followed_lines.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using testing::HasSubstr;

TEST(LineFile, LinesAreThereWithoutClosing) {
  ScratchFolder scratch;
  auto lines = LineFile::open(scratch.path() / "a.jsonl");
  ASSERT_TRUE(lines.ok());
  ASSERT_TRUE((*lines)->append("{\"a\":1}").ok());
  ASSERT_TRUE((*lines)->append("{\"a\":2}").ok());
  EXPECT_EQ(*read_text_file(scratch.path() / "a.jsonl"), "{\"a\":1}\n{\"a\":2}\n");
}

TEST(LineFile, OpeningRemovesAnIncompleteLastLineAndAppends) {
  ScratchFolder scratch;
  const auto file = scratch.path() / "a.jsonl";
  write_text(file, "{\"a\":1}\n{\"a\":2}\n{\"a\"");
  auto lines = LineFile::open(file);
  ASSERT_TRUE(lines.ok());
  ASSERT_TRUE((*lines)->append("{\"a\":3}").ok());
  EXPECT_EQ(*read_text_file(file), "{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n");
}

// A process may read while another one appends: a line that looked incomplete may be complete
// later.
TEST(LineFile, AskingForTheWholeLinesChangesNothing) {
  ScratchFolder scratch;
  const auto file = scratch.path() / "a.jsonl";
  EXPECT_FALSE(complete_line_bytes(file).ok());
  EXPECT_FALSE(std::filesystem::exists(file)) << "it made the file";
  for (const std::string text : {"", "{}\n", "{\"a\":1}\n{\"a\"", "{\"a\""}) {
    write_text(file, text);
    const auto size = complete_line_bytes(file);
    ASSERT_TRUE(size.ok());
    EXPECT_EQ(*size, text.find('\n') + 1) << text;
    EXPECT_EQ(*read_text_file(file), text);
  }
}

TEST(LineFile, ATornFileOfOneLongLineBecomesEmpty) {
  ScratchFolder scratch;
  const auto file = scratch.path() / "a.jsonl";
  write_text(file, std::string(10'000, 'x'));
  auto lines = LineFile::open(file);
  ASSERT_TRUE(lines.ok());
  EXPECT_EQ(std::filesystem::file_size(file), 0U);
}

TEST(LineFile, AMissingFolderIsNamed) {
  ScratchFolder scratch;
  const auto lines = LineFile::open(scratch.path() / "none" / "a.jsonl");
  ASSERT_FALSE(lines.ok());
  EXPECT_EQ(lines.error().code(), Code::kNotFound);
  EXPECT_THAT(lines.error().message(), HasSubstr("none/a.jsonl"));
}

TEST(LineFile, AFullDiskLeavesWholeLinesAndStaysAnError) {
  ScratchFolder scratch;
  const auto file = scratch.path() / "a.jsonl";
  auto lines = LineFile::open(file);
  ASSERT_TRUE(lines.ok());
  const std::string line(60, 'x');
  // A limit on the file size refuses writes in the middle of a line, like a full disk.
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit tight{150, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  ASSERT_TRUE((*lines)->append(line).ok());
  ASSERT_TRUE((*lines)->append(line).ok());
  const Status third = (*lines)->append(line);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, before);
  EXPECT_FALSE(third.ok());
  EXPECT_FALSE((*lines)->append("{}").ok());
  EXPECT_EQ(*read_text_file(file), line + "\n" + line + "\n");
}

TEST(LineFile, ALineOfTheLargestSizeFitsAndOneMoreByteDoesNot) {
  ScratchFolder scratch;
  auto lines = LineFile::open(scratch.path() / "a.jsonl");
  ASSERT_TRUE(lines.ok());
  EXPECT_TRUE((*lines)->append(std::string(LineFile::kLineBytesMax - 1, 'x')).ok());
  const Status over = (*lines)->append(std::string(LineFile::kLineBytesMax, 'x'));
  ASSERT_FALSE(over.ok());
  EXPECT_EQ(over.error().code(), Code::kExhausted);
  EXPECT_TRUE((*lines)->append("{}").ok());
}

TEST(FollowedLines, TakesWhatIsThereAndThenNothing) {
  ScratchFolder scratch;
  const auto file = scratch.path() / "a.jsonl";
  write_text(file, "before\none\ntwo\n");
  auto lines = FollowedLines::open(file, 7);
  ASSERT_TRUE(lines.ok());
  EXPECT_TRUE(*(*lines)->take("one"));
  EXPECT_TRUE(*(*lines)->take("two"));
  EXPECT_FALSE(*(*lines)->take("three"));
  EXPECT_EQ(*read_text_file(file), "before\none\ntwo\n");
}

TEST(FollowedLines, CutsWhatIsBeyondTheRecord) {
  ScratchFolder scratch;
  const auto file = scratch.path() / "a.jsonl";
  write_text(file, "one\ntwo\nthr");
  auto lines = FollowedLines::open(file, 0);
  ASSERT_TRUE(lines.ok());
  EXPECT_TRUE(*(*lines)->take("one"));
  ASSERT_TRUE((*lines)->cut().ok());
  EXPECT_EQ(*read_text_file(file), "one\n");
}

TEST(FollowedLines, CutsATornLastLineWhenItIsReached) {
  ScratchFolder scratch;
  const auto file = scratch.path() / "a.jsonl";
  write_text(file, "one\ntwo");
  auto lines = FollowedLines::open(file, 0);
  EXPECT_TRUE(*(*lines)->take("one"));
  EXPECT_FALSE(*(*lines)->take("two"));
  EXPECT_EQ(*read_text_file(file), "one\n");
}

TEST(FollowedLines, NamesTheLineThatIsOtherwise) {
  ScratchFolder scratch;
  const auto file = scratch.path() / "a.jsonl";
  write_text(file, "one\ntwo\n");
  auto lines = FollowedLines::open(file, 0);
  EXPECT_TRUE(*(*lines)->take("one"));
  const auto other = (*lines)->take("TWO");
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().text(), HasSubstr("line 2 of this start"));
  EXPECT_THAT(other.error().text(), HasSubstr("there: two"));
}

TEST(FollowedLines, AFileThatIsShorterThanItWasOrGoneIsRefused) {
  ScratchFolder scratch;
  const auto file = scratch.path() / "a.jsonl";
  EXPECT_TRUE(FollowedLines::open(file, 0).ok());
  EXPECT_FALSE(FollowedLines::open(file, 1).ok());
  write_text(file, "one\n");
  EXPECT_TRUE(FollowedLines::open(file, 4).ok());
  EXPECT_FALSE(FollowedLines::open(file, 5).ok());
}

}  // namespace
}  // namespace primerl
