// Rules in addition to their golden pairs: what must not be reported, and limits one past the
// bound.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string demo_with(const std::string& from, const std::string& to) {
  return replaced(demo_text(), from, to);
}

TEST(Rules, LimitsHoldAtTheBoundAndOnePastIt) {
  EXPECT_THAT(codes_of(demo_with("max_inflight = 64", "max_inflight = 8")), IsEmpty());
  EXPECT_THAT(codes_of(demo_with("max_inflight = 64", "max_inflight = 7")), ElementsAre("G062"));
  EXPECT_THAT(codes_of(demo_with("max_steps = 200", "seq_len = 256")), IsEmpty());
  EXPECT_THAT(codes_of(demo_with("max_steps = 200", "seq_len = 257")), ElementsAre("G064"));
  const auto with_engine = [](const std::string& seq_len) {
    return codes_of(replaced(demo_with("max_steps = 200", seq_len), "kv_blocks = 512",
                             "kv_blocks = 512\nmax_sequence_tokens = 128"));
  };
  EXPECT_THAT(with_engine("seq_len = 128"), IsEmpty());
  EXPECT_THAT(with_engine("seq_len = 129"), ElementsAre("G078"));
  EXPECT_THAT(with_engine("max_steps = 200"), IsEmpty()) << "left out, it is 128";
  EXPECT_THAT(codes_of(demo_with("capacity = 64", "capacity = 1")), IsEmpty());
  EXPECT_THAT(codes_of(demo_with("capacity = 64", "capacity = 0")), ElementsAre("G035"));
  EXPECT_THAT(codes_of(demo_with("capacity = 64", "capacity = 1048576")), IsEmpty());
  EXPECT_THAT(codes_of(demo_with("capacity = 64", "capacity = 1048577")), ElementsAre("G023"));
  EXPECT_THAT(codes_of(demo_with("capacity = 64", "bytes_max = 0")), ElementsAre("G035"));
  EXPECT_THAT(codes_of(demo_with("max_off_policy_steps = 2", "max_off_policy_steps = 0")),
              IsEmpty());
  EXPECT_THAT(codes_of(demo_with("max_off_policy_steps = 2", "max_off_policy_steps = -1")),
              ElementsAre("G023"));
  EXPECT_THAT(codes_of(demo_with("batch_size = 64", "batch_size = 8")), IsEmpty());
  EXPECT_THAT(codes_of(demo_with("batch_size = 64", "batch_size = 7")), ElementsAre("G061"));
}

TEST(Rules, AnEngineHasNoMoreSlotsThanThereAreAdapters) {
  const auto with = [](const std::string& slots, const std::string& adapter) {
    return codes_of(replaced(demo_with("kv_blocks = 512", "kv_blocks = 512\n" + slots),
                             "[model.policy]", adapter + "[model.policy]"));
  };
  const std::string adapter = "[tenant.main.adapter]\nrank = 4\n";
  EXPECT_THAT(with("adapter_slots = 1", adapter), IsEmpty());
  EXPECT_THAT(with("adapter_slots = 0", ""), IsEmpty());
  EXPECT_THAT(with("adapter_slots = 2", adapter), ElementsAre("G074"));
  EXPECT_THAT(with("adapter_slots = 1", ""), ElementsAre("G074"));
}

TEST(Rules, TraceSizesHoldAtTheBoundAndOnePastIt) {
  const auto with = [](const std::string& line) {
    return codes_of(demo_text() + "\n[trace]\n" + line + "\n");
  };
  EXPECT_THAT(with("segment_bytes = 2097152"), IsEmpty());
  EXPECT_THAT(with("segment_bytes = 2097151"), ElementsAre("G023"));
  EXPECT_THAT(with("segment_bytes = 1073741824"), IsEmpty());
  EXPECT_THAT(with("segment_bytes = 1073741825"), ElementsAre("G023"));
  EXPECT_THAT(with("ring_bytes = 1048576"), IsEmpty());
  EXPECT_THAT(with("ring_bytes = 1048575"), ElementsAre("G023"));
  EXPECT_THAT(with("sync_every = \"1ms\""), IsEmpty());
  EXPECT_THAT(with("sync_every = \"999us\""), ElementsAre("G023"));
  EXPECT_THAT(with("sync_every = \"60s\""), IsEmpty());
  EXPECT_THAT(with("sync_every = \"60001ms\""), ElementsAre("G023"));
  // Two segments of 8 MiB, the default.
  EXPECT_THAT(with("bytes_max = 16777216"), IsEmpty());
  EXPECT_THAT(with("bytes_max = 16777215"), ElementsAre("G023"));
  EXPECT_THAT(with("bytes_max = 4194304\nsegment_bytes = 2097152"), IsEmpty());
  EXPECT_THAT(with("bytes_max = 4194303\nsegment_bytes = 2097152"), ElementsAre("G023"));
}

