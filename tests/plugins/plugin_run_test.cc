// Whole runs of graphs that name plugins: checked, run in two processes, replayed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

const std::string kPacker = PRIMERL_BINARY_DIR "/plugins/packer.so";

/// The scripted graph in two processes; groups cross between them in a message of the plugin.
class PackedRun : public testing::Test {
 protected:
  PackedRun() {
    fs::copy_file(kPacker, scratch_.path() / "packer.so");
    std::ofstream(graph_) << fmt::format(R"(include = ["{}"]
[graph]
plugins = ["packer.so"]
[resource.weights]
backend = "auto"
[node.pack]
actor = "pack"
label = "to the trainer"
[node.unpack]
actor = "unpack"
[edges]
forward = [
  "env.task         -> rollout.task",
  "rollout.generate -> router.generate",
  "router.prefill   -> prefill.request",
  "prefill.done     -> decode.request",
  "rollout.group    -> pack.group",
  {{ path = "pack.packed -> unpack.packed", record = "payload" }},
  "unpack.group     -> trainer.group",
  "trainer.weights  -> broadcaster.weights",
]
[place]
driver = {{ nodes = ["env", "rollout", "router", "prefill", "decode", "pack"] }}
training = {{ nodes = ["trainer", "broadcaster", "unpack"] }}
)",
                                         source_path("tests/cli/graphs/scripted.toml"));
  }
  ProgramEnd run() const {
    return run_graph_program({"run", graph_, "--out", folder_, "--max-steps", "3"},
                             {"XDG_RUNTIME_DIR=" + scratch_.path().string()});
  }

  const ScratchFolder scratch_;
  const std::string graph_ = scratch_.path() / "graph.toml";
  const std::string folder_ = scratch_.path() / "run";
};

TEST_F(PackedRun, CarriesThePluginsMessageBetweenProcesses) {
  const auto end = run();
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(run_end(folder_), "finished");
  EXPECT_EQ(expect_steps_and_rollouts_once(folder_), 3);
  const Json facts = json_file(folder_ + "/run.json");
  ASSERT_NE(facts.find("plugins"), nullptr);
  EXPECT_EQ(*facts.find("plugins")->as_array()[0].get_string("version"), "2.1");
}

TEST_F(PackedRun, IsReplayedWithThePluginAndSaysWhenThatIsAnotherOne) {
  ASSERT_EQ(run().code, 0);
  const auto same = run_graph_program({"replay", folder_});
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_THAT(same.out, AllOf(HasSubstr("identical"), Not(HasSubstr("recorded by"))));
  const auto message = run_graph_program({"trace", "ls", folder_, "--node", "unpack"});
  EXPECT_THAT(message.out, HasSubstr("PackedGroup"));
  // Bytes after the end change no code, but the file is another one.
  std::ofstream(scratch_.path() / "packer.so", std::ios::app) << "rebuilt";
  const auto other = run_graph_program({"replay", folder_});
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(other.out, HasSubstr("recorded by primerl-graph 0.1.0 with packer 2.1"));
  fs::remove(scratch_.path() / "packer.so");
  const auto none = run_graph_program({"replay", folder_});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, AllOf(HasSubstr("error[G088]"), HasSubstr("packer.so")));
}

TEST_F(PackedRun, ResumesWithThePlugin) {
  ASSERT_EQ(run().code, 0);
  const auto end = run_graph_program({"run", "--resume", folder_, "--max-steps", "5"},
                                     {"XDG_RUNTIME_DIR=" + scratch_.path().string()});
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(expect_steps_and_rollouts_once(folder_), 5);
}

TEST_F(PackedRun, IsNotMixedWithAnotherFileOfThePlugin) {
  Program run({"primerl-graph", "run", graph_, "--out", folder_, "--max-steps", "1000000000"},
              {"XDG_RUNTIME_DIR=" + scratch_.path().string()});
  ASSERT_TRUE(run.wait_until_said("reward"));
  // Rebuilt: a new file gets the name, then a worker dies and is started again.
  const fs::path rebuilt = scratch_.path() / "rebuilt.so";
  fs::copy_file(kPacker, rebuilt);
  std::ofstream(rebuilt, std::ios::app) << "rebuilt";
  fs::rename(rebuilt, scratch_.path() / "packer.so");
  const pid_t trainer = worker_named(run, "training");
  ASSERT_GT(trainer, 0);
  ::kill(trainer, SIGKILL);
  const auto end = run.wait();
  EXPECT_NE(end.code, 0);
  EXPECT_THAT(end.err, HasSubstr("is not the file that the run began with"));
  Program resumed({"primerl-graph", "run", "--resume", folder_},
                  {"XDG_RUNTIME_DIR=" + scratch_.path().string()});
  EXPECT_TRUE(resumed.wait_until_said("plugin 'packer' is another file than at the last start"));
  ::kill(resumed.pid(), SIGINT);
  EXPECT_EQ(resumed.wait().code, 130);
}

