// [service.environment.x] and [service.reward.x]: tables of the operator that tenants name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "graph/joining.h"
#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kServices =
    "[service.environment.short_words]\n"
    "name = \"reverse_text\"\n"
    "length_max = 7\n"
    "words = \"words.txt\"\n"
    "[service.reward.answer]\n"
    "name = \"half\"\n"
    "weight = 2\n";

const std::string kNaming =
    "[tenant.main]\n"
    "environment = { service = \"short_words\" }\n"
    "reward = { service = \"answer\", weight = 0.25 }\n"
    "adapter = { rank = 4 }\n";

std::string limited_with(const std::string& services, const std::string& tenants) {
  return "[graph]\nname = \"hosted\"\n[graph.tenant_limits]\ntenants_max = 2\nrank = 8\n"
         "seq_len = 64\nenvironments = [\"copy\"]\nrewards = [\"half\"]\ndata_root = "
         "\"allowed\"\n" +
         services + tenants +
         "[model.policy]\npath = \"model\"\n[node.trainer]\nper_tenant = true\n";
}

struct ServicesTest : ::testing::Test {
  ServicesTest() {
    overrides.cores = 2;
    folder.write("words.txt", "a b c\n");
    std::filesystem::create_directory(folder.path() + "/allowed");
    folder.write("allowed/other.txt", "d\n");
  }
  CheckedGraph load(const std::string& text) const {
    return load_graph_text(text, "graph.toml", folder.path(), overrides, test_catalog());
  }
  std::vector<std::string> codes(const std::string& text) const {
    std::vector<std::string> all;
    const CheckedGraph graph = load(text);
    for (const auto& found : graph.diagnostics.all()) all.push_back(found.code);
    return all;
  }
  Folder folder;
  Overrides overrides;
};

TEST_F(ServicesTest, ATenantHasTheValuesOfTheServiceThatItNames) {
  const auto graph = load(limited_with(kServices, kNaming));
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  const Tenant& tenant = graph.plan->tenants.front();
  EXPECT_EQ(tenant.environment.name, "reverse_text");
  EXPECT_EQ(tenant.environment.service, "short_words");
  EXPECT_EQ(tenant.environment_label(), "short_words");
  ASSERT_NE(tenant.environment.contract, nullptr);
  EXPECT_EQ(tenant.environment.contract->options.find("length_max")
                ->print(tenant.environment.options.get()),
            "7");
  ASSERT_EQ(tenant.rewards.size(), 1u);
  EXPECT_EQ(tenant.rewards[0].label, "answer");
  EXPECT_EQ(tenant.rewards[0].weight, 0.25) << "the tenant's own";
  const auto without =
      load(limited_with(kServices, replaced(kNaming, "\"answer\", weight = 0.25", "\"answer\"")));
  ASSERT_NE(without.plan, nullptr) << findings(without);
  EXPECT_EQ(without.plan->tenants.front().rewards[0].weight, 2) << "the service's";
}

TEST_F(ServicesTest, TheResolvedGraphNamesThemAndIsReadAgain) {
  const auto graph = load(limited_with(kServices, kNaming));
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  const std::string& text = graph.plan->resolved_toml;
  EXPECT_THAT(text, HasSubstr("[service.environment.short_words]\nname = \"reverse_text\"\n"));
  EXPECT_THAT(text, HasSubstr("[service.reward.answer]\nname = \"half\"\nweight = 2"));
  EXPECT_THAT(text, HasSubstr("environment = { service = \"short_words\" }\n"));
  EXPECT_THAT(text, HasSubstr("reward = { service = \"answer\", weight = 0.25 }\n"));
  const auto again = load_graph_text(text, "graph.resolved.toml", "/", overrides, test_catalog());
  ASSERT_NE(again.plan, nullptr) << findings(again);
  EXPECT_EQ(again.plan->resolved_toml, text);
  EXPECT_EQ(again.plan->graph_hash, graph.plan->graph_hash);
}

TEST_F(ServicesTest, TheyAreAllowedWhateverTheLimitsAllow) {
  EXPECT_THAT(codes(limited_with(kServices, kNaming)), IsEmpty())
      << "neither in 'environments' nor below 'data_root'";
  const std::string own = replaced(kNaming, "service = \"short_words\"", "name = \"reverse_text\"");
  EXPECT_THAT(codes(limited_with(kServices, own)), ElementsAre("G096"));
}

