// `primerl-graph trace` called by a user or a program: exit codes, errors, JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/trace/segment_files.h"
#include "tests/cli/program.h"
#include "tests/trace/story.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TraceCommand : public ::testing::Test {
 protected:
  TraceCommand() {
    story::Story({.num_rounds = 40}).write(run("a"));
    story::StoryOptions changed{.num_rounds = 40};
    changed.change = [](story::Group& group) {
      if (group.ordinal == 10) group.members[0].reward = 7;
    };
    story::Story(changed).write(run("b"));
  }
  std::string run(const std::string& name) const { return (folder_.path() / name).string(); }
  ProgramEnd trace(std::vector<std::string> words) const {
    words.insert(words.begin(), "trace");
    return run_graph_program(std::move(words));
  }
  Json json(std::vector<std::string> words, int code = 0) const {
    words.emplace_back("--json");
    const ProgramEnd end = trace(words);
    EXPECT_EQ(end.code, code) << end.err;
    auto parsed = parse_json(end.out, "output");
    EXPECT_TRUE(parsed.ok()) << end.out;
    return parsed.ok() ? *parsed : Json();
  }
  fs::path segment(const std::string& name) const {
    return segment_path(fs::path(run(name)) / "trace", "main", 1, 1);
  }

  ScratchFolder folder_;
};

TEST_F(TraceCommand, EveryActionSpeaksJson) {
  const std::string a = run("a");
  EXPECT_EQ(json({"ls", a}).find("num_more")->as_int(), 40);
  EXPECT_EQ(json({"ls", a, "--node", "env"}).find("steps")->as_array().size(), 40u);
  EXPECT_EQ(json({"grep", a, "ordinal=7"}).find("steps")->as_array().size(), 2u);
  EXPECT_EQ(json({"cat", a, "trainer:1"}).find("at")->as_string(), "trainer:1");
  EXPECT_EQ(json({"stat", a}).find("num_steps")->as_int(), 140);
  EXPECT_TRUE(json({"stat", a}).find("complete")->as_bool());
  EXPECT_EQ(json({"why", a, "trainer:2"}).find("steps")->as_array().size(), 3u);
  EXPECT_EQ(json({"after", a, "env:2"}).find("steps")->as_array().size(), 3u);
  EXPECT_TRUE(json({"diff", a, a}).find("equal")->as_bool());
  EXPECT_TRUE(json({"verify", a}).find("sound")->as_bool());
  EXPECT_TRUE(json({"pack", a}).find("files")->is_array());
  EXPECT_TRUE(json({"recover", a}).find("files")->is_array());
  // A packed record gives the same answers.
  EXPECT_EQ(json({"grep", a, "ordinal=7"}).find("steps")->as_array().size(), 2u);
  EXPECT_TRUE(json({"diff", run("b"), run("b")}).find("equal")->as_bool());
}

TEST_F(TraceCommand, EveryActionSpeaksToPeople) {
  const std::string a = run("a");
  EXPECT_THAT(trace({"ls", a, "--limit", "1"}).out, HasSubstr("139 more: raise --limit"));
  EXPECT_THAT(trace({"stat", a}).out, HasSubstr("replay is possible from the start to the end"));
  EXPECT_THAT(trace({"cat", a, "rollout.main:2"}).out, HasSubstr("\"ordinal\": 2"));
  EXPECT_THAT(trace({"why", a, "trainer:2"}).out, HasSubstr("    env:2  work"));
  EXPECT_THAT(trace({"verify", a}).out, HasSubstr("sound: 1 segment,"));
}

TEST_F(TraceCommand, DiffExitsWithFour) {
  const ProgramEnd equal = trace({"diff", run("a"), run("a")});
  EXPECT_EQ(equal.code, 0) << equal.err;
  const ProgramEnd different = trace({"diff", run("a"), run("b")});
  EXPECT_EQ(different.code, 4) << different.err;
  EXPECT_THAT(different.out, HasSubstr("first difference: rollout.main:12 [output] cause"));
  EXPECT_THAT(different.out, HasSubstr("members[0].reward: "));
  EXPECT_THAT(different.out, HasSubstr("trainer:12 [content] victim of rollout.main:12"));
}

TEST_F(TraceCommand, BadCommandLinesExitWithThree) {
  const std::string a = run("a");
  const ProgramEnd unknown = trace({"ls", a, "--node", "trianer"});
  EXPECT_EQ(unknown.code, 3);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean 'trainer'?"));
  const ProgramEnd beyond = trace({"cat", a, "env:41"});
  EXPECT_EQ(beyond.code, 3);
  EXPECT_THAT(beyond.err, HasSubstr("its steps go from 1 to 40"));
  const ProgramEnd action = trace({"grpe", a});
  EXPECT_EQ(action.code, 3);
  EXPECT_THAT(action.err, HasSubstr("did you mean 'grep'?"));
  const ProgramEnd flag = trace({"ls", a, "--nod", "env"});
  EXPECT_EQ(flag.code, 3);
  EXPECT_THAT(flag.err, HasSubstr("did you mean '--node'?"));
  EXPECT_EQ(trace({}).code, 3);
  EXPECT_EQ(trace({"cat", a}).code, 3);
}

TEST_F(TraceCommand, AnUnreadableRecordExitsWithOne) {
  const ProgramEnd none = trace({"stat", folder_.path().string()});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("no trace in"));
  EXPECT_EQ(trace({"stat", run("absent")}).code, 1);
  auto bytes = *read_text_file(segment("b"));
  bytes[8] = 9;
  write_text(segment("b"), bytes);
  const ProgramEnd version = trace({"stat", run("b")});
  EXPECT_EQ(version.code, 1);
  EXPECT_THAT(version.err, HasSubstr("format version 9; this program reads 3"));
}

TEST_F(TraceCommand, ATruncatedFileIsIncompleteAndNeverSilent) {
  const auto bytes = *read_text_file(segment("b"));
  write_text(segment("b"), bytes.substr(0, 20'000));
  const ProgramEnd end = trace({"stat", run("b")});
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("INCOMPLETE"));
  EXPECT_THAT(end.out, HasSubstr("tail cut after step"));
  EXPECT_EQ(trace({"verify", run("b")}).code, 1);
  const ProgramEnd diff = trace({"diff", run("a"), run("b")});
  EXPECT_EQ(diff.code, 4);
  EXPECT_THAT(diff.out, HasSubstr("b is cut after step"));
}

TEST_F(TraceCommand, ExportWritesAFilePerfettoReads) {
  const std::string file = run("export.json");
  const ProgramEnd end = trace({"export", run("a"), "--out", file, "--from", "0", "--to", "1"});
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, IsEmpty());
  const auto exported = parse_json(*read_text_file(file), "export");
  ASSERT_TRUE(exported.ok());
  EXPECT_GT(exported->find("traceEvents")->as_array().size(), 300u);
  EXPECT_EQ(trace({"export", run("a"), "--out", "/nowhere/x.json"}).code, 1);
}

TEST_F(TraceCommand, EveryActionHasHelpWithAnExample) {
  for (const char* action : {"ls", "cat", "grep", "stat", "why", "after", "diff", "export",
                             "verify", "recover", "pack"}) {
    const ProgramEnd end = trace({action, "--help"});
    EXPECT_EQ(end.code, 0) << action;
    EXPECT_THAT(end.out, HasSubstr(std::string("primerl-graph trace ") + action)) << action;
    EXPECT_THAT(end.out, HasSubstr("Example:")) << action;
  }
}

}  // namespace
}  // namespace primerl
