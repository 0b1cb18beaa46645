// Two tenants on one model as a person runs them: examples/two_tenants with its real model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>

#include "tests/cli/program.h"
#include "tests/e2e/run_files.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr const char* kExample = "examples/two_tenants/graph.toml";
const std::vector<std::string> kTenants = {"arithmetic", "reverse"};

class TwoTenants : public ::testing::Test {
 protected:
  std::vector<std::string> words(const std::string& graph, const fs::path& folder,
                                 std::vector<std::string> more) const {
    std::vector<std::string> words{
        "run",   graph,
        "--out", folder.string(),
        "--set", "model.policy.path=\"" + source_path("examples/arithmetic_tool/model") + "\""};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  /// The example with one of its tenants.
  std::string alone(const std::string& tenant) const {
    const std::string text = read_text_file(source_path(kExample)).value();
    const size_t reverse = text.find("[tenant.reverse]");
    const size_t arithmetic = text.find("[tenant.arithmetic]"), end = text.find("[model.");
    const std::string table = tenant == "reverse" ? text.substr(reverse, arithmetic - reverse)
                                                  : text.substr(arithmetic, end - arithmetic);
    const fs::path file = folder("alone.toml");
    std::ofstream(file) << text.substr(0, reverse) << table << text.substr(end);
    return file.string();
  }
  /// The example in three processes.
  std::string apart() const {
    std::string text = read_text_file(source_path(kExample)).value();
    const std::string memory = "backend = \"memory\"";
    text.replace(text.find(memory), memory.size(), "backend = \"auto\"  ");
    const fs::path file = folder("apart.toml");
    std::ofstream(file) << text.replace(
        text.find("[tenant.reverse]"), 0,
        "[place]\n"
        "driver = { nodes = [\"env\", \"rollout\", \"router\"] }\n"
        "inference = { nodes = [\"prefill\", \"decode\"] }\n"
        "training = { nodes = [\"trainer\", \"broadcaster\"] }\n\n");
    return file.string();
  }
  /// The example with an actor of a plugin between rollouts and trainers, which serves one tenant.
  std::string with_picky(bool is_apart) const {
    std::string text = read_text_file(is_apart ? apart() : source_path(kExample)).value();
    const auto replace = [&text](const std::string& old, const std::string& by) {
      text.replace(text.find(old), old.size(), by);
    };
    replace("[graph]\n", "[graph]\nplugins = [\"" PRIMERL_BINARY_DIR "/plugins/troubles.so\"]\n");
    replace("[edges]\n", "[node.picky]\nactor = \"picky\"\ntenant = \"reverse\"\n[edges]\n");
    replace("{ path = \"rollout.group -> trainer.group\", capacity = 64 },",
            "\"rollout.group -> picky.group\", \"picky.kept -> trainer.group\",");
    if (is_apart) replace("\"router\"]", "\"router\", \"picky\"]");
    const fs::path file = folder("picky.toml");
    std::ofstream(file) << text;
    return file.string();
  }
  /// Every rollout of `reverse` runs out of time, so that none of her groups trains.
  static std::vector<std::string> reverse_fails(std::vector<std::string> more) {
    more.insert(more.end(), {"--no-rehearsal", "--set", "tenant.reverse.rollout_timeout=\"1ms\"",
                             "--set", "node.trainer.lost_batches_max=1"});
    return more;
  }
  fs::path folder(const std::string& name) const { return scratch_.path() / name; }
  /// `trace` shows the steps of one: with her messages all that her own actors do.
  void expect_that_the_trace_has_each(const fs::path& run) const {
    for (const auto& tenant : kTenants) {
      const auto listed = run_graph_program(
          {"trace", "ls", run.string(), "--tenant", tenant, "--limit", "1000000", "--json"});
      ASSERT_EQ(listed.code, 0) << listed.err;
      const Json found = parse_json(listed.out, "steps").value();
      std::set<std::string> kinds;
      for (const Json& step : found.find("steps")->as_array()) {
        // A work turn is of a whole group.
        const bool is_hers = step.find("tenant") != nullptr
                                 ? *step.get_string("tenant") == tenant
                                 : (step.find("instance") == nullptr ||
                                    step.get_string("instance")->ends_with("." + tenant));
        EXPECT_TRUE(is_hers) << step.dump();
        kinds.insert(*step.get_string("kind"));
      }
      EXPECT_TRUE(kinds.contains("message") && kinds.contains("drain")) << tenant;
      const fs::path file = folder("trace.json");
      const auto exported = run_graph_program(
          {"trace", "export", run.string(), "--tenant", tenant, "--out", file.string()});
      EXPECT_EQ(exported.code, 0) << exported.err;
      EXPECT_LT(fs::file_size(file), 64U << 20);
    }
    for (const char* action : {"ls", "export"}) {
      const auto unknown = run_graph_program({"trace", action, run.string(), "--tenant", "nobody"});
      EXPECT_EQ(unknown.code, 3) << action;
      EXPECT_THAT(unknown.err, HasSubstr("its tenants: arithmetic and reverse")) << action;
    }
  }

  /// The lines of one tenant's steps, without what is of time.
  static std::vector<std::string> steps(const fs::path& run, const std::string& tenant) {
    std::vector<std::string> steps;
    for (const Json& line : lines_of(run / "metrics.jsonl")) {
      if (*line.get_string("tenant") != tenant) continue;
      std::string text;
      for (const auto& [name, value] : line.as_object())
        if (name != "time" && !name.starts_with("time/") && !name.starts_with("perf/"))
          text += name + "=" + value.dump() + " ";
      steps.push_back(std::move(text));
    }
    return steps;
  }
  static std::vector<std::string> trained(const fs::path& file) {
    std::vector<std::string> lines;
    for (const Json& line : lines_of(file))
      if (*line.get_string("end") == "trained") lines.push_back(line.dump());
    std::sort(lines.begin(), lines.end());
    return lines;
  }
  static std::string bytes(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  ScratchFolder scratch_;
};

TEST_F(TwoTenants, TrainSideBySideAndEachHasItsOwnPartOfTheRecord) {
  const fs::path run = folder("run");
  const auto end = run_graph_program(words(source_path(kExample), run, {"--max-steps", "5"}));
  ASSERT_EQ(end.code, 0) << end.err;
  for (const auto& tenant : kTenants) {
    EXPECT_EQ(steps(run, tenant).size(), 5U) << tenant;
    EXPECT_FALSE(trained(run / "rollouts" / (tenant + ".jsonl")).empty()) << tenant;
    const Json adapter =
        json_file(run / "checkpoints" / tenant / "step_5" / "weights" / "adapter_config.json");
    EXPECT_EQ(*adapter.get_int("r"), tenant == "reverse" ? 8 : 16);
  }
  // The adapter beside its model, and merged into it, say the same.
  const std::string base = source_path("examples/arithmetic_tool/model");
  const std::string adapter = (run / "checkpoints/reverse/step_5/weights").string();
  const std::string merged = folder("merged").string();
  const std::vector<std::string> merge = {"merge", "--model", base,        "--adapter",
                                          adapter, "--out",   merged + "/"};
  const auto made = run_graph_program(merge);
  ASSERT_EQ(made.code, 0) << made.err;
  const auto again = run_graph_program(merge);
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("is there already"));
  const auto generate = [&](const std::string& model, std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "--model", model, "--prompt", "12+34", "--temperature",
                               "0", "--max-tokens", "12"});
    const auto said = run_graph_program(more);
    EXPECT_EQ(said.code, 0) << said.err;
    return said.out;
  };
  EXPECT_EQ(generate(merged, {}), generate(base, {"--adapter", adapter}));
  const auto whole = run_graph_program({"replay", run.string()});
  EXPECT_EQ(whole.code, 0) << whole.out << whole.err;
  for (const auto& tenant : kTenants) {
    const auto hers = run_graph_program({"replay", run.string(), "--tenant", tenant});
    EXPECT_EQ(hers.code, 0) << hers.out << hers.err;
    EXPECT_THAT(hers.out, HasSubstr("identical"));
    EXPECT_THAT(hers.out, HasSubstr(fmt::format("tenant '{}' alone", tenant)));
  }
  const auto unknown = run_graph_program({"replay", run.string(), "--tenant", "nobody"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("its tenants: arithmetic and reverse"));
  expect_that_the_trace_has_each(run);
}