TEST(Rules, NotRecordingWhatAReplayNeedsIsAWarningOnlyIfTheRunRecords) {
  const auto with = [](const std::string& policy, const std::string& level) {
    return load_text(demo_with("capacity = 64", "record = \"" + policy + "\"") +
                     "\n[trace]\nlevel = \"" + level + "\"\n");
  };
  for (const std::string level : {"process", "power", "ring"}) {
    EXPECT_THAT(findings(with("none", level)), HasSubstr("warning[G039]")) << level;
    EXPECT_NE(with("none", level).plan, nullptr) << "a warning is no error";
    EXPECT_THAT(findings(with("header", level)), HasSubstr("warning[G039]")) << level;
    EXPECT_THAT(findings(with("payload", level)), IsEmpty()) << level;
    EXPECT_THAT(findings(with("auto", level)), IsEmpty()) << level;
  }
  EXPECT_THAT(findings(with("none", "off")), IsEmpty());
}

TEST(Rules, StepsThatACrashWouldLoseAreAWarning) {
  const auto with = [](int64_t checkpoint_every, int64_t max_steps, const std::string& level) {
    Overrides overrides;
    overrides.sets = {fmt::format("tenant.main.checkpoint_every={}", checkpoint_every),
                      fmt::format("tenant.main.max_steps={}", max_steps),
                      "trace.level=\"" + level + "\""};
    return findings(load_text(demo_text(), overrides));
  };
  EXPECT_THAT(with(1000, 5000, "process"), IsEmpty());
  EXPECT_THAT(with(1001, 5000, "process"),
              AllOf(HasSubstr("warning[G089]"), HasSubstr("up to 1001 training steps")));
  EXPECT_THAT(with(1001, 1000, "process"), IsEmpty());
  EXPECT_THAT(with(0, 1000, "process"), IsEmpty());
  EXPECT_THAT(with(0, 1001, "power"),
              AllOf(HasSubstr("up to 1001 training steps"), HasSubstr("trace.bytes_max")));
  for (const std::string level : {"off", "ring"}) EXPECT_THAT(with(0, 1001, level), IsEmpty());
}

TEST(Rules, WeightsFitTheEnginesThatTakeThem) {
  const auto with_backends = [](const std::string& engine, const std::string& learner) {
    Overrides overrides;
    overrides.sets = {"resource.engine.backend=" + engine, "resource.learner.backend=" + learner};
    return findings(load_text(demo_text(), overrides));
  };
  EXPECT_THAT(with_backends("torch", "torch"), IsEmpty());
  EXPECT_THAT(with_backends("scripted", "scripted"), Not(HasSubstr("error")));
  EXPECT_THAT(with_backends("scripted", "torch"), HasSubstr("error[G087]"));
  EXPECT_THAT(with_backends("torch", "scripted"), HasSubstr("error[G087]"));
}

