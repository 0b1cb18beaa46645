// The copies of adapters that an engine keeps beside its slots: in memory up to a bound, else in
// files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/random.h"
#include "kernels/engine/adapter_copies.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

/// Two tensors of `bytes` together, of odd sizes; `fill` decides the bytes.
std::vector<WeightTensor> copied_tensors(size_t bytes, uint64_t fill) {
  RandomStream random(fill);
  std::vector<WeightTensor> tensors;
  for (const size_t size : {bytes / 3, bytes - bytes / 3}) {
    std::vector<std::byte> content(size);
    for (auto& each : content) each = static_cast<std::byte>(random.below(256));
    tensors.push_back({fmt::format("t{}", size),
                       DataType::kU8,
                       {static_cast<int64_t>(size)},
                       Blob(std::move(content))});
  }
  return tensors;
}

void expect_equal(const std::vector<WeightTensor>& got, const std::vector<WeightTensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].name, want[i].name);
    EXPECT_EQ(got[i].bytes, want[i].bytes);
  }
}

TEST(AdapterCopies, AreInMemoryUpToTheBoundAndInFilesBeyondIt) {
  const ScratchFolder folder;
  AdapterCopies copies(2'000, folder.path());
  ASSERT_TRUE(copies.put(0, copied_tensors(1'000, 1)).ok());
  ASSERT_TRUE(copies.put(1, copied_tensors(1'000, 2)).ok());
  EXPECT_EQ(copies.host_bytes(), 2'000);
  EXPECT_EQ(copies.num_moves(), 0U) << "at the bound";
  ASSERT_TRUE(copies.put(2, copied_tensors(1, 3)).ok());
  EXPECT_EQ(copies.host_bytes(), 1'001) << "one byte past it";
  EXPECT_EQ(copies.file_bytes(), 1'000);
  EXPECT_EQ(copies.num_moves(), 1U);
  for (int32_t number = 0; number < 3; ++number)
    expect_equal(copies.use(number),
                 copied_tensors(number == 2 ? 1 : 1'000, static_cast<uint64_t>(number) + 1));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "a killed process leaves no file";
}

TEST(AdapterCopies, TheLeastRecentlyUsedMovesAndReturnsWithItsNextVersion) {
  AdapterCopies copies(2'000, {});
  for (const int32_t number : {0, 1})
    ASSERT_TRUE(copies.put(number, copied_tensors(1'000, 7)).ok());
  (void)copies.use(0);
  const auto held = copies.use(1);
  (void)copies.use(0);
  ASSERT_TRUE(copies.put(2, copied_tensors(900, 8)).ok());
  EXPECT_EQ(copies.host_bytes(), 1'900) << "number 1 is in a file";
  ASSERT_TRUE(copies.put(1, copied_tensors(1'000, 9)).ok());
  EXPECT_EQ(copies.host_bytes(), 1'900) << "and now number 0, which was used before number 2";
  EXPECT_EQ(copies.file_bytes(), 1'000);
  expect_equal(held, copied_tensors(1'000, 7));
  expect_equal(copies.use(1), copied_tensors(1'000, 9));
  expect_equal(copies.use(0), copied_tensors(1'000, 7));
}

TEST(AdapterCopies, OneThatIsLargerThanTheBoundIsInAFileAlone) {
  AdapterCopies copies(500, {});
  ASSERT_TRUE(copies.put(0, copied_tensors(400, 1)).ok());
  ASSERT_TRUE(copies.put(1, copied_tensors(501, 2)).ok());
  EXPECT_EQ(copies.host_bytes(), 400);
  EXPECT_EQ(copies.file_bytes(), 501);
  copies.expect_use(1);
  copies.expect_use(5);  // an unknown one
  expect_equal(copies.use(1), copied_tensors(501, 2));
}

TEST(AdapterCopies, LeaveNothingWhenTheyAreRemoved) {
  AdapterCopies copies(1'000, {});
  for (int32_t round = 0; round < 50; ++round) {
    for (int32_t number = 0; number < 4; ++number)
      ASSERT_TRUE(copies.put(number, copied_tensors(600, static_cast<uint64_t>(round))).ok());
    EXPECT_LE(copies.host_bytes(), 1'000);
    EXPECT_EQ(copies.host_bytes() + copies.file_bytes(), 2'400);
    for (int32_t number = 0; number < 4; ++number) copies.remove(number);
    copies.remove(9);
    EXPECT_EQ(copies.count(), 0U);
    EXPECT_EQ(copies.host_bytes() + copies.file_bytes(), 0);
  }
}

TEST(AdapterCopies, WithoutABoundAllAreInMemory) {
  AdapterCopies copies(0, "/no/such/folder");
  for (int32_t number = 0; number < 20; ++number)
    ASSERT_TRUE(copies.put(number, copied_tensors(1'000, 1)).ok());
  EXPECT_EQ(copies.host_bytes(), 20'000);
  EXPECT_EQ(copies.num_moves(), 0U);
}

TEST(AdapterCopies, AFileThatCannotBeWrittenIsAnErrorAndTheEarlierCopyStays) {
  AdapterCopies copies(1'000, "/no/such/folder");
  ASSERT_TRUE(copies.put(0, copied_tensors(600, 1)).ok());
  const Status refused = copies.put(1, copied_tensors(600, 2));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("does not fit into 'adapter_host_bytes_max'"));
  EXPECT_THAT(refused.error().text(), HasSubstr("/no/such/folder"));
  EXPECT_FALSE(copies.contains(1));
  EXPECT_EQ(copies.host_bytes(), 600);
  ASSERT_FALSE(copies.put(0, copied_tensors(1'001, 3)).ok());
  expect_equal(copies.use(0), copied_tensors(600, 1));
}

}  // namespace
}  // namespace primerl
