#include "runtime/store/socket_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
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
  // What is left of an owner that was killed: its lock is a file that nobody holds.
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

}  // namespace
}  // namespace primerl
