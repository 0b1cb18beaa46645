#include "kernels/train/kept_batches.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "kernels/train/batch_file.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

TrainBatch batch_of(int32_t token) {
  TrainBatch batch;
  batch.loss = LossKind::kCrossEntropy;
  TrainSample& sample = batch.samples.emplace_back();
  sample.tokens = {1, token};
  sample.loss_mask = {0, 1};
  return batch;
}

std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.insert(entry.path().filename());
  return names;
}

using Names = std::set<std::string>;

TEST(KeptBatches, KeepsTheNewestFilesAndNoMore) {
  const ScratchFolder folder;
  KeptBatches kept(folder.path() / "a", 2);
  for (int64_t step = 1; step <= 4; ++step) ASSERT_TRUE(kept.keep(step, batch_of(3)).ok());
  EXPECT_EQ(names_in(folder.path() / "a"),
            (Names{"step_000003.safetensors", "step_000004.safetensors"}));
}

TEST(KeptBatches, TheBatchOfASkippedStepStaysBesideTheNextOne) {
  const ScratchFolder folder;
  KeptBatches kept(folder.path(), 4);
  for (const int32_t token : {5, 6}) ASSERT_TRUE(kept.keep(2, batch_of(token)).ok());
  ASSERT_TRUE(kept.keep(3, batch_of(7)).ok());
  EXPECT_EQ(names_in(folder.path()), (Names{"step_000002.2.safetensors", "step_000002.safetensors",
                                            "step_000003.safetensors"}));
  const auto first = read_train_batch(folder.path() / "step_000002.safetensors");
  ASSERT_TRUE(first.ok()) << first.error().text();
  EXPECT_EQ(first.value().samples.at(0).tokens.back(), 5);
}

TEST(KeptBatches, TheOldestGoesBeforeTheNextIsWritten) {
  const ScratchFolder folder;
  KeptBatches kept(folder.path(), 1);
  ASSERT_TRUE(kept.keep(1, batch_of(5)).ok());
  // The file cannot be written: a folder has its name.
  std::filesystem::create_directories(folder.path() / "step_000002.safetensors.tmp");
  const Status failed = kept.keep(2, batch_of(6));
  EXPECT_FALSE(failed.ok());
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "step_000001.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "step_000002.safetensors"));
}

TEST(KeptBatches, AFolderThatTakesNoFilesIsSaidBefore) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "file") << "x";
  EXPECT_FALSE(KeptBatches(folder.path() / "file", 1).prepare().ok());
  EXPECT_TRUE(KeptBatches(folder.path() / "new" / "one", 1).prepare().ok());
}

TEST(KeptBatches, AFileOfThatNameIsReplacedAndWhatALinkNamesStays) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "precious") << "mine";
  std::filesystem::create_symlink(folder.path() / "precious",
                                  folder.path() / "step_000001.safetensors");
  KeptBatches kept(folder.path(), 1);
  ASSERT_TRUE(kept.keep(1, batch_of(5)).ok());
  std::string text;
  std::ifstream(folder.path() / "precious") >> text;
  EXPECT_EQ(text, "mine");
  EXPECT_TRUE(read_train_batch(folder.path() / "step_000001.safetensors").ok());
}

}  // namespace
}  // namespace primerl
