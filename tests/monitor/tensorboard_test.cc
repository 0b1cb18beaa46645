#include "runtime/monitor/tensorboard.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "graph/base/crc32c.h"
#include "graph/base/files.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

fs::path write_events(const fs::path& folder) {
  auto board = TensorBoardFile::create(folder, 1.75e9);
  EXPECT_TRUE(board.ok()) << board.error().text();
  EXPECT_TRUE((*board)->write(1.75e9 + 1, 1, "", {{"reward/all/mean", 0.25}}).ok());
  EXPECT_TRUE((*board)->write(1.75e9 + 2, 300, "main/", {{"a", 1.5}, {"b", -2}}).ok());
  for (const auto& entry : fs::directory_iterator(folder)) return entry.path();
  return {};
}

/// Splits a file into records and checks both checksums of each.
std::vector<std::string> records_of(const std::string& bytes) {
  std::vector<std::string> records;
  size_t at = 0;
  while (at < bytes.size()) {
    uint64_t length = 0;
    uint32_t crc = 0;
    std::memcpy(&length, bytes.data() + at, 8);
    std::memcpy(&crc, bytes.data() + at + 8, 4);
    EXPECT_EQ(crc, masked_crc32c(std::string_view(bytes).substr(at, 8)));
    records.push_back(bytes.substr(at + 12, length));
    std::memcpy(&crc, bytes.data() + at + 12 + length, 4);
    EXPECT_EQ(crc, masked_crc32c(records.back()));
    at += 12 + length + 4;
  }
  return records;
}

TEST(TensorBoard, RecordsAreFramedAndTheFirstNamesTheVersion) {
  ScratchFolder scratch;
  const fs::path file = write_events(scratch.path());
  EXPECT_NE(file.filename().string().find("tfevents"), std::string::npos);
  const auto records = records_of(*read_text_file(file));
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[0].substr(records[0].size() - 15),
            "\x1a\x0d"
            "brain.Event:2");
  // Event{1: wall_time, 2: step 1, 5: Summary{1: Value{1: tag, 2: 0.25}}}, byte for byte.
  const double wall_time = 1.75e9 + 1;
  std::string expected("\x09", 1);
  expected.append(reinterpret_cast<const char*>(&wall_time), 8);
  expected += std::string("\x10\x01", 2);
  expected += std::string(
      "\x2a\x18\x0a\x16\x0a\x0f"
      "reward/all/mean"
      "\x15\x00\x00\x80\x3e",
      26);
  EXPECT_EQ(records[1], expected);
}

/// The doubles of a packed field of one histogram in an event; the field's tag must be unique.
std::vector<double> doubles_after(const std::string& event, char key, size_t count) {
  const size_t at = event.find(std::string{key, static_cast<char>(count * 8)});
  EXPECT_NE(at, std::string::npos);
  std::vector<double> values(count);
  std::memcpy(values.data(), event.data() + at + 2, count * 8);
  return values;
}

TEST(TensorBoard, AHistogramIsOneValueWithItsBuckets) {
  ScratchFolder scratch;
  auto board = TensorBoardFile::create(scratch.path(), 1.75e9);
  ASSERT_TRUE(board.ok());
  ASSERT_TRUE(
      (*board)
          ->write(
              1.75e9, 1, "main/",
              {{"a", 1}, {"x/le/0.5", 0}, {"x/le/1", 3}, {"x/le/inf", 1}, {"y/le/0", 2}, {"b", 2}})
          .ok());
  const auto file = fs::directory_iterator(scratch.path())->path();
  const std::string event = records_of(*read_text_file(file))[1];
  for (const char* tag : {"main/a", "main/x", "main/y", "main/b"})
    EXPECT_NE(event.find(tag), std::string::npos) << tag;
  EXPECT_EQ(event.find("/le/"), std::string::npos);
  EXPECT_EQ(doubles_after(event, '\x32', 2), (std::vector<double>{1, 2}));  // bucket_limit
  EXPECT_EQ(doubles_after(event, '\x3a', 2), (std::vector<double>{3, 1}));  // bucket
  const double min = 0.5, max = 2, num = 4, sum = 3 * 0.75 + 1.5;
  for (const auto& [key, value] :
       {std::pair{'\x09', min}, {'\x11', max}, {'\x19', num}, {'\x21', sum}}) {
    std::string bytes(9, key);
    std::memcpy(bytes.data() + 1, &value, 8);
    EXPECT_NE(event.find(bytes), std::string::npos) << value;
  }
}

TEST(TensorBoard, EachStartHasAFileOfItsOwn) {
  ScratchFolder scratch;
  ASSERT_TRUE(TensorBoardFile::create(scratch.path(), 1.75e9).ok());
  ASSERT_TRUE(TensorBoardFile::create(scratch.path(), 1.75e9).ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), fs::directory_iterator()), 2);
}

TEST(TensorBoard, ThePackageReadsWhatWasWritten) {
  const std::string python(PRIMERL_PYTHON);
  if (std::system((python + " -c 'import tensorboard' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "no tensorboard package in " << python;
  ScratchFolder scratch;
  write_events(scratch.path());
  const std::string script =
      "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator as E\n"
      "import sys\n"
      "e = E(sys.argv[1]); e.Reload()\n"
      "for tag in sorted(e.Tags()['scalars']):\n"
      "  print(tag, [(s.step, s.value, s.wall_time) for s in e.Scalars(tag)])\n";
  write_text(scratch.path() / "read.py", script);
  const std::string command =
      python + " " + (scratch.path() / "read.py").string() + " " + scratch.path().string();
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string text;
  char block[512];
  while (std::fgets(block, sizeof block, pipe.get()) != nullptr) text += block;
  EXPECT_EQ(text,
            "main/a [(300, 1.5, 1750000002.0)]\n"
            "main/b [(300, -2.0, 1750000002.0)]\n"
            "reward/all/mean [(1, 0.25, 1750000001.0)]\n");
}

}  // namespace
}  // namespace primerl
