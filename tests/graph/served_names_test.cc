// `served_as` of models: which names are valid, and which tenants have them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string served_as(const std::string& names) {
  return replaced(demo_text(), "path = \"model\" ",
                  "served_as = [" + names + "]\npath = \"model\" ");
}

TEST(ServedNames, AreKnownToEveryTenantOfTheModel) {
  const auto graph = load_text(served_as("\"Qwen/Qwen3-8B\", \"qwen3_8b:rl.2\""));
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_THAT(graph.plan->models[0].served_as, ElementsAre("Qwen/Qwen3-8B", "qwen3_8b:rl.2"));
  EXPECT_THAT(graph.plan->tenants[0].served_as, ElementsAre("Qwen/Qwen3-8B", "qwen3_8b:rl.2"));
}

TEST(ServedNames, AreInTheResolvedTextOfAGraphThatHasSome) {
  const auto without = load_text(demo_text());
  ASSERT_NE(without.plan, nullptr) << findings(without);
  EXPECT_THAT(without.plan->resolved_toml, Not(HasSubstr("served_as")));
  const Folder folder;
  const auto first = load_graph_text(served_as("\"Qwen/Qwen3-8B\""), "graph.toml", folder.path(),
                                     {}, test_catalog());
  ASSERT_NE(first.plan, nullptr) << findings(first);
  EXPECT_NE(first.plan->graph_hash, without.plan->graph_hash);
  const auto again =
      load_graph_text(first.plan->resolved_toml, "graph.resolved.toml", "/", {}, test_catalog());
  ASSERT_NE(again.plan, nullptr) << findings(again);
  EXPECT_EQ(again.plan->resolved_toml, first.plan->resolved_toml);
  EXPECT_THAT(again.plan->tenants[0].served_as, ElementsAre("Qwen/Qwen3-8B"));
}

TEST(ServedNames, HaveTheCharactersOfModelNames) {
  const std::string longest(128, 'a');
  EXPECT_THAT(codes_of(served_as("\"" + longest + "\"")), IsEmpty());
  EXPECT_THAT(codes_of(served_as("\"" + longest + "a\"")), ElementsAre("G017"));
  for (const char* name : {"", "two words", "naïve", "a\\nb", "a{b}"})
    EXPECT_THAT(codes_of(served_as("\"" + std::string(name) + "\"")), ElementsAre("G017")) << name;
  EXPECT_THAT(findings(load_text(served_as("\"fine\", \"not fine\""))),
              AllOf(HasSubstr("error[G017]: 'not fine' is not a valid name for clients of model "
                              "'policy'"),
                    HasSubstr("letters, digits and '/', '-', '_', '.', ':', at most 128 bytes")));
}

TEST(ServedNames, AreSixteenAtMost) {
  std::string names;
  for (int i = 0; i < 16; ++i) names += fmt::format("{}\"name-{}\"", i == 0 ? "" : ", ", i);
  EXPECT_THAT(codes_of(served_as(names)), IsEmpty());
  EXPECT_THAT(codes_of(served_as(names + ", \"one-more\"")), ElementsAre("G023"));
}

TEST(ServedNames, BelongToOneModelAndToNoTenant) {
  EXPECT_THAT(findings(load_text(served_as("\"a\", \"a\""))),
              HasSubstr("error[G017]: 'a' in 'served_as' of model 'policy' is already the name of "
                        "model 'policy'"));
  EXPECT_THAT(findings(load_text(served_as("\"main\""))),
              HasSubstr("'main' in 'served_as' of model 'policy' is already the name of tenant "
                        "'main'"));
  const std::string two =
      replaced(served_as("\"Qwen/Qwen3-8B\""), "[model.policy]",
               "[model.big]\npath = \"model\"\nserved_as = [\"Qwen/Qwen3-8B\"]\n[model.policy]");
  EXPECT_THAT(findings(load_text(two)),
              HasSubstr("'Qwen/Qwen3-8B' in 'served_as' of model 'policy' is already the name of "
                        "model 'big'"));
}

}  // namespace
}  // namespace primerl::testing