/// The scripted graph with an actor, or an environment, that throws.
class ThrowingRun : public testing::Test {
 protected:
  std::string graph(const std::string& more) const {
    const std::string path = scratch_.path() / "graph.toml";
    std::ofstream(path) << fmt::format("include = [\"{}\"]\n[graph]\nplugins = [\"{}\"]\n{}",
                                       source_path("tests/cli/graphs/scripted.toml"),
                                       PRIMERL_BINARY_DIR "/plugins/throwing_actor.so", more);
    return path;
  }
  const ScratchFolder scratch_;
};

TEST_F(ThrowingRun, OfAnActorIsRefusedByCheckAndEndsARunAtOnce) {
  const std::string path = graph(R"([node.throwing]
actor = "throwing"
[edges]
forward = [
  "env.task         -> rollout.task",
  "rollout.generate -> router.generate",
  "router.prefill   -> prefill.request",
  "prefill.done     -> decode.request",
  "rollout.group    -> throwing.group",
  "throwing.kept    -> trainer.group",
  "trainer.weights  -> broadcaster.weights",
]
)");
  const auto checked = run_graph_program({"check", path});
  EXPECT_EQ(checked.code, 2);
  EXPECT_THAT(checked.err, AllOf(HasSubstr("error[G081]"), HasSubstr("starting 'throwing'"),
                                 HasSubstr("no file of weights")));
  const auto run = run_graph_program(
      {"run", path, "--no-rehearsal", "--out", (scratch_.path() / "run").string()});
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, AllOf(HasSubstr("starting 'throwing'"), HasSubstr("no file of weights")));
}

TEST_F(ThrowingRun, OfAnEnvironmentIsRefusedByCheck) {
  const std::string path = graph("[tenant.main]\nenvironment = { name = \"without_tasks\" }\n");
  const auto checked = run_graph_program({"check", path});
  EXPECT_EQ(checked.code, 2);
  EXPECT_THAT(checked.err, HasSubstr("no file of tasks"));
}

TEST(PluginCommands, SayWhichPluginEndedThem) {
  const auto end =
      run_graph_program({"actors", "--plugin", PRIMERL_BINARY_DIR "/plugins/leaves.so"});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, AllOf(HasSubstr("leaves.so"), HasSubstr("ended the program")));
}

TEST(PluginCommands, ListThePartsOfAPlugin) {
  const auto actors = run_graph_program({"actors", "--plugin", kPacker});
  EXPECT_EQ(actors.code, 0) << actors.err;
  EXPECT_THAT(actors.out, AllOf(HasSubstr("router"), HasSubstr("pack         packs groups")));
  const auto one = run_graph_program({"actors", "pack", "--plugin", kPacker});
  EXPECT_THAT(one.out, HasSubstr("label = \"packed\""));
  const auto messages = run_graph_program({"messages", "PackedGroup", "--plugin", kPacker});
  EXPECT_THAT(messages.out, AllOf(HasSubstr("sent by pack.packed"), HasSubstr("label:")));
  const auto options = run_graph_program({"options", "pack", "--plugin", kPacker});
  EXPECT_THAT(options.out, AllOf(HasSubstr("actor.pack: packs groups"),
                                 HasSubstr("label = \"packed\"  # string: ")));
  const auto schema = run_graph_program({"schema", "--plugin", kPacker});
  EXPECT_THAT(schema.out, HasSubstr("\"unpack\""));
  EXPECT_THAT(run_graph_program({"actors"}).out, Not(HasSubstr("unpack")));
}

TEST(PluginCommands, RefuseAPluginThatCannotBeUsed) {
  const auto missing = run_graph_program({"actors", "--plugin", "/nowhere.so"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("--plugin '/nowhere.so': the file does not exist"));
  const auto graph = source_path("tests/cli/graphs/scripted.toml");
  const auto taken =
      run_graph_program({"check", graph, "--set",
                         "graph.plugins=[\"" PRIMERL_BINARY_DIR "/plugins/taken_name.so\"]"});
  EXPECT_EQ(taken.code, 2);
  EXPECT_THAT(taken.err, AllOf(HasSubstr("--set:1:16: error[G088]"),
                               HasSubstr("brings an actor 'router', and there is one"),
                               HasSubstr("1 error\n")));
}

}  // namespace
}  // namespace primerl
