#include "graph/config/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/config/reference_docs.h"
#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

using ::testing::HasSubstr;

const Json& at(const Json& json, std::initializer_list<std::string_view> path) {
  const Json* found = &json;
  for (const auto key : path) {
    found = found->find(key);
    CHECK(found != nullptr, key);
  }
  return *found;
}

TEST(Schema, IsDraft04AndClosed) {
  const Json schema = graph_schema(test_catalog());
  EXPECT_EQ(at(schema, {"$schema"}).as_string(), "http://json-schema.org/draft-04/schema#");
  EXPECT_EQ(at(schema, {"additionalProperties"}).as_bool(), false);
  EXPECT_EQ(at(schema, {"properties", "graph", "additionalProperties"}).as_bool(), false);
}

TEST(Schema, OffersEveryActorWithItsOptions) {
  const Json schema = graph_schema(test_catalog());
  const auto& patterns = at(schema, {"properties", "node", "patternProperties"}).as_object();
  ASSERT_EQ(patterns.size(), 1u);
  const auto& variants = at(patterns[0].second, {"oneOf"}).as_array();
  ASSERT_EQ(variants.size(), test_catalog().actors.size());
  for (size_t i = 0; i < variants.size(); ++i) {
    const auto& actor = test_catalog().actors[i];
    EXPECT_EQ(at(variants[i], {"properties", "actor", "enum"}).as_array()[0].as_string(),
              actor.name);
    for (const auto& field : actor.options.fields)
      EXPECT_NE(at(variants[i], {"properties"}).find(field.name), nullptr) << field.name;
    EXPECT_EQ(at(variants[i], {"required"}).as_array()[0].as_string(), "actor");
  }
}

TEST(Schema, StatesLimitsChoicesAndDefaults) {
  const Json schema = graph_schema(test_catalog());
  const auto& variants =
      at(at(schema, {"properties", "node", "patternProperties"}).as_object()[0].second, {"oneOf"})
          .as_array();
  const Json& counter = variants[7];
  const Json& count = at(counter, {"properties", "count"});
  EXPECT_EQ(at(count, {"minimum"}).as_int(), 1);
  EXPECT_EQ(at(count, {"maximum"}).as_int(), 8);
  EXPECT_EQ(at(count, {"default"}).as_int(), 8);
  EXPECT_EQ(at(counter, {"properties", "share", "exclusiveMinimum"}).as_bool(), true);
  EXPECT_EQ(at(counter, {"properties", "color", "enum"}).as_array().size(), 2u);
  EXPECT_EQ(at(counter, {"properties", "wait", "default"}).as_string(), "250ms");
  EXPECT_EQ(at(counter, {"properties", "tags", "items", "type"}).as_string(), "string");
}

TEST(ReferenceDocs, NameEveryActorPortOptionResourceAndEnvironment) {
  const auto pages = reference_pages(test_catalog());
  ASSERT_EQ(pages.size(), 5u);
  const auto text_of = [&pages](std::string_view file) {
    for (const auto& page : pages)
      if (page.file == file) return page.text;
    return std::string();
  };
  for (const auto& actor : test_catalog().actors) {
    EXPECT_THAT(text_of("actors.md"), HasSubstr("## " + actor.name + "\n"));
    for (const auto& port : actor.inputs)
      EXPECT_THAT(text_of("actors.md"), HasSubstr("| `" + port.name + "` |"));
    for (const auto& field : actor.options.fields)
      EXPECT_THAT(text_of("actors.md"), HasSubstr("| `" + field.name + "` |"));
  }
  EXPECT_THAT(text_of("resources.md"), HasSubstr("## learner, torch\n"));
  EXPECT_THAT(text_of("resources.md"),
              HasSubstr("| `optimizer.lr` | number | `1e-06` | above 0 |"));
  EXPECT_THAT(text_of("environments.md"), HasSubstr("from 1 to 64 letters"));
  EXPECT_THAT(text_of("graph-file.md"),
              HasSubstr("| `sampling.top_p` | number | `1.0` | above 0 and at most 1 |"));
  EXPECT_THAT(text_of("messages.md"), HasSubstr("| Task | 1 |"));
}

}  // namespace
}  // namespace primerl::testing
