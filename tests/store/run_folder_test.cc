#include "runtime/store/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

TEST(RunFolder, TheDefaultIsNamedByTimeAndLatestPointsToIt) {
  ScratchFolder scratch;
  const auto first = RunFolder::create(scratch.path(), "", "reverse-text", "20261121-062445");
  ASSERT_TRUE(first.ok()) << first.error().text();
  EXPECT_EQ((*first)->path().filename(), "20261121-062445-reverse-text");
  EXPECT_FALSE(fs::exists(fs::symlink_status(scratch.path() / "runs" / "latest")))
      << "before the run has begun";
  ASSERT_TRUE((*first)->become_latest().ok());
  EXPECT_EQ(fs::read_symlink(scratch.path() / "runs" / "latest"), "20261121-062445-reverse-text");
  const auto second = RunFolder::create(scratch.path(), "", "reverse-text", "20261121-062445");
  ASSERT_TRUE(second.ok());
  EXPECT_EQ((*second)->path().filename(), "20261121-062445-reverse-text-2");
  EXPECT_EQ(fs::read_symlink(scratch.path() / "runs" / "latest"), "20261121-062445-reverse-text");
  ASSERT_TRUE((*second)->become_latest().ok());
  EXPECT_EQ(fs::read_symlink(scratch.path() / "runs" / "latest"), "20261121-062445-reverse-text-2");
}

TEST(RunFolder, LatestPointsToAFolderElsewhereToo) {
  ScratchFolder scratch;
  const fs::path latest = scratch.path() / "runs" / "latest";
  const auto elsewhere = RunFolder::create(scratch.path(), scratch.path() / "out", "a", "t");
  ASSERT_TRUE(elsewhere.ok()) << elsewhere.error().text();
  ASSERT_TRUE((*elsewhere)->become_latest().ok());
  EXPECT_EQ(fs::read_symlink(latest), scratch.path() / "out");
  const auto below = RunFolder::create(scratch.path(), scratch.path() / "runs" / "mine", "a", "t");
  ASSERT_TRUE(below.ok()) << below.error().text();
  ASSERT_TRUE((*below)->become_latest().ok());
  EXPECT_EQ(fs::read_symlink(latest), "mine");
}

TEST(RunFolder, AFileInThePlaceOfLatestIsLeftAloneAndSaid) {
  ScratchFolder scratch;
  fs::create_directory(scratch.path() / "runs");
  write_text(scratch.path() / "runs" / "latest", "mine");
  const auto folder = RunFolder::create(scratch.path(), scratch.path() / "out", "a", "t");
  ASSERT_TRUE(folder.ok()) << folder.error().text();
  const Status latest = (*folder)->become_latest();
  ASSERT_FALSE(latest.ok());
  EXPECT_THAT(latest.error().text(), HasSubstr("is no symbolic link"));
}

TEST(RunFolder, WithoutKeepIsRemovedWithAllInIt) {
  ScratchFolder scratch;
  fs::create_directory(scratch.path() / "empty");
  for (const char* out : {"", "new", "empty"}) {
    const fs::path given = *out == '\0' ? fs::path() : scratch.path() / out;
    auto folder = RunFolder::create(scratch.path(), given, "a", "t");
    ASSERT_TRUE(folder.ok()) << folder.error().text();
    EXPECT_FALSE((*folder)->is_kept());
    ASSERT_TRUE((*folder)->note(Json::object().set("name", "a")).ok());
    write_text((*folder)->logs_folder() / "main.jsonl", "x");
  }
  EXPECT_FALSE(fs::exists(scratch.path() / "runs"));
  EXPECT_FALSE(fs::exists(scratch.path() / "new"));
  EXPECT_TRUE(fs::is_empty(scratch.path() / "empty")) << "it was there before";
}

