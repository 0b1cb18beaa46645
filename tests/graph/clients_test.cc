// Tenants that a client trains: keys that have no meaning, vacant instances, the plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

const std::string kAlice =
    "[tenant.alice]\n"
    "client = true\n"
    "adapter = { rank = 4 }\n";

const std::string kLoop =
    "[tenant.loop]\n"
    "environment = { name = \"reverse_text\" }\n"
    "adapter = { rank = 4 }\n";

const std::string kLimits =
    "[graph.tenant_limits]\n"
    "tenants_max = 2\n"
    "rank = 8\n"
    "seq_len = 64\n"
    "group_size = 8\n"
    "batch_size = 64\n"
    "inflight = 32\n"
    "max_off_policy_steps = 4\n"
    "turns_max = 4\n"
    "clients = true\n"
    "snapshots = 4\n";

std::string graph_of(const std::string& tenants, const std::string& limits = "") {
  return "[graph]\nname = \"clients\"\n" + limits + tenants +
         "[model.policy]\npath = \"model\"\n[node.trainer]\nper_tenant = true\n";
}

/// A graph in a folder that stays while it is used.
struct Loaded {
  explicit Loaded(const std::string& text) {
    Overrides overrides;
    overrides.cores = 2;
    graph = load_graph_text(text, "graph.toml", folder.path(), overrides, test_catalog());
  }
  const Plan& plan() const {
    CHECK(graph.plan != nullptr, findings(graph));
    return *graph.plan;
  }
  Folder folder;
  CheckedGraph graph;
};

std::vector<std::string> vacant_in(const Plan& plan) {
  std::vector<std::string> names;
  for (uint32_t i = 0; i < plan.instances.size(); ++i)
    if (plan.is_vacant(InstanceId(i))) names.push_back(plan.instances[i].name);
  return names;
}

int64_t num_links(const Plan& plan, const std::string& node) {
  int64_t count = 0;
  for (const PlanEdge& edge : plan.edges)
    for (const InstanceId from : plan.node(edge.from).instances)
      for (const InstanceId to : plan.node(edge.to).instances)
        if (plan.are_joined(from, to))
          count += plan.instance(from).name == node || plan.instance(to).name == node ? 1 : 0;
  return count;
}

TEST(Clients, InstancesOfNodesForLoopsAreVacant) {
  const Loaded loaded(graph_of(kAlice + kLoop));
  EXPECT_EQ(findings(loaded.graph), "");
  EXPECT_THAT(vacant_in(loaded.plan()), UnorderedElementsAre("env.alice", "rollout.alice"));
  EXPECT_EQ(num_links(loaded.plan(), "rollout.alice"), 0);
  EXPECT_EQ(num_links(loaded.plan(), "env.alice"), 0);
  EXPECT_GT(num_links(loaded.plan(), "rollout.loop"), 0);
  EXPECT_GT(num_links(loaded.plan(), "trainer.alice"), 0) << "its weights go to the engines";
  for (uint32_t i = 0; i < loaded.plan().groups.size(); ++i) {
    const auto& instances = loaded.plan().groups[i].instances;
    EXPECT_EQ(loaded.plan().is_vacant(GroupId(i)),
              std::ranges::all_of(instances,
                                  [&](InstanceId each) { return loaded.plan().is_vacant(each); }));
  }
}

TEST(Clients, WithoutThemNothingIsVacantAndTheTextHasNoSuchKey) {
  const Loaded loaded(graph_of(kLoop));
  EXPECT_THAT(vacant_in(loaded.plan()), IsEmpty());
  EXPECT_THAT(loaded.plan().resolved_toml, Not(HasSubstr("client =")));
}

TEST(Clients, AGraphMayHaveNoOtherTenants) {
  const Loaded loaded(graph_of(kAlice));
  EXPECT_EQ(findings(loaded.graph), "");
  EXPECT_TRUE(loaded.plan().tenants.front().is_client);
}

