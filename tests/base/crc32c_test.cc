#include "graph/base/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "graph/base/random.h"

namespace primerl {
namespace {

std::vector<std::byte> random_bytes(size_t size, uint64_t seed) {
  RandomStream random(seed);
  std::vector<std::byte> bytes(size);
  for (auto& b : bytes) b = static_cast<std::byte>(random.next());
  return bytes;
}

TEST(Crc32c, AgreesWithThePublishedVectors) {  // RFC 3720, B.4
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
}

TEST(Crc32c, TheFastOneEqualsTheTableAtEveryLengthAndAlignment) {
  // Sizes around every boundary: words, and one or several rounds of short and of long streams.
  const auto bytes = random_bytes(3 * 4096 * 2 + 64, 11);
  std::vector<size_t> sizes;
  for (size_t size = 0; size < 100; ++size) sizes.push_back(size);
  for (const size_t edge : {3 * 256, 6 * 256, 3 * 4096, 3 * 4096 + 3 * 256, 6 * 4096})
    for (size_t size = edge - 9; size <= edge + 9; ++size) sizes.push_back(size);
  for (const size_t size : sizes)
    for (size_t shift = 0; shift < 9; ++shift) {
      const auto part = std::span(bytes).subspan(shift, size);
      ASSERT_EQ(crc32c(part, 77), crc32c_by_table(part, 77)) << size << " at " << shift;
    }
}

TEST(Crc32c, GoesOnWhereAnotherEnded) {
  const auto bytes = random_bytes(20'000, 12);
  const std::span<const std::byte> all(bytes);
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{80}, size_t{13'001}, all.size()})
    EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), crc32c(all)) << cut;
}

TEST(Crc32c, TheMaskRotatesAndAdds) {
  EXPECT_EQ(masked_crc32c("123456789"), ((0xe3069283U >> 15) | (0xe3069283U << 17)) + 0xa282ead8U);
}

}  // namespace
}  // namespace primerl
