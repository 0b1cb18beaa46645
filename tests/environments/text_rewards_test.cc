// The rewards that read the last turn and the answer of the task.
#include <gmock/gmock.h>

#include "actors/env/rewards/contains.h"
#include "actors/env/rewards/json_schema.h"
#include "actors/env/rewards/length.h"
#include "actors/env/rewards/number.h"
#include "actors/env/rewards/regex.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

double score(const Result<std::unique_ptr<Reward>>& reward, const std::string& said,
             const std::string& answer = "5") {
  EXPECT_TRUE(reward.ok()) << reward.error().text();
  EnvironmentTask task;
  task.answer = answer;
  const auto given = (*reward)->score(task, {"an earlier turn", said}, 0);
  EXPECT_TRUE(given.ok()) << given.error().text();
  return given.ok() ? *given : -1;
}

std::string fault(const Result<std::unique_ptr<Reward>>& reward, const std::string& said,
                  const std::string& answer) {
  EnvironmentTask task;
  task.answer = answer;
  const auto given = (*reward)->score(task, {said}, 0);
  return given.ok() ? "" : given.error().text();
}

TEST(ContainsReward, LooksForTheAnswerInTheLastTurn) {
  EXPECT_THAT(fault(make_contains({}), "x", ""), HasSubstr("no answer to compare with"));
  EXPECT_EQ(score(make_contains({}), "it is Paris.", " Paris "), 1);
  EXPECT_EQ(score(make_contains({}), "it is paris.", "Paris"), 0);
  EXPECT_EQ(score(make_contains({.ignore_case = true}), "it is paris.", "Paris"), 1);
}

TEST(RegexReward, RefusesAPatternWithTheOffsetOfItsFault) {
  const auto made = make_regex({"a(b"});
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().text(), HasSubstr("'pattern': 'a(b' is not a regular expression"));
  EXPECT_THAT(made.error().text(), HasSubstr("at byte 3"));
}

TEST(RegexReward, MatchesAndComparesItsFirstGroup) {
  EXPECT_EQ(score(make_regex({"^<answer>"}), "<answer>7"), 1);
  EXPECT_EQ(score(make_regex({"^<answer>"}), " <answer>7"), 0);
  EXPECT_EQ(score(make_regex({"<answer>(.*?)</answer>"}), "so <answer> 5 </answer>"), 1);
  EXPECT_EQ(score(make_regex({"<answer>(.*?)</answer>"}), "so <answer>6</answer>"), 0);
  EXPECT_EQ(score(make_regex({"(x)?y"}), "y"), 1) << "the group did not take part";
  EXPECT_EQ(score(make_regex({"\\p{Greek}+"}), "the letter λ"), 1);
}

TEST(RegexReward, ASearchWithoutEndIsAFault) {
  EXPECT_THAT(fault(make_regex({"(a+)+$"}), std::string(5000, 'a') + "b", "a"),
              HasSubstr("the search failed"));
}

TEST(NumberReward, ReadsTheLastNumber) {
  EXPECT_EQ(last_number("no number"), std::nullopt);
  EXPECT_EQ(last_number(""), std::nullopt);
  EXPECT_EQ(last_number("- . , e"), std::nullopt);
  EXPECT_EQ(last_number("1 and 2"), 2);
  EXPECT_EQ(last_number("so it is -12."), -12);
  EXPECT_EQ(last_number("$1,234.50"), 1234.5);
  EXPECT_EQ(last_number("1,2"), 2) << "a list, not a number";
  EXPECT_EQ(last_number("12,3456"), 3456);
  EXPECT_EQ(last_number("6e3"), 6000);
  EXPECT_EQ(last_number("6e"), 6);
  EXPECT_EQ(last_number("x = .5"), 0.5);
  EXPECT_EQ(last_number("3-4"), 4) << "an operator";
  EXPECT_EQ(last_number("(3)-4"), 4);
  EXPECT_EQ(last_number("3 - -4"), -4);
  EXPECT_EQ(last_number("7, 1e999"), 7) << "too large for a number";
}

