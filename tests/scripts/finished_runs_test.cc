// bench/finished_runs.py: runs of a bench that continue after a cut.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/cli/program.h"

namespace primerl {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

/// Runs `body` with a FinishedRuns of `file` in `runs`.
ProgramEnd with_runs(const fs::path& file, const std::string& settings, const std::string& body) {
  const std::string script =
      "import sys; sys.path.insert(0, sys.argv[1]); from finished_runs import *; "
      "runs = FinishedRuns(sys.argv[2], " +
      settings + "); " + body;
  return Program({"/usr/bin/env", PRIMERL_PYTHON, "-B", "-c", script, source_path("bench"),
                  file.string()})
      .wait();
}

TEST(FinishedRuns, AreThereAfterACutInTheMiddleOfALine) {
  const ScratchFolder folder;
  const fs::path file = folder.path() / "new" / "runs.jsonl";
  EXPECT_EQ(with_runs(file, "{'steps': 60}", "runs.add(('a', 1), 0.5); runs.add(('b', 2), 1)").code,
            0);
  write_text(file, *read_text_file(file) + "{\"key\": [\"c\", 3], \"res");
  const auto again =
      with_runs(file, "{'steps': 60}", "runs.add(('d', 4), 2); print(sorted(runs.results))");
  EXPECT_EQ(again.out, "[('a', 1), ('b', 2), ('d', 4)]\n") << again.err;
  EXPECT_EQ(with_runs(file, "{'steps': 60}", "print(runs.results)").out,
            "{('a', 1): 0.5, ('b', 2): 1, ('d', 4): 2}\n");
}

TEST(FinishedRuns, OfOtherSettingsAreRefused) {
  const ScratchFolder folder;
  const fs::path file = folder.path() / "runs.jsonl";
  EXPECT_EQ(with_runs(file, "{'steps': 60}", "runs.add(('a', 1), 0.5)").code, 0);
  const auto other = with_runs(file, "{'steps': 80}", "print(runs.results)");
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, HasSubstr("has runs with other settings: {\"steps\": 60}"));
}

TEST(FinishedRuns, ARunThatFailsOrDoesNotEndExitsWithItsOutput) {
  const ScratchFolder folder;
  const fs::path file = folder.path() / "runs.jsonl";
  const auto failed = with_runs(file, "{}", "run_bounded(['sh', '-c', 'echo full; exit 3'], 60)");
  EXPECT_EQ(failed.code, 1);
  EXPECT_THAT(failed.err, HasSubstr("full"));
  const auto late = with_runs(file, "{}", "run_bounded(['sleep', '60'], 0.01)");
  EXPECT_EQ(late.code, 1);
  EXPECT_THAT(late.err, HasSubstr("has not ended within"));
}

}  // namespace
}  // namespace primerl
