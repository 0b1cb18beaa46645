#include "graph/base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace primerl {
namespace {

std::string fault_of(std::string_view text, const JsonLimits& limits = {}) {
  const auto result = parse_json(text, "x.json", limits);
  return result.ok() ? "" : result.error().message();
}

TEST(ParseJson, ReportsThePositionOfTheError) {
  EXPECT_EQ(fault_of("{\n  \"a\": 1,\n  oops\n}").rfind("x.json:3:3:", 0), 0u)
      << fault_of("{\n  \"a\": 1,\n  oops\n}");
}

TEST(ParseJson, RefusesDuplicateKeysByName) {
  EXPECT_NE(fault_of(R"({"a": 1, "a": 2})").find("key 'a' appears twice"), std::string::npos);
}

TEST(ParseJson, RefusesOneLevelPastTheDepthLimit) {
  JsonLimits limits;
  limits.depth_max = 3;
  EXPECT_EQ(fault_of("[[[1]]]", limits), "");
  EXPECT_NE(fault_of("[[[[1]]]]", limits).find("nested deeper than 3"), std::string::npos);
}

TEST(ParseJson, RefusesOneBytePastTheSizeLimit) {
  JsonLimits limits;
  limits.bytes_max = 4;
  EXPECT_EQ(fault_of("1234", limits), "");
  EXPECT_NE(fault_of("12345", limits), "");
}

TEST(ParseJson, RefusesWhatFollowsAZeroByte) {
  EXPECT_FALSE(parse_json(std::string_view("{}\0garbage", 10), "x").ok());
  EXPECT_FALSE(parse_json(std::string_view("{}\0", 3), "x").ok());
}

TEST(ParseJson, RefusesTrailingTextAndBadUtf8) {
  EXPECT_NE(fault_of("{} {}"), "");
  EXPECT_NE(fault_of("\"\xff\""), "");
  EXPECT_NE(fault_of(""), "");
}

TEST(ParseJson, KeepsIntegersExactAndKeysInOrder) {
  const auto json =
      parse_json(R"({"z": 9007199254740993, "a": 18446744073709551615, "m": -1})", "x");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(*json->get_int("z"), 9007199254740993);
  EXPECT_EQ(json->dump(), R"({"z":9007199254740993,"a":18446744073709551615,"m":-1})");
}

TEST(JsonDump, WritesDoublesThatReadBackAsTheSameBits) {
  for (const double value : {0.1, 1.0 / 3.0, 1e300, -0.0, 5e-324}) {
    const auto again = parse_json(Json(value).dump(), "x");
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->as_double(), value);
  }
  EXPECT_EQ(Json(std::numeric_limits<double>::quiet_NaN()).dump(), "null");
}

TEST(JsonGet, NamesTheKeyAndWhatWasThere) {
  const auto json = parse_json(R"({"layers": "two", "half": 0.5})", "x");
  EXPECT_EQ(json->get_int("layers").error().message(), "'layers' is a string, not a whole number");
  EXPECT_EQ(json->get_int("heads").error().message(), "no key 'heads'");
  EXPECT_FALSE(json->get_int("half").ok());
}

TEST(JsonSet, ReplacesInPlace) {
  Json json;
  json.set("a", 1).set("b", 2).set("a", 3);
  EXPECT_EQ(json.dump(), R"({"a":3,"b":2})");
}

}  // namespace
}  // namespace primerl
