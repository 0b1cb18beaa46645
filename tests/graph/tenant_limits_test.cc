// [graph.tenant_limits]: slots in the plan, limits of tenants, and tenants that join.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "graph/joining.h"
#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kLimits =
    "[graph.tenant_limits]\n"
    "tenants_max = 3\n"
    "rank = 8\n"
    "seq_len = 64\n"
    "group_size = 8\n"
    "batch_size = 64\n"
    "inflight = 32\n"
    "max_off_policy_steps = 4\n"
    "turns_max = 4\n";

const std::string kMain =
    "[tenant.main]\n"
    "environment = { name = \"reverse_text\" }\n"
    "adapter = { rank = 4 }\n";

/// A short graph with limits and, without others, no tenant.
std::string limited(const std::string& tenants = "", const std::string& limits = kLimits) {
  return "[graph]\nname = \"hosted\"\n" + limits + tenants +
         "[model.policy]\npath = \"model\"\n[node.trainer]\nper_tenant = true\n";
}

/// A graph in a folder that stays while it is used.
class Hosted {
 public:
  explicit Hosted(const std::string& text) {
    overrides_.cores = 2;
    graph = load_graph_text(text, "graph.toml", folder_.path(), overrides_, test_catalog());
  }
  const Plan& plan() const {
    CHECK(graph.plan != nullptr, findings(graph));
    return *graph.plan;
  }
  /// Checks a tenant file; if it fits, the tenant is in the graph afterwards.
  CheckedTenant join(const std::string& name, const std::string& text) {
    const std::string file = folder_.write(name, text);
    auto checked = check_joining_tenant(file, plan(), present, overrides_, test_catalog());
    if (checked.tenant != nullptr) present[checked.tenant->name] = checked.table;
    return checked;
  }
  std::string file(const std::string& name, const std::string& text) {
    return folder_.write(name, text);
  }
  const std::string& path() const { return folder_.path(); }

  CheckedGraph graph;
  std::map<std::string, std::string> present;  // tables

 private:
  Folder folder_;
  Overrides overrides_;
};

std::string findings_text(const CheckedTenant& checked) {
  return render(checked.diagnostics, checked.sources);
}

std::vector<std::string> codes_in(const CheckedTenant& checked) {
  std::vector<std::string> all;
  for (const auto& found : checked.diagnostics.all()) all.push_back(found.code);
  return all;
}

std::vector<std::string> instances_of(const Plan& plan, const std::string& node) {
  std::vector<std::string> names;
  for (const auto& instance : plan.instances)
    if (plan.node(instance.node).name == node) names.push_back(instance.name);
  return names;
}

std::vector<int64_t> bounds_of(const Plan& plan) {
  std::vector<int64_t> bounds;
  for (const auto& edge : plan.edges) bounds.push_back(edge.bound);
  return bounds;
}

TEST(TenantLimits, AGraphWithoutThemHasNoFreeSlotAndNoTable) {
  const auto graph = load_text(demo_text());
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_THAT(graph.plan->free_slots, IsEmpty());
  EXPECT_EQ(graph.plan->num_slots(), 1u);
  EXPECT_EQ(graph.plan->layout_tenants(), 1u);
  EXPECT_FALSE(graph.plan->settings.tenant_limits.are_set());
  EXPECT_THAT(graph.plan->resolved_toml, Not(HasSubstr("tenant_limits")));
}

TEST(TenantLimits, AGraphWithoutThemMayReserveUpTo8192Tenants) {
  const auto with = [](const std::string& count) {
    return codes_of(replaced(demo_text(), "seed = 17", "seed = 17\ntenants_max = " + count));
  };
  EXPECT_THAT(with("8192"), IsEmpty());
  EXPECT_THAT(with("8193"), ElementsAre("G023"));
}