TEST(NumberReward, ComparesWithinATolerance) {
  EXPECT_THAT(fault(make_number({}), "5", "five"), HasSubstr("'five' has no number"));
  EXPECT_EQ(score(make_number({}), "the answer is 5."), 1);
  EXPECT_EQ(score(make_number({}), "the answer is 5.01"), 0);
  EXPECT_EQ(score(make_number({}), "five"), 0);
  EXPECT_EQ(score(make_number({}), "1234", "2 + 2 = 4\n#### 1,234"), 1);
  EXPECT_EQ(score(make_number({.tolerance = 0.25}), "6.25"), 1) << "relative to 5";
  EXPECT_EQ(score(make_number({.tolerance = 0.25}), "6.26"), 0);
  EXPECT_EQ(score(make_number({.tolerance = 0.25}), "0.25", "0"), 1);
  EXPECT_EQ(score(make_number({.tolerance = 0.25}), "0.26", "0"), 0);
}

TEST(LengthReward, FallsFromOneToZero) {
  EXPECT_FALSE(make_length({.free = 10, .most = 10}).ok());
  const LengthOptions options{.free = 2, .most = 4};
  EXPECT_EQ(score(make_length(options), ""), 1);
  EXPECT_EQ(score(make_length(options), "ab"), 1);
  EXPECT_EQ(score(make_length(options), "äöü"), 0.5) << "characters, not bytes";
  EXPECT_EQ(score(make_length(options), "abcd"), 0);
  EXPECT_EQ(score(make_length(options), "abcdef"), 0);
}

TEST(JsonSchemaReward, RefusesSchemasThatItDoesNotKnow) {
  const auto fault_of = [](const std::string& schema) {
    const auto made = make_json_schema({schema});
    return made.ok() ? "" : made.error().text();
  };
  EXPECT_THAT(fault_of("{"), HasSubstr("'schema'"));
  EXPECT_THAT(fault_of("[]"), HasSubstr("a schema is an object"));
  EXPECT_THAT(fault_of(R"({"type": "text"})"), HasSubstr("'type' is \"text\""));
  EXPECT_THAT(fault_of(R"({"oneOf": []})"), HasSubstr("the key 'oneOf' is not supported"));
  EXPECT_THAT(fault_of(R"({"properties": {"a": {"pattern": "x"}}})"),
              HasSubstr("property 'a': the key 'pattern'"));
  EXPECT_THAT(fault_of(R"({"minimum": "1"})"), HasSubstr("'minimum' is a string, not a number"));
  EXPECT_THAT(fault_of(R"({"required": [1]})"), HasSubstr("a list of strings"));
  EXPECT_THAT(fault_of(R"({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {}}})"),
              HasSubstr("property 'a': the key '$ref' is not supported"));
  EXPECT_EQ(fault_of(R"({"$schema": "x", "title": "y", "type": ["string", "null"]})"), "");
}

TEST(JsonSchemaReward, ScoresValuesByTheirSchema) {
  const auto fits = [](const std::string& said, const std::string& schema) {
    return score(make_json_schema({schema}), said);
  };
  const std::string person =
      R"({"type": "object", "required": ["name"], "additionalProperties": false,
          "properties": {"name": {"type": "string", "minLength": 1},
                         "age": {"type": "integer", "minimum": 0, "maximum": 150}}})";
  EXPECT_EQ(fits(R"({"name": "A", "age": 3})", person), 1);
  EXPECT_EQ(fits("```json\n{\"name\": \"A\"}\n```", person), 1);
  EXPECT_EQ(fits(R"({"age": 3})", person), 0);
  EXPECT_EQ(fits(R"({"name": ""})", person), 0);
  EXPECT_EQ(fits(R"({"name": "A", "age": 3.5})", person), 0);
  EXPECT_EQ(fits(R"({"name": "A", "age": 3.0})", person), 1);
  EXPECT_EQ(fits(R"({"name": "A", "age": 151})", person), 0);
  EXPECT_EQ(fits(R"({"name": "A", "x": 1})", person), 0);
  EXPECT_EQ(fits("not JSON", person), 0);
  EXPECT_EQ(fits("[1, 2]", R"({"items": {"type": "integer"}, "maxItems": 2})"), 1);
  EXPECT_EQ(fits("[1, 2, 3]", R"({"items": {"type": "integer"}, "maxItems": 2})"), 0);
  EXPECT_EQ(fits("[1, null]", R"({"items": {"type": "integer"}})"), 0);
  EXPECT_EQ(fits("2", R"({"enum": ["a", 2.0]})"), 1);
  EXPECT_EQ(fits("3", R"({"enum": ["a", 2.0]})"), 0);
  EXPECT_EQ(fits("null", R"({"const": null})"), 1);
  EXPECT_EQ(fits("1e300", R"({"type": "integer"})"), 1);
}

}  // namespace
}  // namespace primerl
