#include "runtime/store/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
namespace fs = std::filesystem;

Json state_of(int64_t version) { return Json::object().set("version", version).set("ordinal", 7); }

/// Writes files like a learner; the content depends on the step.
void fill(const fs::path& folder, int64_t step) {
  fs::create_directories(folder / "weights");
  fs::create_directories(folder / "learner");
  write_text(folder / "weights" / "model.safetensors", "weights of step " + std::to_string(step));
  write_text(folder / "learner" / "optimizer.safetensors", "moments");
}

Status save(FileOps& files, const fs::path& folder, int64_t step, KeptCheckpoints kept = {}) {
  CheckpointStore store(files, folder, "main", kept);
  ASSIGN_OR_RETURN(const fs::path filling, store.begin(step));
  fill(filling, step);
  return store.commit(step, state_of(step));
}

/// Fails at the n-th operation and refuses all later ones, like a crash. Data that was not synced
/// is lost: files become empty.
class CrashingFiles final : public FileOps {
 public:
  explicit CrashingFiles(int operations_max) : left_(operations_max) {}

  Status make_folder(const fs::path& folder) override {
    return guarded([&] { return system_files().make_folder(folder); });
  }
  Status write_file(const fs::path& file, std::string_view bytes) override {
    return guarded([&] {
      unsynced_.insert(file);
      return system_files().write_file(file, bytes);
    });
  }
  Status sync(const fs::path& path) override {
    return guarded([&] {
      unsynced_.erase(path);
      return system_files().sync(path);
    });
  }
  Status rename(const fs::path& from, const fs::path& to) override {
    return guarded([&] {
      for (const auto& file : unsynced_)
        EXPECT_FALSE(file.string().starts_with(from.string())) << file << " renamed before sync";
      return system_files().rename(from, to);
    });
  }
  Status exchange(const fs::path& one, const fs::path& other) override {
    return guarded([&] { return system_files().exchange(one, other); });
  }
  Status remove_all(const fs::path& path) override {
    return guarded([&] {
      // Half done: the first files are removed, the folder is not.
      if (left_ == 1)
        for (const auto& entry : fs::recursive_directory_iterator(path))
          if (entry.is_regular_file()) {
            fs::remove(entry.path());
            break;
          }
      return left_ == 1 ? ok() : system_files().remove_all(path);
    });
  }
  bool crashed() const { return crashed_; }

 private:
  Status guarded(const std::function<Status()>& operation) {
    if (left_ == 0) {
      if (!crashed_)
        for (const auto& file : unsynced_) write_text(file, "");
      crashed_ = true;
      return error(Code::kIo, "the machine is gone");
    }
    Status done = operation();
    --left_;
    return done;
  }
  int left_;
  bool crashed_ = false;
  std::set<fs::path> unsynced_;
};

TEST(Checkpoint, ACommittedStepIsFoundWithItsState) {
  ScratchFolder scratch;
  ASSERT_TRUE(save(system_files(), scratch.path(), 50).ok());
  const auto found = find_checkpoints(scratch.path(), CheckpointDepth::kContents);
  ASSERT_TRUE(found.newest.has_value());
  EXPECT_EQ(found.newest->step, 50);
  EXPECT_EQ(found.newest->version, PolicyVersion(50));
  EXPECT_EQ(found.newest->manifest, state_of(50));
  EXPECT_THAT(found.ignored, IsEmpty());
}

/// Files of this size are read past the page cache for the manifest, and through it later.
TEST(Checkpoint, ALargeFileIsFoundAndItsDamageIsSeen) {
  ScratchFolder scratch;
  CheckpointStore store(system_files(), scratch.path(), "main", {});
  const fs::path filling = store.begin(10).value();
  fill(filling, 10);
  std::string weights(kBypassBytesMin + 5, 'w');
  write_text(filling / "weights" / "model.safetensors", weights);
  ASSERT_TRUE(store.commit(10, state_of(10)).ok());
  const auto find = [&] { return find_checkpoints(scratch.path(), CheckpointDepth::kContents); };
  EXPECT_TRUE(find().newest.has_value());
  weights.back() = 'v';
  write_text(scratch.path() / "step_10" / "weights" / "model.safetensors", weights);
  EXPECT_THAT(find().ignored, ElementsAre(HasSubstr("differs from what was written")));
}