TEST(Rules, ModelsOfOneShapeMayBeTwo) {
  const auto with_layers = [](const std::string& learner, const std::string& engine,
                              std::vector<std::string> sets = {}) {
    const Folder folder;
    std::filesystem::create_directory(folder.path() + "/other");
    folder.write("model/config.json",
                 R"({"max_position_embeddings": 256, "num_hidden_layers": )" + learner + "}");
    folder.write("other/config.json", R"({"max_position_embeddings": 256)" + engine + "}");
    std::string text = demo_text();
    text =
        replaced(text, "[resource.weights]", "[model.other]\npath = \"other\"\n[resource.weights]");
    text = replaced(text, "model = \"policy\"\nkv_blocks", "model = \"other\"\nkv_blocks");
    text = replaced(text, "max_inflight = 64", "max_inflight = 64\nmodel = \"policy\"");
    Overrides overrides;
    overrides.sets = std::move(sets);
    return findings(load_graph(folder.write("graph.toml", text), overrides, test_catalog()));
  };
  EXPECT_THAT(with_layers("2", ", \"num_hidden_layers\": 2"), IsEmpty());
  EXPECT_THAT(with_layers("2", ", \"num_hidden_layers\": 2", {"tenant.main.adapter.rank=4"}),
              HasSubstr("error[G087]: an adapter that is trained on model 'policy' would be "
                        "applied to model 'other'"));
  EXPECT_THAT(with_layers("2", ""), IsEmpty()) << "what is not stated differs from nothing";
  const std::string seen = with_layers("2", ", \"num_hidden_layers\": 3");
  EXPECT_THAT(seen, HasSubstr("error[G087]: model 'other' of engine 'engine' has another shape"));
  EXPECT_THAT(seen, HasSubstr("num_hidden_layers is 2 and 3"));
}

TEST(Rules, ADrainLastsLongerThanAnyEnvironmentCall) {
  EXPECT_THAT(codes_of(demo_text()), IsEmpty()) << "the defaults agree";
  EXPECT_THAT(codes_of(demo_with("seed = 17", "drain_max = \"30001ms\"")), IsEmpty());
  EXPECT_THAT(codes_of(demo_with("seed = 17", "drain_max = \"30s\"")), ElementsAre("G068"));
  EXPECT_THAT(codes_of(demo_with("group_size = 8",
                                 "group_size = 8\nenvironment_timeout = "
                                 "\"60s\"")),
              ElementsAre("G068"));
  EXPECT_NE(load_text(demo_with("seed = 17", "drain_max = \"1s\"")).plan, nullptr)
      << "a warning is no error";
}

TEST(Rules, AGroupFitsIntoAMessage) {
  // The test catalog's groups have 8 bytes per token.
  const auto with_length = [](int64_t seq_len) {
    return codes_of(
        demo_with("group_size = 8", fmt::format("group_size = 8\nseq_len = {}", seq_len)));
  };
  EXPECT_THAT(with_length(256), IsEmpty());
  const auto large = [](int64_t group_size) {
    std::string text =
        demo_with("group_size = 8", fmt::format("group_size = {}\nseq_len = 256", group_size));
    text = replaced(text, "batch_size = 64", fmt::format("batch_size = {}", group_size));
    return codes_of(
        replaced(text, "max_inflight = 64", fmt::format("max_inflight = {}", group_size)));
  };
  EXPECT_THAT(large(512), IsEmpty());
  EXPECT_THAT(large(513), ElementsAre("G069"));
}

TEST(Rules, SeveralTenantsNeedInstancesOfTheirOwn) {
  const auto second = [](const std::string& text) {
    return codes_of(text + "[tenant.second]\nenvironment = { name = \"copy\" }\n");
  };
  EXPECT_THAT(second(demo_text()), IsEmpty());
  const std::string shared = demo_with("actor = \"env\"\nper_tenant = true", "actor = \"env\"");
  EXPECT_THAT(codes_of(shared), IsEmpty()) << "one tenant may have a shared node";
  EXPECT_THAT(second(shared), ElementsAre("G067"));
  const std::string apart =
      demo_with("actor = \"trainer\"", "actor = \"trainer\"\nper_tenant = true");
  EXPECT_THAT(codes_of(apart), IsEmpty());
  EXPECT_THAT(second(apart), ElementsAre("G048"));
}

