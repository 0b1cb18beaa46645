// Replays of a few steps of the demo: complete, stepped by hand, changed, and impossible ones.
#include <memory>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/crc32c.h"
#include "runtime/store/checkpoint.h"
#include "tests/e2e/run_files.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

/// One recorded run for all tests: 6 steps of the demo.
class ReplayOfTheDemo : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = std::make_unique<ScratchFolder>();
    const auto end = run_graph_program({"run", source_path("examples/reverse_text/graph.toml"),
                                        "--max-steps", "6", "--out", run_folder()});
    ASSERT_EQ(end.code, 0) << end.err;
  }
  static void TearDownTestSuite() { scratch_.reset(); }
  static std::string run_folder() { return (scratch_->path() / "run").string(); }

  static ProgramEnd replay(std::vector<std::string> more) {
    more.insert(more.begin(), {"replay", run_folder()});
    return run_graph_program(more);
  }
  static ProgramEnd bisect(const std::string& until) {
    return run_graph_program({"bisect", run_folder(), "--until", until});
  }
  static Json json_of(const ProgramEnd& end) {
    auto json = parse_json(end.out, "stdout");
    EXPECT_TRUE(json.ok()) << end.out << end.err;
    return json.ok() ? *json : Json::object();
  }
  /// Runs `replay --step` with these lines as input.
  static ProgramEnd step_by_hand(const std::string& typed) {
    write_text(scratch_->path() / "typed", typed);
    write_text(scratch_->path() / "step.sh",
               "exec '" PRIMERL_BINARY_DIR "/bin/primerl-graph' replay '" + run_folder() +
                   "' --depth control --step <'" + (scratch_->path() / "typed").string() + "'\n");
    return Program({"/bin/bash", (scratch_->path() / "step.sh").string()}).wait();
  }

 private:
  static inline std::unique_ptr<ScratchFolder> scratch_;
};

TEST_F(ReplayOfTheDemo, IsIdenticalAtEveryDepthAndOnEightThreads) {
  int64_t num_steps = -1;
  for (const std::string depth : {"control", "learner", "full"}) {
    SCOPED_TRACE(depth);
    const auto end = replay({"--depth", depth, "--threads", depth == "control" ? "8" : "1",  //
                             "--json"});
    EXPECT_EQ(end.code, 0) << end.err;
    const Json report = json_of(end);
    EXPECT_EQ(*report.get_string("schema"), "primerl.replay/1");
    EXPECT_TRUE(*report.get_bool("identical")) << end.out;
    EXPECT_GT(*report.get_int("messages_compared"), 1000);
    for (const auto& group : report.find("groups")->as_array())
      EXPECT_EQ(*group.get_int("steps"), *group.get_int("recorded_steps")) << end.out;
    if (num_steps < 0) num_steps = *report.get_int("steps");
    EXPECT_EQ(*report.get_int("steps"), num_steps);
  }
}

TEST(ReplayOfTruncatedSampling, IsIdenticalAtEveryDepthWithKeptSetsInTheRecord) {
  const ScratchFolder scratch;
  const std::string folder = scratch.path() / "run";
  const auto run = run_graph_program({"run", source_path("examples/reverse_text/graph.toml"),
                                      "--max-steps", "3", "--out", folder, "--set",
                                      "tenant.main.sampling={ top_k = 3, max_tokens = 16 }"});
  ASSERT_EQ(run.code, 0) << run.err;
  for (const std::string depth : {"control", "learner", "full"}) {
    const auto end = run_graph_program({"replay", folder, "--depth", depth, "--json"});
    EXPECT_EQ(end.code, 0) << end.out << end.err;
    EXPECT_TRUE(*parse_json(end.out, "stdout")->get_bool("identical")) << end.out;
  }
}

TEST_F(ReplayOfTheDemo, SaysWhereAChangedOptionMakesItDiffer) {
  const auto text = replay({"--depth", "control", "--set", "tenant.main.environment.letters=xyz"});
  EXPECT_EQ(text.code, 4) << text.out << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("diverged, first here:\nenv.main:"),
                              HasSubstr("'env.task -> rollout.task' has another content"),
                              HasSubstr("prompt: recorded \"r:")));
  const auto json =
      replay({"--depth", "control", "--set", "tenant.main.environment.letters=xyz", "--json"});
  EXPECT_EQ(json.code, 4);
  const Json report = json_of(json);
  EXPECT_FALSE(*report.get_bool("identical"));
  const Json first = report.find("divergences")->as_array().at(0);
  EXPECT_EQ(*first.get_string("group"), "env.main");
  EXPECT_GE(*first.get_int("step"), 1);
  const auto wrong = replay({"--set", "tenant.main.environment.leters=xyz"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("leters"));
}

