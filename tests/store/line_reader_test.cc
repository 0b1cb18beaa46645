#include "runtime/store/line_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/store/line_file.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Order = LineReader::Order;

std::vector<std::string> lines_of(const std::filesystem::path& file, Order order) {
  auto reader = LineReader::open(file, order);
  EXPECT_TRUE(reader.ok()) << reader.error().text();
  std::vector<std::string> lines;
  std::string line;
  while (true) {
    const auto is_there = reader->next(line);
    EXPECT_TRUE(is_there.ok()) << is_there.error().text();
    if (!is_there.ok() || !*is_there) return lines;
    lines.push_back(line);
  }
}

class LineReaderTest : public ::testing::Test {
 protected:
  const ScratchFolder scratch_;
  const std::filesystem::path file_ = scratch_.path() / "lines";
};

TEST_F(LineReaderTest, GivesLinesOldestOrNewestFirst) {
  write_text(file_, "one\n\nthree\n");
  EXPECT_THAT(lines_of(file_, Order::kOldestFirst), ElementsAre("one", "", "three"));
  EXPECT_THAT(lines_of(file_, Order::kNewestFirst), ElementsAre("three", "", "one"));
}

TEST_F(LineReaderTest, LeavesOutATornLastLine) {
  write_text(file_, "one\ntwo\nthr");
  EXPECT_THAT(lines_of(file_, Order::kOldestFirst), ElementsAre("one", "two"));
  EXPECT_THAT(lines_of(file_, Order::kNewestFirst), ElementsAre("two", "one"));
  write_text(file_, "thr");
  EXPECT_THAT(lines_of(file_, Order::kNewestFirst), IsEmpty());
  write_text(file_, "");
  EXPECT_THAT(lines_of(file_, Order::kOldestFirst), IsEmpty());
}

TEST_F(LineReaderTest, JoinsLinesThatAreLongerThanABlock) {
  const std::vector<std::string> lines = {std::string(700'000, 'a'), "b", std::string(262'143, 'c'),
                                          std::string(262'144, 'd')};
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  write_text(file_, text);
  EXPECT_EQ(lines_of(file_, Order::kOldestFirst), lines);
  EXPECT_EQ(lines_of(file_, Order::kNewestFirst),
            std::vector<std::string>(lines.rbegin(), lines.rend()));
}

TEST_F(LineReaderTest, ReadsNothingThatIsAppendedLater) {
  write_text(file_, "one\n");
  auto reader = LineReader::open(file_, Order::kOldestFirst);
  ASSERT_TRUE(reader.ok());
  std::ofstream(file_, std::ios::app) << "two\n";
  std::string line;
  EXPECT_TRUE(*reader->next(line));
  EXPECT_FALSE(*reader->next(line));
}

TEST_F(LineReaderTest, SaysWhenTheFileWasCutMeanwhile) {
  write_text(file_, std::string(300'000, 'a') + "\n");
  auto reader = LineReader::open(file_, Order::kOldestFirst);
  ASSERT_TRUE(reader.ok());
  std::filesystem::resize_file(file_, 10);
  std::string line;
  const auto next = reader->next(line);
  ASSERT_FALSE(next.ok());
  EXPECT_EQ(next.error().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace primerl