TEST(Rules, SharesArePartsOfOne) {
  const std::string text =
      demo_with("actor = \"trainer\"", "actor = \"trainer\"\nper_tenant = true");
  const auto load = [&](const std::string& main, const std::string& second) {
    const std::string all = replaced(text, "group_size = 8", main + "\ngroup_size = 8") +
                            "[tenant.main.adapter]\nrank = 4\n[tenant.second]\n" + second +
                            "\nenvironment = { name = \"copy\" }\n[tenant.second.adapter]\n"
                            "rank = 4\n";
    return load_graph(Folder().write("graph.toml", all), {}, test_catalog());
  };
  const auto shares = [&](const std::string& main, const std::string& second) {
    const auto graph = load(main, second);
    std::vector<double> found;
    if (graph.plan != nullptr)
      for (const Tenant& tenant : graph.plan->tenants) found.push_back(tenant.share);
    return found;
  };
  EXPECT_THAT(shares("", ""), ElementsAre(0.5, 0.5));
  EXPECT_THAT(shares("share = 0.75", ""), ElementsAre(0.75, 0.25));
  EXPECT_THAT(shares("share = 0.75", "share = 0.25"), ElementsAre(0.75, 0.25));
  EXPECT_THAT(shares("share = 0.1", "share = 0.2"), ElementsAre(0.1, 0.2));
  EXPECT_THAT(findings(load("share = 0.75", "share = 0.5")), HasSubstr("G063"));
  EXPECT_THAT(findings(load("share = 0.75", "share = 0.5")), HasSubstr("are 1.25 together"));
  EXPECT_THAT(findings(load("share = 1.0", "")), HasSubstr("nothing is left for 1 without one"));
  EXPECT_EQ(load("share = 1.5", "").plan, nullptr);
}

TEST(Rules, AFileOfAnEnvironmentOrRewardIsRelativeToTheFileThatNamesIt) {
  const Folder folder;
  std::filesystem::create_directory(folder.path() + "/parts");
  folder.write("parts/words.txt", "a");
  folder.write("parts/tenant.toml",
               "[tenant.main]\n"
               "environment = { name = \"reverse_text\", words = \"words.txt\" }\n"
               "reward = { name = \"half\", table = \"words.txt\" }\n");
  std::string demo = demo_text();
  const std::string written = "environment = { name = \"reverse_text\" }\n";
  const std::string path = folder.write(
      "graph.toml", "include = [\"parts/tenant.toml\"]\n" + replaced(demo, written, ""));
  const auto graph = load_graph(path, {}, test_catalog());
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  const std::string whole = "\"" + folder.path() + "/parts/words.txt\"";
  EXPECT_THAT(graph.plan->resolved_toml, HasSubstr("words = " + whole));
  EXPECT_THAT(graph.plan->resolved_toml, HasSubstr("table = " + whole));
  std::filesystem::remove(folder.path() + "/parts/words.txt");
  const auto without = load_graph(path, {}, test_catalog());
  EXPECT_THAT(findings(without),
              HasSubstr("error[G046]: 'words' of the environment of tenant 'main' is not a file"));
  EXPECT_THAT(findings(without), HasSubstr("'table' of the reward of tenant 'main' is not a file"));
}

TEST(Rules, AFolderOfAnEnvironmentIsRelativeToTheFileThatNamesItAndNoFile) {
  const Folder folder;
  std::filesystem::create_directories(folder.path() + "/parts/tasks");
  folder.write("parts/words.txt", "a");
  const auto load = [&](const std::string& named) {
    folder.write("parts/tenant.toml",
                 "[tenant.main]\n"
                 "environment = { name = \"reverse_text\", letters_dir = \"" +
                     named + "\" }\n");
    const std::string written = "environment = { name = \"reverse_text\" }\n";
    return load_graph(folder.write("graph.toml", "include = [\"parts/tenant.toml\"]\n" +
                                                     replaced(demo_text(), written, "")),
                      {}, test_catalog());
  };
  for (const char* named : {"tasks", "."}) {
    const auto graph = load(named);
    ASSERT_NE(graph.plan, nullptr) << findings(graph);
    EXPECT_THAT(graph.plan->resolved_toml,
                HasSubstr("letters_dir = \"" + folder.path() + "/parts"));
  }
  for (const char* named : {"words.txt", "missing"})
    EXPECT_THAT(
        findings(load(named)),
        HasSubstr("G046]: 'letters_dir' of the environment of tenant 'main' is not a folder"));
}

TEST(Rules, AFileIsRelativeToTheFileThatNamesIt) {
  const Folder folder;
  std::filesystem::create_directory(folder.path() + "/parts");
  folder.write("parts/words.txt", "a");
  folder.write("parts/words.toml", "[node.words]\nactor = \"counter\"\nfile = \"words.txt\"\n");
  const std::string path =
      folder.write("graph.toml", "include = [\"parts/words.toml\"]\n" + demo_text());
  const auto graph = load_graph(path, {}, test_catalog());
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_THAT(graph.plan->resolved_toml,
              HasSubstr("file = \"" + folder.path() + "/parts/words.txt\""));
  // The text that a worker reads names the same file from any folder.
  const auto again =
      load_graph_text(graph.plan->resolved_toml, "graph.resolved.toml", "/", {}, test_catalog());
  ASSERT_NE(again.plan, nullptr) << findings(again);
  EXPECT_EQ(again.plan->graph_hash, graph.plan->graph_hash);
}

