#include "graph/base/files.h"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

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

TEST(AScratchFolder, OfAProgramThatWasKilledIsRemovedByALaterOne) {
  const ScratchFolder parent;
  const pid_t ended = ::fork();
  if (ended == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(ended, nullptr, 0), ended);
  const auto make = [&](const std::string& name) {
    fs::create_directories(parent.path() / name / "run");
    return parent.path() / name;
  };
  const fs::path left = make(fmt::format("primerl-{}-abcdef", ended));
  const fs::path used = make(fmt::format("primerl-{}-abcdef", ::getpid()));
  const fs::path other = make("primerl-graph"), folder = make("primerl-12x-abcdef");
  remove_leftover_scratch(parent.path());
  EXPECT_TRUE(fs::exists(left)) << "it is not old enough";
  remove_leftover_scratch(parent.path(), std::chrono::minutes(-1));
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(used) && fs::exists(other) && fs::exists(folder));
}

std::string some_bytes(size_t count) {
  std::string bytes(count, 0);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * 31 + (i >> 12) * 7);
  return bytes;
}

/// Written as two parts whose border is inside of a block.
Status write_in_two(const fs::path& file, const std::string& bytes, PageCache cache) {
  const auto all = std::as_bytes(std::span(bytes));
  const size_t border = bytes.size() / 3;
  const std::vector<std::span<const std::byte>> parts = {all.first(border), all.subspan(border)};
  return write_file_synced(file, parts, cache);
}

TEST(ALargeFile, IsTheSameWithAndWithoutThePageCache) {
  const ScratchFolder folder;
  const fs::path file = folder.path() / "file";
  for (const size_t size :
       {size_t{0}, kBypassBytesMin - 1, kBypassBytesMin, kBypassBytesMin + 1,
        kBypassBytesMin + 4096, kBypassBytesMin + (1 << 20), 2 * kBypassBytesMin - 4097}) {
    const std::string bytes = some_bytes(size);
    for (const PageCache cache : {PageCache::kUse, PageCache::kBypass}) {
      ASSERT_TRUE(write_in_two(file, bytes, cache).ok());
      EXPECT_TRUE(*read_text_file(file) == bytes) << size;
      std::string read;
      const auto add = [&read](std::span<const std::byte> piece) {
        EXPECT_LE(piece.size(), size_t{1} << 20);
        read.append(reinterpret_cast<const char*>(piece.data()), piece.size());
      };
      ASSERT_TRUE(read_in_pieces(file, cache, add).ok());
      EXPECT_TRUE(read == bytes) << size;
    }
  }
  const Status missing = read_in_pieces(folder.path() / "none", PageCache::kBypass, nullptr);
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
}

TEST(AnUnnamedFile, HasItsPartsAndIsInNoFolder) {
  const ScratchFolder folder;
  const std::string one = some_bytes(5'000), two = some_bytes(3), all = one + two;
  const std::vector<std::span<const std::byte>> parts = {
      std::as_bytes(std::span(one)), {}, std::as_bytes(std::span(two))};
  const MappedFile mapped = write_unnamed_file(folder.path(), parts).value();
  EXPECT_TRUE(std::ranges::equal(mapped.bytes, std::as_bytes(std::span(all))));
  read_ahead(mapped.bytes.subspan(4'097));
  read_ahead({});
  EXPECT_TRUE(fs::is_empty(folder.path()));
  EXPECT_TRUE(write_unnamed_file(folder.path(), {}).value().bytes.empty());
  const auto missing = write_unnamed_file(folder.path() / "none", parts);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
}

/// The fraction of a file's pages in the page cache.
double cached_part(const fs::path& file) {
  const MappedFile mapped = map_file(file).value();
  std::vector<unsigned char> pages((mapped.bytes.size() + 4095) / 4096);
  void* const begin = const_cast<std::byte*>(mapped.bytes.data());
  EXPECT_EQ(::mincore(begin, mapped.bytes.size(), pages.data()), 0);
  const auto num_cached = std::ranges::count_if(pages, [](unsigned char page) { return page & 1; });
  return static_cast<double>(num_cached) / static_cast<double>(pages.size());
}

TEST(CountedBytes, AreThoseThatTheThreadWritesAndReads) {
  const ScratchFolder folder;
  const fs::path file = folder.path() / "file";
  const std::string bytes = some_bytes(kBypassBytesMin + 17);
  std::atomic<uint64_t> count = 0;
  for (const PageCache cache : {PageCache::kUse, PageCache::kBypass}) {
    count = 0;
    {
      const CountedBytes counted(count);
      ASSERT_TRUE(write_in_two(file, bytes, cache).ok());
      EXPECT_EQ(count, bytes.size());
      ASSERT_TRUE(read_in_pieces(file, cache, [](std::span<const std::byte>) {}).ok());
      EXPECT_EQ(count, 2 * bytes.size());
    }
    ASSERT_TRUE(write_in_two(file, bytes, cache).ok());
    EXPECT_EQ(count, 2 * bytes.size()) << "they are not counted any more";
  }
}

TEST(ALargeFile, LeavesNoPagesInTheCacheIfItBypassesIt) {
  const ScratchFolder folder;
  struct statfs about {};
  ASSERT_EQ(::statfs(folder.path().c_str(), &about), 0);
  constexpr auto kTmpfs = 0x01021994;
  if (about.f_type == kTmpfs) GTEST_SKIP() << "files of a tmpfs are in the page cache alone";
  const fs::path file = folder.path() / "file";
  const std::string bytes = some_bytes(2 * kBypassBytesMin);
  ASSERT_TRUE(write_in_two(file, bytes, PageCache::kUse).ok());
  EXPECT_GT(cached_part(file), 0.9);
  ASSERT_TRUE(write_in_two(file, bytes, PageCache::kBypass).ok());
  EXPECT_LT(cached_part(file), 0.1);
  ASSERT_TRUE(read_in_pieces(file, PageCache::kBypass, [](std::span<const std::byte>) {}).ok());
  EXPECT_LT(cached_part(file), 0.1);
  ASSERT_TRUE(write_in_two(file, bytes.substr(0, kBypassBytesMin - 1), PageCache::kBypass).ok());
  EXPECT_GT(cached_part(file), 0.9) << "a file that is too small to bypass it";
}

}  // namespace
}  // namespace primerl