/// Another learning rate changes her own steps and is told; her neighbour's replay is as recorded.
TEST_F(TwoTenants, AReplayOfOneComputesHerStepsAndNotTheOthers) {
  const fs::path run = folder("run");
  ASSERT_EQ(run_graph_program(words(source_path(kExample), run, {"--max-steps", "3"})).code, 0);
  const std::string change = "tenant.arithmetic.optimizer.lr=0.004";
  const auto hers =
      run_graph_program({"replay", run.string(), "--tenant", "arithmetic", "--set", change});
  EXPECT_EQ(hers.code, 4) << hers.out << hers.err;
  EXPECT_THAT(hers.out, HasSubstr("learning_rate: recorded 0.002, now 0.004"));
  const auto other =
      run_graph_program({"replay", run.string(), "--tenant", "reverse", "--set", change});
  EXPECT_EQ(other.code, 0) << other.out << other.err;
}

TEST_F(TwoTenants, OnPolicyEachTrainsAsItWouldAlone) {
  const std::vector<std::string> exact = {"--max-steps", "3",
                                          "--set",       "resource.learner.threads=1",
                                          "--set",       "resource.engine.threads=1"};
  const auto on_policy = [&](std::vector<std::string> tenants) {
    auto more = exact;
    for (const auto& tenant : tenants)
      more.insert(more.end(), {"--set", fmt::format("tenant.{}.max_off_policy_steps=0", tenant)});
    return more;
  };
  const fs::path both = folder("both");
  const auto end = run_graph_program(words(source_path(kExample), both, on_policy(kTenants)));
  ASSERT_EQ(end.code, 0) << end.err;
  for (const auto& tenant : kTenants) {
    const fs::path own = folder(tenant);
    const auto single = run_graph_program(words(alone(tenant), own, on_policy({tenant})));
    ASSERT_EQ(single.code, 0) << single.err;
    EXPECT_EQ(steps(both, tenant), steps(own, tenant));
    EXPECT_EQ(trained(both / "rollouts" / (tenant + ".jsonl")), trained(own / "rollouts.jsonl"));
    const fs::path weights = fs::path("step_3") / "weights" / "adapter_model.safetensors";
    EXPECT_TRUE(bytes(both / "checkpoints" / tenant / weights) ==
                bytes(own / "checkpoints" / weights))
        << "the adapter of " << tenant;
  }
}