TEST(Rules, NamesHaveALength) {
  const auto with_name = [](size_t length) {
    return codes_of(demo_with("[tenant.main]", "[tenant." + std::string(length, 'a') + "]"));
  };
  EXPECT_THAT(with_name(64), IsEmpty());
  EXPECT_THAT(with_name(65), ElementsAre("G017"));
}

TEST(Rules, TheNameOfAGraphIsSafeInAFolderName) {
  const auto with_name = [](const std::string& name) {
    return codes_of(demo_with("\"reverse-text\"", "\"" + name + "\""));
  };
  EXPECT_THAT(with_name("Reverse_text.v2"), IsEmpty());
  EXPECT_THAT(with_name(std::string(64, 'x')), IsEmpty());
  EXPECT_THAT(with_name(std::string(65, 'x')), ElementsAre("G017"));
  EXPECT_THAT(with_name("../elsewhere"), ElementsAre("G017"));
  EXPECT_THAT(with_name(".hidden"), ElementsAre("G017"));
  EXPECT_THAT(with_name("a b"), ElementsAre("G017"));
  const auto unnamed = load_text(demo_with("name = \"reverse-text\"\n", ""));
  ASSERT_NE(unnamed.plan, nullptr) << findings(unnamed);
  EXPECT_EQ(unnamed.plan->settings.name, "graph");
}

TEST(Rules, AllFaultsOfAFileComeInOnePassAndInFileOrder) {
  std::string text = demo_text();
  text = replaced(text, "seed = 17", "sed = 17");
  text = replaced(text, "batch_size = 64", "batch_size = 60");
  text = replaced(text, "path = \"model\"", "path = \"nowhere\"");
  text = replaced(text, "kv_blocks = 512", "kv_blocks = 0");
  text = replaced(text, "actor = \"router\"", "actor = \"ruoter\"");
  text = replaced(text, "env.task            -> rollout.task", "env.task -> rollout.tsk");
  text = replaced(text, "capacity = 64", "capacity = 0");
  EXPECT_THAT(codes_of(text), ElementsAre("G020", "G061", "G044", "G023", "G010", "G012", "G035"));
}

TEST(Rules, ReferencesMayBeLeftOutWhenThereIsOneOfTheKind) {
  std::string text = demo_text();
  for (int i = 0; i < 2; ++i) text = replaced(text, "\nengine = \"engine\"", "");
  for (int i = 0; i < 3; ++i) text = replaced(text, "\nweights = \"weights\"", "");
  text = replaced(text, "\nlearner = \"learner\"", "");
  for (int i = 0; i < 2; ++i) text = replaced(text, "\nmodel = \"policy\"", "");
  const auto graph = load_text(text);
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_THAT(graph.plan->resolved_toml, HasSubstr("engine = \"engine\""));
}

TEST(Rules, ThreadsWithinTheCoresAreNoWarning) {
  std::string text = demo_with("kv_blocks = 512", "kv_blocks = 512\nthreads = 1");
  text = replaced(text, "loss = {", "threads = 1\nloss = {");
  EXPECT_THAT(codes_of(text), IsEmpty());
  text = replaced(text, "kv_blocks = 512\nthreads = 1", "kv_blocks = 512\nthreads = 2");
  EXPECT_THAT(codes_of(text), ElementsAre("G047"));
  EXPECT_NE(load_text(text).plan, nullptr) << "a warning is no error";
}

TEST(Rules, OneFlagTurnsAGraphIntoAScriptedOne) {
  Overrides overrides;
  overrides.sets = {"resource.engine.backend=scripted", "resource.learner.backend=scripted"};
  const auto graph = load_text(demo_text(), overrides);
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_EQ(graph.plan->resources[0].backend, "scripted");
  EXPECT_THAT(findings(graph), HasSubstr("warning[G042]"));
}

