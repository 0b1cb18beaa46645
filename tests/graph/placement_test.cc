#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/render.h"
#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string placed(const std::string& places) {
  return replaced(demo_text(), "kind = \"weight_channel\"",
                  "kind = \"weight_channel\"\nbackend = \"stream\"") +
         "\n[place]\n" + places;
}

const std::string kRest =
    "training = { nodes = [\"trainer\", \"broadcaster\"] }\n"
    "driver = { nodes = [\"rollout\", \"env\", \"router\"] }\n";

std::string serving(const std::string& more) {
  return placed("serving = { nodes = [\"prefill\", \"decode\"]" + more + " }\n" + kRest);
}

/// A loaded graph; the model's folder exists as long as it.
struct Loaded {
  explicit Loaded(const std::string& text, int32_t cores = 2,
                  const Catalog& catalog = test_catalog()) {
    Overrides overrides;
    overrides.cores = cores;
    graph = load_graph_text(text, "graph.toml", folder.path(), overrides, catalog);
  }
  const Plan& plan() const {
    CHECK(graph.plan != nullptr, findings(graph));
    return *graph.plan;
  }
  Folder folder;
  CheckedGraph graph;
};

InstanceId instance(const Plan& plan, const std::string& name) {
  for (uint32_t i = 0; i < plan.instances.size(); ++i)
    if (plan.instances[i].name == name) return InstanceId(i);
  ADD_FAILURE() << "no instance " << name;
  return InstanceId(0);
}

const PlanEdge& edge(const Plan& plan, const std::string& name) {
  for (const auto& edge : plan.edges)
    if (edge.name == name) return edge;
  ADD_FAILURE() << "no edge " << name;
  return plan.edges.front();
}

const PlanResource* engine_of(const Plan& plan, const std::string& name) {
  return &plan.resources[static_cast<size_t>(
      plan.instance(instance(plan, name)).resources.front())];
}

TEST(Placement, EveryReplicaOfAPlaceIsAProcessWithItsOwnNodesAndResources) {
  const Loaded loaded(serving(", replicas = 2, devices = [\"cuda:0\", \"cuda:1\"]"));
  const Plan& plan = loaded.plan();
  std::vector<std::string> processes;
  for (const auto& process : plan.processes)
    processes.push_back(fmt::format("{} on {}", process.name, process.device));
  EXPECT_THAT(processes, ElementsAre("driver on cpu", "serving#0 on cuda:0", "serving#1 on cuda:1",
                                     "training on cpu"));
  const auto place = [&plan](const std::string& name) {
    return plan.process(plan.process_of(instance(plan, name))).name;
  };
  EXPECT_EQ(place("prefill#0"), "serving#0");
  EXPECT_EQ(place("decode#0"), "serving#0");
  EXPECT_EQ(place("prefill#1"), "serving#1");
  EXPECT_EQ(place("decode#1"), "serving#1");
  EXPECT_EQ(engine_of(plan, "prefill#0"), engine_of(plan, "decode#0"));
  EXPECT_NE(engine_of(plan, "prefill#0"), engine_of(plan, "prefill#1"));
  EXPECT_EQ(plan.instance(instance(plan, "prefill#1")).group,
            plan.instance(instance(plan, "decode#1")).group);
}

TEST(Placement, AnEdgeInsideAPlaceStaysInItsReplica) {
  const Loaded loaded(serving(", replicas = 2"));
  const Plan& plan = loaded.plan();
  const auto joined = [&plan](const std::string& sender, const std::string& target) {
    return plan.are_joined(instance(plan, sender), instance(plan, target));
  };
  EXPECT_TRUE(joined("prefill#1", "decode#1"));
  EXPECT_FALSE(joined("prefill#0", "decode#1"));
  EXPECT_TRUE(joined("router", "prefill#0"));
  EXPECT_TRUE(joined("router", "prefill#1"));
  EXPECT_TRUE(joined("decode#1", "rollout.main"));
}

TEST(Placement, EveryReplicaMayHaveFeedbackInFlight) {
  const Loaded one(serving("")), two(serving(", replicas = 2"));
  const std::string name = "router.prefill -> prefill.request";
  EXPECT_GT(edge(two.plan(), name).bound, edge(one.plan(), name).bound);
  // Inside the replica nothing changes.
  const std::string inside = "prefill.done -> decode.request";
  EXPECT_EQ(edge(two.plan(), inside).bound, edge(one.plan(), inside).bound);
}

