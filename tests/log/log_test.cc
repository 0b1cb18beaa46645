#include <algorithm>

#include "runtime/log/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/files.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using testing::HasSubstr;

TEST(Log, WritesOneJsonObjectALine) {
  ScratchFolder scratch;
  const auto file = scratch.path() / "main.jsonl";
  {
    auto log = Log::open(file, {.stderr_level = LogLevel::kError});
    ASSERT_TRUE(log.ok()) << log.error().text();
    (*log)->write(LogLevel::kDebug, "decode", "not kept");
    (*log)->write(LogLevel::kInfo, "decode", "a \"quoted\"\nline %v {}");
    (*log)->write(LogLevel::kWarning, "router", "second");
  }
  const std::string text = *read_text_file(file);
  const auto first = parse_json(text.substr(0, text.find('\n')), "first");
  ASSERT_TRUE(first.ok()) << first.error().text() << "\n" << text;
  EXPECT_EQ(*first->get_string("message"), "a \"quoted\"\nline %v {}");
  EXPECT_EQ(*first->get_string("level"), "info");
  EXPECT_EQ(*first->get_string("instance"), "decode");
  EXPECT_EQ(first->get_string("timestamp")->size(), std::string("2026-11-21T06:24:45.123Z").size());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST(Log, TheLastLineIsWrittenWhenItReturns) {
  ScratchFolder scratch;
  const auto file = scratch.path() / "main.jsonl";
  auto log = Log::open(file, {.lines_max = 1, .stderr_level = LogLevel::kError});
  ASSERT_TRUE(log.ok()) << log.error().text();
  ::testing::internal::CaptureStderr();
  (*log)->write_last(LogLevel::kError, "trainer", "the device is lost");
  const std::string text = *read_text_file(file);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("error: trainer: the device is lost"));
  ASSERT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  const auto line = parse_json(text, "line");
  ASSERT_TRUE(line.ok()) << line.error().text();
  EXPECT_EQ(*line->get_string("level"), "error");
  EXPECT_EQ(*line->get_string("instance"), "trainer");
  EXPECT_EQ(*line->get_string("message"), "the device is lost");
}

TEST(Log, AnUnwritableFileIsAnError) {
  ScratchFolder scratch;
  write_text(scratch.path() / "file", "x");
  const auto log = Log::open(scratch.path() / "file" / "main.jsonl");
  ASSERT_FALSE(log.ok());
  EXPECT_THAT(log.error().message(), HasSubstr("main.jsonl"));
}

TEST(Log, AFloodIsDroppedAndCountedAndNeverWaitedFor) {
  ScratchFolder scratch;
  const auto file = scratch.path() / "main.jsonl";
  constexpr uint64_t kLines = 200'000;
  uint64_t dropped = 0;
  {
    auto log = Log::open(file, {.lines_max = 4});
    ASSERT_TRUE(log.ok());
    for (uint64_t i = 0; i < kLines; ++i) (*log)->write(LogLevel::kInfo, "a", "flood");
    dropped = (*log)->num_dropped();
  }
  const std::string text = *read_text_file(file);
  const auto kept = static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n'));
  EXPECT_GT(dropped, 0U);
  EXPECT_GE(kept + dropped, kLines - 8);
  EXPECT_LT(kept, kLines);
}

}  // namespace
}  // namespace primerl