TEST(RunFolder, WithoutKeepLeavesOtherRunsAndLatest) {
  ScratchFolder scratch;
  const auto first = RunFolder::create(scratch.path(), "", "a", "t");
  ASSERT_TRUE((*first)->become_latest().ok());
  { const auto second = RunFolder::create(scratch.path(), "", "b", "t"); }
  EXPECT_EQ(fs::read_symlink(scratch.path() / "runs" / "latest"), "t-a");
  EXPECT_TRUE(fs::exists(scratch.path() / "runs" / "t-a"));
  EXPECT_FALSE(fs::exists(scratch.path() / "runs" / "t-b"));
}

TEST(RunFolder, OpenedIsNeverRemoved) {
  ScratchFolder scratch;
  {
    const auto made = RunFolder::create(".", scratch.path() / "run", "a", "t");
    ASSERT_TRUE((*made)->note(Json::object().set("name", "a")).ok());
    (*made)->keep();
  }
  { ASSERT_TRUE(RunFolder::open(scratch.path() / "run").ok()); }
  EXPECT_TRUE(fs::exists(scratch.path() / "run" / "run.json"));
}

TEST(RunFolder, ARefusedStartIsRolledBack) {
  ScratchFolder scratch;
  const fs::path run = scratch.path() / "run";
  {
    const auto made = RunFolder::create(".", run, "a", "t");
    ASSERT_TRUE((*made)->write_graph("seed = 1\n").ok());
    ASSERT_TRUE((*made)->note(Json::object().set("incarnation", 3).set("end", "finished")).ok());
    (*made)->keep();
    fs::create_directory((*made)->trace_folder());
    write_text((*made)->trace_folder() / "first", "x");
  }
  const std::string facts = *read_text_file(run / "run.json");
  const auto folder = RunFolder::open(run);
  ASSERT_TRUE((*folder)->roll_back().ok()) << "nothing to do";
  ASSERT_TRUE((*folder)->remember().ok());
  ASSERT_TRUE((*folder)->set_trace_aside().ok());
  ASSERT_TRUE((*folder)->write_graph("seed = 2\n").ok());
  ASSERT_TRUE((*folder)->note(Json::object().set("incarnation", 4).set("why", "no")).ok());
  fs::create_directory((*folder)->trace_folder());
  write_text((*folder)->trace_folder() / "second", "y");
  ASSERT_TRUE((*folder)->roll_back().ok());
  EXPECT_EQ(*read_text_file(run / "graph.resolved.toml"), "seed = 1\n");
  EXPECT_EQ(*read_text_file(run / "run.json"), facts);
  EXPECT_EQ((*folder)->num_starts(), 3);
  EXPECT_TRUE(fs::exists(run / "trace" / "first"));
  EXPECT_FALSE(fs::exists(run / "trace" / "second"));
  EXPECT_FALSE(fs::exists(run / "trace.3"));
}

TEST(RunFolder, ARefusedStartIsRolledBackWithoutARecordThatWasRemoved) {
  ScratchFolder scratch;
  const auto folder = RunFolder::create(".", scratch.path() / "run", "a", "t");
  ASSERT_TRUE((*folder)->write_graph("seed = 1\n").ok());
  ASSERT_TRUE((*folder)->note(Json::object().set("incarnation", 3)).ok());
  fs::create_directory((*folder)->trace_folder());
  write_text((*folder)->trace_folder() / "first", "x");
  ASSERT_TRUE((*folder)->remember().ok());
  ASSERT_TRUE((*folder)->set_trace_aside().ok());
  EXPECT_EQ((*folder)->remove_oldest_traces(0, {}).size(), 1U);
  ASSERT_TRUE((*folder)->write_graph("seed = 2\n").ok());
  const Status undone = (*folder)->roll_back();
  ASSERT_TRUE(undone.ok()) << undone.error().text();
  EXPECT_EQ(*read_text_file((*folder)->path() / "graph.resolved.toml"), "seed = 1\n");
  EXPECT_FALSE(fs::exists((*folder)->trace_folder()));
}

