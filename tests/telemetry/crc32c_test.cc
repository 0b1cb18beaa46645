#include "runtime/telemetry/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace primerl {
namespace {

TEST(Crc32c, AgreesWithThePublishedVectors) {  // RFC 3720, B.4
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
}

TEST(Crc32c, TheMaskRotatesAndAdds) {
  EXPECT_EQ(masked_crc32c("123456789"), ((0xe3069283U >> 15) | (0xe3069283U << 17)) + 0xa282ead8U);
}

}  // namespace
}  // namespace primerl
