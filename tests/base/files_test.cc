#include "graph/base/files.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "graph/base/descriptor.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// Every way of reading refuses the path with the same text.
void expect_refused(const fs::path& path, const std::string& what) {
  const std::string text = "'" + path.string() + "' is " + what + ", not a regular file";
  for (const Error& fault :
       {open_regular_file(path).error(), read_text_file(path).error(), map_file(path).error()}) {
    EXPECT_EQ(fault.message(), text);
    EXPECT_EQ(fault.code(), Code::kInvalid);
  }
}

TEST(ReadingAFile, RefusesAnythingButARegularFileWithoutWaiting) {
  const ScratchFolder folder;
  expect_refused(folder.path(), "a folder");
  const fs::path pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_refused(pipe, "a pipe");
  expect_refused("/dev/zero", "a device");
  const fs::path socket = folder.path() / "socket";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(socket.string().size(), sizeof address.sun_path);
  socket.string().copy(address.sun_path, sizeof address.sun_path - 1);
  const Descriptor listening(::socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(::bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
            0);
  expect_refused(socket, "a socket");
}

TEST(ReadingAFile, FollowsALinkToARegularFile) {
  const ScratchFolder folder;
  write_text(folder.path() / "file", "text");
  fs::create_symlink("file", folder.path() / "link");
  EXPECT_EQ(*read_text_file(folder.path() / "link"), "text");
  EXPECT_EQ(map_file(folder.path() / "link")->bytes.size(), 4U);
}

TEST(ReadingAFile, NamesAMissingFile) {
  const ScratchFolder folder;
  const Error none = read_text_file(folder.path() / "none").error();
  EXPECT_EQ(none.code(), Code::kNotFound);
  EXPECT_THAT(none.text(), HasSubstr("none': No such file or directory"));
}

TEST(ReadingAFile, TakesItsLimitAndNotOneByteMore) {
  const ScratchFolder folder;
  write_text(folder.path() / "file", "12345678");
  EXPECT_EQ(*read_text_file(folder.path() / "file", 8), "12345678");
  EXPECT_EQ(read_text_file(folder.path() / "file", 7).error().code(), Code::kExhausted);
}

/// Files of /proc report size 0.
TEST(ReadingAFile, ReadsAFileOfProc) {
  EXPECT_THAT(*read_text_file("/proc/self/stat"), HasSubstr("base_test"));
}

}  // namespace
}  // namespace primerl