TEST(RunFolder, AStartInAFolderWithoutItsGraphIsRolledBackToThat) {
  ScratchFolder scratch;
  const auto folder = RunFolder::create(".", scratch.path() / "run", "a", "t");
  ASSERT_TRUE((*folder)->note(Json::object().set("incarnation", 3)).ok());
  const Status kept = (*folder)->remember();
  ASSERT_TRUE(kept.ok()) << kept.error().text();
  ASSERT_TRUE((*folder)->write_graph("seed = 2\n").ok());
  ASSERT_TRUE((*folder)->roll_back().ok());
  EXPECT_FALSE(fs::exists((*folder)->path() / "graph.resolved.toml"));
  EXPECT_EQ((*folder)->num_starts(), 3);
}

TEST(RunFolder, AFolderCalledLatestIsRefusedBeforeAnythingIsMade) {
  ScratchFolder scratch;
  fs::create_directories(scratch.path() / "runs" / "latest");
  const auto folder = RunFolder::create(scratch.path(), "", "a", "t");
  ASSERT_FALSE(folder.ok());
  EXPECT_THAT(folder.error().text(), HasSubstr("is no symbolic link: move it away"));
  EXPECT_FALSE(fs::exists(scratch.path() / "runs" / "t-a"));
}

fs::perms mode_of(const fs::path& path) { return fs::status(path).permissions(); }

TEST(RunFolder, IsForItsOwnerAlone) {
  ScratchFolder scratch;
  const auto named = RunFolder::create(scratch.path(), "", "a", "t");
  ASSERT_TRUE(named.ok()) << named.error().text();
  EXPECT_EQ(mode_of((*named)->path()), fs::perms::owner_all);
  for (const char* out : {"out", "deep/out", "slash/"}) {
    const auto given = RunFolder::create(".", scratch.path() / out, "a", "t");
    ASSERT_TRUE(given.ok()) << given.error().text();
    EXPECT_EQ(mode_of((*given)->path()), fs::perms::owner_all) << out;
  }
}

TEST(RunFolder, AFolderThatWasThereKeepsItsMode) {
  ScratchFolder scratch;
  fs::create_directory(scratch.path() / "out");
  fs::permissions(scratch.path() / "out", fs::perms(0750));
  ASSERT_TRUE(RunFolder::create(".", scratch.path() / "out", "a", "t").ok());
  EXPECT_EQ(mode_of(scratch.path() / "out"), fs::perms(0750));
}

TEST(RunFolder, AnOutFolderWithFilesIsRefused) {
  ScratchFolder scratch;
  write_text(scratch.path() / "precious.txt", "x");
  const auto folder = RunFolder::create(".", scratch.path(), "a", "t");
  ASSERT_FALSE(folder.ok());
  EXPECT_THAT(folder.error().text(), HasSubstr("is not empty, and holds no run"));
  EXPECT_THAT(folder.error().text(), Not(HasSubstr("--resume")));
}

TEST(RunFolder, AnOutFolderThatHoldsARunIsRefusedWithTheCommandThatResumesIt) {
  ScratchFolder scratch;
  const fs::path run = scratch.path() / "my run";
  fs::create_directory(run);
  write_text(run / "run.json", "{}");
  const auto folder = RunFolder::create(".", run, "a", "t");
  ASSERT_FALSE(folder.ok());
  EXPECT_THAT(folder.error().text(),
              HasSubstr("primerl-graph run --resume '" + run.string() + "'"));
}

TEST(RunFolder, AnUnwritableOutFolderIsSaidWithWhatToDo) {
  if (::geteuid() == 0) {
    // Root may write anywhere, but not below a file.
    ScratchFolder scratch;
    write_text(scratch.path() / "file", "x");
    const auto folder = RunFolder::create(".", scratch.path() / "file" / "run", "a", "t");
    ASSERT_FALSE(folder.ok());
    EXPECT_THAT(folder.error().message(), HasSubstr("Not a directory"));
    return;
  }
  const auto folder = RunFolder::create(".", "/proc/run", "a", "t");
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(folder.error().code(), Code::kIo);
}