TEST(Placement, MessagesBetweenProcessesAreRecordedByTheReceiver) {
  const Loaded loaded(serving(", replicas = 2"));
  EXPECT_EQ(edge(loaded.plan(), "router.prefill -> prefill.request").record, RecordPolicy::kInput);
  EXPECT_EQ(edge(loaded.plan(), "rollout.generate -> router.generate").record,
            RecordPolicy::kHeader);
  // Its sender is an engine: results that cannot be computed again are stored.
  EXPECT_EQ(edge(loaded.plan(), "decode.completion -> rollout.completion").record,
            RecordPolicy::kPayload);
  const std::string written = replaced(serving(""), "\"router.prefill      -> prefill.request\"",
                                       "{ path = \"router.prefill -> prefill.request\", "
                                       "record = \"none\" }");
  EXPECT_EQ(edge(Loaded(written).plan(), "router.prefill -> prefill.request").record,
            RecordPolicy::kNone);
}

TEST(Placement, AProcessOfEnginesAloneIsRestartable) {
  const Loaded loaded(serving(", replicas = 2"));
  const Plan& plan = loaded.plan();
  for (uint32_t i = 0; i < plan.processes.size(); ++i)
    EXPECT_EQ(plan.is_restartable(ProcessId(i)), plan.processes[i].name.starts_with("serving"))
        << plan.processes[i].name;
  const Loaded mixed(
      placed("serving = { nodes = [\"prefill\", \"decode\", \"router\"] }\n"
             "training = { nodes = [\"trainer\", \"broadcaster\"] }\n"
             "driver = { nodes = [\"rollout\", \"env\"] }\n"));
  for (uint32_t i = 0; i < mixed.plan().processes.size(); ++i)
    EXPECT_FALSE(mixed.plan().is_restartable(ProcessId(i)));
}

TEST(Placement, AProcessOfEnvironmentsIsRestartableButTheOneThatGivesTheTasks) {
  Catalog catalog = test_catalog();
  for (Contract& actor : catalog.actors) {
    actor.replicas_are_expendable = actor.name == "env";
    for (OutputPort& output : actor.outputs)
      if (output.name == "action") output.routing = Routing::kAddressed;
  }
  const Loaded loaded(placed("driver = { nodes = [\"rollout\", \"router\"] }\n"
                             "worlds = { nodes = [\"env\"], replicas = 3 }\n"
                             "rest = { nodes = [\"prefill\", \"decode\", \"trainer\", "
                             "\"broadcaster\"] }\n"),
                      2, catalog);
  const Plan& plan = loaded.plan();
  ASSERT_EQ(plan.processes.size(), 5U);
  for (uint32_t i = 0; i < plan.processes.size(); ++i) {
    const std::string& name = plan.processes[i].name;
    EXPECT_EQ(plan.is_restartable(ProcessId(i)), name == "worlds#1" || name == "worlds#2") << name;
  }
}

TEST(Placement, CpusAreDividedAmongReplicas) {
  const Loaded loaded(serving(", replicas = 2, cpus = \"0-2,7,9\""));
  EXPECT_THAT(loaded.plan().processes[1].cpus, ElementsAre(0, 1));
  EXPECT_THAT(loaded.plan().processes[2].cpus, ElementsAre(2, 7, 9));
  EXPECT_THAT(loaded.plan().processes[0].cpus, IsEmpty());
  // As many CPUs as replicas are enough, one fewer is not.
  EXPECT_THAT(Loaded(serving(", replicas = 2, cpus = \"4-5\"")).plan().processes[2].cpus,
              ElementsAre(5));
  EXPECT_THAT(codes_of(serving(", replicas = 2, cpus = \"5\"")), ElementsAre("G057"));
  EXPECT_THAT(codes_of(serving(", cpus = \"1023\"")), IsEmpty());
  EXPECT_THAT(codes_of(serving(", cpus = \"1024\"")), ElementsAre("G057"));
}