TEST(TenantLimits, AGraphIsPlannedForEverySlot) {
  const Hosted hosted(limited(kMain));
  EXPECT_EQ(findings(hosted.graph), "");
  const Plan& plan = hosted.plan();
  EXPECT_EQ(plan.tenants.size(), 1u);
  EXPECT_EQ(plan.num_slots(), 3u);
  EXPECT_EQ(plan.layout_tenants(), 2u);
  EXPECT_THAT(instances_of(plan, "env"), ElementsAre("env.main", "env.slot-1", "env.slot-2"));
  EXPECT_THAT(instances_of(plan, "router"), ElementsAre("router"));
  EXPECT_FALSE(plan.is_free(TenantSlot(0)));
  EXPECT_TRUE(plan.is_free(TenantSlot(2)));
  EXPECT_FALSE(plan.is_free(TenantSlot(3)));
  EXPECT_FALSE(plan.is_free(TenantSlot()));
  EXPECT_EQ(plan.in_slot(TenantSlot(2)).adapter.rank, 8);
  EXPECT_EQ(plan.in_slot(TenantSlot(0)).adapter.rank, 4);
}

TEST(TenantLimits, AGraphMayHaveNoTenant) {
  const Hosted hosted(limited());
  EXPECT_EQ(findings(hosted.graph), "");
  EXPECT_THAT(hosted.plan().tenants, IsEmpty());
  EXPECT_THAT(instances_of(hosted.plan(), "rollout"),
              ElementsAre("rollout.slot-0", "rollout.slot-1", "rollout.slot-2"));
}

TEST(TenantLimits, BoundsAndMemoryDoNotDependOnWhoIsThere) {
  const Hosted empty(limited()), one(limited(kMain));
  const Hosted full(
      limited(kMain + replaced(kMain, "main", "second") + replaced(kMain, "main", "third")));
  EXPECT_EQ(bounds_of(empty.plan()), bounds_of(one.plan()));
  EXPECT_EQ(bounds_of(empty.plan()), bounds_of(full.plan()));
  const auto learner = [](const Plan& plan) {
    return std::ranges::find(plan.resources, "learner", &PlanResource::kind)->memory;
  };
  // The base, an adapter for each slot, and saved states that wait for checkpoints.
  const double bytes = 3e6 + 3 * 8000 + static_cast<double>(kWaitingCutsBytesMax);
  for (const Hosted* each : {&empty, &one, &full}) EXPECT_EQ(sum_of(learner(each->plan())), bytes);
}

TEST(TenantLimits, TheResolvedTextGivesTheSamePlan) {
  const Hosted hosted(limited(kMain));
  Overrides overrides;
  overrides.cores = 64;
  const auto again = load_graph_text(hosted.plan().resolved_toml, "graph.resolved.toml", "/",
                                     overrides, test_catalog());
  ASSERT_NE(again.plan, nullptr) << findings(again);
  EXPECT_EQ(again.plan->resolved_toml, hosted.plan().resolved_toml);
  EXPECT_EQ(again.plan->graph_hash, hosted.plan().graph_hash);
  EXPECT_EQ(again.plan->num_slots(), 3u);
}

TEST(TenantLimits, UnwrittenKeysOfATenantAreWithinThem) {
  const Hosted hosted(limited(kMain));
  const Tenant& tenant = hosted.plan().tenants.front();
  EXPECT_EQ(tenant.seq_len, 64);
  EXPECT_EQ(tenant.inflight, 32);
  EXPECT_EQ(tenant.max_off_policy_steps, 4);
  EXPECT_EQ(tenant.turns_max, 4);
  EXPECT_EQ(tenant.group_size, 8);
  EXPECT_DOUBLE_EQ(tenant.share, 1.0 / 3);
}

TEST(TenantLimits, HoldAtTheBoundAndOnePastIt) {
  const auto with = [](const std::string& line) { return codes_of(limited(kMain + line + "\n")); };
  for (const auto& [key, limit] : std::map<std::string, int64_t>{
           {"seq_len", 64}, {"inflight", 32}, {"max_off_policy_steps", 4}, {"turns_max", 4}}) {
    EXPECT_THAT(with(fmt::format("{} = {}", key, limit)), IsEmpty()) << key;
    EXPECT_THAT(with(fmt::format("{} = {}", key, limit + 1)), ElementsAre("G096")) << key;
  }
  EXPECT_THAT(with("group_size = 8\nbatch_size = 64"), IsEmpty());
  EXPECT_THAT(with("group_size = 9\nbatch_size = 63"), ElementsAre("G096"));
  EXPECT_THAT(with("batch_size = 72"), ElementsAre("G096"));
  EXPECT_THAT(codes_of(limited(replaced(kMain, "rank = 4", "rank = 8"))), IsEmpty());
  EXPECT_THAT(codes_of(limited(replaced(kMain, "rank = 4", "rank = 9"))), ElementsAre("G096"));
  EXPECT_THAT(codes_of(limited("", replaced(kLimits, "tenants_max = 3", "tenants_max = 1024"))),
              IsEmpty());
  EXPECT_THAT(codes_of(limited("", replaced(kLimits, "tenants_max = 3", "tenants_max = 1025"))),
              ElementsAre("G023"));
}