TEST(RunFolder, ASecondRunInTheSameFolderIsKeptOut) {
  ScratchFolder scratch;
  const auto folder = RunFolder::create(".", scratch.path() / "run", "a", "t");
  ASSERT_TRUE(folder.ok());
  ASSERT_TRUE((*folder)->note(Json::object().set("name", "a")).ok());
  const auto second = RunFolder::open(scratch.path() / "run");
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.error().message(), HasSubstr("in use by another run"));
}

TEST(RunFolder, FactsAreKeptAndReplacedOneByOne) {
  ScratchFolder scratch;
  {
    const auto folder = RunFolder::create(".", scratch.path() / "run", "a", "t");
    ASSERT_TRUE(folder.ok());
    ASSERT_TRUE((*folder)->note(Json::object().set("name", "a").set("end", "running")).ok());
    ASSERT_TRUE((*folder)->note(Json::object().set("end", "finished")).ok());
    (*folder)->keep();
  }
  const auto again = RunFolder::open(scratch.path() / "run");
  ASSERT_TRUE(again.ok()) << again.error().text();
  EXPECT_EQ((*again)->facts(), Json::object().set("name", "a").set("end", "finished"));
}

TEST(RunFolder, AFolderThatIsNoRunIsRefused) {
  ScratchFolder scratch;
  EXPECT_THAT(RunFolder::open(scratch.path()).error().message(), HasSubstr("no run.json"));
  EXPECT_THAT(RunFolder::open(scratch.path() / "none").error().message(),
              HasSubstr("no run folder"));
}

TEST(RunFolder, OlderTracesStayUpToTheLimitAndTheOldestGoFirst) {
  ScratchFolder scratch;
  const auto run = RunFolder::create(".", scratch.path() / "run", "a", "t");
  ASSERT_TRUE(run.ok()) << run.error().text();
  const fs::path folder = (*run)->path();
  for (const char* name : {"trace", "trace.2", "trace.9", "trace.10", "trace.x"}) {
    fs::create_directories(folder / name / "blobs");
    std::ofstream(folder / name / "a") << std::string(60, 'x');
    std::ofstream(folder / name / "blobs" / "b") << std::string(40, 'x');
  }
  EXPECT_THAT((*run)->remove_oldest_traces(300, {}), ::testing::IsEmpty());
  // The followed trace is kept, whatever its size.
  EXPECT_THAT((*run)->remove_oldest_traces(299, folder / "trace.2"),
              ::testing::ElementsAre(folder / "trace.9"));
  EXPECT_THAT((*run)->remove_oldest_traces(0, folder / "trace.2"),
              ::testing::ElementsAre(folder / "trace.10"));
  for (const char* name : {"trace", "trace.2", "trace.x"}) EXPECT_TRUE(fs::exists(folder / name));
}

TEST(RunFolder, NamesBecomeSafeFolderNames) {
  EXPECT_EQ(folder_name("reverse-text"), "reverse-text");
  EXPECT_EQ(folder_name("../a b/c"), "-.-a-b-c");
  EXPECT_EQ(folder_name(""), "run");
}

TEST(RunFolder, TenantsGetALevelOfTheirOwnOnlyWhenThereAreSeveral) {
  EXPECT_EQ(checkpoints_folder("r", "main", 1), fs::path("r/checkpoints"));
  EXPECT_EQ(checkpoints_folder("r", "main", 2), fs::path("r/checkpoints/main"));
}

TEST(RunFolder, ALaterUseOfANameHasFilesOfItsOwn) {
  EXPECT_EQ(checkpoints_folder("r", "main~2", 2), fs::path("r/checkpoints/main-2"));
  EXPECT_EQ(rollouts_file_name("main~2", 2), "rollouts/main-2.jsonl");
  EXPECT_EQ(evaluations_file_name("main~2", 2), "evaluations/main-2.jsonl");
}

}  // namespace
}  // namespace primerl
