#include "runtime/store/client_folders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

/// Fails at the n-th operation and at all later ones, as after a crash.
class StoppingFiles final : public FileOps {
 public:
  explicit StoppingFiles(int operations_max) : left_(operations_max) {}
  bool has_stopped() const { return left_ < 0; }

  Status make_folder(const fs::path& folder) override {
    return next([&] { return system_files().make_folder(folder); });
  }
  Status write_file(const fs::path& file, std::string_view bytes) override {
    return next([&] { return system_files().write_file(file, bytes); });
  }
  Status sync(const fs::path& path) override {
    return next([&] { return system_files().sync(path); });
  }
  Status rename(const fs::path& from, const fs::path& to) override {
    return next([&] { return system_files().rename(from, to); });
  }
  Status exchange(const fs::path& one, const fs::path& other) override {
    return next([&] { return system_files().exchange(one, other); });
  }
  Status remove_all(const fs::path& path) override {
    return next([&] { return system_files().remove_all(path); });
  }

 private:
  Status next(const auto& operation) {
    if (left_ <= 0) {
      left_ = -1;
      return error(Code::kIo, "the machine stopped");
    }
    --left_;
    return operation();
  }
  int left_;
};

Status save(FileOps& files, const fs::path& folder, const std::string& text,
            bool weights_only = false) {
  ClientFolders folders(files, folder);
  ASSIGN_OR_RETURN(const fs::path filling, folders.begin("weights/a"));
  for (const char* part : {"weights", "learner"}) {
    fs::create_directories(filling / part);
    write_text(filling / part / "file", text);
  }
  return folders.commit("weights/a", weights_only);
}

std::string text_of(const fs::path& file) {
  const auto text = read_text_file(file);
  return text.ok() ? *text : text.error().message();
}

TEST(ClientFolders, AFolderHasItsNameOnlyWhenItIsComplete) {
  const fs::path folder = new_scratch_folder() / "clients" / "alice";
  ClientFolders folders(system_files(), folder);
  const fs::path filling = folders.begin("weights/a").value();
  EXPECT_TRUE(fs::is_empty(filling));
  EXPECT_FALSE(fs::exists(folders.folder("weights/a")));
  ASSERT_TRUE(save(system_files(), folder, "one").ok());
  EXPECT_EQ(text_of(folder / "weights/a/learner/file"), "one");
  EXPECT_FALSE(fs::exists(folder / ".filling/weights/a"));
  ASSERT_TRUE(folders.remove("weights/a").ok());
  EXPECT_FALSE(fs::exists(folder / "weights/a"));
  EXPECT_TRUE(folders.remove("weights/a").ok()) << "it is gone already";
}

TEST(ClientFolders, ForSamplersOnlyTheWeightsStay) {
  const fs::path folder = new_scratch_folder();
  ASSERT_TRUE(save(system_files(), folder, "one", true).ok());
  EXPECT_EQ(text_of(folder / "weights/a/file"), "one");
  EXPECT_FALSE(fs::exists(folder / "weights/a/learner"));
}

TEST(ClientFolders, AStopAtAnyOperationLeavesTheOldOneOrTheNewOne) {
  int count = 0;
  for (bool has_stopped = true; has_stopped; ++count) {
    ASSERT_LT(count, 100);
    const fs::path folder = new_scratch_folder();
    ASSERT_TRUE(save(system_files(), folder, "old").ok());
    StoppingFiles files(count);
    const Status saved = save(files, folder, "new");
    has_stopped = files.has_stopped();
    EXPECT_EQ(saved.ok(), !has_stopped);
    const std::string kept = text_of(folder / "weights/a/weights/file");
    EXPECT_EQ(text_of(folder / "weights/a/learner/file"), kept) << count;
    EXPECT_TRUE(kept == "old" || kept == "new") << kept << ", operation " << count;
    EXPECT_TRUE(save(system_files(), folder, "newest").ok()) << "remains are no obstacle";
    EXPECT_EQ(text_of(folder / "weights/a/weights/file"), "newest");
  }
  EXPECT_GT(count, 8);
}

}  // namespace
}  // namespace primerl