TEST(Clients, NeedNoBoundOrMemoryOfALoopsGroups) {
  const auto bounds = [](const std::string& text) {
    const Loaded loaded(text);
    std::vector<int64_t> all;
    for (const PlanEdge& edge : loaded.plan().edges) {
      const std::string& from = loaded.plan().node(edge.from).name;
      const std::string& to = loaded.plan().node(edge.to).name;
      if (from != "tinker" && to != "tinker") all.push_back(edge.bound);
    }
    return all;
  };
  const std::string small =
      replaced(kLoop, "[tenant.loop]\n", "[tenant.loop]\ngroup_size = 2\nbatch_size = 2\n");
  const std::string second = replaced(small, "loop", "second");
  const auto with_client = bounds(graph_of(kAlice + small));
  const auto with_loop = bounds(graph_of(second + small));
  ASSERT_EQ(with_client.size(), with_loop.size());
  constexpr int64_t kRequestsMax = 64;  // that the implied node `tinker` may have open
  for (size_t i = 0; i < with_client.size(); ++i)
    EXPECT_LE(with_client[i], with_loop[i] + kRequestsMax)
        << "edge " << i << ": a client's groups are not the largest";
  const Loaded loaded(graph_of(kAlice + kLoop));
  const Tenant& alice = loaded.plan().tenants.front();
  EXPECT_EQ(alice.inflight, 64);
  EXPECT_EQ(alice.inflight_max, 64);
  EXPECT_DOUBLE_EQ(alice.share, 0.5);
  EXPECT_EQ(alice.max_steps, kClientStepsMax);
}

TEST(Clients, TheResolvedTextGivesTheSamePlan) {
  const Loaded loaded(graph_of(kAlice + kLoop));
  const Loaded again(loaded.plan().resolved_toml);
  ASSERT_NE(again.graph.plan, nullptr) << findings(again.graph);
  EXPECT_EQ(again.plan().graph_hash, loaded.plan().graph_hash);
  EXPECT_THAT(vacant_in(again.plan()), UnorderedElementsAre("env.alice", "rollout.alice"));
}

TEST(Clients, KeysOfLoopsAreRefusedAndTheMessageSaysWhy) {
  for (const auto& [line, why] : std::vector<std::pair<std::string, std::string>>{
           {"environment = { name = \"reverse_text\" }", "its own tasks and rewards"},
           {"group_size = 8", "the data of one pass"},
           {"batch_size = 8", "the data of one pass"},
           {"max_off_policy_steps = 2", "how old its data may be"},
           {"max_steps = 3", "the client ends it"},
           {"sampling = { temperature = 0.5 }", "how tokens are sampled"},
           {"schedule = { warmup_steps = 2 }", "its learning rate"},
           {"loss = { kind = \"ppo\" }", "names its loss"}}) {
    const Loaded loaded(graph_of(kAlice + line + "\n"));
    EXPECT_THAT(codes_of(loaded.graph), ElementsAre("G085")) << line << findings(loaded.graph);
    EXPECT_THAT(findings(loaded.graph), HasSubstr(why)) << line;
  }
  for (const char* line : {"seq_len = 32", "inflight = 8", "share = 0.5", "checkpoint_every = 4",
                           "keep_last = 1", "optimizer = { kind = \"adamw\" }"})
    EXPECT_THAT(codes_of(graph_of(kAlice + line + "\n" + kLoop)), IsEmpty()) << line;
}

TEST(Clients, TrainAnAdapterWithAdamW) {
  EXPECT_THAT(codes_of(graph_of("[tenant.alice]\nclient = true\n")), ElementsAre("G085"));
  EXPECT_THAT(codes_of(graph_of(kAlice + "optimizer = { kind = \"sgd\" }\n")), ElementsAre("G085"));
  EXPECT_THAT(codes_of(graph_of(kAlice + "optimizer = { lr = 0.1, max_norm = 0 }\n")),
              ElementsAre("G085", "G085"));
}