TEST(Placement, ComputeThreadsFollowFromThePlace) {
  const auto threads = [](const std::string& more) {
    return engine_of(
               Loaded(serving(more), 12).plan(),
               "prefill" + std::string(more.find("replicas") == std::string::npos ? "" : "#0"))
        ->threads;
  };
  EXPECT_EQ(threads(""), 6);                                // two processes compute
  EXPECT_EQ(threads(", replicas = 2"), 4);                  // three compute
  EXPECT_EQ(threads(", threads = 5"), 5);                   // as stated
  EXPECT_EQ(threads(", cpus = \"0-2\""), 3);                // the CPUs that it may use
  EXPECT_EQ(threads(", replicas = 2, cpus = \"0-2\""), 1);  // the smallest of its replicas
  EXPECT_EQ(threads(", host = \"gpu1\""), 12);              // alone on its machine
}

TEST(Placement, TransportsFollowFromTheMachines) {
  const Loaded loaded(
      placed("serving = { nodes = [\"prefill\", \"decode\"], host = \"gpu1\" }\n" + kRest));
  const Plan& plan = loaded.plan();
  EXPECT_EQ(edge(plan, "prefill.done -> decode.request").transport, EdgeTransport::kMemory);
  EXPECT_EQ(edge(plan, "rollout.group -> trainer.group").transport, EdgeTransport::kIpc);
  EXPECT_EQ(edge(plan, "router.prefill -> prefill.request").transport, EdgeTransport::kTcp);
  const Loaded single(demo_text());
  for (const auto& edge : single.plan().edges)
    EXPECT_EQ(edge.transport, EdgeTransport::kMemory) << edge.name;
}

TEST(Placement, TheResolvedGraphKeepsIt) {
  const Loaded loaded(
      serving(", replicas = 2, devices = [\"cuda:0\", \"cuda:1\"], cpus = \"0-3\", threads = 2, "
              "variables = [\"A_B=c d\", \"E=\"], host = \"gpu1\""));
  const Plan& plan = loaded.plan();
  EXPECT_THAT(plan.processes[1].variables, ElementsAre("A_B=c d", "E="));
  EXPECT_EQ(plan.processes[1].machine, "gpu1");
  const auto again = load_graph_text(plan.resolved_toml, "r.toml", "/", {}, test_catalog());
  ASSERT_NE(again.plan, nullptr) << findings(again);
  EXPECT_EQ(again.plan->resolved_toml, plan.resolved_toml);
  EXPECT_EQ(again.plan->graph_hash, plan.graph_hash);
}

TEST(Placement, AWrittenTransportIsPartOfTheGraph) {
  const std::string text = placed(
      "a = { nodes = [\"prefill\", \"decode\", \"trainer\", \"broadcaster\", \"router\", "
      "\"rollout\"] }\n"
      "b = { nodes = [\"env\"] }\n");
  const std::string path = "\"env.task            -> rollout.task\"";
  const std::string written = "{ path = " + path + ", transport = \"tcp\" }";
  std::string by_tcp = replaced(text, path, written);
  for (const std::string other :
       {"\"rollout.action      -> env.action\"", "\"env.observation     -> rollout.observation\""})
    by_tcp = replaced(by_tcp, other, "{ path = " + other + ", transport = \"tcp\" }");
  const Loaded tcp(by_tcp);
  EXPECT_EQ(edge(tcp.plan(), "env.task -> rollout.task").transport, EdgeTransport::kTcp);
  const auto again = load_graph_text(tcp.plan().resolved_toml, "r.toml", "/", {}, test_catalog());
  ASSERT_NE(again.plan, nullptr) << findings(again);
  EXPECT_EQ(again.plan->graph_hash, tcp.plan().graph_hash);
  EXPECT_NE(Loaded(text).plan().graph_hash, tcp.plan().graph_hash);
  EXPECT_THAT(codes_of(replaced(text, path, written)), ElementsAre("G056", "G056"));
}

TEST(Placement, ThePlanSaysWhatCrosses) {
  const Loaded loaded(serving(", replicas = 2"));
  const std::string text = render_plan(loaded.plan());
  EXPECT_THAT(text, HasSubstr("process serving#1 on cpu: 1 actor groups"));
  EXPECT_THAT(text, HasSubstr("edges cross processes"));
  EXPECT_THAT(text, HasSubstr("  ipc "));
  EXPECT_THAT(render_plan(Loaded(demo_text()).plan()), Not(HasSubstr("cross processes")));
}

}  // namespace
}  // namespace primerl::testing