TEST(Checkpoint, AFolderBeingFilledIsNoCheckpoint) {
  ScratchFolder scratch;
  CheckpointStore store(system_files(), scratch.path(), "main", {});
  const auto filling = store.begin(10);
  ASSERT_TRUE(filling.ok());
  fill(*filling, 10);
  EXPECT_FALSE(find_checkpoints(scratch.path(), CheckpointDepth::kContents).newest.has_value());
}

TEST(Checkpoint, AnIncompleteOneIsIgnoredWithANote) {
  ScratchFolder scratch;
  ASSERT_TRUE(save(system_files(), scratch.path(), 10).ok());
  ASSERT_TRUE(save(system_files(), scratch.path(), 20).ok());
  write_text(scratch.path() / "step_20" / "weights" / "model.safetensors", "short");
  const auto found = find_checkpoints(scratch.path(), CheckpointDepth::kContents);
  ASSERT_TRUE(found.newest.has_value());
  EXPECT_EQ(found.newest->step, 10);
  ASSERT_EQ(found.ignored.size(), 1U);
  EXPECT_THAT(found.ignored[0], HasSubstr("step_20"));
  EXPECT_THAT(found.ignored[0], HasSubstr("'weights/model.safetensors' has 5 bytes"));
}

TEST(Checkpoint, AMissingOrTornManifestIsIgnored) {
  ScratchFolder scratch;
  ASSERT_TRUE(save(system_files(), scratch.path(), 10).ok());
  ASSERT_TRUE(save(system_files(), scratch.path(), 20).ok());
  ASSERT_TRUE(save(system_files(), scratch.path(), 30, {.last = 3}).ok());
  fs::remove(scratch.path() / "step_30" / "manifest.json");
  write_text(scratch.path() / "step_20" / "manifest.json", "{\"schema\": \"primerl.che");
  const auto found = find_checkpoints(scratch.path(), CheckpointDepth::kContents);
  ASSERT_TRUE(found.newest.has_value());
  EXPECT_EQ(found.newest->step, 10);
  EXPECT_EQ(found.ignored.size(), 2U);
}

TEST(Checkpoint, KeepEveryNeverRemovesEachThirdOne) {
  ScratchFolder scratch;
  const KeptCheckpoints kept{.last = 1, .interval = 10, .every = 3};
  for (int64_t step = 10; step <= 110; step += 10)
    ASSERT_TRUE(save(system_files(), scratch.path(), step, kept).ok());
  ASSERT_TRUE(save(system_files(), scratch.path(), 115, kept).ok());  // at the end of the run
  EXPECT_THAT(checkpoint_steps(scratch.path()), ElementsAre(30, 60, 90, 115));
}

TEST(Checkpoint, KeepEveryWithoutCheckpointsAtIntervalsKeepsNoMore) {
  ScratchFolder scratch;
  const KeptCheckpoints kept{.last = 1, .interval = 0, .every = 3};
  for (const int64_t step : {3, 9})
    ASSERT_TRUE(save(system_files(), scratch.path(), step, kept).ok());
  EXPECT_THAT(checkpoint_steps(scratch.path()), ElementsAre(9));
}

TEST(Checkpoint, KeepBestNeverRemovesThoseWithTheHighestScores) {
  ScratchFolder scratch;
  const KeptCheckpoints kept{.last = 1, .best = 2};
  const auto save_with = [&](int64_t step, Json state) {
    CheckpointStore store(system_files(), scratch.path(), "main", kept);
    fill(store.begin(step).value(), step);
    ASSERT_TRUE(store.commit(step, state).ok());
  };
  int64_t step = 0;
  for (const double score : {0.5, 0.75, 0.25, 0.75, 0.5}) {
    step += 10;
    save_with(step, state_of(step).set("score", score));
  }
  save_with(60, state_of(60));  // without a score it is never one of the best
  EXPECT_THAT(checkpoint_steps(scratch.path()), ElementsAre(20, 40, 60));
  save_with(70, state_of(70).set("score", 0.75));
  EXPECT_THAT(checkpoint_steps(scratch.path()), ElementsAre(40, 70))
      << "of equal ones the newer stay";
}

