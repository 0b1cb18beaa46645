#include "runtime/transport/shm_blobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "graph/base/random.h"

namespace primerl {
namespace {

std::vector<std::byte> bytes_of(uint64_t seed, size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(mix(seed, i));
  return bytes;
}

class ShmBlobsTest : public testing::Test {
 protected:
  std::unique_ptr<ShmBlobPool> pool_ = ShmBlobPool::make(16 * 4096).value();
  std::unique_ptr<ShmBlobReader> reader_ = ShmBlobReader::open(pool_->address()).value();
};

TEST_F(ShmBlobsTest, AreReadWhereTheyWereBorn) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{64}, size_t{4097}}) {
    const auto bytes = bytes_of(size, size);
    const auto ref = pool_->put(bytes);
    ASSERT_TRUE(ref.ok());
    const auto blob = reader_->take(*ref);
    ASSERT_TRUE(blob.ok()) << blob.error().text();
    EXPECT_EQ(*blob, Blob(bytes));
  }
}

// A file on a disk supports no seals: the process that sent its address could truncate it under the
// reader.
TEST_F(ShmBlobsTest, AreNotReadFromAFileThatCouldShrink) {
  const ShmBlobAddress address = pool_->address();
  const auto pool = fmt::format("/proc/self/fd/{}", address.descriptor);
  std::FILE* copy = std::tmpfile();
  ASSERT_NE(copy, nullptr);
  std::ifstream stream(pool, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(stream), {}};
  ASSERT_EQ(std::fwrite(all.data(), 1, all.size(), copy), all.size());
  ASSERT_EQ(std::fflush(copy), 0);
  const auto opened = ShmBlobReader::open({address.pid, ::fileno(copy), address.nonce});
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.error().text(), testing::HasSubstr("is no pool of Blobs"));
  std::fclose(copy);
}

TEST_F(ShmBlobsTest, GiveTheirRoomBackWhenTheLastCopyDies) {
  const auto ref = pool_->put(bytes_of(1, 5 * 4096)).value();
  EXPECT_EQ(pool_->num_used_bytes(), 5U * 4096);
  auto blob = reader_->take(ref).value();
  auto copy = blob;
  blob = {};
  ASSERT_TRUE(pool_->put(bytes_of(2, 64)).ok());
  EXPECT_EQ(pool_->num_used_bytes(), 5U * 4096 + 64);
  copy = {};
  const auto next = pool_->reserve(64);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next->ref.offset, 0U);
  EXPECT_EQ(pool_->num_used_bytes(), 2U * 64);
}

TEST_F(ShmBlobsTest, FillThePoolToItsLastByteAndNoFurther) {
  EXPECT_EQ(pool_->reserve(16 * 4096 + 1).error().code(), Code::kExhausted);
  const auto all = pool_->reserve(16 * 4096);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(pool_->reserve(0).error().code(), Code::kExhausted);
  EXPECT_EQ(pool_->reserve(UINT64_MAX).error().code(), Code::kExhausted);
  pool_->cancel(all->ref);
  EXPECT_TRUE(pool_->reserve(16 * 4096).ok());
}

TEST_F(ShmBlobsTest, TakeAsManyAsTheirLimit) {
  const auto large = ShmBlobPool::make((kShmBlobsMax + 1) * 64).value();
  for (size_t i = 0; i < kShmBlobsMax; ++i) ASSERT_TRUE(large->reserve(1).ok()) << i;
  EXPECT_EQ(large->reserve(1).error().code(), Code::kExhausted);
}

TEST_F(ShmBlobsTest, UseTheFirstGapThatIsLargeEnough) {
  std::vector<ShmBlobRef> refs;
  for (int i = 0; i < 16; ++i) refs.push_back(pool_->put(bytes_of(1, 4096)).value());
  (void)reader_->take(refs[3]).value();
  (void)reader_->take(refs[8]).value();
  (void)reader_->take(refs[9]).value();
  EXPECT_EQ(pool_->reserve(4097)->ref.offset, 8U * 4096);
  EXPECT_EQ(pool_->reserve(4096)->ref.offset, 3U * 4096);
}

TEST_F(ShmBlobsTest, RefuseReferencesThatCannotBe) {
  const auto ref = pool_->put(bytes_of(1, 100)).value();
  auto wrong = ref;
  wrong.slot = kShmBlobsMax;
  EXPECT_EQ(reader_->take(wrong).error().code(), Code::kCorrupt);
  wrong = ref;
  ++wrong.turn;
  EXPECT_EQ(reader_->take(wrong).error().code(), Code::kCorrupt);
  wrong = ref;
  wrong.size = 16 * 4096 + 1;
  EXPECT_EQ(reader_->take(wrong).error().code(), Code::kCorrupt);
  wrong = ref;
  wrong.offset = UINT64_MAX - 63;
  EXPECT_EQ(reader_->take(wrong).error().code(), Code::kCorrupt);
  const auto blob = reader_->take(ref).value();
  EXPECT_EQ(reader_->take(ref).error().code(), Code::kCorrupt);  // the second time
}