TEST(TenantLimits, ATenantNeedsAnAdapterThatTheyAllow) {
  EXPECT_THAT(codes_of(limited(replaced(kMain, "adapter = { rank = 4 }\n", ""))),
              ElementsAre("G096"));
  const std::string targets = kLimits + "targets = [\"q_proj\", \"v_proj\"]\n";
  const auto with = [&](const std::string& adapter) {
    return codes_of(limited(replaced(kMain, "rank = 4", "rank = 4" + adapter), targets));
  };
  EXPECT_THAT(with(", targets = [\"v_proj\"]"), IsEmpty());
  EXPECT_THAT(with(", targets = [\"v_proj\", \"o_proj\"]"), ElementsAre("G096"));
  EXPECT_THAT(with(""), ElementsAre("G096")) << "left out, it is on all linear layers";
  const std::string head =
      replaced(kMain, "rank = 4", "rank = 4, targets = [\"q_proj\", \"lm_head\"]");
  EXPECT_THAT(codes_of(limited(head)), ElementsAre("G096")) << "all-linear leaves out the head";
  EXPECT_THAT(codes_of(limited(head, kLimits + "targets = [\"all-linear\", \"lm_head\"]\n")),
              IsEmpty());
}

TEST(TenantLimits, NameEnvironmentsRewardsAndOptimizers) {
  const std::string lists = kLimits +
                            "environments = [\"copy\"]\nrewards = [\"half\"]\n"
                            "optimizers = [\"adamw\"]\n";
  const auto with = [&](const std::string& environment, const std::string& more) {
    return codes_of(limited(replaced(kMain, "reverse_text", environment) + more, lists));
  };
  EXPECT_THAT(with("copy", ""), IsEmpty());
  EXPECT_THAT(with("reverse_text", ""), ElementsAre("G096"));
  EXPECT_THAT(with("reverse_txt", ""), ElementsAre("G015")) << "one fault, one error";
  EXPECT_THAT(with("copy", "reward = { name = \"half\" }\n"), IsEmpty());
  EXPECT_THAT(with("copy", "optimizer = { kind = \"adamw\" }\n"), IsEmpty());
  EXPECT_THAT(with("copy", "optimizer = { kind = \"sgd\" }\n"), ElementsAre("G096"));
  EXPECT_THAT(codes_of(limited("", kLimits + "environments = [\"coppy\"]\n")), ElementsAre("G015"));
  EXPECT_THAT(codes_of(limited("", kLimits + "rewards = [\"whole\"]\n")), ElementsAre("G015"));
}

TEST(TenantLimits, FilesOutsideTheDataRootAreRefused) {
  namespace fs = std::filesystem;
  Hosted hosted(limited());
  fs::create_directory(hosted.path() + "/data");
  hosted.file("data/words.txt", "a\n");
  hosted.file("secret.txt", "b\n");
  fs::create_symlink(hosted.path() + "/secret.txt", hosted.path() + "/data/link.txt");
  const std::string limits = kLimits + "data_root = \"data\"\n";
  const auto with = [&](const std::string& file) {
    Overrides overrides;
    overrides.cores = 2;
    const std::string environment = "name = \"reverse_text\", words = \"" + file + "\"";
    return codes_of(
        load_graph_text(limited(replaced(kMain, "name = \"reverse_text\"", environment), limits),
                        "graph.toml", hosted.path(), overrides, test_catalog()));
  };
  EXPECT_THAT(with("data/words.txt"), IsEmpty());
  EXPECT_THAT(with("secret.txt"), ElementsAre("G096"));
  EXPECT_THAT(with("data/../secret.txt"), ElementsAre("G096"));
  EXPECT_THAT(with("data/link.txt"), ElementsAre("G096"));
  EXPECT_THAT(with(hosted.path() + "/secret.txt"), ElementsAre("G096"));
}

