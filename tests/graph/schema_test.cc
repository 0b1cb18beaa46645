#include "graph/config/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "graph/config/reference_docs.h"
#include "graph/config/toml_source.h"
#include "tests/graph/schema_check.h"
#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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
  const auto& variants = at(schema, {"definitions", "node", "oneOf"}).as_array();
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

/// Adds each table of options in the schema, as text, without those in `definitions`.
void add_tables(const Json& json, std::vector<std::string>& tables) {
  if (json.is_array())
    for (const Json& item : json.as_array()) add_tables(item, tables);
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.as_object()) {
    if (key == "properties")
      for (const auto& [name, schema] : value.as_object())
        if (schema.find("properties") != nullptr) tables.push_back(schema.dump());
    add_tables(value, tables);
  }
}

TEST(Schema, HasEachTableOfOptionsOnce) {
  const Json schema = graph_schema(test_catalog());
  std::vector<std::string> tables;
  add_tables(schema, tables);
  const std::set<std::string> different(tables.begin(), tables.end());
  EXPECT_EQ(different.size(), tables.size());
  // Both learners of the catalog have the same optimizer.
  size_t num_references = 0;
  const std::string text = schema.dump();
  for (size_t at = text.find("\"#/definitions/optimizer_options\""); at != std::string::npos;
       at = text.find("\"#/definitions/optimizer_options\"", at + 1))
    ++num_references;
  EXPECT_GE(num_references, 2U);
  EXPECT_NE(at(schema, {"definitions", "optimizer_options", "properties"}).find("lr"), nullptr);
  for (const char* name : {"environment", "reward"})
    EXPECT_NE(at(schema, {"definitions"}).find(name), nullptr) << name;
}

TEST(Schema, StatesLimitsChoicesAndDefaults) {
  const Json schema = graph_schema(test_catalog());
  const auto& variants = at(schema, {"definitions", "node", "oneOf"}).as_array();
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

std::vector<std::string> faults_of(const std::string& text) {
  Sources sources;
  Diagnostics diagnostics;
  const auto table = parse_toml(sources, sources.add("graph.toml", text), diagnostics);
  CHECK(table.has_value(), text);
  return schema_faults(graph_schema(test_catalog()), to_json(*table));
}

TEST(Schema, AcceptsWhatTheCheckAccepts) {
  EXPECT_THAT(faults_of(demo_text()), IsEmpty());
  const auto graph = load_text(demo_text());
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_THAT(faults_of(graph.plan->resolved_toml), IsEmpty());
  EXPECT_THAT(faults_of(replaced(demo_text(), "kind = \"weight_channel\"",
                                 "kind = \"weight_channel\"\nbackend = \"auto\"")),
              IsEmpty());
}

TEST(Schema, LetsATableOfABuiltInGraphLeaveOutWhatThatStates) {
  const std::string text = short_text() +
                           "[node.rollout]\nmax_inflight = 128\n"
                           "[resource.engine]\nkv_blocks = 64\n";
  ASSERT_NE(load_text(text).plan, nullptr) << findings(load_text(text));
  EXPECT_THAT(faults_of(text), IsEmpty());
  EXPECT_THAT(faults_of(text + "[resource.weights]\nkv_blocks = 64\n"), Not(IsEmpty()));
  EXPECT_THAT(faults_of(text + "[node.router]\nmax_inflight = 1\n"), Not(IsEmpty()));
  EXPECT_THAT(faults_of(text + "[node.helper]\nmax_inflight = 1\n"), Not(IsEmpty()))
      << "another node needs its actor";
  EXPECT_THAT(faults_of(text + "[resource.other]\nkv_blocks = 1\n"), Not(IsEmpty()));
  EXPECT_THAT(faults_of(text + "[node.env]\nactor = \"counter\"\ncount = 1\n"), IsEmpty());
}

// An editor already refuses the faults that are visible in one table; the others need the whole
// graph.
TEST(Schema, RefusesWhatTheCheckRefusesOfATable) {
  const std::set<std::string> of_a_table = {"G006", "G010", "G015", "G016", "G017", "G020",
                                            "G021", "G022", "G023", "G024", "G025", "G030"};
  const std::filesystem::path folder = PRIMERL_SOURCE_DIR "/tests/graph/golden";
  std::set<std::string> refused;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string code = entry.path().filename().string().substr(0, 4);
    if (entry.path().extension() != ".toml" || !of_a_table.contains(code)) continue;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    EXPECT_FALSE(faults_of(text).empty()) << entry.path();
    refused.insert(code);
  }
  EXPECT_EQ(refused, of_a_table);
}

TEST(ReferenceDocs, NameEveryActorPortOptionResourceAndEnvironment) {
  const auto pages = reference_pages(test_catalog());
  ASSERT_EQ(pages.size(), 6u);
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
  EXPECT_THAT(text_of("rewards.md"), HasSubstr("## half\n\nHalf of what the environment gives."));
  EXPECT_THAT(text_of("graph-file.md"),
              HasSubstr("| `sampling.top_p` | number | `1.0` | above 0 and at most 1 |"));
  EXPECT_THAT(text_of("messages.md"), HasSubstr("| Task | 1 |"));
}

}  // namespace
}  // namespace primerl::testing