TEST_F(ShmBlobsTest, HaveMemoryOnlyWhereTheyAre) {
  constexpr uint64_t kMegabyte = uint64_t{1} << 20;
  const auto large = ShmBlobPool::make(uint64_t{1} << 36).value();
  EXPECT_EQ(large->num_backed_bytes(), 0U);
  const auto first = large->reserve(1).value();
  EXPECT_LE(large->num_backed_bytes(), 16 * kMegabyte);
  std::vector<ShmBlobRef> refs;
  for (int i = 0; i < 12; ++i) refs.push_back(large->reserve(16 * kMegabyte)->ref);
  const uint64_t most = large->num_backed_bytes();
  EXPECT_GE(most, 12 * 16 * kMegabyte);
  // The last one keeps the memory before it.
  for (size_t i = 0; i + 1 < refs.size(); ++i) large->cancel(refs[i]);
  ASSERT_TRUE(large->reserve(1).ok());
  EXPECT_EQ(large->num_backed_bytes(), most);
  large->cancel(refs.back());
  ASSERT_TRUE(large->reserve(1).ok());
  EXPECT_LE(large->num_backed_bytes(), 16 * kMegabyte + 2 * ShmBlobPool::kSpareBytes);
  // Released memory can be allocated again.
  const auto again = large->reserve(150 * kMegabyte).value();
  again.bytes.back() = first.bytes.front();
}

TEST_F(ShmBlobsTest, SurviveTheirPoolAndTheirReader) {
  const auto bytes = bytes_of(3, 9000);
  const auto blob = reader_->take(pool_->put(bytes).value()).value();
  reader_.reset();
  pool_.reset();
  EXPECT_EQ(blob, Blob(bytes));
}

TEST_F(ShmBlobsTest, AreFreeWhenTheirReaderDied) {
  const auto held = reader_->take(pool_->put(bytes_of(1, 16 * 4096)).value()).value();
  EXPECT_FALSE(pool_->reserve(1).ok());
  pool_->forget_reader();
  EXPECT_TRUE(pool_->reserve(16 * 4096).ok());
}

TEST_F(ShmBlobsTest, OpenNothingElse) {
  auto address = pool_->address();
  ++address.nonce;
  EXPECT_EQ(ShmBlobReader::open(address).error().code(), Code::kUnavailable);
  address = pool_->address();
  address.descriptor = 1 << 20;
  EXPECT_EQ(ShmBlobReader::open(address).error().code(), Code::kUnavailable);
  address.descriptor = ::dup(STDERR_FILENO);
  EXPECT_EQ(ShmBlobReader::open(address).error().code(), Code::kUnavailable);
  ::close(address.descriptor);
  EXPECT_FALSE(ShmBlobPool::make(0).ok());
}

TEST_F(ShmBlobsTest, DieOnAnyThread) {
  constexpr int kCount = 2000;
  for (int i = 0; i < kCount; ++i) {
    auto ref = pool_->put(bytes_of(static_cast<uint64_t>(i), 3000));
    while (!ref.ok()) {
      std::this_thread::yield();  // until an earlier thread has ended
      ref = pool_->put(bytes_of(static_cast<uint64_t>(i), 3000));
    }
    auto blob = reader_->take(*ref).value();
    std::thread([i, blob = std::move(blob)] {
      EXPECT_EQ(blob, Blob(bytes_of(static_cast<uint64_t>(i), 3000)));
    }).join();
  }
}

TEST_F(ShmBlobsTest, CrossProcesses) {
  int to[2];
  ASSERT_EQ(::pipe(to), 0);
  const ShmBlobAddress address = pool_->address();
  const pid_t child = ::fork();  // a child that only reads memory and exits
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto reader = ShmBlobReader::open(address);
    ShmBlobRef ref;
    for (uint64_t i = 0; i < 200; ++i) {
      if (!reader.ok() || ::read(to[0], &ref, sizeof ref) != sizeof ref) ::_exit(2);
      const auto blob = (*reader)->take(ref);
      if (!blob.ok() || !(*blob == Blob(bytes_of(i, 10'000 + i)))) ::_exit(3);
    }
    ::_exit(0);
  }
  for (uint64_t i = 0; i < 200; ++i) {
    auto ref = pool_->put(bytes_of(i, 10'000 + i));
    while (!ref.ok() && ::waitpid(child, nullptr, WNOHANG) == 0) {
      std::this_thread::yield();
      ref = pool_->put(bytes_of(i, 10'000 + i));
    }
    ASSERT_TRUE(ref.ok());
    ASSERT_EQ(::write(to[1], &*ref, sizeof *ref), static_cast<ssize_t>(sizeof *ref));
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::close(to[0]);
  ::close(to[1]);
}

}  // namespace
}  // namespace primerl