/// A loss and dropout of her own, one slot for two adapters, PEFT folders on the way to the engine:
/// each trains as she would alone, and a replay repeats every bit of it.
TEST_F(TwoTenants, WithWhatEachWroteAndOneSlotForBothEachTrainsAsItWouldAlone) {
  const auto with = [&](const std::vector<std::string>& tenants, std::vector<std::string> more) {
    more.insert(more.end(), {"--max-steps", "3", "--set", "resource.learner.threads=1", "--set",
                             "resource.engine.threads=1"});
    for (const auto& tenant : tenants)
      for (const std::string& set :
           {std::string("max_off_policy_steps=0"),
            std::string(tenant == "reverse" ? "loss={kl_weight=0.2,clip_low=0.05}"
                                            : "loss={advantage_weight=2.0}"),
            std::string(tenant == "reverse" ? "adapter.dropout=0.1" : "adapter.rslora=true")})
        more.insert(more.end(), {"--set", fmt::format("tenant.{}.{}", tenant, set)});
    return more;
  };
  const fs::path both = folder("both");
  const auto end =
      run_graph_program(words(source_path(kExample), both,
                              with(kTenants, {"--set", "resource.engine.adapter_slots=1", "--set",
                                              "resource.weights.backend=\"files\""})));
  ASSERT_EQ(end.code, 0) << end.err;
  for (const auto& tenant : kTenants) {
    const fs::path own = folder(tenant);
    const auto single = run_graph_program(words(alone(tenant), own, with({tenant}, {})));
    ASSERT_EQ(single.code, 0) << single.err;
    EXPECT_EQ(steps(both, tenant), steps(own, tenant));
    EXPECT_EQ(trained(both / "rollouts" / (tenant + ".jsonl")), trained(own / "rollouts.jsonl"));
    const fs::path weights = fs::path("step_3") / "weights" / "adapter_model.safetensors";
    EXPECT_TRUE(bytes(both / "checkpoints" / tenant / weights) ==
                bytes(own / "checkpoints" / weights))
        << "the adapter of " << tenant;
  }
  EXPECT_TRUE(fs::exists(both / "weights/weights/version_3-tenant_1/adapter_config.json"));
  const auto again = run_graph_program({"replay", both.string()});
  EXPECT_EQ(again.code, 0) << again.out << again.err;
}