TEST(Clients, AreServedByANodeThatAShortFileImplies) {
  const Loaded loaded(graph_of(kAlice));
  EXPECT_EQ(findings(loaded.graph), "");
  EXPECT_THAT(loaded.plan().resolved_toml,
              AllOf(HasSubstr("[node.tinker]"), HasSubstr("listen = \"127.0.0.1:8000\""),
                    HasSubstr("key_prefix = \"tml-\""), HasSubstr("tinker.pass -> trainer.pass")));
  EXPECT_EQ(loaded.plan().tenants.front().base_model, "policy");
  const Loaded other(graph_of(kAlice) + "[resource.tinker]\nlisten = \"127.0.0.1:9000\"\n");
  EXPECT_THAT(other.plan().resolved_toml, HasSubstr("listen = \"127.0.0.1:9000\""));
}

TEST(Clients, WithoutANodeThatServesThemAreRefused) {
  const std::string edges = replaced(demo_text(), "[tenant.", kAlice + "[tenant.");
  const auto graph = load_text(edges);
  EXPECT_THAT(findings(graph), HasSubstr("no node of the graph serves clients"));
}

TEST(Clients, AreWithinTheLimitsOfTheGraph) {
  const auto with = [](const std::string& line) {
    return codes_of(graph_of(kAlice + line + "\n", kLimits));
  };
  EXPECT_THAT(with(""), IsEmpty());
  EXPECT_THAT(with("inflight = 32\nseq_len = 64"), IsEmpty());
  EXPECT_THAT(with("inflight = 33"), ElementsAre("G096"));
  EXPECT_THAT(with("seq_len = 65"), ElementsAre("G096"));
  EXPECT_THAT(with("snapshots = 4"), IsEmpty());
  EXPECT_THAT(with("snapshots = 5"), ElementsAre("G096"));
  const Loaded loaded(graph_of(kAlice, kLimits));
  EXPECT_EQ(loaded.plan().tenants.front().inflight, 32);
  EXPECT_EQ(loaded.plan().tenants.front().snapshots, 4);
  EXPECT_EQ(loaded.plan().free_slots.front().snapshots, 4) << "planned for a client that joins";
  EXPECT_GT(num_links(loaded.plan(), "rollout.alice"), 0)
      << "a later tenant of the slot may be one of a loop";
}

TEST(Clients, AreRefusedByLimitsThatDoNotSayClients) {
  const std::string limits = replaced(kLimits, "clients = true\n", "");
  const Loaded loaded(graph_of(kAlice, limits));
  EXPECT_THAT(codes_of(loaded.graph), ElementsAre("G096"));
  EXPECT_THAT(findings(loaded.graph), HasSubstr("the graph allows no clients"));
  const Loaded loops(graph_of(kLoop, limits));
  EXPECT_EQ(findings(loops.graph), "");
  EXPECT_THAT(loops.plan().resolved_toml, Not(HasSubstr("[node.tinker]")));
  EXPECT_EQ(loops.plan().free_slots.front().snapshots, 0) << "no memory for what cannot come";
}

TEST(Clients, LimitsThatAllowThemImplyTheNodeAndPlanForSnapshotsInEverySlot) {
  const Loaded loaded(graph_of(kLoop, kLimits));
  EXPECT_EQ(findings(loaded.graph), "");
  EXPECT_THAT(loaded.plan().resolved_toml,
              AllOf(HasSubstr("[node.tinker]"), HasSubstr("clients = true")));
  EXPECT_EQ(loaded.plan().tenants.front().snapshots, 4) << "a client may have its slot later";
  const std::string own_edges = replaced(demo_text(), "[tenant.", kLimits + "[tenant.");
  EXPECT_THAT(findings(load_text(own_edges)), HasSubstr("no node of the graph serves clients"));
}

TEST(Clients, SnapshotsOfALoopHaveNoMeaning) {
  const Loaded loaded(graph_of(kLoop + "snapshots = 2\n"));
  EXPECT_THAT(codes_of(loaded.graph), ElementsAre("G085"));
  EXPECT_THAT(findings(loaded.graph), HasSubstr("'snapshots' of tenant 'loop' has no meaning"));
  const Loaded without(graph_of(kLoop));
  EXPECT_THAT(without.plan().resolved_toml, Not(HasSubstr("snapshots =")));
}

}  // namespace
}  // namespace primerl::testing
