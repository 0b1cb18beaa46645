#include "runtime/store/socket_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void write(const fs::path& file) { std::ofstream(file) << "x"; }

mode_t mode_of(const fs::path& path) {
  struct stat facts {};
  EXPECT_EQ(::lstat(path.c_str(), &facts), 0) << path;
  return facts.st_mode & 0777;
}

TEST(SocketFolder, IsThisUsersAloneAndGoesWithItsOwner) {
  const ScratchFolder scratch;
  const fs::path root = scratch.path() / "root";
  auto folder = SocketFolder::create(root, "one");
  ASSERT_TRUE(folder.ok()) << folder.error().text();
  const fs::path path = (*folder)->path();
  EXPECT_EQ(path, root / "one");
  EXPECT_EQ(mode_of(root), 0700u);
  EXPECT_EQ(mode_of(path), 0700u);
  EXPECT_THAT((*folder)->leftovers(), IsEmpty());
  write(path / "p0.e1.frames");
  folder->reset();
  EXPECT_FALSE(fs::exists(path));
}

TEST(SocketFolder, RemovesWhatADeadRunLeftAndNothingOfALiveOne) {
  const ScratchFolder scratch;
  const fs::path root = scratch.path() / "root";
  auto live = SocketFolder::create(root, "live");
  ASSERT_TRUE(live.ok());
  write((*live)->path() / "p0.e1.frames");
  // The remains of a killed owner: a lock file that no process holds.
  fs::create_directory(root / "dead");
  write(root / "dead" / "lock");
  write(root / "dead" / "p0.e1.frames");
  write(root / "a_file_of_somebody");
  const auto next = SocketFolder::create(root, "next");
  ASSERT_TRUE(next.ok()) << next.error().text();
  EXPECT_THAT((*next)->leftovers(), ElementsAre(root / "dead"));
  EXPECT_FALSE(fs::exists(root / "dead"));
  EXPECT_TRUE(fs::exists((*live)->path() / "p0.e1.frames"));
  EXPECT_TRUE(fs::exists(root / "a_file_of_somebody"));
}

TEST(SocketFolder, RefusesTheNameOfALiveRun) {
  const ScratchFolder scratch;
  const auto first = SocketFolder::create(scratch.path() / "root", "one");
  ASSERT_TRUE(first.ok());
  const auto second = SocketFolder::create(scratch.path() / "root", "one");
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), Code::kExists);
  EXPECT_TRUE(fs::exists((*first)->path()));
}

TEST(SocketFolder, RefusesARootThatOthersMayEnter) {
  const ScratchFolder scratch;
  const fs::path open = scratch.path() / "open", link = scratch.path() / "link";
  fs::create_directory(open);
  fs::permissions(open, fs::perms(0750));
  fs::create_symlink(open, link);
  for (const auto& root : {open, link}) {
    const auto refused = SocketFolder::create(root, "one");
    ASSERT_FALSE(refused.ok()) << root;
    EXPECT_THAT(refused.error().text(), HasSubstr("this user alone"));
  }
  fs::permissions(open, fs::perms(0700));
  EXPECT_TRUE(SocketFolder::create(open, "one").ok());
}

class RuntimeFolder : public ::testing::Test {
 protected:
  ~RuntimeFolder() override { ::unsetenv("XDG_RUNTIME_DIR"); }
  static std::unique_ptr<SocketFolder> create_in(const fs::path& runtime) {
    ::setenv("XDG_RUNTIME_DIR", runtime.c_str(), 1);
    auto folder = SocketFolder::create({}, fmt::format("test.{}", ::getpid()));
    EXPECT_TRUE(folder.ok()) << folder.error().text();
    return folder.ok() ? std::move(folder).value() : nullptr;
  }
  const ScratchFolder scratch_;
  const std::string name_ = fmt::format("primerl-{}", ::geteuid());
};

TEST_F(RuntimeFolder, IsWhereSocketsAre) {
  const auto folder = create_in(scratch_.path());
  EXPECT_EQ(folder->path().parent_path(), scratch_.path() / name_);
  EXPECT_THAT(folder->reason_for_other_root(), IsEmpty());
}

TEST_F(RuntimeFolder, MissingIsReplacedByTmp) {
  auto folder = create_in(scratch_.path() / "missing");
  EXPECT_FALSE(folder->path().string().starts_with(scratch_.path().string()));
  EXPECT_THAT(folder->reason_for_other_root(),
              AllOf(HasSubstr("XDG_RUNTIME_DIR '" + (scratch_.path() / "missing").string()),
                    HasSubstr("it is missing"), HasSubstr(folder->path().string())));
  EXPECT_EQ(mode_of(folder->path()), 0700u);
  const fs::path path = folder->path();
  folder.reset();
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(RuntimeFolder, OpenToOthersIsReplacedByTmp) {
  fs::create_directory(scratch_.path() / name_);
  fs::permissions(scratch_.path() / name_, fs::perms(0750));
  const auto folder = create_in(scratch_.path());
  EXPECT_FALSE(folder->path().string().starts_with(scratch_.path().string()));
  EXPECT_THAT(folder->reason_for_other_root(), HasSubstr("this user alone"));
}

TEST_F(RuntimeFolder, IsAsLongAsTheNamesOfSocketsAllow) {
  constexpr size_t kPathMax = 107;
  const size_t below =
      name_.size() + 1 + fmt::format("test.{}", ::getpid()).size() + 1 + kSocketNameBytesMax + 1;
  const auto of_length = [&](size_t bytes) {
    fs::path path = scratch_.path() / std::string(bytes - scratch_.path().native().size() - 1, 'x');
    fs::create_directory(path);
    return path;
  };
  const fs::path longest = of_length(kPathMax - below), longer = of_length(kPathMax - below + 1);
  EXPECT_THAT(create_in(longest)->reason_for_other_root(), IsEmpty());
  EXPECT_THAT(create_in(longer)->reason_for_other_root(), HasSubstr("it is too long"));
}

}  // namespace
}  // namespace primerl