/// Each goes on from its own newest checkpoint; what both had done is repeated from the record.
TEST_F(TwoTenants, GoOnWhereTheKilledRunStood) {
  const fs::path run = folder("run");
  auto words_of_run =
      words(source_path(kExample), run,
            {"--max-steps", "100000", "--set", "graph.restarts_max=0", "--set",
             "tenant.reverse.checkpoint_every=4", "--set", "tenant.arithmetic.checkpoint_every=5"});
  words_of_run.insert(words_of_run.begin(), "primerl-graph");
  Program killed(words_of_run);
  while (num_lines(run / "metrics.jsonl") < 26) ASSERT_TRUE(killed.is_running());
  ::kill(worker_of(killed), SIGKILL);
  ASSERT_EQ(killed.wait().code, 1);
  int64_t last = 0;
  for (const Json& line : lines_of(run / "metrics.jsonl"))
    last = std::max(last, *line.get_int("step"));
  const std::string most = std::to_string(last + 3);
  const auto end = run_graph_program({"run", "--resume", run.string(), "--max-steps", most});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(end.err.find("going on from the checkpoint alone"), std::string::npos) << end.err;
  for (const auto& tenant : kTenants) {
    int64_t step = 0;
    for (const Json& line : lines_of(run / "metrics.jsonl")) {
      if (*line.get_string("tenant") != tenant) continue;
      EXPECT_EQ(*line.get_int("step"), ++step) << tenant;
    }
    EXPECT_EQ(step, last + 3) << tenant;
    std::set<std::string> seen;
    for (const Json& line : lines_of(run / "rollouts" / (tenant + ".jsonl")))
      EXPECT_TRUE(seen.insert(*line.get_string("rollout")).second) << line.dump();
  }
}

constexpr const char* kSetAside = "tenant 'reverse' was set aside: ";

TEST_F(TwoTenants, OneThatFailsIsSetAsideAndTheOtherTakesItsSteps) {
  for (const bool is_apart : {false, true}) {
    SCOPED_TRACE(is_apart ? "three processes" : "one process");
    const fs::path run = folder(is_apart ? "apart" : "run");
    const auto end = run_graph_program(words(is_apart ? apart() : source_path(kExample), run,
                                             reverse_fails({"--max-steps", "4"})));
    EXPECT_EQ(end.code, 1) << end.err;
    EXPECT_THAT(end.err, HasSubstr(kSetAside));
    EXPECT_THAT(end.err, HasSubstr("groups in a row ended without being trained on"));
    EXPECT_THAT(end.err, HasSubstr("the others go on"));
    EXPECT_THAT(end.err, HasSubstr("rollouts.jsonl says why each one did"));
    EXPECT_TRUE(steps(run, "reverse").empty());
    EXPECT_EQ(steps(run, "arithmetic").size(), 4U);
    EXPECT_TRUE(fs::exists(run / "checkpoints/arithmetic/step_4"));
    const auto replayed = run_graph_program({"replay", run.string()});
    EXPECT_EQ(replayed.code, 0) << replayed.out << replayed.err;
  }
}

/// An actor that both share says that it cannot serve one of them; she is set aside, in one process
/// and in three, in a replay too, and `ps` names her while the run goes on.
TEST_F(TwoTenants, WhomASharedActorCannotServeIsSetAside) {
  for (const bool is_apart : {false, true}) {
    SCOPED_TRACE(is_apart ? "three processes" : "one process");
    const fs::path run = folder(is_apart ? "apart" : "run");
    auto words_of_run =
        words(with_picky(is_apart), run, {"--no-rehearsal", "--max-steps", "100000"});
    words_of_run.insert(words_of_run.begin(), "primerl-graph");
    Program going(words_of_run);
    ASSERT_TRUE(going.wait_until_said("is set aside, the others go on: 'picky': her groups"));
    std::string shown;
    const std::string all_of_the_learner = "     100%       50%\n";  // and half was promised
    while (shown.find(all_of_the_learner) == std::string::npos) {
      ASSERT_TRUE(going.is_running());
      shown = run_graph_program({"ps", run.string()}).out;
    }
    EXPECT_THAT(shown, HasSubstr("\nreverse     set aside"));
    EXPECT_THAT(shown, HasSubstr("tenant 'reverse' is set aside: 'picky': her groups are not"));
    EXPECT_THAT(shown, HasSubstr("\narithmetic  training "));
    EXPECT_THAT(shown, HasSubstr("decode/s  train/s  engine  learner  promised\n"));
    ::kill(going.pid(), SIGINT);
    const auto end = going.wait();
    EXPECT_EQ(end.code, 1) << end.err;
    EXPECT_THAT(end.err, HasSubstr("tenant 'reverse' was set aside: 'picky': her groups are not"));
    EXPECT_TRUE(steps(run, "reverse").empty());
    EXPECT_FALSE(steps(run, "arithmetic").empty());
    const auto replayed = run_graph_program({"replay", run.string()});
    EXPECT_EQ(replayed.code, 0) << replayed.out << replayed.err;
  }
}

