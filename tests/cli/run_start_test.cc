// Runs that fail before their first step: the files that remain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/cli/program.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

Json parsed(const std::string& text) {
  auto json = parse_json(text, "output");
  EXPECT_TRUE(json.ok()) << (json.ok() ? "" : json.error().text()) << "\n" << text;
  return json.ok() ? *json : Json();
}

std::string scripted_graph() { return source_path("tests/cli/graphs/scripted.toml"); }

/// The worker ends before it sends a message.
TEST(RunStart, FailingBeforeItsFirstStepLeavesNoFolder) {
  ScratchFolder scratch;
  const fs::path out = scratch.path() / "run";
  const auto end = run_graph_program({"run", scripted_graph(), "--out", out.string()},
                                     {"PRIMERL_WORKER=/bin/false"});
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err,
              AllOf(HasSubstr("exited with code 1 before it was ready"),
                    HasSubstr("nothing had begun: run folder '" + out.string() + "' is removed")));
  EXPECT_THAT(end.out, IsEmpty()) << "no summary of a run that never was";
  EXPECT_FALSE(fs::exists(out));
  const auto json = run_graph_program({"run", scripted_graph(), "--out", out.string(), "--json"},
                                      {"PRIMERL_WORKER=/bin/false"});
  EXPECT_EQ(*parsed(json.out).get_string("end"), "failed");
  EXPECT_TRUE(parsed(json.out).find("folder")->is_null());
}

/// The default folder, and the link to the last run.
TEST(RunStart, FailingBeforeItsFirstStepDoesNotMoveLatest) {
  ScratchFolder scratch;
  const fs::path runs = scratch.path() / "runs";
  fs::create_directories(runs / "before");
  fs::create_directory_symlink("before", runs / "latest");
  const auto end = Program({"primerl-graph", "run", scripted_graph()},
                           {"PRIMERL_WORKER=/bin/false"}, scratch.path().string())
                       .wait();
  EXPECT_EQ(end.code, 1);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(runs)) left.push_back(entry.path().filename());
  EXPECT_THAT(left, testing::UnorderedElementsAre("before", "latest"));
  EXPECT_EQ(fs::read_symlink(runs / "latest"), "before");
}

TEST(RunStart, AFailedStartOfAResumeKeepsTheRun) {
  ScratchFolder scratch;
  const fs::path run = scratch.path() / "run";
  fs::create_directories(run);
  write_text(run / "run.json", R"({"schema": "primerl.run/1", "name": "a", "incarnation": 1})");
  std::string graph = *read_text_file(scripted_graph());
  const std::string relative = "../../../";
  graph.replace(graph.find(relative), relative.size(), source_path(""));
  write_text(run / "graph.resolved.toml", graph);
  const auto end =
      run_graph_program({"run", "--resume", run.string()}, {"PRIMERL_WORKER=/bin/false"});
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, testing::Not(HasSubstr("is removed")));
  EXPECT_TRUE(fs::exists(run / "run.json"));
}

}  // namespace
}  // namespace primerl