TEST_F(ReplayOfTheDemo, PlaysOneNodeUpToAStep) {
  const auto end = replay({"--node", "trainer", "--stop-at", "20", "--json"});
  EXPECT_EQ(end.code, 0) << end.err;
  const Json report = json_of(end);
  EXPECT_TRUE(*report.get_bool("identical"));
  EXPECT_EQ(*report.get_int("steps"), 19) << "the 20th is not taken";
  EXPECT_EQ(replay({"--node", "trainer", "--stop-at", "1000000"}).code, 3);
  EXPECT_EQ(replay({"--stop-at", "20"}).code, 3) << "of which node?";
  const auto unknown = replay({"--node", "trainr"});
  EXPECT_EQ(unknown.code, 3);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean 'trainer'?"));
}

TEST_F(ReplayOfTheDemo, BecomesATestThatReplaysByItself) {
  const fs::path folder = fs::path(run_folder()).parent_path() / "fixture";
  const auto nothing = replay({"--depth", "control", "--fixture", folder.string()});
  EXPECT_EQ(nothing.code, 2) << "nothing diverged, no node is named";
  EXPECT_THAT(nothing.err, HasSubstr("say what to test with --node NAME"));
  const auto end = replay({"--node", "router", "--stop-at", "51", "--fixture", folder.string()});
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("fixture: steps 1 to 50 of 'router' in " + folder.string()));
  EXPECT_TRUE(fs::exists(folder / "router_50_test.cc"));
  EXPECT_TRUE(fs::exists(folder / "README.md"));
  const auto alone = run_graph_program({"replay", folder.string(), "--json"});
  EXPECT_EQ(alone.code, 0) << alone.err;
  EXPECT_EQ(*json_of(alone).get_int("steps"), 50);
  EXPECT_TRUE(*json_of(alone).get_bool("identical"));
  EXPECT_EQ(replay({"--node", "router", "--fixture", folder.string()}).code, 2) << "it is there";
  EXPECT_EQ(replay({"--step", "--fixture", folder.string()}).code, 3);
}

TEST_F(ReplayOfTheDemo, BecomesATestOfWhatDiverged) {
  const fs::path folder = fs::path(run_folder()).parent_path() / "diverged";
  const auto end = replay({"--depth", "control", "--set", "tenant.main.environment.letters=xyz",
                           "--fixture", folder.string(), "--json"});
  EXPECT_EQ(end.code, 4) << end.err;
  const Json fixture = *json_of(end).find("fixture");
  EXPECT_EQ(*fixture.get_string("group"), "env.main");
  EXPECT_LT(*fixture.get_int("bytes"), 16 << 10);
  const auto alone = run_graph_program({"replay", folder.string(), "--depth", "control"});
  EXPECT_EQ(alone.code, 4) << alone.err;
  EXPECT_THAT(alone.out, AllOf(HasSubstr("diverged, first here:\nenv.main:"),
                               HasSubstr("prompt: recorded \"r:")));
}

