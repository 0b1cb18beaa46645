// bench/step_lines.py: the steps among the other lines of metrics.jsonl.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/cli/program.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStepLines =
    "{\"step\":1,\"tenant\":\"main\",\"reward/all/mean\":0.5,\"progress/samples\":8}\n"
    "{\"step\":1,\"tenant\":\"main\",\"waiting/groups_filtered\":3,\"waiting/groups\":8}\n"
    "{\"step\":1,\"tenant\":\"main\",\"eval/words/avg@1\":0.5}\n"
    "{\"step\":1,\"tenant\":\"main\",\"env/words/num_turns/mean\":2}\n"
    "{\"step\":2,\"tenant\":\"main\",\"reward/all/mean\":0.6,\"progress/samples\":8}\n";

/// The steps that the helper finds in `file`, and how many it counts.
std::string steps_found_in(const fs::path& file) {
  const std::string script =
      "import sys; sys.path.insert(0, sys.argv[1]); from step_lines import *; "
      "print([row['step'] for row in step_lines(sys.argv[2])], num_steps(sys.argv[2]))";
  const auto end = Program({"/usr/bin/env", PRIMERL_PYTHON, "-B", "-c", script,
                            source_path("bench"), file.string()})
                       .wait();
  EXPECT_EQ(end.code, 0) << end.err;
  return end.out;
}

TEST(StepLines, OtherLinesAreNoSteps) {
  const ScratchFolder folder;
  write_text(folder.path() / "metrics.jsonl", kStepLines);
  EXPECT_EQ(steps_found_in(folder.path() / "metrics.jsonl"), "[1, 2] 2\n");
}

TEST(StepLines, ALineThatIsBeingWrittenIsNoStepYet) {
  const ScratchFolder folder;
  write_text(folder.path() / "metrics.jsonl",
             std::string(kStepLines) + "{\"step\":3,\"progress/samples\":8");
  EXPECT_EQ(steps_found_in(folder.path() / "metrics.jsonl"), "[1, 2] 2\n");
  EXPECT_EQ(steps_found_in(folder.path() / "missing.jsonl"), "[] 0\n");
}

// A script that reads the file itself fails at the first line that is no step.
TEST(StepLines, NoScriptOfABenchReadsMetricsByItself) {
  size_t num_scripts = 0;
  for (const auto& entry : fs::recursive_directory_iterator(source_path("bench"))) {
    if (entry.path().extension() != ".py" || entry.path().filename() == "step_lines.py") continue;
    const std::string text = *read_text_file(entry.path());
    if (text.find("metrics.jsonl\"") == std::string::npos) continue;
    ++num_scripts;
    EXPECT_NE(text.find("from step_lines import"), std::string::npos) << entry.path();
    EXPECT_EQ(text.find("map(json.loads, lines)"), std::string::npos)
        << entry.path() << " reads lines of its own";
  }
  EXPECT_GT(num_scripts, 10U);
}

}  // namespace
}  // namespace primerl