TEST(TenantLimits, AreCheckedThemselves) {
  const auto with = [](const std::string& from, const std::string& to) {
    return codes_of(limited("", replaced(kLimits, from, to)));
  };
  EXPECT_THAT(with("rank = 8\n", ""), ElementsAre("G025"));
  EXPECT_THAT(with("tenants_max = 3\n", ""), ElementsAre("G025"));
  EXPECT_THAT(with("rank = 8", "rang = 8"), ElementsAre("G020"));
  EXPECT_THAT(with("seq_len = 64", "seq_len = 257"), ElementsAre("G064"));
  EXPECT_THAT(with("group_size = 8", "group_size = 65"), ElementsAre("G062", "G062"))
      << "more than the rollouts of the node, and than 'inflight'";
  EXPECT_THAT(codes_of("[graph]\ntenant_limits = 3\n" + limited().substr(limited().find("[model"))),
              Contains("G021"));
  EXPECT_THAT(codes_of(replaced(limited(), "name = \"hosted\"", "tenants_max = 2")),
              ElementsAre("G085"));
  const std::string shared = "per_tenant = true\n[node.env]\nper_tenant = false";
  EXPECT_THAT(codes_of(replaced(limited(), "per_tenant = true", shared)), ElementsAre("G067"));
  const std::string one = limited("", replaced(kLimits, "tenants_max = 3", "tenants_max = 1"));
  EXPECT_THAT(codes_of(replaced(one, "per_tenant = true", shared)), ElementsAre("G067"));
}

TEST(TenantLimits, AGraphHasNoMoreTenantsThanSlots) {
  const std::string two = kMain + replaced(kMain, "main", "second");
  const std::string limits = replaced(kLimits, "tenants_max = 3", "tenants_max = 2");
  EXPECT_THAT(codes_of(limited(two, limits)), IsEmpty());
  EXPECT_THAT(codes_of(limited(two + replaced(kMain, "main", "third"), limits)),
              ElementsAre("G065"));
}

TEST(JoiningTenant, GetsItsTableAndFillsASlot) {
  Hosted hosted(limited(kMain));
  hosted.present = tenant_tables(hosted.plan().resolved_toml);
  const auto alice = hosted.join("alice.toml", replaced(kMain, "main", "alice"));
  ASSERT_NE(alice.tenant, nullptr) << findings_text(alice);
  EXPECT_EQ(findings_text(alice), "");
  EXPECT_EQ(alice.tenant->name, "alice");
  EXPECT_EQ(alice.tenant->seq_len, 64);
  EXPECT_THAT(alice.table, HasSubstr("[tenant.alice]\n"));
  EXPECT_THAT(alice.table, HasSubstr("inflight = 32\n"));
  EXPECT_THAT(alice.table, Not(HasSubstr("[model")));
  ASSERT_NE(hosted.join("bob.toml", replaced(kMain, "main", "bob")).tenant, nullptr);
  const auto late = hosted.join("cy.toml", replaced(kMain, "main", "cy"));
  EXPECT_EQ(late.tenant, nullptr);
  EXPECT_THAT(codes_in(late), ElementsAre("G065"));
  EXPECT_THAT(findings_text(late), HasSubstr("tenants: alice, bob and main"));
  hosted.present.erase("alice");
  EXPECT_NE(hosted.join("cy.toml", replaced(kMain, "main", "cy")).tenant, nullptr);
}

