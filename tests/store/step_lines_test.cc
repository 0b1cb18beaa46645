// Steps on the way from a trainer to metrics.jsonl: none lost, none twice, at any time of reading.
#include "runtime/store/step_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

StepLine a_step(int64_t step) {
  return {"main", step, 1e9 + 0.5 * static_cast<double>(step), {{"reward/all/mean", 0.25}}};
}

/// All waiting steps, read like the control plane does: block by block.
std::vector<int64_t> take_all(StepReader& reader) {
  std::vector<int64_t> steps;
  while (true) {
    const auto lines = reader.take();
    EXPECT_TRUE(lines.ok()) << lines.error().text();
    if (!lines.ok() || lines->empty()) return steps;
    for (const auto& line : *lines) steps.push_back(line.step);
  }
}

TEST(StepLines, OfAMissingFileAreEmpty) {
  const ScratchFolder scratch;
  StepReader reader(scratch.path() / "main.steps.jsonl");
  EXPECT_THAT(take_all(reader), IsEmpty());
}

TEST(StepLines, ArriveAsTheyWereReported) {
  const ScratchFolder scratch;
  const auto file = step_lines_file(scratch.path(), "inference#0");
  EXPECT_EQ(file.filename(), "inference-0.steps.jsonl");
  StepWriter writer(file);
  const StepLine sent{"other",
                      7,
                      1732256742.123456,
                      {{"z/first", 0.1}, {"a/second", std::nan("")}, {"b/third", -3}}};
  ASSERT_TRUE(writer.append(sent).ok());
  StepReader reader(file);
  const auto lines = reader.take();
  ASSERT_TRUE(lines.ok()) << lines.error().text();
  ASSERT_EQ(lines->size(), 1U);
  const StepLine& line = lines->front();
  EXPECT_EQ(line.tenant, "other");
  EXPECT_EQ(line.step, 7);
  EXPECT_EQ(line.wall_seconds, sent.wall_seconds);
  ASSERT_EQ(line.values.size(), 3U);
  EXPECT_EQ(line.values[0], sent.values[0]);
  EXPECT_EQ(line.values[1].first, "a/second");
  EXPECT_TRUE(std::isnan(line.values[1].second));
  EXPECT_EQ(line.values[2], sent.values[2]);
}

// The control channel holds 4 MiB; before, further steps were dropped.
TEST(StepLines, WaitForAReaderThatStoodStillHoweverManyThereAre) {
  constexpr int64_t kSteps = 20'000;
  const ScratchFolder scratch;
  const auto file = step_lines_file(scratch.path(), "main");
  StepWriter writer(file);
  StepReader reader(file);
  StepLine line = a_step(0);
  for (int i = 0; i < 25; ++i) line.values.emplace_back(fmt::format("a/long/name/{}", i), 0.125);
  std::vector<int64_t> expected;
  for (line.step = 1; line.step <= kSteps; ++line.step) {
    ASSERT_TRUE(writer.append(line).ok());
    expected.push_back(line.step);
  }
  ASSERT_GT(std::filesystem::file_size(file), uint64_t{8} << 20);
  EXPECT_EQ(take_all(reader), expected);
  EXPECT_THAT(take_all(reader), IsEmpty()) << "each once";
}

TEST(StepLines, AreReadWhileTheyAreWritten) {
  const ScratchFolder scratch;
  const auto file = step_lines_file(scratch.path(), "main");
  StepWriter writer(file);
  StepReader reader(file);
  for (int64_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE(writer.append(a_step(step)).ok());
    EXPECT_THAT(take_all(reader), ElementsAre(step));
  }
  // Half a line, as a reader may see it.
  { std::ofstream(file, std::ios::app) << "{\"step\": 4"; }
  EXPECT_THAT(take_all(reader), IsEmpty());
  { std::ofstream(file, std::ios::app) << ", \"tenant\": \"main\", \"at\": 1, \"values\": {}}\n"; }
  EXPECT_THAT(take_all(reader), ElementsAre(4));
}

TEST(StepLines, AnotherIncarnationAppendsToTheFile) {
  const ScratchFolder scratch;
  const auto file = step_lines_file(scratch.path(), "main");
  StepReader reader(file);
  ASSERT_TRUE(StepWriter(file).append(a_step(1)).ok());
  EXPECT_THAT(take_all(reader), ElementsAre(1));
  ASSERT_TRUE(StepWriter(file).append(a_step(2)).ok());
  EXPECT_THAT(take_all(reader), ElementsAre(2));
  reader.remove();
  EXPECT_FALSE(std::filesystem::exists(file));
}

// A step after a missing one would hide it: a resumed run counts from the last line.
TEST(StepLines, NothingIsWrittenAfterARefusedStep) {
  const ScratchFolder scratch;
  const auto folder = scratch.path() / "logs";
  const auto file = step_lines_file(folder, "main");
  StepWriter writer(file);
  const Status refused = writer.append(a_step(1));
  ASSERT_FALSE(refused.ok()) << "the folder does not exist";
  std::filesystem::create_directory(folder);
  const Status later = writer.append(a_step(2));
  ASSERT_FALSE(later.ok());
  EXPECT_EQ(later.error().text(), refused.error().text());
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(StepLines, ALineThatIsNoStepIsSaidWithItsFile) {
  const ScratchFolder scratch;
  const auto file = step_lines_file(scratch.path(), "main");
  for (const char* text : {"no json\n", "{\"step\": 1}\n", "[]\n",
                           "{\"step\": 1, \"tenant\": \"main\", \"at\": 1, \"values\": 2}\n"}) {
    write_text(file, text);
    StepReader reader(file);
    const auto lines = reader.take();
    ASSERT_FALSE(lines.ok()) << text;
    EXPECT_THAT(lines.error().text(), HasSubstr("main.steps.jsonl"));
  }
}

TEST(StepLines, OfAnEarlierStartAreFoundAndOnlyThose) {
  const ScratchFolder scratch;
  ASSERT_TRUE(StepWriter(step_lines_file(scratch.path(), "b")).append(a_step(1)).ok());
  ASSERT_TRUE(StepWriter(step_lines_file(scratch.path(), "a")).append(a_step(1)).ok());
  write_text(scratch.path() / "run.jsonl", "{}\n");
  EXPECT_THAT(find_step_lines(scratch.path()),
              ElementsAre(scratch.path() / "a.steps.jsonl", scratch.path() / "b.steps.jsonl"));
  EXPECT_THAT(find_step_lines(scratch.path() / "nothing"), IsEmpty());
}

}  // namespace
}  // namespace primerl