TEST(Rules, AModelFolderWithoutAReadableConfigIsNoModel) {
  const Folder folder;
  folder.write("model/config.json", "{\"max_position_embeddings\": ");
  const auto graph = load_graph_text(demo_text(), "graph.toml", folder.path(), {}, test_catalog());
  EXPECT_EQ(graph.plan, nullptr);
  EXPECT_THAT(findings(graph),
              HasSubstr("error[G044]: model 'policy' cannot be used: config.json"));
}

TEST(Rules, ReplicasOfAnAddressedTargetAreFine) {
  // router.prefill is addressed; prefill.done sends to one.
  const auto codes = codes_of(demo_with("actor = \"router\"", "actor = \"router\"\nreplicas = 2"));
  EXPECT_THAT(codes, ElementsAre("G034", "G034", "G034", "G034"))
      << "rollout.generate, rollout.cancel and both loads send to one";
}

TEST(Rules, PlacesCutTheGraphIntoProcesses) {
  const std::string places =
      "\n[place]\nserving = { nodes = [\"prefill\", \"decode\", \"trainer\"], device = \"cuda:0\" "
      "}\n"
      "driver = { nodes = [\"rollout\", \"env\", \"router\", \"broadcaster\"] }\n";
  const auto graph = load_text(demo_text() + places);
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  const Plan& plan = *graph.plan;
  ASSERT_EQ(plan.processes.size(), 2u);
  EXPECT_EQ(plan.processes[0].name, "driver");
  EXPECT_EQ(plan.processes[1].device, "cuda:0");
  EXPECT_EQ(plan.processes[1].groups.size(), 2u);
  const auto again = load_text(plan.resolved_toml);
  ASSERT_EQ(again.plan, nullptr) << "the model's temporary folder is gone";
  EXPECT_THAT(findings(again), HasSubstr("error[G044]"));
}

TEST(Rules, EveryProcessHasItsOwnCopyOfAnEngine) {
  const std::string places =
      "\n[place]\na = { nodes = [\"prefill\", \"decode\"], replicas = 2 }\n"
      "b = { nodes = [\"trainer\"] }\n"
      "c = { nodes = [\"rollout\", \"env\", \"router\", \"broadcaster\"] }\n";
  const std::string text = replaced(demo_text(), "kind = \"weight_channel\"",
                                    "kind = \"weight_channel\"\nbackend = \"shm\"") +
                           places;
  const Folder folder;
  Overrides overrides;
  overrides.cores = 8;
  const auto graph = load_graph_text(text, "graph.toml", folder.path(), overrides, test_catalog());
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  std::vector<std::string> copies;
  for (const auto& group : graph.plan->groups)
    for (const int32_t resource : group.resources) {
      const auto& used = graph.plan->resources[static_cast<size_t>(resource)];
      copies.push_back(fmt::format("{} of {} in {}: {} threads", used.name, group.name,
                                   graph.plan->processes[group.process.index()].name,
                                   used.threads));
    }
  // 8 cores, 3 processes that compute.
  EXPECT_THAT(copies, ElementsAre("engine of prefill#0+decode#0 in a#0: 2 threads",
                                  "engine of prefill#1+decode#1 in a#1: 2 threads",
                                  "learner of trainer in b: 2 threads"));
  overrides.cores = 2;
  const auto again = load_graph_text(graph.plan->resolved_toml, "graph.resolved.toml", "/",
                                     overrides, test_catalog());
  ASSERT_NE(again.plan, nullptr) << findings(again);
  EXPECT_EQ(again.plan->resolved_toml, graph.plan->resolved_toml);
}

// A full edge only stops its own sender, so users of one engine may be both upstream and downstream
// of another node.
TEST(Rules, ThreadsMayFormACycleThatNodesDoNot) {
  std::string text = demo_with("[edges]", "[node.relay]\nactor = \"relay\"\n\n[edges]");
  text = replaced(text, "\"prefill.done        -> decode.request\",",
                  "\"prefill.done -> relay.done\",\n  \"relay.done -> decode.request\",");
  EXPECT_THAT(codes_of(text), IsEmpty());
}