/// A run that follows its record knows who was set aside, and why.
TEST_F(TwoTenants, OneThatWasSetAsideStaysSoWhenTheRunGoesOn) {
  for (const bool is_apart : {false, true}) {
    SCOPED_TRACE(is_apart ? "three processes" : "one process");
    const fs::path run = folder(is_apart ? "apart" : "run");
    auto words_of_run =
        words(is_apart ? apart() : source_path(kExample), run,
              reverse_fails({"--max-steps", "100000", "--set", "graph.restarts_max=0", "--set",
                             "tenant.arithmetic.checkpoint_every=5"}));
    words_of_run.insert(words_of_run.begin(), "primerl-graph");
    Program killed(words_of_run);
    while (num_lines(run / "metrics.jsonl") < 12)
      ASSERT_TRUE(killed.is_running()) << killed.wait().err;
    ::kill(worker_of(killed), SIGKILL);
    ASSERT_EQ(killed.wait().code, 1);
    const auto last = static_cast<int64_t>(steps(run, "arithmetic").size());
    const auto end = run_graph_program({"run", "--resume", run.string(), "--no-rehearsal",
                                        "--max-steps", std::to_string(last + 3)});
    EXPECT_EQ(end.code, 1) << end.err;
    EXPECT_THAT(end.err, HasSubstr(kSetAside));
    EXPECT_EQ(end.err.find("going on from the checkpoint alone"), std::string::npos) << end.err;
    EXPECT_EQ(steps(run, "arithmetic").size(), static_cast<size_t>(last + 3));
  }
}

/// With --from-checkpoint each begins from her own newest one, and who has none from her first
/// step.
TEST_F(TwoTenants, OneWithoutACheckpointStartsFromHerOwnBeginning) {
  const fs::path run = folder("run");
  const auto first =
      run_graph_program(words(source_path(kExample), run, reverse_fails({"--max-steps", "4"})));
  ASSERT_EQ(first.code, 1) << first.err;
  ASSERT_FALSE(fs::exists(run / "checkpoints/reverse/step_4"));
  const auto end =
      run_graph_program({"run", "--resume", run.string(), "--from-checkpoint", "--no-rehearsal",
                         "--max-steps", "6", "--set", "tenant.reverse.rollout_timeout=\"60s\"",
                         "--set", "node.trainer.lost_batches_max=100"});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("tenant 'reverse' has no complete checkpoint: it starts from its "
                                 "own beginning, with a fresh adapter and step 1"));
  EXPECT_THAT(end.err, HasSubstr("resuming after step 4 from "));
  EXPECT_EQ(end.err.find("after step 0"), std::string::npos) << end.err;
  std::map<std::string, std::vector<int64_t>> taken;
  for (const Json& line : lines_of(run / "metrics.jsonl"))
    taken[*line.get_string("tenant")].push_back(*line.get_int("step"));
  EXPECT_THAT(taken["reverse"], ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(taken["arithmetic"], ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_TRUE(fs::exists(run / "checkpoints/reverse/step_6"));
  const auto replayed = run_graph_program({"replay", run.string()});
  EXPECT_EQ(replayed.code, 0) << replayed.out << replayed.err;
}

/// Who has taken the last step leaves the engine to the others.
TEST_F(TwoTenants, OneThatIsDoneGeneratesNoMore) {
  const fs::path run = folder("run");
  const auto end = run_graph_program(
      words(source_path(kExample), run,
            {"--set", "tenant.reverse.max_steps=1", "--set", "tenant.arithmetic.max_steps=12",
             "--set", "tenant.reverse.filters={ zero_advantage = false }"}));
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(steps(run, "arithmetic").size(), 12U);
  // A batch of 64, and what was under way when it was trained: at most all that may be live.
  EXPECT_LE(lines_of(run / "rollouts" / "reverse.jsonl").size(), 64U * 5U);
}

}  // namespace
}  // namespace primerl
