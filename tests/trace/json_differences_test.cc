#include "runtime/trace/read/json_differences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

using testing::ElementsAre;

/// "path: a | b" for each difference.
std::vector<std::string> lines_of(const std::string& a, const std::string& b, size_t max = 8) {
  std::vector<std::string> lines;
  for (const auto& [path, of_a, of_b] :
       json_differences(*parse_json(a, "a"), *parse_json(b, "b"), max))
    lines.push_back(path + ": " + of_a + " | " + of_b);
  return lines;
}

TEST(JsonDifferences, NameEveryMemberThatDiffersAndWhereItIs) {
  EXPECT_THAT(lines_of(R"({"a": 1, "b": {"c": [1, 2]}})", R"({"a": 1, "b": {"c": [1, 3]}})"),
              ElementsAre("b.c[1]: 2 | 3"));
}

TEST(JsonDifferences, NameMembersThatOnlyOneOfTheTwoHas) {
  EXPECT_THAT(lines_of(R"({"a": 1})", "{}"), ElementsAre("a: 1 | null"));
  EXPECT_THAT(lines_of("{}", R"({"a": 1})"), ElementsAre("a: null | 1"));
}

TEST(JsonDifferences, NameTheSizesOfListsBeforeTheirItems) {
  EXPECT_THAT(lines_of("[1, 2]", "[3]"), ElementsAre(": 2 items | 1", "[0]: 1 | 3"));
}

TEST(JsonDifferences, StopAtTheirLimit) {
  EXPECT_EQ(lines_of("[1, 2, 3]", "[4, 5, 6]", 3).size(), 3U);
  EXPECT_EQ(lines_of("[1, 2, 3]", "[4, 5, 6]", 2).size(), 2U);
}

TEST(ShortJson, IsNotCutInsideACharacter) {
  EXPECT_EQ(short_json(Json(std::string("a\u00e4b")), 3), "\"a...");
}

}  // namespace
}  // namespace primerl