TEST(Checkpoint, KeepLastRemovesTheOldestAndZeroKeepsAll) {
  ScratchFolder two, all;
  for (const int64_t step : {10, 20, 30}) {
    ASSERT_TRUE(save(system_files(), two.path(), step).ok());
    ASSERT_TRUE(save(system_files(), all.path(), step, {.last = 0}).ok());
  }
  const auto names = [](const fs::path& folder) {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder))
      found.insert(entry.path().filename().string());
    return found;
  };
  EXPECT_THAT(names(two.path()), ElementsAre("step_20", "step_30"));
  EXPECT_THAT(names(all.path()), ElementsAre("step_10", "step_20", "step_30"));
}

TEST(Checkpoint, TheOneThatARecordBeginsFromIsKeptBesideTheLast) {
  ScratchFolder scratch;
  ASSERT_TRUE(save(system_files(), scratch.path(), 10).ok());
  ASSERT_TRUE(save(system_files(), scratch.path(), 20).ok());
  CheckpointStore store(system_files(), scratch.path(), "main", {});
  store.keep(20);
  for (const int64_t step : {30, 40, 50}) {
    const auto filling = store.begin(step);
    ASSERT_TRUE(filling.ok());
    fill(*filling, step);
    ASSERT_TRUE(store.commit(step, state_of(step)).ok());
  }
  EXPECT_FALSE(fs::exists(scratch.path() / "step_10"));
  EXPECT_TRUE(fs::exists(scratch.path() / "step_20"));
  EXPECT_FALSE(fs::exists(scratch.path() / "step_30"));
  EXPECT_EQ(find_checkpoints(scratch.path(), CheckpointDepth::kContents).newest->step, 50);
}

TEST(Checkpoint, ARunThatResumesFromAnOlderOneRemovesTheNewerOnesAlone) {
  ScratchFolder scratch;
  for (const int64_t step : {10, 20, 30, 40})
    ASSERT_TRUE(save(system_files(), scratch.path(), step, {.last = 0}).ok());
  CheckpointStore(system_files(), scratch.path(), "main", {}).remove_after(20);
  for (const int64_t step : {10, 20, 30, 40})
    EXPECT_EQ(fs::exists(scratch.path() / fmt::format("step_{}", step)), step <= 20) << step;
}

TEST(Checkpoint, TheSameStepAgainReplacesTheOldOne) {
  ScratchFolder scratch;
  ASSERT_TRUE(save(system_files(), scratch.path(), 10).ok());
  CheckpointStore store(system_files(), scratch.path(), "main", {});
  const auto filling = store.begin(10);
  ASSERT_TRUE(filling.ok());
  fill(*filling, 11);
  ASSERT_TRUE(store.commit(10, state_of(11)).ok());
  const auto found = find_checkpoints(scratch.path(), CheckpointDepth::kContents);
  ASSERT_TRUE(found.newest.has_value());
  EXPECT_EQ(found.newest->version, PolicyVersion(11));
}

TEST(Checkpoint, ACrashAtAnyPointLeavesTheOldOneOrTheNew) {
  bool finished = false;
  int num_crashes = 0;
  for (int operations = 0; !finished; ++operations) {
    ASSERT_LT(operations, 200);
    ScratchFolder scratch;
    ASSERT_TRUE(save(system_files(), scratch.path(), 10, {.last = 1}).ok());
    CrashingFiles files(operations);
    const Status saved = save(files, scratch.path(), 20, {.last = 1});
    finished = !files.crashed();
    num_crashes += files.crashed() ? 1 : 0;
    EXPECT_EQ(saved.ok(), finished) << operations;

    const auto found = find_checkpoints(scratch.path(), CheckpointDepth::kContents);
    ASSERT_TRUE(found.newest.has_value()) << "after " << operations << " operations";
    const int64_t step = found.newest->step;
    ASSERT_TRUE(step == 10 || step == 20) << step;
    const auto weights = read_text_file(found.newest->folder / "weights" / "model.safetensors");
    ASSERT_TRUE(weights.ok());
    EXPECT_EQ(*weights, "weights of step " + std::to_string(step));
    EXPECT_TRUE(step == 20 || !finished);
    // The next run continues from the existing checkpoint.
    ASSERT_TRUE(save(system_files(), scratch.path(), 30, {.last = 1}).ok());
    EXPECT_EQ(find_checkpoints(scratch.path(), CheckpointDepth::kContents).newest->step, 30);
  }
  EXPECT_GT(num_crashes, 10);
}