TEST(JoiningTenant, MayBeTrainedByAClientWhereTheLimitsSaySo) {
  const std::string alice = "[tenant.alice]\nclient = true\nadapter = { rank = 4 }\n";
  Hosted hosted(limited(kMain, kLimits + "clients = true\nsnapshots = 2\n"));
  hosted.present = tenant_tables(hosted.plan().resolved_toml);
  EXPECT_THAT(codes_in(hosted.join("alice.toml", alice + "snapshots = 3\n")), ElementsAre("G096"));
  EXPECT_THAT(codes_in(hosted.join("alice.toml", alice + "seq_len = 65\n")), ElementsAre("G096"));
  EXPECT_THAT(codes_in(hosted.join("alice.toml", alice + "max_steps = 3\n")), ElementsAre("G085"));
  const auto joined = hosted.join("alice.toml", alice);
  ASSERT_NE(joined.tenant, nullptr) << findings_text(joined);
  EXPECT_EQ(findings_text(joined), "");
  EXPECT_TRUE(joined.tenant->is_client);
  EXPECT_EQ(joined.tenant->snapshots, 2);
  EXPECT_THAT(joined.table, HasSubstr("client = true\n"));
  TenantChange change;
  change.slot = TenantSlot(1);
  change.tenancy = 3;
  change.table = joined.table;
  const auto made = tenant_of_join(hosted.plan(), change, test_catalog()).value();
  EXPECT_TRUE(made->is_client);
  EXPECT_EQ(made->tenancy, 3U);
  EXPECT_NE(hosted.join("bob.toml", replaced(kMain, "main", "bob")).tenant, nullptr)
      << "a loop beside it";
}

TEST(JoiningTenant, IsNoClientWithoutTheLimitAndTheErrorSaysWhereToWriteIt) {
  Hosted hosted(limited(kMain));
  hosted.present = tenant_tables(hosted.plan().resolved_toml);
  const auto alice =
      hosted.join("alice.toml", "[tenant.alice]\nclient = true\nadapter = { rank = 4 }\n");
  EXPECT_EQ(alice.tenant, nullptr);
  EXPECT_THAT(codes_in(alice), ElementsAre("G096"));
  EXPECT_THAT(findings_text(alice), HasSubstr("write clients = true in [graph.tenant_limits]"));
}

TEST(JoiningTenant, IsCheckedAsATenantOfTheGraphsFile) {
  Hosted hosted(limited(kMain));
  hosted.present = tenant_tables(hosted.plan().resolved_toml);
  const auto codes_of_file = [&](const std::string& text) {
    return codes_in(hosted.join("alice.toml", text));
  };
  const std::string alice = replaced(kMain, "main", "alice");
  EXPECT_THAT(codes_of_file(alice + "seq_len = 65\n"), ElementsAre("G096"));
  EXPECT_THAT(codes_of_file(alice + "group_sise = 4\n"), ElementsAre("G020"));
  EXPECT_THAT(codes_of_file(alice + "batch_size = 12\n"), ElementsAre("G061"));
  EXPECT_THAT(codes_of_file(alice + "group_size = 1\n"), ElementsAre("G083"));
  EXPECT_THAT(codes_of_file(alice + "share = 0.9\n"), ElementsAre("G063"));
  EXPECT_THAT(codes_of_file(replaced(alice, "reverse_text", "revers_text")), ElementsAre("G015"));
  EXPECT_THAT(codes_of_file(replaced(alice, "alice", "Alice")), ElementsAre("G017"));
  EXPECT_THAT(codes_of_file("tenant = 3\n"), ElementsAre("G060"));
  EXPECT_THAT(codes_of_file("[tenant.alice\n"), ElementsAre("G001"));
  const auto wrong = hosted.join("alice.toml", alice + "seq_len = 65\n");
  EXPECT_THAT(findings_text(wrong),
              HasSubstr("alice.toml:4:11: error[G096]: 'seq_len' 65 of tenant "
                        "'alice' is more than the graph allows, 64"));
  EXPECT_THAT(hosted.present, Not(Contains(::testing::Key("alice"))));
}

