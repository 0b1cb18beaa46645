#include "runtime/trace/content_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <string>
#include <thread>

#include "tests/trace/segment_files.h"

namespace primerl {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(ContentStore, NamesContentByItsSha256) {  // FIPS 180-2, B.1
  EXPECT_EQ(to_hex(sha256(bytes_of("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(content_hash_from_hex(to_hex(sha256(bytes_of("abc")))), sha256(bytes_of("abc")));
  EXPECT_FALSE(content_hash_from_hex("ba78"));
  EXPECT_FALSE(content_hash_from_hex(std::string(64, 'G')));
}

TEST(ContentStore, StoresEqualBytesOnceFromAnyNumberOfThreads) {
  TestFolder folder;
  const ContentStore store(folder.path() / "trace" / "blobs");
  const std::string text(300'000, 'w');
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] { EXPECT_TRUE(store.store(bytes_of(text)).ok()); });
  }
  const auto list = store.list();
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->size(), 1U);
  size_t num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "trace" / "blobs"))
    num_files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(num_files, 1U) << "no half-written file is left";
  const auto loaded = store.load(list->front());
  ASSERT_TRUE(loaded.ok());
  EXPECT_TRUE(std::ranges::equal(*loaded, bytes_of(text)));
  struct stat status {};
  ASSERT_EQ(::stat((folder.path() / "trace" / "blobs").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
}

TEST(ContentStore, HandsOutNothingThatIsDamagedOrMissing) {
  TestFolder folder;
  const ContentStore store(folder.path());
  const auto hash = store.store(bytes_of("weights"));
  ASSERT_TRUE(hash.ok());
  write_bytes(store.path_of(*hash), bytes_of("weightz"));
  EXPECT_EQ(store.load(*hash).error().code(), Code::kCorrupt);
  std::filesystem::remove(store.path_of(*hash));
  EXPECT_EQ(store.load(*hash).error().code(), Code::kNotFound);
  EXPECT_TRUE(store.store({}).ok()) << "nothing at all is content too";
}

}  // namespace
}  // namespace primerl