TEST_F(ReplayOfTheDemo, WritesIntoANewFolderOfItsOwnerAlone) {
  const auto into_the_run = replay({"--depth", "control", "--out", std::string(run_folder())});
  EXPECT_EQ(into_the_run.code, 2) << into_the_run.err;
  EXPECT_THAT(into_the_run.err, AllOf(HasSubstr("is not empty"), HasSubstr("give a new folder")));
  const fs::path folder = fs::path(run_folder()).parent_path() / "played";
  ASSERT_EQ(replay({"--depth", "control", "--out", folder.string()}).code, 0);
  EXPECT_EQ(fs::status(folder).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(folder / "rollouts.jsonl").permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(*lines_of(folder / "metrics.jsonl").at(0).get_string("tenant"), "main");
}

TEST_F(ReplayOfTheDemo, SaysWhenItCannotKeepWhatWasAskedFor) {
  // A limit of 4 KiB per file simulates a full disk.
  const fs::path folder = fs::path(run_folder()).parent_path() / "kept";
  const auto end =
      Program(
          {"/bin/sh", "-c",
           fmt::format("ulimit -f 8; exec {}/bin/primerl-graph replay {} --depth control --out {}",
                       PRIMERL_BINARY_DIR, run_folder(), folder.string())})
          .wait();
  EXPECT_EQ(end.code, 1) << end.out;
  EXPECT_THAT(end.err,
              AllOf(HasSubstr("File too large"), HasSubstr("keeping what the replay said")));
  EXPECT_THAT(end.out, HasSubstr("identical"));
}

TEST_F(ReplayOfTheDemo, IsSteppedByHandForwardAndBack) {
  const auto end = step_by_hand("next\nnext 4\nback 2\nshow trainer\ngo trainer:5\nfly\nquit\n");
  EXPECT_EQ(end.code, 0) << end.err;
  std::vector<std::string> upcoming;
  std::istringstream lines(end.out);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("next: ")) upcoming.push_back(line);
  ASSERT_EQ(upcoming.size(), 7U) << end.out;
  EXPECT_EQ(upcoming[3], upcoming[4]) << "a look moves nothing";
  EXPECT_NE(upcoming[2], upcoming[3]) << "two steps back";
  EXPECT_THAT(upcoming[5], HasSubstr("next: trainer:5 <- "));
  EXPECT_EQ(upcoming[6], upcoming[5]) << "what is no command moves nothing";
  EXPECT_THAT(end.out, AllOf(HasSubstr("\"group\": \"trainer\""), HasSubstr("no command 'fly'")));
  // Three steps forward end at the same step as five forward and two back.
  const auto three = step_by_hand("next 3\nquit\n");
  EXPECT_THAT(three.out, HasSubstr(upcoming[3] + "\n"));
}

TEST_F(ReplayOfTheDemo, IsSearchedForTheFirstStepWhereSomethingHolds) {
  const auto found = bisect("trainer.reward > 0");
  EXPECT_EQ(found.code, 0) << found.err;
  EXPECT_THAT(found.out, AllOf(HasSubstr("trainer:"), HasSubstr("reward of training step 1 = ")));
  const auto message = bisect("env.task.ordinal >= 9");
  EXPECT_EQ(message.code, 0) << message.err;
  EXPECT_THAT(message.out, HasSubstr("ordinal of message 10 of 'env.task -> rollout.task' = 9"));
  const auto never = bisect("trainer.reward/all/mean > 1");
  EXPECT_EQ(never.code, 1) << never.err;
  EXPECT_THAT(never.out, HasSubstr("never: looked at 6 values"));
  EXPECT_EQ(bisect("trainer.reward").code, 3);
  EXPECT_EQ(bisect("trainer.reward > much").code, 3);
  const auto unknown = bisect("trainer.rewrad > 0");
  EXPECT_EQ(unknown.code, 3);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("'trainer' publishes no 'rewrad'"),
                                 HasSubstr("it publishes: reward/all/mean")));
  EXPECT_EQ(bisect("trainr.reward > 0").code, 3);
  EXPECT_EQ(bisect("env.task.ordnal > 0").code, 3);
}

TEST(ReplayOfWhatIsNoTrace, SaysSo) {
  ScratchFolder scratch;
  const auto none = run_graph_program({"replay", scratch.path().string()});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("no trace in '"));
  const auto nowhere = run_graph_program({"replay", (scratch.path() / "x").string()});
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_THAT(nowhere.err, HasSubstr("no folder '"));
}

// The trainer is fast. So engines find that the announced version has left the channel, and fetch
// the newest; a replay must have that version available.
TEST(ReplayOfTheScriptedGraph, IsIdenticalWithEnginesThatSkippedVersions) {
  for (int i = 0; i < 5; ++i) {
    ScratchFolder scratch;
    const fs::path folder = scratch.path() / "run";
    ASSERT_EQ(run_graph_program(scripted_run(folder)).code, 0);
    const auto end = run_graph_program({"replay", folder.string()});
    EXPECT_EQ(end.code, 0) << "run " << i << "\n" << end.out << end.err;
  }
}