/// `data_root` says which files of the operator a tenant may name; files that came over HTTP are
/// elsewhere.
TEST(JoiningTenant, MayHaveUploadedFilesBesideTheDataRoot) {
  Folder folder;
  for (const char* name : {"/allowed", "/uploaded", "/other"})
    std::filesystem::create_directory(folder.path() + name);
  folder.write("allowed/a.txt", "a");
  folder.write("uploaded/b.txt", "b");
  folder.write("other/c.txt", "c");
  Overrides overrides;
  overrides.cores = 2;
  const auto graph = load_graph_text(limited(kMain, kLimits + "data_root = \"allowed\"\n"),
                                     "graph.toml", folder.path(), overrides, test_catalog());
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  overrides.uploaded_data = folder.path() + "/uploaded";
  const auto join = [&](const std::string& file) {
    const std::string text = replaced(replaced(kMain, "main", "alice"), "\"reverse_text\"",
                                      "\"reverse_text\", words = \"" + file + "\"");
    return check_joining_tenant(folder.write("alice.toml", text), *graph.plan, {}, overrides,
                                test_catalog());
  };
  EXPECT_NE(join("allowed/a.txt").tenant, nullptr);
  EXPECT_THAT(codes_in(join("other/c.txt")), ElementsAre("G096"));
  EXPECT_THAT(codes_in(join("uploaded/../other/c.txt")), ElementsAre("G096"));
  const auto uploaded = join("uploaded/b.txt");
  ASSERT_NE(uploaded.tenant, nullptr) << findings_text(uploaded);
  TenantChange change;
  change.slot = TenantSlot(1);
  change.tenancy = 0;
  change.table = uploaded.table;
  const auto made = tenant_of_join(*graph.plan, change, test_catalog());
  EXPECT_TRUE(made.ok()) << "it was checked when it was admitted";
}

TEST(JoiningTenant, BringsNothingButItself) {
  Hosted hosted(limited(kMain));
  hosted.present = tenant_tables(hosted.plan().resolved_toml);
  const std::string alice = replaced(kMain, "main", "alice");
  const auto codes_of_file = [&](const std::string& text) {
    return codes_in(hosted.join("alice.toml", text));
  };
  EXPECT_THAT(codes_of_file(alice + "[node.router]\npolicy = \"random\"\n"), ElementsAre("G006"));
  EXPECT_THAT(codes_of_file(alice + "[graph.tenant_limits]\nrank = 64\n"), ElementsAre("G006"));
  EXPECT_THAT(codes_of_file(alice + replaced(kMain, "main", "bob")), ElementsAre("G006"));
  EXPECT_THAT(codes_of_file("include = [\"primerl:sft\"]\n" + alice), ElementsAre("G006"));
  EXPECT_THAT(codes_of_file(""), ElementsAre("G060"));
  EXPECT_THAT(codes_of_file(kMain), ElementsAre("G017")) << "the graph has this tenant";
  EXPECT_THAT(codes_of_file("include = [\"missing.toml\"]\n" + alice), ElementsAre("G003"));
  hosted.file("base.toml", "[tenant.alice]\ngroup_size = 4\nbatch_size = 8\n");
  const auto included = hosted.join("alice.toml", "include = [\"base.toml\"]\n" + alice);
  ASSERT_NE(included.tenant, nullptr) << findings_text(included);
  EXPECT_EQ(included.tenant->group_size, 4);
}

TEST(JoiningTenant, NeedsAGraphWithLimits) {
  const std::string whole = "[graph]\nname = \"closed\"\n" + kMain +
                            "[model.policy]\npath = \"model\"\n[node.trainer]\nper_tenant = true\n";
  Hosted closed(whole);
  closed.present = tenant_tables(closed.plan().resolved_toml);
  const auto alice = closed.join("alice.toml", replaced(kMain, "main", "alice"));
  EXPECT_THAT(codes_in(alice), ElementsAre("G096"));
  EXPECT_THAT(findings_text(alice), HasSubstr("cannot join graph 'closed', which has no limits"));
}

TEST(JoiningTenant, TablesAreThoseOfTheResolvedText) {
  const Hosted hosted(limited(kMain + replaced(kMain, "main", "second")));
  const std::string& text = hosted.plan().resolved_toml;
  const auto tables = tenant_tables(text);
  ASSERT_EQ(tables.size(), 2u);
  EXPECT_TRUE(tables.at("main").starts_with("[tenant.main]\nenvironment = "));
  EXPECT_THAT(text, HasSubstr(tables.at("main")));
  EXPECT_THAT(with_tenant_tables(text, {}), Not(HasSubstr("[tenant.")));
  EXPECT_EQ(tenant_tables(with_tenant_tables(text, tables)), tables);
}

}  // namespace
}  // namespace primerl::testing