TEST_F(ServicesTest, ATenantAddsNothingToThem) {
  const auto with = [&](const std::string& more) {
    return load(
        limited_with(kServices, replaced(kNaming, "\"short_words\"", "\"short_words\"" + more)));
  };
  for (const char* more : {", length_max = 64", ", name = \"copy\"", ", words = \"/etc/passwd\"",
                           ", command = [\"sh\"]"}) {
    const auto graph = with(more);
    EXPECT_EQ(graph.plan, nullptr) << more;
    EXPECT_THAT(findings(graph), HasSubstr("G085")) << more;
    EXPECT_THAT(findings(graph), HasSubstr("which the service says")) << more;
  }
}

TEST_F(ServicesTest, AnUnknownOneIsNamedWithThoseThatThereAre) {
  const auto wrong = load(limited_with(kServices, replaced(kNaming, "short_words", "short_word")));
  EXPECT_THAT(findings(wrong), HasSubstr("there is no service 'short_word'"));
  EXPECT_THAT(findings(wrong), HasSubstr("services: short_words"));
  EXPECT_THAT(findings(wrong), HasSubstr("did you mean 'short_words'?"));
  EXPECT_THAT(findings(load(limited_with("", kNaming))),
              HasSubstr("the graph has no table [service.environment.<name>]"));
  EXPECT_THAT(codes(limited_with(kServices, replaced(kNaming, "\"short_words\"", "3"))),
              ElementsAre("G015"));
  EXPECT_THAT(codes(limited_with(kServices, replaced(kNaming, "\"short_words\"", "\"answer\""))),
              ElementsAre("G015"))
      << "that is a reward";
}

TEST_F(ServicesTest, TheirTablesAreCheckedWithoutATenant) {
  EXPECT_THAT(codes(limited_with(kServices, "")), IsEmpty());
  EXPECT_THAT(codes(limited_with(replaced(kServices, "reverse_text", "revers_text"), "")),
              ElementsAre("G015"));
  EXPECT_THAT(codes(limited_with(replaced(kServices, "length_max", "length_mox"), "")),
              ElementsAre("G020"));
  EXPECT_THAT(codes(limited_with(replaced(kServices, "words.txt", "none.txt"), "")),
              ElementsAre("G046"));
  EXPECT_THAT(codes(limited_with(replaced(kServices, "name = \"half\"\n", ""), "")),
              ElementsAre("G025"));
  EXPECT_THAT(codes(limited_with(replaced(kServices, "service.reward", "service.rewards"), "")),
              ElementsAre("G020"));
  EXPECT_THAT(
      codes(limited_with(replaced(kServices, "name = \"half\"", "service = \"answer\""), "")),
      Not(IsEmpty()))
      << "a service names no service";
}

TEST_F(ServicesTest, ATenantThatJoinsNamesThem) {
  const auto graph = load(limited_with(kServices, ""));
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  const std::string file = folder.write("alice.toml", replaced(kNaming, "main", "alice"));
  const auto joined = check_joining_tenant(file, *graph.plan, {}, overrides, test_catalog());
  ASSERT_NE(joined.tenant, nullptr) << render(joined.diagnostics, joined.sources);
  EXPECT_EQ(joined.tenant->environment.name, "reverse_text");
  EXPECT_THAT(joined.table, HasSubstr("environment = { service = \"short_words\" }\n"));
  EXPECT_THAT(joined.table, Not(HasSubstr("words.txt"))) << "it is the operator's";
  TenantChange change;
  change.slot = TenantSlot(1);
  change.tenancy = 3;
  change.table = joined.table;
  const auto made = tenant_of_join(*graph.plan, change, test_catalog());
  ASSERT_TRUE(made.ok()) << made.error().text();
  EXPECT_EQ((*made)->environment.service, "short_words");
  EXPECT_EQ((*made)->rewards[0].weight, 0.25);
}

TEST_F(ServicesTest, ATenantFileBringsNone) {
  const auto graph = load(limited_with(kServices, ""));
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  const std::string file =
      folder.write("alice.toml", replaced(kNaming, "main", "alice") +
                                     "[service.environment.short_words]\nname = \"copy\"\n");
  const auto joined = check_joining_tenant(file, *graph.plan, {}, overrides, test_catalog());
  EXPECT_EQ(joined.tenant, nullptr);
  EXPECT_THAT(render(joined.diagnostics, joined.sources), HasSubstr("G006"));
}

}  // namespace
}  // namespace primerl::testing