/// Eight steps, then four more from their checkpoint.
fs::path resumed_run(const ScratchFolder& scratch) {
  const fs::path run = scratch.path() / "run";
  EXPECT_EQ(run_graph_program(scripted_run(run)).code, 0);
  EXPECT_EQ(run_graph_program({"run", "--resume", run.string(), "--max-steps", "12"}).code, 0);
  return run;
}

TEST(AFixtureOfAResumedRun, BringsWhatItBeganFrom) {
  ScratchFolder scratch;
  const fs::path run = resumed_run(scratch);
  struct Case {
    std::string node, depth;
    bool has_learner;
  };
  const std::vector<Case> cases = {
      {"rollout", "control", false}, {"trainer", "control", false}, {"trainer", "full", true}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto made = run_graph_program({"replay", run.string(), "--depth", cases[i].depth,
                                         "--node", cases[i].node, "--fixture",
                                         (scratch.path() / fmt::format("{}", i)).string()});
    ASSERT_EQ(made.code, 0) << made.out << made.err;
  }
  fs::rename(run, scratch.path() / "elsewhere");
  for (size_t i = 0; i < cases.size(); ++i) {
    const fs::path folder = scratch.path() / fmt::format("{}", i);
    SCOPED_TRACE(cases[i].node + " " + cases[i].depth);
    const fs::path checkpoint = folder / "checkpoints" / "main" / "step_8";
    EXPECT_TRUE(fs::exists(checkpoint / "manifest.json"));
    EXPECT_EQ(fs::exists(checkpoint / "learner" / "state.json"), cases[i].has_learner);
    const std::string depth = cases[i].has_learner ? "learner" : "control";
    const auto played = run_graph_program({"replay", folder.string(), "--depth", depth});
    EXPECT_EQ(played.code, 0) << played.out << played.err;
    EXPECT_THAT(played.out, HasSubstr("identical"));
    // Without the manifest it cannot be replayed.
    fs::remove(checkpoint / "manifest.json");
    EXPECT_EQ(run_graph_program({"replay", folder.string(), "--depth", depth}).code, 2);
  }
}

TEST(AFixtureOfAResumedRun, RefusesACheckpointThatIsLargeAndSaysWhatToDo) {
  ScratchFolder scratch;
  const fs::path run = resumed_run(scratch), checkpoint = run / "checkpoints" / "step_8";
  constexpr int64_t kBytes = (1 << 20) + 1;
  const std::string large(kBytes, 'x');
  write_text(checkpoint / "weights" / "large.bin", large);
  Json manifest = json_file(checkpoint / "manifest.json"), files = *manifest.find("files");
  files.push_back(Json::object()
                      .set("path", "weights/large.bin")
                      .set("bytes", kBytes)
                      .set("crc32c", fmt::format("{:08x}", crc32c(large))));
  write_text(checkpoint / "manifest.json", manifest_text(manifest.set("files", files)));
  const auto fixture_at = [&](const std::string& depth) {
    return run_graph_program({"replay", run.string(), "--depth", depth, "--node", "trainer",
                              "--fixture", (scratch.path() / "fixture").string()});
  };
  const auto refused = fixture_at("full");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("weights/large.bin' has 1048577 bytes"),
                                 HasSubstr("with --depth control its numbers come from the")));
  EXPECT_FALSE(fs::exists(scratch.path() / "fixture"));
  EXPECT_EQ(fixture_at("control").code, 0);
}

TEST(ReplayOfATamperedTrace, IsRefused) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  ASSERT_EQ(run_graph_program(scripted_run(folder, {"--set", "trace.pack=false"})).code, 0);
  ASSERT_EQ(run_graph_program({"replay", folder.string(), "--depth", "control"}).code, 0);
  int num_changed = 0;
  for (const auto& entry : fs::directory_iterator(folder / "trace")) {
    if (entry.path().extension() == ".index") {
      fs::remove(entry.path());
      continue;
    }
    std::string bytes = *read_text_file(entry.path());
    const auto at = bytes.find("group_size = 4");
    if (at == std::string::npos) continue;
    bytes.replace(at, 14, "group_size = 8");
    write_text(entry.path(), bytes);
    ++num_changed;
  }
  ASSERT_GT(num_changed, 0);
  const auto end = run_graph_program({"replay", folder.string(), "--depth", "control"});
  EXPECT_EQ(end.code, 2) << end.out;
  EXPECT_THAT(end.err, HasSubstr("no segment in '"));
}

}  // namespace
}  // namespace primerl
