#include "graph/base/byte_size.h"

#include <gtest/gtest.h>

namespace primerl {
namespace {

TEST(ParseBytes, RefusesABareNumberAndNamesTheUnits) {
  const auto result = parse_bytes("4096");
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().text().find("KiB, MiB, GiB and TiB"), std::string::npos);
}

TEST(ParseBytes, RefusesWordsSignsAndUnknownUnits) {
  for (const char* text :
       {"", "much", "GiB", ".GiB", "1.2.3GiB", "-1GiB", "+1GiB", "2G", "2gib", "2 Gi", "2GiBs",
        "1e3MiB", "nanB", "infGiB", " 2GiB", "2GiB ", "0x10B", "1,5GB"})
    EXPECT_FALSE(parse_bytes(text).ok()) << text;
}

TEST(ParseBytes, ReadsEveryUnit) {
  EXPECT_EQ(*parse_bytes("7B"), 7);
  EXPECT_EQ(*parse_bytes("7kB"), 7'000);
  EXPECT_EQ(*parse_bytes("7KB"), 7'000);
  EXPECT_EQ(*parse_bytes("7MB"), 7'000'000);
  EXPECT_EQ(*parse_bytes("1.5GB"), 1'500'000'000);
  EXPECT_EQ(*parse_bytes("2TB"), 2'000'000'000'000);
  EXPECT_EQ(*parse_bytes("3KiB"), 3072);
  EXPECT_EQ(*parse_bytes("512 MiB"), int64_t{512} << 20);
  EXPECT_EQ(*parse_bytes("2GiB"), int64_t{2} << 30);
  EXPECT_EQ(*parse_bytes(".5TiB"), int64_t{1} << 39);
  EXPECT_EQ(*parse_bytes("0GiB"), 0);
}

TEST(ParseBytes, RoundsAFractionToWholeBytesButTakesNoPartOfOne) {
  EXPECT_EQ(*parse_bytes("0.1GiB"), 107374182);
  EXPECT_EQ(*parse_bytes("1.0006kB"), 1001);
  EXPECT_FALSE(parse_bytes("1.5B").ok());
}

TEST(ParseBytes, TakesTheLargestSizeAndNotOneByteMore) {
  EXPECT_EQ(*parse_bytes("9223372036854775807B"), INT64_MAX);
  EXPECT_EQ(*parse_bytes("9007199254740993B"), 9007199254740993) << "whole numbers stay exact";
  EXPECT_EQ(*parse_bytes("8388607TiB"), int64_t{8388607} << 40);
  for (const char* text :
       {"9223372036854775808B", "8388608TiB", "8388608.0TiB", "99999999999999999999999999999GiB"}) {
    const auto result = parse_bytes(text);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_NE(result.error().text().find("is more than 9223372036854775807 bytes"),
              std::string::npos);
  }
}

TEST(BytesText, ReadsBackAsItself) {
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1023}, int64_t{1024}, int64_t{1000},
                              int64_t{1'500'000'000}, int64_t{8} << 30, INT64_MAX})
    EXPECT_EQ(*parse_bytes(bytes_text(bytes)), bytes) << bytes_text(bytes);
  EXPECT_EQ(bytes_text(int64_t{256} << 20), "256MiB");
  EXPECT_EQ(bytes_text(1'500'000'000), "1500MB");
}

}  // namespace
}  // namespace primerl