TEST(Rules, ARunOfErrorsIsCut) {
  std::string text = demo_text();
  for (int i = 0; i < 600; ++i) text += fmt::format("[stray{}]\n", i);
  const auto graph = load_text(text);
  EXPECT_EQ(graph.diagnostics.num_errors(), 600u);
  EXPECT_EQ(graph.diagnostics.all().size(), Diagnostics::kMax);
  EXPECT_THAT(findings(graph), HasSubstr("600 errors (the first 500 shown)"));
}

TEST(Rules, AProcessKeepsAtMostMemoryMax) {
  // In the test catalog: 3 MB for the base that engine and learner share, 4,096 bytes per block,
  // 1,000 per rank.
  const std::string text =
      demo_with("actor = \"trainer\"", "actor = \"trainer\"\nper_tenant = true") +
      "[tenant.main.adapter]\nrank = 8\n[tenant.second]\nenvironment = { name = \"copy\" }\n"
      "[tenant.second.adapter]\nrank = 100\n";
  const auto with_limit = [&](int64_t limit, const std::string& more = "") {
    return load_graph(
        Folder().write(
            "graph.toml",
            replaced(text, "seed = 17", fmt::format("seed = 17\nmemory_max = {}", limit)) + more),
        {}, test_catalog());
  };
  const auto unlimited = with_limit(0);
  ASSERT_NE(unlimited.plan, nullptr) << findings(unlimited);
  double bytes = -3'000'000;  // the base is held once
  for (const auto& resource : unlimited.plan->resources) bytes += sum_of(resource.memory);
  EXPECT_EQ(bytes, 3'000'000 + 512 * 4096 + 108'000 + static_cast<double>(kWaitingCutsBytesMax))
      << "base, blocks, adapters of both tenants, saved states that wait for their checkpoints";
  const auto unrecorded = with_limit(0, "[trace]\nlevel = \"off\"\n");
  ASSERT_NE(unrecorded.plan, nullptr) << findings(unrecorded);
  double bytes_unrecorded = -3'000'000;
  for (const auto& resource : unrecorded.plan->resources)
    bytes_unrecorded += sum_of(resource.memory);
  EXPECT_EQ(bytes_unrecorded, bytes - static_cast<double>(kWaitingCutsBytesMax));
  const auto limit = static_cast<int64_t>(bytes);
  EXPECT_EQ(findings(with_limit(limit)), "");
  const std::string seen = findings(with_limit(limit - 1));
  EXPECT_THAT(seen, HasSubstr(fmt::format("error[G049]: the process needs {} bytes", limit)));
  EXPECT_THAT(seen, HasSubstr("engine 'engine' and learner 'learner': base weights, held once: 2.9 "
                              "MiB"));
  EXPECT_THAT(seen, HasSubstr("adapter of tenant 'second': 97.7 KiB"));
  EXPECT_THAT(seen, HasSubstr(fmt::format("write memory_max = {} or more", limit)));
  EXPECT_LT(seen.find("base weights"), seen.find("adapter of tenant")) << "the largest first";
  EXPECT_EQ(with_limit(-1).plan, nullptr);
}

TEST(Rules, APlaceMayHaveALimitOfItsOwn) {
  const auto placed = [](const std::string& graph_limit, const std::string& place_limit) {
    const std::string text = demo_with("seed = 17", "seed = 17\n" + graph_limit) +
                             "[place]\nhands = { nodes = [\"env\", \"rollout\", \"router\"] }\n"
                             "mind = { nodes = [\"prefill\", \"decode\", \"trainer\", "
                             "\"broadcaster\"]" +
                             place_limit + " }\n";
    return load_graph(Folder().write("graph.toml", text), {}, test_catalog());
  };
  const auto graph = placed("", "");
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  double bytes = 0;
  for (const auto& resource : graph.plan->resources) bytes += sum_of(resource.memory);
  const auto limit = [&](double less) { return fmt::format("memory_max = {:.0f}", bytes - less); };
  EXPECT_EQ(findings(placed(limit(0), "")), "");
  EXPECT_THAT(findings(placed(limit(1), "")), HasSubstr("a process of place 'mind' needs"));
  EXPECT_EQ(findings(placed("memory_max = 1", ", " + limit(0))), "")
      << "the place's own counts, and 'hands' keeps nothing";
  EXPECT_THAT(findings(placed("", ", " + limit(1))), HasSubstr("error[G049]"));
}

}  // namespace
}  // namespace primerl::testing