TEST(Checkpoint, ACrashWhileAStepIsWrittenAgainLeavesTheOldOneOrTheNew) {
  bool finished = false;
  for (int operations = 0; !finished; ++operations) {
    ASSERT_LT(operations, 200);
    ScratchFolder scratch;
    ASSERT_TRUE(save(system_files(), scratch.path(), 10, {.last = 1}).ok());
    CrashingFiles files(operations);
    CheckpointStore store(files, scratch.path(), "main", {.last = 1});
    const auto again = [&]() -> Status {
      ASSIGN_OR_RETURN(const fs::path filling, store.begin(10));
      fill(filling, 11);
      return store.commit(10, state_of(11));
    };
    (void)again();
    finished = !files.crashed();
    const auto found = find_checkpoints(scratch.path(), CheckpointDepth::kContents);
    ASSERT_TRUE(found.newest.has_value()) << "after " << operations << " operations";
    EXPECT_TRUE(found.newest->version == PolicyVersion(10) ||
                found.newest->version == PolicyVersion(11));
    EXPECT_TRUE(found.newest->version == PolicyVersion(11) || !finished);
  }
}

/// Every file of a checkpoint.
std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files.push_back(entry.path());
  return files;
}

TEST(Checkpoint, OneFlippedBitInAnyFileIsSeenAndTheOlderOneIsTaken) {
  ScratchFolder scratch;
  ASSERT_TRUE(save(system_files(), scratch.path(), 10).ok());
  ASSERT_TRUE(save(system_files(), scratch.path(), 20).ok());
  const ResumePoint whole =
      *read_checkpoint(scratch.path() / "step_20", CheckpointDepth::kContents);
  int num_seen = 0;
  for (const fs::path& file : files_of(scratch.path() / "step_20")) {
    const std::string text = *read_text_file(file);
    for (size_t byte = 0; byte < text.size(); ++byte) {
      std::string flipped = text;
      flipped[byte] = static_cast<char>(flipped[byte] ^ 1);
      write_text(file, flipped);
      const auto found = find_checkpoints(scratch.path(), CheckpointDepth::kContents);
      ASSERT_TRUE(found.newest.has_value());
      // Only a flipped bit in the manifest's white space may have no effect.
      if (found.newest->step == 20) {
        EXPECT_EQ(found.newest->manifest, whole.manifest) << file << " byte " << byte;
        EXPECT_EQ(file.filename(), "manifest.json") << byte;
        continue;
      }
      EXPECT_EQ(found.newest->step, 10);
      EXPECT_THAT(found.ignored, ElementsAre(HasSubstr("step_20")));
      ++num_seen;
    }
    write_text(file, text);
  }
  EXPECT_GT(num_seen, 200);
  EXPECT_EQ(find_checkpoints(scratch.path(), CheckpointDepth::kContents).newest->step, 20);
}

TEST(Checkpoint, AManifestThatNamesAnotherSchemaIsRefused) {
  ScratchFolder scratch;
  fs::create_directories(scratch.path() / "step_1");
  write_text(scratch.path() / "step_1" / "manifest.json", R"({"schema": "other/1"})");
  const auto read = read_checkpoint(scratch.path() / "step_1", CheckpointDepth::kContents);
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(read.error().message(), HasSubstr("primerl.checkpoint/2"));
}

}  // namespace
}  // namespace primerl
